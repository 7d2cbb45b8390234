"""Shards of one table in one mirror (``tables[].mergeShards``): each as its own database, in any delivery."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyspark.sql import SparkSession

from lakemirror.driver import faults
from lakemirror.driver.errors import BadRecordRefused
from lakemirror.driver.record import quarantine
from lakemirror.driver.runtime.replayer import replay
from lakemirror.driver.runtime.verifier import SnapshotWanted, verify
from tests.support.delivery import doubled, parts, shuffled
from tests.support.histories import History, Shape, key_of, many, play
from tests.support.mirroring import Mirroring
from tests.support.records import Column, Record, Row
from tests.support.shop import Shop, table
from tests.support.versions import History as Model
from tests.support.versions import mirrored

pytestmark = pytest.mark.guarantee("Events of a shard affect only its own rows, in any delivery")

SOURCE = r"/demo_\d(\.public)?\.items/"


def of(database: str, records: list[Record]) -> list[Record]:
    """The records as another database's."""
    return [
        {
            **r,
            "topic": f"{database}.{r['topic']}",
            "value": r["value"] and r["value"].replace('"db":"demo"', f'"db":"{database}"'),
        }
        for r in records
    ]


def merging(folder: Path, **more: Any) -> Mirroring:
    entry = {"source": SOURCE, "target": {"path": f"{folder}/lake/items"}, "mergeShards": True, **more}
    return Mirroring(folder, {"tables": [entry], "unlisted": "ignore"})


def stored(spark: SparkSession, folder: Path) -> list[Row]:
    return [row.asDict() for row in spark.read.format("delta").load(f"{folder}/lake/items").collect()]


def test_shards_that_are_copied_with_their_checkpoint_are_gone_on_with(
    spark: SparkSession, tmp_path: Path
) -> None:
    shop, items = Shop(), table("items", Column("v", "int32"))
    batches = [of("demo_1", shop.create(items, id=id, v=id)) for id in (1, 2)]
    merging(tmp_path / "here").deliver(batches[:1]).run(spark)
    shutil.copytree(tmp_path / "here", tmp_path / "there")
    there = merging(tmp_path / "there").deliver(batches[1:])
    assert there.run(spark).counts.refused == 0
    assert sorted(row["id"] for row in stored(spark, tmp_path / "there")) == [1, 2]


@pytest.mark.thorough
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("many_ids", "batches", "crashes"),
    [
        (6, 1, [("after-rows", 1)]),
        (24, 3, [("after-tombstones", 1), ("after-rows", 0), ("after-rows", 1)]),
    ],
)
def test_each_shard_ends_in_the_rows_of_its_database(
    spark: SparkSession,
    tmp_path: Path,
    many_ids: int,
    batches: int,
    crashes: list[tuple[faults.AnyPoint, int]],
) -> None:
    """A PostgreSQL with truncates and values that it leaves out and a MariaDB, of whose positions nothing can
    be compared, with the same keys; doubled and shuffled, and after crashes between two shards' commits.
    """
    rnd = random.Random(9)
    histories: dict[str, History] = {
        "demo_1.public.items": play(many(range(many_ids), rnd, truncates=2), Shape()),
        "demo_2.items": play(many(range(many_ids), rnd), Shape(source="mariadb", schemas=False)),
    }
    records = [r for name, each in histories.items() for r in of(name.partition(".")[0], each.records)]
    mirroring = merging(tmp_path).deliver(parts(shuffled(doubled(records), 4), batches))
    for point, after in crashes:
        faults.arm(point, after=after)
        with pytest.raises(faults.InjectedCrash):
            mirroring.run(spark)
    summary = mirroring.run(spark)
    assert summary.tables.keys() == histories.keys()
    assert not any(each.error or each.counts.quarantined for each in summary.tables.values())
    rows = stored(spark, tmp_path)
    for name, history in histories.items():
        left_out = history.needs_a_reused_image()
        mine = [
            {n: row[n] for n in ("h", "id", "v", "note", "big")} for row in rows if row["__source"] == name
        ]
        found = {key_of(row): row for row in mine if row["h"] not in left_out}
        assert len(found) == len([row for row in mine if row["h"] not in left_out])
        assert found == {key: row for key, row in history.rows.items() if key[0] not in left_out}
    assert {row["__source"] for row in rows} == histories.keys()
    before = mirroring.versions()
    mirroring.run(spark)
    assert mirroring.versions() == before


