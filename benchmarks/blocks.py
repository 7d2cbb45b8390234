"""What columns cost: microseconds of CPU a record on one core, to decode a block and to fold it.

``PYTHONPATH=operator:. python -m benchmarks.blocks [BLOCKS]``. The records are those of `benchmarks.rules`,
in blocks of 20,000: changes of any of 20,000 rows, most of which the mirror has, a tenth of them deletes,
without schemas and with those that JsonConverter embeds. With odd records, one of a hundred has a value that
was not sent (PostgreSQL's TOAST), so that its key goes to the rules. ``rules alone`` is what the rules take
for the same records, in turn with them.

Each figure is that of the fastest of five runs.
"""

from __future__ import annotations

import gc
import random
import re
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from benchmarks import rules
from lakemirror.driver.columns import stored
from lakemirror.driver.columns.decode import Decoder
from lakemirror.driver.columns.facts import Facts
from lakemirror.driver.columns.fold import Bucket, Mirrored, fold
from lakemirror.driver.columns.raw_records import RawRecords
from lakemirror.driver.rules.envelopes.records import Record, TableName
from lakemirror.driver.rules.row_keys import KeyOfTable
from lakemirror.driver.rules.rows import Column
from lakemirror.driver.rules.schemas import fields_of_envelope
from lakemirror.driver.rules.table import Table
from lakemirror.driver.rules.types import UNAVAILABLE
from lakemirror.driver.rules.values import Event

BLOCK = 20_000
RUNS = 5
ODD = 100
"""One of so many records is odd."""


def facts_of(*, with_schemas: bool) -> Facts:
    """What is known of the table of `benchmarks.rules`."""
    columns = {name: Column(name, kind) for name, kind in rules.COLUMNS.items()}
    schema = rules.SCHEMA if with_schemas else None
    if schema is not None:
        columns = {each.name: Column.of(each) for each in fields_of_envelope(schema)}
    table, key = TableName("shop", "public", "customers"), KeyOfTable(["id"], {"id": columns["id"]})
    of_key = rules.KEY_SCHEMA if with_schemas else None
    return Facts(table, columns, key, "postgresql", schema=schema, key_schema=of_key)


def block_of(records: Sequence[Record]) -> pa.RecordBatch:
    """Records as a block."""
    return pa.RecordBatch.from_arrays(
        [
            pa.array([each.origin.topic for each in records], pa.string()),
            pa.array([each.origin.partition for each in records], pa.int32()),
            pa.array([each.origin.offset for each in records], pa.int64()),
            pa.array([each.key for each in records], pa.binary()),
            pa.array([each.value for each in records], pa.binary()),
        ],
        names=["topic", "partition", "offset", "key", "value"],
    )


def records_of(blocks: int, *, with_schemas: bool) -> list[Record]:
    """Records of `benchmarks.rules`, each of any of the rows of a mirror."""
    rnd, made = random.Random(2), []
    for each in rules.records(blocks * BLOCK, with_schemas=with_schemas):
        named = b'"id":%d' % rnd.randrange(BLOCK)
        key, value = (_ID.sub(named, part or b"") for part in (each.key, each.value))
        made.append(each._replace(key=key, value=value))
    return made


_ID = re.compile(rb'"id":\d+')


def with_odd(records: Sequence[Record]) -> list[Record]:
    """Records of which one in a hundred has a value that was not sent."""
    odd = (b"a text of some length, as notes are", UNAVAILABLE.encode())
    return [
        each._replace(value=(each.value or b"").replace(*odd)) if n % ODD == 0 else each
        for n, each in enumerate(records)
    ]


class Measured:
    """One kind of records: the CPU seconds of its steps, by name."""

    def __init__(self, records: Sequence[Record], *, with_schemas: bool) -> None:
        self._facts = facts_of(with_schemas=with_schemas)
        self._kinds = {name: each.kind for name, each in self._facts.columns.items()}
        self._records, self._block = records, block_of(records)
        self._rows = self._stored(with_schemas=with_schemas)
        self.seconds: dict[str, float] = {}
        self.odd = self.by_rules = 0

    def _stored(self, *, with_schemas: bool) -> pa.RecordBatch:
        """The rows that an earlier batch left: one for each key."""
        made = records_of(1, with_schemas=with_schemas)
        changes = Decoder(self._facts).decode(RawRecords.of(block_of(made))).changes
        bucket = Bucket(changes, stored.of_rows({}, self._kinds, ["id"], soft=None), self._no_ends())
        return fold(bucket, self._mirrored()).rows

    def _no_ends(self) -> pa.RecordBatch:
        return stored.of_tombstones({}, self._kinds, ["id"])

    def _mirrored(self) -> Mirrored:
        return Mirrored(self._kinds, ["id"], Table(list(self._kinds), ("note",)))

    def run(self) -> None:
        """Take each step once."""
        reader, decoder = rules.Reader(), Decoder(self._facts)
        decoded = self._timed("decode", lambda: decoder.decode(RawRecords.of(self._block)))
        numbers = decoded.odd.tolist()
        odd: list[Event] = self._timed("odd", lambda: [reader.event(self._records[i]) for i in numbers])
        bucket = Bucket(decoded.changes, self._rows, self._no_ends(), odd)
        folded = self._timed("fold", lambda: fold(bucket, self._mirrored()))
        events = self._timed("rules", lambda: list(map(reader.event, self._records)))
        self._timed("merge", lambda: rules.merged(events))
        self.odd, self.by_rules = len(decoded.odd), folded.by_rules

    def _timed(self, name: str, step: Callable[[], Any]) -> Any:
        gc.collect()
        begin = time.process_time()
        made = step()
        taken = time.process_time() - begin
        self.seconds[name] = min(taken, self.seconds.get(name, taken))
        return made

    def shown(self) -> str:
        """The microseconds of each step, for a record."""
        each = {name: seconds / len(self._records) * 1e6 for name, seconds in self.seconds.items()}
        mine = each["decode"] + each["odd"] + each["fold"]
        alone = each["rules"] + each["merge"]
        steps = ", ".join(f"{name} {each[name]:.2f}" for name in ("decode", "odd", "fold"))
        return f"{steps}; {mine:.2f} in all, rules alone {alone:.1f} ({alone / mine:.0f} times as much)"


def main(blocks: int) -> None:
    """Measure each kind of records, and print what each step costs."""
    pa.set_cpu_count(1)
    for with_schemas in (False, True):
        made = records_of(blocks, with_schemas=with_schemas)[-BLOCK:]
        for name, records in (("plain", made), ("1 % odd", with_odd(made))):
            measured = Measured(records, with_schemas=with_schemas)
            for _ in range(RUNS):
                measured.run()
            schemas = "with schemas" if with_schemas else "without schemas"
            print(f"{schemas}, {name} ({measured.odd} odd, {measured.by_rules} with them by the rules):")
            print(f"  {measured.shown()}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2)
