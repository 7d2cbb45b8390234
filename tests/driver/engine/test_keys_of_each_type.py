"""Both stages for keys of each type: late, repeated and incomplete changes, in any spelling and batches."""

from __future__ import annotations

import json
import os
import random
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from lakemirror.driver.columns.facts import Facts
from lakemirror.driver.engine import table_change
from lakemirror.driver.rules import kinds
from lakemirror.driver.rules.envelopes.records import TableName
from lakemirror.driver.rules.kinds import Decimals, Kind
from lakemirror.driver.rules.row_keys import KeyOfTable
from lakemirror.driver.rules.rows import Column
from lakemirror.driver.rules.types import UNAVAILABLE
from tests.driver.engine.test_stages import OnDisk
from tests.support.records import Record

KEYS: Mapping[str, tuple[Kind, Sequence[str]]] = {
    "boolean": (kinds.BOOLEAN, ("true", "false")),
    "byte": (kinds.TINYINT, ("-128", "0", "7")),
    "integer": (kinds.INT, ("0", "-0", "5")),
    "long": (kinds.BIGINT, (f"{2**63 - 1}", f"{-(2**63)}", "1")),
    "float": (kinds.FLOAT, ("0.0", "-0.0", "-0", "1.5", '"NaN"', '"-Infinity"', "16777216.0")),
    "double": (kinds.DOUBLE, ("0.0", "-0.0", "0", "1E300", "1e300", '"NaN"', "0.1", "1e-320")),
    "string": (kinds.STRING, ('""', '"a"', '"\\u0061"', '"\\u0000"', '"a\\"b"', '"\x7f"', '"["', '"1"')),
    "binary": (kinds.BINARY, ('""', '"AA=="', '"AAA="', '"/w=="')),
    "date": (kinds.DATE, ("0", "-1", "18000", '"2019-04-14"', '"0001-01-01"', '"9999-12-31"')),
    "timestamp": (
        kinds.TIMESTAMP,
        ('"2020-01-01T00:00:00Z"', '"2020-01-01T02:00:00+02:00"', '"1969-12-31T23:59:59.999999Z"'),
    ),
    "timestamp_ntz": (kinds.TIMESTAMP_NTZ, ('"2020-01-01T00:00:00"', '"1500-01-01T00:00:00.5"')),
    "decimal(10,2)": (Decimals(10, 2), ("1", "1.00", "-0", "0.00", "0.1", "99999999.99", "1e2", "100")),
    "decimal(20,0)": (Decimals(20, 0), (f"{2**64 - 1}", f"{2**63}", "0", "1")),
    "decimal(38,10)": (Decimals(38, 10), ("1", "1.0000000000", "12345678901234567890.1", "1e-10")),
}
"""Values in JSON without a schema."""
NAMES = ("id", "Key", "a.b", "k`x", "k,y", "c c")
TEXTS = ('"x"', "null", f'"{UNAVAILABLE}"', f'"{UNAVAILABLE}"')
_TOPIC = "demo.public.items"


class Drawn:
    """A table with a key of some types, and records of it."""

    def __init__(self, rnd: random.Random, types: Sequence[str]) -> None:
        self.rnd, self.key = rnd, rnd.sample(NAMES, len(types))
        self.types = {**dict(zip(self.key, types, strict=True)), "v": "double", "w": "string"}
        self.keys = [[rnd.choice(KEYS[each][1]) for each in types] for _ in range(8)]
        columns = {name: Column(name, KEYS[kind][0]) for name, kind in self.types.items()}
        key = KeyOfTable(self.key, {name: columns[name] for name in self.key})
        self.facts = Facts(TableName("demo", "public", "items"), columns, key, "postgresql")

    def any(self, number: int) -> Record:
        rnd = self.rnd
        place = number if rnd.random() < 0.8 else rnd.randrange(60)
        return self.record(number, place, rnd.choice("cuudr"), rnd.choice(self.keys), rnd.choice(TEXTS))

    def record(self, number: int, place: int, op: str, values: Sequence[str], text: str) -> Record:
        rnd, lsn = self.rnd, 100 + place
        members = [f"{json.dumps(name)}:{value}" for name, value in zip(self.key, values, strict=True)]
        row = [*members, f'"v":{rnd.choice(("1.5", "null", "-0.0"))}', f'"w":{text}']
        after = "null" if op == "d" else "{" + ",".join(row) + "}"
        source = {
            **{"connector": "postgresql", "name": "demo", "db": "demo", "schema": "public", "table": "items"},
            **{"lsn": lsn, "sequence": f'["{lsn - 1}","{lsn}"]', "ts_us": 1_700_000_000_000_000 + lsn},
        }
        value = f'{{"before":null,"after":{after},"source":{json.dumps(source)},"op":"{op}"}}'
        key = "{" + ",".join(members) + "}"
        place = {"topic": _TOPIC, "partition": 0, "offset": number}
        return {**place, "key": key, "value": value, "headers": []}


def check(number: int, types: Sequence[str]) -> OnDisk:
    rnd = random.Random(number)
    drawn = Drawn(rnd, types)
    records = [drawn.any(n) for n in range(60)]
    records += [{**each, "offset": 60 + n} for n, each in enumerate(rnd.sample(records, 8))]
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_change, "SMALL", rnd.choice((1, table_change.SMALL)))
        patch.setattr(os, "fsync", lambda _: None)  # nobody pulls the plug here
        table, at = OnDisk(Path(folder), drawn.facts, rnd, soft=rnd.random() < 0.3), 0
        while at < len(records):
            end = at + rnd.randint(1, 20)
            table.deliver(records[at:end])
            at = end
    return table


@pytest.mark.guarantee("The rules and the driver's engine make the same of the same records")
@pytest.mark.parametrize("name", KEYS)
def test_a_mirror_ends_as_the_rules_say(name: str) -> None:
    others = random.Random(name)
    for number in range(2):
        types = [name, *others.sample(sorted(KEYS), number)]
        assert check(number, types).taken > 0


def test_a_delete_says_since_when_a_value_that_is_not_sent_has_been_null(tmp_path: Path) -> None:
    """The update is newer than each tombstone, and its row is not there: the mirror lacks its create."""
    drawn = Drawn(random.Random(1), ["integer"])
    table = OnDisk(tmp_path, drawn.facts, random.Random(1))
    for number, (op, text) in enumerate([("c", '"x"'), ("d", "null"), ("u", TEXTS[-1]), ("u", TEXTS[-1])]):
        assert table.deliver([drawn.record(number, number, op, ["5"], text)])
