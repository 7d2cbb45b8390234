"""Determines from the states of keys what happens to the current rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from lakemirror.driver.codes import WITH_ROW, Op
from lakemirror.driver.expressions import kept, shared
from lakemirror.driver.parse.values.expressions import same_value
from lakemirror.driver.plan.fills import Fill, aged, is_former, stored_seq
from lakemirror.driver.reduce.bounds import Bound
from lakemirror.driver.reduce.changes import Changes, Clause
from lakemirror.driver.reduce.events import ENDS, last_before, older_seqs, texts_of
from lakemirror.driver.reduce.scd2 import Truncate
from lakemirror.driver.sequence import (
    MISSING,
    anchored_at,
    are_of_one_epoch,
    behind,
    beside_stored,
    event_part,
    is_later,
    is_reread,
    is_snapshot,
    minor,
    own,
    placed,
)
from lakemirror.driver.tables.columns import UNSEEN, S, T, seq_of_row
from lakemirror.driver.tables.delta import quoted


@dataclass(frozen=True)
class Scd1:
    """How one table's state is merged.

    ``columns`` are all columns of the mirror without metadata, ``key`` those of the key. ``tracked`` are
    those that may hold values older than their row (none: the plain case). ``soft`` names the column of a
    soft delete. ``floor`` is the sequence of the newest truncate in the batch, and ``truncates`` are all of
    them if deletes are soft. ``fills`` are columns that begin a new life. ``snapshot`` and ``unanchored`` say
    whether the batch has such events. ``corrects`` says that an event replaces the one of its own origin.
    ``bounds`` limit key columns to the batch's range.
    """

    columns: Mapping[str, DataType]
    key: Sequence[str]
    tracked: Sequence[str] = ()
    soft: str | None = None
    floor: bytes | None = None
    truncates: Sequence[Truncate] = ()
    fills: Mapping[str, Fill] = field(default_factory=dict)
    snapshot: bool = False
    unanchored: bool = False
    corrects: bool = False
    bounds: Mapping[str, Bound] = field(default_factory=dict)


def changes(plan: Scd1, keys: int, deletes: int) -> Changes:
    """Return what a state frame does to a mirror.

    ``keys`` is the number of its keys, and ``deletes`` how many of them are deletes.
    """
    clauses = _clauses(plan) if plan.floor or plan.fills else _kept_clauses(_Rules.of(plan))
    return replace(clauses, keys=keys, rows=keys - deletes, bounds=plan.bounds)


@dataclass(frozen=True)
class _Rules:
    """What clauses are made from if the batch itself plays no part in them. Hashable."""

    columns: tuple[tuple[str, DataType], ...]
    key: tuple[str, ...]
    tracked: tuple[str, ...]
    soft: str | None
    snapshot: bool
    unanchored: bool
    corrects: bool

    @classmethod
    def of(cls, plan: Scd1) -> _Rules:
        columns, key, tracked = tuple(plan.columns.items()), tuple(plan.key), tuple(plan.tracked)
        return cls(columns, key, tracked, plan.soft, plan.snapshot, plan.unanchored, plan.corrects)


@kept
def _kept_clauses(rules: _Rules) -> Changes:
    return _clauses(
        Scd1(
            dict(rules.columns),
            rules.key,
            rules.tracked,
            rules.soft,
            snapshot=rules.snapshot,
            unanchored=rules.unanchored,
            corrects=rules.corrects,
        )
    )


def _clauses(plan: Scd1) -> Changes:
    newer = is_newer(plan)
    return Changes(
        key=plan.key,
        matched=tuple(_matched(plan, newer)),
        unmatched=tuple(_unmatched(plan)),
        untouched=tuple(_untouched(plan)),
        plain=not (
            plan.tracked
            or plan.soft
            or plan.floor
            or plan.fills
            or plan.snapshot
            or plan.unanchored
            or plan.corrects
        ),
    )


def is_newer(plan: Scd1) -> Column:
    """BOOLEAN: whether the state is newer than the stored row.

    Sequences decide, with three exceptions. An unanchored change is placed by its LSN alone, and follows a
    snapshot row that precedes it in its partition. Of two different events with the same sequence, the later
    arrival wins. A line of a file that has other bytes than when it was read before is a correction.
    """
    another = _is_another(plan)
    newer = _is_above(plan) | ((F.col("s.seq") == seq_of_row()) & _follows() & another)
    if plan.corrects:  # the line of the stored row, read again with other bytes
        newer = newer | (_is_here() & (F.col("s.offset") == T("__origin")["offset"]) & another)
    return newer & (F.col("s.op") != Op.PASSED)


def _is_another(plan: Scd1) -> Column:
    """BOOLEAN: whether an event at the place of the stored row makes another row of it."""
    deletes, differ = F.col("s.op") == Op.DELETE, _values_differ(plan)
    back = ~deletes if plan.soft is None else ~deletes | (_brings_row(plan) & differ)
    return F.when(_is_live(), deletes | differ).otherwise(back)


def _shared(plan: Scd1, value: Column, use: Callable[[Column], Column]) -> Column:
    """Return what ``use`` makes of a value, which is planned once where it is large.

    Spark generates no code for what is shared, so that plain batches are better off without it.
    """
    return shared(value, use) if plan.unanchored else use(value)


def _is_above(plan: Scd1) -> Column:
    """BOOLEAN: whether the state is at a higher place than the stored row."""
    mine, stored = F.col("s.seq"), seq_of_row()
    above = mine > stored
    if plan.unanchored:
        outruns = is_later(mine, stored, above | _follows())
        alone = F.col("s.unanchored") & are_of_one_epoch(mine, stored)
        above = F.when(alone, outruns).otherwise(above)
    if plan.snapshot:
        overtaken = _is_here() & (T("__origin")["offset"] > F.col("s.offset"))
        above = above & ~(is_snapshot(mine) & ~is_snapshot(stored) & overtaken)
    return above


def _is_here() -> Column:
    """BOOLEAN, never null: whether the state and the stored row came through one partition."""
    topic, partition = (F.col(f"s.{name}") == T("__origin")[name] for name in ("topic", "partition"))
    return F.coalesce(topic & partition, F.lit(False))


def _follows() -> Column:
    """BOOLEAN: whether the state came after the stored row in its partition."""
    return _is_here() & (F.col("s.offset") > T("__origin")["offset"])


def _values_differ(plan: Scd1) -> Column:
    same = [same_value(S(name), T(name), kind) for name, kind in plan.columns.items() if name != plan.soft]
    return ~reduce(Column.__and__, same)


def _seq(plan: Scd1) -> Column:
    """The sequence of the row after an update."""
    mine, stored = F.col("s.seq"), seq_of_row()
    if not plan.unanchored:
        return mine
    lifted = F.when(is_snapshot(stored) | (mine < stored), anchored_at(mine, stored))
    return F.when(F.col("s.unanchored") & (mine < stored), lifted).otherwise(mine)


def _matched(plan: Scd1, newer: Column) -> Iterator[Clause]:
    if plan.floor is not None:
        yield _truncated(plan, newer)
        if plan.soft is not None:
            wiped = newer & F.col("s.op").isin(*WITH_ROW) & (_seq(plan) <= F.lit(plan.floor))
            yield Clause(wiped, {**_update(plan), **_truncate_of(plan, _seq(plan))}, op=F.col("s.op"))
    delete = newer & (F.col("s.op") == Op.DELETE)
    if plan.soft is None:
        yield Clause(delete)
    else:
        last = F.greatest(seq_of_row(), _row_seq(plan))
        when = _gone_at(plan, F.filter("s.ends", lambda end: ~_is_before(plan, end)), last)
        gone = {**_last_row(plan), plan.soft: when, "__op": F.lit(Op.DELETE), **_stamp(plan)}
        gone["__column_seq"] = F.lit(None)
        yield Clause(delete & (_is_live() | _brings_row(plan)), gone)
        if plan.fills:
            yield Clause(delete & aged(plan.fills), {**_filled(plan), **_stamp(plan)})
        yield Clause(delete, _stamp(plan))
    yield Clause(newer, _update(plan))
    if plan.tracked:
        usable = reduce(Column.__or__, [_fills(plan, name) for name in plan.tracked])
        usable = usable | _is_read_before(plan) if plan.snapshot or plan.unanchored else usable
        yield Clause(~newer & _is_live() & usable, _fill(plan))
    if plan.fills:
        yield Clause(~newer & aged(plan.fills), _filled(plan))


def _truncated(plan: Scd1, newer: Column) -> Clause:
    """A truncate also removes a row if the batch has something older, or only a value, for its key.

    A soft delete leaves the row as of the truncate, with what the batch says about it.
    """
    row = _after_read(plan, seq_of_row())
    gone = ~newer & (row <= F.lit(plan.floor))
    if plan.soft is None:
        return Clause(gone)
    return Clause(gone & _is_live(), {**_fill(plan), **_truncate_of(plan, row)})


def _is_live() -> Column:
    """BOOLEAN: whether a stored row is not softly deleted."""
    return F.coalesce(T("__op") != Op.DELETE, F.lit(True))  # null: inserted by hand


def _truncate_of(plan: Scd1, seq: Column) -> dict[str, Column]:
    """What the first truncate from ``seq`` on makes of a row that is as new as that."""
    assert plan.soft is not None
    first = F.array_min(F.filter(_truncates(plan), lambda each: each["seq"] >= seq))
    return {
        plan.soft: F.coalesce(first["event_time"], F.current_timestamp()),
        "__op": F.lit(Op.DELETE),
        "__seq": first["seq"],
        "__column_seq": F.lit(None),
    }


def _truncates(plan: Scd1) -> Column:
    """The truncates of the batch, like the ``ends`` of a state (`events.ENDS`)."""
    nothing = [F.lit(None)] * 4
    return F.array(
        *[F.struct(F.lit(each.seq), F.lit(each.event_time), *nothing) for each in plan.truncates]
    ).cast(ENDS)


def _gone_at(plan: Scd1, ends: Column, row: Column) -> Column:
    """When the row at a sequence was deleted: the time of the first delete or truncate after it.

    ``ends`` are the deletes after it. A truncate at its position came after it, too. Further deletes are
    events that a filter turned into deletes. The clock stands in for a missing time.
    """
    if plan.truncates:
        ends = F.concat(ends, F.filter(_truncates(plan), lambda each: each["seq"] >= row))
    return F.coalesce(F.array_min(ends)["event_time"], F.col("s.event_time"), F.current_timestamp())


def _brings_row(plan: Scd1) -> Column:
    """BOOLEAN: whether the state of a soft delete has a row that is newer than the stored one.

    Of two rows at one position, the later arrival is newer.
    """
    stored = seq_of_row()

    def brings(mine: Column) -> Column:
        return (mine > stored) | ((mine == stored) & _came_after_row(F.col("s.row_origin")))

    return F.coalesce(_shared(plan, _row_seq(plan), brings), F.lit(False))


def _is_before(plan: Scd1, end: Column) -> Column:
    """BOOLEAN: whether a delete came before the stored row; of two at one position, the earlier arrival."""
    stored = seq_of_row()

    def is_before(mine: Column) -> Column:
        return (mine < stored) | ((mine == stored) & ~_came_after_row(end))

    mine = _placed(end["seq"], end["opened"]) if plan.unanchored else end["seq"]
    return _shared(plan, mine, is_before)


def _came_after_row(origin: Column) -> Column:
    """BOOLEAN, never null: whether a record came after that of the stored row in its partition."""
    here = (origin[name] == T("__origin")[name] for name in ("topic", "partition"))
    later = origin["offset"] > T("__origin")["offset"]
    return F.coalesce(reduce(Column.__and__, here, later), F.lit(False))


def _row_seq(plan: Scd1) -> Column:
    """The sequence of the row of a state that may meet a stored one."""
    mine = F.col("s.row_seq")
    return _placed(mine, F.col("s.row_opened")) if plan.unanchored else mine


def _last_row(plan: Scd1) -> dict[str, Column]:
    """What a soft delete leaves of a row: the last row before it, from the batch or as stored.

    A tracked column has its newest value, which may be older than that row. A stored row has no value from
    before a delete or truncate that it came after.
    """
    brings, seq, last = _brings_row(plan), _seq(plan), _row_seq(plan)
    values = {
        name: F.when(brings, S(name)).otherwise(_kept(plan, name))
        for name in plan.columns
        if name != plan.soft
    }
    texts = {}
    for name in plan.tracked:
        newer = F.when(brings, _wins(name, seq, last, place=plan.unanchored, tied=True))
        newer = newer.otherwise(_fills(plan, name))
        none = ~brings & _is_left_to_deleted(plan, name)
        values[name] = F.when(newer, F.when(~none, S(name))).otherwise(_stored(plan, name))
        texts[name] = F.when(newer, F.when(~none, _text(name))).otherwise(_stored_text(plan, name))
    others = F.when(brings, F.col("s.texts")).otherwise(T("__unrepresentable"))
    return {**values, "__unrepresentable": texts_of(others, texts)}


def _text(name: str) -> Column:
    """The text of a value of the state that its column cannot hold."""
    return F.col("s.texts")[name]


def _stored_text(plan: Scd1, name: str) -> Column:
    """The text of a stored value. That of a soft-deleted row belongs to a former life."""
    kept = T("__unrepresentable")[name]
    return kept if plan.soft is None else F.when(_is_live(), kept)


def _stamp(plan: Scd1) -> dict[str, Column]:
    """Metadata of the row that an event leaves behind."""
    origin = F.struct(
        F.col("s.topic").alias("topic"),
        F.col("s.partition").alias("partition"),
        F.col("s.offset").alias("offset"),
    )
    return {"__seq": _seq(plan), "__event_time": F.col("s.event_time"), "__origin": origin}


def _update(plan: Scd1) -> dict[str, Column]:
    values = {name: S(name) for name in plan.columns if name != plan.soft}
    seq, texts = _seq(plan), {}
    for name in plan.tracked:
        newer = _wins(name, seq, seq, place=plan.unanchored, tied=True)
        values[name] = F.when(newer, S(name)).otherwise(_stored(plan, name))
        texts[name] = F.when(newer, _text(name)).otherwise(_stored_text(plan, name))
    if plan.soft is not None:
        values[plan.soft] = F.lit(None)
    return {
        **values,
        **_stamp(plan),
        "__op": F.col("s.op"),
        "__column_seq": _column_seqs(plan, seq, seq, place=plan.unanchored),
        "__unrepresentable": texts_of(F.col("s.texts"), texts),
    }


def _fill(plan: Scd1) -> dict[str, Column]:
    """What an older event changes: only the columns that are waiting for a value."""
    if not plan.tracked:
        return _filled(plan)
    seq = _after_read(plan, seq_of_row())
    wins = {name: _fills(plan, name) for name in plan.tracked}
    gone = {name: _is_left_to_deleted(plan, name) for name in wins}
    values = {
        name: F.when(won, F.when(~gone[name], S(name))).otherwise(_kept(plan, name))
        for name, won in wins.items()
    }
    newest = {
        name: F.when(won, _late(plan, name)).otherwise(_after_read(plan, stored_seq(name)))
        for name, won in wins.items()
    }
    texts = {
        name: F.when(won, F.when(~gone[name], _text(name))).otherwise(T("__unrepresentable")[name])
        for name, won in wins.items()
    }
    return {
        **_filled(plan),
        **values,
        "__seq": seq,
        "__column_seq": older_seqs(newest, seq),
        "__unrepresentable": texts_of(T("__unrepresentable"), texts),
    }


def _fills(plan: Scd1, name: str) -> Column:
    """BOOLEAN: whether an older event has a value for a column of the stored row."""
    row = _after_read(plan, seq_of_row())

    def fills(value: Column) -> Column:
        stored = _after_read(plan, stored_seq(name))
        return _shared(plan, row, lambda row: (value > stored) & (event_part(value, row) <= row))

    return _shared(plan, _late(plan, name), fills)


def _late(plan: Scd1, name: str) -> Column:
    """The sequence of a column of a state that is older than the stored row."""
    mine, offset = _mine(name, F.col("s.seq")), F.col("s.opened")[F.lit(name)]
    if plan.soft is None:
        return _beside(name, mine, offset) if plan.unanchored else mine

    def late(end: Column) -> Column:
        gone = F.coalesce(mine <= own(end["seq"]), F.lit(False))
        seq = F.when(gone, own(end["seq"])).otherwise(mine)
        return _beside(name, seq, F.when(gone, end["opened"]).otherwise(offset)) if plan.unanchored else seq

    return _shared(plan, _end(plan), late)


def _is_left_to_deleted(plan: Scd1, name: str) -> Column:
    """BOOLEAN: whether a column's value is one that a soft delete or truncate leaves to the deleted row.

    It is none of a row that came back. What the row had under a former key may be newer than the delete.
    """
    if plan.soft is None:
        return F.lit(False)
    return F.coalesce(_mine(name, F.col("s.seq")) <= own(_end(plan)["seq"]), F.lit(False))


def _end(plan: Scd1) -> Column:
    """The last delete or truncate of the batch before the stored row, as `events.ENDS` has it; or null.

    A truncate at the position of the row comes after it.
    """
    ends = F.filter("s.ends", lambda end: _is_before(plan, end))
    if plan.truncates:
        ends = F.coalesce(ends, F.array().cast(ENDS))  # null: a value of a former key is all that there is
        ends = F.concat(ends, F.filter(_truncates(plan), lambda each: each["seq"] < seq_of_row()))
    return F.array_max(ends)


def _is_read_before(plan: Scd1) -> Column:
    """BOOLEAN: whether the stored row is a change that follows the state, which has a higher position.

    The change is one of a transaction that was open during the snapshot. The state is the snapshot row,
    or an earlier change that follows it.
    """
    mine, stored = F.col("s.seq"), seq_of_row()
    overtaken = is_snapshot(mine) & _is_here() & (T("__origin")["offset"] > F.col("s.offset"))
    outrun = ~is_snapshot(mine) & F.col("s.unanchored") & are_of_one_epoch(mine, stored)
    outrun = outrun & ~(minor(mine) > minor(stored))
    changed = ~is_snapshot(stored) & ~is_reread(stored)
    return F.coalesce(changed & (stored < mine) & (overtaken | outrun), F.lit(False))


def _after_read(plan: Scd1, value: Column) -> Column:
    """A sequence of the stored row, behind the state if the stored change follows that."""
    if not (plan.snapshot or plan.unanchored):
        return value
    return F.when(_is_read_before(plan), behind(value, F.col("s.seq"))).otherwise(value)


def _filled(plan: Scd1) -> dict[str, Column]:
    return {name: _kept(plan, name) for name in plan.fills}


def _kept(plan: Scd1, name: str) -> Column:
    """A stored value, or what a new life of its column makes of it."""
    fill = plan.fills.get(name)
    return T(name) if fill is None else F.when(is_former(name, fill), fill.value).otherwise(T(name))


def _mine(name: str, seq: Column, *, place: bool = False) -> Column:
    """The sequence of a column of the state, whose own sequence is ``seq``.

    ``place`` says that it may be from an unanchored change, whose place depends on the stored row.
    """
    found = F.coalesce(F.col("s.seqs")[F.lit(name)], own(seq))
    if not place:
        return found
    sent = F.coalesce(F.col("s.seqs")[F.lit(name)], own(F.col("s.seq")))
    return F.greatest(found, _beside(name, sent, F.col("s.opened")[F.lit(name)]))


def _placed(value: Column, offset: Column) -> Column:
    """The sequence of a change, placed after the stored row if it is unanchored and later.

    ``offset`` is that of an unanchored change, otherwise null.
    """
    follows = _is_here() & (offset > T("__origin")["offset"])
    return placed(value, seq_of_row(), unanchored=offset.isNotNull(), follows=follows)


def _beside(name: str, value: Column, offset: Column) -> Column:
    """The sequence of a column's value, placed after the stored one if an unanchored change carried it.

    It has a higher LSN, or follows it in its partition if that is of a row of a snapshot. ``offset`` is that
    of such a change, otherwise null: what a truncate left without a value keeps its place.
    """
    row = seq_of_row()

    def beside(each: Column) -> Column:
        later = _is_here() & (each["at"] > T("__origin")["offset"])
        unanchored = each["at"].isNotNull()
        return beside_stored(each["value"], each["column"], row, unanchored=unanchored, later=later)

    given = F.struct(value.alias("value"), stored_seq(name).alias("column"), offset.alias("at"))
    return shared(given, beside)


def _stored(plan: Scd1, name: str) -> Column:
    """A stored value. A value of a soft-deleted row belongs to a former life."""
    kept = _kept(plan, name)
    return kept if plan.soft is None else F.when(_is_live(), kept)


def _wins(name: str, mine: Column, row: Column, *, place: bool = False, tied: bool = False) -> Column:
    """BOOLEAN: whether the state's value of a column is newer than the stored one, and no newer than the row.

    ``mine`` is the state's sequence, ``row`` that of the row that gets the value. ``tied`` says that this row
    is newer than the stored one, perhaps at the same position.
    """

    def wins(value: Column) -> Column:
        newer = value > stored_seq(name)
        if tied:  # of two changes at one position, the later arrival counts
            newer = newer | ((value == stored_seq(name)) & (row == seq_of_row()))
        return newer & (event_part(value, row) <= row)

    value = _mine(name, mine, place=place)
    return shared(value, wins) if place else wins(value)


def _column_seqs(plan: Scd1, mine: Column, seq: Column, *, place: bool = False) -> Column:
    newest = {}
    for name in plan.tracked:
        value = _mine(name, mine, place=place)
        newest[name] = F.when(_wins(name, mine, seq, place=place), value).otherwise(stored_seq(name))
    return older_seqs(newest, seq)


def _unmatched(plan: Scd1) -> Iterator[Clause]:
    values = {name: S(name) for name in plan.columns if name != plan.soft}
    for name in plan.tracked:
        seq = F.col("s.seq")
        values[name] = F.when(event_part(_mine(name, seq), seq) <= seq, S(name))
    meta = {
        "__seq": F.col("s.seq"),
        "__op": F.col("s.op"),
        "__event_time": F.col("s.event_time"),
        "__origin": _stamp(plan)["__origin"],
        "__column_seq": F.col("s.seqs"),
        "__unrepresentable": F.col("s.texts"),
    }
    live = F.col("s.op").isin(*WITH_ROW)
    if plan.soft is None:
        yield Clause(live, {**values, **meta})
        return
    if plan.floor is not None:
        wiped = live & (F.col("s.seq") <= F.lit(plan.floor))
        yield Clause(wiped, {**values, **meta, **_truncate_of(plan, F.col("s.seq"))}, op=F.col("s.op"))
    yield Clause(live, {**values, plan.soft: F.lit(None), **meta})
    keys = {name: F.col(f"s.key.{quoted(name)}") for name in plan.key}
    alone = F.when(F.col("s.row_seq").isNull(), F.array_min("s.ends")["event_time"])
    when = F.coalesce(alone, _gone_at(plan, F.col("s.ends"), F.coalesce("s.row_seq", F.lit(MISSING))))
    seen = F.col("s.row_seq").isNotNull()
    mark = F.when(~seen, F.create_map(F.lit(UNSEEN), F.lit(b"")))
    # A row that the mirror never showed shows nothing of what it had under a former key.
    shown = {name: F.when(seen, values[name]) for name in plan.tracked}
    meta |= {"__column_seq": mark, "__unrepresentable": F.when(seen, F.col("s.texts"))}
    gone = {**values, **shown, **keys, plan.soft: when, **meta}
    yield Clause(F.col("s.op") == Op.DELETE, gone, shows=seen)


def _untouched(plan: Scd1) -> Iterator[Clause]:
    """Yield the clauses for rows whose key is not in the batch.

    A truncate deletes such rows, and a new life of a column changes them.
    """
    if plan.floor is not None:
        gone = seq_of_row() <= F.lit(plan.floor)
        if plan.soft is None:
            yield Clause(gone)
        else:
            base = last_before(seq_of_row(), [each.seq for each in plan.truncates])
            left = {**_outdated(plan, base), **_truncate_of(plan, seq_of_row())}
            yield Clause(gone & _is_live(), left)
        if plan.tracked:
            base = own(F.lit(plan.floor))
            old = reduce(Column.__or__, [stored_seq(name) < base for name in plan.tracked])
            yield Clause(old if plan.soft is None else old & _is_live(), _outdated(plan, base))
    if plan.fills:
        yield Clause(aged(plan.fills), _filled(plan))


def _outdated(plan: Scd1, base: Column) -> dict[str, Column]:
    """What a truncate at ``base`` makes of a row that came after it: it removes the values from before it."""
    if not plan.tracked:
        return _filled(plan)
    old = {name: stored_seq(name) < base for name in plan.tracked}
    values = {name: F.when(~is_old, _kept(plan, name)) for name, is_old in old.items()}
    kept = {name: F.when(is_old, base).otherwise(stored_seq(name)) for name, is_old in old.items()}
    texts = {name: F.when(~is_old, T("__unrepresentable")[name]) for name, is_old in old.items()}
    return {
        **_filled(plan),
        **values,
        "__column_seq": older_seqs(kept, seq_of_row()),
        "__unrepresentable": texts_of(T("__unrepresentable"), texts),
    }
