"""Where the changes of a block stand in their source: sequences of 26 bytes, as `rules.positions` has them.

Positions of PostgreSQL and of binlogs are made in columns; those of all other sources by the rule, change by
change. A change without a plain place is odd: one that nothing orders, whose position is not valid, or that
belongs to a transaction that may have been open while the snapshot was taken.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakemirror.driver.columns.masks import Mask
from lakemirror.driver.columns.structs import any_struct, binlog_struct, postgres_struct
from lakemirror.driver.rules.envelopes.records import Settings, TableName, placed
from lakemirror.driver.rules.positions import (
    LAST_MICROS,
    NO_ORIGIN,
    WIDTH,
    By,
    Origin,
    Source,
    epoch_at,
    has_position,
    identity,
    log_of,
    misplaced,
    sequence,
    server_of,
)

Bytes = npt.NDArray[np.uint8]


class Places(NamedTuple):
    """The place of each change, and which of them are ``odd``.

    ``seqs`` has a row of 26 bytes for each. ``logs`` identifies the log of its position, besides which the
    position identifies the change (`rules.positions.identity`), as JSON; null: only its origin does.
    """

    seqs: Bytes
    logs: pa.Array
    odd: Mask


class Streams(NamedTuple):
    """The stream that each change is in, and the server that made it, both as far as they are known.

    ``names`` are those of the logs that positions are of (`rules.positions.log_of`).
    """

    names: pa.Array
    servers: pa.Array


class Where(NamedTuple):
    """What is known of changes besides their source blocks: whether a snapshot read them, and from where."""

    snapshot: Mask
    topics: Sequence[str]
    partitions: npt.NDArray[np.int32]
    offsets: npt.NDArray[np.int64]

    def origin(self, number: int) -> Origin:
        """Return where a record was read."""
        return Origin(self.topics[number], int(self.partitions[number]), int(self.offsets[number]))


class Reading(NamedTuple):
    """What is read of source blocks, and what makes places of them."""

    struct: type[msgspec.Struct]
    places: Callable[[Sequence[Any], Where, Settings], Places]
    streams: Callable[[Sequence[Any], By], Streams]


def reading_of(connector: str | None, table: TableName, settings: Settings) -> Reading:
    """Return how the places of a table's changes are read."""
    by = settings.ordering.by
    if connector == "postgresql" and by in ("auto", "lsn"):
        return Reading(postgres_struct(table), _of_postgres, _streams_of_postgres)
    if connector in ("mysql", "mariadb") and by in ("auto", "binlog"):
        return Reading(binlog_struct(table), _of_binlog, _streams_of_binlog)
    return Reading(any_struct(table), _of_any, _streams_of_any)


_PAIR: Final = r'^\[(?:null|"(?P<commit>[0-9]{1,18})"),(?:null|"(?P<last>[0-9]{1,18})")\]$'


def _of_postgres(sources: Sequence[Any], where: Where, settings: Settings) -> Places:
    """(the greater of the last commit and the LSN, the LSN); of an incremental snapshot the last commit."""
    pairs = pc.extract_regex(pa.array(map(attrgetter("sequence"), sources), pa.string()), _PAIR)
    commits, lasts = (_numbers(pairs, name) for name in ("commit", "last"))
    lsns = pa.array(map(attrgetter("lsn"), sources), pa.int64())
    is_logged = lsns.is_valid().to_numpy(zero_copy_only=False)
    lsn, commit, last = (each.fill_null(-1).to_numpy() for each in (lsns, commits, lasts))
    snapshot = where.snapshot
    places = np.zeros((len(sources), WIDTH), np.uint8)
    _put(places, 4, np.where(is_logged, np.maximum(lsn, commit), np.maximum(last, 0)))
    _put(places, 14, np.where(is_logged & ~snapshot, lsn, 0))
    places[:, 25] = np.where(is_logged, ~snapshot, commit >= 0)
    # Without the last commit, a change may be one of a transaction that was open during the snapshot.
    odd = pairs.is_null().to_numpy(zero_copy_only=False)
    odd |= np.where(is_logged, ~snapshot & (commit < 0), last < 0)
    _put_epochs(places, where, settings)
    names = [each.name for each in sources]
    logs = {each: json.dumps((each, None, None, None)) for each in set(names)}
    return Places(places, pa.array(map(logs.__getitem__, names), pa.string()), odd)


def _numbers(pairs: pa.Array, name: str) -> pa.Array:
    """Return a part of pairs; null where it is not there."""
    part = pairs.field(name)
    return pc.if_else(pc.equal(part, ""), None, part).cast(pa.int64())


