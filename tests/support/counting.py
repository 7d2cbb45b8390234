"""An applier that only counts, for tests of what is around it; pipelines and records for it."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from lakemirror.api import CdcPipeline, Pipeline
from lakemirror.api.report import Counts
from lakemirror.driver.read.base import Batch
from lakemirror.driver.record.history import AuditHistory
from lakemirror.driver.results import BatchResult, Drift, TableResult


class Counter:
    """An applier that counts records by topic."""

    made: list[Counter]
    """All that were made, since a test emptied it."""

    def __init__(
        self, spark: SparkSession, pipeline: CdcPipeline, query_id: str, history: AuditHistory
    ) -> None:
        self.query_id = query_id
        self.batches: list[Batch] = []
        self.collected: list[bool] = []
        Counter.made.append(self)

    def apply(self, raw: DataFrame, batch: Batch) -> BatchResult:
        self.batches.append(batch)
        counts = {row["topic"]: row["count"] for row in raw.groupBy("topic").count().collect()}
        drift = (Drift("note", "added", None, "string", "added"),)
        results = {
            topic: TableResult(
                topic, counts=Counts(records=n, applied=n, inserted=n), tombstones_retained=1, drift=drift
            )
            for topic, n in counts.items()
        }
        return BatchResult(batch.batch_id, Counts(records=1, no_row_change=1), results)

    def collect_tombstones(self, *, had_all_at: datetime | None) -> int:
        self.collected.append(had_all_at is not None)
        return 0


def make(path: Path, **spec: Any) -> CdcPipeline:
    """A pipeline with its target and its checkpoint below ``path``."""
    given = {"target": {"path": f"{path}/out/{{table}}"}, "checkpoint": f"{path}/state"}
    return Pipeline("shop", **{**given, "trigger": {"interval": "100ms"}, **spec})


def record(topic: str, offset: int) -> str:
    """A line of a file of records."""
    given = {"topic": topic, "partition": 0, "offset": offset, "timestamp": 0, "key": None, "value": "v"}
    return json.dumps(given) + "\n"
