"""Makes the load: a mirrored table and a stream of changes to it, as saved Kafka records.

PostgreSQL-shaped Debezium events (replica identity DEFAULT: updates carry no before image, a delete is
followed by a tombstone), lsn growing strictly, several changes a transaction, three partitions.
"""

from __future__ import annotations

import itertools
import json
import random
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

import pyarrow as pa
import pyarrow.parquet as pq

TOPIC = "bench.public.accounts"
PARTITIONS = 3
SPARK_TYPES = {"owner": "string", "balance": "bigint", "tier": "string", "updated_at": "timestamp"}
Row = tuple[str, int, str | None, int]
"""owner, balance, tier, updated_at in microseconds."""


@dataclass(frozen=True)
class Load:
    """How much of what. Shares are of the events; `late` ones come up to 3 batches later than in order."""

    rows: int = 1_000_000
    events: int = 300_000
    batch: int = 10_000
    schemas: bool = False
    inserts: float = 0.25
    deletes: float = 0.10
    reinserts: float = 0.05
    late: float = 0.0
    duplicates: float = 0.0
    seed: int = 1


@dataclass
class Files:
    """Where a load lies: the snapshot, one file a batch, and the rows of the source at the end (Parquet)."""

    snapshot: list[Path] = field(default_factory=list)
    batches: list[Path] = field(default_factory=list)
    truth: Path = Path()


def make(load: Load, folder: Path) -> Files:
    """Write the load to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    source = _Source(load)
    files = Files(truth=folder / "truth.parquet")
    for number, ids in enumerate(_chunks(load.rows, 100_000)):
        files.snapshot.append(folder / f"snapshot-{number:05d}.jsonl")
        _write(files.snapshot[-1], (source.read(i) for i in ids))
    held: list[tuple[int, str]] = []
    for number, chunk in enumerate(_chunks(load.events, load.batch)):
        files.batches.append(folder / f"batch-{number:05d}.jsonl")
        last = (number + 1) * load.batch >= load.events
        _write(files.batches[-1], source.batch(number, len(chunk), held, last))
    _write_truth(files.truth, source.rows)
    return files


def _chunks(total: int, size: int) -> Iterator[range]:
    for start in range(0, total, size):
        yield range(start, min(start + size, total))


def _write(path: Path, lines: Iterator[str]) -> None:
    out: TextIO
    with path.open("w", encoding="utf-8") as out:
        out.writelines(lines)


def _write_truth(path: Path, rows: dict[int, Row]) -> None:
    ids = sorted(rows)
    owners, balances, tiers, times = zip(*(rows[i] for i in ids), strict=True)
    columns = {
        "id": pa.array(ids, pa.int32()),
        "owner": pa.array(owners, pa.string()),
        "balance": pa.array(balances, pa.int64()),
        "tier": pa.array(tiers, pa.string()),
        "updated_at": pa.array(times, pa.timestamp("us", tz="UTC")),
    }
    pq.write_table(pa.table(columns), path)


class _Source:
    """The database and its connector."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.rows: dict[int, Row] = {}
        self._new = itertools.count(load.rows)
        self._rnd = random.Random(load.seed)
        self._ids: list[int] = []
        self._place: dict[int, int] = {}
        self._gone: list[int] = []
        self._offsets = [0] * PARTITIONS
        self._lsn, self._commit, self._tx, self._left = 24_000_000, 24_000_000, 700, 0
        self._us = 1_790_000_000_000_000

    def read(self, key: int) -> str:
        """The snapshot's record of a new row."""
        self._add(key)
        sequence = f'[null,\\"{self._lsn}\\"]'
        return self._record(key, self._value("r", "null", self._image(key), sequence, "true", False))

    def batch(self, number: int, events: int, held: list[tuple[int, str]], last: bool) -> Iterator[str]:
        """One batch: late records of earlier ones first, then `events` changes, some of them held back."""
        due = [line for when, line in held if when <= number or last]
        held[:] = [(when, line) for when, line in held if when > number and not last]
        yield from due
        for _ in range(events):
            for line in self._change():
                if self.load.late and not last and self._rnd.random() < self.load.late:
                    held.append((number + self._rnd.randint(1, 3), line))
                else:
                    yield line
                if self.load.duplicates and self._rnd.random() < self.load.duplicates:
                    yield line

    def _change(self) -> Iterator[str]:
        load, x = self.load, self._rnd.random()
        if x < load.inserts or not self._ids:
            yield self._created(next(self._new))
        elif x < load.inserts + load.reinserts and self._gone:
            yield self._created(self._gone.pop(self._rnd.randrange(len(self._gone))))
        elif x < load.inserts + load.reinserts + load.deletes:
            yield from self._deleted(self._ids[self._rnd.randrange(len(self._ids))])
        else:
            key = self._ids[self._rnd.randrange(len(self._ids))]
            self.rows[key] = self._row()
            yield self._event("u", key, "null", self._image(key))

    def _created(self, key: int) -> str:
        self._add(key)
        return self._event("c", key, "null", self._image(key))

    def _deleted(self, key: int) -> Iterator[str]:
        before = f'{{"id":{key},"owner":"","balance":0,"tier":null,"updated_at":"1970-01-01T00:00:00Z"}}'
        last, place = self._ids.pop(), self._place.pop(key)
        if last != key:
            self._ids[place], self._place[last] = last, place
        del self.rows[key]
        self._gone.append(key)
        yield self._event("d", key, before, "null")
        yield self._record(key, None)

    def _add(self, key: int) -> None:
        self.rows[key] = self._row()
        self._place[key] = len(self._ids)
        self._ids.append(key)

    def _row(self) -> Row:
        rnd = self._rnd
        tier = (None, "basic", "gold")[rnd.randrange(3)]
        return f"owner {rnd.randrange(10**6)} ż", rnd.randrange(-(10**9), 10**12), tier, self._us

    def _image(self, key: int) -> str:
        owner, balance, tier, us = self.rows[key]
        return (
            f'{{"id":{key},"owner":"{owner}","balance":{balance},'
            f'"tier":{"null" if tier is None else chr(34) + tier + chr(34)},"updated_at":"{_iso(us)}"}}'
        )

    def _event(self, op: str, key: int, before: str, after: str) -> str:
        if self._left == 0:
            self._commit, self._tx = self._lsn, self._tx + 1
            self._left = self._rnd.choice((1, 1, 1, 2, 5, 20))
            self._us += self._rnd.choice((0, 40, 300, 2000))
        self._left -= 1
        self._lsn += self._rnd.randrange(64, 400, 8)
        sequence = f'[\\"{self._commit}\\",\\"{self._lsn}\\"]'
        return self._record(key, self._value(op, before, after, sequence, "false", self.load.schemas))

    def _value(self, op: str, before: str, after: str, sequence: str, snapshot: str, schemas: bool) -> str:
        us, ms = self._us, self._us // 1000
        value = (
            f'{{"before":{before},"after":{after},"source":{{"version":"3.7.0.Final","connector":"postgresql",'
            f'"name":"bench","ts_ms":{ms},"snapshot":"{snapshot}","db":"bench","sequence":"{sequence}",'
            f'"ts_us":{us},"ts_ns":{us}000,"schema":"public","table":"accounts","txId":{self._tx},'
            f'"lsn":{self._lsn},"xmin":null,"origin":null,"origin_lsn":null}},"transaction":null,"op":"{op}",'
            f'"ts_ms":{ms + 90},"ts_us":{us + 90_123},"ts_ns":{us + 90_123}456}}'
        )
        return f'{{"schema":{_SCHEMA},"payload":{value}}}' if schemas else value

    def _record(self, key: int, value: str | None) -> str:
        text = f'{{"id":{key}}}'
        partition = zlib.crc32(text.encode()) % PARTITIONS
        offset = self._offsets[partition]
        self._offsets[partition] = offset + 1
        if self.load.schemas:
            text = f'{{"schema":{_KEY_SCHEMA},"payload":{text}}}'
        written = "null" if value is None else json.dumps(value)
        return (
            f'{{"topic":"{TOPIC}","partition":{partition},"offset":{offset},"timestamp":{self._us // 1000},'
            f'"key":{json.dumps(text)},"value":{written},"headers":[]}}\n'
        )


