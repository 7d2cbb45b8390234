"""The position of a change, as bytes that compare like the order in which the source made its changes.

`lakemirror.driver.sequence` documents the 26 bytes (epoch, major, minor, tie). Where each database keeps the
place of a change:

===================  ===================================================================================
PostgreSQL           (the greater of the last commit's LSN and the LSN, the LSN). Transactions overlap, so
                     the LSN alone does not give the order of their commits
MySQL, MariaDB       (number of the binlog file, position in it)
SQL Server           (LSN of the commit, LSN of the change, number of the event within it)
Db2, Informix        the same, without a number of the event. Informix has decimal numbers
Oracle               (the greater of the commit's SCN and the SCN, the SCN). Older versions of Debezium send
                     the commit before it, of the same redo thread, with all changes but the last one of a
                     transaction
anything else        (the source's time in microseconds, Kafka's offset), or the offset alone
===================  ===================================================================================

A row of a snapshot has the position at which the snapshot was read. It loses against a change there.

The fields are those of the source block of Debezium's "change event values", one page per connector.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, NamedTuple

from msgspec import Meta

from lakemirror.driver.rules.frozen import Frozen

By = Literal["auto", "lsn", "binlog", "timestamp", "offset", "columns", "given"]
"""What orders changes: ``ordering.by`` of the manifest, or ``given`` by Lakemirror itself."""

WIDTH: Final = 26
"""Number of bytes in the sequence of a position."""

NOWHERE: Final = bytes(WIDTH - 2)
"""All but the epoch of the sequence of a change without a position: it is below all positions."""

OWN: Final = b"\xff"
"""Ends the sequence of a value that a change carried itself."""

MISSING: Final = b""
"""The sequence of a value about which nothing is known yet."""

POSITIONED: Final = ("postgresql", "mysql", "mariadb", "sqlserver", "oracle", "db2", "informix")
"""Connectors whose changes have positions. One without a position is never ordered by its time."""

LAST_MICROS: Final = 253_370_764_799_999_999
"""The end of the year 9998, in microseconds since 1970."""

_LARGEST_LSN: Final = 10**18 - 1
_LARGEST_INT: Final = 2**31 - 1
_LARGEST_OFFSET: Final = 2**63 - 2
_TIE_OF_SNAPSHOT: Final = bytes(4)
_NO_LSN: Final = bytes(10)
_PAIR: Final = re.compile(r'^\s*\[\s*(?:null|"(\d{1,18})")\s*,\s*(?:null|"(\d{1,18})")\s*\]\s*$', re.ASCII)
_LSN: Final = re.compile(
    r"^([0-9A-Fa-f]{8}:[0-9A-Fa-f]{8}:[0-9A-Fa-f]{4}|0{8}:[0-9A-Fa-f]{8}:0{4}[0-9A-Fa-f]{12}|\d{1,20})\Z",
    re.ASCII,
)
"""SQL Server's; Db2's, as far as ten bytes hold it; and Informix's."""
_SCN: Final = re.compile(r"^\d{1,18}\Z", re.ASCII)
_FILE: Final = re.compile(r"\.(\d{1,18})\Z", re.ASCII)
"""Numbers of files have at most ten digits. Those of GTIDs take their place, and count transactions."""
_LISTED: Final = re.compile(r"^([0-9A-F]{2}){26,331}\Z")


Long = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
"""An integer of 64 bits."""


class Source(Frozen, frozen=True):
    """What a record says about where its change stood in the source. None where it says nothing."""

    connector: str | None = None
    name: str | None = None
    """The connector's own name for the database: its log."""
    db: str | None = None
    snapshot: str | None = None
    ts_us: Long | None = None
    ts_ms: Long | None = None
    sequence: str | None = None
    lsn: Long | None = None
    file: str | None = None
    pos: Long | None = None
    row: Long | None = None
    commit_lsn: str | None = None
    change_lsn: str | None = None
    event_serial_no: Long | None = None
    scn: str | None = None
    commit_scn: str | None = None
    server_id: Long | None = None
    system_identifier: str | None = None
    timeline: str | None = None


