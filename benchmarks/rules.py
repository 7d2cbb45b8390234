"""What the rules cost: microseconds of CPU a record on one core, to read it with its values, and to merge.

``PYTHONPATH=operator:. python -m benchmarks.rules [BATCHES]``. The rules are for odd records only, and have
30 microseconds for each. The records are updates of PostgreSQL in Debezium's envelope, without schemas
(570 bytes) and with those that JsonConverter embeds (3 KB): eight columns, a tenth of them deletes, four
records of each key in a batch of 1,000. Of a batch, a record is read, made an event, and let go; then the
events of each key are merged, first one alone, then all of them with the row that it left.

Each figure is that of the fastest of five runs. ``loop`` is
what a million turns of a loop of Python take beside them, so that runs on other machines compare.
"""

from __future__ import annotations

import json
import random
import sys
import time
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from lakemirror.driver.rules.envelopes import debezium
from lakemirror.driver.rules.envelopes.records import Change, Document, Record, Settings
from lakemirror.driver.rules.kinds import BIGINT, BOOLEAN, DOUBLE, STRING, TIMESTAMP, Decimals, Kind
from lakemirror.driver.rules.merge import merge
from lakemirror.driver.rules.positions import Origin
from lakemirror.driver.rules.rows import Column, Image, RowReader
from lakemirror.driver.rules.schemas import fields_of_envelope
from lakemirror.driver.rules.table import Table
from lakemirror.driver.rules.values import Event, Key, Row

COLUMNS: Mapping[str, Kind] = {
    "id": BIGINT,
    "name": STRING,
    "email": STRING,
    "price": Decimals(10, 2),
    "weight": DOUBLE,
    "active": BOOLEAN,
    "updated_at": TIMESTAMP,
    "note": STRING,
}
BATCH, EACH_KEY = 1000, 4
RUNS = 5
BUDGET = 30.0


# -- the records ------------------------------------------------------------------------------------------


