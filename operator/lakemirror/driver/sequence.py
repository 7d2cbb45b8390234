"""The order of changes: ``__seq``, a binary value whose bytewise order is the source's order of changes.

Format (public and permanent), 26 bytes, unsigned big-endian:

====== ===== ==================================================================================
bytes  name  meaning
====== ===== ==================================================================================
0-1    epoch 0, or the epoch that the manifest declares where the source's positions restarted
2-11   major PostgreSQL: max(last commit's LSN, LSN); MySQL: binlog file number; SQL Server, Db2 and
             Informix: commit LSN; Oracle: max(commit SCN, SCN); otherwise the source's timestamp in
             microseconds; 0 if there is none
12-21  minor PostgreSQL: LSN; MySQL: position in the binlog file; SQL Server, Db2 and Informix: change
             LSN; Oracle: SCN; otherwise Kafka's offset plus one
22-25  tie   0 for a snapshot row, so that it yields to a change at the same place; else 1 or more
             (SQL Server: event serial number; Maxwell: ``xoffset`` plus one)
====== ===== ==================================================================================

A binlog's position is that of an event, which may hold several changes. Debezium numbers them (``row``), but
its numbers start again within a position: all events of a compressed transaction
(``binlog_transaction_compression``) have the position of the whole. So they order nothing. Changes with equal
sequences are ordered by their offsets within a partition. (The tie of stored rows may be
``row`` plus one, as it was before.)

PostgreSQL's LSN alone does not give the order of commits because transactions overlap. ``source.sequence``
therefore also has the last commit's LSN (Debezium, PostgreSQL connector, "change event values"). A change of
the first transaction after a snapshot has no last commit yet: it is *unanchored*. A row of an incremental
snapshot has no LSN, and its minor part is 0. If a last commit is known, its tie is 1 (it was 0 before): it is
newer than what an unanchored change with a lower LSN brings, which was sent again (`is_reread`).

If a connector has positions but one of its events has none, the event's position is all zeros, so it fills
only keys that are absent and have no tombstone. Ordered by its time, it would be above all positions and
freeze the row.

Under ``ordering.by: columns``, the values of these columns replace the major and minor parts
(`sequence_of_values`). They take as many bytes as needed, the same number in all sequences of a mirror:

======== ========= ==============================================================================
bytes    name      meaning
======== ========= ==============================================================================
0-1      epoch     as above
20 each  value     1 for a null (and 19 zeros), 2 for a negative number, 3 for others; then its
                   38 decimal digits, nine of them after the point, two per byte, as nines' complement
                   if the number is negative; times are seconds since 1970. A whole number of 30 to 38
                   digits has all of them before the point, after 4, or 1 if it is negative
1        origin    1 for a snapshot row, 2 for a change
8        offset    Kafka's offset plus one
======== ========= ==============================================================================

The sequence of a single *column* (`own`, `moved`) extends that of an event: a value that the event itself
carried is newer than one that it inherited from the row under its former key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from types import MappingProxyType
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F

from lakemirror.api.spec import Epoch
from lakemirror.driver import shapes

WIDTH = 26
"""Number of bytes in the sequence of a position."""

VALUE: Final = "decimal(38,9)"
"""Type of a value that orders changes under ``ordering.by: columns``."""

LARGE: Final = "decimal(38,0)"
"""Type of such a value that has too many digits before the point for `VALUE`, and none after it."""

OWN = b"\xff"
"""Ends the sequence of a column whose value the event itself carried."""

MISSING: Final = b""
"""Sequence of a column about which nothing is known yet."""

DELTA: Final = "delta"
"""The connector of changes in a Delta table (`lakemirror.driver.read.change_feed`)."""

GIVEN: Final = "given"
"""Replaces ``ordering.by`` for events that the driver itself creates (`lakemirror.driver.reload`).

Their ``source.sequence`` holds the whole sequence as hexadecimal digits.
"""

SOURCE = (
    "STRUCT<connector: STRING, name: STRING, ts_ms: BIGINT, ts_us: BIGINT, snapshot: STRING, db: STRING, "
    "schema: STRING, table: STRING, sequence: STRING, lsn: BIGINT, server_id: BIGINT, file: STRING, pos: "
    "BIGINT, "
    "row: BIGINT, commit_lsn: STRING, change_lsn: STRING, event_serial_no: BIGINT, scn: STRING, "
    "commit_scn: STRING, system_identifier: STRING, timeline: STRING>"
)
"""The fields of Debezium's source block that matter for the order, across all connectors."""