class Origin(NamedTuple):
    """Where a record was read. All three are None if it was in no topic."""

    topic: str | None = None
    partition: int | None = None
    offset: int | None = None

    def in_partition_of(self, other: Origin) -> bool:
        """Return whether both came through one partition of one topic, so that their offsets compare."""
        return (
            self.topic is not None
            and self.partition is not None
            and self.topic == other.topic
            and self.partition == other.partition
        )

    def follows(self, other: Origin) -> bool:
        """Return whether this came after ``other`` in the same partition."""
        return (
            self.in_partition_of(other)
            and self.offset is not None
            and other.offset is not None
            and self.offset > other.offset
        )


NO_ORIGIN: Final = Origin()


class Epoch(NamedTuple):
    """A declared restart of positions: the first offset of each (topic, partition) that belongs to it."""

    number: int
    begins: Mapping[tuple[str, int], int]


# -- the sequence of a change -----------------------------------------------------------------------------


def sequence(
    source: Source, origin: Origin, *, snapshot: bool, by: By = "auto", epochs: Sequence[Epoch] = ()
) -> bytes:
    """Return the sequence of a change for which `misplaced` has no objection.

    Of two changes, the one whose sequence is greater is the newer one, if the two compare
    (`lakemirror.driver.rules.orders`). Under ``columns``, `lakemirror.driver.rules.ordering_columns` makes
    the sequence.
    """
    if by == "given":
        return bytes.fromhex(source.sequence or "")
    if by == "offset" and source.connector == "delta" and _LISTED.match(source.sequence or ""):
        return bytes.fromhex(source.sequence or "")  # a row of a list of changes keeps its place in a copy
    return epoch_at(origin, epochs).to_bytes(2, "big") + _position(source, origin, snapshot=snapshot, by=by)


def epoch_at(origin: Origin, epochs: Sequence[Epoch]) -> int:
    """Return the highest declared epoch that a record has reached in its partition, 0 if it has none."""
    if not epochs:
        return 0
    return max((each.number for each in epochs if _is_in(origin, each)), default=0)


def _is_in(origin: Origin, epoch: Epoch) -> bool:
    if origin.topic is None or origin.partition is None or origin.offset is None:
        return False
    begin = epoch.begins.get((origin.topic, origin.partition))
    return begin is not None and origin.offset >= begin


def _position(source: Source, origin: Origin, *, snapshot: bool, by: By) -> bytes:
    """Return the major part, the minor part and the tie."""
    for of_log in _OF_LOGS.get(by, ()):
        found = of_log(source, snapshot=snapshot)
        if found is not None:
            return found
    by_time = by == "auto" and is_by_time(source)
    micros = source_micros(source) if by_time or by == "timestamp" else None
    if micros is None and not (by_time or by == "offset"):
        return NOWHERE
    return _parts(micros or 0, _after(origin.offset, -1), 0 if snapshot else 1)


def _of_postgres(source: Source, *, snapshot: bool) -> bytes | None:
    """(last commit, LSN). A row of an incremental snapshot has no LSN, and the last commit's twice.

    If that is known, no change of an open transaction follows the row with a lower LSN (`is_reread`).
    """
    committed, last = _pair(source.sequence)
    if source.lsn is not None:
        major = source.lsn if committed is None else max(source.lsn, committed)
        return _parts(major, 0 if snapshot else source.lsn, 0 if snapshot else 1)
    return None if last is None else _parts(last, 0, 0 if committed is None else 1)


def _of_binlog(source: Source, *, snapshot: bool) -> bytes | None:
    """(file number, position). ``row`` starts again within a position, so it orders nothing."""
    name = _text(source.file)
    number = None if name is None else _FILE.search(name)
    if number is None:
        return None
    return _parts(int(number[1]), source.pos or 0, 0 if snapshot else _after(source.event_serial_no))


