"""What a record lacks says nothing about other rows: no source loses values to a guess about its columns.

Each test is one run of one pipeline with a table a case.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from lakemirror.driver.runtime.summary import RunSummary
from tests.support.agreement import assert_agreement
from tests.support.mirroring import Mirroring, at
from tests.support.records import Column, Record, Row, Table, dumps
from tests.support.shop import Shop, Special, table

pytestmark = pytest.mark.guarantee(
    "What a record lacks says nothing about other rows: only the log of a database ends a column; a column "
    "that is added again begins a new life, in any order of delivery; a constant default goes to all rows, a "
    "placeholder of a moment or a UUID to none"
)

C, NOTE = Column("c", "int32", optional=True), Column("note", "string", optional=True)
ZERO = Column("c", "int32", default=0)
SEVEN = Column("c", "int32", default=7)
MODES = ("scd1", "scd2", "soft")


def settings(names: Sequence[str], **more: Any) -> dict[str, Any]:
    """Tables of each mode: their names end in it."""
    found: list[dict[str, Any]] = []
    for name in names:
        found += [
            {"source": f"{name}_scd1", **more},
            {"source": f"{name}_scd2", "mode": "scd2", **more},
            {"source": f"{name}_soft", "delete": {"type": "soft", "column": "deleted_at"}, **more},
        ]
    return {"tables": found}


def rows(spark: SparkSession, path: str, *names: str) -> list[tuple[Any, ...]]:
    """The current rows of a mirror."""
    frame = spark.read.format("delta").load(path)
    if "__is_current" in frame.columns:
        frame = frame.where("__is_current")
    return sorted(tuple(row) for row in frame.select(*names).collect())


def versions(spark: SparkSession, path: str, *names: str) -> list[tuple[Any, ...]]:
    frame = spark.read.format("delta").load(path).orderBy("id", "__seq")
    return [tuple(row) for row in frame.select(*names, "__is_current").collect()]


def drift(summary: RunSummary, source: str) -> set[tuple[Any, ...]]:
    return {(each.column, each.change, each.action, each.rows) for each in summary.tables[source].drift}


def after(mode: str, plain: Table) -> Table:
    return replace(plain, name=f"{plain.name}_{mode}")


def special(name: str, kind: str, semantic: str, default: Any) -> Column:
    return Special(name, cast(Any, kind), default=default, name_of_type=semantic)


PLACEHOLDERS = (
    special("at", "int64", "io.debezium.time.MicroTimestamp", 0),
    special("zoned", "string", "io.debezium.time.ZonedTimestamp", "1970-01-01T00:00:00.000000Z"),
    special("day", "int32", "io.debezium.time.Date", 0),
    special("uid", "string", "io.debezium.data.Uuid", "00000000-0000-0000-0000-000000000000"),
    Column("number", "int32", default=0),
    Column("flag", "boolean", default=False),
    Column("said", "string", default=""),
)
"""What PostgreSQL's connector writes for defaults that are functions."""
WRITTEN = {
    "at": 1_700_000_000_000_000,
    "zoned": "2024-01-01T00:00:00Z",
    "day": 19_000,
    "uid": "5c8a7a4e-0b8e-4b43-9c7c-6a1a0b8e4b43",
    "number": 4,
    "flag": True,
    "said": "x",
}


def of_postgres(shop: Shop, mode: str) -> list[list[Record]]:
    """Three batches of all tables of a mode."""
    bare = replace(after(mode, table("bare", NOTE, C)), schemas=False)
    lacking = replace(after(mode, table("bare", NOTE)), schemas=False)
    with_g, without_g = after(mode, table("generated", NOTE, C)), after(mode, table("generated", NOTE))
    has, gone = after(mode, table("again", NOTE, C)), after(mode, table("again", NOTE))
    seven = after(mode, table("again", NOTE, SEVEN))
    copied, copy = after(mode, table("copied", NOTE, C)), after(mode, table("copied", NOTE))
    plain, added = after(mode, table("added", NOTE)), after(mode, table("added", NOTE, *PLACEHOLDERS))
    first, same = shop.create(copied, id=1, note="a", c=1), shop.next()
    return [
        [
            *shop.create(bare, id=1, note=None, c=5),
            *shop.send(with_g, *(with_g.read(shop.next(), {"id": n, "note": "a", "c": n}) for n in (1, 2))),
            *(record for n in (1, 2, 3) for record in shop.create(has, id=n, note="a", c=n)),
            *first,
            *shop.send(copied, copied.create(same, {"id": 2, "note": "a", "c": 2})),
            *(record for n in (1, 2) for record in shop.create(plain, id=n, note="a")),
        ],
        [
            *shop.create(lacking, id=2, note=None),
            *shop.create(bare, id=3, note="x"),
            *shop.update(without_g, id=1, note="b"),
            *shop.update(has, id=3, note="b", c=33),
            *shop.update(gone, id=1, note="b"),
            *shop.send(copy, copy.create(same, {"id": 2, "note": "a"})),
            *shop.update(added, id=2, note="b", **WRITTEN),
        ],
        [
            *shop.create(bare, id=4, note=None, c=7),
            *shop.send(with_g, with_g.read(shop.next(), {"id": 3, "note": "c", "c": 3})),
            *shop.update(without_g, id=3, note="d"),
            *shop.create(seven, id=4, note="c", c=4),
            *shop.create(copied, id=3, note="a", c=3),
            *shop.create(added, id=3, note="c", **WRITTEN),
        ],
    ]