def records(number: int, *, with_schemas: bool) -> list[Record]:
    """Records of one table, in the order of their source."""
    rnd, made = random.Random(1), []
    for n in range(number):
        key = {"id": rnd.randrange(max(1, BATCH // EACH_KEY))}
        op = "d" if rnd.random() < 0.1 else "u"
        row = {**key, **_values(n, rnd, with_schemas=with_schemas)}
        images = {"before": None if op == "u" else row, "after": row if op == "u" else None}
        times = {"ts_ms": 1_700_000_000_100 + n}
        value = {**images, "source": _source(n), "transaction": None, "op": op, **times}
        if with_schemas:
            key, value = {"schema": KEY_SCHEMA, "payload": key}, {"schema": SCHEMA, "payload": value}
        made.append(Record(_dumped(value), _dumped(key), origin=Origin("shop.public.customers", 0, n)))
    return made


def _values(n: int, rnd: random.Random, *, with_schemas: bool) -> dict[str, Any]:
    cents = rnd.randrange(10**6)
    octets = b64encode(cents.to_bytes(4, "big")).decode()
    return {
        "name": f"customer {n}",
        "email": f"customer.{n}@example.org",
        "price": octets if with_schemas else cents / 100,
        "weight": rnd.random(),
        "active": True,
        "updated_at": "2026-01-02T03:04:05.123456Z",
        "note": "a text of some length, as notes are",
    }


def _source(n: int) -> dict[str, Any]:
    lsn, micros = 10_000 + 100 * n, 1_700_000_000_000_000 + 1000 * n
    return {
        **{"version": "3.0.0.Final", "connector": "postgresql", "name": "shop", "ts_ms": micros // 1000},
        **{"snapshot": "false", "db": "shop", "sequence": f'["{lsn - 50}","{lsn}"]'},
        **{"ts_us": micros, "ts_ns": micros * 1000, "schema": "public", "table": "customers"},
        **{"txId": n, "lsn": lsn, "xmin": None},
    }


def _field(name: str, physical: str, semantic: str | None = None, **more: Any) -> dict[str, Any]:
    named = {} if semantic is None else {"name": semantic, "version": 1}
    return {"type": physical, "optional": True, **named, **more, "field": name}


_DECIMAL = {"scale": "2", "connect.decimal.precision": "10"}
_ROW = [
    _field("id", "int64"),
    _field("name", "string"),
    _field("email", "string"),
    _field("price", "bytes", "org.apache.kafka.connect.data.Decimal", parameters=_DECIMAL),
    _field("weight", "double"),
    _field("active", "boolean"),
    _field("updated_at", "string", "io.debezium.time.ZonedTimestamp"),
    _field("note", "string"),
]
_BLOCK = [
    *(_field(name, "string") for name in ("version", "connector", "name", "snapshot", "db", "sequence")),
    *(_field(name, "string") for name in ("schema", "table")),
    *(_field(name, "int64") for name in ("ts_ms", "ts_us", "ts_ns", "txId", "lsn", "xmin")),
]
_CHANGED = "shop.public.customers.Value"
SCHEMA = {
    "type": "struct",
    "fields": [
        _field("before", "struct", _CHANGED, fields=_ROW),
        _field("after", "struct", _CHANGED, fields=_ROW),
        _field("source", "struct", "io.debezium.connector.postgresql.Source", fields=_BLOCK),
        _field("op", "string"),
        _field("ts_ms", "int64"),
    ],
    "optional": False,
    "name": "shop.public.customers.Envelope",
}
KEY_SCHEMA = {"type": "struct", "fields": _ROW[:1], "optional": False, "name": "shop.public.customers.Key"}


def _dumped(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


# -- the steps --------------------------------------------------------------------------------------------


_NO_ROW = Image()


class Reader:
    """Makes events of records. The columns of a schema are looked at when it is another one."""

    def __init__(self) -> None:
        self._schema: Document | None = None
        self._rows = RowReader({name: Column(name, kind) for name, kind in COLUMNS.items()})
        self._settings = Settings()

    def event(self, record: Record) -> Event:
        """Return what a record says, in the mirror's columns."""
        change = debezium.classify(record, self._settings)
        assert isinstance(change, Change), change
        if change.schema is not self._schema and change.schema is not None:
            self._schema = change.schema
            fields = fields_of_envelope(change.schema)
            self._rows = RowReader({each.name: Column.of(each) for each in fields})
        image = _NO_ROW
        if change.row is not None:
            found = self._rows.read(change.row)
            assert isinstance(found, Image), found
            image = found
        key: Key = tuple((change.key or {}).values())
        place = (key, change.op, change.seq, change.at, record.origin)
        digest = record.origin.offset
        return Event(*place, image.values, image.gaps, image.texts, digest=digest)


def merged(events: Sequence[Event]) -> int:
    """Merge the events of each key, the first of them alone, and return how many rows are left."""
    table = Table(list(COLUMNS), ("note",))
    by_key: dict[Key, list[Event]] = {}
    for event in events:
        by_key.setdefault(event.key, []).append(event)
    left = 0
    for mine in by_key.values():
        stored: Row | None = merge(mine[:1], None, None, table).row
        left += merge(mine, stored, None, table).row is not None
    return left


class Cost(NamedTuple):
    """Microseconds of CPU for each record."""

    read: float
    merge: float

    @property
    def total(self) -> float:
        return self.read + self.merge


def cost(made: Sequence[Record]) -> Cost:
    """Return what it costs to read records, and to merge them in batches."""
    reading = merging = 0.0
    reader = Reader()
    for begin in range(0, len(made), BATCH):
        batch = made[begin : begin + BATCH]
        events, seconds = _timed(lambda batch=batch: [reader.event(each) for each in batch])
        reading += seconds
        merging += _timed(lambda events=events: merged(events))[1]
    return Cost(reading / len(made) * 1e6, merging / len(made) * 1e6)


def _timed(step: Callable[[], Any]) -> tuple[Any, float]:
    begin = time.process_time()
    made = step()
    return made, time.process_time() - begin


def _loop() -> int:
    found = 0
    for n in range(1_000_000):
        found += n * n % 7
    return found


def main(batches: int) -> None:
    """Measure both kinds of records, and print what each step costs."""
    for name, with_schemas in (("without schemas", False), ("with schemas", True)):
        made = records(batches * BATCH, with_schemas=with_schemas)
        runs = [(cost(made), _timed(_loop)[1]) for _ in range(RUNS)]
        best, loop = (
            min((each for each, _ in runs), key=lambda each: each.total),
            min(each for _, each in runs),
        )
        print(
            f"{name}: {len(made)} records of {len(made[0].value or b'')} bytes, microseconds of CPU for each:"
        )
        print(f"  read {best.read:.1f}, merge {best.merge:.1f}; {best.total:.1f} of {BUDGET:.0f}")
        print(f"  loop: {loop * 1000:.0f} ms for a million turns")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