def _of_sql_server(source: Source, *, snapshot: bool) -> bytes | None:
    """(commit, change, event). An update of a key is two events of one change."""
    commit, change = _text(source.commit_lsn), _text(source.change_lsn)
    first = commit if commit is not None else change
    if first is None:
        return None
    minor = bytes(10) if snapshot or change is None else _lsn(change)
    tie = 0 if snapshot else _after(source.event_serial_no)
    return _lsn(first) + minor + tie.to_bytes(4, "big")


def _of_oracle(source: Source, *, snapshot: bool) -> bytes | None:
    scn, commit = _text(source.scn), _text(source.commit_scn)
    if scn is None:
        return None
    major = int(scn) if commit is None else max(int(scn), int(commit))
    return _parts(major, 0 if snapshot else int(scn), 0 if snapshot else 1)


_OF_LOGS: Final[Mapping[By, Sequence[Callable[..., bytes | None]]]] = {
    "auto": (_of_postgres, _of_binlog, _of_sql_server, _of_oracle),
    "lsn": (_of_postgres, _of_sql_server),
    "binlog": (_of_binlog,),
}
"""What finds the position of a change in the log of its source, by what orders changes."""


_parts: Final = struct.Struct(">2xQ2xQI").pack
"""Joins the major part, the minor part and the tie. No number of a source needs all ten bytes of its part."""


def _after(number: int | None, missing: int = 0) -> int:
    """Add one, so that the result is above the zero of a snapshot row."""
    return (missing if number is None else number) + 1


def _pair(text: str | None) -> tuple[int | None, int | None]:
    """Read PostgreSQL's ``source.sequence``, such as ``["24023128","24023184"]`` or ``[null,"24023184"]``."""
    return (None if text is None else _numbers(text)) or (None, None)


@lru_cache(maxsize=64)  # each rule about a position asks for the parts of the same text
def _numbers(text: str) -> tuple[int | None, int | None] | None:
    found = _PAIR.match(text)
    if found is None:
        return None
    first, second = found.groups()
    return (None if first is None else int(first)), (None if second is None else int(second))


def _text(value: str | None) -> str | None:
    """Return a field, or None where connectors write that it is missing: NULL (SQL Server), null, empty."""
    return None if value is None or value == "" or value.lower() == "null" else value


def _lsn(text: str) -> bytes:
    """Return SQL Server's ``0000002a:00000d40:0002``, or a decimal number of Informix, as ten bytes.

    Db2's ``00000000:000102b5:000000000007bf55`` has sixteen, of which the first four, and two more, are zero.
    """
    _, second, third = text.split(":") if ":" in text else ("", "", "")
    digits = second + third[4:] if len(third) == 16 else text.replace(":", "")
    return bytes.fromhex(digits.rjust(20, "0"))


# -- what a record says about its place -------------------------------------------------------------------


def has_position(source: Source) -> bool:
    """Return whether a change has a position in its source's log."""
    if source.lsn is not None:
        return True
    texts = (source.file, source.commit_lsn, source.change_lsn, source.scn)
    return any(_text(each) is not None for each in texts)


def is_by_time(source: Source) -> bool:
    """Return whether only its time, or its offset, orders a change under ``auto``.

    If a connector has positions but one of its changes has none, ordered by its time it would be above all
    positions and freeze its row.
    """
    return not has_position(source) and source.connector not in POSITIONED


def source_micros(source: Source, *more: int | None) -> int | None:
    """Return when the source made a change, in microseconds: the first of its times that can be right.

    ``more`` are further times, in milliseconds. A time before 1970 or after 9998 is a mistake.
    """
    if source.ts_us is not None and _is_time(source.ts_us):
        return source.ts_us
    for millis in (source.ts_ms, *more):
        if millis is not None and _is_time(millis * 1000):
            return millis * 1000
    return None


def _is_time(micros: int) -> bool:
    return 0 <= micros <= LAST_MICROS