@pytest.mark.thorough
def test_what_happens_in_a_shard_is_its_own_affair(spark: SparkSession, tmp_path: Path) -> None:
    """A shard that gets a column, loses it and has it again, or is truncated, changes no row of another one;
    its positions say nothing of the other's.
    """
    one, two = Shop(), Shop(lsn=900_000)
    plain, wide = (
        table("items", Column("v", "int32")),
        table("items", Column("v", "int32"), Column("note", "string", True)),
    )
    batches = [
        [*of("demo_1", one.create(plain, id=1, v=1)), *of("demo_2", two.create(wide, id=1, v=2, note="two"))],
        [
            *of("demo_1", one.create(wide, id=2, v=1, note="one")),
            *of("demo_2", two.create(wide, id=2, v=2, note="b")),
        ],
        [*of("demo_1", one.update(plain, id=2, v=5)), *of("demo_2", two.delete(wide, id=2, v=2, note="b"))],
        [*of("demo_1", one.create(wide, id=3, v=7, note="new"))],
        [*of("demo_2", two.truncate(wide)), *of("demo_2", two.create(wide, id=9, v=9, note=None))],
        [*of("demo_1", one.update(wide, id=1, v=8, note=None))],
    ]
    mirroring = merging(tmp_path).deliver(batches)
    summary = mirroring.run(spark)
    assert not any(
        each.error or each.counts.quarantined or each.counts.stale for each in summary.tables.values()
    )
    rows = {(r["__source"], r["id"]): (r["v"], r["note"]) for r in stored(spark, tmp_path)}
    first, second = "demo_1.public.items", "demo_2.public.items"
    assert rows == {
        (first, 1): (8, None),
        (first, 2): (5, None),
        (first, 3): (7, "new"),
        (second, 9): (9, None),
    }
    for name, shard in (("demo_1", first), ("demo_2", second)):
        mine = [(key[1], *values) for key, values in rows.items() if key[0] == shard]
        source = spark.createDataFrame(mine, "id int, v int, note string")
        source.write.parquet(f"{tmp_path}/snapshots/{name}/items")
    compared = verify(
        mirroring.pipeline, SnapshotWanted(f"{tmp_path}/snapshots/{{db}}/{{table}}", "parquet"), spark=spark
    )
    assert [(each.source, each.equal, each.mirror_rows) for each in compared.tables] == [
        (first, True, 3),
        (second, True, 1),
    ]

    changes = {name: [(d.change, d.column) for d in each.drift] for name, each in summary.tables.items()}
    assert changes[second] == [("added", "note")], "the mirror got it, which the first shard had made without"
    assert ("dropped", "note") in changes[first]

    (tmp_path / "again").mkdir()
    alone = Mirroring(
        tmp_path / "again", {"target": {"path": f"{tmp_path}/lake/{{table}}"}, "unlisted": "mirror"}
    )
    errors = [each.error for each in alone.deliver(batches[:1]).run(spark).tables.values()]
    assert errors
    assert all(errors)


