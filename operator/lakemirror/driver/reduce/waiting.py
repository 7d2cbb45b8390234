"""Finds the changes and truncates that wait, because nothing orders them and what the mirror has.

Which sequences compare, `lakemirror.driver.orders` says. A change whose row came from another order is
neither stale nor newer: it waits in the quarantine (scope ``order``), and the reason names the epoch that
orders it. A truncate of one order says nothing about rows of another: if the mirror has any, it waits until a
reload makes the mirror equal to its source.

A batch has something to wait only if the orders that a mirror has been given, with those of the batch, are
several. In all other batches, nothing is looked up.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from lakemirror.api.spec import Ordering
from lakemirror.driver.codes import OWN_TOPICS, Op
from lakemirror.driver.errors import PipelineStopped
from lakemirror.driver.joins import hinted
from lakemirror.driver.materialise import materialised
from lakemirror.driver.orders import Fact, Floor, Orders, Rules, epoch_of, kind_of, major_of, unordered
from lakemirror.driver.parse.decode import Reading
from lakemirror.driver.parse.expectations import VIOLATIONS
from lakemirror.driver.plan.mirrored import MirroredTable, stored_key
from lakemirror.driver.plan.refusal import Refused
from lakemirror.driver.plan.table import TablePlan
from lakemirror.driver.profile.epochs import extended
from lakemirror.driver.profile.overview import TableOverview
from lakemirror.driver.reduce import bounds
from lakemirror.driver.rules.orders import Kind, Why
from lakemirror.driver.sequence import as_bytes
from lakemirror.driver.sequence import epoch as epoch_at
from lakemirror.driver.tables import keys
from lakemirror.driver.tables.columns import T

WAITS: Final = "waits"
"""The column of an event frame that says why an event waits (`Why`). Only frames in which some do have it."""

TRUNCATE_REASON: Final = "undecided: a truncate"
"""How the reasons of truncates that wait begin."""

_PLACE: Final = "struct<seq: binary, at: timestamp, topic: string, partition: int, offset: bigint>"
_HOUR: Final = 3_600_000_000
_RECORD: Final = ("topic", "partition", "offset", "file", "line")
_BEGINS: Final = {
    Why.PARTITION: "it came from another partition than what the mirror has of its row, and offsets of two "
    "partitions do not show which is newer",
    Why.TIE: "it has the time of what the mirror has of its row, which came from another partition, so that "
    "nothing shows which is newer",
    Why.LOG: "its position is one of another log than that of what the mirror has of its row, and their "
    "times do not show which is newer",
    Why.EPOCH: "its partition is in a lower epoch than what the mirror has of its row",
    Why.KIND: "it is not ordered by the same as what the mirror has of its row (positions, times or offsets)",
}


class LogMoved(PipelineStopped):
    """Changes of another log lie below rows of the mirror and are later: the database was moved.

    It passes all that would try the table again (`isolation`), and holds the table in the end (`batch`).
    ``begun`` has the first offsets of that log's partitions, by topic and partition.
    """

    def __init__(self, begun: Mapping[tuple[str, int], int]) -> None:
        super().__init__("the database was moved to another server")
        self.begun = dict(begun)


@dataclass(frozen=True)
class Apart:
    """Truncates that are not placed: those that wait (``records``, ``number``), and ``known`` ones."""

    records: DataFrame | None = None
    reason: str = ""
    number: int = 0
    known: int = 0


def is_checked(table: MirroredTable, seen: TableOverview) -> bool:
    """Return whether changes of a batch may have to wait."""
    if not seen.orders.classes:
        return False
    orders = table.orders | seen.orders
    return orders.several or orders.may_tie


def floor_of(table: MirroredTable, seen: TableOverview) -> Floor | None:
    """Return the order of the newest truncate before a batch, if the table has several orders.

    None if all compares with it, or if it is one of an earlier version, which noted no order.
    """
    seq = table.tombstone_summary.floor
    orders = table.orders | seen.orders
    if seq is None or not (orders.several or orders.may_tie):
        return None
    row = table.tombstones.truncated().where(F.col("seq") == F.lit(seq)).first()
    if row is None or row["topic"] is None:
        return None
    fact = Fact(*[F.lit(each) for each in (seq, None, row["topic"], row["partition"], None)])
    kind = table.spark.range(1).select(kind_of(fact)).first()
    logs, topic = orders.logs, row["topic"]
    same = tuple(sorted(each for each, log in logs.items() if log is not None and log == logs.get(topic)))
    times = Kind.TIME in orders.places and topic in orders.places[Kind.TIME]
    told = str(kind[0]) if kind is not None else str(Kind.POSITION)
    return Floor(seq, Kind.TIME if told == Kind.POSITION and times else told, topic, row["partition"], same)


def require_same_topics(table: MirroredTable, plan: TablePlan) -> None:
    """Raise Refused if a topic was made again, offsets order its changes, and no epoch says so."""
    if not plan.reading.key:
        return
    known, seen = table.topics, plan.seen
    for topic, identity in sorted(seen.topic_ids.items()):
        former, epoch = known.get(topic, (identity, 0))
        if former != identity and table.declared_for(topic) <= epoch:
            partitions = seen.orders.places.get(Kind.OFFSET, {}).get(topic, ())
            begun = {(topic, int(partition)): 0 for partition in partitions}
            raise Refused(
                f"topic {topic} was made again (its id was {former}, now it is {identity}), and offsets "
                "order its changes: they begin again at 0, and would look older than those of the former "
                "topic. Declare that they are later, for all partitions of the topic: ordering.epochs: "
                f"{json.dumps(extended(table.spec.order, begun))}"
            )


# -- changes ----------------------------------------------------------------------------------------------


def without_waiting(table: MirroredTable, plan: TablePlan, events: DataFrame) -> tuple[DataFrame, int]:
    """Return an event frame in which changes that wait have a ``problem`` and no key, and their number.

    Raises LogMoved.
    """
    if not plan.reading.key or not is_checked(table, plan.seen):
        return events, 0
    ordering = table.spec.order
    orders = table.orders | plan.seen.orders
    rules = Rules(
        orders.logs, _reached(ordering), ordering.tolerance_ms * 1000, orders.timed, one=table.of_rows
    )
    events = materialised(events)  # they are read several times
    judged = materialised(_judged(table, plan, events, rules))
    waits = judged.where(f"{WAITS} IS NOT NULL")
    found = waits.groupBy("topic", "partition", WAITS).agg(F.min("offset").alias("first")).collect()
    if not found:
        return judged.drop(WAITS), 0
    _require_not_moved(judged, {row["topic"] for row in found if row[WAITS] == Why.MOVED})
    begun: dict[tuple[str, int], int] = {}
    for row in found:
        where = row["topic"] or "", row["partition"] or 0
        begun[where] = min(row["first"] or 0, begun.get(where, row["first"] or 0))
    number = waits.agg(F.sum("records")).first()
    assert number is not None
    return _apart(judged, _because(begun, ordering)), int(number[0] or 0)


def _reached(ordering: Ordering) -> dict[tuple[str, int], int]:
    """Return the highest epoch that is declared for each partition."""
    found: dict[tuple[str, int], int] = {}
    for each in ordering.epochs:
        for topic, starts in each.from_.items():
            for partition in starts:
                found[topic, int(partition)] = max(each.epoch, found.get((topic, int(partition)), 0))
    return found


def _judged(table: MirroredTable, plan: TablePlan, events: DataFrame, rules: Rules) -> DataFrame:
    """Return the events with the column `WAITS`."""
    stood = _stood(table, plan, events)
    mine = Fact.of_event()
    if stood is None:
        joined = events.withColumn("_stood", F.lit(None).cast(_PLACE))
    else:
        joined = events.join(stood.withColumnRenamed("key", "_key"), F.col("key") == F.col("_key"), "left")
        joined = joined.drop("_key")
    # Where the mirror has nothing of a row, the first of the batch's orders stands for it: that of a create.
    born = F.when(F.col("op").isin(Op.CREATE, Op.READ), 0).otherwise(1)
    by_order = Window.partitionBy("key").orderBy(born, "topic", "partition", "seq", "offset")
    first = F.first(mine.struct()).over(
        by_order.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    )
    steps = joined.withColumn("_stood", F.coalesce("_stood", first))
    good = F.col("key").isNotNull()
    steps = steps.withColumn("_why", F.when(good, unordered(mine, Fact.of(F.col("_stood")), rules)))
    steps = steps.withColumns(dict(zip(("_opener", "_peer"), _before(F.col("_why").isNull()), strict=True)))
    among = F.coalesce(*[unordered(mine, Fact.of(F.col(name)), rules) for name in ("_opener", "_peer")])
    among = F.when(good, F.when(among == Why.MOVED, Why.LOG).otherwise(among))
    steps = steps.withColumn("_why", F.coalesce("_why", among))
    floor = floor_of(table, plan.seen) if plan.mode == "scd2" else None
    if floor is not None:  # a history could not tell that an old truncate does not end its versions
        below = good & (F.col("seq") <= F.lit(floor.seq)) & ~floor.compares(mine)
        steps = steps.withColumn("_why", F.coalesce("_why", F.when(below, F.lit(Why.PARTITION))))
    # Both halves of a change of the key wait together.
    whole = F.first("_why", ignorenulls=True).over(
        Window.partitionBy(*_RECORD)
        .orderBy("records")
        .rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    )
    why = whole if plan.reading.from_rows or plan.reading.rekeyed else F.col("_why")
    return steps.withColumn(WAITS, F.when(good, why)).drop("_stood", "_why", "_opener", "_peer")


def _before(placed: Column) -> tuple[Column, Column]:
    """Return the two earlier changes of its row in the batch that an event has to compare with (`Fact`).

    If it compares with them, it compares with all those that are ``placed`` by what the mirror has. These are
    the first of its epoch and, where times order, the first of its time. Where positions do, it is the one
    with the latest time: within a log, times do not go back.
    """
    mine = Fact.of_event()
    there = F.when(placed, mine.struct())
    by_seq = [F.col(name) for name in ("seq", "topic", "partition", "offset")]

    def first_of(part: Column) -> Column:
        return F.first(there, ignorenulls=True).over(Window.partitionBy("key", part).orderBy(*by_seq))

    past = Window.partitionBy("key").orderBy(*by_seq).rowsBetween(Window.unboundedPreceding, -1)
    latest = F.max(F.when(placed, F.struct(mine.at, mine.struct().alias("place")))).over(past)["place"]
    kind = kind_of(mine)
    peer = F.when(kind == Kind.TIME, first_of(major_of(mine.seq))).when(kind == Kind.POSITION, latest)
    return first_of(epoch_of(mine.seq)), peer


def _stood(table: MirroredTable, plan: TablePlan, events: DataFrame) -> DataFrame | None:
    """Return the newest change of each of the batch's keys that the mirror has: key, _stood.

    None if it has none of them.
    """
    if not table.mirror.exists:
        return None
    reading = plan.reading
    good = events.where("key IS NOT NULL")
    limits = {
        name: kind
        for name, kind in reading.columns.items()
        if name in reading.key and bounds.has_bounds(kind)
    }
    row = good.agg(
        F.count("*"),
        F.unix_micros(F.min("event_time")),
        *[F.struct(*bounds.ends(F.col("key")[name], kind)) for name, kind in limits.items()],
    ).first()
    if row is None or not row[0]:
        return None
    rows = table.rows().where("__is_current") if plan.mode == "scd2" else table.rows()
    for i, (name, kind) in enumerate(limits.items()):
        low, high = row[i + 2]
        rows = rows.where(bounds.within(T(name), kind, low, high))
    origin = [T("__origin")[name] for name in ("topic", "partition", "offset")]
    places = rows.select(
        stored_key(reading), Fact(T("__seq"), T("__event_time"), *origin).struct().alias("_stood")
    )
    if table.tombstone_summary.newest is not None:
        places = places.unionByName(_gone(table, reading))
    since, orders = row[1], table.orders | plan.seen.orders
    if orders.only_tie and since is not None and not table.spec.order.epochs:
        # Different times compare, so that older rows need not be read: files that have no others are skipped.
        # The hour remains the same for many batches, and with it the code that Spark generates.
        hour = F.timestamp_micros(F.lit(since // _HOUR * _HOUR))
        places = places.where(F.col("_stood.at") >= hour)
    mine = good.select("key").distinct()
    found = places.where("_stood.seq IS NOT NULL").join(hinted(mine, row[0]), "key", "left_semi")
    return found.groupBy("key").agg(F.max("_stood").alias("_stood"))


def _gone(table: MirroredTable, reading: Reading) -> DataFrame:
    """Return the deletes of keys: key, _stood."""
    kind = StructType([StructField(name, reading.columns[name]) for name in reading.key])
    place = Fact.of_event()
    deleted = table.tombstones.frame().where("kind = 'deleted'")
    return deleted.select(keys.decode(F.col("key"), kind).alias("key"), place.struct().alias("_stood"))


def _require_not_moved(judged: DataFrame, topics: set[str]) -> None:
    """Raise LogMoved if changes of these topics are those of a database that was moved."""
    if not topics:
        return
    mine = judged.where(F.col("topic").isin(*topics))
    firsts = mine.groupBy("topic", "partition").agg(F.min("offset").alias("first")).collect()
    raise LogMoved({(row["topic"], row["partition"]): row["first"] for row in firsts})


def _because(begun: Mapping[tuple[str, int], int], ordering: Ordering) -> Column:
    """Return why an event waits, and what to declare (STRING)."""
    declared = json.dumps(extended(ordering, begun))
    remedy = (
        ". It waits until the manifest says what is later. If these partitions were added, or their topics "
        f"or their server are new, declare that they come after all others: ordering.epochs: {declared}. "
        "`lakemirror reload` makes the mirror equal to its source meanwhile"
    )
    text = F.lit("")
    for why, begins in _BEGINS.items():
        text = F.when(F.col(WAITS) == why, F.lit(f"undecided: {begins}{remedy}")).otherwise(text)
    return text


def _apart(judged: DataFrame, reason: Column) -> DataFrame:
    """Return the events; those that wait have no key and a reason."""
    waits = F.col(WAITS).isNotNull()
    blank: dict[str, Column] = {
        "problem": F.when(waits, reason).otherwise(F.col("problem")),
        **{
            name: F.when(~waits, F.col(name))
            for name in ("key", "old_key", "new_key", VIOLATIONS)
            if name in judged.columns
        },
    }
    return judged.withColumns(blank)


# -- truncates --------------------------------------------------------------------------------------------


def place_truncates(
    table: MirroredTable, plan: TablePlan, changes: DataFrame, truncates: DataFrame
) -> tuple[TablePlan, DataFrame, Apart]:
    """Return the plan and the truncates that are placed, and those that are not.

    A truncate that the mirror was given before is known, and removes nothing again.
    """
    seen = plan.seen
    if not seen.truncates or not plan.reading.key or _is_placed(table, plan, changes):
        return plan, truncates, Apart()
    known = _known(table, truncates)
    waiting = truncates.where(~known)
    number = waiting.count()
    nothing = replace(plan, seen=replace(seen, truncates=0, floor=None))
    apart = Apart(waiting, _because_truncated(table), number, seen.truncates - number)
    return nothing, truncates.limit(0), apart


def _is_placed(table: MirroredTable, plan: TablePlan, changes: DataFrame) -> bool:
    """Return whether all that the mirror and the batch have compares with the batch's truncates."""
    seen, floor = plan.seen, plan.seen.floor
    assert floor is not None
    if Kind.COLUMNS in seen.truncated.places or Kind.GIVEN in seen.truncated.places:
        return True
    told = table.orders
    if _is_one(told | seen.orders | seen.truncated):
        return True
    has = table.orders_of_rows()
    positions = has.places.get(Kind.POSITION, {})
    logs = {topic: names for topic, names in told.places.get(Kind.POSITION, {}).items() if topic in positions}
    mine = has | Orders({Kind.POSITION: logs} if logs else {}) | seen.orders
    if Kind.GIVEN in has.places:  # rows of a reload have their places among all that there were
        mine |= Orders({kind: topics for kind, topics in told.places.items() if kind != Kind.NOTHING})
    both = mine | seen.truncated
    if not mine.has_nothing and not both.several:
        return not (both.may_tie and _ties(table, changes, seen, floor))
    alone = len((seen.orders | seen.truncated).classes) == 1 and Kind.NOTHING not in seen.orders.places
    return alone and _is_of_lower_epochs(table, floor)