def is_unanchored(source: Source, *, snapshot: bool, by: By) -> bool:
    """Return whether a change is PostgreSQL's, and the record does not know the last commit before it.

    Such a change belongs to the first transaction that was streamed. It may have been open while the snapshot
    was taken: its LSN is then below that of the snapshot, although the snapshot does not show it.
    """
    postgres = by in ("auto", "lsn") and source.lsn is not None
    return postgres and not snapshot and _pair(source.sequence)[0] is None


def log_of(source: Source, by: By) -> str | None:
    """Return the name of the log that a change's position is one of. Each database of SQL Server has its own.

    None if the change has no position, or one that says nothing about what follows: rows of an incremental
    snapshot are read while changes are streamed.
    """
    counts = by in ("auto", "lsn", "binlog") and has_position(source) and source.snapshot != "incremental"
    if not counts:
        return None
    database = source.db if source.connector == "sqlserver" else None
    return "/".join([source.name or "", *([] if database is None else [database])])


def identity(source: Source, by: By) -> tuple[str | int | None, ...] | None:
    """Return what tells an event from others with the same position, op, key and row, besides its payload.

    It stands for the log that the position is one of; several rows may have one position of a binlog. None if
    the event has no position: only its topic, partition and offset identify it then.
    """
    if by in ("timestamp", "offset", "columns") or not (has_position(source) or _pair(source.sequence)[1]):
        return None
    database = source.db if source.connector == "sqlserver" else None
    return source.name, database, source.row, source.event_serial_no


def server_of(source: Source) -> str | None:
    """Return the server that made a change, as far as the record names it."""
    number = str(source.server_id) if source.server_id else None
    parts = [each for each in (number, source.system_identifier, source.timeline) if each is not None]
    return "/".join(parts) or None


# -- objections -------------------------------------------------------------------------------------------


def misplaced(
    source: Source,
    origin: Origin,
    *,
    by: By = "auto",
    called: Mapping[str, str] = MappingProxyType({}),
    anywhere: bool = False,
) -> str | None:
    """Return why a change has no place in the order, naming the field. None if it has one.

    A position that is not a number, is negative or exceeds what any source counts to would be read as another
    position. Only a change that may be ``anywhere`` may lack the position that ``by`` declares. ``called``
    maps fields of the source block to their names in records.
    """
    wrong = _invalid(source, origin, by)
    if wrong is not None:
        name, value = wrong
        return f"{_named(name, called)} is not valid: {str(value)[:50]}"
    return None if anywhere else _lacking(source, by, called)


def _invalid(source: Source, origin: Origin, by: By) -> tuple[str, object] | None:
    """Return the first field that is there but cannot be part of a position, with its value."""
    _, partition, offset = origin
    if partition is not None and partition < 0:
        return "partition", partition
    if offset is not None and not 0 <= offset <= _LARGEST_OFFSET:
        return "offset", offset
    listed = by == "offset" and source.connector == "delta" and source.sequence is not None
    if listed and not _LISTED.match(source.sequence or ""):
        return "sequence", source.sequence
    wrong = _invalid_part(source) if by in ("auto", "lsn", "binlog") else None
    if wrong is None and (by == "timestamp" or (by == "auto" and is_by_time(source))):
        return _impossible_time(source)
    return wrong


def _invalid_part(source: Source) -> tuple[str, object] | None:
    for (name, is_valid), value in zip(_CHECKS, _parts_of(source)):  # noqa: B905 (as many)
        if value is None or is_valid(value):
            continue
        if name != "sequence" or _may_be_postgres(source):
            return name, value
    return None


def _up_to(most: int) -> Callable[[int], bool]:
    return lambda value: 0 <= value <= most


def _of_form(form: re.Pattern[str]) -> Callable[[str], bool]:
    return lambda value: _text(value) is None or form.search(value) is not None


_VALID: Final[Mapping[str, Callable[[Any], object]]] = {
    "lsn": _up_to(_LARGEST_LSN),
    "pos": _up_to(_LARGEST_LSN),
    "row": _up_to(_LARGEST_INT - 1),
    "event_serial_no": _up_to(_LARGEST_INT - 1),
    "sequence": _numbers,
    "commit_lsn": _of_form(_LSN),
    "change_lsn": _of_form(_LSN),
    "scn": _of_form(_SCN),
    "commit_scn": _of_form(_SCN),
    "file": _of_form(_FILE),
}
"""Whether a field can be part of a position."""

