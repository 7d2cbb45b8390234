"""What becomes of odd histories of one row. Each shows a batch, what the mirror had, and what it has then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest

from lakemirror.driver.rules.batch import Mirror, apply
from lakemirror.driver.rules.conditions import (
    Evidence,
    Judged,
    Undecided,
    filter_decides,
    filtered,
    judged,
    shown_violation,
)
from lakemirror.driver.rules.conflicts import conflict
from lakemirror.driver.rules.merge import Merged, merge
from lakemirror.driver.rules.orders import Kind, Truncated
from lakemirror.driver.rules.positions import MISSING, Origin, own
from lakemirror.driver.rules.table import Table
from lakemirror.driver.rules.values import Event, Outcome, Row, Tombstone

pytestmark = pytest.mark.guarantee(
    "What becomes of a row depends on what happened to it, not on the order in which its events "
    "arrive or how they are cut into batches"
)

APPLIED, SUPERSEDED, STALE, DUPLICATE = (
    Outcome.APPLIED,
    Outcome.SUPERSEDED,
    Outcome.STALE,
    Outcome.DUPLICATE,
)
TABLE = Table(("id", "v", "note"), ("v", "note"))
SOFT = Table(("id", "v", "note"), ("v", "note"), soft=True)


def at(lsn: int, tie: int = 1, major: int | None = None) -> bytes:
    parts = (lsn if major is None else major).to_bytes(10, "big"), (lsn if tie else 0).to_bytes(10, "big")
    return bytes(2) + b"".join(parts) + tie.to_bytes(4, "big")


def event(op: str, lsn: int, offset: int | None = None, partition: int = 0, **given: Any) -> Event:
    """An event of the row 1; ``v`` and ``note`` are gaps where they are not given."""
    row: dict[str, Any] = {name: given.pop(name) for name in ("v", "note") if name in given}
    gaps = frozenset() if op == "d" else frozenset({"v", "note"} - row.keys())
    seq = given.pop("seq", at(lsn, 0 if op == "r" else 1))
    origin = Origin("t", partition, lsn if offset is None else offset)
    row = {"id": 1, **row} if op != "d" else {}
    when = given.pop("at", lsn * 1000)
    return Event((1,), op, seq, when, origin, row, gaps, **{"digest": (op, str(row)), **given})


def row(lsn: int, v: Any = None, note: Any = None, op: str = "u", **given: Any) -> Row:
    seq = at(lsn, 0 if op == "r" else 1)
    values = {"id": 1, "v": v, "note": note}
    return Row(seq, op, lsn * 1000, Origin("t", 0, lsn), values, **given)


def values(merged: Merged) -> tuple[Any, Any] | None:
    return None if merged.row is None else (merged.row.values["v"], merged.row.values["note"])


def in_any_order(
    events: Sequence[Event],
    stored: Row | None = None,
    tombstone: Tombstone | None = None,
    table: Table = TABLE,
) -> tuple[Merged, list[Outcome]]:
    """Merge the events in every order; the outcomes are those of the events in the given one."""
    expected = merge(events, stored, tombstone, table)
    for order in permutations(range(len(events))):
        found = merge([events[i] for i in order], stored, tombstone, table)
        assert (found.row, found.tombstone) == (expected.row, expected.tombstone)
        assert [found.outcomes[order.index(i)] for i in range(len(events))] == expected.outcomes
    return expected, expected.outcomes


# -- current rows -----------------------------------------------------------------------------------------


def test_the_newest_change_counts_and_the_others_are_superseded() -> None:
    merged, outcomes = in_any_order(
        [event("c", 1, v=1, note="a"), event("u", 3, v=3, note="c"), event("u", 2, v=2)]
    )
    assert values(merged) == (3, "c")
    assert outcomes == [SUPERSEDED, APPLIED, SUPERSEDED]


def test_a_late_change_is_stale_and_changes_nothing() -> None:
    stored = row(5, 5, "e")
    merged, outcomes = in_any_order([event("u", 4, v=4, note="d")], stored)
    assert merged.row == stored
    assert outcomes == [STALE]


def test_a_change_that_is_sent_again_is_a_duplicate() -> None:
    one = event("u", 5, v=5, note="e")
    again = one._replace(origin=Origin("t", 0, 9))
    merged, outcomes = in_any_order([one, again])
    assert values(merged) == (5, "e")
    assert sorted(outcomes) == [APPLIED, DUPLICATE]
    assert merge([again], merged.row, None, TABLE).outcomes == [DUPLICATE]


def test_of_two_changes_at_one_position_the_later_arrival_counts() -> None:
    first, second = event("u", 5, 1, v=1, note="a"), event("u", 5, 2, v=2, note="b")
    merged, outcomes = in_any_order([first, second])
    assert (values(merged), outcomes) == ((2, "b"), [SUPERSEDED, APPLIED])
    later = merge([second], merge([first], None, None, TABLE).row, None, TABLE)
    assert (values(later), later.outcomes) == ((2, "b"), [APPLIED])
    elsewhere = second._replace(origin=Origin("t", 1, 2))
    assert merge([elsewhere], row(5, 1, "a"), None, TABLE).outcomes == [DUPLICATE]


# -- deletes ----------------------------------------------------------------------------------------------


def test_a_late_change_does_not_bring_a_deleted_row_back() -> None:
    merged, outcomes = in_any_order([event("d", 5)], row(4, 4, "d"))
    assert (merged.row, outcomes) == (None, [APPLIED])
    assert merged.tombstone == Tombstone(at(5), 5000, Origin("t", 0, 5))
    late, outcomes = in_any_order([event("u", 4, v=4, note="d")], None, merged.tombstone)
    assert (late.row, outcomes) == (None, [STALE])


def test_a_delete_of_a_row_that_never_came_leaves_a_tombstone() -> None:
    merged, outcomes = in_any_order([event("d", 5)])
    assert (merged.row, outcomes) == (None, [APPLIED])
    assert merged.tombstone is not None


def test_a_delete_is_applied_again_after_a_crash_between_tombstones_and_rows() -> None:
    merged, outcomes = in_any_order(
        [event("d", 5)], row(4, 4, "d"), Tombstone(at(5), 5000, Origin("t", 0, 5))
    )
    assert (merged.row, merged.tombstone, outcomes) == (None, None, [APPLIED])
    again, outcomes = in_any_order([event("d", 5)], None, Tombstone(at(5), 5000, Origin("t", 0, 5)))
    assert (again.row, again.tombstone, outcomes) == (None, None, [DUPLICATE])


def test_a_row_that_is_created_again_has_no_value_of_its_former_life() -> None:
    merged, _ = in_any_order([event("d", 5), event("c", 6, v=6)], row(4, 4, "old"))
    assert values(merged) == (6, None)
    apart = merge([event("u", 6, v=6)], None, Tombstone(at(5), 5000, Origin("t", 0, 5)), TABLE)
    assert apart.row is not None
    assert (values(apart), apart.row.seqs) == ((6, None), {"note": own(at(5))})
    late = merge([event("u", 4, v=4, note="late")], apart.row, Tombstone(at(5)), TABLE)
    assert (values(late), late.outcomes) == ((6, None), [STALE])


def test_a_delete_and_a_create_at_one_position_count_by_their_arrival() -> None:
    tombstone = Tombstone(at(5), 5000, Origin("t", 0, 5))
    create = event("c", 5, 6, v=1, note="n")
    assert values(merge([create], None, tombstone, TABLE)) == (1, "n")
    assert merge([create._replace(origin=Origin("t", 0, 4))], None, tombstone, TABLE).outcomes == [STALE]


def test_a_soft_delete_keeps_the_last_row_and_says_when_it_went() -> None:
    merged, outcomes = in_any_order(
        [event("u", 5, v=5), event("d", 6), event("d", 7)], row(4, 4, "d"), table=SOFT
    )
    assert merged.row is not None
    assert (values(merged), merged.row.op, merged.row.deleted_at) == ((5, "d"), "d", 6000)
    assert (merged.tombstone, outcomes) == (None, [SUPERSEDED, SUPERSEDED, APPLIED])
    back, _ = in_any_order([event("c", 8, v=8)], merged.row, table=SOFT)
    assert back.row is not None
    assert (values(back), back.row.is_live, back.row.deleted_at) == ((8, None), True, None)


def test_a_soft_delete_of_a_row_that_never_came_shows_its_key_alone() -> None:
    merged, _ = in_any_order([event("d", 6)], table=SOFT)
    assert merged.row is not None
    assert (merged.row.unseen, merged.row.deleted_at) == (True, 6000)
    late, outcomes = in_any_order([event("u", 5, v=5, note="e")], merged.row, table=SOFT)
    assert (late.row, outcomes) == (merged.row, [STALE])


# -- TOAST ------------------------------------------------------------------------------------------------


def test_a_value_that_was_not_sent_is_the_newest_that_was() -> None:
    merged, _ = in_any_order([event("c", 1, v=1, note="big"), event("u", 2, v=2), event("u", 3, v=3)])
    assert merged.row is not None
    assert (values(merged), merged.row.seqs) == ((3, "big"), {"note": own(at(1))})
    after, _ = in_any_order([event("u", 4, v=4)], merged.row)
    assert after.row is not None
    assert (values(after), after.row.seqs) == ((4, "big"), {"note": own(at(1))})


def test_a_late_change_sets_exactly_the_columns_that_wait_for_it() -> None:
    first = merge([event("u", 5, v=5)], None, None, TABLE)
    assert first.row is not None
    assert (values(first), first.row.seqs) == ((5, None), {"note": MISSING})
    late, outcomes = in_any_order([event("u", 3, v=3, note="three")], first.row)
    assert (values(late), outcomes) == ((5, "three"), [STALE])
    between, outcomes = in_any_order([event("u", 4, v=4, note="four")], late.row)
    assert (values(between), outcomes) == ((5, "four"), [STALE])
    assert values(merge([event("u", 2, v=2, note="two")], between.row, None, TABLE)) == (5, "four")


def test_a_late_delete_takes_what_came_before_it_in_its_batch() -> None:
    """The create of the row that waits for its value is still to come."""
    stored = merge([event("u", 7, v=7)], None, None, TABLE).row
    batch = [event("c", 1, v=1, note="old"), event("d", 5)]
    assert values(in_any_order(batch, stored)[0]) == (7, None)
    assert values(in_any_order(batch, stored, table=SOFT)[0]) == (7, None)


def test_the_text_of_a_value_comes_from_where_the_value_is_from() -> None:
    lost = event("u", 2, v=None, note="b", texts={"v": "infinity"})
    merged, _ = in_any_order([lost, event("u", 3, note="c")])
    assert merged.row is not None
    assert merged.row.texts == {"v": "infinity"}
    after, _ = in_any_order([event("u", 4, v=4)], merged.row)
    assert after.row is not None
    assert after.row.texts == {}


def test_texts_of_columns_that_every_event_carries_are_those_of_the_newest() -> None:
    table = Table(TABLE.columns, ("note",))
    old = event("u", 2, v=None, note=None, texts={"v": "-infinity", "note": "NaN"})
    merged, _ = in_any_order([old, event("u", 3, v=None, texts={"v": "infinity"})], table=table)
    assert merged.row is not None
    assert merged.row.texts == {"v": "infinity", "note": "NaN"}


# -- snapshots --------------------------------------------------------------------------------------------


def test_a_snapshot_row_yields_to_every_change_at_or_after_it() -> None:
    merged, outcomes = in_any_order([event("r", 5, v=0, note="read"), event("u", 5, v=5, note="e")])
    assert (values(merged), outcomes) == ((5, "e"), [SUPERSEDED, APPLIED])
    late, outcomes = in_any_order([event("r", 5, 1, v=0, note="read")], row(5, 5, "e"))
    assert (values(late), outcomes) == ((5, "e"), [STALE])


def test_a_transaction_that_was_open_during_the_snapshot_follows_its_row() -> None:
    read = event("r", 90, 1, v=0, note="read")
    change = event("u", 70, 2, v=7, unanchored=True)
    merged, outcomes = in_any_order([read, change])
    assert (values(merged), outcomes) == ((7, "read"), [SUPERSEDED, APPLIED])
    assert merged.row is not None
    assert merged.row.seq == at(70, major=90)
    apart = merge([change], merge([read], None, None, TABLE).row, None, TABLE)
    assert apart.row == merged.row
    before = merge([read], merge([change], None, None, TABLE).row, None, TABLE)
    assert values(before) == (7, "read")


def test_what_an_open_transaction_set_outlives_a_later_change_without_it() -> None:
    """The row of the snapshot is stored, and the newest change of the batch knows the commit before it."""
    read = merge([event("r", 90, 1, v=0, note="read")], None, None, TABLE).row
    batch = [event("u", 70, 2, v=7, note="set", unanchored=True), event("u", 95, 3, v=8)]
    assert values(in_any_order(batch, read)[0]) == (8, "set")
    soft = merge([*batch, event("d", 97, 4)], read, None, SOFT)
    assert values(soft) == (8, "set")
    one = merge(batch[:1], read, None, TABLE).row
    more = [event("u", 80, 3, v=8, note="more", unanchored=True), event("u", 95, 4, v=9)]
    assert values(in_any_order(more, one)[0]) == (9, "more"), "its place is behind the first"
    late = merge(more[:1], merge(more[1:], one, None, TABLE).row, None, TABLE)
    assert values(late) == (9, "more")


def test_a_former_truncate_takes_no_value_that_was_read_after_it() -> None:
    """The change was open while the table was read, long after the truncate, and left the value out."""
    wiped = Table(TABLE.columns, TABLE.tracked, former=Truncated(at(50)))
    read = merge([event("r", 90, 1, v=0, note="read")], None, None, wiped).row
    change = event("u", 70, 2, v=7, unanchored=True)
    assert values(in_any_order([change], read, table=wiped)[0]) == (7, "read")
    gone = event("d", 80, 3, unanchored=True)
    soft = merge([change, gone], read, None, replace(wiped, soft=True))
    assert values(soft) == (7, "read")
    later = change._replace(seq=b"\0\1" + change.seq[2:])
    assert values(in_any_order([later], read, table=wiped)[0]) == (7, "read")


def test_of_an_earlier_transaction_the_row_of_a_later_snapshot_knows_already() -> None:
    """It comes before the row in its partition, so that it was not open meanwhile."""
    read = merge([event("r", 90, 5, v=0, note="read")], None, None, TABLE).row
    batch = [event("u", 70, 2, v=7, note="set", unanchored=True), event("u", 95, 9, v=8)]
    assert values(in_any_order(batch, read)[0]) == (8, "read")


def test_a_value_from_before_the_snapshot_that_comes_late_is_not_one_of_after() -> None:
    """The row is that of a change after the snapshot, which left the value out."""
    read = merge([event("r", 90, 1, v=0, note="read")], None, None, TABLE).row
    stored = merge([event("u", 80, 2, v=8, unanchored=True)], read, None, TABLE).row
    assert values(merge([event("u", 70, 0, v=7, note="former", unanchored=True)], stored, None, TABLE)) == (
        8,
        "read",
    )
    assert values(merge([event("u", 85, 3, v=9, note="later", unanchored=True)], stored, None, TABLE)) == (
        9,
        "later",
    )


def test_a_row_of_a_snapshot_fills_what_an_open_transaction_left_waiting() -> None:
    """The batch has the row, and a change that is older than the stored one."""
    stored = merge([event("u", 80, 4, v=8, unanchored=True)], None, None, TABLE).row
    batch = [event("r", 90, 1, v=0, note="read"), event("u", 70, 2, v=7, note="set", unanchored=True)]
    assert values(in_any_order(batch, stored)[0]) == (8, "set")
    again = [batch[0], event("u", 80, 4, v=8, unanchored=True)]
    merged, _ = in_any_order(again, stored)
    assert values(merged) == (8, "read")
    assert merged.row is not None
    assert merged.row.seq == at(80, major=90)


def test_a_late_value_counts_although_a_change_of_the_next_epoch_comes_again_with_it() -> None:
    former, late = event("u", 60, 1, v=6, note="former"), event("u", 65, 2, v=6, note="late")
    gap = event("u", 20, 3, v=7, unanchored=True)
    newest = gap._replace(seq=b"\0\1" + gap.seq[2:])
    stored = merge([former, newest], None, None, TABLE).row
    assert values(in_any_order([late, newest], stored)[0]) == (7, "late")


def test_a_value_of_an_open_transaction_follows_the_delete_that_it_follows() -> None:
    tombstone = merge(
        [event("r", 90, 1, v=0, note="read"), event("d", 70, 2, unanchored=True)], None, None, TABLE
    )
    batch = [event("c", 80, 3, v=8, note="new", unanchored=True), event("u", 95, 4, v=9)]
    assert values(in_any_order(batch, None, tombstone.tombstone)[0]) == (9, "new")
    former = [event("u", 60, 3, v=6, note="old", unanchored=True), event("u", 95, 4, v=9)]
    assert values(in_any_order(former, None, tombstone.tombstone)[0]) == (9, None)


def test_what_such_a_transaction_deleted_and_created_again_is_there() -> None:
    read, gone = event("r", 90, 1, v=0, note="read"), event("d", 70, 2, unanchored=True)
    back = event("c", 80, 3, v=8, note="new", unanchored=True)
    first = merge([read, gone], None, None, TABLE)
    assert (first.row, first.tombstone and first.tombstone.seq) == (None, at(70, major=90))
    after = merge([back], first.row, first.tombstone, TABLE)
    assert values(after) == (8, "new")
    whole, _ = in_any_order([read, gone, back])
    assert after.row == whole.row


def test_a_row_that_was_read_before_its_delete_stays_away_however_high_its_position() -> None:
    tombstone = Tombstone(at(70), 7000, Origin("t", 0, 9))
    assert merge([event("r", 90, 8, v=0, note="read")], None, tombstone, TABLE).outcomes == [STALE]
    assert merge([event("r", 90, 10, v=0, note="read")], None, tombstone, TABLE).outcomes == [APPLIED]


# -- truncates --------------------------------------------------------------------------------------------


def test_a_truncate_removes_what_came_before_it_and_leaves_what_came_after() -> None:
    table = Table(TABLE.columns, TABLE.tracked, truncates=[Truncated(at(5), at=5000)])
    merged, outcomes = in_any_order([event("u", 4, v=4), event("c", 6, v=6)], row(3, 3, "old"), table=table)
    assert (values(merged), outcomes) == ((6, None), [SUPERSEDED, APPLIED])
    assert merge([], row(3, 3, "old"), None, table).row is None
    assert merge([], row(6, 6, "new"), None, table).row == row(6, 6, "new")


def test_what_came_before_a_truncate_of_its_batch_is_nowhere() -> None:
    table = Table(TABLE.columns, TABLE.tracked, truncates=[Truncated(at(5), at=5000)])
    found, outcomes = in_any_order([event("c", 4, v=4, note="d")], table=table)
    assert (found.row, found.tombstone, outcomes) == (None, None, [SUPERSEDED])
    soft = Table(SOFT.columns, SOFT.tracked, soft=True, truncates=[Truncated(at(5), at=5000)])
    after, _ = in_any_order([event("c", 3, v=3, note="old"), event("u", 6, v=6)], table=soft)
    assert after.row is not None
    assert (values(after), after.row.seqs, after.row.is_live) == ((6, None), {"note": own(at(5))}, True)


def test_a_late_truncate_takes_the_values_from_before_it() -> None:
    stored = row(6, 6, "old", seqs={"note": own(at(3))})
    table = Table(TABLE.columns, TABLE.tracked, truncates=[Truncated(at(5), at=5000)])
    merged = merge([], stored, None, table)
    assert merged.row is not None
    assert (values(merged), merged.row.seqs) == ((6, None), {"note": own(at(5))})


def test_a_truncate_removes_what_is_at_its_own_position_in_any_cut() -> None:
    change, wiped = event("c", 5, v=5, note="e"), [Truncated(at(5), at=5000)]
    for soft in (False, True):
        table = Table(TABLE.columns, TABLE.tracked, soft)
        truncating = replace(table, truncates=wiped)
        one = apply(Mirror(), [change], truncating)
        before = apply(apply(Mirror(), [change], table).mirror, [], truncating)
        late = apply(apply(Mirror(), [change], table).mirror, [event("u", 4, v=4)], truncating)
        shown = [(row.values["v"], row.deleted_at) for row in one.mirror.rows.values()]
        assert shown == ([(5, 5000)] if soft else [])
        assert one.mirror.rows == before.mirror.rows == late.mirror.rows
        assert apply(apply(Mirror(), [], truncating).mirror, [change], table).mirror.rows == {}


def test_a_truncate_takes_the_text_of_a_value_along_with_it() -> None:
    stored = row(6, 6, seqs={"note": own(at(3))}, texts={"note": "infinity", "v": "NaN"})
    merged = merge([], stored, None, Table(TABLE.columns, TABLE.tracked, truncates=[Truncated(at(5))]))
    assert merged.row is not None
    assert merged.row.texts == {"v": "NaN"}


def test_a_change_below_a_former_truncate_is_stale() -> None:
    table = Table(TABLE.columns, TABLE.tracked, former=Truncated(at(5)))
    assert in_any_order([event("c", 4, v=4)], table=table)[1] == [STALE]
    other = Table(TABLE.columns, former=Truncated(at(5), Kind.POSITION, Origin("t", 0, 5), frozenset({"t"})))
    foreign = event("c", 4, v=4)._replace(origin=Origin("z", 0, 4))
    assert merge([foreign], None, None, other).outcomes == [APPLIED]


def test_with_soft_deletes_too_a_change_below_a_former_truncate_is_stale() -> None:
    former = Table(SOFT.columns, SOFT.tracked, soft=True, former=Truncated(at(5)))
    assert in_any_order([event("c", 4, v=4)], table=former)[1] == [STALE]
    again = Table(
        SOFT.columns, SOFT.tracked, soft=True, former=Truncated(at(5)), truncates=[Truncated(at(5), at=5000)]
    )
    found, outcomes = in_any_order(
        [event("c", 4, v=4)], table=again
    )  # of a batch that failed before its rows
    assert found.row is not None
    assert (found.row.is_live, found.row.deleted_at, outcomes) == (False, 5000, [SUPERSEDED])


def test_a_truncate_with_soft_deletes_marks_the_rows() -> None:
    table = Table(
        SOFT.columns,
        SOFT.tracked,
        soft=True,
        truncates=[Truncated(at(5), at=5000), Truncated(at(9), at=9000)],
    )
    merged = merge([], row(3, 3, "old"), None, table)
    assert merged.row is not None
    assert (values(merged), merged.row.op, merged.row.deleted_at) == ((3, "old"), "d", 5000)
    inside, outcomes = in_any_order([event("c", 6, v=6, note="in")], table=table)
    assert inside.row is not None
    assert (values(inside), inside.row.op, inside.row.deleted_at, outcomes) == (
        (6, "in"),
        "d",
        9000,
        [SUPERSEDED],
    )


def test_of_the_truncates_of_a_batch_the_newest_counts_unless_it_is_known() -> None:
    def outcomes(former: int | None, *truncates: int) -> list[Outcome]:
        mirror = Mirror(truncated=None if former is None else Truncated(at(former)))
        table = Table(TABLE.columns, truncates=[Truncated(at(each)) for each in truncates])
        applied = apply(mirror, [], table)
        assert applied.mirror.truncated == table.floor or former is not None
        return list(applied.truncates)

    assert outcomes(None, 5) == [APPLIED]
    assert outcomes(None, 5, 9, 7) == [SUPERSEDED, APPLIED, SUPERSEDED]
    assert outcomes(4, 5) == [APPLIED]
    assert outcomes(5, 5) == [DUPLICATE]
    assert outcomes(6, 5) == [STALE]
    assert outcomes(6, 5, 4) == [STALE, SUPERSEDED]
    assert outcomes(6) == []


def test_a_truncate_that_is_sent_twice_counts_once() -> None:
    def outcomes(former: int | None, *truncates: int) -> list[Outcome]:
        mirror = Mirror(truncated=None if former is None else Truncated(at(former)))
        table = Table(TABLE.columns, truncates=[Truncated(at(each)) for each in truncates])
        return list(apply(mirror, [], table).truncates)

    assert outcomes(None, 5, 5) == [APPLIED, DUPLICATE]
    assert outcomes(None, 5, 9, 5, 9) == [SUPERSEDED, APPLIED, DUPLICATE, DUPLICATE]
    assert outcomes(5, 5, 5) == [DUPLICATE, DUPLICATE]
    assert outcomes(6, 5, 5) == [STALE, DUPLICATE]


# -- changes of keys --------------------------------------------------------------------------------------


def moved_events() -> list[Event]:
    """The row 1 becomes 2, then 3; neither create carries the note."""
    first, second = at(5), at(6)
    row = {"id": 2, "v": 5}
    return [
        Event((1,), "d", first, 5000, Origin("t", 0, 5), new_key=(2,), digest=1),
        Event((2,), "c", first, 5000, Origin("t", 0, 6), row, frozenset({"note"}), old_key=(1,), digest=2),
        Event((2,), "d", second, 6000, Origin("t", 0, 7), new_key=(3,), digest=3),
        Event(
            (3,),
            "c",
            second,
            6000,
            Origin("t", 0, 8),
            {"id": 3, "v": 6},
            frozenset({"note"}),
            old_key=(2,),
            digest=4,
        ),
    ]


def test_a_value_follows_its_row_over_several_keys_in_any_order_of_batches() -> None:
    for order in permutations([event("c", 1, v=1, note="big"), *moved_events()]):
        mirror = Mirror()
        for each in order:
            mirror = apply(mirror, [each], TABLE).mirror
        assert {key: dict(each.values) for key, each in mirror.rows.items()} == {
            (3,): {"id": 3, "v": 6, "note": "big"}
        }


def open_move(arrived: Origin) -> tuple[Event, Event]:
    """Both halves of a move from 1 to 2 in an open transaction. The create has not the note."""
    gone = Event((1,), "d", at(70), 7000, Origin("t", 0, 2), new_key=(2,), unanchored=True, digest=1)
    there = Event(
        *((2,), "c", at(70), 7000, arrived, {"id": 2, "v": 7}, frozenset({"note"})),
        old_key=(1,),
        unanchored=True,
        digest=2,
    )
    return gone, there


def test_a_move_in_a_transaction_that_was_open_during_the_snapshot_brings_what_was_read() -> None:
    """Its position is below that of the snapshot, whose row it follows in its partition."""
    read = event("r", 90, 1, v=0, note="read")
    gone = Event((1,), "d", at(70), 7000, Origin("t", 0, 2), new_key=(2,), unanchored=True, digest=1)
    there = {"id": 2, "v": 7}
    created = Event(
        *((2,), "c", at(70), 7000, Origin("t", 1, 5), there, frozenset({"note"})),
        old_key=(1,),
        unanchored=True,
        digest=2,
    )
    for batches in ([[read, gone, created]], [[read], [gone, created]], [[read], [gone], [created]]):
        mirror = Mirror()
        for batch in batches:
            mirror = apply(mirror, batch, TABLE).mirror
        assert {key: dict(each.values) for key, each in mirror.rows.items()} == {
            (2,): {**there, "note": "read"}
        }


def test_a_move_of_an_open_transaction_brings_its_value_to_a_row_that_changed_again() -> None:
    read = event("r", 90, 1, v=0, note="read")
    gone, there = open_move(Origin("t", 0, 5))
    taken = Event((2,), "r", at(90, 0), 9000, Origin("t", 0, 0), {"id": 2, "v": 1, "note": "other"}, digest=5)
    freed = Event((2,), "d", at(60), 6000, Origin("t", 0, 1), unanchored=True, digest=6)
    later = Event(
        (2,), "u", at(95), 9500, Origin("t", 0, 6), {"id": 2, "v": 8}, frozenset({"note"}), digest=3
    )
    onward = [
        Event((2,), "d", at(97), 9700, Origin("t", 0, 7), new_key=(3,), digest=7),
        Event(
            *((3,), "c", at(97), 9700, Origin("t", 0, 8), {"id": 3, "v": 9}, frozenset({"note"})),
            old_key=(2,),
            digest=8,
        ),
    ]
    events = [taken, read, freed, gone, there, later]
    for cut in range(len(events)):
        assert delivered([events[:cut], events[cut:]]) == {(2,): {"id": 2, "v": 8, "note": "read"}}
        batches = [events[:cut], events[cut:], onward]
        assert delivered(batches) == {(3,): {"id": 3, "v": 9, "note": "read"}}
    assert delivered([[*events, *onward]]) == {(3,): {"id": 3, "v": 9, "note": "read"}}


def test_an_older_change_of_the_new_key_does_not_keep_away_what_its_row_brings() -> None:
    """The value is found in the batch that has a late delete of an earlier row with that key."""
    first, second = moved_events()[:2]
    freed = Event((2,), "d", at(3), 3000, Origin("t", 0, 3), digest=9)
    value = event("c", 1, v=1, note="big")
    assert delivered([[first, second], [freed, value]]) == {(2,): {"id": 2, "v": 5, "note": "big"}}


def test_a_row_that_takes_the_place_of_a_moved_one_at_its_position_is_there() -> None:
    """A statement that changes several keys has one position in a binlog. Half of the move came before."""
    gone = Event((1,), "d", at(70), 7000, Origin("t", 0, 2), new_key=(2,), digest=1)
    other = Event((2,), "c", at(70), 7000, Origin("t", 1, 0), {"id": 2, "v": 7, "note": "a"}, old_key=(1,))
    taken = Event((1,), "c", at(70), 7000, Origin("t", 0, 3), {"id": 1, "v": 8, "note": "b"}, old_key=(3,))
    former = event("c", 60, 1, v=6, note="a")
    expected = {(1,): {"id": 1, "v": 8, "note": "b"}, (2,): {"id": 2, "v": 7, "note": "a"}}
    assert delivered([[former], [other], [gone, taken]]) == expected
    assert delivered([[former], [other], [gone], [taken]]) == expected


def test_the_delete_of_a_move_that_is_sent_again_is_a_duplicate() -> None:
    moved = apply(Mirror(), [event("c", 1, v=1, note="a"), *moved_events()[:2]], TABLE)
    again = moved_events()[0]._replace(origin=Origin("t", 0, 50))
    assert apply(moved.mirror, [again], TABLE).events == [DUPLICATE]


def test_a_row_of_a_snapshot_that_is_sent_again_is_not_newer_than_the_open_change_that_followed_it() -> None:
    """The row is stored, and comes again in the batch that has the change and a later one."""
    read, change = event("r", 90, 1, v=0, note="read"), event("u", 70, 2, v=7, note="set", unanchored=True)
    again = read._replace(origin=Origin("t", 0, 4))
    stored = merge([read], None, None, TABLE).row
    assert values(in_any_order([change, event("u", 95, 3, v=8), again], stored)[0]) == (8, "set")


def test_an_open_change_of_a_former_epoch_is_before_the_row_of_a_snapshot_of_the_next() -> None:
    read = event("r", 90, 1, v=0, note="read")
    newest = read._replace(seq=b"\0\1" + read.seq[2:])
    change = event("u", 70, 2, v=7, unanchored=True)
    merged, outcomes = in_any_order([newest, change])
    assert (values(merged), outcomes) == ((0, "read"), [APPLIED, SUPERSEDED])


def test_a_row_that_moved_while_it_was_read_does_not_come_back_if_it_is_sent_again() -> None:
    """Half of the move came before, and the row of the snapshot with the other half."""
    read = event("r", 90, 1, v=0, note="read")
    gone, there = open_move(Origin("t", 0, 3))
    mirror = apply(Mirror(), [there], TABLE).mirror
    applied = apply(mirror, [read, gone], TABLE)
    assert applied.events == [SUPERSEDED, APPLIED]
    again = apply(applied.mirror, [read], TABLE)
    assert again.events == [STALE]
    assert again.mirror.rows.keys() == {(2,)}


def test_a_row_that_was_read_after_a_move_says_nothing_about_what_moved() -> None:
    """The move of the open transaction is known from both halves, in two batches."""
    gone, there = open_move(Origin("t", 1, 0))
    read = event("r", 90, 3, v=9, note="of another row")
    assert delivered([[gone], [there, read]])[2,] == {"id": 2, "v": 7, "note": None}


def test_a_row_of_an_incremental_snapshot_says_nothing_about_what_moved_before_it() -> None:
    gone, there = open_move(Origin("t", 0, 3))
    reread = event("r", 90, 5, v=9, note="of another row", seq=at(90)[:12] + bytes(10) + at(90)[22:])
    assert delivered([[gone, there, reread]]) == {
        (1,): {"id": 1, "v": 9, "note": "of another row"},
        (2,): {"id": 2, "v": 7, "note": None},
    }


def delivered(batches: Sequence[Sequence[Event]]) -> dict[Any, dict[str, Any]]:
    mirror = Mirror()
    for batch in batches:
        mirror = apply(mirror, batch, TABLE).mirror
    return {key: dict(each.values) for key, each in mirror.rows.items()}


def test_a_late_change_of_the_former_key_reaches_the_row_under_its_new_one() -> None:
    mirror = apply(Mirror(), [event("c", 1, v=1, note="old"), *moved_events()], TABLE).mirror
    late = apply(mirror, [event("u", 2, v=2, note="newer")], TABLE)
    assert late.events == [STALE]
    assert late.mirror.rows[3,].values["note"] == "newer"


def test_what_a_move_brings_waits_for_the_create_at_the_new_key() -> None:
    mirror = Mirror({(2,): Row(at(1), values={"id": 2, "v": 1, "note": "mine"}), (1,): row(2, 2, "theirs")})
    half = apply(mirror, moved_events()[:1], TABLE)
    assert half.mirror.rows[2,].values["note"] == "mine"
    whole = apply(half.mirror, moved_events()[1:2], TABLE)
    assert whole.mirror.rows[2,].values["note"] == "theirs"


# -- conditions and conflicts -----------------------------------------------------------------------------


def test_a_row_that_a_filter_leaves_out_acts_as_a_delete() -> None:
    out = filtered(event("u", 5, v=5, note="e"), meets=False, keyed=True)
    assert out is not None
    merged, outcomes = in_any_order([out], row(4, 4, "d"))
    assert (merged.row, outcomes) == (None, [APPLIED])
    assert in_any_order([event("u", 4, v=4)], None, merged.tombstone)[1] == [STALE]
    assert filtered(event("u", 5, v=5), meets=None, keyed=False) is None
    assert filtered(event("d", 5), meets=None, keyed=True) == event("d", 5)
    assert filtered(event("d", 5), meets=None, keyed=False) == event("d", 5)


def test_conditions_are_judged_by_the_columns_that_an_event_carries() -> None:
    assert filter_decides(["v"], Evidence(gaps=["note"]), keyed=True) is Undecided.GAPS
    assert filter_decides(["v"], Evidence(gaps=["note"]), keyed=False) is None
    assert filter_decides(["v"], Evidence(lacks=["v"]), keyed=True) is Undecided.LACKS
    assert judged(["v"], Evidence(), meets=None) is Judged.VIOLATED
    assert judged(["v", "note"], Evidence(gaps=["v", "note"]), meets=None) is Judged.NOT_JUDGED
    assert judged(["v", "note"], Evidence(gaps=["note"]), meets=True) is Judged.UNDECIDED
    assert judged(["v"], Evidence(gaps=["note"]), meets=True) is Judged.MET


def test_a_violation_that_is_overtaken_holds_nothing() -> None:
    bad, good = event("u", 5, v=-1, violates=("positive",)), event("u", 6, v=1)
    failing = ["positive"]
    assert shown_violation([bad], None, None, TABLE, failing) == bad
    assert shown_violation([good, bad], None, None, TABLE, failing) is None
    assert shown_violation([bad], row(6, 1, "f"), None, TABLE, failing) is None
    assert shown_violation([bad], row(5, 1, "f"), None, TABLE, failing) is None, "it was sent again"
    assert shown_violation([bad], row(4, 1, "f"), Tombstone(at(4)), TABLE, failing) == bad
    assert shown_violation([bad], None, Tombstone(at(6)), TABLE, failing) is None
    sent_before = Tombstone(at(6), origin=Origin("t", 0, 4))
    assert shown_violation([bad], None, sent_before, TABLE, failing) is None
    here = Tombstone(at(5), origin=Origin("t", 0, 4))
    assert shown_violation([bad], None, here, TABLE, failing) == bad, "it came after the delete at its place"
    assert shown_violation([bad], None, here._replace(origin=Origin("t", 0, 5)), TABLE, failing) is None
    for floor, found in ((4, bad), (5, None), (6, None)):
        assert (
            shown_violation([bad], None, None, replace(TABLE, former=Truncated(at(floor))), failing) == found
        )
    assert shown_violation([bad], None, None, TABLE, ["other"]) is None
    for table in (TABLE, SOFT):
        assert (
            shown_violation([bad], None, None, replace(table, truncates=[Truncated(at(6))]), failing) is None
        )


def test_a_violation_holds_its_table_wherever_its_row_would_be_shown() -> None:
    bad, failing = event("u", 5, v=-1, note="b", violates=("positive",)), ["positive"]
    earlier = row(5, 1, "f")._replace(origin=Origin("t", 0, 4))
    assert shown_violation([bad], earlier, None, TABLE, failing) == bad, "it came later at one position"
    assert shown_violation([bad], earlier._replace(values=bad.row), None, TABLE, failing) is None

    opened, good = bad._replace(unanchored=True), event("u", 5, v=5, unanchored=True)
    read = row(8, 1, "f", op="r")._replace(origin=Origin("t", 0, 4))
    assert shown_violation([opened], read, None, TABLE, failing) == opened, "it was open during the snapshot"
    assert shown_violation([event("r", 8, 4, v=1), opened], None, None, TABLE, failing) == opened
    shown = event("r", 8, 4, v=-1, violates=("positive",))
    assert shown_violation([shown, good], None, None, TABLE, failing) is None
    assert shown_violation([shown], row(5, 5, "f"), None, TABLE, failing) is None, "it was read before"
    assert (
        shown_violation([shown], row(5, 5)._replace(origin=Origin("t", 0, 3)), None, TABLE, failing) == shown
    )


def test_a_truncate_says_nothing_of_violations_and_conflicts_in_another_partition() -> None:
    bad = event("u", 5, seq=at(5, major=0), v=-1, violates=("positive",))
    create, stored = event("c", 5, seq=at(5, major=0), v=1), row(4, 4)._replace(seq=at(4, major=0))
    for partition, other in ((0, False), (1, True)):
        former = Truncated(at(6, major=0), Kind.OFFSET, Origin("t", partition, 6))
        table = replace(TABLE, former=former)
        assert shown_violation([bad], None, None, table, ["positive"]) == (bad if other else None)
        assert conflict([create], stored, None, table) == (create if other else None)


@pytest.mark.parametrize(
    ("events", "stored", "tombstone", "conflicts"),
    [
        ([event("c", 5, v=5)], None, None, False),
        ([event("c", 5, v=5)], row(4, 4), None, True),
        ([event("c", 5, v=5)], row(5, 5), None, False),  # sent again
        ([event("c", 5, v=5)], row(6, 6), None, False),  # late
        ([event("d", 5), event("c", 6, v=6)], row(4, 4), None, False),
        ([event("c", 5, v=5), event("c", 6, v=6)], None, None, True),
        ([event("c", 6, v=6)], row(4, 4, op="d"), None, False),
        ([event("c", 6, v=6)], row(4, 4), Tombstone(at(5)), False),
        ([event("c", 6, v=6, unanchored=True)], row(4, 4), None, False),
        ([event("c", 5, v=5), event("u", 6, v=6, unanchored=True)], row(4, 4), None, False),
        ([event("c", 5, 8, v=5), event("d", 5, 9)], row(4, 4), None, False),  # the last at its place
        ([event("d", 5, 8), event("c", 5, 9, v=5)], row(4, 4), None, True),
    ],
)
def test_a_create_of_a_live_row_is_a_conflict(
    events: list[Event], stored: Row | None, tombstone: Tombstone | None, conflicts: bool
) -> None:
    assert (conflict(events, stored, tombstone, TABLE) is not None) == conflicts


def test_a_line_of_a_file_that_is_read_again_with_other_bytes_is_a_correction() -> None:
    table = Table(TABLE.columns, corrects=True)
    stored = row(5, 5, "half")
    merged = merge([event("u", 5, v=5, note="whole")], stored, None, table)
    assert (values(merged), merged.outcomes) == ((5, "whole"), [APPLIED])
    assert merge([event("u", 5, v=5, note="half")], stored, None, table).outcomes == [DUPLICATE]
