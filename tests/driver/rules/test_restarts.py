"""Restarts of positions: summaries merge in any order, and what is decided."""

from __future__ import annotations

import random
from functools import reduce

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakemirror.api.spec import Ordering
from lakemirror.driver.profile.epochs import with_epochs
from lakemirror.driver.profile.positions import (
    At,
    Began,
    Former,
    Memory,
    Place,
    Standing,
    Stream,
    Stretch,
)
from lakemirror.driver.rules.restarts import (
    Point,
    Span,
    Verdict,
    judge,
    merge,
    stretches,
    summary,
    trusted,
)

pytestmark = pytest.mark.guarantee(
    "The rules of a mirror need no Spark, and do not depend on the order in which changes, blocks or batches "
    "arrive"
)

STREAM = Stream("t", 0, "shop")
NO_EPOCHS = Ordering()
NOW = 1_700_000_000_000_000


def point(offset: int, lsn: int, time: int | None = None, server: str | None = None, op: str = "u") -> Point:
    tie = 0 if op == "r" else 1
    minor = 0 if op == "r" else lsn
    seq = bytes(2) + lsn.to_bytes(10, "big") + minor.to_bytes(10, "big") + tie.to_bytes(4, "big")
    return Point("t", offset, op, seq, time, server)


def decide(points: list[Point], memory: Memory | None = None, **more: object) -> Verdict:
    """Decide about a batch of one or several tables and partitions; a point is of topic "t"."""
    return judge({STREAM: summary(points)}, lambda _: points, memory or {}, Ordering(), **more)  # type: ignore[arg-type]


POINTS = st.builds(
    point,
    st.integers(0, 30),
    st.integers(1, 20),
    st.one_of(st.none(), st.integers(1, 9)),
    st.sampled_from([None, "1", "2"]),
    st.sampled_from("curd"),
)


@given(st.lists(POINTS, min_size=3, max_size=12), st.randoms(use_true_random=False))
@settings(max_examples=300)
def test_summaries_merge_in_any_order_and_grouping(points: list[Point], chance: random.Random) -> None:
    blocks = [summary([each]) for each in points]
    expected = reduce(merge, blocks)
    chance.shuffle(blocks)
    cut = chance.randrange(1, len(blocks))
    assert merge(reduce(merge, blocks[:cut]), reduce(merge, blocks[cut:])) == expected


@given(
    st.lists(st.tuples(st.integers(1, 9), st.sampled_from("ud")), min_size=2, max_size=12), st.integers(1, 4)
)
@settings(max_examples=200)
def test_blocks_tell_whether_positions_grow_as_the_whole_does(
    changes: list[tuple[int, str]], size: int
) -> None:
    points = [point(offset, lsn, op=op) for offset, (lsn, op) in enumerate(changes)]
    blocks = [summary(points[i : i + size]) for i in range(0, len(points), size)]
    seqs = [each.seq for each in points]
    assert reduce(merge, blocks[::-1]).seen().ordered == (seqs == sorted(seqs))


def test_a_tail_that_is_sent_again_waits_until_the_highest_position_is_reached_again() -> None:
    first = decide([point(n, 10 + n, time=n) for n in range(5)])
    again = [point(5, 12, time=2), point(6, 13, time=3)]
    second = decide(again, first.memory)
    assert [second.waits(STREAM, each) for each in again] == [True, True]
    assert (second.begun, second.tables) == ({}, frozenset())
    more = [point(7, 14, time=4), point(8, 15, time=5)]
    third = decide(more, second.memory)
    assert not any(third.waits(STREAM, each) for each in [*again, *more])
    assert third.memory[STREAM].tail == ()


@pytest.mark.parametrize("op", ["u", "r"])
def test_lower_positions_that_are_later_are_a_restart_and_their_tables_wait(op: str) -> None:
    first = decide([point(n, 100 + n, time=n) for n in range(5)])
    new = point(5, 3, time=50, op=op)
    found = decide([new], first.memory)
    assert found.begun == {("t", 0): 5}
    assert found.memory[STREAM].began == Began(5, ("t",), reads=op == "r")
    assert found.memory[STREAM].top == first.memory[STREAM].top, "nothing of the batch is applied there"
    assert found.waits(STREAM, new)
    passed = decide([new, point(6, 200, time=51)], first.memory)
    assert passed.begun == {("t", 0): 5}, "although the highest position is reached in the same batch"


