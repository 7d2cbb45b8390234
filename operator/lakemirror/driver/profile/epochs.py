"""Epochs of positions: what a declared epoch decides, and which epoch must be declared. Pure functions."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from lakemirror.api.spec import Ordering
from lakemirror.driver.profile.evidence import Later
from lakemirror.driver.profile.positions import At, Memory, Place, Stream, highest, latest, with_servers

_SNAPSHOT: Final = (
    " All of them are rows of a snapshot. The new epoch is also right where the source is what it was and "
    "its connector read the tables again from an old position: these rows then replace what the mirror has."
)


_NAMED: Final = 10
"""The number of tables that a message names."""


class Partition(NamedTuple):
    """A partition of a topic. Both are None if records do not say where they are from."""

    topic: str | None
    number: int | None


def epoch_of_table(
    origins: Collection[Partition], known: Mapping[str, Collection[int]], ordering: Ordering
) -> int:
    """Return the epoch in which a table is as a whole: the lowest one among its partitions.

    A declared epoch lists only the partitions that had to begin it. In the others, the changes of the new
    server lie above those of the former one, and keep the former epoch. A row written in a higher epoch than
    that of its partition is above all later changes of its key, and so would never change again. Nothing
    tells the partition of a row that the mirror lacks. In too low an epoch, on the other hand, a row is below
    the later changes, and each of them shows. So the lowest epoch is always safe.

    ``origins`` are the partitions that the mirror has rows or tombstones from, and ``known`` are the
    partitions of topics: the next change of the table may come from any partition of its topics. A table
    without origins is in epoch 0, because its topic need not exist yet.
    """
    topics = {each.topic for each in origins}
    possible = {*origins, *(e for e in (*_declared(ordering), *_partitions(known)) if e.topic in topics)}
    return min((_newest(each, ordering) for each in possible), default=0)


def epoch_of_log(streams: Iterable[Stream], log: str | None, ordering: Ordering) -> int:
    """Return the epoch that a log of the source is in now: the highest one among its partitions.

    ``streams`` are those that are remembered. A partition that none of them has may belong to any log, and
    if the ``log`` is unknown (None), each one may.
    """
    named = [(each.name, Partition(each.topic, each.partition)) for each in streams]
    others = {each for _, each in named} - {each for name, each in named if log in (None, name)}
    found = [each.epoch for each in ordering.epochs if not others.issuperset(_partitions(each.from_))]
    return max(found, default=0)


def _partitions(topics: Mapping[str, Iterable[int]]) -> list[Partition]:
    return [Partition(topic, number) for topic, numbers in topics.items() for number in numbers]


def _newest(partition: Partition, ordering: Ordering) -> int:
    """Return the newest epoch that is declared for a partition, whether its records have reached it or not.

    What they have before it was made by the former server, and lies below all that the new one writes.
    """
    topic, number = partition
    return max((e.epoch for e in ordering.epochs if number in e.from_.get(topic or "", {})), default=0)


def with_epochs(memory: Memory, ordering: Ordering) -> Memory:
    """Return what was remembered, with the epochs that have been declared since applied to it."""
    return {
        stream: declared(place, _starts_of(stream, ordering)) if place.tail or place.began else place
        for stream, place in memory.items()
    }


def declared(place: Place, epochs: Sequence[tuple[int, int]]) -> Place:
    """Settle a place's undecided tail if an epoch was declared for it.

    The tail is then what came last, and what follows may lie below it. ``epochs`` are pairs of a number and a
    first offset. Tables wait no more once a higher epoch than that of the place begins early enough.
    """
    began = place.began
    if began is not None:
        newest = max((number for number, first in epochs if first <= began.offset), default=0)
        place = replace(place, began=began if newest <= _epoch_of(place) else None)
    settled = began is not None and place.began is None
    tail = []
    for stretch in place.tail:
        number = max((number for number, first in epochs if first <= stretch.first), default=0)
        low, high = (f"{number:04x}{each[4:]}" for each in (stretch.low, stretch.high))
        if low <= place.top.seq:
            # All that waited is in the epoch, such as a change below its snapshot, unless a server says no.
            if not settled or (place.servers and not set(stretch.servers) <= set(place.servers)):
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


def _epoch_of(place: Place) -> int:
    return int(place.top.seq[:4] or "0", 16)


def waiting(memory: Memory) -> dict[tuple[str, int], int]:
    """Return where an epoch has to begin for which tables wait, by topic and partition."""
    found: dict[tuple[str, int], int] = {}
    for stream, place in memory.items():
        if place.began is not None:
            where = stream.topic, stream.partition
            found[where] = min(place.began.offset, found.get(where, place.began.offset))
    return found


def tables_of(memory: Memory) -> list[str]:
    """Return the tables that wait for an epoch."""
    return sorted({table for place in memory.values() if place.began for table in place.began.tables})


def message(
    memory: Memory,
    ordering: Ordering,
    later: Later = MappingProxyType({}),
    partitions: Mapping[str, Collection[int]] = MappingProxyType({}),
) -> str | None:
    """Return what happened and what to do, if tables wait for an epoch; otherwise None.

    ``partitions`` are those of the topics, as far as they are known.
    """
    begun, tables = waiting(memory), tables_of(memory)
    if not begun or not tables:
        return None
    more = len(tables) - _NAMED
    names = ", ".join(tables[:_NAMED]) + (f" and {more} more" if more > 0 else "")
    rest = unread(begun, partitions, memory, ordering)
    added = {where: offset for where, offset in begun.items() if _is_added(where, offset, ordering)}
    if len(added) == len(begun):
        return f"{remedy_of_undeclared({**rest, **added}, ordering)}. Waiting: {names}"
    restarted = {where: offset for where, offset in begun.items() if where not in added}
    reads = all(place.began.reads for place in memory.values() if place.began is not None)
    told = remedy(restarted, memory, later, ordering, snapshot=reads, besides={**rest, **added})
    return f"{told.rstrip().removesuffix('.')}. Waiting: {names}"


def _is_added(where: tuple[str, int], offset: int, ordering: Ordering) -> bool:
    """Return whether a partition waits only because its topic is in an epoch and the partition is not."""
    declared = _declared(ordering)
    return offset == 0 and Partition(*where) not in declared and where[0] in {each.topic for each in declared}


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
    besides: Mapping[tuple[str, int], int] = MappingProxyType({}),
) -> str:
    """Return a message that says what happened and what to do.

    It contains the complete new value of ``ordering.epochs``, in which the epoch also begins where
    ``besides`` says. ``snapshot`` means that all of these records are rows of a snapshot.
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
    epochs = json.dumps(extended(ordering, {**besides, **begun}))
    return (
        f"positions of the source start again: topic {topic}, partition {partition}, offset {offset} and "
        f"later{f' ({details})' if details else ''}: these records were made after those that were read "
        "before them, but stand before them in the source's log. Their tables wait, and the others go on. If "
        f"the source failed over or was restored, declare a new epoch: ordering.epochs: {epochs}; if these "
        "are old records that were sent again, declare it as well, and make the mirror equal to the source "
        "afterwards, with lakemirror verify --repair." + (_SNAPSHOT if snapshot else "")
    )


