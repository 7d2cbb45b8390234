"""Detects positions that start again after a failover or a restore, before any such change is dropped.

In each partition, the changes of one connector are in the order of their positions. A connector that restarts
sends a tail again, until it reaches the highest position again. So a change that lies below what came before
it was either sent again, or made by another server whose log began elsewhere. A change that is sent again is
never later than everything before it, and never comes from a new server. A change that is later or comes from
a new server is therefore evidence that the positions have started again. Without evidence, the changes since
the highest position are undecided: they wait in the quarantine until the highest position is reached again or
an epoch is declared.

Rows of a snapshot have the position at which the snapshot was read; if the snapshot is taken again, its
position is higher. Rows at exactly the position of a snapshot that was applied earlier come from the same
source, and are applied however late they arrive.

A reading without a memory of positions (a new checkpoint, a reset, a new topic) is compared with the
positions in the mirrors. In that case, everything may be sent again. Only what is later than everything in
the mirrors waits, and it is evidence if it is later by more than ``ordering.toleranceMs``.

Once there is evidence, the tables of that stream wait as a whole, until an epoch is declared that begins
there or before. All other tables go on: the evidence may be a single record that somebody made up.

`judge` is the entry point for a batch. `positions` defines what is remembered, `stretches` finds it in the
events with Spark, `evidence` decides, and `epochs` says what to do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lakemirror.api.spec import Ordering
from lakemirror.driver.codes import Op
from lakemirror.driver.profile import evidence, stretches
from lakemirror.driver.profile.epochs import message, tables_of, undeclared, waiting
from lakemirror.driver.profile.evidence import Ask, Later
from lakemirror.driver.profile.positions import Memory, Stream, StreamSeen

_REASON: Final = (
    "undecided: its position lies below that of an earlier record of its partition, and nothing shows yet "
    "whether the source sends changes again or was restored. It is applied once that shows, or once "
    "ordering.epochs says so"
)
_SNAPSHOT_REASON: Final = (
    "undecided: a row of a snapshot that was read at a position below that of an earlier record of its "
    "partition, and nothing shows yet whether an old snapshot is sent again or the source was restored. It "
    "is applied once a later change of its partition shows that, or once ordering.epochs says so; if the "
    "database is the same, `lakemirror reload` makes the mirror equal to it meanwhile"
)


@dataclass(frozen=True)
class Restarted:
    """Positions that have started again: the ``tables`` wait for an epoch, and ``message`` says which."""

    tables: frozenset[str]
    message: str


@dataclass(frozen=True)
class Verdict:
    """The verdict on a batch.

    ``held`` is a BOOLEAN column that selects the events that wait (`reason` says why), or None if none do.
    ``memory`` is what to remember. ``restarted`` has the tables that wait as a whole, if any do.
    """

    memory: Memory
    held: Column | None = None
    restarted: Restarted | None = None


def reason() -> Column:
    """STRING: why an event waits."""
    return F.when(F.col("op") == Op.READ, _SNAPSHOT_REASON).otherwise(_REASON)


def judge(
    events: DataFrame,
    seen: Mapping[Stream, StreamSeen],
    memory: Memory,
    ordering: Ordering,
    standing: Ask = lambda table: (),
    again: Ask | None = None,
    partitions: Callable[[], Mapping[str, Collection[int]]] = dict,
    mirrored: Callable[[str], bool] = lambda table: True,
) -> Verdict:
    """Determine which events and tables of a batch must wait, and what to remember about the batch.

    ``standing`` returns what the mirror of a source table has, and ``again`` does so for a mirror that could
    not tell before. ``partitions`` returns the partitions of each topic, as far as they are known.
    ``mirrored`` says whether a table is mirrored; the others do not wait.
    """
    before = {}
    for stream, each in seen.items():
        place = memory.get(stream)
        if place is None:
            before[stream] = evidence.first_place(stream, each, memory, standing)
        else:
            before[stream] = evidence.asked_again(place, stream, each, memory, again or standing)
    unclear = [s for s, each in seen.items() if evidence.is_unclear(before[s], each, known=s in memory)]
    looked = stretches.cut(events, {stream: memory.get(stream) for stream in unclear}) if unclear else {}
    found = {s: looked.get(s, ()) if s in unclear else [evidence.unbroken(each)] for s, each in seen.items()}
    places = {
        stream: evidence.settle(evidence.advanced(before[stream], each), found[stream])
        for stream, each in seen.items()
    }
    later = stretches.later_than_mirrors(events, dict(evidence.formers(places, seen)))
    every = {**memory, **places}
    begun = evidence.starts(every, later, ordering.tolerance_ms * 1000)
    begun = evidence.earliest(waiting(memory), undeclared(seen, memory, ordering), begun)
    every |= {s: evidence.with_snapshots(places[s], seen[s]) for s in places if s not in later}
    waits = {stream: every[stream] for stream, place in places.items() if place.tail or stream in later}
    left = {stream: evidence.without_reached(place, later.get(stream, ())) for stream, place in every.items()}
    new = {where: offset for where, offset in begun.items() if where not in waiting(memory)}
    reads = bool(new) and stretches.are_reads(events, new)
    left = evidence.with_restarts(left, before, seen, begun, mirrored, reads=reads)
    restarted = _restarted(left, ordering, later, partitions) if begun else None
    return Verdict(left, stretches.held_by(_elsewhere(waits, begun)), restarted)


def judge_held(
    events: DataFrame,
    seen: Mapping[Stream, StreamSeen],
    memory: Memory,
    ordering: Ordering,
    standing: Ask,
    partitions: Callable[[], Mapping[str, Collection[int]]] = dict,
    mirrored: Callable[[str], bool] = lambda table: True,
) -> Verdict:
    """Determine which of the held events that are tried again, and which of their tables, must still wait.

    They were judged when they were read, except those of tables whose mirrors could not tell what they have.
    """
    known = {stream: memory[stream] for stream in seen if stream in memory}
    places = {
        stream: evidence.asked_again(place, stream, seen[stream], memory, standing)
        for stream, place in known.items()
    }
    told = {
        stream: {table: each for table in place.unread if (each := places[stream].former.get(table))}
        for stream, place in known.items()
    }
    later = stretches.later_than_mirrors(events, {stream: each for stream, each in told.items() if each})
    every = {**memory, **places}
    begun = evidence.starts(every, later, ordering.tolerance_ms * 1000) if later else {}
    begun = evidence.earliest(waiting(memory), begun)
    new = {where: offset for where, offset in begun.items() if where not in waiting(memory)}
    reads = bool(new) and stretches.are_reads(events, new)
    left = evidence.with_restarts(every, every, seen, begun, mirrored, reads=reads)
    restarted = _restarted(left, ordering, later, partitions) if begun else None
    return Verdict(memory, stretches.held_by(_elsewhere(places, begun)), restarted)


def _restarted(
    memory: Memory,
    ordering: Ordering,
    later: Later,
    partitions: Callable[[], Mapping[str, Collection[int]]],
) -> Restarted | None:
    text = message(memory, ordering, later, partitions())
    return None if text is None else Restarted(frozenset(tables_of(memory)), text)


def _elsewhere(memory: Memory, begun: Collection[tuple[str, int]]) -> Memory:
    """Return the streams of other partitions than those whose tables wait as a whole."""
    return {each: place for each, place in memory.items() if (each.topic, each.partition) not in begun}
