"""Tables with filters end in columns as they do without the engine, beside tables without filters."""

from __future__ import annotations

import base64
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.driver.engine.test_engine import history, in_columns
from tests.support import engines
from tests.support.agreement import DELETED_AT, by_rules, differences, targets_of
from tests.support.delivery import Batches, interleaved, parts
from tests.support.histories import Shape
from tests.support.mirroring import Mirroring, audited
from tests.support.records import Column, PostgresPosition, Record, Row, Table, Topic

pytestmark = [
    pytest.mark.long,
    pytest.mark.guarantee("A filtered mirror has the rows that meet the condition, after any delivery"),
]
COUNTS = (
    *("records", "applied", "superseded", "stale", "duplicates", "quarantined", "no_row_change"),
    *("tombstone_records", "inserted", "updated", "deleted", "absent_rows", "out_of_order"),
)


@pytest.fixture
def columns(spark: SparkSession) -> Iterator[SparkSession]:
    with engines.in_columns(spark):
        yield spark


def left_by(spark: SparkSession, mirroring: Mirroring) -> dict[str, Any]:
    """All rows and tombstones, what is in the quarantine, and the counts."""
    found: dict[str, Any] = {"counts": audited(spark, mirroring, COUNTS)}
    for name, path in targets_of(spark, mirroring).items():
        rows = spark.read.format("delta").load(path)
        found[name] = sorted(map(str, rows.collect()))
        if Path(f"{path}/_tombstones").exists():
            ends = spark.read.format("delta").load(f"{path}/_tombstones").where("kind = 'deleted'")
            found[f"{name}, tombstones"] = sorted(map(str, ends.groupBy("key").agg(F.max("seq")).collect()))
    if Path(f"{mirroring.checkpoint}/quarantine").exists():
        aside = spark.read.format("delta").load(f"{mirroring.checkpoint}/quarantine")
        names = ("source", "topic", "partition", "offset", "reason")
        found["quarantine"] = sorted(map(str, aside.select(*names).collect()))
    return found


def require_same_without_engine(
    spark: SparkSession, folder: Path, settings: Mapping[str, Any], batches: Batches
) -> Mirroring:
    """Apply batches with the engine and without it, and compare what is left."""
    mirroring = Mirroring(folder / "columns", settings).deliver(batches)
    mirroring.run(spark)
    other = Mirroring(folder / "spark", settings).deliver(batches)
    with engines.by_spark(spark):
        other.run(spark)
    mine, theirs = left_by(spark, mirroring), left_by(spark, other)
    for name in {**mine, **theirs}:
        assert mine.get(name) == theirs.get(name), name
    return mirroring


# -- values of several types ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Typed(Column):
    """A column with more in its field than a type: what Debezium says of its values, or their parts."""

    more: Mapping[str, Any] = field(default_factory=dict)

    def field(self) -> Row:
        return {**super().field(), **self.more}


def _named(name: str, kind: Any, semantic: str, **more: Any) -> Typed:
    return Typed(name, kind, optional=True, more={"name": semantic, **more})


_TEXT = {"type": "string", "optional": True}
TYPED = (
    Column("id", "int32"),
    Column("n", "int64", optional=True),
    Column("number", "double", optional=True),
    Column("Target", "string", optional=True),
    Column("ok", "boolean", optional=True),
    _named("day", "int32", "io.debezium.time.Date"),
    _named("at", "int64", "io.debezium.time.MicroTimestamp"),
    _named("zoned", "string", "io.debezium.time.ZonedTimestamp"),
    _named(
        "price", "string", "org.apache.kafka.connect.data.Decimal", type="bytes", version=1,
        parameters={"scale": "2", "connect.decimal.precision": "10"},
    ),
    Typed("tags", "string", optional=True, more={"type": "array", "items": _TEXT}),
)  # fmt: skip
FILTERS = {
    "dates": "day >= DATE'2026-01-02' AND at < TIMESTAMP_NTZ'2026-03-01 00:00:00'",
    "texts": "TARGET LIKE 'a%' OR exists(tags, t -> t = 'x')",
    "numbers": "price > 1.5 OR number = double('NaN') OR (ok AND n IS NULL)",
    "zones": "zoned > TIMESTAMP'2026-01-01 10:00:00 Europe/Berlin' AND hour(zoned) < 20",
    "none": None,
}


def typed_row(key: int, rnd: random.Random) -> Row:
    """A row with values that meet filters, values that do not, and nulls."""
    price = rnd.choice([None, 100, 151, 99999, -7])
    return {
        "id": key,
        "n": rnd.choice([None, 1, 2, 3]),
        "number": rnd.choice([None, -0.0, 1.5, "NaN"]),
        "Target": rnd.choice([None, "a", "ab", "ż", ""]),
        "ok": rnd.choice([None, True, False]),
        "day": rnd.choice([None, 20_454, 20_455, 20_456]),
        "at": rnd.choice([None, 1_767_000_000_000_001, 1_775_000_000_000_000]),
        "zoned": rnd.choice(
            [None, "2026-01-01T08:30:00Z", "2026-01-01T09:30:00Z", "2026-06-01T23:00:00+02:00"]
        ),
        "price": None if price is None else base64.b64encode(price.to_bytes(4, signed=True)).decode(),
        "tags": rnd.choice([None, [], ["x"], ["y", None]]),
    }


