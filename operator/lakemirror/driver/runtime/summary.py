"""The summary of a finished run."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lakemirror.api.report import NONE, Counts
from lakemirror.driver.errors import LakemirrorError, cause_of
from lakemirror.driver.parallel import side_by_side
from lakemirror.driver.read.base import Lag
from lakemirror.driver.results import TableResult
from lakemirror.driver.write.target import DELTA, TargetKind

Status = Literal["completed", "stopped"]
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunSummary:
    """What a run did: its own counts, also by source table in ``tables``, with the current number of rows.

    ``status`` is "completed" if everything that was there is applied, or is ``held`` with its table, and
    "stopped" if the run was asked to stop.
    """

    pipeline: str
    status: Status
    tables: dict[str, TableResult] = field(default_factory=dict)
    counts: Counts = NONE
    batches: int = 0
    seconds: float = 0.0
    lag: Lag = field(default_factory=lambda: Lag(None, False))
    warnings: tuple[str, ...] = ()

    @property
    def held(self) -> dict[str, str]:
        """Why tables are held, by source table. Not everything is applied then."""
        return {source: table.error for source, table in self.tables.items() if table.error is not None}


def with_rows(
    session: SparkSession, tables: Mapping[str, TableResult], kind: TargetKind = DELTA
) -> dict[str, TableResult]:
    """Return the results by source table, in order, with the current number of rows in the mirrors."""
    names = sorted(tables)
    counted = side_by_side(lambda name: _with_rows(session, tables[name], kind), names)
    return dict(zip(names, counted, strict=True))


def _with_rows(session: SparkSession, table: TableResult, kind: TargetKind) -> TableResult:
    if table.rows is not None or table.target is None:
        return table
    try:
        return replace(table, rows=kind.count(session, table.target))
    except (PySparkException, Py4JError, LakemirrorError) as error:
        _log.warning("the rows of %s cannot be counted: %s", table.target, cause_of(error))
        return table
