"""Mirrors against snapshots of their source: what differs is found, by key, and the settings are kept to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lakemirror.cli.main import main
from lakemirror.driver.runtime import verifier
from lakemirror.driver.runtime.verifier import Patience, SnapshotWanted, Verified, verify
from lakemirror.driver.verify.table import Checked
from tests.support.mirroring import Mirroring
from tests.support.records import Column
from tests.support.shop import Shop, decimal, table, timestamp

pytestmark = pytest.mark.guarantee(
    "A comparison finds the keys that differ and no others; a change that has not arrived yet is not a "
    "difference"
)

ITEMS = table("items", Column("name", "string"), decimal("price", 10, 2), timestamp("at"))
SOFT = table("soft", Column("v", "int32"))
HISTORY = table("history", Column("v", "int32"))
PAIRS = table("pairs", Column("sub", "string"), Column("v", "int32"), key=("id", "sub"))
LOG = table("log", Column("text", "string"))
SETTINGS = {
    "tables": [
        {
            "source": "public.items",
            "columns": {"exclude": ["at"], "rename": {"name": "called"}, "types": {"price": "decimal(12,2)"}},
            "filter": "price < 5",
        },
        {"source": "public.soft", "delete": {"type": "soft", "column": "deleted_at"}},
        {"source": "public.history", "mode": "scd2"},
    ]
}


class Lake:
    """Mirrors of five tables, and snapshots of what their source has."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.snapshots = spark, folder / "snapshots"
        shop = Shop()
        sent = []
        for n in range(8):
            sent += shop.create(ITEMS, id=n, name=f"n{n}", price="AfQ=" if n < 7 else "Ag==", at=n)
            sent += shop.create(SOFT, id=n, v=n)
            sent += shop.create(HISTORY, id=n, v=n)
            sent += shop.create(PAIRS, id=n % 2, sub=f"s'{n}", v=n)
            sent += shop.keyless(LOG, id=n % 3, text="same")
        sent += shop.update(HISTORY, id=1, v=100)
        for of in (SOFT, HISTORY):
            sent += shop.delete(of, id=0, v=0)
        self.mirroring = Mirroring(folder, SETTINGS).deliver([sent])
        self.mirroring.run(spark)

    def write(self, name: str, rows: DataFrame) -> None:
        rows.write.mode("overwrite").parquet(f"{self.snapshots}/demo/{name}")

    def write_all(self) -> None:
        """What the source has."""
        spark = self.spark
        rows = spark.range(8)
        self.write(
            "items",
            rows.select(
                F.col("id").cast("int"),
                F.concat(F.lit("n"), "id").alias("name"),
                F.when(F.col("id") < 7, 5.00).otherwise(0.02).cast("decimal(10,2)").alias("price"),
                F.lit("not compared").alias("at"),
            ),
        )
        some = rows.where("id > 0").select("id", F.col("id").cast("string").alias("v"))
        self.write("soft", some)
        self.write("history", some.withColumn("v", F.when(F.col("id") == 1, 100).otherwise(F.col("v"))))
        self.write("pairs", rows.selectExpr("id % 2 AS id", "concat('s\\'', id) AS sub", "id AS v"))
        self.write("log", rows.selectExpr("id % 3 AS id", "'same' AS text"))

    def verify(self, **options: Any) -> Mapping[str, Checked]:
        wanted = SnapshotWanted(f"{self.snapshots}/{{db}}/{{table}}", "parquet")
        done: Verified = verify(self.mirroring.pipeline, wanted, spark=self.spark, **options)
        return {each.source.rpartition(".")[2]: each for each in done.tables}


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    made = Lake(spark, tmp_path_factory.mktemp("verify"))
    made.write_all()
    return made


def wrong(checked: Checked) -> dict[str, str]:
    return {each.key: each.what for each in checked.settled.wrong}


@pytest.mark.thorough
def test_equal_mirrors_of_all_modes_are_equal(lake: Lake) -> None:
    done = lake.verify()
    assert {name: (each.equal, each.error) for name, each in done.items()} == dict.fromkeys(
        ("items", "soft", "history", "pairs", "log"), (True, None)
    )
    rows = {name: (each.mirror_rows, each.source_rows) for name, each in done.items()}
    assert rows == {"items": (1, 1), "soft": (7, 7), "history": (7, 7), "pairs": (8, 8), "log": (8, 8)}
    assert not done["log"].keyed
    assert done["items"].left_out == {}


