"""What a batch holds, in one aggregation: tables, schemas, positions, and what is no change at all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from lakemirror.api.spec import Ordering
from lakemirror.driver.errors import SourceRestarted
from lakemirror.driver.mirror import TableName


class Position(NamedTuple):
    """The highest change in a partition: its sequence as hexadecimal digits, its source time in microseconds
    (None where it is not known) and its offset.
    """

    seq: str
    time: int | None
    offset: int


@dataclass
class Group:
    """Events of one schema in one table."""

    schema_id: int | None
    key_schema_id: int | None
    events: int = 0
    first_seq: bytes | None = None
    last_seq: bytes | None = None
    since: datetime | None = None


@dataclass
class TableOverview:
    """Events of one table."""

    name: TableName
    groups: dict[tuple[int | None, int | None], Group] = field(default_factory=dict)
    events: int = 0
    truncates: int = 0
    floor: bytes | None = None
    keyed: int = 0
    gaps: bool = False
    moves: bool = False
    snapshot: bool = False
    unanchored: bool = False
    streamed: bool = False
    last_event_time: datetime | None = None
    topics: set[str] = field(default_factory=set)
    tombstone_records: int = 0


@dataclass
class Overview:
    """All of a batch. ``documents`` are schema documents seen for the first time, by id.

    By partition (``topic/number``): the ``positions`` of its highest change, and the ``latest`` source time
    of a change, in microseconds; both without snapshot rows.
    """

    records: int = 0
    ignored: int = 0
    bad: int = 0
    bad_reason: str | None = None
    tables: dict[TableName, TableOverview] = field(default_factory=dict)
    documents: dict[int, str] = field(default_factory=dict)
    positions: dict[str, Position] = field(default_factory=dict)
    latest: dict[str, int] = field(default_factory=dict)

    def advanced(self, before: Mapping[str, Position]) -> dict[str, Position]:
        """Highest positions after this batch."""
        merged = dict(before)
        for name, position in self.positions.items():
            merged[name] = max(merged.get(name, position), position, key=lambda each: each.seq)
        return merged


def overview(events: DataFrame) -> Overview:
    """Aggregate classified events; this materialises them."""
    streamed = F.when((F.col("kind") == "change") & (F.col("op") != "r"), F.col("seq"))
    grouped = events.groupBy(
        "kind", "database", "schema", "table", "schema_id", "key_schema_id", "topic", "partition", "server"
    ).agg(
        F.count("*").alias("events"),
        F.count("key_text").alias("keyed"),
        F.first("schema_text", ignorenulls=True).alias("schema_text"),
        F.first("key_schema_text", ignorenulls=True).alias("key_schema_text"),
        F.first("reason", ignorenulls=True).alias("reason"),
        F.max("gaps").alias("gaps"),
        F.max(F.col("new_key_text").isNotNull() | F.col("old_key_text").isNotNull()).alias("moves"),
        F.max(F.col("op") == "r").alias("snapshot"),
        F.max(F.col("op") != "r").alias("streamed"),
        F.max("unanchored").alias("unanchored"),
        F.min("seq").alias("first_seq"),
        F.max("seq").alias("last_seq"),
        F.min("event_time").alias("since"),
        F.max("event_time").alias("last_event_time"),
        F.max(streamed).alias("highest"),
        F.max(F.when(streamed.isNotNull(), F.unix_micros("event_time"))).alias("latest"),
        F.max_by(F.struct(F.unix_micros("event_time").alias("time"), "offset"), streamed).alias("highest_at"),
    )
    result = Overview()
    tombstones: dict[str, int] = {}
    for row in grouped.collect():
        result.records += row["events"]
        if row["kind"] == "bad":
            result.bad += row["events"]
            result.bad_reason = result.bad_reason or f"{row['topic']}: {row['reason']}"
        elif row["kind"] == "tombstone":
            result.ignored += row["events"]
            tombstones[row["topic"]] = tombstones.get(row["topic"], 0) + row["events"]
        elif row["kind"] == "other":
            result.ignored += row["events"]
        else:
            _count(result, row)
    _attribute(result, tombstones)
    return result


def _count(result: Overview, row: Row) -> None:
    name = TableName(row["database"], row["schema"], row["table"])
    table = result.tables.setdefault(name, TableOverview(name))
    table.topics.add(row["topic"])
    table.last_event_time = _later(table.last_event_time, row["last_event_time"])
    if row["kind"] == "truncate":
        table.truncates += row["events"]
        table.floor = max(table.floor or b"", bytes(row["last_seq"]))
        return
    for identity, document in (("schema_id", "schema_text"), ("key_schema_id", "key_schema_text")):
        if row[identity] is not None and row[document] is not None:
            result.documents[row[identity]] = row[document]
    group = table.groups.setdefault(
        (row["schema_id"], row["key_schema_id"]), Group(row["schema_id"], row["key_schema_id"])
    )
    group.events += row["events"]
    group.first_seq = min(group.first_seq or bytes(row["first_seq"]), bytes(row["first_seq"]))
    group.last_seq = max(group.last_seq or bytes(row["last_seq"]), bytes(row["last_seq"]))
    since = _aware(row["since"])
    group.since = min(group.since, since) if group.since and since else group.since or since
    table.events += row["events"]
    table.keyed += row["keyed"]
    for flag in ("gaps", "moves", "snapshot", "unanchored", "streamed"):
        setattr(table, flag, getattr(table, flag) or bool(row[flag]))
    _place(result, row)


def _place(result: Overview, row: Row) -> None:
    """Note the highest position of a partition, and its latest time."""
    if row["highest"] is None:
        return
    partition = f"{row['topic']}/{row['partition']}"
    if row["latest"] is not None:
        result.latest[partition] = max(result.latest.get(partition, row["latest"]), row["latest"])
    at = row["highest_at"]
    highest = Position(bytes(row["highest"]).hex(), at["time"], at["offset"])
    if partition not in result.positions or result.positions[partition].seq < highest.seq:
        result.positions[partition] = highest


def _attribute(result: Overview, tombstones: Mapping[str, int]) -> None:
    """Kafka's tombstones name no table: they count for the one table of their topic."""
    for topic, count in tombstones.items():
        owners = [table for table in result.tables.values() if topic in table.topics]
        if len(owners) == 1:
            owners[0].tombstone_records += count


