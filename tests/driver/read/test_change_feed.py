"""The change feed of a Delta table, mirrored into another table."""

from __future__ import annotations

import json
import shutil
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from delta import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from lakemirror.api import CdcPipeline
from lakemirror.driver.checkpoint.storage import LocalStorage
from lakemirror.driver.faults import InjectedCrash, arm
from lakemirror.driver.java import java_class
from lakemirror.driver.read.base import Standing
from lakemirror.driver.read.change_feed import ChangeFeed, FeedLost, Versions
from lakemirror.driver.read.markers import Markers
from lakemirror.driver.runtime.runner import run
from lakemirror.driver.runtime.summary import RunSummary
from tests.support.mirroring import Mirroring, at
from tests.support.records import Column, Record
from tests.support.shop import Shop, table

FEED = "TBLPROPERTIES (delta.enableChangeDataFeed = true)"
TRACKED = "TBLPROPERTIES (delta.enableRowTracking = true)"
Rows = list[tuple[Any, ...]]


class Chain:
    """A table, and a pipeline that mirrors it."""

    def __init__(self, spark: SparkSession, folder: Path, **settings: Any) -> None:
        self.spark, self.source, self.mirror = spark, f"{folder}/shop/orders", f"{folder}/mirror"
        self.folder, self.settings, self.reset = folder, settings, ""
        self.ordering: dict[str, Any] = {}

    def sql(self, *statements: str) -> Chain:
        """Run statements, in which ``t`` is the table."""
        for statement in statements:
            self.spark.sql(statement.replace(" t ", f" delta.`{self.source}` "))
        return self

    def made(self, columns: str = "id INT, v STRING", properties: str = FEED) -> Chain:
        return self.sql(f"CREATE TABLE t ({columns}) USING delta {properties}")

    def pipeline(self, **feed: Any) -> CdcPipeline:
        spec = {
            "source": {
                "changeFeed": {k: v for k, v in {"path": self.source, **feed}.items() if v is not None}
            },
            "target": {"path": self.mirror},
            "tables": [self.settings.get("table", {"source": "orders", "primaryKey": ["id"]})],
            "checkpoint": f"{self.folder}/{self.settings.get('checkpoint', 'checkpoint')}",
            "trigger": {"availableNow": True},
            "spark": {"resetToken": self.reset},
            "ordering": self.ordering,
        }
        head = {"apiVersion": "lakemirror.io/v1alpha1", "kind": "CdcPipeline", "metadata": {"name": "chain"}}
        return CdcPipeline.from_dict({**head, "spec": spec})

    def run(self, **feed: Any) -> RunSummary:
        return run(self.pipeline(**feed), once=True, spark=self.spark)

    def rows(self, path: str | None = None) -> Rows:
        return sorted(tuple(row) for row in at(self.spark, path or self.mirror).collect())


@pytest.mark.long
@pytest.mark.guarantee(
    "A mirror equals the table whose change feed it follows, including its types, and may have its history; "
    "missing changes are reported"
)
def test_the_table_and_then_its_changes(spark: SparkSession, tmp_path: Path) -> None:
    chain = Chain(spark, tmp_path).made().sql("INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, 'c')")
    first = chain.run()
    assert chain.rows() == [(1, "a"), (2, "b"), (3, "c")]
    assert (first.counts.records, first.counts.applied) == (3, 3)
    chain.sql(
        "UPDATE t SET v = 'B' WHERE id = 2",
        "DELETE FROM t WHERE id = 3",
        "INSERT INTO t VALUES (4, 'd')",
        "UPDATE t SET id = 5 WHERE id = 1",
    )
    second = chain.run()
    assert chain.rows() == [(2, "B"), (4, "d"), (5, "a")] == chain.rows(chain.source)
    assert second.tables["shop.orders"].counts.records == 5
    assert chain.run().counts.records == 0


