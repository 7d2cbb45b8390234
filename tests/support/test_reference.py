"""The model agrees with the real databases: captures replayed in source order give the captured rows."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.support.records import Record, payload, read
from tests.support.reference import Mirror, in_source_order, key_of, position, table_name

CAPTURES = Path(__file__).parents[1] / "fixtures" / "debezium"
SCENARIOS = ("inventory", "pk_change", "composite_pk", "schema_change", "mariadb_inventory")
PLAIN = {"integer", "smallint", "bigint", "text", "boolean", "int"}


def comparable(rows: list[dict[str, Any]], columns: set[str]) -> Counter[str]:
    return Counter(json.dumps({c: row.get(c) for c in sorted(columns)}) for row in rows)


def changes(scenario: str, variant: str) -> list[Record]:
    return in_source_order(read(CAPTURES / scenario / f"{variant}.jsonl.gz"))


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("variant", ["json", "jsons"])
def test_replaying_a_capture_gives_the_rows_of_its_database(scenario: str, variant: str) -> None:
    mirror = Mirror().replay(changes(scenario, variant))
    truth = json.loads((CAPTURES / scenario / "scenario.json").read_text())["truth"]
    assert set(truth) >= set(mirror.tables)
    compared = 0
    for table, rows in mirror.tables.items():
        plain = {
            c["name"]
            for c in truth[table]["columns"]
            if c["type"].partition("(")[0] in PLAIN or "char" in c["type"]
        }
        lines = (CAPTURES / scenario / truth[table]["file"]).read_text().splitlines()
        expected = [json.loads(line) for line in lines]
        assert comparable(list(rows.values()), plain) == comparable(expected, plain), table
        compared += len(plain)
    assert compared >= 3


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_positions_never_fall_back_in_a_partition_and_tell_a_keys_changes_apart(scenario: str) -> None:
    last: dict[tuple[str, int], tuple[int, ...]] = {}
    taken: dict[tuple[str, Any, tuple[int, ...]], list[str]] = defaultdict(list)
    for record in read(CAPTURES / scenario / "json.jsonl.gz"):
        change = payload(record["value"]) if record["value"] else {}
        if change.get("op") not in ("c", "u", "d", "r"):
            continue
        at = position(change["source"])
        assert at is not None
        partition = record["topic"], record["partition"]
        assert last.get(partition, (0,)) <= at
        last[partition] = at
        if record["key"]:
            taken[table_name(change["source"]), key_of(record["key"]), at].append(change["op"])
    assert taken
    assert all(len(ops) == 1 for ops in taken.values())
