"""One Spark job for a batch, whatever the number of its tables: read, divide, fold."""

from __future__ import annotations

import logging
import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.core.broadcast import Broadcast
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lakemirror.driver.columns.raw_records import RawRecords
from lakemirror.driver.engine import filter_columns
from lakemirror.driver.engine.believed import Believed
from lakemirror.driver.engine.blocks import PARCELS, RAW, REPORT, Dividing, Report, divided, unread
from lakemirror.driver.engine.buckets import FOUND, Done, StoredMirror, folded
from lakemirror.driver.engine.filters import Questions
from lakemirror.driver.engine.saved_files import PiecesOfTasks, pieces, placed
from lakemirror.driver.engine.saved_records import NotRecords, lines_in, records_of
from lakemirror.driver.read.base import SavedLines

log = logging.getLogger(__name__)

_LARGE: Final = 1 << 19
"""The size of a pickled function, in bytes, above which it is broadcast.

Spark broadcasts those above a MiB itself (``spark.broadcast.UDFCompressionThreshold``), but does not delete
the file that it makes of one before the driver ends: with many tables, one more in each batch.
"""
_Stage = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
_Reading = Callable[[Iterator[pa.RecordBatch]], Iterator[RawRecords]]


@dataclass(frozen=True)
class JobResult:
    """What the job has found: a report of each topic, and the outcomes of buckets, by the table's number."""

    reports: dict[str | None, Report]
    done: dict[int, list[Done]]

    @property
    def unread(self) -> str | None:
        """Why the lines of the batch have to be parsed by Spark, or None if they are records."""
        return self.reports[None].odd if None in self.reports else None


def start_worker(spark: SparkSession) -> None:
    """Start Python's daemon and a worker in the background, for which the first batch would wait.

    An error is left to that batch, which runs into it, too.
    """

    def start() -> None:
        try:
            spark.range(1, numPartitions=1).mapInArrow(_unchanged, "id BIGINT").collect()
        except Exception as error:
            log.debug("no worker could be started in advance: %s", error)

    threading.Thread(target=start, name="lakemirror-worker", daemon=True).start()


def _unchanged(blocks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return blocks


def run(
    raw: DataFrame,
    tables: Sequence[Believed],
    places: Sequence[StoredMirror],
    dividing: Dividing,
    lines: SavedLines | None = None,
) -> JobResult:
    """Read raw records, and make of the plain changes of tables what becomes of their mirrors.

    With ``lines``, they are read from these (`saved_records`). Nothing that anybody reads is changed: new
    files are stored, and named by no log. Raises Spark's errors.
    """
    questions = Questions.of(tables)
    frame, reading = _input(raw, lines)
    stages = _First(tables, dividing, questions, reading), _Second(tables, places, dividing)
    with _sent(raw.sparkSession, stages) as (first, second):
        if dividing.is_small:  # no shuffle
            spread = _parcels(frame.coalesce(1), first, questions)
        else:
            spread = _parcels(frame, first, questions).repartitionById(dividing.tasks, F.col("target"))
        rows = spread.mapInArrow(second, FOUND).collect()
    reports: dict[str | None, Report] = {}
    done: dict[int, list[Done]] = {}
    for row in rows:
        content = pickle.loads(row["content"])
        if row["what"] == REPORT:
            before = reports.get(content.topic)
            reports[content.topic] = content if before is None else before | content
        else:
            done.setdefault(row["number"], []).append(content)
    if lines is not None and lines.files is not None:
        reports = _placed(reports, lines)
    return JobResult(reports, done)


def _placed(reports: dict[str | None, Report], lines: SavedLines) -> dict[str | None, Report]:
    """Return reports whose records have their places in files, or no more than their places in topics."""
    try:
        return placed(reports, lines)
    except OSError as error:
        log.debug("the places of records that cannot be applied are left to Spark: %s", error)
        return {topic: each.without_raw() for topic, each in reports.items()}


def _input(raw: DataFrame, lines: SavedLines | None) -> tuple[DataFrame, _Reading]:
    """Return the frame that the first stage gets, and what makes records of its blocks."""
    if lines is None:
        return raw.select(*RAW), _as_they_are
    if lines.files is None:
        return lines.frame(), _of_lines
    spark = raw.sparkSession
    tasks = pieces(lines.files, spark.sparkContext.defaultParallelism)
    return spark.range(0, len(tasks), 1, max(1, len(tasks))), _OfFiles(PiecesOfTasks(tasks))


def _as_they_are(blocks: Iterator[pa.RecordBatch]) -> Iterator[RawRecords]:
    return map(RawRecords.of, blocks)


def _of_lines(blocks: Iterator[pa.RecordBatch]) -> Iterator[RawRecords]:
    return records_of(lines_in(blocks))


@dataclass(frozen=True)
class _OfFiles:
    """Reads the records of files (`saved_files`)."""

    pieces: PiecesOfTasks

    def __call__(self, blocks: Iterator[pa.RecordBatch]) -> Iterator[RawRecords]:
        return records_of(self.pieces.lines(blocks))


def _parcels(raw: DataFrame, first: _Stage, questions: Questions) -> DataFrame:
    """Return what the first stage hands on. Spark judges the rows of tables with filters on their way."""
    if not questions:
        return raw.mapInArrow(first, PARCELS)
    asking = raw.mapInArrow(first, filter_columns.schema_of(questions))
    return filter_columns.judged(asking, questions)


@contextmanager
def _sent(spark: SparkSession, stages: Sequence[_Stage]) -> Iterator[Sequence[_Stage]]:
    """Yield the functions of stages as Spark gets them, and delete afterwards what was made to send them."""
    broadcasts: list[Broadcast[bytes]] = []

    def pickled(stage: _Stage) -> _Pickled:
        content = pickle.dumps(stage, pickle.HIGHEST_PROTOCOL)
        if len(content) <= _LARGE:
            return _Pickled(content)
        broadcasts.append(spark.sparkContext.broadcast(content))
        return _Pickled(broadcasts[-1])

    try:
        yield [pickled(each) for each in stages]
    finally:
        for each in broadcasts:
            try:
                each.destroy()
            except Exception as error:  # whatever became of the job, it is over
                log.debug("what was sent to tasks could not be deleted: %s", error)


@dataclass(frozen=True, repr=False)
class _Pickled:
    """The function of a stage, which has keys of file systems in it."""

    content: bytes | Broadcast[bytes]

    def __call__(self, blocks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        content = self.content if isinstance(self.content, bytes) else self.content.value
        stage: _Stage = pickle.loads(content)
        return stage(blocks)


@dataclass(frozen=True)
class _First:
    """The first stage. A class, so that Spark pickles it by its name."""

    tables: Sequence[Believed]
    dividing: Dividing
    questions: Questions
    reading: _Reading

    def __call__(self, blocks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        task = 0 if context is None else context.partitionId()
        try:
            yield from divided(self.reading(blocks), self.tables, self.dividing, self.questions, task)
        except NotRecords as reason:  # all lines are read before anything is handed on
            yield from unread(str(reason), self.questions, task)


@dataclass(frozen=True)
class _Second:
    """The second stage."""

    tables: Sequence[Believed]
    places: Sequence[StoredMirror]
    dividing: Dividing

    def __call__(self, blocks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return folded(blocks, self.tables, self.places, self.dividing.buckets)