@pytest.mark.thorough
def test_shards_have_filters_and_computed_columns_and_are_replayed(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Each row with its own shard's name; what one shard has replayed changes no other one."""
    one, two = Shop(), Shop(lsn=900_000)
    items = table("items", Column("v", "int32"))
    first = [
        *of("demo_1", [*one.create(items, id=1, v=10), *one.create(items, id=2, v=99_999)]),
        *of("demo_2", [*two.create(items, id=1, v=20), *two.create(items, id=2, v=-1)]),
    ]
    last = [
        *of("demo_1", one.update(items, id=1, v=11)),
        *of("demo_2", [*two.update(items, id=1, v=-1), *two.update(items, id=2, v=22)]),
    ]

    def settings(kind: str) -> dict[str, Any]:
        expressions = {"twice": "v * 2", "name": "__source || ':' || id"}
        return {"filter": "v > 0", "columns": {"types": {"v": kind}, "expressions": expressions}}

    def rows() -> set[tuple[Any, ...]]:
        found = stored(spark, tmp_path)
        return {(r["__source"], r["id"], r["v"], r["twice"], r["name"]) for r in found}

    summary = merging(tmp_path, **settings("smallint")).deliver([first]).run(spark)
    assert not any(each.error for each in summary.tables.values())
    here, there = "demo_1.public.items", "demo_2.public.items"
    one_row, other_row = (here, 1, 10, 20, f"{here}:1"), (there, 1, 20, 40, f"{there}:1")
    assert rows() == {one_row, other_row}
    wide = merging(tmp_path, **settings("int"))
    outcome = replay(wide.pipeline, spark=spark)
    assert (outcome.records, outcome.still_bad) == (1, 0)
    replayed = (here, 2, 99_999, 199_998, f"{here}:2")
    assert rows() == {one_row, replayed, other_row}
    summary = wide.deliver([last]).run(spark)
    assert not any(each.error or each.counts.quarantined for each in summary.tables.values())
    moved = {(here, 1, 11, 22, f"{here}:1"), (there, 2, 22, 44, f"{there}:2")}
    assert rows() == {replayed, *moved}


@pytest.mark.long
def test_shards_are_appended_with_truncates_and_their_names(spark: SparkSession, tmp_path: Path) -> None:
    one, two = Shop(), Shop()
    items = table("items", Column("v", "int32"))
    records = [
        *of("demo_1", [*one.create(items, id=1, v=1), *one.truncate(items)]),
        *of("demo_2", [*two.create(items, id=1, v=1), *two.truncate(items)]),
    ]
    mirroring = merging(tmp_path, mode="append").deliver([records, doubled(records)])
    mirroring.run(spark)
    found = sorted((r["__source"], r["__op"], r["v"]) for r in stored(spark, tmp_path) if r["__op"] == "c")
    assert found == [("demo_1.public.items", "c", 1), ("demo_2.public.items", "c", 1)]
    assert sorted(r["__source"] for r in stored(spark, tmp_path) if r["__op"] == "t") == [
        "demo_1.public.items",
        "demo_2.public.items",
    ]


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_each_shard_has_the_versions_of_its_database(spark: SparkSession, tmp_path: Path) -> None:
    """In mode scd2, with truncates of one of them; shuffled, in two batches."""
    rnd = random.Random(11)
    histories: dict[str, History] = {
        "demo_1.public.items": play(many(range(8), rnd, truncates=2), Shape()),
        "demo_2.items": play(many(range(8), rnd), Shape(source="mariadb", schemas=False)),
    }
    records = [r for name, each in histories.items() for r in of(name.partition(".")[0], each.records)]
    mirroring = merging(tmp_path, mode="scd2").deliver(parts(shuffled(doubled(records), 7), 2))
    summary = mirroring.run(spark)
    assert not any(each.error or each.counts.quarantined for each in summary.tables.values())
    for name, history in histories.items():
        found = mirrored(spark, f"{tmp_path}/lake/items", ("h", "id"), where=f"__source = '{name}'")
        expected = {key: each for key, each in Model().replay(history.records).keys.items() if each}
        assert found == expected
        assert any(not versions[-1].is_current for versions in found.values())


def different_types() -> list[Record]:
    """Two shards that have a column of different types, in one batch."""
    one, two = Shop(), Shop(lsn=900_000)
    number, text = table("items", Column("x", "int32")), table("items", Column("x", "string"))
    return [
        *of("demo_1", one.create(number, id=1, x=1)),
        *of("demo_2", [*two.create(text, id=1, x="a"), *two.create(text, id=2, x="b")]),
    ]


@pytest.mark.long
def test_records_that_another_shard_makes_bad_are_kept(spark: SparkSession, tmp_path: Path) -> None:
    """The second shard is decided again once the first one has created the mirror."""
    mirroring = merging(tmp_path).deliver([different_types()])
    summary = mirroring.run(spark)
    assert not any(each.error for each in summary.tables.values())
    (shard,) = (each.source for each in summary.tables.values() if each.counts.quarantined)
    assert shard == "demo_2.public.items"
    assert (summary.counts.quarantined, summary.counts.applied) == (2, 1)
    kept = quarantine.open_counts(spark, str(mirroring.checkpoint))
    assert kept == {shard: {"record": 2}}
    outcome = replay(mirroring.pipeline, spark=spark)
    assert (outcome.records, outcome.still_bad) == (2, 2)
    assert quarantine.open_counts(spark, str(mirroring.checkpoint)) == kept
    assert [(row["__source"], row["x"]) for row in stored(spark, tmp_path)] == [("demo_1.public.items", 1)]


@pytest.mark.thorough
def test_records_that_another_shard_makes_bad_stop_a_pipeline_that_is_to_fail(
    spark: SparkSession, tmp_path: Path
) -> None:
    mirroring = merging(tmp_path).deliver([different_types()])
    settings = yaml.safe_load(mirroring.manifest.read_text(encoding="utf-8"))
    settings["spec"]["onBadRecord"] = "fail"
    mirroring.manifest.write_text(yaml.safe_dump(settings), encoding="utf-8")
    for _ in range(2):
        with pytest.raises(BadRecordRefused, match="2 record"):
            mirroring.run(spark)
    assert [(row["__source"], row["x"]) for row in stored(spark, tmp_path)] == [("demo_1.public.items", 1)]


@pytest.mark.thorough
def test_a_pattern_is_widened_to_take_in_one_more_shard(spark: SparkSession, tmp_path: Path) -> None:
    """The mirror goes on under the wider pattern; a pattern that leaves out one of its shards is refused."""
    items = table("items", Column("v", "int32"))
    first, second = (Shop().create(items, id=1, v=v) for v in (1, 2))
    merging(tmp_path, source=r"/demo_1\.public\.items/").deliver([of("demo_1", first)]).run(spark)
    wider = merging(tmp_path).deliver([of("demo_2", second)]).run(spark)
    assert not any(each.error for each in wider.tables.values())
    both = {("demo_1.public.items", 1), ("demo_2.public.items", 2)}
    assert {(row["__source"], row["v"]) for row in stored(spark, tmp_path)} == both
    third = of("demo_2", Shop(lsn=2000).create(items, id=3, v=3))
    narrow = merging(tmp_path, source=r"/demo_2\.public\.items/").deliver([third]).run(spark)
    assert "is the mirror of" in str(narrow.tables["demo_2.public.items"].error)
    assert {(row["__source"], row["v"]) for row in stored(spark, tmp_path)} == both
