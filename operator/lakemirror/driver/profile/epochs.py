"""Epochs of positions: what a declared epoch decides, and which epoch must be declared. Pure functions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from lakemirror.api.spec import Ordering
from lakemirror.driver.profile.evidence import Later
from lakemirror.driver.profile.positions import At, Memory, Place, Stream, highest, latest, with_servers

_SNAPSHOT: Final = (
    " All of them are rows of a snapshot. The new epoch is also right where the source is what it was and "
    "its connector read the tables again from an old position: these rows then replace what the mirror has."
)


def with_epochs(memory: Memory, ordering: Ordering) -> Memory:
    """Return what was remembered, with the epochs that have been declared since applied to it."""
    return {
        stream: declared(place, _starts_of(stream, ordering)) if place.tail else place
        for stream, place in memory.items()
    }


def declared(place: Place, epochs: Sequence[tuple[int, int]]) -> Place:
    """Settle a place's undecided tail if an epoch was declared for it.

    The tail is then what came last, and what follows may lie below it. ``epochs`` are pairs of a number and a
    first offset.
    """
    tail = []
    for stretch in place.tail:
        number = max((number for number, first in epochs if first <= stretch.first), default=0)
        low, high = (f"{number:04x}{each[4:]}" for each in (stretch.low, stretch.high))
        if low <= place.top.seq:
            tail.append(stretch)
            continue
        top = At(high, stretch.last)
        place = replace(
            place,
            top=top,
            streamed=highest(place.streamed, top),
            time=latest(place.time, stretch.time),
            servers=with_servers(place, stretch),
        )
    return replace(place, tail=tuple(tail))


def _starts_of(stream: Stream, ordering: Ordering) -> list[tuple[int, int]]:
    """Return where the declared epochs begin in a stream's partition, as pairs of a number and an offset."""
    found = ((each.epoch, each.from_.get(stream.topic, {})) for each in ordering.epochs)
    return [(number, firsts[stream.partition]) for number, firsts in found if stream.partition in firsts]


def remedy(
    begun: Mapping[tuple[str, int], int],
    memory: Memory,
    later: Later,
    ordering: Ordering,
    *,
    snapshot: bool = False,
) -> str:
    """Return a message that says what happened and what to do.

    It contains the complete new value of ``ordering.epochs``. ``snapshot`` means that all of these records
    are rows of a snapshot.
    """
    (topic, partition), offset = min(begun.items())
    stretches = [
        stretch
        for stream, place in memory.items()
        if (stream.topic, stream.partition) == (topic, partition)
        for stretch in (*place.tail, *(stretch for _, stretch in later.get(stream, ())))
        if stretch.first >= offset
    ]
    time = max((stretch.time for stretch in stretches if stretch.time is not None), default=None)
    servers = sorted({server for stretch in stretches for server in stretch.servers})
    details = "; ".join(
        ([f"up to {_shown(time)} UTC"] if time is not None else [])
        + ([f"server {', '.join(servers)}"] if servers else [])
    )
    epochs = json.dumps(extended(ordering, begun))
    return (
        f"positions of the source start again: topic {topic}, partition {partition}, offset {offset} and "
        f"later{f' ({details})' if details else ''}: these records were made after those that were read "
        "before them, but stand before them in the source's log. Nothing of this batch was written. If "
        f"the source failed over or was restored, declare a new epoch: ordering.epochs: {epochs}; if these "
        "are old records that were sent again, declare it as well, and make the mirror equal to the source "
        "afterwards, with lakemirror verify --repair." + (_SNAPSHOT if snapshot else "")
    )


def extended(ordering: Ordering, begun: Mapping[tuple[str, int], int]) -> list[dict[str, Any]]:
    """Return the declared epochs, plus the one that begins at ``begun``.

    It is a new epoch, unless the highest declared one does not have any of these partitions yet.
    """
    epochs: list[dict[str, Any]] = [
        {"epoch": each.epoch, "from": {t: {str(p): o for p, o in starts.items()} for t, starts in froms}}
        for each in ordering.epochs
        for froms in [each.from_.items()]
    ]
    newest = epochs[-1]["from"] if epochs else {}
    if not epochs or any(str(partition) in newest.get(topic, {}) for topic, partition in begun):
        epochs.append({"epoch": epochs[-1]["epoch"] + 1 if epochs else 1, "from": {}})
    for (topic, partition), offset in sorted(begun.items()):
        epochs[-1]["from"].setdefault(topic, {})[str(partition)] = offset
    return epochs


def _shown(micros: int) -> str:
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)).strftime("%Y-%m-%d %H:%M:%S")
