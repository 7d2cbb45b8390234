"""Generated histories of several tables, cut into batches in any interleaving of their partitions: versions
that are named for a position show the source as it was there, and complete means complete.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakemirror.driver.consistent.complete import Top, Watch
from lakemirror.driver.consistent.cuts import Commit, Span, at, spans
from lakemirror.driver.consistent.reach import BEGIN, END, Part, reach

pytestmark = pytest.mark.guarantee(
    "Whatever is reported as complete is complete; the versions named for a position show the source at that "
    "position"
)

TABLES, KEYS, PARTITIONS = 3, 3, 2
SETTLE = 5.0
SNAPSHOT = 1
State = dict[int, int]


class Change(NamedTuple):
    """A key of a table is written; ``position`` 1 is the snapshot, in which each key has a row."""

    position: int
    table: int
    key: int

    @property
    def partition(self) -> tuple[int, int]:
        return self.table, self.key % PARTITIONS

    @property
    def seq(self) -> str:
        return seq(self.position, snapshot=self.position == SNAPSHOT)


def seq(position: int, *, snapshot: bool = False) -> str:
    return f"{0:04x}{position:020x}{0:020x}{0 if snapshot else 1:08x}"


class Step(NamedTuple):
    """What happens next: time passes and each partition is read on by as many records (or, ``back``, sends so
    many again first); some of what is read is kept aside; what was kept aside is applied.
    """

    seconds: int
    read: Sequence[int]
    back: Sequence[int]
    aside: int
    replay: bool


@dataclass
class Mirror:
    """A table: what is applied at each version."""

    applied: set[Change] = field(default_factory=set)
    versions: list[frozenset[Change]] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    aside: set[Change] = field(default_factory=set)
    gap: str = END

    def commit(self, changes: Sequence[Change], parts: Sequence[Part], reached: dict[object, str]) -> None:
        found = reach(parts, reached.get)
        self.applied |= set(changes)
        self.versions.append(frozenset(self.applied))
        first, last = (END, BEGIN) if found is None else (found.first, found.last)
        self.commits.append(Commit(len(self.versions) - 1, first, last))

    def spans(self, below: str) -> list[Span]:
        return spans(self.commits, min(below, self.gap if self.aside else END))


def state(changes: Sequence[Change] | frozenset[Change] | set[Change], up_to: int | None = None) -> State:
    """The newest change of each key."""
    rows: State = {}
    for each in sorted(changes):
        if up_to is None or each.position <= up_to:
            rows[each.key] = each.position
    return rows


def parts_of(changes: Sequence[Change]) -> list[Part]:
    found = []
    for partition in sorted({each.partition for each in changes}):
        mine = [each for each in changes if each.partition == partition]
        streamed = [each.seq for each in mine if each.position > SNAPSHOT]
        read = [each.seq for each in mine if each.position == SNAPSHOT]
        found.append(
            Part(
                partition,
                "db",
                (min(streamed), max(streamed)) if streamed else None,
                (min(read), max(read)) if read else None,
            )
        )
    return found


class World:
    """A source, its partitions and a driver that reads them."""

    def __init__(self, writes: Sequence[tuple[int, int]], delays: Sequence[int]) -> None:
        reads = [Change(SNAPSHOT, table, key) for table in range(TABLES) for key in range(KEYS)]
        made = [Change(n, *write) for n, write in enumerate(writes, start=SNAPSHOT + 1)]
        self.changes = [*reads, *made]
        self.log: dict[object, list[Change]] = {}
        self.arrives: dict[Change, float] = {}
        for number, change in enumerate(self.changes):
            log = self.log.setdefault(change.partition, [])
            own = change.position + delays[number % len(delays)] % SETTLE
            self.arrives[change] = max([own, *(self.arrives[each] for each in log[-1:])])
            log.append(change)
        self.mirrors = [Mirror() for _ in range(TABLES)]
        self.read: dict[object, int] = dict.fromkeys(self.log, 0)
        self.reached: dict[object, str] = {}
        self.watch, self.now = Watch(), 0.0

    def batch(self, step: Step) -> None:
        self.now += step.seconds
        taken: list[Change] = []
        for number, (partition, log) in enumerate(sorted(self.log.items())):  # type: ignore[type-var]
            start = self.read[partition]
            until = start
            while until < len(log) and until < start + step.read[number % len(step.read)]:
                if self.arrives[log[until]] > self.now:
                    break
                until += 1
            taken += log[max(0, start - step.back[number % len(step.back)]) : until]
            self.read[partition] = until
        for table, mirror in enumerate(self.mirrors):
            mine = [each for each in taken if each.table == table]
            if mine:
                self._apply(mirror, mine, step)
        for change in taken:
            if change.position > SNAPSHOT:
                top = self.reached.get(change.partition, BEGIN)
                self.reached[change.partition] = max(top, change.seq)
        self.watch = self.watch.reaching(self.tops(), self.now)
        if self.caught_up():
            self.watch = self.watch.had_all(self.now, SETTLE)

    def _apply(self, mirror: Mirror, mine: list[Change], step: Step) -> None:
        aside = {each for each in mine if step.aside and each.position % 4 == step.aside} - mirror.applied
        if aside:
            mirror.aside |= aside
            mirror.gap = min(mirror.gap, *(each.seq for each in mine))
        mirror.commit([each for each in mine if each not in aside], parts_of(mine), self.reached)
        if step.replay and mirror.aside:
            again = sorted(mirror.aside)
            mirror.aside = set()
            mirror.commit(again, parts_of(again), {})

    def caught_up(self) -> bool:
        left = [change for partition, log in self.log.items() for change in log[self.read[partition] :]]
        return all(self.arrives[change] > self.now for change in left)

    def tops(self) -> Iterator[Top]:
        yield from (Top("db", self.reached.get(partition), None) for partition in self.log)

    def below(self) -> str:
        return self.watch.settled.below


def steps(quiet: bool) -> st.SearchStrategy[Step]:
    small = st.lists(st.integers(0, 4), min_size=1, max_size=6)
    none = st.just([0])
    return st.builds(
        Step,
        st.integers(0, 6),
        small,
        none if quiet else st.one_of(none, small),
        st.just(0) if quiet else st.sampled_from([0, 0, 0, 1, 2]),
        st.booleans(),
    )


WRITES = st.lists(st.tuples(st.integers(0, TABLES - 1), st.integers(0, KEYS - 1)), max_size=25)
DELAYS = st.lists(st.integers(0, 9), min_size=1, max_size=7)


@settings(max_examples=400, deadline=None)
@given(WRITES, DELAYS, st.lists(steps(quiet=False), max_size=14))
def test_complete_is_complete_and_versions_show_the_source(
    writes: list[tuple[int, int]], delays: list[int], happens: list[Step]
) -> None:
    """After each batch, with delays, repetitions and records that are kept aside: whatever lies before the
    complete position is applied or known to be kept aside, and for each position the versions that are named
    have the rows that the source had there.
    """
    world = World(writes, delays)
    for step in happens:
        world.batch(step)
        below = world.below()
        for change in world.changes:
            if change.seq < below and below != BEGIN:
                mirror = world.mirrors[change.table]
                assert change in mirror.applied | mirror.aside
        tables = {str(n): mirror.spans(below) for n, mirror in enumerate(world.mirrors)}
        for position in range(len(writes) + 3):
            found = at(tables, seq(position))
            if found.cut is None:
                continue
            for name, version in found.cut.versions.items():
                own = [each for each in world.changes if each.table == int(name)]
                shown = state(world.mirrors[int(name)].versions[version])
                assert shown == state(own, position), f"table {name} at {position}"


@settings(max_examples=200, deadline=None)
@given(WRITES, DELAYS, st.lists(steps(quiet=True), max_size=14))
def test_each_version_that_there_is_is_found(
    writes: list[tuple[int, int]], delays: list[int], happens: list[Step]
) -> None:
    """Without repetitions: where each table has a version with all changes up to a position and no others,
    one that shows the same is named, and else the nearest positions are right.
    """
    world = World(writes, delays)
    for step in happens:
        world.batch(step)
    tables = {str(n): mirror.spans(END) for n, mirror in enumerate(world.mirrors)}
    applied = set().union(*(mirror.applied for mirror in world.mirrors))
    missing = min((each.position for each in world.changes if each not in applied), default=10**6)
    good = []
    for position in range(SNAPSHOT, len(writes) + 3):
        exact = all(
            any(
                version
                == {each for each in world.changes if (each.table, True) == (n, each.position <= position)}
                for version in mirror.versions
            )
            for n, mirror in enumerate(world.mirrors)
        )
        if exact and position < missing:
            good.append(position)
            assert at(tables, seq(position)).cut is not None, position
    for position in range(SNAPSHOT, min(missing, len(writes) + 3)):
        found = at(tables, seq(position))
        if found.cut is None:
            assert found.lacking or found.nearest
            assert (found.nearest.before is not None) == any(each < position for each in good)
            after = found.nearest.after
            assert after is not None or not any(each > position for each in good)


@settings(max_examples=200, deadline=None)
@given(WRITES, DELAYS)
def test_in_the_end_the_newest_versions_are_named(writes: list[tuple[int, int]], delays: list[int]) -> None:
    """All is read, and nothing comes for as long as it takes to settle: the last change is a position that
    all tables have.
    """
    world = World(writes, delays)
    for _ in range(3):
        world.batch(Step(40, [100], [0], 0, replay=False))
    last = world.changes[-1]
    if last.position == SNAPSHOT:
        return
    tables = {str(n): mirror.spans(world.below()) for n, mirror in enumerate(world.mirrors)}
    found = at(tables, last.seq)
    assert found.cut is not None
    newest = [state(mirror.versions[-1]) for mirror in world.mirrors]
    named = [state(mirror.versions[found.cut.versions[str(n)]]) for n, mirror in enumerate(world.mirrors)]
    assert named == newest