def _is_one(orders: Orders) -> bool:
    return not (orders.several or orders.may_tie or orders.has_nothing)


def _ties(table: MirroredTable, changes: DataFrame, seen: TableOverview, floor: bytes) -> bool:
    """Return whether a row or a change of another partition has the time of the truncate."""
    topic, partition = seen.floor_from
    stored = table.rows().select(F.col("__seq").alias("seq"), "__origin.*") if table.mirror.exists else None
    for some in (changes, stored):
        if some is None:
            continue
        here = F.col("topic").eqNullSafe(F.lit(topic)) & F.col("partition").eqNullSafe(F.lit(partition))
        if not some.where((major_of(F.col("seq")) == F.lit(floor[:12])) & ~here).isEmpty():
            return True
    return False


def _is_of_lower_epochs(table: MirroredTable, floor: bytes) -> bool:
    """Return whether all rows are of lower epochs than a truncate, and would be if they came now."""
    if not table.mirror.exists:
        return True
    epochs = table.spec.order.epochs
    origin = [T("__origin")[name] for name in ("topic", "partition", "offset")]
    now = F.unhex(epoch_at(origin[0], origin[1], origin[2], epochs))
    own = F.coalesce(F.startswith(origin[0], F.lit(OWN_TOPICS)), F.lit(False))
    early = (epoch_of(T("__seq")) < F.lit(floor[:2])) & (own | (now <= epoch_of(T("__seq"))))
    return table.rows().where(~F.coalesce(early, F.lit(False))).isEmpty()


