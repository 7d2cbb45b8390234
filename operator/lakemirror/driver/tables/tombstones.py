"""What remains of keys that are gone: tombstones, floors and the images of moved rows.

They are stored in a separate, append-only table beside the mirror (Delta: `_tombstones`), one row per fact:

=========  =========================================================================================
kind       meaning
=========  =========================================================================================
deleted    ``key`` was deleted at ``seq``: older events do not write it again
truncated  all keys were, at ``seq`` (no key); only rows of its order are (`lakemirror.driver.orders`)
moved      ``key`` became ``new_key`` at ``seq``; ``image`` has the values that the row had under its
           former key, and ``seqs`` their sequences: the create half may need them. The origin is that
           of the delete half, if the move is of a transaction that was open during the snapshot: its
           ``seqs`` then have an entry ``""``
merged     a change of ``key`` at ``seq`` that starts no version (``trackedColumns``), for events that
           arrive later but precede it; ``image`` is its content
collected  deletes up to ``seq`` that came from this partition were collected: an older event that
           arrives now is late
=========  =========================================================================================

Keys and images are texts (`lakemirror.driver.tables.keys`), so a widened key column changes nothing here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from delta import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from lakemirror.driver.raised import LakemirrorError
from lakemirror.driver.sequence import as_bytes
from lakemirror.driver.tables import keys
from lakemirror.driver.tables.delta import is_table
from lakemirror.driver.tables.store import Facts

TYPES = {
    "kind": "string",
    "key": "string",
    "seq": "binary",
    "at": "timestamp",
    "event_time": "timestamp",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "new_key": "string",
    "image": "string",
    "seqs": "map<string, binary>",
    "batch": "bigint",
}


ORIGIN = ("topic", "partition", "offset")


@dataclass(frozen=True)
class Summary:
    """What is known about a mirror's tombstones without reading them.

    ``newest`` is the highest sequence of a tombstone, and ``oldest`` is when the first one was recorded.
    ``merged`` says whether there are merged changes. ``latest`` is the latest time of a delete in the source.
    """

    retained: int = 0
    newest: bytes | None = None
    floor: bytes | None = None
    moved: int = 0
    collected: bytes | None = None
    oldest: datetime | None = None
    merged: bool = False
    latest: datetime | None = None


class TombstonesGone(LakemirrorError):
    """Tombstones were lost while a mirror was written. Who opens it again is told what to do about that."""


class DeltaFacts:
    """Facts in a Delta table. ``append`` appends rows to the table at a path."""

    apart = True

    def __init__(self, spark: SparkSession, path: str, append: Callable[[DataFrame, str], None]) -> None:
        self._spark, self._path, self._append = spark, path, append

    @property
    def exist(self) -> bool:
        return is_table(self._spark, self._path)

    def frame(self) -> DataFrame:
        return self._spark.read.format("delta").load(self._path)

    def add(self, rows: DataFrame) -> None:
        self._append(rows, self._path)

    def collect(self, before: datetime, below: bytes | None, record: DataFrame | None) -> None:
        if record is not None:
            record.write.format("delta").mode("append").save(self._path)
        DeltaTable.forPath(self._spark, self._path).delete(collected(before, below))


def collected(before: datetime, below: bytes | None) -> Column:
    """BOOLEAN: whether a fact was recorded before a time and is below a sequence (None: any)."""
    old = F.col("kind").isin(*COLLECTED) & (F.col("at") < F.lit(before))
    return old if below is None else old & (F.col("seq") < F.lit(below))


COLLECTED = ("deleted", "moved", "merged")
"""Kinds of facts that are forgotten once no event can need them."""


class Tombstones:
    """The tombstones of one mirror, or of one of its shards."""

    def __init__(self, spark: SparkSession, facts: Facts) -> None:
        self._spark, self._facts = spark, facts
        self.apart = facts.apart
        self._exist: bool | None = None
        self._summary: Summary | None = None

    @property
    def exist(self) -> bool:
        """Whether there is a place that holds facts, even if there are none any more."""
        if self._exist is None:
            self._exist = self._facts.exist
        return self._exist

    @exist.setter
    def exist(self, exist: bool) -> None:
        self._exist = exist

    @property
    def is_summarised(self) -> bool:
        """Whether the summary is known. Otherwise, all facts are read for it."""
        return self._summary is not None

    @property
    def summary(self) -> Summary:
        """The summary of all facts."""
        if self._summary is None:
            self._summary = self._summarise() if self.exist else Summary()
        return self._summary

    @summary.setter
    def summary(self, summary: Summary) -> None:
        self._summary = summary

    def frame(self) -> DataFrame:
        """Return all facts, with the columns of `TYPES`."""
        return self._facts.frame()

    def add(self, rows: DataFrame, summary: Summary) -> None:
        """Add facts. ``summary`` is the summary that includes them.

        Raises TombstonesGone where there were some, which would otherwise be begun anew.
        """
        if self.exist and not self._facts.exist:
            raise TombstonesGone("its tombstones are gone")
        self._facts.add(rows)
        self.summary, self.exist = summary, True

    def deleted(self, batch: int | None = None) -> DataFrame | None:
        """Return the newest tombstone per key, or None if there are none.

        Of several at one position, this is the one that arrived last. ``by_delete`` says that it is of a
        delete, not of a change of the key alone, and ``delete_before`` is the newest delete of other batches
        than ``batch``, which may be running again.
        Columns: key STRING, seq, topic, partition, offset, by_delete BOOLEAN, delete_before BINARY.
        """
        return self._newest("deleted", "moved", batch=batch)

    def without_moves(self, batch: int | None = None) -> DataFrame | None:
        """Return the same as `deleted`, but from deletes alone.

        If deletes are soft, a move does not stand for the delete of its former key: until that comes, events
        of this key still change the row that it keeps.
        """
        return self._newest("deleted", batch=batch)

    def _newest(self, *kinds: str, batch: int | None) -> DataFrame | None:
        if not self.summary.retained:
            return None
        by_delete = F.col("kind") == "deleted"
        newest = F.max(F.struct("seq", "topic", "partition", "offset", by_delete.alias("by_delete")))
        before = by_delete if batch is None else by_delete & ~F.col("batch").eqNullSafe(batch)
        before = F.max(F.when(before, F.col("seq")))
        found = self.frame().where(F.col("kind").isin(*kinds)).groupBy("key")
        return found.agg(newest.alias("t"), before.alias("delete_before")).select(
            "key", "t.*", "delete_before"
        )

    def truncated(self) -> DataFrame:
        """Return the truncates: seq, topic, partition (null for those of earlier versions)."""
        return self.frame().where("kind = 'truncated'").select("seq", "topic", "partition")

    def moved(self) -> DataFrame | None:
        """Return the images of all moves, or None if there are none.

        A move has several if it was improved. Which value of a column is the newest, only its sequence tells:
        batches of different queries, such as those of a replay, are numbered independently.
        Columns: key, seq, new_key, image, seqs, topic, partition, offset.
        """
        if not self.summary.moved:
            return None
        return self.frame().where("kind = 'moved'").select("key", "seq", "new_key", "image", "seqs", *ORIGIN)

    def has_any(self, before: datetime) -> bool:
        """Return whether there may be facts that were recorded before a time, without asking the table."""
        return self.summary.oldest is not None and self.summary.oldest < before

    def collect(self, before: datetime, below: bytes | None) -> int:
        """Forget deletes that were recorded before a time and are below a sequence (None: any).

        Returns their number.
        """
        if not self.has_any(before):
            return 0
        gone = F.col("kind") != "merged"
        rows = self.frame().where(collected(before, below))
        newest = F.max(F.when(gone, F.col("seq"))).alias("seq")
        about = (newest, F.count_if(gone).alias("gone"), F.count("*").alias("all"))
        places = rows.groupBy("topic", "partition").agg(*about).localCheckpoint()
        found = places.agg(F.sum("gone"), F.sum("all")).first()
        if found is None or not found[1]:
            return 0
        record = None
        if found[0]:
            place = {name: F.col(name) for name in ("seq", "topic", "partition")}
            record = fact(places.where("gone > 0"), "collected", batch=-1, **place)
        self._facts.collect(before, below, record)
        self.summary = self._summarise()
        return int(found[0])

    def _summarise(self) -> Summary:
        kind = F.col("kind")
        row = (
            self.frame()
            .agg(
                F.countDistinct(F.when(kind.isin("deleted", "moved"), F.col("key"))),
                F.max(F.when(kind.isin("deleted", "moved"), F.col("seq"))),
                F.max(F.when(kind == "truncated", F.col("seq"))),
                F.count_if(kind == "moved"),
                F.max(F.when(kind == "collected", F.col("seq"))),
                F.unix_micros(F.min(F.when(kind.isin("deleted", "moved", "merged"), F.col("at")))),
                F.count_if(kind == "merged"),
                F.unix_micros(F.max(F.when(kind == "deleted", F.col("event_time")))),
            )
            .first()
        )
        assert row is not None
        oldest, latest = moment(row[5]), moment(row[7])
        seqs = as_bytes(row[1]), as_bytes(row[2])
        return Summary(row[0], *seqs, row[3], as_bytes(row[4]), oldest, bool(row[6]), latest)


def moment(micros: int | None) -> datetime | None:
    """Return the time so many microseconds after 1970."""
    return None if micros is None else datetime.fromtimestamp(micros / 1e6, UTC)


def folder_of(shard: str | None) -> str:
    """Return the name of the table beside a mirror with the tombstones of a shard, or of all rows."""
    return "tombstones" if shard is None else f"tombstones-{hashlib.sha256(shard.encode()).hexdigest()[:16]}"


def encoded_key(rows: DataFrame, column: str = "key") -> Column:
    """STRING: a frame's struct of key columns as the text that tombstones have."""
    kind = rows.schema[column].dataType
    assert isinstance(kind, StructType)
    return keys.encode(F.col(column), kind)