_LARGEST_LSN: Final = 10**18 - 1
_LARGEST_INT: Final = 2**31 - 1
_LAST_MICROS: Final = 253_370_764_799_999_999
"""The end of the year 9998 in microseconds, the last that Python can represent in any time zone."""

_LSN: Final = (
    r"^([0-9A-Fa-f]{8}:[0-9A-Fa-f]{8}:[0-9A-Fa-f]{4}|0{8}:[0-9A-Fa-f]{8}:0{4}[0-9A-Fa-f]{12}|\d{1,20})\z"
)
_LONG: Final = 34
"""The number of characters of Db2's LSN, which is longer than the others."""
_SCN: Final = r"^\d{1,18}\z"
_FILE: Final = r"\.\d{1,18}\z"
_LISTED: Final = r"^([0-9A-F]{2}){26,331}\z"
"""Matches the sequence of an event in a list: that of a position, or of up to 16 columns.

``$`` would match before a line feed at the end.
"""

_POSITIONED: Final = ("postgresql", "mysql", "mariadb", "sqlserver", "oracle", "db2", "informix")
"""Connectors whose changes have positions; their events without one are never ordered by time."""


def sequence(
    source: Column,
    *,
    snapshot: Column,
    topic: Column,
    partition: Column,
    offset: Column,
    by: str,
    epochs: Sequence[Epoch],
) -> Column:
    """Return the BINARY(26) sequence of an event that is not `misplaced`.

    ``source`` is a struct of type `SOURCE`. Under ``columns``, use `sequence_of_values` instead.
    """
    if by == GIVEN:
        return F.unhex(source["sequence"])
    digits = F.concat(epoch(topic, partition, offset, epochs), _position(source, snapshot, offset, by))
    if by == "offset":  # an event of a list keeps its sequence in a copy of the list
        listed = (source["connector"] == DELTA) & source["sequence"].rlike(_LISTED)
        digits = F.when(listed, source["sequence"]).otherwise(digits)
    return F.unhex(digits)


def sequence_of_values(
    values: Sequence[Column],
    *,
    snapshot: Column,
    topic: Column,
    partition: Column,
    offset: Column,
    epochs: Sequence[Epoch],
    large: Sequence[Column] = (),
) -> Column:
    """Return the BINARY sequence of an event that is ordered by ``values``.

    The values are of type `VALUE`, the most significant first; a null comes before all others. ``large`` are
    the same values as `LARGE`, where they are null as `VALUE`. At equal values, a snapshot row comes before
    changes, and changes are ordered by offset.
    """
    origin = F.when(snapshot, "01").otherwise("02")
    arrival = _hex(_after(offset, missing=-1), 16)
    both = zip(values, large or [F.lit(None).cast(LARGE)] * len(values), strict=True)
    digits = [_digits_of_value(value, more) for value, more in both]
    return F.unhex(F.concat(epoch(topic, partition, offset, epochs), *digits, origin, arrival))


def is_large(number: Column) -> Column:
    """Return whether a number of type `LARGE` is larger than any `VALUE` (BOOLEAN).

    The number of 38 nines below zero is not, because its digits would be those of a null.
    """
    least, lowest = (F.lit(str(each)).cast(LARGE) for each in (10**29, 1 - 10**38))
    return (F.abs(number) >= least) & (number > lowest)


def _digits_of_value(value: Column, large: Column) -> Column:
    """Return forty hexadecimal digits that compare like the value of type `VALUE`, or the ``large`` one.

    Large numbers are beyond all that have the digits of a `VALUE`, at either end.
    """
    beyond = F.lpad(F.abs(large).cast("string"), 38, "0")
    size = F.abs(value)
    whole = F.floor(size)
    fraction = (size % F.lit(Decimal(1)) * F.lit(Decimal(10**9))).cast("bigint")
    digits = F.concat(
        F.lpad(whole.cast("decimal(29,0)").cast("string"), 29, "0"),
        F.lpad(fraction.cast("string"), 9, "0"),
    )
    below = F.concat(F.lit("02"), F.translate(digits, "0123456789", "9876543210"))
    above = F.concat(F.lit("03"), digits)
    lowest = F.concat(F.lit("01"), F.translate(beyond, "0123456789", "9876543210"))
    highest = F.concat(F.lit("04"), beyond)
    return (
        F.when(value < 0, below)
        .when(value.isNotNull(), above)
        .when(large < 0, lowest)
        .when(large.isNotNull(), highest)
        .otherwise("01" + "0" * 38)
    )


