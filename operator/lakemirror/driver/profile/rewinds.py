"""Positions that start again, after a failover or a restore: found before anything of them is dropped.

Changes of one connector stand in each partition in the order of their positions. A connector that restarts
sends a tail once more, until it reaches the highest position again. So a change that lies below what came
before it was either sent again, or made by another server, whose log began elsewhere. What is sent again is
never later than all that came before it, and from no new server. So a change that is, is evidence that the
positions have started again. Without evidence the changes since the highest position are undecided: they wait
in the quarantine, until the highest position is reached again or an epoch is declared.

A reading that has no memory of positions (a new checkpoint, a reset, a new topic) is compared with what
stands in the mirrors. There, everything may be sent again: only what is later than all that stands there
waits, and is evidence when it is later by more than ``ordering.toleranceMs``.

`judge` is for the batch. What is remembered is in `positions`, what Spark finds in the events in `stretches`;
`evidence` decides, and `epochs` says what to do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame

from lakemirror.api.spec import Ordering
from lakemirror.driver.errors import SourceRestarted
from lakemirror.driver.profile import evidence, stretches
from lakemirror.driver.profile.epochs import remedy
from lakemirror.driver.profile.positions import Memory, Place, Standing, Stream, StreamSeen, Stretch

REASON: Final = (
    "undecided: its position lies below that of an earlier record of its partition, and nothing shows yet "
    "whether the source sends changes again or was restored. It is applied once that shows, or once "
    "ordering.epochs says so"
)


@dataclass(frozen=True)
class Verdict:
    """``held``: BOOLEAN of the events that wait (their reason is `REASON`); None when none does. ``memory``
    is what to remember.
    """

    memory: Memory
    held: Column | None = None


def judge(
    events: DataFrame,
    seen: Mapping[Stream, StreamSeen],
    memory: Memory,
    ordering: Ordering,
    standing: Callable[[str], Sequence[Standing]] = lambda table: (),
) -> Verdict:
    """What of a batch has to wait, and what to remember of it.

    ``standing`` tells what the mirror of a source table has. Raises SourceRestarted, with the epoch that has
    to be declared.
    """
    before = {
        stream: memory.get(stream) or evidence.first_place(stream, each, memory, standing)
        for stream, each in seen.items()
    }
    unclear = [s for s, each in seen.items() if evidence.is_unclear(before[s], each, known=s in memory)]
    looked = stretches.cut(events, {stream: memory.get(stream) for stream in unclear}) if unclear else {}
    places = {stream: _settled(before[stream], each, looked.get(stream)) for stream, each in seen.items()}
    later = stretches.later_than_mirrors(events, dict(evidence.formers(places, seen)))
    every = {**memory, **places}
    begun = evidence.starts(every, later, ordering.tolerance_ms * 1000)
    if begun:
        raise SourceRestarted(remedy(begun, every, later, ordering))
    waits = {stream: place for stream, place in places.items() if place.tail or stream in later}
    left = {stream: evidence.without_reached(place, later.get(stream, ())) for stream, place in every.items()}
    return Verdict(left, stretches.held_by(waits))


def _settled(before: Place, seen: StreamSeen, looked: Sequence[Stretch] | None) -> Place:
    return evidence.settle(evidence.advanced(before, seen), looked or [evidence.unbroken(seen)])