def restarted(events: DataFrame, seen: Overview, before: Mapping[str, Position], ordering: Ordering) -> None:
    """Raise SourceRestarted when positions of a partition start again (design 5, epochs).

    Evidence is a change with a later offset and a later source time, by more than the tolerance, below the
    partition's highest position.
    """
    if ordering.by in ("timestamp", "offset"):
        return
    for partition, (seq, after, offset) in suspects(seen, before, ordering.tolerance_ms).items():
        topic, number = partition.rsplit("/", 1)
        later = events.where((F.col("kind") == "change") & (F.col("op") != "r")).where(
            (F.col("topic") == topic)
            & (F.col("partition") == int(number))
            & (F.col("offset") > F.lit(offset))
            & (F.unix_micros("event_time") > F.lit(after))
            & (F.col("seq") < F.unhex(F.lit(seq)))
        )
        first = later.orderBy("offset").select("offset", "event_time", "table", "server").first()
        if first is not None:
            raise SourceRestarted(_positions_start_again(topic, number, offset, first))


def suspects(
    seen: Overview, before: Mapping[str, Position], tolerance_ms: int
) -> dict[str, tuple[str, int, int]]:
    """Partitions in which something is later in time than the highest position, by more than the tolerance:
    their highest sequence, the time after which a change is evidence, and the highest's offset.

    Only these need a closer look, which is a job each. Changes that are sent again are older in time.
    """
    found = {}
    for partition, (seq, time, offset) in seen.advanced(before).items():
        if partition not in seen.latest or time is None:
            continue
        after = time + tolerance_ms * 1000
        if seen.latest[partition] > after:
            found[partition] = (seq, after, offset)
    return found


def _positions_start_again(topic: str, number: str, offset: int, first: Row) -> str:
    return (
        f"positions of the source start again: topic {topic}, partition {number}, offset {first['offset']} "
        f"(table {first['table']}, {first['event_time']} UTC, server {first['server']}) is later than offset "
        f"{offset} but stands before it in the source's log. Nothing was written. If the source failed over "
        "or was restored, declare a new epoch: ordering.epochs: "
        f'[{{epoch: N, from: {{{topic}: {{"{number}": {first["offset"]}}}}}}}]; '
        "if these are old records sent again, correct the topic."
    )


def _later(one: datetime | None, other: datetime | None) -> datetime | None:
    other = _aware(other)
    return max(one, other) if one and other else one or other


def _aware(time: datetime | None) -> datetime | None:
    return None if time is None else time.astimezone(UTC)