def test_a_table_that_is_not_mirrored_does_not_wait() -> None:
    first = decide([point(0, 100, time=0)])
    found = decide([point(1, 3, time=50)], first.memory, mirrored=lambda table: table != "t")
    assert (found.begun, found.tables) == ({("t", 0): 1}, frozenset())
    assert not found.waits(STREAM, point(1, 3, time=50))


OTHER = Stream("b", 0, "shop")


def judged(batch: dict[Stream, list[Point]], memory: Memory, ordering: Ordering = NO_EPOCHS) -> Verdict:
    seen = {stream: summary(points) for stream, points in batch.items()}
    return judge(seen, lambda stream: batch.get(stream, []), memory, ordering)


def test_only_the_tables_of_that_partition_wait_whatever_their_stream() -> None:
    """A record with a made-up position holds the tables of its partition, and no other."""
    quiet, moving = point(0, 100, time=0), point(0, 100, time=0)._replace(table="o")
    known = judged({STREAM: [quiet], OTHER: [moving]}, {}).memory
    batch = {
        STREAM: [point(1, 3, time=50)],
        OTHER: [point(1, 101, time=60)._replace(table="o"), point(2, 102, time=61)],
    }
    found = judged(batch, known)
    assert (found.begun, found.tables) == ({("t", 0): 1}, frozenset({"t"}))
    waits = [found.waits(stream, each) for stream, points in batch.items() for each in points]
    assert waits == [True, False, True], "the table waits in other partitions, too"
    assert found.memory[OTHER].began is None
    assert found.memory[OTHER].top.offset == 2


def test_they_wait_until_an_epoch_is_declared_there() -> None:
    first = decide([point(n, 100 + n, time=n) for n in range(5)])
    held = decide([point(5, 3, time=50)], first.memory)
    more = [point(6, 4, time=51)._replace(table="more"), point(7, 200, time=52)]
    later = decide(more, held.memory)
    assert later.memory[STREAM].began == Began(5, ("more", "t"))
    assert all(later.waits(STREAM, each) for each in more)
    quiet = judge({}, lambda _: [], later.memory, Ordering())
    assert quiet.tables == {"more", "t"}
    for offset, waits in ((6, True), (5, False)):
        ordering = Ordering.model_validate({"epochs": [{"epoch": 1, "from": {"t": {"0": offset}}}]})
        memory = with_epochs(later.memory, ordering)
        new = point(8, 5, time=53)
        after = judged({STREAM: [new._replace(seq=b"\0\1" + new.seq[2:])]}, memory, ordering)
        assert bool(after.tables) is waits


def test_lower_positions_of_a_new_server_are_a_restart() -> None:
    first = decide([point(n, 100 + n, server="1") for n in range(5)])
    assert decide([point(5, 3, server="2")], first.memory).begun
    assert not decide([point(5, 3, server="1")], first.memory).begun


def test_undecided_tails_of_other_partitions_wait_with_the_evidence_or_alone() -> None:
    """Those near the new positions are part of the restart; those near where they stood were sent again."""
    streams = [Stream("t", number, "shop") for number in range(3)]
    known = judged({each: [point(0, 1000, time=9)] for each in streams}, {}).memory
    tails = [point(1, 5, time=50), point(1, 6, time=9), point(1, 998, time=9)]
    tails = [each._replace(table=f"t{number}") for number, each in enumerate(tails)]
    found = judged({stream: [each] for stream, each in zip(streams, tails, strict=True)}, known)
    assert found.begun == {("t", 0): 1, ("t", 1): 1}
    assert found.tables == {"t0", "t1"}
    assert found.waits(streams[2], tails[2]), "undecided, by itself"
    assert not found.waits(streams[2], point(2, 1001)._replace(table="t2"))


def test_rows_of_a_known_snapshot_mean_nothing_however_late_they_come() -> None:
    first = decide([point(0, 10, op="r"), point(1, 11), point(2, 12)])
    late = point(3, 10, op="r", time=999)
    assert not decide([late], first.memory).waits(STREAM, late)


