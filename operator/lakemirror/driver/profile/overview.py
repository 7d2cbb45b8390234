"""Determines what a batch contains, in one aggregation.

This covers its tables, schemas and positions, and the records that are not changes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from lakemirror.driver.codes import Op
from lakemirror.driver.consistent.reach import Part
from lakemirror.driver.document import aware
from lakemirror.driver.expressions import kept
from lakemirror.driver.orders import NO_ORDERS, Fact, Orders, kind_of
from lakemirror.driver.parse.encodings import UNKNOWN_SCHEMA, unknown_schemas
from lakemirror.driver.parse.lengths import NOT_ADMITTED
from lakemirror.driver.parse.order import SET_APART
from lakemirror.driver.parse.values.connect import Field, parse_envelope, parse_key
from lakemirror.driver.parse.values.decode import columns_of
from lakemirror.driver.parse.values.temporal import may_be_finer
from lakemirror.driver.profile import stretches
from lakemirror.driver.profile.positions import Stream, StreamSeen
from lakemirror.driver.rules.orders import Kind
from lakemirror.driver.tables.names import TableName, name_of
from lakemirror.driver.times import own_time, possible

APART: Final = ("no schema", SET_APART, NOT_ADMITTED)
"""Kinds of events that were set apart after they were read."""

_APART = ("bad", *APART)
"""Kinds of events that cannot be applied themselves."""

_SHAPES = 4096
"""Number of shapes of records without a schema that are told apart, by their hash."""


@dataclass(frozen=True)
class Shape:
    """Records without a schema that have the same columns.

    ``names`` are the columns in their image, and ``key`` those in their key; each is None if there is no such
    object. ``row`` says whether the image is that of a row; otherwise, it is the before image of a delete.
    """

    names: tuple[str, ...] | None
    key: tuple[str, ...] | None
    row: bool
    events: int


class Changes(NamedTuple):
    """Streamed changes (c, u, d) of one topic: the lowest and the highest sequence.

    ``log`` is the log whose positions order them; a topic stands for it if its events do not name it. None if
    they are not ordered by positions.
    """

    log: str | None
    topic: str
    first: bytes
    last: bytes


@dataclass
class Group:
    """Events of one table that have the same schema.

    ``changes`` are those among them that no snapshot has read. ``shapes`` are those of events without a
    schema, or None if they cannot be told apart.
    """

    schema_id: int | None
    key_schema_id: int | None
    events: int = 0
    first_seq: bytes | None = None
    last_seq: bytes | None = None
    since: datetime | None = None
    changes: list[Changes] = field(default_factory=list)
    shapes: list[Shape] | None = field(default_factory=list)

    @property
    def identity(self) -> tuple[int | None, int | None]:
        """The schemas of value and key."""
        return self.schema_id, self.key_schema_id


@dataclass
class TableOverview:
    """The events of one table.

    ``moves`` says that a change of a key is sent as two records. ``rekeyed`` says that a single update
    changes the key of its row, and ``finer`` that a time may have digits below the microsecond.
    ``orders`` are those of its changes, and ``truncated`` those of its truncates, which are at the sequences
    ``truncated_at``. ``floor_from`` is the topic and the partition of the newest truncate. ``topic_ids`` are
    those of its topics, as far as they are known.
    """

    name: TableName
    groups: dict[tuple[int | None, int | None], Group] = field(default_factory=dict)
    events: int = 0
    truncates: int = 0
    truncated_at: set[bytes] = field(default_factory=set)
    floor: bytes | None = None
    floor_from: tuple[str | None, int | None] = (None, None)
    orders: Orders = NO_ORDERS
    truncated: Orders = NO_ORDERS
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    keyed: int = 0
    gaps: bool = False
    finer: bool = False
    moves: bool = False
    rekeyed: bool = False
    snapshot: bool = False
    unanchored: bool = False
    streamed: bool = False
    last_event_time: datetime | None = None
    topics: set[str] = field(default_factory=set)
    parts: list[Part] = field(default_factory=list)
    tombstone_records: int = 0


@dataclass
class Overview:
    """What the whole batch contains.

    ``documents`` are the schema documents that were seen for the first time, by ID. ``unknown_schemas`` is
    what records say about schemas that must be fetched. ``streams`` are the positions. ``held`` counts the
    events whose order is undecided (see `lakemirror.driver.profile.rewinds`), and ``again`` those from files
    that their table already has. ``apart`` are the tables of bad events, as far as they are known.
    """

    records: int = 0
    ignored: int = 0
    bad: int = 0
    bad_reason: str | None = None
    tables: dict[TableName, TableOverview] = field(default_factory=dict)
    documents: dict[int, str] = field(default_factory=dict)
    unknown_schemas: set[str] = field(default_factory=set)
    streams: dict[Stream, StreamSeen] = field(default_factory=dict)
    held: int = 0
    again: int = 0
    apart: set[TableName] = field(default_factory=set)

    def unreadable_schemas(self, known: Mapping[int, str]) -> dict[tuple[str, int], str]:
        """Return why schema documents cannot be read, by the column that holds their ID and the ID.

        ``known`` are those of earlier batches, by ID.
        """
        found, documents = {}, {**known, **self.documents}
        for table in self.tables.values():
            for value, key in table.groups:
                for column, identity, parse in (
                    ("schema_id", value, parse_envelope),
                    ("key_schema_id", key, parse_key),
                ):
                    if identity in documents:
                        why = _unreadable(documents[identity], parse)
                        if why is not None:
                            found[column, identity] = why
        return found


@lru_cache(maxsize=1000)
def _unreadable(document: str, parse: Callable[[str], Sequence[Field]]) -> str | None:
    try:
        columns_of(document, parse)
        return None
    except Exception as error:  # whatever is wrong, only these records are affected
        return f"the embedded schema cannot be read: {error or type(error).__name__}"


def overview(events: DataFrame, *, every: int = 1) -> Overview:
    """Aggregate classified events. This materializes them.

    Whether positions grow is determined from the events at offsets that ``every`` divides.
    """
    shape, groups, aggregates = _expressions(every)
    grouped = events.select("*", shape).groupBy(*groups).agg(*aggregates)
    result = Overview()
    tombstones: dict[str, int] = {}
    for row in sorted(grouped.collect(), key=_is_vague):
        result.records += row["events"]
        if row["kind"] in _APART:
            result.bad += row["events"]
            if row["table"]:
                result.apart.add(_named(row))
            result.bad_reason = result.bad_reason or f"{row['topic']}: {row['reason']}"
            if row["unknown"] is not None:
                result.unknown_schemas |= unknown_schemas(row["unknown"])
                _learn(result, row, "schema", "key_schema")
        elif row["kind"] == "tombstone":
            result.ignored += row["events"]
            tombstones[row["topic"]] = tombstones.get(row["topic"], 0) + row["events"]
        elif row["kind"] == "other":
            result.ignored += row["events"]
        elif row["kind"] == "held":
            result.held += row["events"]
        elif row["kind"] == "again":
            result.again += row["events"]
        else:
            _count(result, row)
    _attribute(result, tombstones)
    return result


def _named(row: Row) -> TableName:
    return TableName(row["database"], row["schema"], row["table"])


def _is_vague(row: Row) -> bool:
    """Whether a row's table lacks a database.

    If names of a table are spelled in two ways, the table goes by the one with a database, which the record
    itself has given: a topic may have named the other.
    """
    return not row["database"]


@kept
def _expressions(every: int) -> tuple[Column, list[Column], list[Column]]:
    """Return the shape hash of an event, the grouping columns, and the aggregates of a group.

    The shape hash is computed only once, because it reads the images.
    """
    aggregates = [
        *_shapes(),
        F.count("*").alias("events"),
        F.count("key_text").alias("keyed"),
        F.first("schema_text", ignorenulls=True).alias("schema_text"),
        F.first("key_schema_text", ignorenulls=True).alias("key_schema_text"),
        F.first("reason", ignorenulls=True).alias("reason"),
        F.max(F.when(F.startswith("reason", F.lit(UNKNOWN_SCHEMA)), F.col("reason"))).alias("unknown"),
        F.max("gaps").alias("gaps"),
        F.max(may_be_finer(F.col("row_text"))).alias("finer"),
        F.max(F.col("new_key_text").isNotNull() | (F.col("old_key_text").isNotNull() & ~_rekeys())).alias(
            "moves"
        ),
        F.max(_rekeys()).alias("rekeyed"),
        F.max(F.col("op") == Op.READ).alias("snapshot"),
        F.max(F.col("op") != Op.READ).alias("streamed"),
        F.max("unanchored").alias("unanchored"),
        F.min("seq").alias("first_seq"),
        F.max("seq").alias("last_seq"),
        F.min(F.when(F.col("op") != Op.READ, F.col("seq"))).alias("first_change"),
        F.max(F.when(F.col("op") != Op.READ, F.col("seq"))).alias("last_change"),
        F.collect_set(kind_of(Fact.of_event())).alias("kinds"),
        F.collect_set(F.when(F.col("kind") == "truncate", F.col("seq"))).alias("truncated_at"),
        F.min(possible(F.col("event_time"), own_time())).alias("since"),
        F.max(possible(F.col("event_time"), own_time())).alias("last_event_time"),
        *stretches.aggregates(every),
    ]
    return _shape().alias("shape_hash"), _groups(), aggregates


def _rekeys() -> Column:
    """BOOLEAN: whether the event is an update that changes the key of its row in a single record."""
    return F.coalesce((F.col("op") == Op.UPDATE) & F.col("old_key_text").isNotNull(), F.lit(False))


def _groups() -> list[Column]:
    """Return the columns by which events are grouped."""
    names = ("kind", "database", "schema", "table", "schema_id", "key_schema_id", "topic", "partition")
    return [*map(F.col, (*names, "stream")), F.pmod("shape_hash", F.lit(_SHAPES)).alias("shape")]


def _shape() -> Column:
    """BIGINT: identifies the columns of an event without a schema; null for other events."""
    plain = (F.col("kind") == "change") & (F.col("schema_id").isNull() | F.col("key_schema_id").isNull())
    return F.when(plain, F.xxhash64(_names(), _key_names(), F.col("row_text").isNotNull()))


def _names() -> Column:
    return F.when(F.col("schema_id").isNull(), F.json_object_keys(F.coalesce("row_text", "before_text")))


def _key_names() -> Column:
    return F.when(F.col("key_schema_id").isNull(), F.json_object_keys("key_text"))


def _shapes() -> list[Column]:
    """Return the aggregates that `_add_shape` needs."""
    return [
        F.first(_names()).alias("names"),
        F.first(_key_names()).alias("key_names"),
        F.first(F.col("row_text").isNotNull()).alias("is_row"),
        (F.min("shape_hash") == F.max("shape_hash")).alias("one_shape"),
    ]


def _add_shape(group: Group, row: Row) -> None:
    if row["shape"] is None or group.shapes is None:
        return
    if not row["one_shape"]:
        group.shapes = None
        return
    names, key = (None if row[each] is None else tuple(row[each]) for each in ("names", "key_names"))
    group.shapes.append(Shape(names, key, row["is_row"], row["events"]))


def _count(result: Overview, row: Row) -> None:
    name = _named(row)
    stretches.note(result.streams, row, str(name))
    table = result.tables.setdefault(name, TableOverview(name))
    table.topics.add(row["topic"])
    table.parts.append(stretches.part(row))
    table.last_event_time = _later(table.last_event_time, row["last_event_time"])
    found = _orders(row)
    if row["kind"] == "truncate":
        table.truncates += row["events"]
        table.truncated_at.update(map(bytes, row["truncated_at"]))
        table.truncated |= found
        newest = bytes(row["last_seq"])
        if table.floor is None or newest > table.floor:
            table.floor, table.floor_from = newest, (row["topic"], row["partition"])
        return
    table.orders |= found
    _learn(result, row, "schema", "key_schema")
    group = table.groups.setdefault(
        (row["schema_id"], row["key_schema_id"]), Group(row["schema_id"], row["key_schema_id"])
    )
    group.events += row["events"]
    group.first_seq = min(group.first_seq or bytes(row["first_seq"]), bytes(row["first_seq"]))
    group.last_seq = max(group.last_seq or bytes(row["last_seq"]), bytes(row["last_seq"]))
    since = aware(row["since"])
    group.since = min(group.since, since) if group.since and since else group.since or since
    if row["first_change"] is not None:
        placed = row["stream"] is not None or row["unanchored"]
        log = (row["stream"] or row["topic"]) if placed else None
        ends = bytes(row["first_change"]), bytes(row["last_change"])
        group.changes.append(Changes(log, row["topic"], *ends))
    table.events += row["events"]
    table.keyed += row["keyed"]
    _add_shape(group, row)
    for flag in ("gaps", "finer", "moves", "rekeyed", "snapshot", "unanchored", "streamed"):
        setattr(table, flag, getattr(table, flag) or bool(row[flag]))


def _orders(row: Row) -> Orders:
    """Return the orders of a group's events."""
    where = {Kind.POSITION: row["stream"], Kind.OFFSET: row["partition"], Kind.TIME: row["partition"]}
    return Orders.of((kind, row["topic"] or "", where.get(Kind(kind))) for kind in row["kinds"])


