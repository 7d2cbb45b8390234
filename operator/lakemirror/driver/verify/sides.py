"""Queries the two sides of a table with Spark: range digests, keys that differ, and single keys."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField

from lakemirror.driver.codes import Op
from lakemirror.driver.plan.mirrored import MirroredTable
from lakemirror.driver.read import rows as wire
from lakemirror.driver.sequence import as_bytes
from lakemirror.driver.tables import keys as key_texts
from lakemirror.driver.tables.delta import quoted
from lakemirror.driver.verify.canonical import (
    by_key,
    canonical,
    digest_columns,
    has_ranges,
    index_of,
    is_ranged,
    key_type,
    literal,
)
from lakemirror.driver.verify.ranges import WHOLE, Digest, KeyRange
from lakemirror.driver.verify.sources import UNFIT, SourceTable, Wanted, conditional, meeting
from lakemirror.driver.verify.verdict import Reading, Stored

_SAMPLED_A_PART = 50
_LARGEST_SAMPLE = 20_000


class Sides:
    """A mirror and its source's table. Every request reads the newest state of both.

    With ``images``, the source's rows are read in the form of change events, for a repair.
    """

    def __init__(
        self,
        spark: SparkSession,
        mirror: MirroredTable,
        source: SourceTable,
        wait: Callable[[Reading], bool],
        *,
        images: bool = False,
    ) -> None:
        self._spark, self._mirror, self._source, self._wait = spark, mirror, source, wait
        self._images = images
        self.compared = source.compared
        self._condition = conditional(mirror, source.compared)

    # -- ranges -----------------------------------------------------------------------------------

    def digests(self, ranges: Sequence[KeyRange]) -> list[tuple[Digest, Digest]]:
        """Return the digest of each range in the source and in the mirror."""
        sides = [self._digests(rows, ranges) for rows in (self._source_rows(ranges), self._live(ranges))]
        return list(zip(*sides, strict=True))

    def _digests(self, rows: DataFrame, ranges: Sequence[KeyRange]) -> list[Digest]:
        told = canonical(rows, self.compared).groupBy(index_of(ranges).alias("range"))
        found = {
            row["range"]: Digest(int(row["rows"]), int(row["total"]), int(row["mixed"]))
            for row in told.agg(*digest_columns()).collect()
        }
        return [found.get(index, Digest()) for index in range(len(ranges))]

    def bounds(self, range_: KeyRange, parts: int) -> list[Any]:
        """Return values of the mirror's first key column that split a range into similar parts."""
        if not has_ranges(self.compared):
            return []
        first = F.col(quoted(self.compared.key[0]))
        rows = self._live([range_]).select(first.alias("first"))
        size = rows.count()
        wanted = min(parts * _SAMPLED_A_PART, _LARGEST_SAMPLE)
        if size > wanted:
            rows = rows.sample(fraction=min(1.0, wanted / size), seed=1)
        values = sorted((row[0] for row in rows.collect() if row[0] is not None), key=_order)
        step = max(1, math.ceil(len(values) / parts))
        found: list[Any] = []
        for value in values[step::step]:
            if value != range_.low and (not found or value != found[-1]):
                found.append(value)
        return found

    def unequal(self, ranges: Sequence[KeyRange], most: int) -> list[str]:
        """Return at most ``most`` keys whose rows differ or exist on one side only."""
        inside = index_of(ranges) >= 0
        source = by_key(canonical(self._source_rows(ranges), self.compared).where(inside))
        mirror = by_key(canonical(self._live(ranges), self.compared).where(inside))
        both = source.withColumnRenamed("digest", "s").join(
            mirror.withColumnRenamed("digest", "m"), "key", "full"
        )
        return [row[0] for row in both.where("NOT s <=> m").select("key").limit(most).collect()]

    # -- single keys --------------------------------------------------------------------------------

    def mirror(self, keys: Collection[str]) -> Mapping[str, Stored]:
        """Return what the mirror has for these keys, or for a table without key, what it has in total."""
        self._mirror.mirror.refresh()
        if not self.compared.key:
            row = self._stored_rows().select("__seq").agg(F.max("__seq")).first()
            digest = self._digests(self._live([WHOLE]), [WHOLE])[0]
            return {"": Stored(_single(digest), as_bytes(row[0]) if row is not None else None)}
        told = {"__live": self._is_live(), "__last": last_seq(self._mirror)}
        stored = self._stored_rows().withColumns(told)
        found = self._of(canonical(self._near(stored, keys), self.compared, *told), keys)
        live = by_key(found.where("__live"))
        newest = found.groupBy("key").agg(F.max("__last").alias("seq"))
        gone = self._mirror.tombstones.deleted()
        if gone is not None:
            newest = newest.unionByName(self._of(gone.select("key", "seq"), keys))
        newest = newest.groupBy("key").agg(F.max("seq").alias("seq"))
        rows = newest.join(live, "key", "left").select("key", "digest", "seq").collect()
        return {row[0]: Stored(row[1], as_bytes(row[2])) for row in rows}

    def source(self, keys: Collection[str]) -> Reading:
        """Return what the source has for these keys, and its positions before and after reading."""
        before = self._source.position_below() if self._images else self._source.position()
        unfinished = self._source.unfinished() if self._images else None
        if not self.compared.key:
            digest = self._digests(self._source_rows(None), [WHOLE])[0]
            return Reading({"": _single(digest)}, before, self._source.position())
        rows = self._meeting(self._source.rows(Wanted(keys=self._values(keys))))
        kept = ["__image"] if self._images else []
        if self._images:
            rows = rows.withColumn("__image", self._image())
        told = self._of(canonical(rows, self.compared, *kept), keys)
        found = by_key(told, *kept).collect()
        images = {row["key"]: row["__image"] for row in found if row["__image"] is not None} if kept else {}
        digests = {row["key"]: row["digest"] for row in found}
        return Reading(digests, before, self._source.position(), images, unfinished)

    def wait_for(self, reading: Reading) -> bool:
        """Wait until the mirror has passed the position after a reading.

        Returns whether it did so in time.
        """
        return self._wait(reading)

    # -- rows ---------------------------------------------------------------------------------------

    def fields(self, some: Sequence[str] | None = None) -> list[StructField]:
        """Return the mirror's columns, all or ``some``, by their names in the source, as in change events."""
        names, columns = self.compared.names, self.compared.columns
        return [StructField(names[name], columns[name]) for name in (columns if some is None else some)]

    def key_images(self, keys: Sequence[str]) -> dict[str, str]:
        """Return keys in the form of a change event's payload, by their texts."""
        if not keys:
            return {}
        kind = key_type(self.compared)
        texts = self._spark.createDataFrame([(key,) for key in keys], "__text STRING")
        parts = texts.select("__text", key_texts.decode(F.col("__text"), kind).alias("__key"))
        image = F.to_json(wire.wire(kind.fields, called=self.compared.names))
        return {row[0]: row[1] for row in parts.select("__text", "__key.*").select("__text", image).collect()}

    def _image(self) -> Column:
        """STRING: a row as the payload of a change event; null if the mirror's types cannot hold it."""
        columns = [StructField(name, kind) for name, kind in self.compared.columns.items()]
        image = wire.wire(columns, called=self.compared.names)
        return F.when(F.col(UNFIT).isNull(), F.to_json(image, {"ignoreNullFields": "false"}))

    def _source_rows(self, ranges: Sequence[KeyRange] | None) -> DataFrame:
        return self._meeting(self._source.rows(Wanted(ranges=ranges)))

    def _meeting(self, rows: DataFrame) -> DataFrame:
        """Return the rows that the manifest's filter accepts or cannot judge."""
        return meeting(rows, self._condition)

    def _stored_rows(self) -> DataFrame:
        return self._mirror.rows()

    def _is_live(self) -> Column:
        return is_live(self._mirror, keyed=bool(self.compared.key))

    def _live(self, ranges: Sequence[KeyRange]) -> DataFrame:
        rows = self._stored_rows().where(self._is_live())
        low, high = ranges[0].low, ranges[-1].high
        if self.compared.key:
            first = F.col(quoted(self.compared.key[0]))
            rows = rows if low is None else rows.where(first >= literal(low))
            rows = rows if high is None else rows.where(first < literal(high))
        return rows

    def _near(self, rows: DataFrame, keys: Collection[str]) -> DataFrame:
        """Return the rows between the least and greatest of some keys, so that Delta skips files."""
        if not has_ranges(self.compared):
            return rows
        found = (each[self.compared.key[0]] for each in self._values(keys))
        values = sorted(
            (each for each in found if each is not None), key=_order
        )  # no mirror has a null there
        first = F.col(quoted(self.compared.key[0]))
        return rows.where(first.between(literal(values[0]), literal(values[-1]))) if values else rows.limit(0)

    def _of(self, rows: DataFrame, keys: Collection[str]) -> DataFrame:
        wanted = self._spark.createDataFrame([(key,) for key in keys], "key STRING")
        return rows.join(F.broadcast(wanted), "key", "left_semi")

    def _values(self, keys: Collection[str]) -> list[dict[str, Any]]:
        """Return the values of some keys, by the mirror's names of the columns that rows are selected by."""
        texts = self._spark.createDataFrame([(key,) for key in keys], "key STRING")
        rows = texts.select(key_texts.decode(F.col("key"), key_type(self.compared)).alias("k"))
        kinds = self.compared.columns
        wanted = [F.col("k")[name].alias(name) for name in self.compared.key if is_ranged(kinds[name])]
        return [row["k"].asDict() for row in rows.select(F.struct(F.lit(0), *wanted).alias("k")).collect()]


def is_live(mirror: MirroredTable, *, keyed: bool) -> Column:
    """BOOLEAN: whether the source should have a stored row."""
    if mirror.mode == "scd2" and keyed:
        return F.col("__is_current")
    return F.col("__op") != Op.DELETE


def last_seq(mirror: MirroredTable) -> Column:
    """BINARY: the sequence of a stored row's last change, which may be the delete that ended its version."""
    seq = F.col("__seq")
    return F.greatest(seq, "__delete_seq") if "__delete_seq" in mirror.rows().columns else seq


def _single(digest: Digest) -> int:
    """Return a digest as a single number."""
    return hash((digest.rows, digest.total, digest.mixed))


def _order(value: Any) -> Any:
    """Return a sort key that orders values as Spark does: texts by their bytes."""
    return value.encode() if isinstance(value, str) else value