def test_rows_of_a_known_snapshot_go_on_beside_what_is_undecided() -> None:
    first = decide([point(0, 10, op="r"), point(1, 11), point(2, 12)])
    undecided, known = point(3, 11), point(4, 10, op="r")
    found = decide([undecided, known], first.memory)
    assert [found.waits(STREAM, each) for each in (undecided, known)] == [True, False]


def test_a_new_reading_is_compared_with_what_the_mirrors_have() -> None:
    stands = (Standing("t", 0, point(0, 100).digits, 50),)
    again = decide([point(0, 3, time=40)], standing=lambda _: stands)
    assert not again.waits(STREAM, point(0, 3, time=40))
    later = decide([point(0, 3, time=51)], standing=lambda _: stands)
    assert later.waits(STREAM, point(0, 3, time=51))
    assert not later.begun
    assert not decide([point(0, 3, time=50 + 5_000_000)], standing=lambda _: stands).begun
    assert decide([point(0, 3, time=50 + 5_000_001)], standing=lambda _: stands).begun, "toleranceMs"


def test_a_partition_of_a_topic_with_epochs_needs_one_of_its_own() -> None:
    ordering = Ordering.model_validate({"epochs": [{"epoch": 1, "from": {"t": {"0": 5}}}]})
    known = {STREAM: Place(At("", 1))}
    new = Stream("t", 1, "shop")
    found = judged({new: [point(0, 1)]}, known, ordering)
    assert found.begun == {("t", 1): 0}
    assert found.memory[new].began == Began(0, ("t",))
    assert found.waits(new, point(0, 1))


def test_stretches_end_where_positions_fall_back_pass_the_top_or_change_servers() -> None:
    points = [point(0, 5, server="1"), point(1, 6), point(2, 3), point(3, 4), point(4, 2), point(5, 7)]
    found = [(each.first, each.last, each.above) for each in stretches(points, None)]
    assert found == [(0, 1, True), (2, 3, False), (4, 4, False), (5, 5, True)]
    place = Place(At(point(1, 6).digits, 1))
    found = [(each.first, each.last, each.above) for each in stretches(points, place)]
    assert found == [(0, 1, True), (2, 3, False), (4, 4, False), (5, 5, True)]
    two = [point(2, 1, server="1"), point(3, 2, server="2"), point(4, 3)]
    assert [(each.first, each.last) for each in stretches(two, place)] == [(2, 2), (3, 4)]
    unnamed = [point(2, 1), point(3, 2, server="1")]
    assert [(each.first, each.last) for each in stretches(unnamed, place)] == [(2, 3)]


def test_a_change_that_is_sent_again_is_in_a_stretch_below() -> None:
    sent = [point(4, 7), point(5, 9), point(6, 7)]
    found = [(each.first, each.last, each.above) for each in stretches(sent, Place(at(6, 3)))]
    assert found == [(4, 5, True), (6, 6, False)]


def test_changes_at_one_position_below_are_of_one_stretch() -> None:
    found = stretches([point(4, 5), point(5, 5)], Place(at(6, 3)))
    assert [(each.first, each.last) for each in found] == [(4, 5)]


def test_a_clock_that_is_a_day_ahead_says_nothing() -> None:
    assert trusted(NOW + 5, NOW) == NOW + 5
    assert trusted(NOW + 86_400_000_000, NOW) is not None
    assert trusted(NOW + 86_400_000_001, NOW) is None
    assert trusted(None, NOW) is None


# -- parts ------------------------------------------------------------------------------------------------


def opened(offset: int, lsn: int, time: int | None = None) -> Point:
    """A change of a transaction that was open during the snapshot."""
    return point(offset, lsn, time)._replace(unanchored=True)


def at(lsn: int, offset: int, op: str = "u") -> At:
    return At(point(0, lsn, op=op).digits, offset)


def test_a_row_of_a_snapshot_reaches_to_the_end_of_its_position() -> None:
    """It yields to each change there, although it shows them all."""
    read, change = point(0, 5, op="r"), point(0, 5)
    assert change.reach == change.digits
    assert change.digits < read.reach < point(0, 6, op="r").digits
    assert read.reach == read.digits[:24] + "ff" * 14
    placed = read._replace(seq=change.seq[:22] + bytes(4))  # a row at an LSN of its own
    assert placed.reach == change.digits[:44] + "ff" * 4


