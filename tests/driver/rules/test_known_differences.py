"""What the driver's engine makes of some records differently than the rules.

Each case says which of them is right, and fails if either changes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.agreement import by_rules, plain, quarantined
from tests.support.mirroring import Mirroring, at
from tests.support.records import Record

pytestmark = pytest.mark.guarantee("The rules and the driver's engine make the same of the same records")

TWICE = '{"a":1,"a":2}'
"""An object that has a member twice. JSON allows it, and names no meaning (RFC 8259, section 4)."""
TYPES = {"v": "variant", "s": "string", "m": "map<string,int>", "o": "struct<a: int>"}


def twice() -> list[Record]:
    """A record without a schema for each type, whose value has a member twice."""
    found = []
    for number, name in enumerate(TYPES):
        source = {"connector": "postgresql", "name": "demo", "db": "demo", "schema": "public"}
        place = {"lsn": 100 + number, "sequence": f'["99","{100 + number}"]', "snapshot": "false"}
        change = {"op": "c", "before": None, "after": {"id": number, name: "@"}}
        change["source"] = {**source, **place, "table": "twice", "ts_ms": 10**12}
        value = json.dumps(change).replace('"@"', TWICE)
        about = {"topic": "demo.public.twice", "partition": 0, "offset": number, "timestamp": 10**12}
        found.append({**about, "key": json.dumps({"id": number}), "value": value, "headers": []})
    return found


def values(row: Any) -> dict[str, Any]:
    return {name: each for name, each in row.items() if each is not None}


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_a_value_without_a_schema_that_has_a_member_twice(spark: SparkSession, tmp_path: Path) -> None:
    """The engine is right: it keeps a text as it is, and puts a record aside whose value has no such place.

    The rules take the last member, as both do of a row and of a STRUCT.
    """
    tables = [{"source": "public.twice", "columns": {"types": TYPES}}]
    mirroring = Mirroring(tmp_path, {"tables": tables}).deliver([twice()])
    [table] = by_rules(mirroring).tables.values()
    assert [values(row.values) for row in table.rows.values()] == [
        {"id": 0, "v": {"a": 2}},
        {"id": 1, "s": '{"a":2}'},
        {"id": 2, "m": {"a": 2}},
        {"id": 3, "o": {"a": 2}},
    ]
    mirroring.run(spark)
    rows = at(spark, mirroring.path("demo", "public", "twice")).drop("v").orderBy("id").collect()
    assert [values(plain(row)) for row in rows] == [{"id": 1, "s": TWICE}, {"id": 3, "o": {"a": 2}}]
    assert {origin[2]: reason for origin, reason in quarantined(spark, mirroring).items()} == {
        0: "the value does not fit v (variant)",
        2: "the value does not fit m (map<string,int>)",
    }
