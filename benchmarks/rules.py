"""What the rules cost: microseconds of CPU a record on one core, to read it and its values, and to merge.

``PYTHONPATH=operator:. python -m benchmarks.rules [RECORDS]``. The rules are for odd records only, and have
30 microseconds for each. The records are updates of PostgreSQL without schemas: 700 bytes, eight columns, a
tenth of them deletes, four of each key in a batch.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from lakemirror.driver.rules.envelopes import debezium
from lakemirror.driver.rules.envelopes.records import Change, Record, Settings
from lakemirror.driver.rules.kinds import BIGINT, BOOLEAN, DOUBLE, STRING, TIMESTAMP, Decimals, Kind
from lakemirror.driver.rules.merge import merge
from lakemirror.driver.rules.positions import Origin
from lakemirror.driver.rules.rows import Column, Image, read_row
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
EACH_KEY = 4
BUDGET = 30.0


def records(number: int) -> list[Record]:
    """Records of one table, in the order of their source."""
    rnd, made = random.Random(1), []
    for n in range(number):
        key = {"id": rnd.randrange(max(1, number // EACH_KEY))}
        op = "d" if rnd.random() < 0.1 else "u"
        row = {
            **key,
            "name": f"customer {n}",
            "email": f"customer.{n}@example.org",
            "price": rnd.randrange(10**6) / 100,
            "weight": rnd.random(),
            "active": True,
            "updated_at": "2026-01-02T03:04:05.123456Z",
            "note": "a text of some length, as notes are",
        }
        lsn = 10_000 + 100 * n
        source = {
            **{
                "version": "3.0.0.Final",
                "connector": "postgresql",
                "name": "shop",
                "ts_ms": 1_700_000_000_000 + n,
            },
            **{"snapshot": "false", "db": "shop", "sequence": f'["{lsn - 50}","{lsn}"]', "schema": "public"},
            **{
                "ts_us": 1_700_000_000_000_000 + n,
                "ts_ns": 1_700_000_000_000_000_000 + n,
                "table": "customers",
            },
            **{"txId": n, "lsn": lsn, "xmin": None},
        }
        images = {"before": None if op == "u" else row, "after": row if op == "u" else None}
        value = {**images, "source": source, "transaction": None, "op": op, "ts_ms": 1_700_000_000_100 + n}
        made.append(Record(dumped(value), dumped(key), origin=Origin("shop.public.customers", 0, n)))
    return made


def dumped(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def measured(step: Callable[[], Any], number: int) -> tuple[Any, float]:
    """Return what a step makes, and the microseconds of CPU that it takes for each of so many records."""
    begin = time.process_time()
    made = step()
    return made, (time.process_time() - begin) / number * 1e6


def decoded(changes: list[Change], origins: list[Origin]) -> list[Event]:
    """Return changes as events."""
    columns = {name: Column(name, kind) for name, kind in COLUMNS.items()}
    events = []
    for change, origin in zip(changes, origins, strict=True):
        image = read_row(change.row, columns, may_have_gaps=change.may_have_gaps) if change.row else Image()
        assert isinstance(image, Image), image
        key: Key = tuple((change.key or {}).values())
        place = (key, change.op, change.seq, change.at, origin)
        events.append(Event(*place, image.values, image.gaps, image.texts, digest=origin.offset))
    return events


def merged(events: list[Event]) -> int:
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


def main(number: int) -> None:
    """Measure and print each step."""
    made = records(number)
    settings = Settings()
    changes, reading = measured(lambda: [debezium.classify(each, settings) for each in made], number)
    events, values = measured(lambda: decoded(changes, [each.origin for each in made]), number)
    _, merging = measured(lambda: merged(events), number)
    total = reading + values + merging
    print(f"{number} records of {len(made[0].value or b'')} bytes, microseconds of CPU for each:")
    print(f"record {reading:.1f}, values {values:.1f}, merge {merging:.1f}; {total:.1f} of {BUDGET:.0f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20_000)
