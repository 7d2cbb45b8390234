"""Where an event stands next to what the mirror has: odd places, and what becomes of the row."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from lakemirror.driver.rules.anchors import beside, lifted, outruns
from lakemirror.driver.rules.columns import wins
from lakemirror.driver.rules.conflicts import conflict
from lakemirror.driver.rules.merge import merge
from lakemirror.driver.rules.orders import Kind, Truncated
from lakemirror.driver.rules.positions import MISSING, NO_ORIGIN, Origin, moved, own
from lakemirror.driver.rules.states import at_create
from lakemirror.driver.rules.table import Table
from lakemirror.driver.rules.values import Event, Outcome, Row, Said, Tombstone
from tests.driver.rules.test_merge import APPLIED, DUPLICATE, SOFT, STALE, SUPERSEDED, TABLE, at, event, row

OTHER_LOG = replace(TABLE, truncates=[Truncated(at(5), Kind.POSITION, Origin("t", 0, 5), frozenset({"t"}))])
CORRECTING = replace(TABLE, corrects=True)
SOFT_FILES = replace(CORRECTING, soft=True)


def in_epoch(number: int, seq: bytes) -> bytes:
    return number.to_bytes(2, "big") + seq[2:]


def elsewhere(event: Event, topic: str = "z") -> Event:
    return event._replace(origin=event.origin._replace(topic=topic))


def read(lsn: int, offset: int, epoch: int = 0, **given: Any) -> Row:
    found = row(lsn, 0, "read", op="r", **given)
    return found._replace(seq=in_epoch(epoch, found.seq), origin=Origin("t", 0, offset))


def opened(op: str, lsn: int, offset: int, epoch: int = 0, **given: Any) -> Event:
    """A change of a transaction that does not know the last commit before it."""
    return event(op, lsn, offset, unanchored=True, seq=in_epoch(epoch, at(lsn)), **given)


class Case(NamedTuple):
    name: str
    event: Event
    stored: Row | None
    tombstone: Tombstone | None
    outcome: Outcome
    v: int | None
    table: Table = TABLE


V: dict[str, Any] = {"v": 7, "note": "n"}
CASES = [
    # a transaction that was open during the snapshot
    Case(
        "open, above a row of a snapshot, in another partition",
        opened("u", 95, 2, **V)._replace(origin=Origin("t", 1, 2)),
        read(90, 5),
        None,
        APPLIED,
        7,
    ),
    Case(
        "open, below a row of a snapshot, and before it in its partition",
        opened("u", 70, 2, **V),
        read(90, 5),
        None,
        STALE,
        0,
    ),
    Case(
        "open, below a row of a snapshot, and after it in its partition",
        opened("u", 70, 6, **V),
        read(90, 5),
        None,
        APPLIED,
        7,
    ),
    Case(
        "open, in an epoch before that of the row of a snapshot",
        opened("u", 70, 6, **V),
        read(90, 5, epoch=1),
        None,
        STALE,
        0,
    ),
    Case(
        "open, in an epoch before that of a change",
        opened("u", 70, 6, **V),
        row(50, 0)._replace(seq=in_epoch(1, at(50))),
        None,
        STALE,
        0,
    ),
    Case(
        "open, in an epoch after that of a delete",
        opened("c", 20, 6, 1, **V),
        None,
        Tombstone(at(70), 7000, Origin("t", 0, 5)),
        APPLIED,
        7,
    ),
    Case(
        "open, in an epoch before that of a delete",
        opened("c", 90, 6, **V),
        None,
        Tombstone(in_epoch(1, at(20)), 7000, Origin("t", 0, 5)),
        STALE,
        None,
    ),
    Case(
        "open, below a delete that was open",
        opened("u", 60, 6, **V),
        None,
        Tombstone(at(70, major=90), 7000, Origin("t", 0, 5)),
        STALE,
        None,
    ),
    Case(
        "open, above a delete that was open",
        opened("c", 80, 6, **V),
        None,
        Tombstone(at(70, major=90), 7000, Origin("t", 0, 5)),
        APPLIED,
        7,
    ),
    Case(
        "open, after a row of the snapshot that a filter left out",
        opened("u", 70, 6, **V),
        None,
        Tombstone(at(90, 0), 9000, Origin("t", 0, 5)),
        APPLIED,
        7,
    ),
    Case(
        "open, before a row of a snapshot that a filter left out",
        opened("u", 70, 4, **V),
        None,
        Tombstone(at(90, 0), 9000, Origin("t", 0, 5)),
        STALE,
        None,
    ),
    # rows of snapshots
    Case(
        "read later than another snapshot that was sent again",
        event("r", 90, 3, **V),
        read(50, 9),
        None,
        APPLIED,
        7,
    ),
    Case(
        "read before a change that was open",
        event("r", 90, 3, **V),
        row(70, 0)._replace(origin=Origin("t", 0, 9)),
        None,
        STALE,
        0,
    ),
    Case(
        "read after a change of a former transaction",
        event("r", 90, 10, **V),
        row(70, 0)._replace(origin=Origin("t", 0, 9)),
        None,
        APPLIED,
        7,
    ),
    # changes at one position
    Case(
        "a create after a delete at its position",
        event("c", 5, 6, **V),
        None,
        Tombstone(at(5), 5000, Origin("t", 0, 5)),
        APPLIED,
        7,
    ),
    Case(
        "a row that comes back as it was, at the position of its delete",
        event("u", 5, 6, v=0, note="n"),
        row(5, 0, "n", op="d", deleted_at=1),
        None,
        APPLIED,
        0,
        SOFT,
    ),
    Case(
        "a record of the same origin and position with other bytes",
        event("u", 5, **V),
        row(5, 0),
        None,
        DUPLICATE,
        0,
    ),
    # lines of files that were read before they were complete
    Case("an older line", event("u", 4, **V), row(5, 0), None, STALE, 0, CORRECTING),
    Case(
        "an older row without an origin",
        event("u", 4, **V)._replace(origin=NO_ORIGIN),
        row(5, 0)._replace(origin=NO_ORIGIN),
        None,
        STALE,
        0,
        CORRECTING,
    ),
    Case(
        "a line that says now that its row is deleted",
        event("d", 5),
        row(5, 0, "n"),
        None,
        APPLIED,
        0,
        SOFT_FILES,
    ),
    Case(
        "a line that says again that its row is deleted",
        event("d", 5),
        row(5, 0, "n", op="d"),
        None,
        DUPLICATE,
        0,
        SOFT_FILES,
    ),
    Case(
        "above a change that was sent after it",
        event("u", 8, 3, **V),
        row(5, 0)._replace(origin=Origin("t", 0, 9)),
        None,
        APPLIED,
        7,
    ),
    Case(
        "open, above a delete that was open, from before it",
        opened("c", 80, 4, **V),
        None,
        Tombstone(at(70, major=90), 7000, Origin("t", 0, 5)),
        APPLIED,
        7,
    ),
    # deletes and tombstones
    Case(
        "a delete below a change of the key",
        event("d", 4),
        None,
        Tombstone(at(5), by_delete=False),
        DUPLICATE,
        None,
    ),
    Case(
        "the delete of a change of the key that is known",
        event("d", 5),
        None,
        Tombstone(at(5), by_delete=False),
        APPLIED,
        None,
    ),
    Case(
        "read before the delete of a row that a crash left",
        event("r", 90, 8, **V),
        row(60, 0)._replace(origin=Origin("t", 0, 5)),
        Tombstone(at(70), 7000, Origin("t", 0, 9)),
        STALE,
        0,
    ),
    # truncates of other logs
    Case("below a truncate of another log", elsewhere(event("c", 4, **V)), None, None, APPLIED, 7, OTHER_LOG),
]


@pytest.mark.parametrize("case", CASES, ids=[each.name for each in CASES])
def test_an_event_is_told_from_what_the_mirror_has(case: Case) -> None:
    merged = merge([case.event], case.stored, case.tombstone, case.table)
    assert (merged.outcomes, merged.row and merged.row.values["v"]) == ([case.outcome], case.v)
    if case.outcome is not APPLIED and case.stored is not None:
        assert merged.row is not None
        assert merged.row.values == case.stored.values


def test_a_delete_below_a_change_of_the_key_writes_no_tombstone_and_its_own_delete_does() -> None:
    known = Tombstone(at(5), by_delete=False)
    assert merge([event("d", 4)], None, known, TABLE).tombstone is None
    assert merge([event("d", 5)], None, known, TABLE).tombstone == Tombstone(at(5), 5000, Origin("t", 0, 5))
    former = Tombstone(at(5), 5000, Origin("t", 0, 5))
    merged = merge([event("d", 6)], None, former, TABLE)
    assert merged.tombstone == Tombstone(at(6), 6000, Origin("t", 0, 6))
    assert merged.outcomes == [APPLIED]


def test_of_two_deletes_at_one_position_the_later_arrival_stands() -> None:
    former, later = Tombstone(at(5), 5000, Origin("t", 0, 5)), event("d", 5, 7)
    merged = merge([later], None, former, TABLE)
    assert merged.tombstone == Tombstone(at(5), 5000, Origin("t", 0, 7))
    assert merge([event("c", 5, 6, **V)], None, merged.tombstone, TABLE).row is None
    assert merge([event("d", 5, 4)], None, former, TABLE).tombstone is None


def test_a_change_above_a_delete_is_there_although_the_delete_was_sent_after_it() -> None:
    again = Tombstone(at(5), 5000, Origin("t", 0, 9))
    assert merge([event("c", 8, 3, **V)], None, again, TABLE).outcomes == [APPLIED]


def test_a_row_above_an_open_delete_keeps_its_own_position() -> None:
    merged = merge([opened("c", 80, 6, **V)], None, Tombstone(at(50), 5000, Origin("t", 0, 5)), TABLE)
    assert merged.row is not None
    assert merged.row.seq == at(80)


def test_a_value_left_out_after_a_delete_of_its_batch_is_none_of_a_former_life() -> None:
    merged = merge([event("c", 1, v=1, note="old"), event("d", 5), event("u", 6, v=6)], None, None, TABLE)
    assert merged.row is not None
    assert merged.row.values["note"] is None


def test_a_value_waits_where_a_truncate_is_of_another_log() -> None:
    merged = merge([elsewhere(event("u", 4, v=4))], None, None, OTHER_LOG)
    assert merged.row is not None
    assert merged.row.seqs == {"note": MISSING}


def test_what_the_row_had_under_its_former_key_comes_with_a_create_at_the_position_of_a_delete() -> None:
    theirs = {"note": [Said("theirs", moved(at(5), own(at(2))))]}
    taken = event("c", 5, 6, v=7, old_key=(3,))
    merged = merge([taken], None, Tombstone(at(5), 5000, Origin("t", 0, 5)), TABLE, theirs)
    assert merged.row is not None
    assert merged.row.values["note"] == "theirs"


@pytest.mark.parametrize(
    ("memory", "note"),
    [
        (MISSING, "read"),
        (own(at(50, 0)), "read"),  # an earlier snapshot
        (own(in_epoch(0, at(60))), "kept"),  # a change of an open transaction, too
    ],
    ids=["waits", "is of an earlier snapshot", "is of the open transaction"],
)
def test_a_row_of_the_snapshot_fills_a_value_that(memory: bytes, note: str) -> None:
    stored = row(80, 8, "kept", seqs={"note": memory})._replace(origin=Origin("t", 0, 4))
    merged = merge([event("r", 90, 1, v=0, note="read")], stored, None, TABLE)
    assert merged.row is not None
    assert (merged.row.values["v"], merged.row.values["note"]) == (8, note)


def test_a_row_of_the_snapshot_fills_a_value_from_before_the_restart() -> None:
    stored = row(80, 8, "old", seqs={"note": own(at(60))})
    stored = stored._replace(seq=in_epoch(1, stored.seq), origin=Origin("t", 0, 4))
    reading = event("r", 90, 1, v=0, note="read", seq=in_epoch(1, at(90, 0)))
    merged = merge([reading], stored, None, TABLE)
    assert merged.row is not None
    assert (merged.row.values["v"], merged.row.values["note"]) == (8, "read")


def test_a_value_of_a_former_key_takes_the_place_of_the_create_of_its_move_alone() -> None:
    """The create of an open transaction may stand after the row of the snapshot, with its own LSN."""
    before = own(at(2))
    of_move, created = moved(at(70), before), own(at(70, major=90))
    assert at_create(of_move, created) == moved(at(70, major=90), before)
    assert at_create(of_move, in_epoch(1, created)) == of_move
    assert at_create(of_move, own(at(71, major=90))) == of_move
    of_binlog = moved(at(100, major=3), before)  # another file of the binlog, and the same position in it
    assert at_create(of_binlog, own(at(100, major=7))) == of_binlog


def test_a_truncate_with_soft_deletes_leaves_rows_alone_that_came_after_it_or_were_gone() -> None:
    wiped = replace(SOFT, truncates=[Truncated(at(5), at=5000)])
    gone = row(3, 3, "c", op="d", deleted_at=3000)
    assert merge([], gone, None, wiped).row == gone
    later = row(7, 7, "old", op="d", deleted_at=7000, seqs={"note": own(at(2))})
    assert merge([], later, None, wiped).row == later
    alive = row(7, 7, "old", seqs={"note": own(at(2))})
    merged = merge([], alive, None, wiped).row
    assert merged is not None
    assert (merged.is_live, merged.values["note"]) == (True, None)


def test_of_changes_at_one_position_the_last_arrival_says_whether_a_row_was_there() -> None:
    create = event("c", 6, v=6)
    gone, there = event("d", 5, 2), event("u", 5, 1, v=5)
    assert conflict([gone, there, create], None, None, TABLE) is None
    assert conflict([gone._replace(origin=Origin("t", 0, 0)), there, create], None, None, TABLE) == create
    unknown = event("u", 5, v=5)._replace(origin=NO_ORIGIN)
    assert conflict([gone, unknown, create], None, None, TABLE) is None


def test_a_create_after_a_truncate_is_no_conflict() -> None:
    wiped = replace(TABLE, truncates=[Truncated(at(5), at=5000)])
    assert conflict([event("c", 6, v=6)], row(3, 3), None, wiped) is None
    assert conflict([event("c", 6, v=6)], row(3, 3), None, replace(TABLE, former=Truncated(at(5)))) is None


def test_a_change_below_a_truncate_that_was_sent_twice_is_superseded_twice() -> None:
    wiped = replace(SOFT, truncates=[Truncated(at(5), at=5000)])
    sent = event("c", 4, v=4)
    assert (
        merge([sent, sent._replace(origin=Origin("t", 0, 9))], None, None, wiped).outcomes == [SUPERSEDED] * 2
    )


def test_without_a_digest_two_changes_at_one_position_are_two() -> None:
    one = event("u", 5, v=5, digest=None)
    assert merge([one, one._replace(origin=Origin("t", 0, 9))], None, None, TABLE).outcomes == [
        SUPERSEDED,
        APPLIED,
    ]


@pytest.mark.parametrize(
    ("value", "base", "lifted_to"),
    [
        (own(at(70)), at(90, 0), own(at(70, major=90))),
        (own(at(70)), at(60, major=90), own(at(70, major=90))),
        (own(at(70)), at(80, major=90), own(at(70))),
        (own(at(70)), at(65), own(at(70))),  # it is above already
        (MISSING, at(90, 0), MISSING),
        (own(at(50, 0)), at(90, 0), own(at(50, 0))),  # a row of an earlier snapshot
    ],
)
def test_a_value_of_an_open_transaction_takes_its_place_behind_what_it_follows(
    value: bytes, base: bytes, lifted_to: bytes
) -> None:
    assert lifted(value, base) == lifted_to


def test_a_value_of_an_open_transaction_stays_where_it_was_in_another_epoch_or_partition() -> None:
    said = Said(7, own(at(70)), opened=Origin("t", 0, 6))
    here, before, elsewhere = Origin("t", 0, 5), Origin("t", 0, 7), Origin("t", 1, 5)
    assert beside(said, at(90, 0), here) == own(at(70, major=90))
    assert beside(said, at(90, 0), before) == said.seq
    assert beside(said, at(90, 0), elsewhere) == said.seq
    assert beside(said, in_epoch(1, at(60)), here) == said.seq
    assert beside(said, MISSING, here) == said.seq
    assert beside(said._replace(opened=None), at(90, 0), here) == said.seq


def test_a_change_of_an_open_transaction_outruns_lower_ones_of_its_epoch() -> None:
    assert outruns(at(70), at(60, major=90))
    assert not outruns(at(70), at(70, major=90))
    assert not outruns(in_epoch(1, at(70)), at(60))


def test_a_change_of_an_open_transaction_follows_the_last_of_the_rows_before_it() -> None:
    reads = [event("r", 50, 1, v=1, note="one"), event("r", 90, 3, v=2, note="two")]
    merged = merge([*reads, opened("u", 70, 5, v=7)], None, None, TABLE)
    assert merged.row is not None
    assert (merged.row.values["v"], merged.row.values["note"]) == (7, "two")


def test_a_value_that_a_later_move_brings_is_not_for_the_row_as_it_is() -> None:
    stored = row(5, 5, "mine")
    assert wins(moved(at(4), own(at(2))), with_note_of(stored, own(at(3))), "note", stored.seq)
    assert not wins(moved(at(6), own(at(2))), with_note_of(stored, own(at(3))), "note", stored.seq)


def with_note_of(row: Row, seq: bytes) -> Row:
    return row._replace(seqs={"note": seq})