def misplaced(
    source: Column,
    *,
    partition: Column,
    offset: Column,
    by: str,
    called: Mapping[str, str] = MappingProxyType({}),
    anywhere: Column | None = None,
) -> Column:
    """Return why an event has no place in the order, naming the field (STRING); null if it has one.

    A position that is not a number, is negative or exceeds what any source counts to would be read as a
    different position. Under ``auto``, an event may lack its position altogether; otherwise only an event
    that may be ``anywhere`` (BOOLEAN) may lack it, see `sequence`. ``called`` maps fields of the source block
    to their names in records.
    """
    fields = {
        "partition": partition < 0,
        "offset": (offset < 0) | (offset == 2**63 - 1),
        **_invalid(source, by),
    }
    values = {"partition": partition, "offset": offset}
    wrong = [
        F.when(
            condition,
            F.concat(
                F.lit(f"{_named(name, called)} is not valid: "),
                F.substring(values.get(name, source[name]).cast("string"), 1, 50),
            ),
        )
        for name, condition in fields.items()
    ]
    lacking = _lacking(source, by, called)
    if anywhere is not None:
        lacking = [F.when(~anywhere, each) for each in lacking]
    return F.coalesce(*wrong, *lacking)


def unplaced(source: Column, offset: Column, by: str) -> Column:
    """Return the reason if nothing orders an event: no position, time or offset (STRING); otherwise null."""
    nothing = {
        "auto": _by_time(source) & source_micros(source).isNull() & offset.isNull(),
        "offset": offset.isNull(),
    }
    reason = "nothing says when the change was made: the record has no position, no time and no offset"
    return F.when(nothing[by], reason) if by in nothing else F.lit(None).cast("string")


def _named(field: str, called: Mapping[str, str]) -> str:
    return called.get(field, field if field in ("partition", "offset") else f"source.{field}")


def _invalid(source: Column, by: str) -> dict[str, Column]:
    """Return, by field of the source block, whether it is present but cannot be a position (BOOLEAN)."""
    if by in ("columns", GIVEN):
        return {}
    if by == "offset":  # of the source block, only events of a list have a part in the order
        return {"sequence": (source["connector"] == DELTA) & ~source["sequence"].rlike(_LISTED)}
    micros = {
        "ts_us": source["ts_us"].isNotNull() & ~_is_time(source["ts_us"]),
        "ts_ms": source["ts_ms"].isNotNull() & source["ts_us"].isNull() & ~_is_time(_micros(source["ts_ms"])),
    }
    if by == "timestamp":
        return micros
    pair = r'^\s*\[\s*(null|"\d{1,18}")\s*,\s*(null|"\d{1,18}")\s*\]\s*$'
    postgres = source["lsn"].isNotNull() | (source["connector"] == "postgresql")
    texts = {
        "sequence": postgres & ~source["sequence"].rlike(pair),
        **{name: ~_text(source, name).rlike(_LSN) for name in ("commit_lsn", "change_lsn")},
        **{name: ~_text(source, name).rlike(_SCN) for name in ("scn", "commit_scn")},
        "file": ~_text(source, "file").rlike(_FILE),
    }
    numbers = {
        "lsn": ~source["lsn"].between(0, _LARGEST_LSN),
        "pos": ~source["pos"].between(0, _LARGEST_LSN),
        **{name: ~source[name].between(0, _LARGEST_INT - 1) for name in ("row", "event_serial_no")},
    }
    timed = {name: _by_time(source) & wrong for name, wrong in micros.items()} if by == "auto" else {}
    return {**numbers, **texts, **timed}


def _lacking(source: Column, by: str, called: Mapping[str, str]) -> list[Column]:
    """Return the reason if the position that ``ordering.by`` declares is missing."""
    there = {
        "lsn": (source["lsn"], _pair(source, 1), _text(source, "commit_lsn"), _text(source, "change_lsn")),
        "binlog": (_text(source, "file"),),
        "timestamp": (source["ts_us"], source["ts_ms"]),
    }
    fields = {"lsn": ("lsn", "commit_lsn"), "binlog": ("file",), "timestamp": ("ts_ms",)}
    if by not in there:
        return []
    names = " or ".join(_named(field, called) for field in fields[by])
    reason = f"ordering.by is {by}, but the record has no {names}"
    return [F.when(F.coalesce(*[each.cast("string") for each in there[by]]).isNull(), reason)]


