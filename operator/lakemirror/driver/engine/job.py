"""One Spark job for a batch, whatever the number of its tables: read, divide, fold."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakemirror.driver.engine import filter_columns
from lakemirror.driver.engine.believed import Believed
from lakemirror.driver.engine.blocks import PARCELS, RAW, REPORT, Dividing, Report, divided
from lakemirror.driver.engine.buckets import FOUND, Done, StoredMirror, folded
from lakemirror.driver.engine.filters import Questions


@dataclass(frozen=True)
class JobResult:
    """What the job has found: a report of each topic, and the outcomes of buckets, by the table's number."""

    reports: dict[str | None, Report]
    done: dict[int, list[Done]]


def run(
    raw: DataFrame, tables: Sequence[Believed], places: Sequence[StoredMirror], dividing: Dividing
) -> JobResult:
    """Read raw records, and make of the plain changes of tables what becomes of their mirrors.

    Nothing that anybody reads is changed: new files are stored, and named by no log. Raises Spark's errors.
    """
    if dividing.is_small:  # no shuffle
        spread = _parcels(raw.coalesce(1), tables, dividing)
    else:
        spread = _parcels(raw, tables, dividing).repartitionById(dividing.tasks, F.col("target"))
    rows = spread.mapInArrow(_Second(tables, places, dividing), FOUND).collect()
    reports: dict[str | None, Report] = {}
    done: dict[int, list[Done]] = {}
    for row in rows:
        content = pickle.loads(row["content"])
        if row["what"] == REPORT:
            before = reports.get(content.topic)
            reports[content.topic] = content if before is None else before | content
        else:
            done.setdefault(row["number"], []).append(content)
    return JobResult(reports, done)


def _parcels(raw: DataFrame, tables: Sequence[Believed], dividing: Dividing) -> DataFrame:
    """Return what the first stage hands on. Spark judges the rows of tables with filters on their way."""
    questions = Questions.of(tables)
    first = _First(tables, dividing, questions)
    if not questions:
        return raw.select(*RAW).mapInArrow(first, PARCELS)
    asking = raw.select(*RAW).mapInArrow(first, filter_columns.schema_of(questions))
    return filter_columns.judged(asking, questions)


@dataclass(frozen=True)
class _First:
    """The first stage. A class, so that Spark pickles it by its name."""

    tables: Sequence[Believed]
    dividing: Dividing
    questions: Questions

    def __call__(self, blocks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        task = 0 if context is None else context.partitionId()
        return divided(blocks, self.tables, self.dividing, self.questions, task)


@dataclass(frozen=True)
class _Second:
    """The second stage."""

    tables: Sequence[Believed]
    places: Sequence[StoredMirror]
    dividing: Dividing

    def __call__(self, blocks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return folded(blocks, self.tables, self.places, self.dividing.buckets)
