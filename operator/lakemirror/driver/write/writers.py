"""Chooses the writer of a Delta table."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, Final, cast

from pyspark.sql import DataFrame, SparkSession

from lakemirror.api.spark_settings import MERGE, WRITER
from lakemirror.driver.plan.mirrored import MirroredTable
from lakemirror.driver.plan.table import TablePlan
from lakemirror.driver.read.base import Batch
from lakemirror.driver.reduce.changes import Changes
from lakemirror.driver.tables.mirror import Mirror
from lakemirror.driver.write import direct
from lakemirror.driver.write.append import Correcting, append
from lakemirror.driver.write.direct import DirectWriter
from lakemirror.driver.write.merge import MergeWriter
from lakemirror.driver.write.own import Own
from lakemirror.driver.write.writer import Done, Transaction, Writer, Written

_FIRST_LOOK, _FURTHER = 50, 20
"""How many commits are searched for a batch at first, and how many times more each time after that. Other
shards of a mirror, housekeeping and changed columns commit, too, so nothing bounds the number.
"""
_OF_ROWS: Final = ("STREAMING UPDATE", "MERGE")
"""The operations as which the writers commit rows (`TableLog.commit`, and MERGE)."""


class DeltaWriters:
    """The writers of one Delta table. The fastest one that can do the job is chosen."""

    def __init__(self, table: MirroredTable) -> None:
        self._table = table
        self.merged = True
        """Whether the previous batch was written with MERGE."""

    @property
    def _mirror(self) -> Mirror:
        return cast(Mirror, self._table.mirror)  # opened by the target that creates these writers

    def for_changes(self, changes: Changes) -> Writer:
        """Return the writer that carries out ``changes`` fastest."""
        asked = self._table.spark.conf.get(WRITER, "") == MERGE
        self.merged = asked or bool(changes.untouched) or not direct.possible(self._mirror)
        return MergeWriter(self._mirror) if self.merged else self._direct

    @cached_property
    def _direct(self) -> DirectWriter:
        return DirectWriter(self._mirror, self._table.avoided)

    def append(
        self, events: DataFrame, plan: TablePlan, batch: Batch, session: SparkSession | None
    ) -> Written:
        """Add the rows of an event frame that are not there yet."""
        own, reading = Own.of(self._table, plan, batch), plan.reading
        correcting = self._correcting if reading.corrects else None
        return append(self._mirror, events, reading.columns, own, session, correcting=correcting)

    @property
    def _correcting(self) -> Correcting:
        """How the row of a line of a file is found that is read again."""
        envelope, by = self._table.spec.envelope, self._table.spec.order.by
        if envelope.format != "custom" and by in ("auto", "lsn", "binlog"):
            return "by position"
        may_rekey = envelope.format == "maxwell" or (envelope.fields is not None and envelope.fields.before)
        return "by origin and kind" if may_rekey else "by origin"

    def done(self, transaction: Transaction) -> Done | None:
        """Return the commit of a batch, found in the table's history."""
        batch = transaction.batch
        for version, note, metrics in self._notes():
            if note.get("query") != batch.query_id or note.get("batch") != batch.batch_id:
                continue
            if self._table.shard is not None and note.get("source") != self._table.shard:
                continue
            return Done(version, note, _said(note, metrics))
        return None

    def _notes(self) -> Iterator[tuple[int, Mapping[str, Any], Mapping[str, str]]]:
        """Return the commits of rows that have a note like ours, the newest first.

        Each is its version, its note and Delta's metrics. Delta gives each commit of a batch the batch's
        note, such as one that sets a property once the rows are there.
        """
        limit, seen = _FIRST_LOOK, 0
        while True:
            commits = self._mirror.delta().history(limit)
            rows = commits.select("version", "operation", "userMetadata", "operationMetrics").collect()
            for row in rows[seen:]:
                note = _note(row["userMetadata"])
                if note is not None and row["operation"] in _OF_ROWS:
                    yield int(row["version"]), note, row["operationMetrics"] or {}
            if len(rows) < limit:
                return
            limit, seen = limit * _FURTHER, len(rows)


def _note(text: str | None) -> Mapping[str, Any] | None:
    """Return a commit's note, or None if it has none or one that somebody else wrote in another form."""
    try:
        note = json.loads(text or "null")
    except ValueError:
        return None
    return note if isinstance(note, dict) else None


def _said(note: Mapping[str, Any], metrics: Mapping[str, str]) -> Written:
    """Return what a commit did, according to the commit itself or, for MERGE, to Delta's metrics."""
    if "rows" in note:
        return Written(**note["rows"])
    inserted, updated, deleted = (
        int(metrics.get(f"numTargetRows{what}", 0)) for what in ("Inserted", "Updated", "Deleted")
    )
    return Written(inserted, updated, deleted)
