"""Records without a schema that have an object with a member twice: no member is lost to the other one.

A text keeps both, and a record whose column has no place for both is put aside. Of a row and of a STRUCT, the
last one counts.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakemirror.driver.rules.envelopes import debezium
from lakemirror.driver.rules.envelopes.records import LEVELS, Bad, Change, Settings
from lakemirror.driver.rules.envelopes.records import Record as Raw
from tests.support.agreement import assert_agreement, by_rules
from tests.support.mirroring import Mirroring
from tests.support.records import Record

pytestmark = pytest.mark.guarantee("A member that JSON has twice hides no column of its record")

TWICE = '{"a":1,"a":2}'
"""An object that has a member twice. JSON allows it, and names no meaning (RFC 8259, section 4)."""
TYPES = {"v": "variant", "s": "string", "m": "map<string,int>", "o": "struct<a: int>", "d": "decimal(5,2)"}


def delivered(folder: Path) -> Mirroring:
    """A record for each type whose value has a member twice; of a table without types, and in a key."""
    typed = [record("typed", number, {name: TWICE}) for number, name in enumerate(TYPES)]
    plain = [record("plain", 10, {"o": TWICE, "l": f"[{TWICE}]"}), record("plain", 11, {"o": '{"a":3}'})]
    keyed = [record("keyed", 20 + number, {}, key=each) for number, each in enumerate((TWICE, '{"a":2}'))]
    tables = [
        {"source": "public.typed", "columns": {"types": TYPES}},
        {"source": "public.keyed", "columns": {"types": {"id": "string"}}},
    ]
    return Mirroring(folder, {"tables": tables}).deliver([typed + plain + keyed])


def record(table: str, number: int, row: dict[str, str], key: str | None = None) -> Record:
    source = {"connector": "postgresql", "name": "demo", "db": "demo", "schema": "public", "table": table}
    source |= {"lsn": 100 + number, "sequence": f'["99","{100 + number}"]', "snapshot": "false"}
    change = {"op": "c", "before": None, "after": "@", "source": {**source, "ts_ms": 10**12}}
    of_key = key or str(number)
    members = [f'"{name}":{value}' for name, value in {"id": of_key, **row}.items()]
    value = json.dumps(change).replace('"@"', f"{{{','.join(members)}}}")
    about = {"topic": f"demo.public.{table}", "partition": 0, "offset": number, "timestamp": 10**12}
    return {**about, "key": f'{{"id":{of_key}}}', "value": value, "headers": []}


def values(row: Any) -> dict[str, Any]:
    return {name: each for name, each in row.items() if each is not None}


def test_no_member_is_lost_to_the_other_one(tmp_path: Path) -> None:
    tables = {name.rpartition(".")[2]: each for name, each in by_rules(delivered(tmp_path)).tables.items()}
    rows = {name: [values(row.values) for row in each.rows.values()] for name, each in tables.items()}
    assert rows["typed"] == [{"id": 1, "s": TWICE}, {"id": 3, "o": {"a": 2}}]
    assert rows["plain"] == [{"id": 10, "o": TWICE, "l": f"[{TWICE}]"}, {"id": 11, "o": '{"a":3}'}]
    assert rows["keyed"] == [{"id": TWICE}, {"id": '{"a":2}'}]
    assert {origin.offset: reason for origin, reason in tables["typed"].reasons.items()} == {
        0: "the value does not fit v (variant)",
        2: "the value does not fit m (map<string,int>)",
        4: "the value does not fit d (decimal(5,2))",
    }


@pytest.mark.thorough
@pytest.mark.timeout(900)
@pytest.mark.guarantee("The rules and the driver's engine make the same of the same records")
def test_the_engine_makes_the_same_of_them(spark: SparkSession, tmp_path: Path) -> None:
    mirroring = delivered(tmp_path)
    mirroring.run(spark)
    assert_agreement(spark, mirroring)


@pytest.mark.parametrize(
    ("lost", "is_bad"),
    [(r'"\ud800"', True), ("[" * LEVELS + "]" * LEVELS, True), (r'"\ud83d\ude00"', False), ("[]", False)],
)
def test_what_no_record_may_have_is_found_in_each_member(lost: str, is_bad: bool) -> None:
    """Half of a character, and more levels than are read, also in a member that the last one hides."""
    text = record("typed", 1, {"s": lost, "v": "1"})["value"] or ""
    twice = text.replace('"v"', '"s"').encode()
    assert isinstance(debezium.classify(Raw(twice, b'{"id":1}'), Settings()), Bad if is_bad else Change)