def changes_of(name: str, number: int, rnd: random.Random, *, schemas: bool = True) -> list[Record]:
    """Creates, updates and deletes of some rows."""
    table = Table("demo", "public", name, TYPED, ("id",), "demo", full=True, schemas=schemas)
    topic, rows, records = Topic(table.topic, 1), dict[int, Row](), list[Record]()
    for count in range(1, number):
        at = PostgresPosition(1000 + count, 999 + count, count, 10**15 + count)
        key = rnd.randrange(60)
        row = typed_row(key, rnd)
        if key not in rows:
            messages: Sequence[Any] = [table.create(at, row)]
        elif rnd.random() < 0.2:
            messages = table.delete(at, rows[key])
        else:
            messages = [table.update(at, row, rows[key])]
        if len(messages) == 1:
            rows[key] = row
        else:
            del rows[key]
        records += topic.append(messages)
    return records


def listed(**filters: str | None) -> dict[str, Any]:
    found = [{"source": f"demo.public.{name}", "filter": each} for name, each in filters.items() if each]
    return {"tables": found}


def test_filters_over_values_of_several_types(columns: SparkSession, tmp_path: Path) -> None:
    """Columns of one name have different types, and are called like columns of the job."""
    rnd = random.Random(5)
    per_table = [parts(changes_of(name, 200, rnd), 5) for name in FILTERS]
    batches = [[each for mine in together for each in mine] for together in zip(*per_table, strict=True)]
    mirroring = require_same_without_engine(columns, tmp_path, listed(**FILTERS), batches)
    taken = {name: in_columns(columns, mirroring, name) for name in FILTERS}
    assert min(taken.values()) >= 4, taken
    sizes = {}
    for name in FILTERS:
        path = mirroring.path("demo", "public", name)
        sizes[name] = columns.read.format("delta").load(path).count()
    assert all(0 < sizes[name] < sizes["none"] for name in FILTERS if name != "none"), sizes


@pytest.mark.thorough
def test_a_filter_that_fails_for_a_row(columns: SparkSession, tmp_path: Path) -> None:
    """Its record goes to the quarantine with what Spark says, and the engine applies the other batches."""
    rnd = random.Random(6)
    batches = parts(changes_of("fails", 60, rnd), 6)
    failing = [i for i, each in enumerate(batches) if any('"n":3' in (line["value"] or "") for line in each)]
    for number in failing[2:]:
        for line in batches[number]:
            line["value"] = line["value"] and line["value"].replace('"n":3', '"n":4')
    filters = listed(fails="10 / (n - 3) < 100 OR price > 0")
    mirroring = require_same_without_engine(columns, tmp_path, filters, batches)
    reasons = (
        columns.read.format("delta").load(f"{mirroring.checkpoint}/quarantine").select("reason").collect()
    )
    assert any("Spark says of one such row" in row["reason"] for row in reasons)
    assert 1 <= in_columns(columns, mirroring, "fails") < 6


# -- histories --------------------------------------------------------------------------------------------


def several(seed: int) -> Batches:
    """Tables with schemas and without, with gaps, and of MariaDB."""
    played = [
        history(seed, Shape(full=True, name="items")),
        history(seed + 1, Shape(schemas=False, full=True, name="bare")),
        history(seed + 2, Shape(source="mariadb", name="stock", schemas=False)),
        history(seed + 3, Shape(schemas=False, name="gaps")),
        history(seed + 4, Shape(full=True, name="soft")),
        history(seed + 5, Shape(schemas=False, full=True, name="whole")),
    ]
    records = [each for one in played for each in one.records]
    return parts(interleaved(records, seed), 7)


HISTORIES = {
    "tables": [
        {"source": "demo.public.items", "filter": "v % 3 <> 0 AND (note LIKE 'note%' OR big > '')"},
        {"source": "demo.public.bare", "filter": "v % 4 <> 1"},
        {"source": "demo.stock", "filter": "note IS NULL"},
        {"source": "demo.public.gaps", "filter": "v % 5 <> 2 OR big > ''"},
        {
            "source": "demo.public.soft",
            "filter": "v % 3 <> 0",
            "delete": {"type": "soft", "column": DELETED_AT},
        },
    ]
}


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [10, 20])
def test_tables_with_filters_beside_others(columns: SparkSession, tmp_path: Path, seed: int) -> None:
    mirroring = require_same_without_engine(columns, tmp_path, HISTORIES, several(seed))
    assert differences(columns, mirroring, by_rules(mirroring)) == []
    names = {"items": "public", "bare": "public", "stock": None, "gaps": "public", "soft": "public"}
    taken = {name: in_columns(columns, mirroring, name, schema) for name, schema in names.items()}
    assert sum(taken.values()) >= 10, taken


@pytest.mark.thorough
def test_what_is_sent_again_with_a_filter(columns: SparkSession, tmp_path: Path) -> None:
    """Also within its batch: what a filter leaves out is still known as the same change."""
    played = history(3, Shape(full=True, schemas=False, name="items"))
    records = [each for each in played.records for _ in range(2 if each["offset"] % 3 == 0 else 1)]
    for number, each in enumerate(records):
        records[number] = {**each, "offset": number}
    mirroring = require_same_without_engine(columns, tmp_path, HISTORIES, parts(records, 6))
    assert in_columns(columns, mirroring, "items") >= 2
