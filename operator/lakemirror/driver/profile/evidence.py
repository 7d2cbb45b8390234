"""Decides whether the source's positions have started again, from the stretches of its streams.

Pure functions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from lakemirror.driver.profile.positions import (
    MOST,
    Began,
    Former,
    Memory,
    Place,
    Standing,
    Stream,
    StreamSeen,
    Stretch,
    highest,
    latest,
    with_servers,
)

Later = Mapping[Stream, Sequence[tuple[Former, Stretch]]]
"""By stream: what it has below and later than what mirrors have, with one stretch per table."""
Ask = Callable[[str], Sequence[Standing] | None]
"""Returns what the mirror of a source table has, or None if that cannot be read."""


def is_unclear(place: Place, seen: StreamSeen, *, known: bool = True) -> bool:
    """Return whether something may lie below what came before it, so that a closer look is needed.

    ``place`` is what was remembered before the batch, if the stream was ``known``.
    """
    after = advanced(place, seen)
    low = min(low for low, _ in seen.tables.values())
    fell = known and low < place.top.seq and max(seen.last, seen.last_unanchored) > place.top.offset
    unanchored = after.streamed is not None and seen.last_unanchored > after.streamed.offset
    return fell or unanchored or not seen.ordered or seen.last > after.top.offset


def settle(place: Place, stretches: Sequence[Stretch]) -> Place:
    """Return what to remember about a stream after the ``stretches`` of a batch, which are sorted by offset.

    What lies below what came before is undecided until something lies above again. Evidence stays, however.
    """
    for stretch in stretches:
        if not stretch.above:
            place = replace(place, tail=tuple(_joined(place.tail, stretch)[:MOST]))
        elif any(is_evidence(each, place) for each in place.tail):
            break
        else:
            place = replace(
                place,
                time=latest(place.time, stretch.time),
                servers=with_servers(place, stretch),
                tail=tuple(each for each in place.tail if each.last > stretch.last),
            )
    return place


def is_evidence(stretch: Stretch, place: Place) -> bool:
    """Return whether a stretch cannot be a repeated delivery.

    That is the case if it is later than everything before it, or comes from a new server.
    """
    later = stretch.time is not None and place.time is not None and stretch.time > place.time
    moved = bool(place.servers) and not set(stretch.servers) <= set(place.servers)
    return later or moved


def starts(memory: Memory, later: Later, tolerance: int) -> dict[tuple[str, int], int]:
    """Return where a new epoch begins, by topic and partition. Empty if there is no evidence.

    If one partition has evidence, the undecided tails of the same connector's other partitions are included,
    unless they are nearer to where their partition stood: those were sent again. ``later`` holds what is
    later than a mirror. ``tolerance`` is in microseconds.
    """
    found = _evidence(memory, later, tolerance)
    begun: dict[tuple[str, int], int] = {}
    for stream, place in memory.items():
        evidence = found.get(stream.name)
        offsets = _begins(place, later.get(stream, ()), evidence) if evidence else []
        if offsets:
            where = stream.topic, stream.partition
            begun[where] = min([*offsets, *([begun[where]] if where in begun else [])])
    return begun


def _evidence(memory: Memory, later: Later, tolerance: int) -> dict[str, list[Stretch]]:
    """Return what cannot have been sent again, by connector."""
    found: dict[str, list[Stretch]] = {}
    for stream, place in memory.items():
        found.setdefault(stream.name, []).extend(each for each in place.tail if is_evidence(each, place))
    for stream, stretches in later.items():
        found.setdefault(stream.name, []).extend(
            each
            for former, each in stretches
            if each.time is not None and each.time > former.time + tolerance
        )
    return found


def _begins(place: Place, later: Sequence[tuple[Former, Stretch]], evidence: Sequence[Stretch]) -> list[int]:
    """Return the offsets from which a stream's changes belong to the new positions."""
    undecided = [(each, place.top.seq) for each in place.tail if not _is_known(each, place, evidence)]
    undecided += [(each, former.seq) for former, each in later]
    offsets = [
        each.first for each, stood in undecided if each in evidence or _is_nearer(each, evidence, stood)
    ]
    return offsets + [former.first for former in place.former.values() if former.first is not None]


def _is_known(stretch: Stretch, place: Place, evidence: Sequence[Stretch]) -> bool:
    """Return whether a stretch comes from known servers only and is not evidence itself."""
    return bool(stretch.servers) and set(stretch.servers) <= set(place.servers) and stretch not in evidence


def _is_nearer(stretch: Stretch, evidence: Sequence[Stretch], stood: str) -> bool:
    """Return whether a stretch lies nearer to the new positions than to where its partition stood."""
    low, here, before = (int(each, 16) for each in (min(each.low for each in evidence), stretch.low, stood))
    high = int(max(each.high for each in evidence), 16)
    away = max(low - here, here - high, 0)
    return away < before - here


def first_place(stream: Stream, seen: StreamSeen, memory: Memory, standing: Ask) -> Place:
    """Return the place of a stream that is read for the first time."""
    known = {(each.topic, each.partition) for each in memory}
    return _asked(Place(seen.top), stream, seen.tables, known, standing)


def asked_again(place: Place, stream: Stream, seen: StreamSeen, memory: Memory, standing: Ask) -> Place:
    """Return the place, with what those mirrors have that could not tell before.

    Only mirrors of tables in the batch are asked.
    """
    known = {(each.topic, each.partition) for each in memory} - {(stream.topic, stream.partition)}
    tables = [table for table in place.unread if table in seen.tables]
    left = tuple(table for table in place.unread if table not in tables)
    return _asked(replace(place, unread=left), stream, tables, known, standing)