def _by_time(source: Column) -> Column:
    """Return whether only its time orders the event (BOOLEAN)."""
    positioned = F.coalesce(source["connector"].isin(*_POSITIONED), F.lit(False))
    return ~has_position(source) & ~positioned


def has_position(source: Column) -> Column:
    """Return whether the event has a position in its source's log (BOOLEAN)."""
    names = ("file", "commit_lsn", "change_lsn", "scn")
    positions = [source["lsn"].cast("string"), *(_text(source, name) for name in names)]
    return F.coalesce(*positions).isNotNull()


def stream(source: Column, by: str) -> Column:
    """Return the name of the log that the event's position belongs to (STRING).

    Null if the event has no position, or if its position does not count: rows of an incremental snapshot are
    read while changes are streamed. Each database of a SQL Server has its own log.
    """
    if by in ("timestamp", "offset", "columns", GIVEN):
        return F.lit(None).cast("string")
    database = F.when(source["connector"] == "sqlserver", source["db"])
    counts = has_position(source) & (F.coalesce(source["snapshot"], F.lit("")) != "incremental")
    return F.when(counts, F.concat_ws("/", F.coalesce(source["name"], F.lit("")), database))


def identity(source: Column, by: str, *payload: Column) -> Column:
    """Return what tells an event from others with the same position, op, key and row (BIGINT).

    It stands for the log that the position belongs to, and for the rest of what was sent (``payload``): a
    position is one of its log only, and several rows may have one position of a binlog. Null if the event has
    no position, so that only its topic, partition and offset identify it: equal times, versions and offsets
    are those of different events.
    """
    if by in ("timestamp", "offset", "columns"):
        return F.lit(None).cast("bigint")
    there = F.lit(True) if by == GIVEN else has_position(source) | _pair(source, 1).isNotNull()
    database = F.when(source["connector"] == "sqlserver", source["db"])
    numbers = source["row"], source["event_serial_no"]
    return F.when(there, F.xxhash64(source["name"], database, *numbers, *payload))


def server(source: Column) -> Column:
    """Return the server that made the change (STRING), as far as the source block names it; else null."""
    number = F.when(source["server_id"] != 0, source["server_id"].cast("string"))
    return F.nullif(F.concat_ws("/", number, source["system_identifier"], source["timeline"]), F.lit(""))


def source_micros(source: Column, *more: Column) -> Column:
    """Return when the source made the change, in microseconds (BIGINT).

    Falls back to the first of ``more`` (milliseconds) that is a valid time. A time before 1970 or after 9998
    is a mistake and not valid.
    """
    candidates = [source["ts_us"], *map(_micros, (source["ts_ms"], *more))]
    return F.coalesce(*[F.when(_is_time(each), each) for each in candidates])


def _micros(millis: Column) -> Column:
    return F.try_multiply(millis, F.lit(1000))


def _is_time(micros: Column) -> Column:
    return F.coalesce(micros.between(0, _LAST_MICROS), F.lit(False))


def unanchored(source: Column, snapshot: Column, by: str) -> Column:
    """Return whether an event is a PostgreSQL change whose last commit is unknown (BOOLEAN).

    Only its LSN places such a change. Where something else orders the changes, none is unanchored, because
    the minor part of their sequence is no LSN.
    """
    if by not in ("auto", "lsn"):
        return F.lit(False)
    return ~snapshot & source["lsn"].isNotNull() & _pair(source, 0).isNull()


def epoch(topic: Column, partition: Column, offset: Column, epochs: Sequence[Epoch]) -> Column:
    """Return four hexadecimal digits: the highest declared epoch that has started in this partition."""
    number = F.lit("0000")
    for declared in sorted(epochs, key=lambda each: each.epoch):
        starts = [
            (topic == name) & (partition == int(part)) & (offset >= start)
            for name, parts in declared.from_.items()
            for part, start in parts.items()
        ]
        for reached in starts:
            number = F.when(reached, F.lit(f"{declared.epoch:04x}")).otherwise(number)
    return number