def _learn(result: Overview, row: Row, *schemas: str) -> None:
    """Keep the schema documents that events brought."""
    for name in schemas:
        identity, document = row[f"{name}_id"], row[f"{name}_text"]
        if identity is not None and document is not None:
            result.documents[identity] = document


def _attribute(result: Overview, tombstones: Mapping[str, int]) -> None:
    """Attribute Kafka tombstones to tables.

    A Kafka tombstone does not name a table, so it counts for the table of its topic if there is only one.
    """
    for topic, count in tombstones.items():
        owners = [table for table in result.tables.values() if topic in table.topics]
        if len(owners) == 1:
            owners[0].tombstone_records += count


def _later(one: datetime | None, other: datetime | None) -> datetime | None:
    other = aware(other)
    return max(one, other) if one and other else one or other


def source_of() -> Column:
    """STRING: the source table of a classified event."""
    return name_of(F.col("database"), F.col("schema"), F.col("table"))


def cannot_matter(left_out: Collection[str]) -> Column:
    """BOOLEAN: whether the event is bad, but of a table that is left out.

    A bad event without an op could not be read, so that its table may be a guess: it stays bad.
    """
    bad = F.col("kind").isin(*_APART) & F.col("op").isNotNull()
    return bad & F.coalesce(source_of(), F.lit("")).isin(*left_out)


def with_readable_schemas(
    events: DataFrame, seen: Overview, known: Mapping[int, str]
) -> tuple[DataFrame, Overview]:
    """Set apart (kind ``no schema``) the changes whose schema cannot be read.

    ``known`` are the schema documents of earlier batches, by ID.
    """
    wrong = seen.unreadable_schemas(known)
    if not wrong:
        return events, seen
    reasons = [F.when(F.col(column) == each, why) for (column, each), why in wrong.items()]
    reason = F.coalesce(*reasons)
    apart = (F.col("kind") == "change") & reason.isNotNull()
    marked = events.withColumns(
        {"kind": F.when(apart, "no schema").otherwise(F.col("kind")), "reason": F.coalesce("reason", reason)}
    )
    return marked, overview(marked)