def _iso(us: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(us // 1_000_000)) + f".{us % 1_000_000:06d}Z"


def _field(column: str, kind: str, optional: bool = True, **more: object) -> dict[str, object]:
    return {"type": kind, "optional": optional, **more, "field": column}


_COLUMNS = [
    _field("id", "int32", False),
    _field("owner", "string", False),
    _field("balance", "int64", False),
    _field("tier", "string"),
    _field("updated_at", "string", False, name="io.debezium.time.ZonedTimestamp", version=1),
]
_IMAGE = {"type": "struct", "fields": _COLUMNS, "optional": True, "name": f"{TOPIC}.Value"}
_SOURCE = [
    *(_field(name, "string", False) for name in ("version", "connector", "name")),
    _field("ts_ms", "int64", False),
    _field("snapshot", "string"),
    _field("db", "string", False),
    _field("sequence", "string"),
    *(_field(name, "int64") for name in ("ts_us", "ts_ns")),
    *(_field(name, "string", False) for name in ("schema", "table")),
    *(_field(name, "int64") for name in ("txId", "lsn", "xmin")),
    _field("origin", "string"),
    _field("origin_lsn", "int64"),
]
_TRANSACTION = [
    _field("id", "string", False),
    _field("total_order", "int64", False),
    _field("data_collection_order", "int64", False),
]
_ENVELOPE = {
    "type": "struct",
    "fields": [
        {**_IMAGE, "field": "before"},
        {**_IMAGE, "field": "after"},
        {
            "type": "struct",
            "fields": _SOURCE,
            "optional": False,
            "name": "io.debezium.connector.postgresql.Source",
            "version": 1,
            "field": "source",
        },
        {
            "type": "struct",
            "fields": _TRANSACTION,
            "optional": True,
            "name": "event.block",
            "version": 1,
            "field": "transaction",
        },
        _field("op", "string", False),
        *(_field(name, "int64") for name in ("ts_ms", "ts_us", "ts_ns")),
    ],
    "optional": False,
    "name": f"{TOPIC}.Envelope",
    "version": 2,
}
_SCHEMA = json.dumps(_ENVELOPE, separators=(",", ":"))
_KEY_SCHEMA = json.dumps(
    {"type": "struct", "fields": [_COLUMNS[0]], "optional": False, "name": f"{TOPIC}.Key"},
    separators=(",", ":"),
)
