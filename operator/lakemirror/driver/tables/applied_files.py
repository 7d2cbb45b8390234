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
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from urllib.parse import unquote

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lakemirror.driver.tables import delta
from lakemirror.driver.tables.store import Store

COLUMNS: Final = "sha256 STRING, name STRING, app_id STRING, batch_id BIGINT, at TIMESTAMP, start BIGINT"
"""``start`` is the offset of the file's first row: the place of the file among all. Earlier versions did not
store it, so that these files are older than all that have one, and are ordered by ``at``.
"""


@dataclass(frozen=True)
class AppliedFile:
    """A file that a mirror has. Its ``name`` is relative to the folder that its source named."""

    sha256: str
    name: str
    start: int
    at: datetime

    @property
    def place(self) -> tuple[int, datetime, str]:
        """Its place among all files."""
        return self.start, self.at, self.name

    def is_at(self, place: str) -> bool:
        """Return whether this is the file at a place, as rows have it in their column ``file``."""
        return unquote(place).endswith(f"/{self.name}")

    def may_be_beside(self, place: str | None) -> bool:
        """Return whether its folder is that of a place, as far as its name shows it. It is that of None."""
        folder = self.name.rpartition("/")[0]
        return place is None or not folder or _folder_of(place).endswith(f"/{folder}")


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

    def alike(self, hashes: Iterable[str], app_id: str, batch_id: int) -> list[AppliedFile]:
        """Return the files with these contents that the mirror has from a batch other than this one."""
        rows = self._others(app_id, batch_id)
        if rows is None:
            return []
        asked = self._spark.createDataFrame([(each,) for each in hashes], "sha256 STRING")
        found = rows.join(F.broadcast(asked), "sha256", "left_semi").select("sha256", "name", "start", "at")
        return [AppliedFile(*row) for row in found.distinct().collect()]

    def has_others(
        self, after: AppliedFile, before: int, beside: str | None, app_id: str, batch_id: int
    ) -> bool:
        """Return whether the mirror has other content between the place of a file and the start ``before``.

        Only files that may be ``beside`` a place count.
        """
        rows = self._others(app_id, batch_id)
        if rows is None:
            return False
        names = ("start", "at", "name")
        place = F.struct(*names)
        known = F.struct(*[F.lit(each).alias(name) for name, each in zip(names, after.place, strict=True)])
        between = rows.where((F.col("sha256") != after.sha256) & (place > known) & (F.col("start") < before))
        if beside is not None:
            folder = F.regexp_extract("name", "^(.*)/", 1)
            same = F.endswith(F.lit(_folder_of(beside)), F.concat(F.lit("/"), folder))
            between = between.where((folder == "") | same)
        return not between.isEmpty()

    def _others(self, app_id: str, batch_id: int) -> DataFrame | None:
        """Return the files that the mirror has from a batch other than this one, all with a ``start``."""
        rows = self.frame()
        if rows is None:
            return None
        found = F.lit(False)
        for each in [row[0] for row in rows.select("app_id").distinct().collect()]:
            batch = self._mirror.applied(each)
            if batch is not None:
                found = found | ((F.col("app_id") == each) & (F.col("batch_id") <= batch))
        this = (F.col("app_id") == app_id) & (F.col("batch_id") == batch_id)
        start = F.col("start") if "start" in rows.columns else F.lit(None).cast("bigint")
        return rows.where(found & ~this).withColumn("start", F.coalesce(start, F.lit(-1)))


def _folder_of(place: str) -> str:
    return unquote(place).rpartition("/")[0]


def _reaches(committed: int | None, batch_id: int) -> bool:
    return committed is not None and committed >= batch_id
