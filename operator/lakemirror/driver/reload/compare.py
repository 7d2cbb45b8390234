"""Compares a snapshot with a mirror and determines the changes that make the mirror equal to the snapshot.

These are pure functions from frames to frames. Equal rows produce no changes, so a reload writes little, adds
no versions to histories, and does nothing when it is repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructField

from lakemirror.driver.codes import OWN_TOPICS, Op
from lakemirror.driver.read import rows as wire
from lakemirror.driver.reload.place import Place
from lakemirror.driver.reload.reading import RELOAD_TOPIC
from lakemirror.driver.tables.delta import quoted
from lakemirror.driver.tables.names import TableName
from lakemirror.driver.verify.canonical import canonical
from lakemirror.driver.verify.sources import UNFIT, Compared

WHAT = ("equal", "missing", "changed", "gone", "newer", "unfit")
"""What the comparison may find for a key.

It is as the snapshot shows; the mirror lacks its row, or has a different one; the snapshot lacks it; its row
in the mirror is newer than the snapshot; or the snapshot has values for it that the mirror's types cannot
hold.
"""
CHANGES = ("missing", "changed", "gone")


@dataclass(frozen=True)
class Shape:
    """The columns of a table that a reload writes.

    ``compared`` has all columns. The mirror does not have the ``fresh`` ones yet.
    """

    name: TableName
    compared: Compared
    fresh: tuple[str, ...] = ()

    @property
    def known(self) -> Compared:
        """The columns that both sides have."""
        columns = {name: kind for name, kind in self.compared.columns.items() if name not in self.fresh}
        return Compared(columns, self.compared.names, self.compared.key, self.compared.same)


def differences(
    snapshot: DataFrame,
    mirror: DataFrame | None,
    shape: Shape,
    place: Place,
    last: DataFrame | None = None,
) -> DataFrame:
    """Classify each key of either side.

    Columns: what (`WHAT`), key STRING, copies (number of snapshot rows with this key), values STRUCT (of the
    key), row STRUCT, unfit STRING (also set for a row with a null in its key), lost BOOLEAN (the unfit value
    may be its key), place BINARY (the sequence of the snapshot for this key), partition INT (that of the
    key's last change plus one, null if the place does not depend on it).

    ``snapshot`` has its rows with `UNFIT`. ``mirror`` has the live rows with ``__seq``, and is None before
    there is a mirror. ``last`` has the last change of each key (key STRING, seq BINARY, at TIMESTAMP, topic
    STRING, partition INT). It is needed if keys have places of their own.
    """
    compared, known = shape.compared, shape.known
    key = F.struct(*[F.col(quoted(name)).alias(name) for name in compared.key])
    row = F.struct(*[F.col(quoted(name)).alias(name) for name in compared.columns])
    fresh = F.lit(False)
    for name in shape.fresh:
        fresh = fresh | F.col(quoted(name)).isNotNull()
    nulls = [F.when(F.col(quoted(name)).isNull(), F.lit(f"{name}=NULL")) for name in compared.key]
    no_key = F.nullif(F.concat_ws(", ", *nulls), F.lit(""))
    why, lost = F.coalesce(F.col(UNFIT), no_key), F.col(UNFIT).isNotNull() & no_key.isNotNull()
    shown = snapshot.withColumns(
        {"__values": key, "__row": row, "__fresh": fresh, "__why": why, "__lost": lost}
    ).drop(UNFIT)
    shown = canonical(shown, known, "__values", "__row", "__fresh", "__why", "__lost")
    shown = shown.withColumn("__copies", F.count("*").over(Window.partitionBy("key")))
    if mirror is None:
        stored = shown.limit(0).select("key", "digest", "__values", F.lit(None).cast("binary").alias("__seq"))
    else:
        stored = canonical(mirror.withColumn("__values", key), known, "__values", "__seq")
        stored = stored.select("key", "digest", "__values", "__seq")
    both = shown.alias("s").join(stored.alias("m"), F.col("s.key") == F.col("m.key"), "full")
    own, partition = F.lit(place.newest), F.lit(None).cast("int")
    if place.of_key is not None:
        assert last is not None
        both = both.join(last.alias("last"), F.coalesce("s.key", "m.key") == F.col("last.key"), "left")
        own, partition = place.of_key, _numbered(F.col("last.topic"), F.col("last.partition"))
    same = F.col("s.digest").eqNullSafe(F.col("m.digest")) & ~F.col("__fresh")
    older = F.col("m.__seq") <= own  # if another reload had the same moment, the later one wins
    what = (
        F.when(F.col("s.key").isNull(), F.when(older, "gone").otherwise("newer"))
        .when(F.col("__why").isNotNull(), "unfit")
        .when(F.col("m.key").isNull(), "missing")
        .when(same, "equal")
        .otherwise(F.when(older, "changed").otherwise("newer"))
    )
    return both.select(
        what.alias("what"),
        F.coalesce("s.key", "m.key").alias("key"),
        F.coalesce("__copies", F.lit(0)).alias("copies"),
        F.coalesce("s.__values", "m.__values").alias("values"),
        F.col("__row").alias("row"),
        F.col("__why").alias("unfit"),
        F.coalesce("__lost", F.lit(False)).alias("lost"),
        own.alias("place"),
        partition.alias("partition"),
    )


def _numbered(topic: Column, partition: Column) -> Column:
    """Return one plus the partition that a change came from, which the row of a reload has kept."""
    own = F.startswith(topic, F.lit(OWN_TOPICS))
    return F.when(topic == RELOAD_TOPIC, partition).when(~own, partition + 1)


def records(found: DataFrame, shape: Shape, moment: datetime) -> DataFrame:
    """Return the changes among `differences` as change events in Debezium's form, with schemas.

    Columns: key STRING, value STRING, partition INT. ``moment`` is when the source was in the state of the
    snapshot.
    """
    compared, name = shape.compared, shape.name
    key, fields = _fields(compared, compared.key), _fields(compared, list(compared.columns))
    gone = F.col("what") == "gone"
    values = wire.wire(key, "values", compared.names)
    micros = int(moment.astimezone(UTC).timestamp() * 1_000_000)
    source = {
        "connector": "lakemirror",
        "name": "lakemirror",
        "ts_ms": micros // 1000,
        "ts_us": micros,
        "snapshot": "true",
        "db": name.database,
        "schema": name.schema,
        "table": name.table,
        "sequence": F.lower(F.hex("place")),
    }
    payload = F.struct(
        F.when(gone, values).alias("before"),
        F.when(~gone, wire.wire(fields, "row", compared.names)).alias("after"),
        F.struct(*[_as_column(value).alias(field) for field, value in source.items()]).alias("source"),
        F.when(gone, F.lit(str(Op.DELETE))).otherwise(F.lit(str(Op.READ))).alias("op"),
        F.lit(micros // 1000).alias("ts_ms"),
    )
    named = [StructField(compared.names[each.name], each.dataType) for each in fields]
    row = wire.schema_of(named)
    images = [{**row, "field": "before"}, {**row, "field": "after"}]
    envelope = {"type": "struct", "fields": images, "optional": False, "name": "lakemirror.Envelope"}
    key_schema = wire.schema_of([named[fields.index(each)] for each in key], optional=False)
    return found.where(F.col("what").isin(*CHANGES)).select(
        wire.document(key_schema, values).alias("key"),
        wire.document(envelope, payload).alias("value"),
        "partition",
    )


def _as_column(value: Any) -> Column:
    return value if isinstance(value, Column) else F.lit(value)


def _fields(compared: Compared, names: Sequence[str]) -> list[StructField]:
    return [StructField(name, compared.columns[name]) for name in names]


def counted() -> list[Column]:
    """Return aggregates of `differences`.

    They count the keys for each finding, and give one example of a key that several snapshot rows have, of a
    value that does not fit, and of one that does not fit and may be a key.
    """
    return [
        *[F.count_if(F.col("what") == what).alias(what) for what in WHAT],
        F.count_if(F.col("copies") > 0).alias("rows"),
        F.max(F.when((F.col("copies") > 1) & F.col("unfit").isNull(), F.col("key"))).alias("twice"),
        F.max(F.when(F.col("lost"), F.col("unfit"))).alias("lost"),
        F.max("unfit").alias("unfitting"),
    ]