def remedy_of_moved(
    begun: Mapping[tuple[str, int], int], ordering: Ordering, besides: Mapping[tuple[str, int], int]
) -> str:
    """Return a message about changes of another log that lie below rows of mirrors and are later.

    It contains the complete new value of ``ordering.epochs``.
    """
    return remedy(begun, {}, {}, ordering, besides=besides)


def undeclared(seen: Iterable[Stream], memory: Memory, ordering: Ordering) -> dict[tuple[str, int], int]:
    """Return the partitions that have their first change now and are in no epoch, although their topics are.

    As a rule, they were added to the topic after a failover. Rows may have moved there from partitions that
    are in an epoch, and in a lower one, all further changes of these rows would be stale. The result has the
    offset from which they belong to the newest epoch. A reading that remembers nothing of a topic, such as
    that of a new checkpoint, reads all of its partitions for the first time, and none is returned.
    """
    known, listed = _known(memory), _declared(ordering)
    topics = {each.topic for each in listed} & {each.topic for each in known}
    new = {Partition(each.topic, each.partition) for each in seen if each.topic in topics}
    return {(str(each.topic), int(each.number or 0)): 0 for each in new - known - listed}


def unread(
    begun: Iterable[tuple[str, int]],
    partitions: Mapping[str, Collection[int]],
    memory: Memory,
    ordering: Ordering,
) -> dict[tuple[str, int], int]:
    """Return the other ``partitions`` of the topics where an epoch begins that have had no change yet.

    They begin the epoch with their first record, so that they are not `undeclared` later.
    """
    taken = _known(memory) | _declared(ordering) | {Partition(*each) for each in begun}
    topics = {topic for topic, _ in begun}
    return {
        (topic, number): 0
        for topic in sorted(topics)
        for number in sorted(partitions.get(topic, ()))
        if Partition(topic, number) not in taken
    }


def _known(memory: Memory) -> set[Partition]:
    return {Partition(each.topic, each.partition) for each in memory}


def _declared(ordering: Ordering) -> set[Partition]:
    return {each for epoch in ordering.epochs for each in _partitions(epoch.from_)}


def remedy_of_undeclared(new: Mapping[tuple[str, int], int], ordering: Ordering) -> str:
    """Return a message about `undeclared` partitions, with the complete new value of ``ordering.epochs``."""
    topic, partition = min(new)
    return (
        f"topic {topic} is in an epoch, and ordering.epochs does not name its partition {partition}, which "
        "has its first records now: outside the epoch, they would be taken for old changes of rows that "
        "were in other partitions before. Their tables wait. Declare the epoch for this "
        f"partition, too: ordering.epochs: {json.dumps(extended(ordering, new))}; the order within it stays "
        "the same"
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
