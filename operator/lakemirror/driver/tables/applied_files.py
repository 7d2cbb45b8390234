"""Tracks the files of rows that a mirror has, by their content, so that none is applied twice.

They are stored in a Delta table of their own beside the mirror (`_files`), one row per file and batch. A row
alone says nothing: it is written before the rows of its batch, with the batch's transaction ID, and counts
once the mirror's log has that transaction. The commit that brings the rows is thus the one that makes their
files known, whatever happens in between. A mirror that was deleted forgets its files.

The hashes are not stored in the mirror's log itself, although Delta would accept a transaction ID for each. A
log carries all transaction IDs in each checkpoint and in each reader's memory forever, and MERGE accepts only
one. A log that forgets them after some time (``delta.setTransactionRetentionDuration``) would let files in
again. Here, a million files cost the mirror one transaction ID.

Batches of a query are committed in order. A batch that did not commit to the mirror, because it held the
table, left no transaction either. But the transaction of a later batch would seem to confirm its files. The
rows of such a batch are therefore deleted before the next one is written (`lakemirror.driver.write.marks`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lakemirror.driver.tables import delta
from lakemirror.driver.tables.store import Store

COLUMNS: Final = "sha256 STRING, name STRING, app_id STRING, batch_id BIGINT, at TIMESTAMP"


class AppliedFiles:
    """The files of one mirror, which must exist."""

    def __init__(self, spark: SparkSession, mirror: Store) -> None:
        self._spark, self._mirror = spark, mirror
        self.path = mirror.side("files")

    def frame(self) -> DataFrame | None:
        """Return all rows, with `COLUMNS`, or None if there are none."""
        return delta.read(self._spark, self.path)

    def among(self, hashes: Iterable[str], app_id: str, batch_id: int) -> set[str]:
        """Return the hashes of contents that the mirror has from a batch other than this one."""
        rows = self.frame()
        if rows is None:
            return set()
        asked = self._spark.createDataFrame([(each,) for each in hashes], "sha256 STRING")
        this = (F.col("app_id") == app_id) & (F.col("batch_id") == batch_id)
        found = rows.where(~this).join(F.broadcast(asked), "sha256", "left_semi")
        known = found.select("sha256", "app_id", "batch_id").distinct().collect()
        committed = {each: self._mirror.applied(each) for each in {row["app_id"] for row in known}}
        return {row["sha256"] for row in known if _reaches(committed[row["app_id"]], row["batch_id"])}


def _reaches(committed: int | None, batch_id: int) -> bool:
    return committed is not None and committed >= batch_id