@pytest.mark.guarantee("The rules and the driver's engine make the same of the same records")
@pytest.mark.thorough
def test_debezium_with_positions(spark: SparkSession, tmp_path: Path) -> None:
    """Positions begin lives, and nothing else does: no absent member, snapshot, copy, or placeholder."""
    shop = Shop()
    batches = [
        [r for part in parts for r in part]
        for parts in zip(*(of_postgres(shop, m) for m in MODES), strict=True)
    ]
    names = [f"public.{name}" for name in ("bare", "generated", "again", "copied", "added")]
    mirroring = Mirroring(tmp_path, settings(names)).deliver(batches)
    summary = mirroring.run(spark)
    assert_agreement(spark, mirroring)
    assert summary.counts.quarantined == 0
    for mode in MODES:

        def path(name: str, mode: str = mode) -> str:
            return mirroring.path("demo", "public", f"{name}_{mode}")

        def told(name: str, mode: str = mode) -> set[tuple[Any, ...]]:
            return drift(summary, f"demo.public.{name}_{mode}")

        assert rows(spark, path("bare"), "id", "c") == [(1, 5), (2, None), (3, None), (4, 7)]
        assert told("bare") == {("note", "added", "added", None)}
        assert rows(spark, path("generated"), "id", "c") == [(1, None), (2, 2), (3, None)]
        assert told("generated") == {("c", "dropped", "kept", None)}
        assert rows(spark, path("again"), "id", "note", "c") == [
            (1, "b", 7),
            (2, "a", 7),
            (3, "b", 7),
            (4, "c", 4),
        ]
        assert told("again") == {
            ("c", "dropped", "kept", None),
            ("c", "added", "added", None),
            ("c", "returned", "cleared", 3),
        }
        assert rows(spark, path("copied"), "id", "c") == [(1, 1), (2, None), (3, 3)]
        assert told("copied") == set()
        found = rows(spark, path("added"), "id", "at", "zoned", "day", "uid", "number", "flag", "said")
        assert found[0] == (1, None, None, None, None, 0, False, "")
        assert found[1][1:] == found[2][1:]
        assert None not in found[2]
        filled = {(each[0], each[3]) for each in told("added") if each[3] is not None}
        assert filled == {(name, 2) for name in ("number", "flag", "said")}
    assert versions(spark, mirroring.path("demo", "public", "again_scd2"), "id", "c") == [
        (1, 1, False),
        (1, 7, True),
        (2, 7, True),
        (3, 3, False),
        (3, 7, True),
        (4, 4, True),
    ]


def partitioned(shop: Shop, of: Table, at: Sequence[tuple[int, int, str, Row]]) -> list[Record]:
    """Changes at a partition and an offset each."""
    made = {"c": of.create, "r": of.read}
    found = []
    for partition, offset, op, row in at:
        where = shop.next()
        message = of.update(where, row, row) if op == "u" else made[op](where, row)
        (record,) = shop.send(of, message)
        found.append({**record, "partition": partition, "offset": offset})
    return found


