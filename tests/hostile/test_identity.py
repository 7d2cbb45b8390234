"""Which events are the same, and which records change no row: evidence counts, not resemblance."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.agreement import assert_agreement
from tests.support.mirroring import Mirroring, at, audited
from tests.support.records import BinlogPosition, Column, Record, Row, Table, Topic, dumps
from tests.support.shop import ID, Shop, table

OUTCOMES = ("applied", "superseded", "stale", "duplicates", "no_row_change", "quarantined", "refused")
[QUERY] = re.findall(r"```sql\n(.+?)```", Path("docs/append.md").read_text(encoding="utf-8"), re.DOTALL)


def record(
    topic: str, offset: int, key: Any, value: Any, *, partition: int = 0, headers: Sequence[Any] = ()
) -> Record:
    """A record with its key and value as JSON."""
    texts = {"key": key, "value": value}
    texts = {name: None if each is None else dumps(each) for name, each in texts.items()}
    place = {"topic": topic, "partition": partition, "offset": offset, "timestamp": 1_700_000_000_000}
    return {**place, **texts, "headers": list(headers)}


def rows_at(spark: SparkSession, path: str) -> list[Row]:
    return _sorted(row.asDict() for row in at(spark, path).collect())


def events_at(spark: SparkSession, path: str) -> list[Row]:
    """The rows of an event list, with their operation and offset."""
    frame = spark.read.format("delta").load(path)
    metadata = ["__op AS op", "__origin.partition AS partition", "__origin.offset AS offset"]
    names = [name for name in frame.columns if not name.startswith("__")]
    return [row.asDict() for row in frame.selectExpr(*names, *metadata).collect()]


def counted(spark: SparkSession, mirroring: Mirroring) -> dict[str, dict[str, int]]:
    """The outcomes of records that are not 0, by table."""
    found = audited(spark, mirroring, OUTCOMES)
    return {
        source.rpartition(".")[2]: {name: n for name, n in counts.items() if n}
        for source, counts in found.items()
    }


def _sorted(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: repr(sorted(row.items())))


# -- records that resemble Debezium's own -------------------------------------------------------------


@pytest.mark.long
@pytest.mark.guarantee("The rules and the driver's engine make the same of the same records")
@pytest.mark.guarantee("A record changes no row only if it is one of Debezium's own, not if it resembles one")
def test_flat_rows_that_resemble_other_records_are_mirrored(spark: SparkSession, tmp_path: Path) -> None:
    logs = [
        record("s.public.logs", n, {"id": n}, {"id": n, **row, "__op": "c", "__lsn": 100 + n})
        for n, row in enumerate(
            (
                {"op": "x", "message": "hi", "source": "web"},
                {"op": "m", "message": '{"prefix":"p","content":""}', "source": '{"connector":"mysql"}'},
            )
        )
    ]
    plain = {"id": 1, "status": "END", "event_count": 1, "data_collections": "a", "ts_ms": 5}
    tasks = [record("s.public.tasks", 0, {"id": 1}, plain)]
    audit = [record("s.public.audit", 0, {"id": 1}, {"id": 1, "op": "u", "source": "s", "after": "a"})]
    message = {"op": "m", "source": {"connector": "mysql"}, "message": {"prefix": "p", "content": ""}}
    begin = {"status": "BEGIN", "id": "5", "event_count": None, "data_collections": None, "ts_ms": 5}
    own = [
        record("s.message", 0, {"prefix": "p"}, message),
        record("s.transaction", 0, {"id": "5"}, begin),
        record("__debezium-heartbeat.s", 0, {"serverName": "s"}, {"ts_ms": 5}),
    ]
    mirroring = Mirroring(tmp_path, {"envelope": {"format": "debezium-flat"}})
    counts = mirroring.deliver([[*logs, *tasks, *audit, *own]]).run(spark).counts
    assert_agreement(spark, mirroring)
    assert (counts.applied, counts.no_row_change, counts.quarantined, counts.refused) == (4, 3, 0, 0)
    path = mirroring.path("s", "public", "logs")
    assert [row["op"] for row in rows_at(spark, path)] == ["x", "m"]
    assert rows_at(spark, mirroring.path("s", "public", "tasks")) == [plain]


# -- which events of an event list are the same -------------------------------------------------------


@pytest.mark.long
@pytest.mark.guarantee("The rules and the driver's engine make the same of the same records")
@pytest.mark.guarantee(
    "Two events are the same only by their origin, or by position, log and payload as sent"
)
def test_an_event_list_has_each_event_once(spark: SparkSession, tmp_path: Path) -> None:
    """By position and by what was sent, or else by topic, partition and offset."""
    shop = Shop()
    old = table("grown", full=True)
    grown = table("grown", Column("w", "int32", default=7), full=True)
    first = shop.create(old, id=1)
    added = shop.create(grown, id=2, w=8)
    again = [{**first[0], "offset": 10}, {**added[0], "offset": 11}]
    hidden = table("hidden", Column("a", "int32"), Column("b", "int32"))
    here = shop.next()
    copied = shop.send(hidden, *[hidden.create(here, {"id": 1, "a": 1, "b": b}) for b in (1, 2)])
    twice = [{**each, "offset": each["offset"] + 10} for each in copied]
    settings = {
        "defaults": {"mode": "append"},
        "tables": [{"source": "public.hidden", "columns": {"exclude": ["b"]}}],
    }
    mirroring = Mirroring(tmp_path, settings)
    mirroring.deliver([[*first, copied[0]], [*added, copied[1]], [*again, *twice]]).run(spark)
    assert_agreement(spark, mirroring)
    assert counted(spark, mirroring) == {
        "grown": {"applied": 2, "duplicates": 2},
        "hidden": {"applied": 2, "duplicates": 2},
    }


@pytest.mark.long
@pytest.mark.guarantee("The rules and the driver's engine make the same of the same records")
@pytest.mark.guarantee(
    "Two events are the same only by their origin, or by position, log and payload as sent"
)
@pytest.mark.parametrize("together", [True, pytest.param(False, marks=pytest.mark.long)])
def test_equal_offsets_of_two_partitions_are_two_events(
    together: bool, spark: SparkSession, tmp_path: Path
) -> None:
    change = {"op": "c", "after": {"id": 1, "v": "a"}, "source": {"connector": "other", "table": "t"}}
    both = [record("t", 5, {"id": 1}, change, partition=partition) for partition in (0, 1)]
    settings = {"defaults": {"mode": "append"}, "ordering": {"by": "offset"}}
    mirroring = Mirroring(tmp_path, {**settings, "target": {"path": f"{tmp_path}/lake/{{table}}"}})
    batches = [both] if together else [both[:1], both[1:]]
    mirroring.deliver([*batches, [*both, *both]]).run(spark)
    assert_agreement(spark, mirroring)
    assert sorted(row["partition"] for row in events_at(spark, f"{tmp_path}/lake/t")) == [0, 1]
    assert counted(spark, mirroring) == {"t": {"applied": 2, "duplicates": 4}}


# -- compressed transactions of MySQL -----------------------------------------------------------------

VALUE = Column("v", "string", optional=True)


def _binlog(name: str) -> Table:
    return Table("shop", None, name, (ID, VALUE), ("id",), "server", True, True)


def _compressed(of: Table) -> list[Record]:
    """A transaction whose events all have its position, in each of which rows are counted anew."""

    def place(row: int, pos: int = 200) -> BinlogPosition:
        return BinlogPosition("binlog.000001", pos, row, "0-1-1", 1_700_000_000_000_000)

    made = [
        of.create(place(0, 100), {"id": 3, "v": "old"}),
        of.create(place(0), {"id": 1, "v": "one"}),
        of.create(place(1), {"id": 2, "v": "both"}),
        of.update(place(0), {"id": 2, "v": "last"}, {"id": 2, "v": "both"}),
        of.update(place(1), {"id": 3, "v": "new"}, {"id": 3, "v": "old"}),
        of.delete(place(0), {"id": 3, "v": "new"})[0],
        of.create(place(0), {"id": 4, "v": "one"}),
        of.delete(place(1), {"id": 4, "v": "one"})[0],
        of.create(place(0), {"id": 4, "v": "again"}),
    ]
    return list(Topic(of.topic, partitions=1).append(made))


@pytest.mark.long
@pytest.mark.guarantee("The rules and the driver's engine make the same of the same records")
@pytest.mark.guarantee(
    "Changes at one position of a binlog are ordered by their offsets within a partition, as in a compressed "
    "transaction"
)
@pytest.mark.parametrize("order", ["one batch", pytest.param("backwards", marks=pytest.mark.thorough)])
def test_changes_of_a_compressed_transaction_are_ordered_by_their_offsets(
    order: str, spark: SparkSession, tmp_path: Path
) -> None:
    names = {
        "rows": {},
        "soft": {"delete": {"type": "soft", "column": "deleted_at"}},
        "versions": {"mode": "scd2"},
    }
    names["events"] = {"mode": "append"}
    settings = [{"source": f"shop.{name}", **more} for name, more in names.items()]
    mirroring = Mirroring(tmp_path, {"tables": settings})
    sent = [_compressed(_binlog(name)) for name in names]
    batches = [[each for one in sent for each in one]]
    if order != "one batch":
        batches = [[one[n] for one in sent] for n in range(len(sent[0]))]
        batches = batches[::-1] if order == "backwards" else batches
    mirroring.deliver([*batches, [one[-1] for one in sent]]).run(spark)
    assert_agreement(spark, mirroring)
    wanted = [{"id": 1, "v": "one"}, {"id": 2, "v": "last"}, {"id": 4, "v": "again"}]
    assert rows_at(spark, mirroring.path("shop", None, "rows")) == wanted
    soft = rows_at(spark, mirroring.path("shop", None, "soft"))
    assert [{"id": row["id"], "v": row["v"]} for row in soft if row["deleted_at"] is None] == wanted
    versions = spark.read.format("delta").load(mirroring.path("shop", None, "versions"))
    current = versions.where("__is_current").select("id", "v").collect()
    assert _sorted(row.asDict() for row in current) == wanted
    assert len(events_at(spark, mirroring.path("shop", None, "events"))) == len(sent[0])
    listed = mirroring.path("shop", None, "events")
    assert _latest(spark, listed) == wanted


def _latest(spark: SparkSession, path: str) -> list[Row]:
    """The newest rows of an event list, by the documented query."""
    query = QUERY.replace("/lake/public/orders", path)
    found = spark.sql(query)
    names = [name for name in found.columns if not name.startswith("__") and name != "age"]
    return _sorted(row.asDict() for row in found.select(names).collect())


# -- keys in event lists ------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.guarantee("The rules and the driver's engine make the same of the same records")
@pytest.mark.guarantee("The newest events of a list are the rows of the source")
def test_deletes_and_key_changes_of_event_lists_carry_the_key(spark: SparkSession, tmp_path: Path) -> None:
    def change(n: int, op: str, before: Row | None, after: Row | None, key: Row | None) -> Record:
        source = {"connector": "postgresql", "name": "s", "db": "s", "schema": "public", "table": "t"}
        source |= {"lsn": 100 + n, "sequence": f'["{100 + n}","{100 + n}"]', "ts_ms": 1_700_000_000_000}
        value = {"op": op, "before": before, "after": after, "source": source}
        return record("s.public.t", n, key, value)

    changes = [
        change(0, "c", None, {"id": 1, "code": "a"}, {"id": 1}),
        change(1, "c", None, {"id": 2, "code": "b"}, {"id": 2}),
        change(2, "d", None, None, {"id": 1}),
        change(3, "c", None, {"id": 3, "code": "c"}, {"id": 3}),
    ]
    mirroring = Mirroring(tmp_path / "whole", {"defaults": {"mode": "append"}})
    again = [{**each, "offset": each["offset"] + 9} for each in changes[2:]]
    mirroring.deliver([changes, again]).run(spark)
    assert_agreement(spark, mirroring)
    path = mirroring.path("s", "public", "t")
    assert [row for row in events_at(spark, path) if row["op"] == "d"] == [
        {"id": 1, "code": None, "op": "d", "partition": 0, "offset": 2}
    ]
    assert counted(spark, mirroring) == {"t": {"applied": 4, "duplicates": 2}}
    assert _latest(spark, path) == [{"id": 2, "code": "b"}, {"id": 3, "code": "c"}]


def _maxwell(n: int, kind: str, data: Row, old: Row | None = None, name: str = "t") -> Record:
    change: dict[str, Any] = {"database": "d", "table": name, "type": kind, "ts": 1_700_000_000}
    change |= {"position": f"binlog.000001:{100 + n}", "xoffset": 0, "data": data}
    change |= {} if old is None else {"old": old}
    return record("maxwell", n, {"database": "d", "table": name, "pk.id": data["id"]}, change)


@pytest.mark.long
@pytest.mark.guarantee("The rules and the driver's engine make the same of the same records")
@pytest.mark.guarantee("The newest events of a list are the rows of the source")
def test_a_key_change_in_an_event_list_ends_the_former_row(spark: SparkSession, tmp_path: Path) -> None:
    changes = [
        _maxwell(0, "insert", {"id": 1, "v": "a"}),
        _maxwell(1, "insert", {"id": 2, "v": "b"}),
        _maxwell(2, "update", {"id": 3, "v": "b"}, {"id": 2}),
        _maxwell(3, "update", {"id": 2, "v": "a"}, {"id": 1}),
    ]
    settings = {"envelope": {"format": "maxwell"}, "defaults": {"mode": "append"}}
    mirroring = Mirroring(tmp_path, settings)
    again = [{**each, "offset": each["offset"] + 9} for each in changes[2:]]
    mirroring.deliver([changes[:2], changes[2:], again]).run(spark)
    assert_agreement(spark, mirroring)
    path = mirroring.path("d", None, "t")
    moved = {row["op"]: row for row in events_at(spark, path) if row["offset"] == 2}
    assert [moved[op]["id"] for op in ("u", "d")] == [3, 2]
    assert moved["d"]["v"] is None
    assert len(events_at(spark, path)) == 6
    assert counted(spark, mirroring) == {"t": {"applied": 4, "duplicates": 2}}
    assert _latest(spark, path) == [{"id": 2, "v": "a"}, {"id": 3, "v": "b"}]
    places = spark.read.format("delta").load(path).where("__origin.offset = 2")
    assert places.select("__seq", "__origin").distinct().count() == 1


# -- what an update of Maxwell leaves out -------------------------------------------------------------


@pytest.mark.long
@pytest.mark.guarantee("The rules and the driver's engine make the same of the same records")
@pytest.mark.guarantee("Values that Maxwell's records leave out stay as they were")
@pytest.mark.parametrize("together", [True, pytest.param(False, marks=pytest.mark.thorough)])
def test_values_that_maxwell_leaves_out_stay(together: bool, spark: SparkSession, tmp_path: Path) -> None:
    changes = [
        change
        for number, name in enumerate(("rows", "soft", "versions"))
        for change in (
            _maxwell(10 * number, "insert", {"id": 1, "n": 5, "v": "a", "w": "x"}, name=name),
            _maxwell(10 * number + 1, "insert", {"id": 2, "n": 6, "v": "b"}, name=name),
            _maxwell(10 * number + 2, "update", {"id": 1, "v": "c"}, {"v": "a"}, name=name),
            _maxwell(10 * number + 3, "update", {"id": 1}, {"w": "x"}, name=name),
            _maxwell(10 * number + 4, "update", {"id": 3, "v": "d"}, {"id": 2, "v": "b"}, name=name),
        )
    ]
    settings = {
        "envelope": {"format": "maxwell"},
        "tables": [
            {"source": "d.soft", "delete": {"type": "soft", "column": "deleted_at"}},
            {"source": "d.versions", "mode": "scd2"},
        ],
    }
    mirroring = Mirroring(tmp_path, settings)
    batches = [changes] if together else [changes[n::5] for n in range(5)]
    mirroring.deliver(batches).run(spark)
    assert_agreement(spark, mirroring)
    wanted = [{"id": 1, "n": 5, "v": "c", "w": None}, {"id": 3, "n": 6, "v": "d", "w": None}]
    assert rows_at(spark, mirroring.path("d", None, "rows")) == wanted
    soft = rows_at(spark, mirroring.path("d", None, "soft"))
    assert [{n: row[n] for n in wanted[0]} for row in soft if row["deleted_at"] is None] == wanted
    versions = spark.read.format("delta").load(mirroring.path("d", None, "versions"))
    current = versions.where("__is_current").select(*wanted[0]).collect()
    assert _sorted(row.asDict() for row in current) == wanted


# -- conditions on what is absent ---------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.guarantee(
    "A condition is never decided by the absence of what it reads: a schema without the column holds the "
    "table, a record without the member goes to quarantine"
)
def test_a_condition_is_not_decided_by_an_absent_column(spark: SparkSession, tmp_path: Path) -> None:
    shop = Shop()
    status, v = Column("status", "string", optional=True), Column("v", "int32")
    filtered, expected = table("filtered", status, v), table("expected", status, v)
    without = [table(name, v) for name in ("filtered", "expected")]
    before = [
        *shop.create(filtered, id=1, status="active", v=1),
        *shop.create(filtered, id=2, status="gone", v=1),
        *shop.create(expected, id=1, status="active", v=1),
    ]
    after = [each for of in without for each in shop.update(of, id=1, v=2)]

    def plain(n: int, name: str, row: Row) -> Record:
        source = {"connector": "postgresql", "name": "s", "db": "demo", "schema": "public", "table": name}
        source |= {"lsn": 100 + n, "sequence": f'["{100 + n}","{100 + n}"]', "ts_ms": 1_700_000_000_000}
        return record(f"s.public.{name}", n, {"id": row["id"]}, {"op": "u", "after": row, "source": source})

    rows = [{"id": 1, "status": "active", "v": 1}, {"id": 2, "status": "active", "v": 1}]
    before += [plain(n, name, row) for name in ("plain", "checked") for n, row in enumerate(rows)]
    rows = [{"id": 1, "v": 2}, {"id": 2, "status": None, "v": 2}]
    after += [plain(2 + n, name, row) for name in ("plain", "checked") for n, row in enumerate(rows)]
    active = {"condition": "status = 'active'", "name": "active", "onViolation": "quarantine"}
    settings = [{"source": f"public.{name}", "filter": "status = 'active'"} for name in ("filtered", "plain")]
    settings += [{"source": f"public.{name}", "expectations": [active]} for name in ("expected", "checked")]
    mirroring = Mirroring(tmp_path, {"tables": settings}).deliver([before, after])
    mirroring.run(spark)
    found = {
        name: [(row["id"], row["v"]) for row in rows_at(spark, mirroring.path("demo", "public", name))]
        for name in ("filtered", "plain", "expected", "checked")
    }
    assert found == {
        "filtered": [(1, 1)],
        "plain": [(1, 1)],
        "expected": [(1, 1)],
        "checked": [(1, 1), (2, 1)],
    }
    aside = spark.read.format("delta").load(f"{mirroring.checkpoint}/quarantine").where("state = 'open'")
    reasons = {
        (row["source"].rpartition(".")[2], row["offset"]): (row["scope"], row["reason"])
        for row in aside.collect()
    }
    assert {place: scope for place, (scope, _) in reasons.items()} == {
        ("filtered", 2): "table",
        ("expected", 1): "table",
        ("plain", 2): "record",
        ("checked", 2): "record",
        ("checked", 3): "record",
    }
    assert "status, which the source's schema no longer has" in reasons["filtered", 2][1]
    assert "the record lacks status" in reasons["plain", 2][1]
    assert "the record lacks status" in reasons["checked", 2][1]
    assert "does not meet the expectation" in reasons["checked", 3][1]


# -- lines of files that were incomplete --------------------------------------------------------------

BY_ID = {"primaryKey": ["id"]}
CSV = "id,op,v\n1,c,one\n2,c,tw"
JSON = '{"id":1,"v":"one"}\n{"id":2,"v":"tw'


@pytest.mark.long
@pytest.mark.guarantee(
    "A line of a file that was incomplete when it was read is corrected by the complete line, and its "
    "quarantined half is closed"
)
@pytest.mark.parametrize(
    "mode", ["scd1", *(pytest.param(m, marks=pytest.mark.thorough) for m in ("scd2", "append"))]
)
def test_a_line_that_is_complete_later_stands(mode: str, spark: SparkSession, tmp_path: Path) -> None:
    found = {}
    for form, half, rest in (("csv", CSV, "o\n3,c,three\n"), ("json", JSON, 'o"}\n{"id":3,"v":"three"}\n')):
        folder = tmp_path / form
        (folder / "in" / "items").mkdir(parents=True)
        place = folder / "in" / "items" / f"1.{form}"
        settings = {
            "source": {"files": {"path": f"{folder}/in/items", "format": form}},
            "envelope": {"format": "custom", "fields": {"op": "op"} if form == "csv" else {"key": "id"}},
            "target": {"path": f"{folder}/lake/{{table}}"},
            "tables": [{"source": "items", "mode": mode, **({} if mode == "append" else BY_ID)}],
        }
        mirroring = Mirroring(folder, settings)
        place.write_text(half)
        mirroring.run(spark)
        if form == "json":
            assert _open(spark, mirroring) == 1
        place.write_text(half + rest)
        mirroring.run(spark)
        assert form == "csv" or _open(spark, mirroring) == 0
        rows = spark.read.format("delta").load(f"{folder}/lake/items")
        rows = rows.where("__is_current") if mode == "scd2" else rows
        found[form] = sorted((str(row["id"]), row["v"]) for row in rows.collect())
    wanted = [("1", "one"), ("2", "two"), ("3", "three")]
    assert found == {"csv": wanted, "json": wanted}


def _open(spark: SparkSession, mirroring: Mirroring) -> int:
    """How many records are open in the quarantine."""
    aside = spark.read.format("delta").load(f"{mirroring.checkpoint}/quarantine")
    return int(aside.where("state = 'open'").count())