def _position(source: Column, snapshot: Column, offset: Column, by: str) -> Column:
    tie = F.when(snapshot, 0).otherwise(1)
    lsn, committed = source["lsn"], _pair(source, 0)
    postgres = F.when(
        lsn.isNotNull(),
        _digits(F.greatest(lsn, committed), F.when(snapshot, 0).otherwise(lsn), tie),
    ).when(
        _pair(source, 1).isNotNull(),
        _digits(_pair(source, 1), F.lit(0), F.when(committed.isNull(), 0).otherwise(1)),
    )
    file = _text(source, "file")
    binlog = F.when(
        file.isNotNull(),
        _digits(
            shapes.whole(F.substring_index(file, ".", -1)),
            F.coalesce(source["pos"], F.lit(0)),
            F.when(snapshot, 0).otherwise(_after(source["event_serial_no"])),
        ),
    )
    commit_lsn, change_lsn = _text(source, "commit_lsn"), _text(source, "change_lsn")
    sqlserver = F.when(
        commit_lsn.isNotNull() | change_lsn.isNotNull(),
        F.concat(
            _lsn(F.coalesce(commit_lsn, change_lsn)),
            F.coalesce(F.when(~snapshot, _lsn(change_lsn)), F.lit("0" * 20)),
            _hex(F.when(snapshot, 0).otherwise(_after(source["event_serial_no"])), 8),
        ),
    )
    scn = _text(source, "scn")
    oracle = F.when(
        scn.isNotNull(),
        _digits(
            F.greatest(shapes.whole(_text(source, "commit_scn")), shapes.whole(scn)),
            F.when(snapshot, 0).otherwise(shapes.whole(scn)),
            tie,
        ),
    )
    micros = source_micros(source)
    arrival = _after(offset, missing=-1)
    timestamp = F.when(micros.isNotNull(), _digits(micros, arrival, tie))
    by_offset = _digits(F.lit(0), arrival, tie)
    chosen: dict[str, list[Column]] = {
        "auto": [
            postgres,
            binlog,
            sqlserver,
            oracle,
            F.when(_by_time(source), F.coalesce(timestamp, by_offset)),
        ],
        "lsn": [postgres, sqlserver],
        "binlog": [binlog],
        "timestamp": [timestamp],
        "offset": [by_offset],
        "columns": [],
    }
    return F.coalesce(*chosen[by], F.lit("0" * 48))


def _pair(source: Column, index: int) -> Column:
    """Return one element of ``source.sequence``, such as '["24023128","24023184"]' or '[null,"24023184"]'."""
    return shapes.whole(F.get(F.split(F.translate(source["sequence"], '[]" ', ""), ","), index))


def _text(source: Column, name: str) -> Column:
    """Return a field, or null if its value is missing.

    Connectors write a missing value as the text NULL (SQL Server) or null (Oracle), or as empty text (MySQL).
    """
    return F.when(~F.lower(source[name]).isin("null", ""), source[name])


def _after(number: Column, missing: int = 0) -> Column:
    """Add one, so that the result is above the zero of a snapshot row."""
    return F.try_add(F.coalesce(number, F.lit(missing)), F.lit(1))


def _digits(major: Column, minor: Column, tie: Column) -> Column:
    return F.concat(_hex(major, 20), _hex(minor, 20), _hex(tie, 8))


def _hex(number: Column, width: int) -> Column:
    return F.lpad(F.hex(number.cast("bigint")), width, "0")


def _lsn(text: Column) -> Column:
    """Return SQL Server's '0000002a:00000d40:0002' as twenty digits.

    Of Db2's '00000000:000102b5:000000000007bf55', they are those that may be other than zero.
    """
    db2 = F.concat(F.substring(text, 10, 8), F.substring(text, 23, 12))
    return F.when(F.length(text) == _LONG, db2).otherwise(F.lpad(F.translate(text, ":", ""), 20, "0"))


def own(seq: Column) -> Column:
    """Return the column sequence of a value that the event at ``seq`` itself carried."""
    return F.concat(seq, F.lit(OWN))


def moved(seq: Column, before: Column) -> Column:
    """Return the column sequence of a value from the row's former key, moved by the event at ``seq``."""
    return F.concat(seq, before)


def event_part(value: Column, seq: Column) -> Column:
    """Return the event's part of a column's sequence; ``seq`` is any sequence of the same mirror."""
    return F.substr(value, F.lit(1), F.length(seq))


def is_snapshot(seq: Column) -> Column:
    """Return whether the sequence belongs to a snapshot row (BOOLEAN)."""
    return F.substring(seq, 23, 4) == F.lit(b"\0\0\0\0")


