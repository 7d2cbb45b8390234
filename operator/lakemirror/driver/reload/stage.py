"""Compares a snapshot of a table with its mirror, and stores the changes in files until they are applied.

This takes three steps, and each may be interrupted. First, the snapshot is read and compared, and only its
own files are written. Then a request names these files. Finally, the driver applies them
(`lakemirror.driver.runtime.reload`). The place of the snapshot is known before it is read. Whatever the
stream brings before, during or after these steps therefore finds its order: changes above the place win,
whenever they arrive, and those below are stale.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from lakemirror.driver.plan.mirrored import MirroredTable
from lakemirror.driver.plan.refusal import left_out, new_mirror
from lakemirror.driver.reload.compare import Shape, counted, differences, records
from lakemirror.driver.reload.place import NOWHERE, Place, after, at_moment, at_position
from lakemirror.driver.reload.reading import RELOAD_TOPIC
from lakemirror.driver.rules.orders import Kind
from lakemirror.driver.sequence import as_bytes
from lakemirror.driver.tables.keys import can_be_key
from lakemirror.driver.tables.mirror import MODE_PROPERTY
from lakemirror.driver.times import possible
from lakemirror.driver.verify.canonical import key_text
from lakemirror.driver.verify.jdbc import Database
from lakemirror.driver.verify.sides import is_live
from lakemirror.driver.verify.sources import (
    UNFIT_COLUMNS,
    Compared,
    Described,
    SourceTables,
    SourceUnfit,
    Wanted,
    conditional,
    meeting,
)
from lakemirror.driver.verify.table import wanted_of


@dataclass(frozen=True)
class Staged:
    """What a snapshot of a table has to change.

    ``rows`` counts the rows of the snapshot. Of their keys, ``missing`` are not in the mirror, ``changed``
    have a different row there, ``newer`` have a newer row there, and ``unfit`` have values that the mirror's
    types cannot hold, such as ``unfitting``. ``gone`` counts the keys that only the mirror has.
    """

    rows: int = 0
    missing: int = 0
    changed: int = 0
    gone: int = 0
    newer: int = 0
    unfit: int = 0
    unfitting: str | None = None

    @property
    def records(self) -> int:
        """The number of change events that this results in."""
        return self.missing + self.changed + self.gone


def stage(
    spark: SparkSession,
    table: MirroredTable,
    sources: SourceTables,
    folder: str,
    *,
    at: datetime | None = None,
    empty: bool = False,
    wait: float = 120.0,
    epoch: int = 0,
    declared: Collection[int] = (),
) -> Staged:
    """Compare a mirror with a snapshot, and write the changes to Parquet files in ``folder``.

    Columns of the files: number BIGINT, key STRING, value STRING, partition INT (one plus that which
    the row's last change came from, if each key has a place of its own).

    ``at`` is when the source was in the state of a snapshot that is not a database, and ``empty`` says
    whether such a snapshot may have no rows. ``wait`` is how many seconds to wait for open transactions of a
    database. ``epoch`` is that of the table, and ``declared`` are those of the manifest. Raises SourceUnfit;
    the contents of the folder are then invalid.
    """
    check(table)
    placed = isinstance(sources, Database) and sources.by == "log"
    if placed and at is not None:
        raise SourceUnfit(f"{table.name}: the database itself tells its position: leave --at out")
    if not placed and at is None and _is_mirrored(table):
        raise SourceUnfit(
            f"{table.name}: nothing tells whether a row of the snapshot is newer than the mirror's: say when "
            "the source was like that (--at 2026-03-01T00:00:00Z: when the export began)"
        )
    moment = at or datetime.now(UTC)
    one = _is_one_order(table)
    comparable = one and epoch >= max(declared, default=0)  # a position means something only in its epoch
    if not isinstance(sources, Database):
        place = place_at(table, moment, comparable=comparable)
        staged = _compare(spark, table, sources, folder, place, moment)
        _require_deletes_known(table, place, staged)
        if staged.gone and not staged.rows and not empty:
            raise SourceUnfit(
                f"{table.name}: the snapshot has no rows, so that {staged.gone} rows would be deleted: "
                "say so if that is meant (--empty)"
            )
        return staged
    with sources.snapshot(wait) as position:
        place = (
            at_position(position, epoch, declared)
            if placed and one
            else place_at(table, moment, comparable=comparable, untimed=True)
        )
        staged = _compare(spark, table, sources, folder, place, moment)
    _require_deletes_known(table, place, staged)
    return staged


def _is_one_order(table: MirroredTable) -> bool:
    """Return whether all sequences of a mirror compare. Offsets never do, as partitions may be added."""
    orders = table.orders
    return table.spec.order.by != "offset" and not (orders.several or orders.places.get(Kind.OFFSET))


def _require_deletes_known(table: MirroredTable, place: Place, staged: Staged) -> None:
    """Raise SourceUnfit if a missing row of the snapshot may have been deleted after it without a trace."""
    collected = table.tombstone_summary.collected
    if collected is not None and place.newest < collected and staged.missing:
        raise SourceUnfit(
            f"{table.name}: the mirror lacks {staged.missing} rows of the snapshot, which may have been "
            "deleted after it: tombstones of that time are collected already (spec.tombstones.retention). "
            "Use a newer snapshot, or the database itself"
        )


def check(table: MirroredTable) -> None:
    """Raise SourceUnfit if no snapshot can be applied to the table."""
    reason = None
    if "append" in (table.mode, table.properties.get(MODE_PROPERTY)):
        reason = "its mirror keeps events and no rows (mode append, or no key): only rows can be reloaded"
    elif table.settings.suspend:
        reason = "it is suspended: resume it first"
    elif table.spec.order.by == "columns":
        reason = (
            "its changes are ordered by columns, so that nothing tells when a missing row was deleted: set "
            "its resyncToken to a new value to have the source read again"
        )
    if reason is not None:
        raise SourceUnfit(f"{table.name}: {reason}")


def shows_all(table: MirroredTable, sources: SourceTables) -> bool:
    """Return whether the time of each row is known, or is not needed, to tell whether a snapshot is newer."""
    if isinstance(sources, Database) or not table.mirror.exists:
        return True
    return table.rows().where("__event_time IS NULL").isEmpty()


def _is_mirrored(table: MirroredTable) -> bool:
    """Return whether the table has been mirrored. If the mirror is sharded, by this shard itself."""
    return table.mirror.exists and (table.shard is None or bool(table.fed))


def place_at(
    table: MirroredTable, moment: datetime, *, comparable: bool = True, untimed: bool = False
) -> Place:
    """Return the place of a snapshot that shows the source at a moment.

    It is after all changes in the mirror whose time is not later than the moment. A change from before the
    moment that has not arrived yet may be above the place. It then sets its row back to an earlier state. But
    the later changes that the snapshot shows for that row all follow it. If the sequences of all partitions
    are not ``comparable``, each key has its own place; see `at_moment`. ``untimed`` says that changes without
    a time are not later either: the source is read now, after they were.
    """
    if not _is_mirrored(table):
        return Place(NOWHERE)
    earlier = F.coalesce(F.col("at") <= F.lit(moment), F.lit(untimed))
    before = _changes(table, F.lit(None).cast("string")).where(earlier)
    row = before.agg(F.max(F.struct("seq", "topic"))).first()
    newest = row[0] if row is not None else None
    if newest is None:
        return Place(NOWHERE)
    seq = as_bytes(newest["seq"]) or NOWHERE
    # If another reload had the same moment, the later one wins.
    place = seq if newest["topic"] == RELOAD_TOPIC else after(seq)
    if comparable:
        return Place(place)
    return at_moment(place, moment, _truncated(table, moment), untimed=untimed)


def _truncated(table: MirroredTable, moment: datetime) -> bytes | None:
    """Return the sequence of the last truncate before a moment. Some are known by when they were applied."""
    if table.tombstone_summary.floor is None or table.orders.several:
        return None  # among several orders, it says nothing about changes that are still to come
    facts = table.tombstones.frame().where("kind = 'truncated'")
    at = F.coalesce(possible(F.col("event_time"), F.current_timestamp()), "at")
    row = facts.where(at <= F.lit(moment)).agg(F.max("seq")).first()
    return None if row is None else as_bytes(row[0])


def _changes(table: MirroredTable, key: Column) -> DataFrame:
    """Return the changes that a mirror and its tombstones show. ``key`` is that of a row (STRING).

    Columns: key STRING (null for a truncate), seq BINARY, at TIMESTAMP, topic STRING, partition INT. A time
    that is still to come is none.
    """
    stored = table.rows().withColumn("__key", key)
    about = ("__key AS key", "__origin.topic AS topic", "__origin.partition AS partition")
    facts = stored.selectExpr(*about, "__seq AS seq", "__event_time AS at")
    if "__delete_seq" in stored.columns:
        ends = stored.where("__delete_seq IS NOT NULL")
        facts = facts.unionByName(ends.selectExpr(*about, "__delete_seq AS seq", "__valid_to AS at"))
    summary = table.tombstone_summary
    if summary.newest is not None or summary.floor is not None or summary.merged:
        gone = table.tombstones.frame().where("kind <> 'collected'")
        facts = facts.unionByName(gone.selectExpr("key", "seq", "event_time AS at", "topic", "partition"))
    return facts.withColumn("at", possible(F.col("at"), F.current_timestamp()))


def _compare(
    spark: SparkSession,
    table: MirroredTable,
    sources: SourceTables,
    folder: str,
    place: Place,
    moment: datetime,
) -> Staged:
    shape = shape_of(table, sources.described(table.name))
    source = sources.table(table.name, shape.compared)
    if source.compared.unread:
        raise SourceUnfit(_unreadable(table, source.compared.unread[0], "its type"))
    shape = replace(shape, compared=source.compared)
    strict = table.spec.on_unrepresentable != "null"
    condition = conditional(table, source.compared)
    snapshot = meeting(source.rows(Wanted(strict=strict)), condition).drop(UNFIT_COLUMNS)
    last = None if place.of_key is None else _last(spark, table, shape)
    found = differences(snapshot, _live(table), shape, place, last)
    seen = Observation()
    changes = records(found.observe(seen, *counted()), shape, moment)
    numbered = changes.select(F.monotonically_increasing_id().alias("number"), "key", "value", "partition")
    numbered.write.mode("overwrite").parquet(folder)
    counts = seen.get
    if counts["lost"] is not None:
        raise SourceUnfit(
            f"{table.name}: a key of the snapshot has a value that the mirror's type cannot hold "
            f"({counts['lost']}), so that nothing tells which rows are gone: declare a type that can in "
            f"tables[{table.settings.source}].columns.types{_if_made(table)}"
        )
    if counts["twice"] is not None:
        raise SourceUnfit(
            f"{table.name}: the snapshot has several rows with the key {counts['twice']}: name the columns "
            f"that tell its rows apart in tables[{table.settings.source}].primaryKey{_if_made(table)}"
        )
    return Staged(**counts_of(counts))


def counts_of(counts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the aggregates that are fields of `Staged`."""
    return {each.name: counts[each.name] for each in fields(Staged)}


def shape_of(table: MirroredTable, described: Described) -> Shape:
    """Return what is compared and written of a table.

    This is the columns of its mirror, and those that only the source has. Raises SourceUnfit if rows would be
    incomplete or have no key.
    """
    known = wanted_of(table) if _is_mirrored(table) else Compared({}, {}, [])
    columns, names, fresh = dict(known.columns), dict(known.names), []
    settings, fed = table.settings.columns, set(known.names.values())
    for source, (kind, called) in described.columns.items():
        kept = settings is None or settings.keeps(source)
        if source in fed or not kept or (_is_mirrored(table) and table.spec.schema_evolution == "skip"):
            continue
        found = table.declared.get(source, kind)
        if found is None:
            raise SourceUnfit(_unreadable(table, source, f"its type {called}"))
        mirror = table.rename.get(source, source)
        columns[mirror], names[mirror] = found, source
        fresh += [mirror] if _is_mirrored(table) else []
    key = list(known.key) if _is_mirrored(table) else _key(table, described, names)
    bad = next((name for name in key if name not in columns or not can_be_key(columns[name])), None)
    if not key or bad is not None:
        why = (
            f"the key column {bad} is not among its columns, or of no type of a key"
            if bad
            else "it has no key"
        )
        raise SourceUnfit(
            f"{table.name}: {why}, so that nothing tells its rows apart: name the columns that do in "
            f"tables[{table.settings.source}].primaryKey{_if_made(table)}"
        )
    return Shape(table.name, Compared(columns, names, key, excluded=known.excluded), tuple(fresh))


def _if_made(table: MirroredTable) -> str:
    """Return what a change of the key needs besides, if the table is mirrored."""
    return f", and set {new_mirror(table.settings)}" if _is_mirrored(table) else ""


def _key(table: MirroredTable, described: Described, names: Mapping[str, str]) -> list[str]:
    """Return the mirror's names of the key columns."""
    back = {source: mirror for mirror, source in names.items()}
    declared = table.settings.primary_key or described.key
    return [back.get(source, source) for source in declared]


def _unreadable(table: MirroredTable, column: str, why: str) -> str:
    return (
        f"{table.name}: column {column} cannot be read exactly ({why}), so that rows would not be whole: "
        f"{left_out(table.settings)}, or have the connector make the snapshot"
    )


def _live(table: MirroredTable) -> DataFrame | None:
    """Return the mirror's rows that the source should have, or None if the table is not mirrored."""
    if not _is_mirrored(table):
        return None
    return table.rows().where(is_live(table, keyed=True))


def _last(spark: SparkSession, table: MirroredTable, shape: Shape) -> DataFrame:
    """Return the last change of each key that the mirror or a tombstone has.

    Columns: key STRING, seq BINARY, at TIMESTAMP, topic STRING, partition INT.
    """
    if not _is_mirrored(table):
        return spark.createDataFrame([], "key STRING, seq BINARY, at TIMESTAMP, topic STRING, partition INT")
    changes = _changes(table, key_text(shape.compared)).where("key IS NOT NULL")
    last = F.max(F.struct("seq", "at", "topic", "partition")).alias("last")
    return changes.groupBy("key").agg(last).select("key", "last.*")