def test_a_summary_has_what_a_batch_has_of_a_stream() -> None:
    points = [
        point(4, 30, time=7, op="r"),
        point(5, 20, time=9, server="1"),
        point(7, 25, time=3, server="2"),
        opened(9, 10)._replace(table="o"),
    ]
    found = summary(points)
    assert (found.top, found.streamed) == (at(30, 4, "r"), at(25, 7))
    assert (found.last, found.last_unanchored) == (7, 9)
    assert (found.time, found.servers) == (9, {"1", "2"})
    assert found.tables == {"t": (point(0, 20).digits, 9), "o": (point(0, 10).digits, None)}
    assert found.reads == {"t": (point(0, 30, op="r").digits,) * 2}
    low, high = point(0, 20).digits, point(0, 25).digits
    assert found.spans == {
        "t": (Span(5, 7, low, high, grows=True),),
        "o": (Span(9, 9, *(point(0, 10).digits,) * 2, grows=True),),
    }
    seen = found.seen()
    assert (seen.top, seen.streamed, seen.last, seen.last_unanchored) == (at(30, 4, "r"), at(25, 7), 7, 9)
    assert (seen.time, seen.servers, seen.reads) == (9, {"1", "2"}, {point(0, 30, op="r").digits})
    assert (seen.ordered, seen.tables) == (True, found.tables)


def test_summaries_of_two_blocks_are_that_of_both() -> None:
    """The highest change, the last offsets, the latest time, and of each table the lowest position."""
    blocks = [
        [point(1, 20, time=5, op="r"), point(2, 30, server="1"), opened(3, 12)],
        [point(4, 10, time=9, op="r"), point(5, 40, time=2, server="2"), opened(6, 11)],
        [point(7, 15, op="r")._replace(table="o")],
    ]
    whole = summary([each for block in blocks for each in block])
    merged = merge(merge(summary(blocks[1]), summary(blocks[2])), summary(blocks[0]))
    assert {**vars(merged), "spans": None} == {**vars(whole), "spans": None}
    only_reads = merge(summary(blocks[2]), summary(blocks[2]))
    assert (only_reads.streamed, only_reads.last_unanchored) == (None, -1)


def test_positions_grow_over_blocks_that_follow_each_other() -> None:
    def grows(*blocks: list[Point]) -> bool:
        return reduce(merge, map(summary, blocks)).seen().ordered

    assert grows([point(1, 5), point(2, 6)], [point(3, 6), point(4, 9)])
    assert not grows([point(1, 5), point(2, 6)], [point(3, 5), point(4, 9)])
    assert not grows([point(1, 6), point(2, 5)])
    assert not grows([point(1, 5), point(2, 6)], [point(3, 9), point(4, 7)])
    other = [point(3, 1)._replace(table="o"), point(4, 2)._replace(table="o")]
    assert grows([point(1, 5), point(2, 6), *other])
    assert not grows([point(1, 6), point(2, 5), *other])
    assert not grows([point(1, 5), point(3, 6)], [point(2, 6), point(4, 9)]), (
        "blocks that interleave are unclear"
    )
    assert not grows([point(1, 5), point(3, 6)], [point(3, 6), point(4, 9)])
    assert grows([point(1, 9, op="r"), point(2, 5)], [point(3, 8, op="r"), point(4, 6)]), "rows of snapshots"


def test_changes_at_offsets_that_were_read_before_are_above() -> None:
    place = Place(at(6, 3))
    found = stretches([point(2, 1), point(3, 9), point(4, 6), point(5, 5)], place)
    assert [(each.first, each.last, each.above) for each in found] == [
        (2, 3, True),
        (4, 4, True),
        (5, 5, False),
    ]


def test_stretches_are_in_the_order_of_their_offsets() -> None:
    """A row that was read again at an offset of before comes with the changes of its batch."""
    found = stretches([point(9, 5), point(8, 4), point(7, 3)], Place(at(6, 3)))
    assert [(each.first, each.last) for each in found] == [(7, 9)]
    fell = stretches([point(7, 5), point(8, 4), point(9, 3)], Place(at(6, 3)))
    assert [(each.first, each.last) for each in fell] == [(7, 7), (8, 8), (9, 9)]