@pytest.mark.guarantee("The rules and the driver's engine make the same of the same records")
@pytest.mark.thorough
def test_debezium_ordered_by_offset(spark: SparkSession, tmp_path: Path) -> None:
    """Offsets of two partitions have no order: no column ends, and a constant default goes to all rows."""
    shop = Shop()
    batches: list[list[Record]] = [[], [], [], []]
    for mode in MODES:
        for name, column in (("plain", C), ("zero", ZERO)):
            old, new = after(mode, table(name)), after(mode, table(name, column))
            batches[0] += partitioned(shop, old, [(0, 10_000, "c", {"id": 1}), (1, 50, "c", {"id": 2})])
            batches[0] += partitioned(shop, old, [(0, 10_002, "c", {"id": 5})])
            batches[1] += partitioned(
                shop, new, [(1, 51, "u", {"id": 2, "c": 2}), (1, 52, "c", {"id": 4, "c": 4})]
            )
            batches[2] += partitioned(shop, new, [(0, 10_003, "u", {"id": 1, "c": 1})])
            batches[3] += partitioned(shop, old, [(1, 53, "c", {"id": 6})])
    mirroring = Mirroring(
        tmp_path, {"ordering": {"by": "offset"}, **settings(["public.plain", "public.zero"])}
    ).deliver(batches)
    summary = mirroring.run(spark)
    assert_agreement(spark, mirroring)
    for mode in MODES:
        path = mirroring.path("demo", "public", f"plain_{mode}")
        assert rows(spark, path, "id", "c") == [(1, 1), (2, 2), (4, 4), (5, None), (6, None)]
        assert drift(summary, f"demo.public.plain_{mode}") == {("c", "added", "added", None)}
        path = mirroring.path("demo", "public", f"zero_{mode}")
        assert rows(spark, path, "id", "c") == [(1, 1), (2, 2), (4, 4), (5, 0), (6, 0)]
        assert drift(summary, f"demo.public.zero_{mode}") == {("c", "added", "added", 3)}


ROWS: tuple[Row, ...] = (
    {"id": 1, "note": None, "discount": 5},
    {"id": 2, "note": None},
    {"id": 3, "note": "x"},
    {"id": 4, "note": None, "discount": 7},
)
DISCOUNTS = [(1, 5), (2, None), (3, None), (4, 7)]


def custom(name: str, rows: Sequence[Row], start: int, *, schemas: bool = False) -> list[Record]:
    """Records of a producer; those with a schema have one of just the members that they have."""
    found = []
    for offset, row in enumerate(rows, start):
        value: Any = {"op": "c", "table": name, "ts": 1_700_000_000 + offset, "row": row}
        if schemas:
            kinds = {"id": "int32", "note": "string", "discount": "int32"}
            fields = [{"type": kinds[n], "optional": n != "id", "field": n} for n in row]
            whole = [
                *({"type": "string", "field": n} for n in ("op", "table")),
                {"type": "int64", "field": "ts"},
                {"type": "struct", "fields": fields, "field": "row"},
            ]
            value = {"schema": {"type": "struct", "fields": whole}, "payload": value}
        record = {"topic": "all", "partition": 0, "offset": offset, "timestamp": 1_700_000_000_000 + offset}
        found.append({**record, "key": None, "value": dumps(value), "headers": []})
    return found


@pytest.mark.thorough
def test_custom_records(spark: SparkSession, tmp_path: Path) -> None:
    """One producer that leaves members out, or two with an older and a newer schema: one batch or four."""
    batches: list[list[Record]] = [[], [], [], []]
    kinds = [(kind, schemas) for kind in ("once", "four") for schemas in (False, True)]
    names = [f"{kind}_{'schema' if schemas else 'bare'}" for kind, schemas in kinds]
    start = 0
    for (kind, schemas), name in zip(kinds, names, strict=True):
        for mode in MODES:
            records = custom(f"{name}_{mode}", ROWS, start, schemas=schemas)
            start += len(ROWS)
            for number, record in enumerate(records):
                batches[0 if kind == "once" else number].append(record)
    fields = {"op": "op", "after": "row", "table": "table", "timestamp": "ts"}
    mirroring = Mirroring(
        tmp_path,
        {
            "envelope": {"format": "custom", "fields": fields},
            "target": {"path": f"{tmp_path}/lake/{{table}}"},
            **settings(names, primaryKey=["id"]),
        },
    ).deliver(batches)
    summary = mirroring.run(spark)
    assert summary.counts.quarantined == 0
    for name in names:
        for mode in MODES:
            found = rows(spark, f"{tmp_path}/lake/{name}_{mode}", "id", "discount")
            assert found == DISCOUNTS, (name, mode)
            assert {each[1] for each in drift(summary, f"{name}_{mode}")} <= {"added"}


