"""Filters and expectations on generated histories: the driver's engine and the rules make the same of them.

Rows enter a filter and leave it, come late, move, and lack values that were not sent; conditions are null,
fail, or cannot be decided. Rows, versions, tombstones, counts, violations and reasons are compared.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.driver.rules.test_differential import beside, deliveries
from tests.support.agreement import DELETED_AT, assert_agreement, by_rules
from tests.support.conditions import CONDITIONS
from tests.support.delivery import Batches, doubled, parts, shuffled
from tests.support.histories import History, Shape, many, play
from tests.support.mirroring import Mirroring
from tests.support.records import UNAVAILABLE, Column, PostgresPosition, Record, Row, Table, Topic

pytestmark = pytest.mark.guarantee("The rules and the driver's engine make the same of the same records")

SOFT = {"delete": {"type": "soft", "column": DELETED_AT}}
SCD2, LIST = {"mode": "scd2"}, {"mode": "append"}
THIRDS, WORDS = "v % 3 <> 0", "v % 3 <> 0 AND (note LIKE 'note%' OR big > '')"


def expected(*conditions: str, on_violation: str = "quarantine") -> Mapping[str, Any]:
    listed = [
        {"name": f"e{n}", "condition": sql, "onViolation": on_violation} for n, sql in enumerate(conditions)
    ]
    return {"expectations": listed}


@dataclass(frozen=True)
class Asked:
    """What a table is like in its source, and what the manifest says of it."""

    settings: Mapping[str, Any]
    shape: Mapping[str, Any] = field(default_factory=dict)


FULL = {"full": True, "snapshot": "open", "schemas": False}
GROUPS: Mapping[str, Mapping[str, Asked]] = {
    "filters": {
        "hard": Asked({"filter": WORDS}, FULL),
        "soft": Asked({"filter": THIRDS, **SOFT}, FULL),
        "versions": Asked({"filter": WORDS, **SCD2}, FULL),
        "gaps": Asked({"filter": THIRDS}, {"schemas": True}),
    },
    "more filters": {
        "listed": Asked({"filter": THIRDS, **LIST}, FULL),
        "gaps_soft": Asked({"filter": THIRDS, **SOFT}, {"snapshot": "open", "schemas": False}),
        "gaps_listed": Asked({"filter": "big > ''", **LIST}, {"schemas": False}),
        "binlog": Asked({"filter": WORDS}, {"source": "mariadb", "schemas": False}),
        "fails": Asked({"filter": "100 / v > 10"}, FULL),
    },
    "expectations": {
        "warned": Asked(expected("v % 4 <> 1", "100 / v > 10", on_violation="warn"), {"schemas": False}),
        "aside": Asked(expected("v % 5 <> 2 OR big > ''", "v % 4 <> 1"), {"schemas": True}),
        "aside_versions": Asked({**expected("v % 4 <> 1", "big > ''"), **SCD2}, {"schemas": False}),
        "both": Asked({"filter": THIRDS, **expected("v % 4 <> 1")}, FULL),
    },
    "more expectations": {
        "aside_full": Asked(expected("v % 5 <> 2 OR big > ''", "note IS NULL"), FULL),
        "aside_soft": Asked({**expected("v % 4 <> 1"), **SOFT}, FULL),
        "aside_listed": Asked({**expected("v % 4 <> 1", "big > ''"), **LIST}, {"schemas": False}),
        "counted": Asked({"filter": THIRDS, **expected("100 / v > 10", on_violation="warn"), **SCD2}, FULL),
    },
}


def histories(tables: Mapping[str, Asked], number: int, size: int) -> list[History]:
    rnd = random.Random(number)
    return [
        play(many(range(size), rnd, truncates=rnd.choice((0, 1))), Shape(name=name, **asked.shape))
        for name, asked in tables.items()
    ]


def pipeline(folder: Path, group: str, number: int, size: int) -> Mirroring:
    tables = GROUPS[group]
    listed = [{"source": name, **asked.settings} for name, asked in tables.items()]
    mirroring = Mirroring(folder, {"tables": [*listed, *edge_tables(group, number)]})
    sent = [deliveries(histories(tables, number, size), number, 2), edges(number)]
    return mirroring.deliver(beside(sent))


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "group",
    [
        pytest.param(each, marks=pytest.mark.long if each == "filters" else pytest.mark.thorough)
        for each in GROUPS
    ],
)
def test_the_engine_and_the_rules_agree(group: str, spark: SparkSession, tmp_path: Path) -> None:
    mirroring = pipeline(tmp_path, group, number=3, size=10)
    mirroring.run(spark)
    assert_agreement(spark, mirroring)


@pytest.mark.thorough
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("group", GROUPS)
def test_the_engine_and_the_rules_agree_on_many_histories(
    number: int, group: str, spark: SparkSession, tmp_path: Path
) -> None:
    mirroring = pipeline(tmp_path, group, number=number, size=100)
    mirroring.run(spark)
    assert_agreement(spark, mirroring)


HELD: Mapping[str, Asked] = {
    "strict": Asked(expected("v % 4 <> 1", on_violation="fail"), FULL),
    "strict_soft": Asked({**expected("v % 5 <> 2 OR big > ''", on_violation="fail"), **SOFT}, FULL),
    "lenient": Asked({**expected("v IS NOT NULL", on_violation="fail"), **SCD2}, FULL),
}


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_the_engine_and_the_rules_agree_on_tables_that_are_held(spark: SparkSession, tmp_path: Path) -> None:
    """Three histories of each, so that later changes overtake some violations. What is held is tried again
    after each batch of its table, and when the driver starts.
    """
    listed = [{"source": name, **asked.settings} for name, asked in HELD.items()]
    sent = beside([parts(each.records, 3) for each in histories(HELD, 2, 3)])
    mirroring = Mirroring(tmp_path, {"tables": listed}).deliver(sent)
    engine = by_rules(mirroring)
    assert engine.tables["demo.public.strict"].was_stopped
    assert not engine.tables["demo.public.lenient"].was_stopped
    mirroring.run(spark)
    mirroring.run(spark)
    assert_agreement(spark, mirroring)


# -- values at the edges ----------------------------------------------------------------------------------

EDGE_CONDITIONS = ("d > 1.5", "d = d", "NOT (s = '')", "v >= 0", "100 / v > 10", "true")
VALUES: Mapping[str, Sequence[Any]] = {
    "v": (None, 0, 1, -1, 9, 10, 2**31 - 1, -(2**31)),
    "d": (None, 0.0, -0.0, 1.5, 1.5000000000000002, 1e308, -1e308, 2.5e-308, "NaN", "Infinity", "-Infinity"),
    "s": (None, "", " ", "a", "\u0000", "é", UNAVAILABLE),
}
EDGES = (
    Column("id", "int32"),
    Column("v", "int32", optional=True),
    Column("d", "double", optional=True),
    Column("s", "string", optional=True),
)


def edge_tables(group: str, number: int) -> list[Mapping[str, Any]]:
    """Two tables: a filter holds one condition, expectations hold all of them."""
    sql = EDGE_CONDITIONS[(number + list(GROUPS).index(group)) % len(EDGE_CONDITIONS)]
    listed = [
        {"name": f"e{n}", "condition": each, "onViolation": ("warn", "quarantine")[(number + n) % 2]}
        for n, each in enumerate(EDGE_CONDITIONS)
    ]
    asked = {"filter": sql} if "filter" in group else {"expectations": listed}
    return [{"source": "edge", **asked, **SOFT}, {"source": "bare", **asked}]


def edges(number: int) -> Batches:
    """Rows with values at the edges; bare ones have no schema, and lack members."""
    rnd = random.Random(-number)
    batches: Batches = [[], []]
    for name in ("edge", "bare"):
        table = Table("demo", "public", name, EDGES, ("id",), "demo", False, name == "edge")
        sent = shuffled(doubled(list(_edges(table, rnd))), number)
        for batch, part in zip(batches, parts(sent, 2), strict=True):
            batch += part
    return batches


def _edges(table: Table, rnd: random.Random) -> Sequence[Record]:
    messages, lsn = [], 1000
    for _ in range(60):
        lsn += 100
        place = PostgresPosition(lsn, lsn - 50, lsn, 10**15 + lsn)
        row = {"id": rnd.randrange(12), **{name: rnd.choice(each) for name, each in VALUES.items()}}
        verb = rnd.choice(("create", "update", "update", "delete"))
        if verb == "delete":
            messages += table.delete(place, row)
        elif verb == "create":
            messages.append(table.create(place, {**row, "s": row["s"] if row["s"] != UNAVAILABLE else ""}))
        else:
            messages.append(table.update(place, row, row))
    records = list(Topic(table.topic, partitions=1).append(messages))
    return records if table.schemas else [_lacking(each, rnd) for each in records]


def _lacking(record: Record, rnd: random.Random) -> Record:
    """The record without a member of its row."""
    change: Row = json.loads(record["value"]) if record["value"] else {}
    if not change.get("after") or rnd.random() < 0.6:
        return record
    change["after"].pop(rnd.choice(("v", "d", "s")))
    return {**record, "value": json.dumps(change)}


# -- the rules alone --------------------------------------------------------------------------------------


def test_the_rules_keep_the_rows_that_meet_a_filter(tmp_path: Path) -> None:
    full = {name: GROUPS["filters"][name] for name in ("hard", "soft")}
    played = dict(zip(full, histories(full, 5, 30), strict=True))
    mirroring = Mirroring(
        tmp_path, {"tables": [{"source": name, **asked.settings} for name, asked in full.items()]}
    )
    sent = [parts(shuffled(each.records, 3), 3) for each in played.values()]
    engine = by_rules(mirroring.deliver(beside(sent)))
    for name, asked in full.items():
        _, meets = CONDITIONS[asked.settings["filter"]]
        wanted = {key: row for key, row in played[name].rows.items() if meets(row)}
        found = {key: dict(row.values) for key, row in engine.tables[f"demo.public.{name}"].rows.items()}
        assert found == wanted
        assert 0 < len(wanted) < len(played[name].rows)