def test_a_stretch_has_the_bounds_of_its_changes() -> None:
    points = [point(4, 3, time=9, server="2"), point(5, 4, time=None), point(6, 5, time=7, server="2")]
    [found] = stretches(points, Place(at(6, 3)))
    assert found == Stretch(4, 6, point(0, 3).digits, point(0, 5).digits, 9, ("2",), above=False)


def test_a_change_of_an_open_transaction_is_compared_with_changes_alone() -> None:
    """Not with the row of the snapshot, below which it lies."""
    read, change = point(1, 90, op="r"), opened(2, 70)
    assert [each.above for each in stretches([read, change], None)] == [True]
    known = stretches([read, point(2, 80)], None)
    assert [each.above for each in known] == [True, False], "it knows the commit before it"
    [found] = stretches([change], Place(at(90, 1, "r")))
    assert found.above
    below = stretches([opened(3, 70)], Place(at(90, 2, "r"), streamed=at(80, 2)))
    assert [each.above for each in below] == [False]
    two = stretches([opened(2, 70), opened(3, 60)], Place(at(90, 1, "r")))
    assert [each.above for each in two] == [True, False]


def test_a_change_at_the_highest_position_is_above() -> None:
    assert [each.above for each in stretches([point(4, 6)], Place(at(6, 3)))] == [True]
    assert [each.above for each in stretches([point(4, 6, op="r")], Place(at(6, 3)))] == [True]
    assert [each.above for each in stretches([point(4, 5, op="r")], Place(at(6, 3)))] == [False]


def test_rows_of_a_snapshot_that_come_again_are_in_no_stretch() -> None:
    read, again = point(4, 9, op="r"), point(6, 9, op="r")
    found = stretches([read, point(5, 12), again, point(7, 13)], Place(at(6, 3)))
    assert [(each.first, each.last, each.above) for each in found] == [(4, 7, True)]
    below = stretches([point(4, 2, op="r"), point(5, 9), point(6, 2, op="r")], Place(at(6, 3)))
    assert [(each.first, each.last, each.above) for each in below] == [
        (4, 4, False),
        (5, 5, True),
        (6, 6, False),
    ]
    known = Place(at(6, 3), snapshots=(point(0, 2, op="r").digits,))
    assert stretches([point(4, 2, op="r")], known) == []


def test_what_is_undecided_waits_and_the_rest_does_not() -> None:
    first = decide([point(n, 10 + n, time=n) for n in range(5)])
    undecided = [point(5, 12, time=2)]
    found = decide(undecided, first.memory)
    assert found.waits(STREAM, point(5, 12, time=2))
    assert not found.waits(STREAM, point(4, 12, time=2)), "read before the highest position"
    assert not found.waits(STREAM, point(6, 14, time=2)), "it has reached the highest position"
    assert found.waits(STREAM, point(6, 13, time=2))
    assert found.waits(STREAM, point(6, 12, time=2, op="r")), "a row of a snapshot that is not known"
    assert not found.waits(STREAM._replace(partition=1), point(6, 13, time=2))


def test_a_change_waits_only_if_it_lies_below_and_is_later_than_its_mirror() -> None:
    """The stream is still behind what the mirror has, and nothing else of it is undecided."""
    behind = Place(at(50, 5), former={"t": Former(point(0, 100).digits, 50)})
    held = Verdict({}, {STREAM: behind})
    changes = [point(6, 3, time=51), point(6, 3, time=50), point(6, 3), point(6, 100, time=51)]
    assert [held.waits(STREAM, each) for each in changes] == [True, False, False, False]


def test_an_open_change_is_not_undecided_while_no_other_change_came() -> None:
    tail = (Stretch(2, 2, point(0, 9).digits, point(0, 9).digits, None, (), above=False),)
    held = Verdict({}, {STREAM: Place(at(90, 1, "r"), tail=tail)})
    assert not held.waits(STREAM, opened(3, 60))
    assert held.waits(STREAM, point(3, 60))