@pytest.mark.long
def test_a_key_that_one_version_deletes_and_inserts_exists(spark: SparkSession, tmp_path: Path) -> None:
    """Its rows stand in no order in the feed."""
    chain = Chain(spark, tmp_path).made().sql("INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    chain.run()
    fresh = spark.createDataFrame([(1, "new"), (3, "c")], "id INT, v STRING")
    fresh.write.format("delta").mode("overwrite").save(chain.source)
    chain.run()
    assert chain.rows() == [(1, "new"), (3, "c")]


@pytest.mark.long
@pytest.mark.parametrize("start", ["version", "timestamp"])
def test_the_manifest_says_where_to_start(start: str, spark: SparkSession, tmp_path: Path) -> None:
    chain = (
        Chain(spark, tmp_path).made().sql("INSERT INTO t VALUES (1, 'a')", "INSERT INTO t VALUES (2, 'b')")
    )
    history = DeltaTable.forPath(spark, chain.source).history()
    made = (
        history.where("version = 2")
        .selectExpr("date_format(timestamp, \"yyyy-MM-dd'T'HH:mm:ss.SSSXXX\")")
        .first()
    )
    assert made is not None
    feed = {"startingVersion": 2} if start == "version" else {"startingTimestamp": made[0]}
    chain.run(**feed)
    assert chain.rows() == [(2, "b")]


@pytest.mark.guarantee(
    "A mirror equals the table whose change feed it follows, including its types, and may have its history; "
    "missing changes are reported"
)
def test_values_of_all_types(spark: SparkSession, tmp_path: Path) -> None:
    columns = (
        "id INT, y TINYINT, s SMALLINT, l BIGINT, f FLOAT, d DOUBLE, b BOOLEAN, x BINARY, n DECIMAL(38,9), "
        "m DECIMAL(9,2), day DATE, at TIMESTAMP, clock TIMESTAMP_NTZ, "
        "list ARRAY<DECIMAL(5,1)>, map MAP<STRING, INT>, o STRUCT<a: INT, `odd ``name`: STRING>"
    )
    properties = "TBLPROPERTIES (delta.enableChangeDataFeed = true, delta.columnMapping.mode = 'name')"
    chain = (
        Chain(spark, tmp_path)
        .made(columns, properties)
        .sql(
            "INSERT INTO t VALUES (1, -128, 32767, 9007199254740993, 1.5, 'NaN', true, X'00FF', "
            "-12345678901234567890123456789.123456789, 0.10, DATE'1969-12-31', "
            "TIMESTAMP'2020-01-01 00:00:00.000001Z', "
            "TIMESTAMP_NTZ'1960-05-06 07:08:09.123456', array(1.5, null), "
            "map('k', 7), named_struct('a', 1, 'odd `name', 'ö'))",
            "INSERT INTO t (id) VALUES (2)",
        )
    )
    assert chain.run().counts.quarantined == 0
    mirrored, stored = (
        {row["id"]: row.asDict(True) for row in at(spark, path).collect()}
        for path in (chain.mirror, chain.source)
    )
    assert str(mirrored[1].pop("d")) == str(stored[1].pop("d")) == "nan"
    simple = [name for name in stored[1] if name not in ("list", "map", "o")]
    for number in (1, 2):
        assert {name: mirrored[number][name] for name in simple if name != "d"} == {
            name: stored[number][name] for name in simple if name != "d"
        }
    assert mirrored[1]["n"] == Decimal("-12345678901234567890123456789.123456789")


@pytest.mark.long
def test_new_columns_follow(spark: SparkSession, tmp_path: Path) -> None:
    chain = Chain(spark, tmp_path).made().sql("INSERT INTO t VALUES (1, 'a')")
    chain.run()
    chain.sql("ALTER TABLE t ADD COLUMNS (w INT)", "INSERT INTO t VALUES (2, 'b', 7)")
    chain.run()
    assert chain.rows() == [(1, "a", None), (2, "b", 7)]


@pytest.mark.thorough
def test_columns_that_are_widened_follow(spark: SparkSession, tmp_path: Path) -> None:
    """Also where nobody read meanwhile, and from the first version on."""
    wide = f"{FEED[:-1]}, delta.enableTypeWidening = true)"
    chain = Chain(spark, tmp_path).made("id INT, v INT", wide).sql("INSERT INTO t VALUES (1, 1), (2, 2)")
    chain.sql("ALTER TABLE t ALTER COLUMN v TYPE BIGINT", "UPDATE t SET v = v + 5000000000 WHERE id = 1")
    assert chain.run(startingVersion=0).batches == 2
    chain.sql("DELETE FROM t WHERE id = 2")
    chain.run(startingVersion=0)
    assert chain.rows() == [(1, 5_000_000_001)]


@pytest.mark.thorough
def test_columns_of_other_types_and_names_follow(spark: SparkSession, tmp_path: Path) -> None:
    """Also where nobody read meanwhile: each version is read with the columns that it had."""
    more = "delta.columnMapping.mode = 'name', delta.enableTypeWidening = true)"
    chain = Chain(spark, tmp_path).made("id INT, v INT, x STRING", f"{FEED[:-1]}, {more}")
    chain.sql("INSERT INTO t VALUES (1, 1, 'a'), (2, 2, 'b')").run()
    chain.sql(
        "UPDATE t SET v = 3 WHERE id = 1",
        "ALTER TABLE t ALTER COLUMN v TYPE BIGINT",
        "INSERT INTO t VALUES (3, 5000000000, 'c')",
        "ALTER TABLE t RENAME COLUMN x TO y",
        "INSERT INTO t VALUES (4, 4, 'd')",
        "ALTER TABLE t DROP COLUMN v",
        "UPDATE t SET y = 'B' WHERE id = 2",
    )
    assert chain.run().batches == 4
    chain.sql("INSERT INTO t VALUES (5, 'e')", "INSERT INTO t VALUES (6, 'f')")
    assert chain.run().batches == 1
    mirror = at(spark, chain.mirror)
    assert dict(mirror.dtypes) == {"id": "int", "v": "bigint", "x": "string", "y": "string"}
    assert sorted(tuple(row) for row in mirror.select("id", "v", "x", "y").collect()) == [
        (1, 3, "a", None),
        (2, None, None, "B"),
        (3, 5_000_000_000, "c", None),
        (4, 4, None, "d"),
        (5, None, None, "e"),
        (6, None, None, "f"),
    ]


@pytest.mark.long
def test_a_table_without_a_feed_is_told(spark: SparkSession, tmp_path: Path) -> None:
    chain = Chain(spark, tmp_path).made(properties="").sql("INSERT INTO t VALUES (1, 'a')")
    chain.run()  # the table itself needs none
    assert chain.rows() == [(1, "a")]
    chain.sql("INSERT INTO t VALUES (2, 'b')")
    with pytest.raises(
        FeedLost, match=r"orders has no change feed for all of the versions 2 to 2: ALTER TABLE"
    ):
        chain.run()


def test_a_table_that_was_made_again_is_told(spark: SparkSession, tmp_path: Path) -> None:
    chain = Chain(spark, tmp_path).made().sql("INSERT INTO t VALUES (1, 'a')")
    chain.run()
    shutil.rmtree(chain.source)
    chain.made().sql("INSERT INTO t VALUES (1, 'a')", "INSERT INTO t VALUES (2, 'b')")
    with pytest.raises(FeedLost, match="was deleted and made again since version 1 was read"):
        chain.run()


@pytest.mark.thorough
@pytest.mark.guarantee("A change feed whose source went back stops the pipeline")
def test_a_table_that_goes_back_is_told(spark: SparkSession, tmp_path: Path) -> None:
    """Its folder is restored from a copy: versions that were read have other numbers of changes now."""
    copy, forget = tmp_path / "copy", delta_log(spark).clearCache
    chain = Chain(spark, tmp_path).made().sql("INSERT INTO t VALUES (1, 'a')")
    shutil.copytree(chain.source, copy)
    chain.sql("INSERT INTO t VALUES (2, 'b')")
    chain.run()
    chain.run()
    shutil.rmtree(chain.source)
    shutil.copytree(copy, chain.source)
    forget()
    with pytest.raises(FeedLost, match=r"has version 1 now, and version 2 was read.*Give spec.spark"):
        chain.run()
    chain.sql("INSERT INTO t VALUES (3, 'c')")
    with pytest.raises(FeedLost, match=r"has another version 2 than the one that was read.*add an epoch"):
        chain.run()
    chain.sql("INSERT INTO t VALUES (4, 'd')")
    with pytest.raises(FeedLost, match="has another version 2"):
        chain.run()
    chain.reset, chain.ordering = "1", {"epochs": [{"epoch": 1, "from": {"shop.orders": {"0": 0}}}]}
    chain.run()
    assert {(1, "a"), (3, "c"), (4, "d")} <= set(chain.rows())


@pytest.mark.thorough
@pytest.mark.guarantee("A batch that all tables have needs its input no more")
def test_what_all_tables_have_is_done_though_its_changes_are_gone(
    spark: SparkSession, tmp_path: Path
) -> None:
    chain = Chain(spark, tmp_path).made().sql("INSERT INTO t VALUES (1, 'a')")
    chain.run()
    chain.sql("UPDATE t SET v = 'b' WHERE id = 1")
    arm("before-checkpoint-commit")
    with pytest.raises(InjectedCrash):
        chain.run()
    vacuum(chain)
    delta_log(spark).clearCache()
    assert chain.run().counts.records == 0
    assert chain.rows() == [(1, "b")]


def delta_log(spark: SparkSession) -> Any:
    return java_class(spark, "org.apache.spark.sql.delta.DeltaLog")


def test_a_crash_while_old_batches_are_forgotten_begins_none_of_them_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = LocalStorage(tmp_path)
    feed: Any = ChangeFeed.__new__(ChangeFeed)
    feed._storage, feed.query_id, feed._records = storage, "query", lambda versions: None
    feed._standing, feed._markers = Standing(), Markers(storage, "changes/offsets", "changes/commits")
    for number in (0, 1):
        feed._record(number, Versions("id", number, number))
    storage.write_text("changes/commits/0.json", "{}\n")
    delete = storage.delete

    def dying(name: str) -> None:
        delete(name)
        raise InjectedCrash(name)

    monkeypatch.setattr(storage, "delete", dying)
    with pytest.raises(InjectedCrash):
        feed._apply(lambda frame, batch: None, 1, Versions("id", 1, 1))
    assert feed._pending() == []


@pytest.mark.thorough
def test_a_reset_reads_the_whole_table_again(spark: SparkSession, tmp_path: Path) -> None:
    """As the error of a table that was made again, or whose changes are gone, tells its reader to do."""
    chain = Chain(spark, tmp_path).made().sql("INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    chain.run()
    spark.sql(f"DELETE FROM delta.`{chain.mirror}` WHERE id = 2")  # by nobody that Lakemirror knows of
    assert chain.run().counts.records == 0
    chain.reset = "again"
    assert chain.run().counts.records == 2
    assert [row[:2] for row in chain.rows()] == [(1, "a"), (2, "b")]
    assert chain.run().counts.records == 0


@pytest.mark.thorough
def test_a_table_that_was_made_again_is_read_after_a_reset(spark: SparkSession, tmp_path: Path) -> None:
    """Its versions are those of the former table. An epoch places them after those."""
    chain = Chain(spark, tmp_path).made()
    chain.sql("INSERT INTO t VALUES (1, 'a')", "INSERT INTO t VALUES (2, 'b')")
    chain.run()
    shutil.rmtree(chain.source)
    chain.made().sql("INSERT INTO t VALUES (1, 'z'), (3, 'c')")
    said = r'in the same edit add .*: \{epoch: 1, from: \{shop\.orders: \{"0": 0\}\}\}\. Otherwise rows'
    with pytest.raises(FeedLost, match=said):
        chain.run()
    chain.reset = "again"
    chain.ordering = {"epochs": [{"epoch": 1, "from": {"shop.orders": {"0": 0}}}]}
    chain.run()
    assert chain.rows() == [(1, "z"), (2, "b"), (3, "c")]  # 2 is for `lakemirror reload` to remove
    chain.sql("UPDATE t SET v = 'y' WHERE id = 1")
    chain.run()
    assert chain.rows() == [(1, "y"), (2, "b"), (3, "c")]


@pytest.mark.thorough
def test_a_resync_whose_first_versions_are_gone_does_not_stop_the_pipeline(
    spark: SparkSession, tmp_path: Path
) -> None:
    chain = Chain(spark, tmp_path).made().sql("INSERT INTO t VALUES (1, 'a')")
    chain.run(startingVersion=0)
    chain.sql("UPDATE t SET v = 'b' WHERE id = 1").run(startingVersion=0)
    vacuum(chain)
    chain.settings["table"] = {"source": "orders", "primaryKey": ["id"], "resyncToken": "again"}
    for value in ("c", "d"):
        summary = chain.sql(f"UPDATE t SET v = '{value}' WHERE id = 1").run(startingVersion=0)
        [warning] = summary.warnings
        assert warning.startswith("orders could not be read again, which is tried at the driver's next start")
        assert "Take startingVersion out of spec.source.changeFeed and give spec.spark.resetToken" in warning
        assert chain.rows() == [(1, value)]
    assert json.loads((tmp_path / "checkpoint/tokens.json").read_text())["resync"] == {}
    chain.run()  # without a start, the whole table is read
    assert json.loads((tmp_path / "checkpoint/tokens.json").read_text())["resync"] == {"orders": "again"}


@pytest.mark.thorough
def test_each_resync_reads_again_whatever_the_name_of_the_checkpoint(
    spark: SparkSession, tmp_path: Path
) -> None:
    chain = Chain(spark, tmp_path, checkpoint="cp#1").made().sql("INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    chain.run()
    for token in ("once", "twice"):
        spark.sql(f"DELETE FROM delta.`{chain.mirror}` WHERE id = 2")  # by nobody that Lakemirror knows of
        chain.settings["table"] = {"source": "orders", "primaryKey": ["id"], "resyncToken": token}
        chain.run()
        assert chain.rows() == [(1, "a"), (2, "b")]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("cp")] == ["cp#1"]


def vacuum(chain: Chain) -> None:
    check = "spark.databricks.delta.retentionDurationCheck.enabled"
    chain.spark.conf.set(check, "false")
    try:
        chain.sql("VACUUM t RETAIN 0 HOURS")
    finally:
        chain.spark.conf.unset(check)


@pytest.mark.thorough
@pytest.mark.guarantee(
    "A mirror equals the table whose change feed it follows, including its types, and may have its history; "
    "missing changes are reported"
)
@pytest.mark.parametrize(
    "properties",
    [
        pytest.param(FEED, id="feed", marks=pytest.mark.thorough),
        pytest.param(TRACKED, id="computed", marks=pytest.mark.long),
    ],
)
def test_changes_that_vacuum_removed_are_told(properties: str, spark: SparkSession, tmp_path: Path) -> None:
    chain = Chain(spark, tmp_path / "a lake").made(properties=properties).sql("INSERT INTO t VALUES (1, 'a')")
    chain.run()
    chain.sql("UPDATE t SET v = 'b' WHERE id = 1")
    vacuum(chain)
    with pytest.raises(FeedLost, match=r"changes of the versions 2 to \d were gone .* by VACUUM. Give"):
        chain.run()
    for start in ({"startingVersion": 0}, {"startingTimestamp": "2026-03-01T00:00:00Z"}):
        [name] = start  # a reset alone would read from there again
        with pytest.raises(FeedLost, match=rf"Take {name} out of spec.source.changeFeed and give spec.spark"):
            chain.run(**start)


def test_a_table_that_goes_while_it_is_read_is_told(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = Chain(spark, tmp_path).made().sql("INSERT INTO t VALUES (1, 'a')")
    records = ChangeFeed._records

    def vanishing(feed: ChangeFeed, versions: Versions) -> DataFrame:
        found = records(feed, versions)
        shutil.rmtree(chain.source)
        return found

    monkeypatch.setattr(ChangeFeed, "_records", vanishing)
    with pytest.raises(FeedLost, match="changes of the version 1 were gone before"):
        chain.run()


def test_a_version_that_is_not_there(spark: SparkSession, tmp_path: Path) -> None:
    chain = Chain(spark, tmp_path).made().sql("INSERT INTO t VALUES (1, 'a')")
    with pytest.raises(FeedLost, match=r"startingVersion: .*orders has no version 3, the newest is 1"):
        chain.run(startingVersion=3)
    assert chain.run(startingVersion=2).batches == 0
    chain.sql("INSERT INTO t VALUES (2, 'b')").run(startingVersion=2)
    assert chain.rows() == [(2, "b")]


@pytest.mark.thorough
def test_a_key_with_an_odd_name(spark: SparkSession, tmp_path: Path) -> None:
    key = "the key.id"
    chain = Chain(spark, tmp_path, table={"source": "orders", "primaryKey": [key]})
    quoted = f"`{key}`"
    mapped = "TBLPROPERTIES (delta.enableChangeDataFeed = true, delta.columnMapping.mode = 'name')"
    chain.made(f"{quoted} INT, v STRING", mapped).sql("INSERT INTO t VALUES (1, 'a'), (2, 'b')").run()
    chain.sql(f"UPDATE t SET {quoted} = 3 WHERE {quoted} = 1", f"UPDATE t SET v = 'B' WHERE {quoted} = 2")
    chain.run()
    assert chain.rows() == [(2, "B"), (3, "a")]


@pytest.mark.thorough
def test_a_table_of_the_catalog(spark: SparkSession, tmp_path: Path) -> None:
    spark.sql("CREATE SCHEMA IF NOT EXISTS fed")
    try:
        spark.sql(f"CREATE TABLE fed.orders (id INT, v STRING) USING delta {FEED}")
        spark.sql("INSERT INTO fed.orders VALUES (1, 'a')")
        chain = Chain(spark, tmp_path)
        chain.run(path=None, table="fed.orders")
        spark.sql("UPDATE fed.orders SET v = 'b' WHERE id = 1")
        assert chain.run(path=None, table="fed.orders").counts.applied == 1
        assert chain.rows() == [(1, "b")]
    finally:
        spark.sql("DROP SCHEMA fed CASCADE")


@pytest.mark.thorough
def test_equal_rows_of_a_table_without_key_are_all_appended(spark: SparkSession, tmp_path: Path) -> None:
    settings = {"source": "orders", "mode": "append"}
    chain = (
        Chain(spark, tmp_path, table=settings).made().sql("INSERT INTO t VALUES (1, 'a'), (1, 'a'), (1, 'a')")
    )
    assert chain.run().counts.applied == 3
    assert chain.rows() == [(1, "a")] * 3


def test_a_key_column_that_is_not_there(spark: SparkSession, tmp_path: Path) -> None:
    chain = (
        Chain(spark, tmp_path, table={"source": "orders", "primaryKey": ["nr"]})
        .made()
        .sql("INSERT INTO t VALUES (1, 'a')")
    )
    with pytest.raises(Exception, match=r"primaryKey: .*orders has no column nr; its columns are id, v"):
        chain.run()


@pytest.mark.guarantee(
    "A mirror equals the table whose change feed it follows, including its types, and may have its history; "
    "missing changes are reported"
)
@pytest.mark.thorough
def test_a_mirror_is_mirrored_with_its_history(spark: SparkSession, tmp_path: Path) -> None:
    """Its key is known, and its metadata columns stay where they are. Its feed may be switched on later."""
    items, shop, first = table("items", Column("v", "string")), Shop(), tmp_path / "first"
    begun = [*shop.create(items, id=1, v="a"), *shop.create(items, id=2, v="b")]
    Mirroring(first).deliver([begun, shop.update(items, id=2, v="B")]).run(spark)
    target = {"path": f"{first}/lake/{{db}}/{{schema}}/{{table}}", "changeFeed": True}
    feeding = Mirroring(first, {"target": target})
    chain = Chain(spark, tmp_path / "second", table={"source": "items", "mode": "scd2"})
    chain.source = feeding.path("demo", "public", "items")
    chain.run()
    feeding.deliver(
        [
            [*shop.update(items, id=1, v="A"), *shop.delete(items, id=2, v="B")],
            [*shop.create(items, id=2, v="again"), *shop.update(items, id=1, v="AA"), *begun[:1]],
            shop.send(items, *items.move(shop.next(), {"id": 1, "v": "AA"}, {"id": 3, "v": "AA"})),
        ]
    ).run(spark)
    summary = chain.run()
    versions = spark.read.format("delta").load(chain.mirror).orderBy("id", "__seq")
    found = versions.select("id", "v", "__op", "__is_current", "__is_deleted").collect()
    assert [tuple(row) for row in found] == [
        (1, "a", "r", False, False),
        (1, "A", "u", False, False),
        (1, "AA", "u", False, True),
        (2, "B", "r", False, False),
        (2, "again", "c", True, False),
        (3, "AA", "c", True, False),
    ]
    assert summary.counts.records == summary.counts.applied == 6
    current = at(spark, chain.mirror).where("__is_current").collect()
    assert sorted(map(tuple, current)) == chain.rows(chain.source)
    times = versions.where("__valid_to IS NOT NULL").selectExpr("__valid_from < __valid_to").distinct()
    assert [tuple(row) for row in times.collect()] == [(True,)]


def feeding(folder: Path, **more: Any) -> Mirroring:
    """A pipeline whose mirrors keep feeds."""
    target = {"path": f"{folder}/lake/{{db}}/{{schema}}/{{table}}", "changeFeed": True}
    return Mirroring(folder, {"target": target, **more})


@pytest.mark.thorough
@pytest.mark.parametrize(
    "net", [pytest.param(False, marks=pytest.mark.thorough), pytest.param(True, marks=pytest.mark.long)]
)
def test_a_mirror_of_versions_is_read_as_its_current_rows(
    spark: SparkSession, tmp_path: Path, net: bool
) -> None:
    items, shop = table("items", Column("v", "int32")), Shop()
    mirroring = feeding(tmp_path / "first", defaults={"mode": "scd2"})
    late = [r for id in range(4) for r in shop.create(items, id=id, v=1)]
    begun = [r for id in range(4) for r in shop.update(items, id=id, v=2)]
    mirroring.deliver([begun]).run(spark)
    chain = Chain(spark, tmp_path / "second", table={"source": "items"})
    chain.source = mirroring.path("demo", "public", "items")
    chain.run(netChanges=net)
    assert chain.rows() == [(id, 2) for id in range(4)]
    batches = [
        [*shop.update(items, id=0, v=3), *shop.delete(items, id=1, v=2), *shop.create(items, id=4, v=4)],
        [*late, *shop.create(items, id=1, v=5), *shop.delete(items, id=2, v=2)],
        [*shop.update(items, id=0, v=6), *shop.update(items, id=0, v=7)],
        [*shop.create(items, id=9, v=9), *shop.delete(items, id=9, v=9)],
    ]
    mirroring.deliver(batches).run(spark)
    summary = chain.run(netChanges=net)
    assert summary.counts.unaccounted == 0
    assert chain.rows() == [(0, 7), (1, 5), (3, 2), (4, 4)]
    ops = spark.read.format("delta").load(chain.mirror).select("id", "__op").collect()
    assert sorted(map(tuple, ops)) == [(0, "u"), (1, "u" if net else "c"), (3, "r"), (4, "c")]


@pytest.mark.thorough
def test_a_mirror_of_shards_is_read_with_the_names_of_its_shards(spark: SparkSession, tmp_path: Path) -> None:
    """They are part of its key."""
    items, shop, first = table("items", Column("v", "int32")), Shop(), tmp_path / "first"
    target = {"path": f"{first}/lake/items", "changeFeed": True}
    entry = {"source": r"/demo_\d(\.public)?\.items/", "target": target, "mergeShards": True}
    mirroring = Mirroring(first, {"tables": [entry], "unlisted": "ignore"})

    def of(shard: str, records: list[Record]) -> list[Record]:
        return [
            {
                **r,
                "topic": f"{shard}.{r['topic']}",
                "value": r["value"].replace('"db":"demo"', f'"db":"{shard}"'),
            }
            for r in records
            if r["value"]
        ]

    mirroring.deliver(
        [[*of("demo_1", shop.create(items, id=1, v=1)), *of("demo_2", shop.create(items, id=1, v=2))]]
    )
    mirroring.run(spark)
    chain = Chain(spark, tmp_path / "second", table={"source": "items"})
    chain.source = f"{first}/lake/items"
    chain.run()
    mirroring.deliver([of("demo_1", shop.update(items, id=1, v=3))]).run(spark)
    chain.run()
    found = spark.read.format("delta").load(chain.mirror).select("__source", "id", "v").collect()
    assert sorted(map(tuple, found)) == [("demo_1.public.items", 1, 3), ("demo_2.public.items", 1, 2)]


@pytest.mark.thorough
def test_net_changes(spark: SparkSession, tmp_path: Path) -> None:
    """What the versions of a batch come to: one change a key, or none."""
    settings = {"source": "orders", "mode": "append", "primaryKey": ["id"]}
    chain = Chain(spark, tmp_path, table=settings).made("id INT, v STRING, m MAP<STRING, INT>")
    chain.sql("INSERT INTO t (id, v) VALUES (1, 'a'), (2, 'b'), (3, 'c'), (4, 'd')")
    chain.run(netChanges=True)
    chain.sql(
        "UPDATE t SET v = 'x' WHERE id <= 2",
        "UPDATE t SET v = CASE id WHEN 1 THEN 'y' ELSE 'b' END WHERE id <= 2",
        "DELETE FROM t WHERE id = 3",
        "INSERT INTO t VALUES (5, 'e', null), (6, 'f', null), (3, 'back', null)",
        "UPDATE t SET v = 'E' WHERE id = 5",
        "DELETE FROM t WHERE id = 6",
        "UPDATE t SET id = 7, m = map('k', null) WHERE id = 4",
    )
    summary = chain.run(netChanges=True)
    assert (summary.counts.records, summary.counts.applied) == (5, 5)
    events = spark.read.format("delta").load(chain.mirror).where("__op <> 'r'")
    assert sorted(map(tuple, events.select("id", "__op", "v").collect())) == [
        (1, "u", "y"),
        (3, "u", "back"),
        (4, "d", "d"),
        (5, "c", "E"),
        (7, "c", "d"),
    ]
    assert chain.sql("DELETE FROM t WHERE id = 7").run(netChanges=True).counts.records == 1


@pytest.mark.thorough
@pytest.mark.parametrize(
    "net", [pytest.param(False, marks=pytest.mark.long), pytest.param(True, marks=pytest.mark.thorough)]
)
def test_changes_of_a_table_that_keeps_no_feed_are_computed(
    net: bool, spark: SparkSession, tmp_path: Path
) -> None:
    """Spark's ``CHANGES``, of rows whose identities the table tracks."""
    settings = {"source": "orders", "primaryKey": ["id"], "mode": "scd2"}
    chain = Chain(spark, tmp_path, table=settings).made(properties=TRACKED)
    chain.sql("INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, 'c')")
    chain.run(netChanges=net)
    chain.sql(
        "UPDATE t SET v = 'A' WHERE id = 1",
        "UPDATE t SET v = 'AA' WHERE id = 1",
        "DELETE FROM t WHERE id = 2",
        "UPDATE t SET id = 9 WHERE id = 3",
        "OPTIMIZE t ",
    )
    summary = chain.run(netChanges=net)
    assert summary.counts.records == (4 if net else 5)
    versions = spark.read.format("delta").load(chain.mirror).orderBy("id", "__seq")
    found = [tuple(row) for row in versions.select("id", "v", "__is_current").collect()]
    between = [] if net else [(1, "A", False)]
    assert found == [
        (1, "a", False),
        *between,
        (1, "AA", True),
        (2, "b", False),
        (3, "c", False),
        (9, "c", True),
    ]
    assert chain.run(netChanges=net).batches == 0


@pytest.mark.thorough
def test_changes_that_cannot_be_computed_are_told(spark: SparkSession, tmp_path: Path) -> None:
    """From versions on of which the identities of rows are not known."""
    chain = Chain(spark, tmp_path).made(properties="").sql("INSERT INTO t VALUES (1, 'a')")
    chain.run()
    chain.sql("INSERT INTO t VALUES (2, 'b')", f"ALTER TABLE t SET {TRACKED}")
    with pytest.raises(FeedLost, match=r"keeps no change feed, .* \(DELTA_CHANGELOG_\w+\): ALTER"):
        chain.run()


def test_net_changes_need_a_key(spark: SparkSession, tmp_path: Path) -> None:
    chain = Chain(spark, tmp_path, table={"source": "orders", "mode": "append"}).made()
    chain.sql("INSERT INTO t VALUES (1, 'a')")
    with pytest.raises(Exception, match=r"netChanges: nothing says what the key .*\[shop.orders\]"):
        chain.run(netChanges=True, startingVersion=0)


@pytest.mark.thorough
@pytest.mark.guarantee(
    "A copy of an event list has its events; an overwrite with other types is reported with the remedy"
)
def test_a_list_of_events_is_read_as_these_events(spark: SparkSession, tmp_path: Path) -> None:
    """Each with its op, in the order of the source, however many are in one version. Truncates, too.

    A copy is a list again. With a key, it has the rows that the events lead to.
    """
    items, shop = table("items", Column("v", "int32")), Shop()
    mirroring = feeding(tmp_path / "first", defaults={"mode": "append"})
    mirroring.deliver([[*shop.create(items, id=1, v=1), *shop.create(items, id=2, v=1)]]).run(spark)
    copy = Chain(spark, tmp_path / "second", table={"source": "items"})
    rows = Chain(spark, tmp_path / "third", table={"source": "items", "primaryKey": ["id"]})
    copy.source = rows.source = mirroring.path("demo", "public", "items")
    copy.run()
    rows.run()
    assert rows.rows() == [(1, 1), (2, 1)]
    updates = [record for v in (2, 3, 4) for record in shop.update(items, id=1, v=v)]
    gone = [*shop.delete(items, id=1, v=4), *shop.delete(items, id=2, v=1)]
    last = [*shop.truncate(items), *shop.create(items, id=1, v=5), *shop.update(items, id=1, v=6)]
    mirroring.deliver([[*updates, *gone, *last]]).run(spark)
    spark.sql(f"DELETE FROM delta.`{copy.source}` WHERE v = 3")  # it did happen nevertheless
    copy.settings["table"] = {"source": "items", "resyncToken": "again"}  # nothing comes twice
    for summary in (copy.run(), rows.run()):
        assert summary.counts.unaccounted == summary.counts.quarantined == 0
    assert rows.rows() == [(1, 6)]
    events = spark.read.format("delta").load(copy.mirror).orderBy("__seq").select("id", "v", "__op")
    found = [(row["id"], row["v"] if row["__op"] != "d" else None, row["__op"]) for row in events.collect()]
    first = [(1, 1, "c"), (1, 2, "u"), (1, 3, "u"), (1, 4, "u"), (1, None, "d"), (1, 5, "c"), (1, 6, "u")]
    assert [each for each in found if each[0] == 1] == first
    assert [each for each in found if each[0] == 2] == [(2, 1, "c"), (2, None, "d")]
    assert found[-3:] == [(None, None, "t"), *first[-2:]]
    copy.sql("INSERT INTO t SELECT * FROM t WHERE v = 4")
    with pytest.raises(Exception, match=r"netChanges: .*items is a list of events .* leave netChanges out"):
        copy.run(netChanges=True)


@pytest.mark.thorough
@pytest.mark.guarantee(
    "A copy of an event list has its events; an overwrite with other types is reported with the remedy"
)
def test_an_overwrite_with_other_types_is_told(spark: SparkSession, tmp_path: Path) -> None:
    chain = Chain(spark, tmp_path).made().sql("INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    chain.run()
    fresh = spark.createDataFrame([(1, 5)], "id INT, v INT").write.format("delta").mode("overwrite")
    fresh.option("overwriteSchema", "true").save(chain.source)
    said = r"overwritten with columns of other types after version 1: v was string and is int\. .*resetToken"
    for _ in range(2):
        with pytest.raises(FeedLost, match=said):
            chain.run()
    chain.reset, chain.mirror = "again", f"{tmp_path}/another"
    chain.run()
    assert chain.rows() == [(1, 5)]