def maxwell(name: str, rows: Sequence[Row]) -> list[Record]:
    found = []
    for offset, row in enumerate(rows):
        value = {"database": "shop", "table": name, "type": "insert", "ts": 1_700_000_000 + offset}
        place = {"xid": 100 + offset, "commit": True, "position": f"binlog.000001:{1000 + offset}"}
        value |= {**place, "primary_key_columns": ["id"], "data": row}
        key = {"database": "shop", "table": name, "pk.id": row["id"]}
        record = {"topic": name, "partition": 0, "offset": offset, "timestamp": 1_700_000_000_000 + offset}
        found.append({**record, "key": dumps(key), "value": dumps(value), "headers": []})
    return found


@pytest.mark.guarantee("The rules and the driver's engine make the same of the same records")
@pytest.mark.thorough
def test_maxwell_and_files_of_rows(spark: SparkSession, tmp_path: Path) -> None:
    both = settings(["shop.items"])
    mirroring = Mirroring(
        tmp_path / "maxwell",
        {
            "envelope": {"format": "maxwell"},
            "target": {"path": f"{tmp_path}/lake/{{table}}"},
            **both,
        },
    )
    records = [maxwell(f"items_{mode}", ROWS) for mode in MODES]
    mirroring.deliver([[part[number] for part in records] for number in range(len(ROWS))]).run(spark)
    assert_agreement(spark, mirroring)
    for mode in MODES:
        assert rows(spark, f"{tmp_path}/lake/items_{mode}", "id", "discount") == DISCOUNTS

    folder = tmp_path / "rows"
    (folder / "input").mkdir(parents=True)
    for number, row in enumerate(ROWS):
        (folder / "input" / f"part-{number}.json").write_text(json.dumps(row) + "\n")
    files = {"path": f"{folder}/input", "format": "json", "table": "orders", "maxFilesPerBatch": 1}
    Mirroring(
        folder,
        {
            "source": {"files": files},
            "envelope": {"format": "custom", "fields": {"key": "id"}},
            "target": {"path": f"{tmp_path}/lake/{{table}}"},
            "tables": [{"source": "orders", "primaryKey": ["id"]}],
        },
    ).run(spark)
    found = {row["id"]: row["discount"] for row in at(spark, f"{tmp_path}/lake/orders").collect()}
    assert {key: value and int(value) for key, value in found.items()} == dict(DISCOUNTS)


def flat(record: Record) -> Record:
    """The row of a Debezium record, with what ``add.fields`` adds, as ``ExtractNewRecordState`` writes it."""
    value = json.loads(record["value"])
    payload, fields = value["payload"], value["schema"]["fields"]
    source = payload["source"]
    added = {"__op": ("string", payload["op"]), "__lsn": ("int64", source["lsn"])}
    added |= {"__sequence": ("string", source["sequence"]), "__table": ("string", source["table"])}
    row = {**payload["after"], **{name: given for name, (_, given) in added.items()}}
    image = next(each for each in fields if each["field"] == "after")
    schema = [
        *image["fields"],
        *({"type": kind, "optional": True, "field": n} for n, (kind, _) in added.items()),
    ]
    whole = {"schema": {"type": "struct", "fields": schema, "optional": False}, "payload": row}
    return {**record, "value": dumps(whole)}


def changing(shop: Shop) -> list[Record]:
    """Changes of a table whose column is dropped, and then added again with a default."""
    has, gone, seven = table("items", C), table("items"), table("items", SEVEN, PLACEHOLDERS[0])
    return [
        *shop.create(has, id=1, c=1),
        *shop.create(has, id=2, c=2),
        *shop.create(has, id=5, c=5),
        *shop.update(gone, id=2),
        *shop.create(seven, id=3, c=3, at=1),
    ]


@pytest.mark.guarantee("The rules and the driver's engine make the same of the same records")
@pytest.mark.thorough
def test_flat_records(spark: SparkSession, tmp_path: Path) -> None:
    """DROP and ADD in any order of delivery; moments are no defaults; a delete without a schema is no end."""
    flats = [flat(record) for record in changing(Shop())]
    orders = {
        "ordered": [[each] for each in flats],
        "mixed": [[flats[4], flats[0]], [flats[2]], [flats[3], flats[1]]],
    }
    for name, batches in orders.items():
        mirroring = Mirroring(
            tmp_path / name,
            {
                "envelope": {"format": "debezium-flat", "nullValue": "ignore"},
                "target": {"path": f"{tmp_path}/{name}/lake/{{table}}"},
            },
        ).deliver(batches)
        summary = mirroring.run(spark)
        assert_agreement(spark, mirroring)
        assert summary.counts.quarantined == 0
        found = rows(spark, f"{tmp_path}/{name}/lake/items", "id", "c")
        assert found == [(1, 7), (2, 7), (3, 3), (5, 7)], name
