"""Where positions start again: the decision alone, on generated logs.

A log is one partition of one connector: changes with growing positions and times, tails that are sent again
after the connector restarted, and failovers to servers whose positions begin elsewhere. It is read in
batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lakemirror.api.spec import Ordering
from lakemirror.driver.profile.epochs import declared, extended
from lakemirror.driver.profile.evidence import (
    asked_again,
    first_place,
    is_evidence,
    is_unclear,
    settle,
    starts,
)
from lakemirror.driver.profile.positions import (
    At,
    Former,
    Memory,
    Place,
    Standing,
    Stream,
    StreamSeen,
    Stretch,
    from_json,
    newest,
    to_json,
)

pytestmark = pytest.mark.guarantee(
    "Records from a restored or different server are never dropped: they are applied, or wait, at "
    "most with their table"
)

STREAM = Stream("t", 0, "shop")


@dataclass(frozen=True)
class Change:
    """A change as it stands in the partition; ``era`` counts the failovers before it was made."""

    seq: int
    time: int
    server: str | None
    era: int


def digits(seq: int, epoch: int = 0) -> str:
    return f"{epoch:04x}{seq:048x}"


@dataclass
class Reader:
    """Reads a log as `judge` does, without frames: ``epochs`` are offsets at which a new one begins."""

    epochs: Sequence[int] = ()
    place: Place | None = None
    held: set[int] = field(default_factory=set)

    def seq(self, offset: int, change: Change) -> str:
        return digits(change.seq, sum(offset >= start for start in self.epochs))

    def read(self, batch: Iterable[tuple[int, Change]]) -> dict[tuple[str, int], int]:
        """Where a new epoch has to begin; else the batch is taken in."""
        events = [(offset, self.seq(offset, change), change) for offset, change in batch]
        top = max(At(seq, offset) for offset, seq, _ in events)
        ordered = [seq for _, seq, _ in events] == sorted(seq for _, seq, _ in events)
        low = min(seq for _, seq, _ in events)
        seen = StreamSeen(top, top, ordered, events[-1][0], tables={"t": (low, None)})
        stood = self.place and declared(self.place, list(enumerate(self.epochs, 1)))
        before = stood or Place(top)
        found = list(runs(stood, events))
        assert is_unclear(before, seen, known=stood is not None) or all(run.above for run in found)
        place = replace(before, top=max(before.top, top), streamed=max(before.streamed or top, top))
        place = settle(place, found)
        begun = starts({STREAM: place}, {}, 0)
        if not begun:
            self.place = place
            self.held |= {at for at, seq, _ in events if at > place.top.offset and seq < place.top.seq}
            self.held = {offset for offset in self.held if offset > place.top.offset}
        return begun


def runs(place: Place | None, events: Sequence[tuple[int, str, Change]]) -> Iterable[Stretch]:
    """Cut where a position falls back, passes the highest, or comes from another server."""
    highest, run, above = place.top.seq if place else "", list(events[:0]), True
    for each in events:
        is_above = each[1] >= highest
        moved = run and each[2].server and {c.server for _, _, c in run} - {None, each[2].server}
        if run and (is_above != above or (not is_above and (each[1] < run[-1][1] or moved))):
            yield _run(run, above)
            run = []
        run.append(each)
        above, highest = is_above, max(highest, each[1])
    yield _run(run, above)


def _run(run: Sequence[tuple[int, str, Change]], above: bool) -> Stretch:
    seqs = [seq for _, seq, _ in run]
    servers = tuple(sorted({change.server for _, _, change in run if change.server}))
    return Stretch(
        run[0][0], run[-1][0], min(seqs), max(seqs), max(c.time for _, _, c in run), servers, above
    )


@st.composite
def logs(draw: st.DrawFn, failovers: bool) -> list[Change]:
    """Changes by offset. The clock of the second server may be slow."""
    log: list[Change] = []
    made: list[Change] = []
    seq, time, era = draw(st.integers(1000, 2000)), 1000, 0
    for _ in range(draw(st.integers(1, 6))):
        for _ in range(draw(st.integers(1, 6))):
            seq, time = seq + draw(st.integers(0, 3)), time + draw(st.integers(0, 5))
            made.append(Change(seq * 10 + era, time, None, era))  # no two servers share a position
            log.append(made[-1])
        step = draw(st.sampled_from(["again", "cut", "failover", "on"]))
        if step in ("again", "cut"):
            tail = made[-draw(st.integers(1, len(made))) :]
            log += tail if step == "again" else tail[: draw(st.integers(1, len(tail)))]
        elif step == "failover" and failovers:
            near = seq - draw(st.integers(1, 20))  # soon it has passed the former server
            slow = 0 if era else draw(st.integers(0, 3))
            seq = draw(st.sampled_from([max(1, near), draw(st.integers(1, 800))]))
            time += 1 - (slow if seq < 800 else 0)
            made, era = [], era + 1
    return log


def batches(log: Sequence[Change], sizes: Sequence[int]) -> Iterable[list[tuple[int, Change]]]:
    numbered = list(enumerate(log))
    at = 0
    for i in range(len(log)):
        size = sizes[i % len(sizes)]
        if at < len(log):
            yield numbered[at : at + size]
        at += size


SIZES = st.lists(st.integers(1, 9), min_size=1, max_size=4)


@settings(max_examples=300, deadline=None)
@given(logs(failovers=False), SIZES)
def test_what_is_sent_again_never_stops_the_pipeline(log: list[Change], sizes: list[int]) -> None:
    reader = Reader()
    for batch in batches(log, sizes):
        assert reader.read(batch) == {}
    top = max((change.seq, offset) for offset, change in enumerate(log))
    assert reader.held == set(range(top[1] + 1, len(log)))


@settings(max_examples=500, deadline=None)
@given(logs(failovers=True), SIZES, st.booleans())
@example(
    # Two failovers, so soon after each other that the changes between them are no later than those before.
    [Change(10_000, 1000, None, 0), Change(21, 1000, None, 1), Change(12, 1001, None, 2)],
    [1],
    False,
)
def test_no_change_of_another_server_is_dropped(log: list[Change], sizes: list[int], ids: bool) -> None:
    """Whatever is applied is applied above all that other servers made before it; the rest is held.

    What a remedy says is followed to the letter, and the log read on from there.
    """
    if ids:
        log = [replace(change, server=str(change.era + 1)) for change in log]
    reader = Reader()
    epochs: list[int] = []
    for batch in batches(log, sizes):
        for _ in range(20):
            begun = reader.read(batch)
            if not begun:
                break
            epochs.append(begun["t", 0])
            reader.epochs = tuple(epochs)
        else:
            pytest.fail("the remedy does not help")
    highest: dict[int, str] = {}
    for offset, change in enumerate(log):
        seq = reader.seq(offset, change)
        if offset not in reader.held:
            assert all(seq > other for era, other in highest.items() if era < change.era), offset
        highest[change.era] = max(highest.get(change.era, ""), seq)


@pytest.mark.parametrize(
    ("log", "begins"),
    [
        pytest.param([(10, 1, None), (20, 2, None), (5, 3, None)], 2, id="a moment later"),
        pytest.param([(10, 1, "1"), (20, 2, "1"), (5, 2, "2")], 2, id="at the same time, another server"),
        pytest.param([(10, 1, None), (20, 2, None), (5, 2, None)], None, id="at the same time"),
        pytest.param(
            [(1900, 1, None), (2000, 5, None), (1900, 1, None), (3, 5, None), (4, 6, None)],
            3,
            id="sent again, then",
        ),
        pytest.param(
            [(10, 1, "1"), (20, 5, "1"), (10, 1, "1"), (15, 5, "2")], 3, id="sent again, then another server"
        ),
        pytest.param([(10, 1, None), (20, 9, None), (15, 2, None), (20, 9, None)], None, id="sent again"),
        pytest.param(
            [(1000, 1, None), (2000, 5, None), (3, 4, None), (2, 5, None), (4, 6, None)], 2, id="a slow clock"
        ),
    ],
)
def test_where_an_epoch_begins(log: list[tuple[int, int, str | None]], begins: int | None) -> None:
    changes = [Change(seq, time, server, 0) for seq, time, server in log]
    for size in (len(log), 1):
        reader, found = Reader(), {}
        for batch in batches(changes, [size]):
            found = found or reader.read(batch)
        assert found == ({} if begins is None else {("t", 0): begins})


def place(seq: int, offset: int, time: int, *tail: Stretch) -> Place:
    return Place(At(digits(seq), offset), time=time, tail=tail)


def test_undecided_tails_of_other_partitions_begin_the_epoch_too() -> None:
    sure = Stretch(8, 9, digits(10), digits(14), 200)
    memory = {
        STREAM: place(1000, 7, 100, sure),
        Stream("t", 1, "shop"): place(1100, 3, 100, Stretch(4, 4, digits(12), digits(12), 90)),
        Stream("t", 2, "shop"): place(1050, 5, 100, Stretch(6, 7, digits(990), digits(1010), 90)),
        Stream("u", 0, "other"): place(1000, 1, 100, Stretch(2, 2, digits(11), digits(11), 90)),
    }
    assert is_evidence(sure, memory[STREAM])
    assert starts(memory, {}, 0) == {("t", 0): 8, ("t", 1): 4}


def test_without_memory_the_mirror_tells() -> None:
    former, memory = Former(digits(1000), 100), {STREAM: place(20, 9, 110)}
    later = {STREAM: [(former, Stretch(3, 9, digits(10), digits(20), 110))]}
    assert starts(memory, later, 10) == {}
    assert starts(memory, later, 9) == {("t", 0): 3}
    memory[STREAM] = replace(memory[STREAM], former={"t": replace(former, first=1)})
    assert starts(memory, later, 9) == {("t", 0): 1}


def test_a_mirror_that_could_not_tell_is_asked_again() -> None:
    """Only where the batch has changes of its table."""
    seen = StreamSeen(At(digits(10), 4), tables={"t": (digits(1), 110), "u": (digits(2), 120)})
    own = Standing("t", 0, digits(1000), 100)
    first = first_place(STREAM, seen, {}, lambda table: None if table == "t" else [own])
    assert (first.unread, first.former) == (("t",), {"u": Former(digits(1000), 100)})
    memory = from_json(to_json({STREAM: first, Stream("t", 1, "shop"): place(20, 9, 110)}))
    others = StreamSeen(At(digits(11), 5), tables={"u": (digits(11), 130)})
    stands = [own, Standing("t", 1, digits(2000), 200)]
    assert asked_again(memory[STREAM], STREAM, others, memory, lambda table: stands) == first
    assert asked_again(memory[STREAM], STREAM, seen, memory, lambda table: None) == first
    told = asked_again(memory[STREAM], STREAM, seen, memory, lambda table: stands)
    assert (told.unread, told.former["t"]) == ((), Former(digits(1000), 100))


@pytest.mark.parametrize(
    ("declared", "begun", "wanted"),
    [
        ([], {("t", 0): 7}, [{"epoch": 1, "from": {"t": {"0": 7}}}]),
        (
            [{"epoch": 3, "from": {"t": {"0": 7}}}],
            {("t", 1): 5, ("u", 0): 2},
            [{"epoch": 3, "from": {"t": {"0": 7, "1": 5}, "u": {"0": 2}}}],
        ),
        (
            [{"epoch": 3, "from": {"t": {"0": 7}}}],
            {("t", 0): 9, ("t", 1): 5},
            [{"epoch": 3, "from": {"t": {"0": 7}}}, {"epoch": 4, "from": {"t": {"0": 9, "1": 5}}}],
        ),
    ],
)
def test_the_remedy_is_the_whole_new_value(
    declared: list[object], begun: dict[tuple[str, int], int], wanted: list[object]
) -> None:
    ordering = Ordering.model_validate({"epochs": declared})
    assert extended(ordering, begun) == wanted
    Ordering.model_validate({"epochs": wanted})


def test_the_memory_survives_as_text() -> None:
    whole = Place(
        At("0a", 7), At("09", 6), 5, ("1",), (Stretch(8, 9, "01", "02", 4, ("2",)),), {"t": Former("0b", 3)}
    )
    whole = replace(whole, unread=("u",))
    memory: Memory = {STREAM: whole, Stream("u", 1, ""): Place(At("0c", 1))}
    assert from_json(to_json(memory)) == memory
    assert from_json('{"t/0": ["0a", 1, 7]}') == {}
    assert newest([memory, {STREAM: Place(At("0b", 1))}])[STREAM] == Place(At("0b", 1))
