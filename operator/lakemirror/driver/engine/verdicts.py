"""Which tables of a batch are as plain as they were believed to be. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from lakemirror.api.limits import CONNECTOR_LENGTH
from lakemirror.api.spec import Ordering
from lakemirror.driver.engine.believed import Believed
from lakemirror.driver.engine.blocks import Report
from lakemirror.driver.engine.buckets import Done
from lakemirror.driver.profile import evidence
from lakemirror.driver.profile.positions import Memory, Place, Stream
from lakemirror.driver.rules import restarts
from lakemirror.driver.rules.restarts import Point
from lakemirror.driver.tables.names import TableName

_MOST_ASIDE: Final = 1_000
"""Maximum number of records of a table that cannot be applied, in one batch."""
_MAJOR: Final = slice(2, 12)
"""What a sequence has of a position (`rules.positions`); zeros if an offset orders its change, or nothing."""


class Candidate(NamedTuple):
    """What a job has found for a table."""

    table: Believed
    report: Report
    done: Sequence[Done]


class Reason(NamedTuple):
    """Why a table is left for Spark. ``falls_back`` says that a closer look at its positions may help."""

    text: str
    falls_back: bool = False


@dataclass(frozen=True)
class Verdict:
    """The tables that are left for Spark, and what to remember of the streams of all others.

    ``fell`` are those of the others whose positions had to be looked at one by one; None if Spark has judged
    all positions.
    """

    left: Mapping[TableName, Reason]
    memory: Memory = field(default_factory=dict)
    fell: frozenset[TableName] | None = None


def judge(candidates: Sequence[Candidate], memory: Memory, ordering: Ordering) -> Verdict:
    """Determine which tables are plain. ``memory`` is what is remembered of the source's positions."""
    undecided = frozenset(stream.name for stream, place in memory.items() if _is_undecided(place))
    left: dict[TableName, Reason] = {}
    for each in candidates:
        reason = _against(each, memory, undecided)
        if reason is not None:
            left[each.table.name] = reason
    plain = [each for each in candidates if each.table.name not in left]
    places = _places(plain, memory, ordering, left)
    fell = (each.table.name for each in plain if _any_falls_back(each, memory))
    return Verdict(left, places, frozenset(fell) - left.keys())


def judge_planned(
    candidates: Sequence[Candidate], memory: Memory, numbers: Mapping[TableName, tuple[int, int]]
) -> Verdict:
    """Determine the same for tables that have just been planned, whose positions Spark has judged.

    ``memory`` is what is remembered of the streams after the batch. ``numbers`` says how many changes and
    Kafka tombstones of each table were seen: as many must have been read.
    """
    undecided = frozenset(stream.name for stream, place in memory.items() if _is_undecided(place))
    left = {}
    for each in candidates:
        reason = next(_reasons(each, memory, undecided), None)
        tombstones = each.report.tombstones
        changes = each.report.records - tombstones - each.report.unreadable
        if reason is None and (changes, tombstones) != numbers[each.table.name]:
            reason = "other records were read than were seen at first"
        if reason is not None:
            left[each.table.name] = Reason(reason)
    return Verdict(left)


def _places(
    plain: Sequence[Candidate], memory: Memory, ordering: Ordering, left: dict[TableName, Reason]
) -> Memory:
    """Return what to remember of the streams of plain tables, and add those that are not plain after all."""
    of_stream = {stream: each for each in plain for stream in each.report.seen.streams}
    if not of_stream:
        return {}

    def look(stream: Stream) -> list[Point]:
        each = of_stream[stream]
        return [
            point for block in each.report.seen.points[stream] for point in block.listed(str(each.table.name))
        ]

    seen = {stream: each.report.seen.streams[stream] for stream, each in of_stream.items()}
    verdict = restarts.judge(seen, look, memory, ordering)
    for stream, each in of_stream.items():
        if stream in verdict.held or (stream.topic, stream.partition) in verdict.begun:
            left[each.table.name] = Reason("its positions may have started again")
    kept = {each.table.topic for each in plain if each.table.name not in left}
    return {stream: verdict.memory[stream] for stream in of_stream if stream.topic in kept}


def _against(found: Candidate, memory: Memory, undecided: frozenset[str]) -> Reason | None:
    """Return why a table is left for Spark, as far as it shows by itself."""
    for text in _reasons(found, memory, undecided):
        return Reason(text)
    if _any_falls_back(found, memory) and not found.table.closer:
        return Reason("positions of its stream fall back", falls_back=True)
    return None


def _reasons(found: Candidate, memory: Memory, undecided: frozenset[str]) -> Iterator[str]:
    table, report, done = found
    seen, streams = report.seen, report.seen.streams.keys()
    if report.odd is not None:
        yield f"not all of its records are plain: {report.odd}"
    for each in done:
        if each.error is not None:
            yield f"a task failed: {each.error}"
    if seen.records - report.spoilt != sum(sum(each.counted.outcomes.values()) for each in done):
        yield "not each change has exactly one outcome"
    if report.aside and seen.records == report.spoilt:
        yield "it has no change that can be applied"
    if len(report.aside) > _MOST_ASIDE:
        yield "many of its records cannot be applied"
    if len({(each.partition, each.offset) for each in report.aside}) < len(report.aside):
        yield "a record that cannot be applied was sent twice"
    if table.collected is not None and seen.ends is not None and seen.ends[0] <= table.collected:
        yield "a tombstone that was collected may be newer"
    if not streams <= memory.keys():
        yield "it has changes of a new stream"
    if seen.ends is not None and not any(seen.ends[0][_MAJOR]):
        yield "a change has no position"
    if any(each.strays for each in seen.parts.values()):
        yield "a change names no log"
    if not {each.name for each in streams} <= table.logs:
        yield "it has changes of another log"
    if any(len(name) > CONNECTOR_LENGTH.most for each in seen.streams.values() for name in each.servers):
        yield f"the name of a server is beyond {CONNECTOR_LENGTH}"
    if not table.logs.isdisjoint(undecided):
        yield "changes of its log are undecided"


def _any_falls_back(found: Candidate, memory: Memory) -> bool:
    streams = found.report.seen.streams
    return any(evidence.is_unclear(memory[stream], each.seen()) for stream, each in streams.items())


def _is_undecided(place: Place) -> bool:
    return bool(place.tail or place.unread or place.began or place.former)
