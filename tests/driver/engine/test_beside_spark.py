"""Spark and the engine take turns on one mirror: each reads and goes on with what the other has written."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lakemirror.driver.engine.stored_rows import look_up
from tests.driver.engine.mirrors import Change, Form, OnDisk, shown
from tests.driver.engine.test_table_change import Limits, limits
from tests.driver.writer.delta_tables import live_rows, plain

pytestmark = pytest.mark.long

FORM = Form(("long", "timestamp"), values=("v", "w", "inner", "items", "named"))
COMPARED = ["k0", "k1", "v", "w", "inner", "items", "__seq"]
YEARS = [datetime(year, 1, 1, 0, 0, 0, 1, UTC) for year in (1, 1600, 2026, 9999)]


def row(number: int) -> dict[str, object]:
    return {"v": number / 2, "w": f"{number}", "inner": {"x": number}, "items": [1.5], "named": {"a": number}}


@pytest.mark.parametrize("kind", ["INT96", "TIMESTAMP_MICROS"])
@pytest.mark.parametrize("little", [0, pytest.param(1 << 20, marks=pytest.mark.thorough)])
def test_spark_and_the_engine_take_turns(spark: SparkSession, tmp_path: Path, kind: str, little: int) -> None:
    table = OnDisk.of(tmp_path / "t", FORM)
    name = f"delta.`{table.path}`"
    setting = "spark.sql.parquet.outputTimestampType"
    former = spark.conf.get(setting)
    made = [
        Change((i, year), 10 * i + j + 1, 10 * i + j, row(i))
        for i in range(5)
        for j, year in enumerate(YEARS)
    ]

    def read_again() -> None:
        """Go on with what Spark has committed."""
        table.snapshot = live_rows(table.path)

    def require_equal() -> None:
        found = spark.read.format("delta").load(str(table.path)).toArrow()
        rows = [{name: each.get(name) for name in COMPARED} for each in table.expected()]
        schema = pa.schema([table.schema.field(name) for name in COMPARED])
        assert plain(found, COMPARED) == plain(pa.Table.from_pylist(rows, schema), COMPARED)
        table.require_equal()

    spark.conf.set(setting, kind)
    try:
        with limits(Limits(little=little)):
            table.apply(made)
            require_equal()
            table.apply([made[0]._replace(place=100, row=row(7)), made[5]._replace(place=101, row=None)])
            require_equal()
            spark.sql(f"DELETE FROM {name} WHERE k0 = 2")
            read_again()
            assert any(each.vector for each in table.snapshot.files.values())
            gone = {key for key, each in table.newest.items() if each.key[0] == 2}
            table.newest = {key: each for key, each in table.newest.items() if key not in gone}
            require_equal()
            table.apply([made[8]._replace(place=200, row=row(9)), made[9]._replace(place=201, row=None)])
            require_equal()
            spark.sql(f"OPTIMIZE {name}")
            read_again()
            assert len(table.snapshot.files) == 1
            table.apply([each._replace(place=300 + each.place, row=row(11)) for each in made[:7]], buckets=3)
            require_equal()
            table.apply([each._replace(place=400 + each.place, row=None) for each in made[7:]])
            require_equal()
    finally:
        spark.conf.set(setting, former or "INT96")


def test_rows_that_spark_has_written(spark: SparkSession, tmp_path: Path) -> None:
    """Row groups, dictionaries and statistics of Spark's, and a column that older files lack."""
    table = OnDisk.of(tmp_path / "t", Form(("string",), values=("w",)))
    name = f"delta.`{table.path}`"
    rows = "cast(id AS string) AS k0, 'x' AS w, encode(lpad(id, 26, '0'), 'UTF-8') AS __seq, 'u' AS __op"
    spark.sql(f"INSERT INTO {name} BY NAME SELECT {rows} FROM range(3000)")
    table.snapshot = live_rows(table.path)
    found = look_up(
        table.files,
        table.mirror,
        {"k0": pa.array(["17", "2999", "3000", "0"])},
        b"\xff",
    )
    assert sorted(found.column("k0").to_pylist()) == ["0", "17", "2999"]
    exact = found.take(pa.array([0, 1, 2])).to_pylist()
    assert shown(exact, ["k0", "w", "__seq"]) == shown(
        [{"k0": each, "w": "x", "__seq": each.rjust(26, "0").encode()} for each in ("0", "17", "2999")],
        ["k0", "w", "__seq"],
    )
    assert [dict(each or ()) for each in found.column("__column_seq").to_pylist()] == [{}, {}, {}]