def fact(rows: DataFrame, kind: str, *, batch: int, **columns: Column) -> DataFrame:
    """Return rows of `TYPES`. Columns that are not given are null."""
    given = {"kind": F.lit(kind), "at": F.current_timestamp(), "batch": F.lit(batch), **columns}
    return rows.select([given.get(name, F.lit(None)).cast(ddl).alias(name) for name, ddl in TYPES.items()])


def raised(
    summary: Summary,
    *,
    deletes: int = 0,
    last_delete: bytes | None = None,
    moved: int = 0,
    new_moves: int = 0,
    last_move: bytes | None = None,
    floor: bytes | None = None,
    merged: bool = False,
    latest: datetime | None = None,
) -> Summary:
    """Return the summary after more facts.

    ``moved`` counts images, and ``new_moves`` those of moves that had none. As a rule, the former keys of
    these moves are among the ``deletes``.
    """
    return replace(
        summary,
        retained=summary.retained + max(deletes, new_moves),
        newest=_highest(summary.newest, last_delete, last_move),
        moved=summary.moved + moved,
        floor=_highest(summary.floor, floor),
        oldest=summary.oldest or (datetime.now(UTC) if deletes or moved or merged else None),
        merged=summary.merged or merged,
        latest=max((each for each in (summary.latest, latest) if each is not None), default=None),
    )


def _highest(*seqs: bytes | None) -> bytes | None:
    return max((each for each in seqs if each is not None), default=None)
