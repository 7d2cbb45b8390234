"""The examples that read files run as they are, and end in the rows that are meant."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakemirror.api import CdcPipeline
from lakemirror.api.supported import not_supported
from lakemirror.driver.runtime.runner import run
from lakemirror.driver.runtime.summary import RunSummary
from tests.support.mirroring import at

ROOT = Path(__file__).parents[2]

ENDS: Mapping[str, Mapping[str, Sequence[tuple[Any, ...]]]] = {
    "maxwell": {
        "shop/customers": [(2, "Ben Okoro", "75.25"), (30, "Chloé Ruiz", "15.00")],
        "shop/orders": [(7001, 30, "2026-09-21 14:03:11", "44.90", "voucher")],
    },
    "debezium-flat": {
        "public/customers": [(2, "Ben Okoro", "ben.okoro@example.org"), (3, "Chloé Ruiz", "None")],
        "public/products": [("A-100", "Lamp", 11), ("B-7", "Rope, 20 m", 25)],
    },
    "order-by-columns": {"catalog/items": [("A-100", "Lamp", 14), ("B-7", "Rope, 20 m", 25)]},
    "shards": {
        "orders": [
            (2, "Hook", 1, "None"),
            (1, "Rope", 9, "True"),
        ]
    },
    "routing": {
        "eu/orders": [(1, "Lamp", 3)],
        "us/orders": [(2, "Hook", 1)],
        "other/stock": [(1, 40)],
    },
    "custom": {
        "shop/accounts": [
            (1, "Ines Alvarez", "1234567890123456.7801", "Row(city='Porto', street='Rua das Flores 7')"),
            (4, "Kofi Mensah", "0.5000", "Row(city='Accra', street=None)"),
        ]
    },
    "dms": {"hr/employees": [(102, "Joon Park", 3), (103, "Kofi Mensah-Boateng", 3)]},
    "dms-csv": {
        "hr/employees": [
            (101, "Smith", 5, '12 "Old" Street'),
            (103, "Mensah-Boateng", 3, ""),
            (104, "Adams", 2, None),
        ]
    },
    "parquet": {
        "shop/products": [
            (1, "Lamp", "18.5000000000", "2026-01-02"),
            (2, "Rope", "1.00E-10", None),
            (4, "Sail", "1234567890123456789012345678.0123456789", "2026-09-21"),
        ]
    },
}
TRUTH = ROOT / "tests/fixtures/debezium/inventory/truth"
COLUMNS = {
    ("maxwell", "shop/customers"): ("id", "name", "credit"),
    ("maxwell", "shop/orders"): ("number", "customer_id", "ordered", "total", "note"),
    ("debezium-flat", "public/customers"): ("id", "name", "email"),
    ("debezium-flat", "public/products"): ("sku", "title", "stock"),
    ("order-by-columns", "catalog/items"): ("sku", "title", "stock"),
    ("shards", "orders"): ("id", "item", "quantity", "gift"),
    ("routing", "eu/orders"): ("id", "item", "quantity"),
    ("routing", "us/orders"): ("id", "item", "quantity"),
    ("routing", "other/stock"): ("id", "left"),
    ("custom", "shop/accounts"): ("id", "owner", "balance", "address"),
    ("dms", "hr/employees"): ("EMP_ID", "NAME", "GRADE"),
    ("dms-csv", "hr/employees"): ("EMP_ID", "LAST_NAME", "GRADE", "ADDRESS"),
    ("parquet", "shop/products"): ("ID", "NAME", "PRICE", "SINCE"),
}
AGAIN = {"maxwell", "custom", "debezium-flat", "order-by-columns"}
"""Examples of envelopes and orders that other tests have, too."""


@pytest.mark.long
@pytest.mark.parametrize(
    "example",
    [pytest.param(each, marks=pytest.mark.thorough if each in AGAIN else ()) for each in ENDS],
)
def test_an_example_ends_in_the_rows_that_are_meant(
    example: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = _run(f"{example}/pipeline.yaml", spark, tmp_path, monkeypatch)
    assert sum(table.counts.quarantined for table in summary.tables.values()) == 0
    assert len({each.target for each in summary.tables.values()}) == len(ENDS[example])
    for table, wanted in ENDS[example].items():
        mirror = at(spark, str(tmp_path / ".build" / example / table))
        assert not {"Op", "__lsn", "__deleted"} & set(mirror.columns)
        found = mirror.select(*COLUMNS[example, table]).collect()
        assert sorted(tuple(map(str, row)) for row in found) == sorted(tuple(map(str, row)) for row in wanted)


@pytest.mark.long
def test_the_small_shop(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    summary = _run("inventory/pipeline.yaml", spark, tmp_path, monkeypatch)
    assert summary.counts.quarantined == 0
    assert [table.error for table in summary.tables.values() if table.error] == []
    for table in ("customers", "products", "orders", "addresses"):
        mirror = spark.read.format("delta").load(f"{tmp_path}/.build/inventory/public/{table}")
        assert mirror.count() == len(truth(table))


@pytest.mark.thorough
def test_a_chain_of_two_mirrors(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The history of a mirror's rows, of the mirror's own change feed."""
    assert _run("change-feed/mirror.yaml", spark, tmp_path, monkeypatch).batches == 3
    _run("change-feed/pipeline.yaml", spark, tmp_path, monkeypatch)
    history = spark.read.format("delta").load(f"{tmp_path}/.build/change-feed/customers_history")
    versions = history.orderBy("id", "__seq").select("id", "city", "__is_current", "__is_deleted")
    assert [tuple(row) for row in versions.collect()] == [
        (1, "Leeds", False, False),
        (1, "York", True, False),
        (2, "Lagos", False, False),
        (2, "Abuja", True, False),
        (3, "Lyon", False, True),
        (4, "Varna", True, False),
    ]


def _run(manifest: str, spark: SparkSession, folder: Path, monkeypatch: pytest.MonkeyPatch) -> RunSummary:
    """Run a manifest as it is."""
    pipeline = CdcPipeline.from_yaml((ROOT / "examples" / manifest).read_text("utf-8"))
    assert not_supported(pipeline.spec) == []
    if not (folder / "examples").exists():
        (folder / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(folder)
    return run(pipeline, once=True, spark=spark)


def truth(table: str) -> list[dict[str, object]]:
    lines = (TRUTH / f"public.{table}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def test_settings_of_single_tables(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = _run("settings/pipeline.yaml", spark, tmp_path, monkeypatch)
    lake = f"{tmp_path}/.build/settings/public"
    assert summary.counts.unaccounted == 0
    assert [table.error for table in summary.tables.values() if table.error] == []
    orders = spark.read.format("delta").load(f"{lake}/orders")
    wanted = [row for row in truth("orders") if int(str(row["quantity"])) > 1]
    assert len(wanted) < len(truth("orders"))
    assert sorted(row["order_number"] for row in orders.collect()) == sorted(
        row["order_number"] for row in wanted
    )
    customers = spark.read.format("delta").load(f"{lake}/customers")
    assert customers.count() == len(truth("customers"))
    addresses = spark.read.format("delta").load(f"{lake}/addresses")
    assert addresses.dropna(subset=["loaded_at", "change", "row_hash"]).count() == len(truth("addresses"))
    for unique in ("address_key", "address_no"):
        assert addresses.select(unique).distinct().count() == len(truth("addresses"))