_CHECKS: Final = tuple(_VALID.items())
_parts_of: Final = attrgetter(*_VALID)


def _may_be_postgres(source: Source) -> bool:
    return source.lsn is not None or source.connector == "postgresql"


def _impossible_time(source: Source) -> tuple[str, object] | None:
    if source.ts_us is not None:
        return None if _is_time(source.ts_us) else ("ts_us", source.ts_us)
    ms = source.ts_ms
    return None if ms is None or _is_time(ms * 1000) else ("ts_ms", ms)


def _lacking(source: Source, by: By, called: Mapping[str, str]) -> str | None:
    """Return the reason if the position that ``ordering.by`` declares is missing."""
    if by not in ("lsn", "binlog", "timestamp"):
        return None
    texts = (_text(source.commit_lsn), _text(source.change_lsn))
    there: dict[str, tuple[tuple[object, ...], tuple[str, ...]]] = {
        "lsn": ((source.lsn, _pair(source.sequence)[1], *texts), ("lsn", "commit_lsn")),
        "binlog": ((_text(source.file),), ("file",)),
        "timestamp": ((source.ts_us, source.ts_ms), ("ts_ms",)),
    }
    values, fields = there[by]
    if any(each is not None for each in values):
        return None
    names = " or ".join(_named(field, called) for field in fields)
    return f"ordering.by is {by}, but the record has no {names}"


def unplaced(source: Source, origin: Origin, by: By) -> str | None:
    """Return the reason if nothing at all orders a change: no position, no time and no offset."""
    by_time = by == "auto" and is_by_time(source) and source_micros(source) is None
    if origin.offset is None and (by_time or by == "offset"):
        return "nothing says when the change was made: the record has no position, no time and no offset"
    return None


def _named(field: str, called: Mapping[str, str]) -> str:
    return called.get(field, field if field in ("partition", "offset") else f"source.{field}")


# -- parts of a sequence ----------------------------------------------------------------------------------


def own(seq: bytes) -> bytes:
    """Return the sequence of a value that the change at ``seq`` carried itself."""
    return seq + OWN


def moved(seq: bytes, before: bytes) -> bytes:
    """Return the sequence of a value that the row had under its former key, and the move at ``seq`` brought.

    It is older than a value that the change at ``seq`` carried itself.
    """
    return seq + before


def change_of(value: bytes, seq: bytes) -> bytes:
    """Return the sequence of the change that brought a value; ``seq`` is any sequence of the same mirror."""
    return value[: len(seq)]


def is_snapshot(seq: bytes) -> bool:
    """Return whether a sequence is that of a row of a snapshot."""
    return seq[22:26] == _TIE_OF_SNAPSHOT


def is_reread(seq: bytes) -> bool:
    """Return whether a sequence is that of a row that an incremental snapshot read after a known commit.

    The commit is the major part. There is no LSN: PostgreSQL's other changes have one as the minor part.
    """
    return seq[12:22] == _NO_LSN and not is_snapshot(seq)


def epoch_of(seq: bytes) -> bytes:
    """Return the epoch of a sequence, as two bytes."""
    return seq[:2]


def major_of(seq: bytes) -> bytes:
    """Return the epoch and the major part: of a time, all but the offset."""
    return seq[:12]


def minor_of(seq: bytes) -> bytes:
    """Return the minor part, which is the LSN of an unanchored change."""
    return seq[12:22]


def without_tie(seq: bytes) -> bytes:
    """Return the epoch and the position itself."""
    return seq[:22]


def anchored_at(seq: bytes, base: bytes) -> bytes:
    """Return the sequence of an unanchored change that follows the row at ``base``, with its own LSN."""
    return base[:12] + seq[12:26]
