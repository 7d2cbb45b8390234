"""Full snapshots over mirrors: what is missing goes, what is newer stays, in any order of delivery."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from lakemirror.api import CdcPipeline
from lakemirror.api.supported import not_supported
from lakemirror.cli.main import main
from lakemirror.driver import faults
from lakemirror.driver.checkpoint.storage import open_storage
from lakemirror.driver.runtime import reload as reloading
from lakemirror.driver.runtime.reload import SnapshotWanted, reload
from lakemirror.driver.runtime.runner import run
from lakemirror.driver.runtime.verifier import verify
from tests.properties.test_shards import of as of_database
from tests.support.mirroring import Mirroring, at
from tests.support.records import Column, Record, Table
from tests.support.shop import Shop, decimal, table

ROOT = Path(__file__).parents[3]
BEGAN = datetime.fromtimestamp(1_700_000_000, UTC)


@dataclass
class Source:
    """A table, its changes in order with their row afterwards, and what is known of each moment."""

    shop: Shop
    of: Table
    rows: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    changes: list[tuple[int, list[Record]]] = field(default_factory=list)

    def change(self, key: int, v: int | None) -> None:
        """A row gets a value, or is deleted."""
        if v is None:
            sent = self.shop.delete(self.of, **self.rows.pop(key))
        else:
            row = {"id": key, "v": v}
            sent = (self.shop.update if key in self.rows else self.shop.create)(self.of, **row)
            self.rows[key] = row
        self.changes.append((key, sent))

    @property
    def now(self) -> datetime:
        return BEGAN + timedelta(seconds=self.shop.seconds)

    def kept(self) -> dict[int, int]:
        return {key: row["v"] for key, row in self.rows.items()}


def snapshot(spark: SparkSession, folder: Path, name: str, rows: Mapping[int, int]) -> None:
    frame = spark.createDataFrame(list(rows.items()), "id INT, v INT")
    frame.coalesce(1).write.mode("overwrite").parquet(f"{folder}/demo/{name}")


@pytest.mark.thorough
@pytest.mark.guarantee(
    "A snapshot and a stream whose first part is lost end in the source's rows, in any order; an interrupted "
    "reload is done again"
)
def test_a_reload_and_a_stream_of_which_much_is_lost_end_in_the_rows_of_the_source(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Of each row, some of the first changes are lost; the others come before the reload or after it, in any
    order, in mirrors of all kinds.
    """
    names = ("rows", "softly", "versions")
    tables = [
        {"source": "public.softly", "delete": {"type": "soft", "column": "deleted_at"}},
        {"source": "public.versions", "mode": "scd2"},
    ]
    mirroring = Mirroring(tmp_path, {"tables": tables})
    dice, shop = random.Random(8), Shop()
    sources = {name: Source(shop, table(name, Column("v", "int32"))) for name in names}
    shown: dict[str, dict[int, int]] = {}
    before: list[Record] = []
    after: list[list[Record]] = []
    for source in sources.values():
        steps = [
            (key, dice.choice((None, 1, 2, 3))) for key in range(150) for _ in range(dice.randrange(1, 6))
        ]
        dice.shuffle(steps)
        source.changes.clear()
        for key, v in steps[: len(steps) // 2]:
            if v is not None or key in source.rows:
                source.change(key, v)
    moment, passed = sources["versions"].now, {name: len(each.changes) for name, each in sources.items()}
    for name, source in sources.items():
        shown[name] = source.kept()
        for key in range(0, 150, 2):
            v = dice.choice((None, 4, 5))
            if v is not None or key in source.rows:
                source.change(key, v)
        by_key: dict[int, list[tuple[int, list[Record]]]] = {}
        for number, (key, sent) in enumerate(source.changes):
            by_key.setdefault(key, []).append((number, sent))
        for changes in by_key.values():
            lost = dice.randrange(sum(number < passed[name] for number, _ in changes) + 1)
            for _, sent in changes[lost:]:
                if dice.random() < 0.5:
                    before += sent
                else:
                    after.append(sent)
        snapshot(spark, tmp_path / "snapshots", name, shown[name])
    dice.shuffle(after)
    mirroring.deliver([before]).run(spark)
    wanted = SnapshotWanted(f"{tmp_path}/snapshots/{{db}}/{{table}}", "parquet")
    done = reload(mirroring.pipeline, wanted, at=moment, spark=spark)
    assert [(each.source, each.error, each.done) for each in done] == [
        (f"demo.public.{name}", None, True) for name in names
    ]
    for each in done:
        counts = each.staged
        assert min(counts.missing, counts.changed, counts.gone, counts.newer) > 0, counts
        assert each.outcome is not None
        assert each.outcome.records == counts.records
    mirroring.deliver([[record for sent in after for record in sent]]).run(spark)
    for name, source in sources.items():
        assert stored(spark, mirroring, name) == source.kept(), name
        snapshot(spark, tmp_path / "snapshots", name, source.kept())
    # What is shown already is not written again.
    versions = mirroring.versions()
    again = reload(mirroring.pipeline, wanted, at=sources["versions"].now, spark=spark)
    assert [(each.staged.records, each.outcome) for each in again] == [(0, None)] * 3
    assert mirroring.versions() == versions


def stored(spark: SparkSession, mirroring: Mirroring, name: str) -> dict[int, int]:
    """The live rows of a mirror."""
    rows = spark.read.format("delta").load(mirroring.path("demo", "public", name))
    live = rows.where("__is_current" if "__is_current" in rows.columns else "__op <> 'd'")
    found = live.select("id", "v").collect()
    assert len(found) == len({row["id"] for row in found})
    return {row["id"]: row["v"] for row in found}


@pytest.mark.thorough
def test_a_shard_is_reloaded_by_itself(spark: SparkSession, tmp_path: Path) -> None:
    """Its rows alone are compared and changed; one that is new joins the others."""
    of, shop = table("items", Column("v", "int32")), Shop()
    sent = [record for key in (1, 2, 3) for record in shop.create(of, id=key, v=1)]
    place = f"{tmp_path}/lake/items"
    entry = {"source": "/[abc]\\.public\\.items/", "mergeShards": True, "primaryKey": ["id"]}
    mirroring = Mirroring(tmp_path, {"tables": [{**entry, "target": {"path": place}}]})
    mirroring.deliver([[*of_database("a", sent), *of_database("b", sent)]]).run(spark)
    shown = {"a": {1: 1, 2: 2, 4: 1}, "b": {1: 1}, "c": {1: 9}}
    for name, rows in shown.items():
        snapshot(spark, tmp_path / "snapshots" / name, "items", rows)
    wanted = SnapshotWanted(f"{tmp_path}/snapshots/{{db}}/demo/{{table}}", "parquet")
    moment = BEGAN + timedelta(seconds=shop.seconds)
    named = ("a.public.items", "c.public.items")
    done = reload(mirroring.pipeline, wanted, tables=named, at=moment, spark=spark)
    assert [(each.error, each.done) for each in done] == [(None, True)] * 2
    counts = [(each.missing, each.changed, each.gone) for each in (result.staged for result in done)]
    assert counts == [(1, 1, 1), (1, 0, 0)]

    def rows() -> list[tuple[Any, ...]]:
        return sorted(tuple(row)[:3] for row in at_all(spark, place))

    b = [("b.public.items", key, 1) for key in (1, 2, 3)]
    a = [("a.public.items", key, v) for key, v in shown["a"].items()]
    assert rows() == [*a, *b, ("c.public.items", 1, 9)]
    late = shop.update(of, id=1, v=3)
    mirroring.deliver([[*of_database("a", late), *of_database("c", late), *of_database("b", late)]]).run(
        spark
    )
    changed = {(name, 1): 3 for name in ("a.public.items", "b.public.items", "c.public.items")}
    expected = [*a, *b, ("c.public.items", 1, 9)]
    assert rows() == [(name, key, changed.get((name, key), v)) for name, key, v in expected]


def at_all(spark: SparkSession, place: str) -> list[Any]:
    return spark.read.format("delta").load(place).select("__source", "id", "v").collect()


SETTINGS = {
    "tables": [
        {
            "source": "public.items",
            "columns": {
                "exclude": ["secret"],
                "rename": {"name": "called"},
                "types": {"price": "decimal(12,2)"},
            },
            "filter": "price < 100",
        }
    ]
}
ITEMS = table("items", Column("name", "string"), decimal("price", 10, 2), Column("secret", "string"))


class Items:
    """A mirror of a table with settings, and exports of it."""

    def __init__(self, spark: SparkSession, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.spark, self.folder, self.shop = spark, folder, Shop()
        self.mirroring = Mirroring(folder, SETTINGS)
        for n in range(6):
            self.mirroring.deliver([self.shop.create(ITEMS, id=n, name=f"n{n}", price="AfQ=", secret="s")])
        monkeypatch.setattr(reloading, "create_session", lambda *_: spark.newSession())
        monkeypatch.setattr(SparkSession, "stop", lambda self: None)

    def export(self, rows: Sequence[str]) -> None:
        values = ", ".join(rows)
        columns = "id, name, price, secret, CAST(colour AS STRING) AS colour"
        sql = f"SELECT {columns} FROM VALUES {values} AS t(id, name, price, secret, colour)"
        self.spark.sql(sql).coalesce(1).write.mode("overwrite").parquet(f"{self.folder}/exports/items")

    def reload(self, *options: str) -> tuple[int, list[str]]:
        source = f"parquet:{self.folder}/exports/{{table}}"
        told = CliRunner().invoke(
            main, ["reload", "-f", str(self.mirroring.manifest), "--from", source, *options]
        )
        return told.exit_code, [*told.stdout.splitlines(), *told.stderr.splitlines()]

    def rows(self) -> dict[int, tuple[Any, ...]]:
        path = self.mirroring.path("demo", "public", "items")
        rows = at(self.spark, path)
        assert "secret" not in rows.columns
        return {row["id"]: tuple(map(str, row[1:])) for row in rows.collect()}


@pytest.mark.thorough
@pytest.mark.guarantee(
    "A snapshot and a stream whose first part is lost end in the source's rows, in any order; an interrupted "
    "reload is done again"
)
def test_settings_are_kept_to_and_a_reload_that_was_cut_off_is_done_by_the_driver(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A filter, another name, another type, a column that is left out and one that is new; and many parts."""
    items = Items(spark, tmp_path, monkeypatch)
    items.mirroring.run(spark)
    told = items.reload("--at", BEGAN.isoformat())
    assert told[0] == 1
    assert "there is no parquet table at" in told[1][0]
    kept = [f"({n}, 'n{n}', 5.00D, 's', NULL)" for n in (0, 1)]
    items.export(
        [*kept, "(2, 'two', 5, 's', NULL)", "(3, 'n3', 5, 's', 'red')", "(4, 'n4', 100, 's', 'red')"]
    )
    assert items.reload() == (
        1,
        [
            "demo.public.items: not reloaded: nothing tells whether a row of the snapshot is newer than the "
            "mirror's: say when the source was like that (--at 2026-03-01T00:00:00Z: when the export began)"
        ],
    )
    # Two parts, of which the second is never reached; a driver that starts takes it up.
    monkeypatch.setattr(reloading, "MOST_RECORDS", 2)
    monkeypatch.setattr(reloading, "_carried_out", filed)
    now = (BEGAN + timedelta(seconds=items.shop.seconds)).isoformat()
    assert items.reload("--table", "items", "--at", now)[1] == [
        "demo.public.items: 2 replaced, 2 deleted (4 rows in the snapshot)",
        "  handed to the running driver, which did not finish it within 300 s: it is done between two "
        f"batches, and what came of it will be in reload/outcomes/{FILED[0]}.json",
    ]
    faults.arm("after-reload-part")
    with pytest.raises(faults.InjectedCrash):
        items.mirroring.run(spark)
    half = items.rows()
    assert sum([half[2][0] == "two", half[3][-1] == "red", 4 not in half, 5 not in half]) in (1, 2, 3)
    items.mirroring.run(spark)
    whole = {n: (f"n{n}", "5.00", "None") for n in (0, 1)}
    assert items.rows() == {**whole, 2: ("two", "5.00", "None"), 3: ("n3", "5.00", "red")}
    [outcome] = (tmp_path / "checkpoint/reload/outcomes").glob("*.json")
    assert '"records": 4,' in outcome.read_text()
    assert [each.name for each in (tmp_path / "checkpoint/reload").iterdir()] == ["outcomes"]
    # The deletes hold against late events, and newer ones win.
    items.mirroring.deliver([items.shop.create(ITEMS, id=4, name="back", price="AfQ=", secret="s")])
    items.mirroring.run(spark)
    assert items.rows()[4][0] == "back"
    assert items.reload("--at", now) == (
        0,
        [
            "demo.public.items: nothing to change (4 rows in the snapshot)",
            "  1 keys have changed since the snapshot, and were left alone",
        ],
    )


FILED: list[str] = []


def filed(
    session: SparkSession,
    pipeline: Any,
    storage: Any,
    request: reloading.ReloadRequest,
    timeout: float,
    target: Any,
) -> Any:
    """As while a driver runs that takes its time."""
    FILED[:] = [request.id]
    storage.write_text_new(f"reload/{request.id}.json", request.text())
    return reloading.await_outcome(storage, request, 0, "reload")


@pytest.mark.thorough
def test_a_new_table_is_loaded_and_what_cannot_be_is_told(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of which no mirror is there yet give way to all that the stream brings, before or after."""
    items = Items(spark, tmp_path, monkeypatch)
    items.export([f"({n}, 'old', 5.00D, 's', NULL)" for n in (4, 5, 6, 7)])
    assert items.reload()[1][0].endswith(
        "no table has been mirrored yet: name the tables that are to be loaded"
    )
    lacking = items.reload("--table", "demo.public.items")
    assert "it has no key, so that nothing tells its rows apart: name the columns that do in" in lacking[1][0]
    tables = [{**SETTINGS["tables"][0], "primaryKey": ["id"]}]
    keyed = Mirroring(tmp_path, {"tables": tables})
    items.mirroring = keyed
    assert items.reload("--table", "demo.public.items") == (
        0,
        ["demo.public.items: 4 added (4 rows in the snapshot)"],
    )
    items.mirroring.deliver([items.shop.delete(ITEMS, id=7, name="old", price="AfQ=", secret="s")])
    items.mirroring.run(spark)
    found = {key: row[0] for key, row in items.rows().items()}
    assert found == {**{n: f"n{n}" for n in range(6)}, 6: "old"}
    at_ = ("--at", datetime.now(UTC).isoformat())
    items.export(["(1, 'a', 1, 's', NULL)", "(1, 'b', 2, 's', NULL)"])
    assert 'several rows with the key ["1"]: name the columns' in items.reload(*at_)[1][0]
    items.export(["(1, 'a', 1e30D, 's', NULL)"])
    told = items.reload(*at_)
    assert told[0] == 1
    assert told[1][0] == "demo.public.items: 6 deleted (1 rows in the snapshot)"
    assert told[1][1].endswith(
        "values that the mirror's types cannot hold, and were left alone, like price=1.0E30"
    )
    assert items.reload("--at", "yesterday")[0] == 2
    spark.createDataFrame([], "id INT, name STRING, price DOUBLE, secret STRING, colour STRING").write.mode(
        "overwrite"
    ).parquet(f"{tmp_path}/exports/items")
    assert "the snapshot has no rows, so that 1 rows would be deleted" in items.reload(*at_)[1][0]
    assert items.reload(*at_, "--empty")[1] == ["demo.public.items: 1 deleted (0 rows in the snapshot)"]
    assert items.rows() == {}


@pytest.mark.thorough
@pytest.mark.parametrize("by", ["timestamp", pytest.param("offset", marks=pytest.mark.long)])
def test_a_reload_keeps_the_order_of_a_mirror_that_is_there_and_of_a_new_one(
    by: str, spark: SparkSession, tmp_path: Path
) -> None:
    """Changes that a reload makes carry their places, which are of the pipeline's kind."""
    shop = Shop()
    rows, fresh = (table(name, Column("v", "int32")) for name in ("rows", "fresh"))
    settings = {"ordering": {"by": by}, "tables": [{"source": "public.fresh", "primaryKey": ["id"]}]}
    mirroring = Mirroring(tmp_path, settings).deliver([shop.create(rows, id=1, v=1)])
    mirroring.run(spark)
    for name in ("rows", "fresh"):
        snapshot(spark, tmp_path / "snapshots", name, {1: 2, 2: 2})
    wanted = SnapshotWanted(f"{tmp_path}/snapshots/{{db}}/{{table}}", "parquet")
    moment = BEGAN + timedelta(seconds=shop.seconds)
    both = ["demo.public.fresh", "demo.public.rows"]
    done = reload(mirroring.pipeline, wanted, tables=both, at=moment, spark=spark)
    assert [(each.source, each.error, each.done) for each in done] == [(name, None, True) for name in both]
    later = [r for of in (rows, fresh) for r in shop.update(of, id=2, v=3)]
    tables = mirroring.deliver([later]).run(spark).tables
    for name in ("rows", "fresh"):
        assert tables[f"demo.public.{name}"].error is None
        assert stored(spark, mirroring, name) == {1: 2, 2: 3}, name


@pytest.mark.thorough
def test_an_offset_means_something_in_its_own_partition_only(spark: SparkSession, tmp_path: Path) -> None:
    """Offsets of one partition may be far ahead of those of another one, whose rows change all the same."""
    shop, of = Shop(), table("items", Column("v", "int32"))
    mirroring = Mirroring(tmp_path, {"ordering": {"by": "offset"}})

    def sent(key: int, v: int, partition: int, offset: int) -> list[Record]:
        [record] = shop.update(of, id=key, v=v)
        return [{**record, "partition": partition, "offset": offset}]

    mirroring.deliver([[*sent(1, 1, 0, 1000), *sent(2, 1, 1, 5), *sent(3, 1, 1, 6)]]).run(spark)
    snapshot(spark, tmp_path / "snapshots", "items", {1: 2, 2: 2, 4: 2})
    wanted = SnapshotWanted(f"{tmp_path}/snapshots/{{db}}/{{table}}", "parquet")
    [done] = reload(mirroring.pipeline, wanted, at=BEGAN + timedelta(seconds=shop.seconds), spark=spark)
    assert (done.error, done.done) == (None, True)
    assert stored(spark, mirroring, "items") == {1: 2, 2: 2, 4: 2}
    later = [*sent(1, 3, 0, 1001), *sent(2, 3, 1, 7), *sent(3, 3, 1, 8), *sent(4, 3, 1, 9)]
    mirroring.deliver([later]).run(spark)
    assert stored(spark, mirroring, "items") == dict.fromkeys((1, 2, 3, 4), 3)


@pytest.mark.long
def test_a_row_that_is_kept_aside_keeps_no_other_from_being_loaded(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = Items(spark, tmp_path, monkeypatch)
    expected = {"name": "cheap", "condition": "price < 50", "onViolation": "quarantine"}
    [settings] = SETTINGS["tables"]
    items.mirroring = Mirroring(
        tmp_path, {"tables": [{**settings, "primaryKey": ["id"], "expectations": [expected]}]}
    )
    items.export(["(1, 'one', 5, 's', NULL)", "(2, 'two', 99, 's', NULL)", "(3, 'three', 5, 's', NULL)"])
    code, lines = items.reload("--table", "demo.public.items", "--at", datetime.now(UTC).isoformat())
    assert code == 1
    assert any("1 " in line and "quarantine" in line for line in lines), lines
    assert sorted(items.rows()) == [1, 3]
    kept = at(spark, f"{items.mirroring.checkpoint}/quarantine").where("state = 'open'").collect()
    assert [(row["source"], "cheap" in row["reason"]) for row in kept] == [("demo.public.items", True)]


@pytest.mark.long
@pytest.mark.guarantee(
    "A comparison, a reload, a load and a repair cut no value: one that does not come back from the mirror's "
    "type differs, and is not written; maps are equal in any order of their entries"
)
def test_no_value_of_a_snapshot_is_cut_and_what_cannot_be_judged_is_left(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A value that the mirror's type would cut is no equal one, and no row is written with it, whatever else
    has changed in the row; nor is a row for which the filter fails, or of which it reads such a value.
    """
    columns = (Column("n", "int32"), decimal("price", 10, 2), Column("v", "int32"), Column("w", "int32"))
    of, shop = table("rows", *columns), Shop()
    settings = {"source": "public.rows", "filter": "100 / v > 0 AND w IS NOT NULL"}
    sent = [shop.create(of, id=id, n=2, price="ew==", v=1, w=1) for id in range(1, 9)]
    mirroring = Mirroring(tmp_path, {"tables": [settings]}).deliver(
        [[each for some in sent for each in some]]
    )
    mirroring.run(spark)
    export = [
        (1, 2.7, "1.23", 1, 1.0),
        (2, 2.0, "1.2349", 1, 1.0),
        (3, 2.7, "1.23", 7, 1.0),
        (4, 2.0, "1.2300", 1, 1.0),
        (5, 2.0, "1.23", 0, 1.0),
        (6, 2.0, "1.23", 6, 1.0),
        (7, 2.0, "1.23", 1, 1.5),
        (8, 2.0, "1.23", -1, 1.0),
    ]
    frame = spark.createDataFrame(export, "id INT, n DOUBLE, price STRING, v INT, w DOUBLE")
    frame = frame.withColumn("price", frame["price"].cast("decimal(12,4)"))
    frame.coalesce(1).write.parquet(f"{tmp_path}/snapshots/demo/rows")
    wanted = SnapshotWanted(f"{tmp_path}/snapshots/{{db}}/{{table}}", "parquet")

    def found() -> dict[str, str]:
        [checked] = verify(mirroring.pipeline, wanted, spark=spark).tables
        assert checked.error is None
        return {each.key: each.what for each in checked.settled.wrong}

    unfit = dict.fromkeys((f'["{id}"]' for id in (1, 2, 3, 5, 7)), "differs")
    assert found() == {**unfit, '["6"]': "differs", '["8"]': "extra"}
    [done] = reload(mirroring.pipeline, wanted, at=datetime.now(UTC), spark=spark)
    assert (done.error, done.staged.changed, done.staged.gone, done.staged.unfit) == (None, 1, 1, 5)
    rows = at(spark, mirroring.path("demo", "public", "rows")).collect()
    assert {row["id"]: (row["n"], str(row["price"]), row["v"], row["w"]) for row in rows} == {
        id: (2, "1.23", 6 if id == 6 else 1, 1) for id in range(1, 8)
    }
    assert found() == unfit


@pytest.mark.thorough
def test_a_snapshot_from_before_tombstones_that_are_collected_brings_no_row_back(
    spark: SparkSession, tmp_path: Path
) -> None:
    shop, of = Shop(), table("items", Column("v", "int32"))
    mirroring = Mirroring(tmp_path, {"tombstones": {"retention": "0s"}})
    mirroring.deliver([[*shop.create(of, id=1, v=1), *shop.create(of, id=2, v=1)]]).run(spark)
    moment = BEGAN + timedelta(seconds=shop.seconds)
    snapshot(spark, tmp_path / "snapshots", "items", {1: 1, 2: 1})
    mirroring.deliver([shop.delete(of, id=2, v=1)]).run(spark)  # and forgotten at once
    wanted = SnapshotWanted(f"{tmp_path}/snapshots/{{db}}/{{table}}", "parquet")
    [done] = reload(mirroring.pipeline, wanted, at=moment, spark=spark)
    assert "which may have been deleted after it: tombstones of that time are collected" in (done.error or "")
    assert stored(spark, mirroring, "items") == {1: 1}


@pytest.mark.thorough
def test_the_example_ends_in_the_rows_of_the_source(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = ROOT / "examples/reload/pipeline.yaml"
    pipeline = CdcPipeline.from_yaml(manifest.read_text("utf-8"))
    assert not_supported(pipeline.spec) == []
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(reloading, "create_session", lambda *_: spark.newSession())
    monkeypatch.setattr(SparkSession, "stop", lambda self: None)
    run(pipeline, once=True, spark=spark)
    command = ["reload", "-f", str(manifest), "--at", "2026-11-20T19:14:10.500Z"]
    assert " ".join(command[3:]) in manifest.read_text("utf-8")
    first, second = (CliRunner().invoke(main, command) for _ in range(2))
    assert (first.exit_code, second.exit_code) == (0, 0), first.output
    snapshot_ = pipeline.spec.verify and pipeline.spec.verify.snapshot
    assert snapshot_ is not None
    compared = verify(pipeline, SnapshotWanted(snapshot_.path, snapshot_.format), spark=spark)
    assert [(each.source, each.equal) for each in compared.tables] == [
        (f"inventory.public.{name}", True) for name in ("addresses", "customers", "orders", "products")
    ]
    assert [line.partition(": ")[2][:17] for line in second.stdout.splitlines()] == ["nothing to change"] * 4


def test_changes_that_nobody_asked_for_are_deleted_after_a_week(tmp_path: Path) -> None:
    storage, now = open_storage(str(tmp_path)), datetime.now(UTC)
    for name in ("left", "asked", "filed"):
        storage.write_text_new(f"reload/{name}/part.parquet", "x\n")
        storage.write_text_new(f"reload/{name}.staged", "t\n")
    storage.write_text_new("reload/filed.json", "{}\n")
    os.utime(tmp_path / "reload" / "asked.staged", times=((now + timedelta(days=3)).timestamp(),) * 2)
    reloading.forget_abandoned(storage, now + timedelta(days=6))
    assert storage.is_folder("reload/left")
    reloading.forget_abandoned(storage, now + timedelta(days=8))
    assert not storage.exists("reload/left")
    assert [entry.name for entry in storage.list("reload")] == ["asked.staged", "filed.json", "filed.staged"]
    assert storage.is_folder("reload/asked")
    assert storage.is_folder("reload/filed")