def test_an_undecided_change_of_an_open_transaction_waits_below_the_changes_before_it() -> None:
    first = decide([point(0, 90, op="r", time=1), opened(1, 70, time=1)])
    again = [opened(2, 60, time=1)]
    found = decide(again, first.memory)
    assert found.waits(STREAM, again[0])
    assert not found.waits(STREAM, opened(3, 80, time=1))
    quiet = decide([point(0, 90, op="r", time=1)])
    assert not decide([opened(2, 60, time=1)], quiet.memory).waits(STREAM, opened(2, 60, time=1))


def test_only_the_tables_that_are_behind_their_mirrors_wait() -> None:
    stands = (Standing("t", 0, point(0, 100).digits, 50),)
    batch = [point(0, 3, time=51), point(1, 4, time=40), point(2, 5, time=60)._replace(table="o")]
    found = decide(batch, standing=lambda table: stands if table == "t" else ())
    assert [found.waits(STREAM, each) for each in batch] == [True, False, False]
    assert found.memory[STREAM].former == {"t": Former(stands[0].seq, 50, 0)}
    late = [point(0, 3, time=40), point(1, 4, time=51)]
    assert decide(late, standing=lambda _: stands).memory[STREAM].former == {
        "t": Former(stands[0].seq, 50, 1)
    }
    other = [point(0, 3, time=40), point(1, 4, time=60)._replace(table="o")]
    found = decide(other, standing=lambda table: stands if table == "t" else ())
    assert found.memory[STREAM].former == {"t": Former(stands[0].seq, 50)}
    found = decide(batch, standing=lambda table: stands if table == "t" else ())
    both = decide(batch, standing=lambda _: stands)
    assert [found.waits(STREAM, each) for each in batch] == [True, False, False]
    assert both.memory[STREAM].former["o"].first == 2


def test_all_changes_of_a_restart_are_rows_of_a_snapshot_or_not() -> None:
    first = decide([point(n, 100 + n, time=n) for n in range(5)])
    reads = [point(5, 3, time=50, op="r"), point(6, 3, time=50, op="r")]
    assert decide(reads, first.memory).memory[STREAM].began == Began(5, ("t",), reads=True)
    mixed = [*reads, point(7, 4, time=51)]
    assert decide(mixed, first.memory).memory[STREAM].began == Began(5, ("t",), reads=False)
    before = [point(4, 4, time=4), *reads]
    assert decide(before, first.memory).memory[STREAM].began == Began(5, ("t",), reads=True)


def test_whether_a_restart_is_of_rows_of_a_snapshot_is_told_of_partitions_that_begin_with_it() -> None:
    streams = [Stream("t", number, "shop") for number in range(2)]
    known = judged({each: [point(0, 1000, time=9)] for each in streams}, {}).memory
    began = judged({streams[0]: [point(1, 5, time=50)]}, known).memory
    found = judged({streams[0]: [point(2, 6, time=51)], streams[1]: [point(1, 7, time=52, op="r")]}, began)
    assert found.memory[streams[0]].began == Began(1, ("t",))
    assert found.memory[streams[1]].began == Began(1, ("t",), reads=True)


def test_snapshots_of_what_waits_are_not_remembered_as_applied() -> None:
    stands = (Standing("t", 0, point(0, 100).digits, 50),)
    applied = decide([point(0, 3, time=40, op="r")])
    assert applied.memory[STREAM].snapshots == (point(0, 3, op="r").digits,)
    waiting = decide([point(0, 3, time=51, op="r")], standing=lambda _: stands)
    assert waiting.memory[STREAM].snapshots == ()


def test_a_table_that_waits_waits_in_partitions_whose_own_changes_are_undecided() -> None:
    streams = [Stream("t", number, "shop") for number in range(2)]
    known = judged({each: [point(0, 1000, time=9)] for each in streams}, {}).memory
    found = judged({streams[0]: [point(1, 5, time=50)], streams[1]: [point(1, 998, time=9)]}, known)
    assert found.tables == {"t"}
    assert streams[1] in found.held
    assert found.waits(streams[1], point(2, 1001)), "its table waits"


def test_what_is_later_but_not_below_or_below_but_not_later_goes_on() -> None:
    stands = (Standing("t", 0, point(0, 100).digits, 50),)
    batch = [point(0, 3, time=40), point(1, 200, time=60)]
    found = decide(batch, standing=lambda _: stands)
    assert not any(found.waits(STREAM, each) for each in batch)
    assert found.memory[STREAM].former == {}