@pytest.mark.long
def test_each_difference_is_found_and_nothing_else(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Rows that are missing, extra or other, in tables that are cut into many small ranges."""
    monkeypatch.setattr("lakemirror.driver.verify.table.PARTS", 3)
    monkeypatch.setattr("lakemirror.driver.verify.table.SMALL", 1)
    snapshot = lake.spark.read.parquet
    kept = {name: snapshot(f"{lake.snapshots}/demo/{name}").collect() for name in ("soft", "pairs", "log")}
    schemas = {name: snapshot(f"{lake.snapshots}/demo/{name}").schema for name in kept}
    old = {name: lake.spark.createDataFrame(rows, schemas[name]) for name, rows in kept.items()}
    soft = old["soft"].withColumn("v", F.when(F.col("id") == 3, "33").otherwise(F.col("v")))
    lake.write(
        "soft",
        soft.where("id <> 5").unionByName(soft.where("id = 1").selectExpr("id + 90 AS id", "'x' AS v")),
    )
    lake.write("pairs", old["pairs"].selectExpr("id", "sub", "IF(v = 4, NULL, v) AS v"))
    lake.write("log", old["log"].where("id > 0").unionByName(old["log"].where("id > 0").limit(3)))
    try:
        done = lake.verify(tables=["public.soft", "pairs", "log"])
        assert wrong(done["soft"]) == {'["3"]': "differs", '["5"]': "extra", '["91"]': "missing"}
        assert wrong(done["pairs"]) == {'["0","s\'4"]': "differs"}
        assert not done["log"].equal
        monkeypatch.setattr(verifier, "create_session", lambda *_: lake.spark.newSession())
        monkeypatch.setattr(SparkSession, "stop", lambda self: None)
        told = CliRunner().invoke(
            main,
            [
                *("verify", "-f", str(lake.mirroring.manifest), "--table", "soft", "--table", "log"),
                *("--source", f"parquet:{lake.snapshots}/{{db}}/{{table}}"),
            ],
        )
        lines = told.stdout.splitlines()
        assert told.exit_code == 1
        wrong_keys = "3 keys are wrong: 1 differs, 1 extra, 1 missing"
        assert lines[0].startswith(f"demo.public.soft: {wrong_keys} (7 rows in the mirror, 7 in the source, ")
        assert lines[1:4] == ['  differs ["3"]', '  extra ["5"]', '  missing ["91"]']
        assert lines[4].startswith("demo.public.log: the rows differ (8 rows in the mirror, ")
        assert lines[5:] == [
            "  the table has no key, so that nothing tells which rows differ",
            "2 of 2 tables not equal",
        ]
    finally:
        for name, rows in old.items():
            lake.write(name, rows)


@pytest.mark.long
def test_what_cannot_be_compared_says_why_and_the_others_go_on(lake: Lake, tmp_path: Path) -> None:
    """A missing snapshot; a column that only one side has; a value that the mirror's type cannot hold."""
    lake.write(
        "soft",
        lake.spark.createDataFrame(
            [(n, "9999999999", True) for n in range(1, 8)], "id INT, v STRING, more BOOLEAN"
        ),
    )
    gone = lake.snapshots / "demo" / "history"
    gone.rename(tmp_path / "history")
    try:
        done = lake.verify()
        assert done["history"].error is not None
        assert f"there is no parquet table at {gone}" in done["history"].error
        assert len(done["soft"].settled.wrong) == 7
        assert done["soft"].left_out == {"more": "the mirror has no such column"}
        assert done["pairs"].equal
        with pytest.raises(
            verifier.NothingToVerify, match=r"nothing is no table of this pipeline: its tables"
        ):
            lake.verify(tables=["nothing"])
    finally:
        (tmp_path / "history").rename(gone)
        lake.write_all()


def test_more_differences_than_are_listed(lake: Lake) -> None:
    lake.write("soft", lake.spark.range(100).selectExpr("id", "'0' AS v"))
    try:
        checked = lake.verify(tables=["soft"], most=5, patience=Patience(settled=True))["soft"]
        assert (len(checked.settled.wrong), checked.complete, checked.equal) == (5, False, False)
    finally:
        lake.write_all()
