"""The versions of a row: odd histories of one key, and generated ones in any delivery."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import permutations
from typing import Any

import pytest

from lakemirror.driver.rules.append import Listed, append
from lakemirror.driver.rules.orders import Truncated
from lakemirror.driver.rules.positions import Origin, moved, own
from lakemirror.driver.rules.table import Table
from lakemirror.driver.rules.values import Event, Outcome, Said
from lakemirror.driver.rules.versions import Stored, Tracking, history, time_of
from tests.driver.rules.test_histories import ANYHOW, COMPLETE, NAMES, TRACKED, over_partitions
from tests.driver.rules.test_histories import history as play_history
from tests.support.records import Record
from tests.support.rules import ReplayedVersions, read
from tests.support.versions import History as Model
from tests.support.versions import Version, of_tracked

pytestmark = pytest.mark.guarantee(
    "The versions of a row are a function of the facts about it, whatever the order in which they arrive"
)

APPLIED, DUPLICATE, STALE = Outcome.APPLIED, Outcome.DUPLICATE, Outcome.STALE
SUPERSEDED = Outcome.SUPERSEDED
TABLE = Table(("id", "v", "note"), ("note",))
PLAIN = Tracking(TABLE)
Span = tuple[int, int | None, Any]


def event(
    op: str, lsn: int, v: Any = None, time: int | None = None, offset: int | None = None, **more: Any
) -> Event:
    seq = bytes(2) + lsn.to_bytes(10, "big") * 2 + (1).to_bytes(4, "big")
    row = {} if op == "d" else {"id": 1, "v": v, **more}
    gaps = frozenset() if op == "d" or "note" in more else frozenset({"note"})
    origin = Origin("t", 0, lsn if offset is None else offset)
    return Event((1,), op, seq, lsn if time is None else time, origin, row, gaps, digest=(op, str(row)))


def spans(
    batches: Sequence[Sequence[Event]], tracking: Tracking = PLAIN, show: str = "v"
) -> tuple[list[Span], list[list[Outcome]]]:
    stored, outcomes = Stored(), []
    for batch in batches:
        told = history(batch, stored, tracking)
        stored = Stored(told.versions, told.merged, told.ends)
        outcomes.append(told.outcomes)
    found = [(each.valid_from, each.valid_to, each.row.values[show]) for each in stored.versions]
    return found, outcomes


def in_any_order(events: Sequence[Event], tracking: Tracking = PLAIN, show: str = "v") -> list[Span]:
    """The versions after the events, one by one in every order and in one batch."""
    expected, _ = spans([events], tracking, show)
    for order in permutations(events):
        assert spans([[each] for each in order], tracking, show)[0] == expected
    return expected


def test_a_late_change_makes_a_version_between_others() -> None:
    found = in_any_order([event("c", 10, 1), event("u", 30, 3), event("u", 20, 2)])
    assert found == [(10, 20, 1), (20, 30, 2), (30, None, 3)]


def test_a_late_delete_leaves_a_time_without_a_row() -> None:
    found = in_any_order([event("c", 10, 1), event("u", 30, 3), event("d", 20)])
    assert found == [(10, 20, 1), (30, None, 3)]


def test_a_change_before_a_known_delete_is_a_version_that_has_ended() -> None:
    assert in_any_order([event("d", 20), event("u", 10, 1)]) == [(10, 20, 1)]


def test_a_value_that_was_not_sent_is_that_of_the_version_before() -> None:
    changes = [event("c", 10, 1, note="a"), event("u", 20, 2), event("u", 30, 3, note="c")]
    assert in_any_order(changes, show="note") == [(10, 20, "a"), (20, 30, "a"), (30, None, "c")]
    again = [event("c", 10, 1, note="a"), event("d", 20), event("u", 30, 3)]
    assert in_any_order(again, show="note") == [(10, 20, "a"), (30, None, None)]


def test_times_that_go_back_move_no_version_before_another() -> None:
    changes = [event("c", 10, 1, time=100), event("u", 20, 2, time=50), event("d", 30, time=60)]
    assert in_any_order(changes) == [(100, 100, 1), (100, 100, 2)]


def test_only_tracked_columns_begin_versions() -> None:
    tracking = Tracking(TABLE, compared=["note"])
    changes = [event("c", 10, 1, note="a"), event("u", 20, 2, note="a"), event("u", 30, 3, note="b")]
    assert in_any_order(changes, tracking) == [(10, 30, 2), (30, None, 3)]
    split = [*changes[:2], event("u", 15, 9, note="z")]
    assert in_any_order(split, tracking) == [(10, 15, 1), (15, 20, 9), (20, None, 2)]


def test_a_truncate_ends_all_versions_before_it() -> None:
    table = Table(TABLE.columns, TABLE.tracked, truncates=[Truncated(event("u", 25).seq, at=25)])
    found = in_any_order(
        [event("c", 10, 1, note="a"), event("u", 20, 2), event("u", 30, 3)], Tracking(table), "note"
    )
    assert found == [(10, 20, "a"), (20, 25, "a"), (30, None, None)]


def test_a_truncate_ends_what_is_at_its_own_position() -> None:
    table = Table(TABLE.columns, TABLE.tracked, truncates=[Truncated(event("u", 25).seq, at=26)])
    changes = [event("c", 10, 1, note="a"), event("u", 25, 2), event("u", 30, 3)]
    assert in_any_order(changes, Tracking(table), "note") == [(10, 25, "a"), (25, 26, "a"), (30, None, None)]
    changes = [event("u", 25, 2, note="b"), event("u", 30, 3)]
    assert in_any_order(changes, Tracking(table), "note") == [(25, 26, "b"), (30, None, None)]


def test_a_row_that_was_there_before_is_valid_since_the_beginning() -> None:
    since = Tracking(TABLE, initial=1)
    assert in_any_order([event("u", 10, 1), event("u", 20, 2)], since) == [(1, 20, 1), (20, None, 2)]
    assert in_any_order([event("c", 10, 1)], since) == [(10, None, 1)]


def test_what_is_stored_makes_an_event_a_duplicate() -> None:
    changes = [event("c", 10, 1), event("d", 20)]
    again = [each._replace(origin=Origin("t", 0, 90 + i)) for i, each in enumerate(changes)]
    assert spans([changes, again])[1] == [[APPLIED, APPLIED], [DUPLICATE, DUPLICATE]]


def test_of_two_changes_at_one_place_the_later_arrival_counts() -> None:
    first, second = event("u", 10, 1, offset=1), event("u", 10, 2, offset=2)
    assert spans([[first], [second]]) == ([(10, None, 2)], [[APPLIED], [APPLIED]])
    assert spans([[second], [first]]) == ([(10, None, 2)], [[APPLIED], [STALE]])
    assert spans([[second, first]])[0] == [(10, None, 2)]


def test_a_value_that_a_change_left_out_is_that_of_the_change_before_it_at_its_place() -> None:
    """All changes of one SCN of Oracle have one position, and the later one need not carry a large value."""
    set_, left_out = event("u", 50, 1, offset=51, note="set"), event("u", 50, 2, offset=52)
    changes = [event("c", 10, 0, note="old"), set_, left_out, event("u", 60, 3)]
    assert in_any_order(changes, show="note") == [(10, 50, "old"), (50, 60, "set"), (60, None, "set")]
    assert in_any_order(changes) == [(10, 50, 0), (50, 60, 2), (60, None, 3)]
    again = [each._replace(origin=Origin("t", 0, 90 + i)) for i, each in enumerate((set_, left_out))]
    assert spans([changes, again])[1][1] == [SUPERSEDED, DUPLICATE]


def test_a_create_that_left_a_value_out_begins_a_new_life_also_if_it_changes_at_its_place() -> None:
    changes = [event("c", 10, 0, note="old"), event("c", 20, 1, offset=21), event("u", 20, 2, offset=22)]
    assert in_any_order(changes, show="note") == [(10, 20, "old"), (20, None, None)]


def test_a_row_that_is_created_and_deleted_at_one_place_is_gone_after_both_are_sent_again() -> None:
    created, gone = event("c", 10, 1, offset=1), event("d", 10, offset=2)
    sent = [created, gone, event("c", 10, 1, offset=3), event("d", 10, offset=4)]
    assert spans([[each] for each in sent]) == ([], [[APPLIED]] * 4)
    assert spans([sent[:2], sent[2:3], sent[3:]])[0] == []
    assert spans([sent[:2], sent[2:]]) == ([], [[SUPERSEDED, APPLIED], [SUPERSEDED, DUPLICATE]])
    assert spans([sent[:1], sent[1:3], sent[3:]])[0] == []


def test_a_batch_that_failed_after_its_tombstones_makes_no_duplicates_of_itself() -> None:
    gone = event("d", 20)
    first = history([gone], Stored(), Tracking(TABLE), batch=7)
    again = history([gone], Stored(ends=first.ends), Tracking(TABLE), batch=7)
    assert again.outcomes == [APPLIED]
    later = history([gone], Stored(ends=first.ends), Tracking(TABLE), batch=8)
    assert later.outcomes == [DUPLICATE]
    resent = history([event("d", 20, offset=90)], Stored(ends=first.ends), Tracking(TABLE), batch=7)
    assert (resent.outcomes, resent.ends) == ([DUPLICATE], first.ends)


def test_a_version_remembers_its_end_and_its_beginning_after_what_made_them_is_forgotten() -> None:
    """Deletes and merged changes are collected after a time."""
    ended = history([event("c", 10, 1), event("d", 20)], Stored(), PLAIN)
    late = history([event("u", 15, 2)], Stored(ended.versions), PLAIN)
    assert [(each.valid_from, each.valid_to) for each in late.versions] == [(10, 15), (15, 20)]
    assert [each.is_current for each in late.versions] == [False, False]
    tracking = Tracking(TABLE, compared=["note"])
    changes = [event("c", 10, 1, note="a"), event("u", 20, 2, note="a")]
    begun = history(changes, Stored(), tracking)
    split = history([event("u", 15, 9, note="z")], Stored(begun.versions), tracking)
    shown = [(each.valid_from, each.valid_to, each.row.values["note"]) for each in split.versions]
    assert shown == [(10, 15, "a"), (15, 20, "z"), (20, None, "a")]
    assert [each.row.seq for each in begun.merged] == [changes[0].seq]
    whole = history([event("u", 15, 9, note="z")], Stored(begun.versions, begun.merged), tracking)
    assert whole.merged == [], "each change begins a version now"


def test_what_is_remembered_of_a_key_is_remembered_once() -> None:
    tracking = Tracking(TABLE, compared=["note"])
    changes = [event("c", 10, 1, note="a"), event("u", 20, 2, note="a"), event("d", 30)]
    told = history(changes, Stored(), tracking)
    again = history([event("c", 40, 1, note="a")], Stored(told.versions, told.merged, told.ends), tracking)
    assert (again.merged, again.ends) == (told.merged, told.ends)
    assert (len(told.merged), len(told.ends)) == (1, 1)
    resent = changes[0]._replace(origin=Origin("t", 0, 90))
    assert spans([changes, [resent]], tracking)[1][1] == [DUPLICATE], "a change that began no version"


def test_a_row_after_a_truncate_was_not_there_before() -> None:
    table = Table(TABLE.columns, TABLE.tracked, truncates=[Truncated(event("u", 25).seq, at=25)])
    assert in_any_order([event("u", 30, 3)], Tracking(table, initial=1)) == [(30, None, 3)]


def test_a_change_that_left_a_value_out_is_a_duplicate_when_it_is_sent_again() -> None:
    changes = [event("c", 10, 1, note="a"), event("u", 20, 2)]
    again = [changes[1]._replace(origin=Origin("t", 0, 90))]
    assert spans([changes, again], show="note") == (
        [(10, 20, "a"), (20, None, "a")],
        [[APPLIED, APPLIED], [DUPLICATE]],
    )
    carried = [event("u", 20, 2, note="a")._replace(origin=Origin("t", 0, 90))]
    assert spans([changes, carried])[1][1] == [APPLIED], "it says more than the one that is stored"
    other = [event("c", 20, 2)._replace(origin=Origin("t", 0, 90))]
    assert spans([changes, other])[1][1] == [APPLIED], "another operation"


def test_a_version_remembers_only_what_is_older_than_itself() -> None:
    told = history([event("c", 10, 1, note="a"), event("u", 20, 2)], Stored(), PLAIN)
    assert [dict(each.row.seqs) for each in told.versions] == [{}, {"note": own(event("c", 10).seq)}]


def test_a_line_that_is_read_again_with_other_bytes_is_a_correction() -> None:
    half, whole = event("u", 10, 1, offset=5), event("u", 10, 2, offset=5)
    corrects = Tracking(Table(TABLE.columns, TABLE.tracked, corrects=True))
    assert spans([[half], [whole]], corrects) == ([(10, None, 2)], [[APPLIED], [APPLIED]])
    assert spans([[half], [whole]], PLAIN) == ([(10, None, 1)], [[APPLIED], [STALE]])


def test_no_version_after_a_truncate_begins_before_it() -> None:
    first, second = Truncated(event("u", 25).seq, at=50), Truncated(event("u", 26).seq)
    table = Table(TABLE.columns, TABLE.tracked, truncates=[first, second])
    changes = [event("c", 10, 1), event("u", 30, 3, time=40)]
    assert in_any_order(changes, Tracking(table)) == [(10, 50, 1), (50, None, 3)]
    timeless = Table(TABLE.columns, TABLE.tracked, truncates=[second])
    assert in_any_order(changes, Tracking(timeless)) == [(10, 10, 1), (40, None, 3)]


def test_a_row_that_was_there_before_and_has_no_time_is_valid_since_the_beginning() -> None:
    timeless = event("u", 10, 1)._replace(at=None)
    assert in_any_order([timeless, event("u", 20, 2)]) == [(0, 20, 1), (20, None, 2)]
    assert in_any_order([timeless, event("u", 20, 2)], Tracking(TABLE, initial=5)) == [
        (0, 20, 1),
        (20, None, 2),
    ]
    compared = Tracking(TABLE, compared=["v"], initial=5)
    assert in_any_order([event("u", 10, 1), event("u", 20, 2)], compared) == [(5, 20, 1), (20, None, 2)]
    assert in_any_order([event("c", 10, 1), event("u", 20, 2)], compared) == [(10, 20, 1), (20, None, 2)]


def test_a_version_says_whether_it_is_current_or_the_last_of_a_row_that_is_gone() -> None:
    def flags(*events: Event) -> list[tuple[bool, bool]]:
        return [(each.is_current, each.is_deleted) for each in history(events, Stored(), PLAIN).versions]

    assert flags(event("c", 10, 1), event("u", 20, 2)) == [(False, False), (True, False)]
    assert flags(event("c", 10, 1), event("d", 20)) == [(False, True)]
    assert flags(event("c", 10, 1), event("d", 20), event("c", 30, 3)) == [(False, False), (True, False)]
    assert flags(event("d", 20)) == []


def opened(op: str, lsn: int, offset: int, v: Any = None, **more: Any) -> Event:
    """A change of a transaction that was open during the snapshot."""
    return event(op, lsn, v, offset=offset, **more)._replace(unanchored=True)


def was_read(lsn: int, offset: int, v: Any = None, **more: Any) -> Event:
    seq = bytes(2) + lsn.to_bytes(10, "big") + bytes(14)
    return event("r", lsn, v, offset=offset, **more)._replace(seq=seq)


def test_the_end_of_a_version_takes_its_place_after_the_row_of_the_snapshot_with_the_delete() -> None:
    """Both are of a transaction that was open during the snapshot, and its row comes last."""
    sent = [was_read(90, 1, 0, time=1), opened("u", 70, 2, 7, time=2), opened("d", 75, 3, time=3)]
    assert in_any_order(sent) == [(1, 2, 0), (2, 3, 7)]


def test_an_open_change_follows_the_newest_row_that_was_read_before_it() -> None:
    """The snapshot was begun again."""
    changes = [was_read(80, 1, 0, note="a"), was_read(90, 2, 1, note="a"), opened("u", 70, 3, 2)]
    assert in_any_order(changes) == [(80, 90, 0), (90, 90, 1), (90, None, 2)]
    anchored = changes[2]._replace(unanchored=False)
    assert in_any_order([changes[1], anchored]) == [(70, 90, 2), (90, None, 1)]


def test_a_value_that_was_set_at_an_open_change_moves_along_with_it() -> None:
    """The create says that there is nothing before it, although a row was read."""
    created = opened("c", 70, 2, 7)
    assert in_any_order([was_read(90, 1, 0, note="read"), created], show="note") == [
        (90, 90, "read"),
        (90, None, None),
    ]


def test_open_changes_that_began_no_version_come_before_the_row_that_they_follow() -> None:
    tracking = Tracking(TABLE, compared=["note"])
    changes = [opened("u", 70, 2, 7), opened("u", 74, 3, 8), was_read(90, 1, 0, note="read")]
    assert in_any_order(changes, tracking) == [(90, None, 8)]
    stored = history(changes, Stored(), tracking).versions
    later = history([event("u", 95, 9, note="b")], Stored(stored), tracking).versions
    shown = [(each.valid_from, each.valid_to, each.row.values["v"], each.row.seq) for each in later]
    assert shown == [(90, 95, 8, stored[0].row.seq), (95, None, 9, event("u", 95).seq)]


def test_an_event_says_what_is_stored_only_if_it_carries_the_same_columns() -> None:
    two = Tracking(Table(("id", "v", "note"), ("v", "note")))
    first = event("u", 10, 1, note="a")
    assert spans([[first], [first._replace(origin=Origin("t", 0, 90))]], two)[1][1] == [DUPLICATE]
    less = event("u", 10, 1)._replace(origin=Origin("t", 0, 90))
    assert spans([[first], [less]], two)[1][1] == [APPLIED]


def test_every_compared_column_begins_versions() -> None:
    tracking = Tracking(TABLE, compared=["v", "note"])
    changes = [event("c", 10, 1, note="a"), event("u", 20, 2, note="a"), event("u", 30, 2, note="b")]
    assert in_any_order(changes, tracking) == [(10, 20, 1), (20, 30, 2), (30, None, 2)]


def test_a_row_whose_create_is_forgotten_was_not_there_before() -> None:
    tracking = Tracking(TABLE, compared=["note"], initial=1)
    begun = history([event("c", 10, 1, note="a"), event("u", 20, 2, note="a")], Stored(), tracking)
    later = history([event("u", 30, 3, note="b")], Stored(begun.versions), tracking)
    assert [each.valid_from for each in later.versions] == [10, 30]


def test_what_the_batch_itself_remembered_makes_no_duplicate_of_a_change_without_a_version() -> None:
    tracking = Tracking(TABLE, compared=["note"])
    changes = [event("c", 10, 1, note="a"), event("u", 20, 2, note="a")]
    first = history(changes, Stored(), tracking, batch=7)
    remembered = Stored(merged=first.merged)
    assert history(changes[:1], remembered, tracking, batch=7).outcomes == [APPLIED]
    assert history(changes[:1], remembered, tracking, batch=8).outcomes == [DUPLICATE]
    again = [changes[0]._replace(origin=Origin("t", 0, 90))]
    assert history(again, remembered, tracking, batch=7).outcomes == [DUPLICATE]
    assert history(changes[:1], remembered, tracking).outcomes == [DUPLICATE]


def test_a_delete_whose_version_is_written_is_a_duplicate_in_its_own_batch() -> None:
    gone = event("d", 20)
    first = history([event("c", 10, 1), gone], Stored(), PLAIN, batch=7)
    assert history([gone], Stored(first.versions, ends=first.ends), PLAIN, batch=7).outcomes == [DUPLICATE]
    assert history([gone], Stored(ends=first.ends), PLAIN).outcomes == [DUPLICATE]


def test_of_two_changes_at_one_place_in_two_partitions_the_same_counts_in_any_order() -> None:
    first = event("u", 10, 1)
    for origin in (Origin("t", 1, 1), Origin("u", 0, 1)):
        assert in_any_order([first, event("u", 10, 2)._replace(origin=origin)]) == [(10, None, 2)]


def test_only_a_delete_or_truncate_ends_a_version_at_its_own_sequence() -> None:
    wiped = Truncated(event("u", 35).seq, at=35)
    changes = [event("c", 10, 1), event("u", 20, 2), event("d", 25), event("c", 30, 3), event("u", 40, 4)]
    told = history(changes, Stored(), Tracking(Table(TABLE.columns, TABLE.tracked, truncates=[wiped])))
    assert [each.delete_seq for each in told.versions] == [None, changes[2].seq, wiped.seq, None]


def test_a_version_has_the_texts_of_its_values() -> None:
    first = event("u", 10, None, note=None)._replace(texts={"v": "NaN", "note": "infinity"})
    changes = [first, event("u", 20, None)._replace(texts={"v": "-infinity"}), event("u", 30, 3, note="c")]
    assert [each.row.texts for each in history(changes, Stored(), PLAIN).versions] == [
        {"v": "NaN", "note": "infinity"},
        {"v": "-infinity", "note": "infinity"},
        {},
    ]


def test_of_what_a_move_brought_the_newest_value_counts() -> None:
    created = event("c", 50, 5)
    values = [
        Said(value, moved(created.seq, own(event("u", lsn).seq))) for value, lsn in (("b", 2), ("a", 1))
    ]
    for brought in (values, values[::-1]):
        told = history([created], Stored(), PLAIN, {"note": brought})
        assert [each.row.values["note"] for each in told.versions] == ["b"]


def test_a_change_is_remembered_while_no_version_shows_it() -> None:
    tracking = Tracking(TABLE, compared=["note"])
    changes = [event("c", 10, 1, note="a"), event("u", 20, 2, note="a"), event("u", 30, 3, note="a")]
    told = history(changes, Stored(), tracking)
    assert [each.row.seq for each in told.merged] == [changes[0].seq, changes[1].seq]
    split = history([event("u", 25, 9, note="z")], Stored(told.versions, told.merged), tracking)
    assert [each.row.seq for each in split.merged] == [changes[0].seq]


def test_a_list_has_each_event_once() -> None:
    seq, read = event("u", 10).seq, bytes(2) + (9).to_bytes(10, "big") + bytes(14)
    one = Listed(seq, "u", Origin("t", 0, 1), payload=5)
    again = one._replace(origin=Origin("t", 0, 9))
    other = one._replace(origin=Origin("t", 0, 2), payload=6)
    assert append([one, again, other], []) == [APPLIED, DUPLICATE, APPLIED]
    assert append([again, other], [one]) == [DUPLICATE, APPLIED]
    reads = [Listed(read, "r", Origin("t", 0, n), payload=5) for n in (1, 2)]
    assert append([*reads, reads[0]], reads[1:]) == [APPLIED, DUPLICATE, DUPLICATE]
    timed = [each._replace(is_placed=False) for each in (one, again)]
    assert append(timed, []) == [APPLIED, APPLIED]
    assert append([again], [one._replace(payload=None, values={"v": 1})]) == [DUPLICATE]
    assert append([again._replace(values={"v": 2})], [one._replace(payload=None, values={"v": 1})]) == [
        APPLIED
    ]
    assert append([again._replace(shard="b")], [one._replace(shard="a")]) == [APPLIED]


# -- generated histories ----------------------------------------------------------------------------------


def shares_positions(records: Iterable[Record]) -> bool:
    """Whether several changes of a row have one position of a binlog: together they make one version."""
    events = [(each.key, each.seq, each.digest) for each in read(records).events]
    return len(set(events)) > len({each[:2] for each in events})


def check(number: int) -> None:
    played, rnd = play_history(number), random.Random(-number - 1)
    ways = {**COMPLETE, **ANYHOW}
    records = over_partitions(played.records, random.Random(number).choice((1, 1, 2, 3)))
    if shares_positions(played.records):
        return
    compared = rnd.choice((None, ["note"]))
    replayed = ReplayedVersions(NAMES, () if played.shape.table.full else TRACKED, compared)
    batches = ways[rnd.choice(sorted(ways))](records, rnd)
    for batch in batches:
        replayed.deliver(batch)
    expected = {key: each for key, each in Model().replay(played.records).keys.items() if each}
    if compared is not None:
        expected = {key: of_tracked(each, compared) for key, each in expected.items()}
    found = {key: shown_versions(each) for key, each in replayed.mirror.keys.items() if each.versions}
    assert found == expected
    assert replayed.counts.total() == sum(map(len, batches))


def shown_versions(stored: Stored) -> list[Version]:
    return [
        Version(
            dict(each.row.values),
            _moment(each.valid_from),
            _moment_or_none(each.valid_to),
            each.is_current,
            each.is_deleted,
        )
        for each in stored.versions
    ]


def _moment(micros: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)


def _moment_or_none(micros: int | None) -> datetime | None:
    return None if micros is None else _moment(micros)


@pytest.mark.parametrize("first", range(0, 600, 200))
def test_any_delivery_ends_in_the_versions_of_one_in_order(first: int) -> None:
    for number in range(first, first + 200):
        check(number)


@pytest.mark.thorough
@pytest.mark.parametrize("first", range(600, 20_600, 2000))
def test_very_many_histories_end_in_the_versions_of_one_in_order(first: int) -> None:
    for number in range(first, first + 2000):
        check(number)


def test_a_change_without_a_time_was_made_when_its_record_came() -> None:
    assert [time_of(5, 9), time_of(0, 9), time_of(None, 9)] == [5, 0, 9]
    assert [time_of(None, 0), time_of(None, -1), time_of(None, None)] == [None] * 3
