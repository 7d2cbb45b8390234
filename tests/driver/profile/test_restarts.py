"""Which tables wait once positions have started again, and when they go on: values alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lakemirror.api.spec import Ordering
from lakemirror.driver.profile import epochs
from lakemirror.driver.profile.evidence import earliest, with_restarts
from lakemirror.driver.profile.positions import (
    At,
    Began,
    Memory,
    Place,
    Stream,
    StreamSeen,
    Stretch,
    from_json,
    newest,
    to_json,
)

pytestmark = pytest.mark.guarantee(
    "A record with a made-up position holds the tables of its partition, and no other"
)

A0, A1, B0 = Stream("a", 0, "shop"), Stream("a", 1, "shop"), Stream("b", 0, "shop")
HIGH, LOW, HIGHER = (f"0000{n:048x}" for n in (1000, 5, 2000))


def ordering(*froms: dict[str, dict[str, int]]) -> Ordering:
    return Ordering.model_validate(
        {"epochs": [{"epoch": n, "from": each} for n, each in enumerate(froms, 1)]}
    )


def restarted(reads: bool = False) -> Memory:
    """Positions of one partition have started again at offset 7, after offset 6, and those of others not."""
    before = {each: Place(At(HIGH, 6)) for each in (A0, A1, B0)}
    tail = Stretch(7, 7, LOW, LOW, time=9, servers=())
    batch = {**before, A0: Place(At(HIGHER, 9), tail=(tail,)), B0: Place(At(HIGHER, 9))}
    seen = {
        stream: StreamSeen(At(HIGHER, 9), tables={f"s.{stream.topic}": (LOW, 9), "s.out": (LOW, 9)})
        for stream in (A0, B0)
    }
    return with_restarts(batch, before, seen, {("a", 0): 7}, lambda table: table != "s.out", reads=reads)


def test_the_tables_of_that_partition_wait_and_the_others_go_on() -> None:
    memory = restarted()
    assert memory[A0].began == Began(7, ("s.a",))
    assert memory[A0].top == At(HIGH, 6), "nothing of the batch is applied there"
    assert (memory[B0].began, memory[B0].top) == (None, At(HIGHER, 9))
    assert epochs.waiting(memory) == {("a", 0): 7}
    assert epochs.tables_of(memory) == ["s.a"]


def test_they_wait_through_further_batches_and_restarts_of_the_driver() -> None:
    memory = from_json(to_json(restarted()))
    assert memory == restarted()
    seen = {A0: StreamSeen(At(HIGHER, 12), tables={"s.more": (HIGHER, None)})}
    batch = {**memory, A0: replace(memory[A0], top=At(HIGHER, 12))}
    later = with_restarts(batch, memory, seen, epochs.waiting(memory), lambda table: True, reads=True)
    assert later[A0].began == Began(7, ("s.a", "s.more"))
    assert later[A0].top == At(HIGH, 6)
    quiet = with_restarts(later, {}, {}, epochs.waiting(later), lambda table: True, reads=True)
    assert quiet == later


@pytest.mark.parametrize(
    ("froms", "waits"),
    [
        ([], True),
        ([{"b": {"0": 1}}], True),
        ([{"a": {"1": 7}}], True),
        ([{"a": {"0": 8}}], True),
        ([{"a": {"0": 7}}], False),
        ([{"a": {"0": 3}}], False),
        ([{"b": {"0": 1}}, {"a": {"0": 7}}], False),
    ],
)
def test_an_epoch_that_begins_there_ends_it(froms: list[dict[str, dict[str, int]]], waits: bool) -> None:
    memory = epochs.with_epochs(restarted(), ordering(*froms))
    assert (epochs.message(memory, ordering(*froms)) is not None) is waits
    if not waits:
        number = len(froms)
        assert memory[A0].top == At(f"{number:04x}{LOW[4:]}", 7), "what waited came last"


@pytest.mark.parametrize(("server", "left"), [("one", 0), ("two", 1)])
def test_what_waited_is_decided_by_the_epoch_unless_it_is_from_another_server(server: str, left: int) -> None:
    """Such as a change of a snapshot's new server that lies below the rows of the snapshot."""
    tail = (
        Stretch(7, 8, LOW, HIGH, time=9, servers=("one",)),
        Stretch(9, 9, LOW, LOW, time=10, servers=(server,)),
    )
    memory = {A0: replace(restarted()[A0], tail=tail)}
    place = epochs.with_epochs(memory, ordering({"a": {"0": 7}}))[A0]
    assert (place.began, place.top, len(place.tail)) == (None, At(f"0001{HIGH[4:]}", 8), left)
    undecided = {A0: replace(memory[A0], began=None)}  # nobody waited for the epoch
    assert len(epochs.with_epochs(undecided, ordering({"a": {"0": 7}}))[A0].tail) == 1