def _of_binlog(sources: Sequence[Any], where: Where, settings: Settings) -> Places:
    """(number of the file, position, number of the event)."""
    files = [each.file for each in sources]
    majors = {each: _number_of_file(each) for each in set(files)}
    numbers = np.array([majors[each] for each in files], np.int64)
    at = np.array([each.pos or 0 for each in sources], np.int64)
    tie = np.array([0 if each.event_serial_no is None else each.event_serial_no for each in sources])
    places = np.zeros((len(sources), WIDTH), np.uint8)
    _put(places, 4, np.maximum(numbers, 0))
    _put(places, 14, at)
    ties = np.where(where.snapshot, 0, tie + 1).astype(">u4")
    places[:, 22:26] = ties.view(np.uint8).reshape(-1, 4)
    _put_epochs(places, where, settings)
    logs = _logs([(each.name, None, each.row, each.event_serial_no) for each in sources])
    return Places(places, logs, numbers < 0)


def _number_of_file(file: str) -> int:
    """Return the number of a binlog's file, -1 if it has none."""
    source = Source(file=file, pos=0)
    if not has_position(source) or misplaced(source, NO_ORIGIN) is not None:
        return -1
    return int.from_bytes(sequence(source, NO_ORIGIN, snapshot=True)[2:12], "big")


def _of_any(sources: Sequence[Any], where: Where, settings: Settings) -> Places:
    """Return the places that the rule tells."""
    by = settings.ordering.by
    made, logs, odd = [], [], np.zeros(len(sources), np.bool_)
    for number, each in enumerate(sources):
        source = _source(each)
        origin = where.origin(number)
        seq = bytes(WIDTH)
        if misplaced(source, origin, by=by) is None:
            place, unanchored = placed(
                source, origin, settings.ordering, snapshot=bool(where.snapshot[number])
            )
            seq = bytes(WIDTH) if unanchored else place
        odd[number] = len(seq) != WIDTH or not any(seq[2:])
        made.append(bytes(WIDTH) if odd[number] else seq)
        logs.append(identity(source, by))
    places = np.frombuffer(b"".join(made), np.uint8).reshape(-1, WIDTH)
    return Places(places, _logs(logs), odd)


def _streams_of_postgres(sources: Sequence[Any], by: By) -> Streams:
    names = [
        None if each.lsn is None or each.snapshot == _INCREMENTAL else each.name or "" for each in sources
    ]
    servers = [each.system_identifier or each.timeline for each in sources]
    if any(servers):
        servers = [server_of(_source(each)) for each in sources]
    return Streams(pa.array(names, pa.string()), pa.array(servers, pa.string()))


def _streams_of_binlog(sources: Sequence[Any], by: By) -> Streams:
    names = [None if each.snapshot == _INCREMENTAL else each.name or "" for each in sources]
    servers = pa.array(map(attrgetter("server_id"), sources), pa.int64())
    return Streams(
        pa.array(names, pa.string()), pc.if_else(pc.equal(servers, 0), None, servers).cast(pa.string())
    )


def _streams_of_any(sources: Sequence[Any], by: By) -> Streams:
    found = list(map(_source, sources))
    names, servers = [log_of(each, by) for each in found], map(server_of, found)
    return Streams(pa.array(names, pa.string()), pa.array(servers, pa.string()))


_INCREMENTAL: Final = "incremental"


def _source(block: Any) -> Source:
    return Source(*[getattr(block, name, None) for name in Source.__struct_fields__])


def _put(places: Bytes, at: int, numbers: npt.NDArray[np.int64]) -> None:
    places[:, at : at + 8] = numbers.astype(">u8").view(np.uint8).reshape(-1, 8)


def _put_epochs(places: Bytes, where: Where, settings: Settings) -> None:
    epochs = settings.ordering.epochs
    if epochs:
        numbers = np.array([epoch_at(where.origin(i), epochs) for i in range(len(places))], ">u2")
        places[:, :2] = numbers.view(np.uint8).reshape(-1, 2)


def _logs(identities: Sequence[tuple[Any, ...] | None]) -> pa.Array:
    numbers: dict[tuple[Any, ...] | None, int] = {}
    codes = [numbers.setdefault(each, len(numbers)) for each in identities]
    texts = [None if each is None else json.dumps(each) for each in numbers]
    return pa.array(texts, pa.string()).take(pa.array(codes, pa.int32()))


def times(sources: Sequence[Any]) -> tuple[pa.Array, Mask]:
    """Return when the source made each change, in microseconds since 1970, and which have no plain time."""
    micros = pa.array(map(attrgetter("ts_us"), sources), pa.int64())
    if micros.null_count:
        millis = pa.array(map(attrgetter("ts_ms"), sources), pa.int64())
        fits = pc.and_(pc.greater_equal(millis, 0), pc.less_equal(millis, LAST_MICROS // 1000))
        micros = pc.coalesce(micros, pc.multiply(pc.if_else(fits, millis, None), 1000))
    plain = pc.and_(pc.greater_equal(micros, 0), pc.less_equal(micros, LAST_MICROS)).fill_null(False)
    return micros.fill_null(0), ~plain.to_numpy(zero_copy_only=False)
