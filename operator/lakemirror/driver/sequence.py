"""The order of changes: ``__seq``, one binary value that compares bytewise as the source orders its changes.

Format (public and permanent), 26 bytes, unsigned big-endian:

====== ===== ==================================================================================
bytes  name  meaning
====== ===== ==================================================================================
0-1    epoch 0, and one more each time the manifest declares that the source's positions restarted
2-11   major PostgreSQL: max(last commit's LSN, LSN); MySQL: binlog file number; SQL Server: commit LSN;
             Oracle: commit SCN; otherwise the source's timestamp in microseconds; 0 without any
12-21  minor PostgreSQL: LSN; MySQL: position in the binlog file; SQL Server: change LSN; Oracle: SCN;
             otherwise Kafka's offset plus one
22-25  tie   0 for a snapshot row, so that it yields to a change at the same place; else 1 or more
             (MySQL: row in the event plus one; SQL Server: event serial number)
====== ===== ==================================================================================

PostgreSQL's LSN alone is not the order of commits, for transactions overlap; ``source.sequence`` has
the last commit's LSN beside it (Debezium, PostgreSQL connector, "change event values"). A change of
the first transaction after a snapshot has no last commit yet: it is *unanchored*.

The sequence of one *column* (`own`, `moved`) extends the one of an event: a value that an event
carried itself is newer than one that the event inherited from the row under its former key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F

from lakemirror.api.spec import Epoch

WIDTH = 26
"""Bytes in a sequence."""

OWN = b"\xff"
"""Ends the sequence of a column whose value the event itself carried."""

MISSING: Final = b""
"""Sequence of a column about which nothing is known yet."""

SOURCE = (
    "STRUCT<connector: STRING, name: STRING, ts_ms: BIGINT, ts_us: BIGINT, snapshot: STRING, db: STRING, "
    "schema: STRING, table: STRING, sequence: STRING, lsn: BIGINT, server_id: BIGINT, file: STRING, pos: "
    "BIGINT, "
    "row: BIGINT, commit_lsn: STRING, change_lsn: STRING, event_serial_no: BIGINT, scn: STRING, "
    "commit_scn: STRING>"
)
"""The fields of Debezium's source block that matter for the order, over all connectors."""


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
    """BINARY(26) sequence of an event; ``source`` is a struct of type `SOURCE`."""
    digits = F.concat(epoch(topic, partition, offset, epochs), _position(source, snapshot, offset, by))
    return F.unhex(digits)


def unanchored(source: Column, snapshot: Column) -> Column:
    """BOOLEAN: a PostgreSQL change whose last commit is unknown, so that only its LSN places it."""
    return ~snapshot & source["lsn"].isNotNull() & _pair(source, 0).isNull()


def epoch(topic: Column, partition: Column, offset: Column, epochs: Sequence[Epoch]) -> Column:
    """Four hexadecimal digits: the highest declared epoch whose start in this partition is reached."""
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
    ).when(_pair(source, 1).isNotNull(), _digits(_pair(source, 1), F.lit(0), F.lit(0)))
    binlog = F.when(
        source["file"].isNotNull(),
        _digits(
            F.substring_index(source["file"], ".", -1).try_cast("bigint"),
            F.coalesce(source["pos"], F.lit(0)),
            F.when(snapshot, 0).otherwise(F.coalesce(source["row"], F.lit(0)) + 1),
        ),
    )
    sqlserver = F.when(
        source["commit_lsn"].isNotNull() | source["change_lsn"].isNotNull(),
        F.concat(
            _lsn(F.coalesce(source["commit_lsn"], source["change_lsn"])),
            F.coalesce(F.when(~snapshot, _lsn(source["change_lsn"])), F.lit("0" * 20)),
            _hex(F.when(snapshot, 0).otherwise(F.coalesce(source["event_serial_no"], F.lit(0)) + 1), 8),
        ),
    )
    oracle = F.when(
        source["scn"].isNotNull(),
        _digits(
            F.coalesce(source["commit_scn"], source["scn"]).try_cast("bigint"),
            F.when(snapshot, 0).otherwise(source["scn"].try_cast("bigint")),
            tie,
        ),
    )
    micros = F.coalesce(source["ts_us"], source["ts_ms"] * 1000)
    arrival = F.coalesce(offset, F.lit(-1)) + 1
    timestamp = F.when(micros.isNotNull(), _digits(micros, arrival, tie))
    chosen: dict[str, list[Column]] = {
        "auto": [postgres, binlog, sqlserver, oracle, timestamp],
        "lsn": [postgres, sqlserver],
        "binlog": [binlog],
        "timestamp": [timestamp],
        "offset": [_digits(F.lit(0), arrival, tie)],
    }
    return F.coalesce(*chosen[by], F.lit("0" * 48))


def _pair(source: Column, index: int) -> Column:
    """Element of ``source.sequence``, text like '["24023128","24023184"]' or '[null,"24023184"]'."""
    return F.get(F.split(F.translate(source["sequence"], '[]" ', ""), ","), index).try_cast("bigint")


def _digits(major: Column, minor: Column, tie: Column) -> Column:
    return F.concat(_hex(major, 20), _hex(minor, 20), _hex(tie, 8))


def _hex(number: Column, width: int) -> Column:
    return F.lpad(F.hex(number.cast("bigint")), width, "0")


def _lsn(text: Column) -> Column:
    """SQL Server's '0000002a:00000d40:0002' as twenty digits."""
    return F.lpad(F.translate(text, ":", ""), 20, "0")


def own(seq: Column) -> Column:
    """Column sequence of a value that the event at ``seq`` carried itself."""
    return F.concat(seq, F.lit(OWN))


def moved(seq: Column, before: Column) -> Column:
    """Column sequence of a value that the row had under its former key, moved by the event at ``seq``."""
    return F.concat(seq, before)


def is_snapshot(seq: Column) -> Column:
    """BOOLEAN: the sequence is one of a snapshot row."""
    return F.substring(seq, 23, 4) == F.lit(b"\0\0\0\0")


def minor(seq: Column) -> Column:
    """The minor part, for unanchored changes: their LSN."""
    return F.substring(seq, 13, 10)


def anchored_at(seq: Column, base: Column) -> Column:
    """An unanchored change that follows a snapshot row: the row's epoch and major part, its own LSN."""
    return F.concat(F.substring(base, 1, 12), F.substring(seq, 13, 14))


def as_bytes(seq: bytearray | None) -> bytes | None:
    """A sequence as Spark collects it."""
    return None if seq is None else bytes(seq)