def _asked(
    place: Place,
    stream: Stream,
    tables: Iterable[str],
    known: Collection[tuple[str | None, int | None]],
    standing: Ask,
) -> Place:
    """Return the place, with what the mirrors of ``tables`` have from partitions that are not ``known``."""
    former, unread = dict(place.former), list(place.unread)
    for table in tables:
        stands = standing(table)
        if stands is None:
            unread.append(table)
            continue
        groups = [group for group in stands if (group.topic, group.partition) not in known]
        same = [g for g in groups if (g.topic, g.partition) == (stream.topic, stream.partition)]
        found = same or [g for g in groups if g.topic == stream.topic] or groups
        times = [group.time for group in found if group.time is not None]
        if times:
            former[table] = Former(max(group.seq for group in found), max(times))
    return replace(place, former=former, unread=tuple(unread))


def unbroken(seen: StreamSeen) -> Stretch:
    """Return the single stretch of a batch in which no position falls back."""
    low = min(low for low, _ in seen.tables.values())
    return Stretch(-1, seen.top.offset, low, seen.top.seq, seen.time, tuple(seen.servers), above=True)


def advanced(place: Place, seen: StreamSeen) -> Place:
    """Return the place, raised to the highest positions of a batch."""
    return replace(place, top=max(place.top, seen.top), streamed=highest(place.streamed, seen.streamed))


def with_snapshots(place: Place, seen: StreamSeen) -> Place:
    """Return the place with the snapshots of a batch that is going to be applied, except undecided ones."""
    decided = {at for at in seen.reads if not any(each.low <= at <= each.high for each in place.tail)}
    if unreached(place) or decided <= set(place.snapshots):
        return place
    return replace(place, snapshots=tuple(sorted({*place.snapshots, *decided}))[-MOST:])


def _joined(stretches: Sequence[Stretch], stretch: Stretch) -> list[Stretch]:
    """Add a stretch to the earlier ones.

    It is joined with the last one if it continues it, and with one that it overlaps, so that a known stretch
    is not added twice.
    """
    for i, other in enumerate(stretches):
        overlaps = stretch.first <= other.last and other.first <= stretch.last
        last = i == len(stretches) - 1
        goes_on = last and stretch.first > other.last and stretch.low >= other.high
        moved = stretch.servers and other.servers and not set(stretch.servers) & set(other.servers)
        if overlaps or (goes_on and not moved):
            both = Stretch(
                min(stretch.first, other.first),
                max(stretch.last, other.last),
                min(stretch.low, other.low),
                max(stretch.high, other.high),
                latest(stretch.time, other.time),
                tuple(sorted({*stretch.servers, *other.servers})),
            )
            return [*stretches[:i], both, *stretches[i + 1 :]]
    return sorted([*stretches, stretch], key=lambda each: each.first)


def formers(places: Memory, seen: Mapping[Stream, StreamSeen]) -> Iterable[tuple[Stream, dict[str, Former]]]:
    """Yield the streams that have something below and later than what a mirror has."""
    for stream, each in seen.items():
        found = {}
        for table, former in places[stream].former.items():
            low, time = each.tables.get(table, ("", None))
            if time is not None and low < former.seq and time > former.time:
                found[table] = former
        if found:
            yield stream, found


def without_reached(place: Place, later: Sequence[tuple[Former, Stretch]]) -> Place:
    """Return the place without the tables whose mirrors its stream has caught up with.

    The remaining ones get the offset at which their waiting changes begin.
    """
    firsts = {former: stretch.first for former, stretch in later}
    left = {}
    for table, former in unreached(place):
        known = [each for each in (former.first, firsts.get(former)) if each is not None]
        left[table] = replace(former, first=min(known, default=None))
    return replace(place, former=left) if place.former else place


def unreached(place: Place) -> list[tuple[str, Former]]:
    """Return the tables whose mirrors are still ahead of their stream, and what these mirrors hold."""
    return [(table, each) for table, each in place.former.items() if place.top.seq < each.seq]


def earliest(*found: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], int]:
    """Return where an epoch begins, by topic and partition: the lowest offset of all that was ``found``."""
    merged: dict[tuple[str, int], int] = {}
    for each in found:
        for where, offset in each.items():
            merged[where] = min(offset, merged.get(where, offset))
    return merged


def with_restarts(
    places: Memory,
    before: Memory,
    seen: Mapping[Stream, StreamSeen],
    begun: Mapping[tuple[str, int], int],
    mirrored: Callable[[str], bool],
    *,
    reads: bool,
) -> dict[Stream, Place]:
    """Return the places, with the tables that wait for an epoch in the partitions where it ``begun``.

    What these tables had in the batch is not applied, so that the places stay where they were ``before`` it.
    ``reads`` says whether all changes since then were rows of a snapshot, in partitions that begin now.
    """
    found = dict(places)
    for stream, place in places.items():
        where = stream.topic, stream.partition
        if where not in begun:
            continue
        stood = before.get(stream, place)
        tables = {table for table in (seen[stream].tables if stream in seen else ()) if mirrored(table)}
        known = place.began
        began = Began(
            begun[where],
            tuple(sorted(tables | set(known.tables if known is not None else ()))),
            known.reads if known is not None else reads,
        )
        found[stream] = replace(place, top=stood.top, streamed=stood.streamed, began=began)
    return found