def _known(table: MirroredTable, truncates: DataFrame) -> Column:
    """BOOLEAN: whether a truncate was placed before."""
    if table.tombstone_summary.floor is None:
        return F.lit(False)
    place = F.struct("seq", "topic", "partition")
    told = {(as_bytes(row[0]), row[1], row[2]) for row in table.tombstones.truncated().collect()}
    found: Sequence[tuple[bytes | None, str | None, int | None]] = [
        (as_bytes(row[0][0]), row[0][1], row[0][2]) for row in truncates.select(place).distinct().collect()
    ]
    known = [
        (seq, topic, partition)
        for seq, topic, partition in found
        if (seq, topic, partition) in told or (seq, None, None) in told
    ]
    conditions = F.lit(False)
    for seq, topic, partition in known:
        here = F.col("topic").eqNullSafe(F.lit(topic)) & F.col("partition").eqNullSafe(F.lit(partition))
        conditions = conditions | ((F.col("seq") == F.lit(seq)) & here)
    return conditions


def _because_truncated(table: MirroredTable) -> str:
    return (
        f"{TRUNCATE_REASON}, and the mirror has rows of another order (another partition, log or epoch, or "
        "none at all), so that nothing shows which rows it removed. Nothing was removed. Run `lakemirror "
        f"reload --table {table.name}`: it makes the mirror equal to its source, and closes this record"
    )