def test_an_epoch_of_an_earlier_restart_does_not_end_it() -> None:
    """Its partition is in that epoch already, since before the offset."""
    memory = {A0: Place(At(f"0001{HIGH[4:]}", 6), began=Began(7, ("s.a",)))}
    first, second = {"a": {"0": 3}}, {"a": {"0": 7}}
    assert epochs.with_epochs(memory, ordering(first))[A0].began is not None
    assert epochs.with_epochs(memory, ordering(first, second))[A0].began is None
    told = epochs.message(memory, ordering(first))
    assert told is not None
    assert '{"epoch": 2, "from": {"a": {"0": 7}}}' in told


def test_the_message_names_the_epoch_and_the_tables() -> None:
    told = epochs.message(restarted(), ordering(), partitions={"a": [0, 1, 2], "b": [0, 1]})
    assert told is not None
    assert 'ordering.epochs: [{"epoch": 1, "from": {"a": {"0": 7, "2": 0}}}];' in told
    assert told.endswith("Waiting: s.a")
    reads = epochs.message(restarted(reads=True), ordering())
    assert reads is not None
    assert "All of them are rows of a snapshot" in reads
    many = {A0: replace(restarted()[A0], began=Began(7, tuple(f"s.t{n:02}" for n in range(12))))}
    assert (epochs.message(many, ordering()) or "").endswith("s.t09 and 2 more")


def test_a_partition_that_was_added_has_its_own_message() -> None:
    of = ordering({"a": {"0": 3}})
    added = {Stream("a", 5, "shop"): Place(At(HIGH, 1), began=Began(0, ("s.a",)))}
    told = epochs.message(added, of)
    assert told is not None
    assert "does not name its partition 5" in told
    assert '{"a": {"0": 3, "5": 0}}' in told
    both = epochs.message({**restarted(), **added}, of)
    assert both is not None
    assert "positions of the source start again" in both
    assert '{"epoch": 2, "from": {"a": {"0": 7, "5": 0}}}' in both


def test_nothing_is_said_if_only_tables_wait_that_are_not_mirrored() -> None:
    memory = {A0: replace(restarted()[A0], began=Began(7))}
    assert epochs.message(memory, ordering()) is None
    assert epochs.waiting(memory) == {("a", 0): 7}, "tables that come later wait"


def test_memories_of_several_queries_agree_that_tables_wait() -> None:
    """Or records that one query holds would be tried with the positions of another, and count as stale."""
    waits = {A0: Place(At(LOW, 1), began=Began(7, ("s.a",)))}
    ahead = {A0: Place(At(HIGH, 6))}
    more = {A0: Place(At(HIGHER, 9), began=Began(5, ("s.b",), reads=True))}
    for memories in ([waits, ahead], [ahead, waits]):
        assert newest(memories) == {A0: Place(At(HIGH, 6), began=Began(7, ("s.a",)))}
    assert newest([waits, ahead, more])[A0].began == Began(5, ("s.a", "s.b"))
    assert newest([ahead])[A0].began is None


def test_the_lowest_offset_of_each_partition_counts() -> None:
    found = earliest({("a", 0): 7}, {("a", 0): 5, ("b", 0): 1}, {("a", 0): 9})
    assert found == {("a", 0): 5, ("b", 0): 1}