def is_reread(seq: Column) -> Column:
    """Return whether the sequence belongs to a row of an incremental snapshot after a known commit (BOOLEAN).

    The commit is the major part. There is no LSN: PostgreSQL's other changes have one as the minor part.
    """
    return (minor(seq) == F.lit(bytes(10))) & ~is_snapshot(seq)


def position(seq: Column) -> Column:
    """Return a sequence without its tie: the epoch and the position itself."""
    return F.substring(seq, 1, 22)


def minor(seq: Column) -> Column:
    """Return the minor part, which is the LSN of an unanchored change."""
    return F.substring(seq, 13, 10)


def anchored_at(seq: Column, base: Column) -> Column:
    """Return the sequence of an unanchored change that follows a snapshot row.

    It has the row's epoch and major part, and the change's own LSN.
    """
    return F.concat(F.substring(base, 1, 12), F.substring(seq, 13, 14))


def sent_of(seq: Column) -> Column:
    """Return the sequence of an unanchored change as it was sent: its LSN is both parts."""
    return F.concat(F.substring(seq, 1, 2), minor(seq), minor(seq), F.substring(seq, 23, 4))


def are_of_one_epoch(one: Column, other: Column) -> Column:
    """Return whether two sequences of positions are of one epoch (BOOLEAN)."""
    return F.substring(one, 1, 2) == F.substring(other, 1, 2)


def behind(value: Column, base: Column) -> Column:
    """Return the sequence of an unanchored change, or of what it carried, behind what is at ``base``.

    It keeps its LSN. What is above ``base`` already, or of another epoch, stays where it is.
    """
    carried = (F.length(value) >= WIDTH) & ~is_snapshot(value) & ~is_reread(value) & (value < own(base))
    lifted = F.concat(F.substring(base, 1, 12), F.substring(value, 13, 1_000_000))
    return F.when(carried & are_of_one_epoch(value, base), lifted).otherwise(value)


def is_derived(seq: Column, read: Column) -> Column:
    """Return whether an unanchored change at ``seq`` follows the row of a snapshot at ``read`` (BOOLEAN)."""
    one_place = F.substring(seq, 1, 12) == F.substring(read, 1, 12)
    return is_snapshot(read) & ~is_snapshot(seq) & one_place


def is_later(value: Column, base: Column, follows: Column) -> Column:
    """Return whether an unanchored change, or what it carried, comes after what is at ``base`` (BOOLEAN).

    Its LSN is higher. After a row of a snapshot it comes if it ``follows`` that in its partition. A row of an
    incremental snapshot shows all transactions up to a commit, so it has a place among changes.
    """
    by_lsn = F.when(is_reread(base), value > base).otherwise(minor(value) > minor(base))
    return F.when(is_snapshot(base), follows).otherwise(by_lsn)


def placed(value: Column, base: Column, *, unanchored: Column, follows: Column) -> Column:
    """Return the sequence of a value, `behind` what is at ``base`` if an unanchored change brought it later.

    ``unanchored`` says that such a change carried the value (see `is_later` for ``follows``).
    """
    later = unanchored & (F.length(base) >= WIDTH) & is_later(value, base, follows)
    return F.when(later, behind(value, base)).otherwise(value)


def beside_stored(value: Column, column: Column, row: Column, *, unanchored: Column, later: Column) -> Column:
    """Return the sequence of a value next to the stored one of its column.

    ``column`` is the sequence of that one and ``row`` that of its row. ``unanchored`` says that an unanchored
    change carried the value, ``later`` that it came after that of the row in its partition.
    """
    base = event_part(column, row)
    follows = (base == row) & later
    # Where a value that was read came is not known any more, but that the change of the row followed it.
    follows = follows | (is_derived(row, base) & (minor(value) > minor(row)))
    return placed(value, base, unanchored=unanchored, follows=follows)


def epoch_of(seq: bytes) -> int:
    """Return the epoch of a sequence."""
    return int.from_bytes(seq[:2], "big")


def beginning_of(epoch: int) -> bytes:
    """Return the sequence of an event without a position, which lies below all positions of its epoch."""
    return epoch.to_bytes(2, "big") + bytes(WIDTH - 2)


def in_epoch(seq: bytes, epoch: int) -> bytes:
    """Return the sequence of the same position in another epoch."""
    return epoch.to_bytes(2, "big") + seq[2:]


def as_bytes(seq: bytearray | None) -> bytes | None:
    """Return a sequence that Spark collected as ``bytes``; None stays None."""
    return None if seq is None else bytes(seq)
