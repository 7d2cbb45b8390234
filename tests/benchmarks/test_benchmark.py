"""The benchmark's load is what it says, and a small run of it works."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from benchmarks.events import Load, make
from tests.support.records import Record, payload, read
from tests.support.reference import Mirror, in_source_order


def records(files: list[Path]) -> list[Record]:
    return [record for path in files for record in read(path)]


@pytest.mark.parametrize("schemas", [False, True])
def test_the_load_ends_in_its_truth(tmp_path: Path, schemas: bool) -> None:
    files = make(Load(rows=200, events=1000, batch=300, schemas=schemas), tmp_path)
    mirror = Mirror().replay(records([*files.snapshot, *files.batches]))
    rows = mirror.tables["public.accounts"]
    truth = {row["id"]: row for row in pq.read_table(files.truth).to_pylist()}
    assert {key[0] for key in rows} == set(truth)
    for (key,), row in rows.items():
        assert (row["owner"], row["balance"], row["tier"]) == tuple(
            truth[key][name] for name in ("owner", "balance", "tier")
        )
        assert row["updated_at"] == truth[key]["updated_at"].strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def test_the_load_has_the_shares_it_names(tmp_path: Path) -> None:
    files = make(Load(rows=2000, events=6000, batch=2000), tmp_path)
    assert len(files.batches) == 3
    changes = [payload(r["value"]) for r in records(files.batches) if r["value"]]
    ops = Counter(change["op"] for change in changes)
    assert sum(ops.values()) == 6000
    assert ops["u"] / 6000 == pytest.approx(0.60, abs=0.03)
    assert ops["c"] / 6000 == pytest.approx(0.30, abs=0.03)
    assert ops["d"] / 6000 == pytest.approx(0.10, abs=0.03)
    created = [change["after"]["id"] for change in changes if change["op"] == "c"]
    again = sum(key < 2000 for key in created) + len(created) - len(set(created))
    assert again / 6000 == pytest.approx(0.05, abs=0.02)


def test_late_and_doubled_events_change_nothing_but_their_order(tmp_path: Path) -> None:
    plain = make(Load(rows=200, events=1000, batch=100), tmp_path / "plain")
    messy = make(Load(rows=200, events=1000, batch=100, late=0.1, duplicates=0.1), tmp_path / "messy")
    sent = records(messy.batches)
    lsns = [payload(r["value"])["source"]["lsn"] for r in sent if r["value"]]
    assert lsns != sorted(lsns)
    assert len(lsns) > len(set(lsns)) == 1000
    ordered = Mirror().replay([*records(messy.snapshot), *in_source_order(sent)]).tables["public.accounts"]
    assert {key for (key,) in ordered} == set(pq.read_table(messy.truth)["id"].to_pylist())
    assert plain.truth != messy.truth


@pytest.mark.bench
@pytest.mark.parametrize("more", [(), ("--schemas",), ("--late", "0.1", "--duplicates", "0.05")])
def test_a_small_run_compares_equal_tables(
    spark: SparkSession, tmp_path: Path, more: tuple[str, ...]
) -> None:
    from benchmarks.apply import main

    few = ("--rows", "10000", "--events", "1000", "--batch", "500", "--out", str(tmp_path))
    (result,) = main([*few, *more], spark)
    assert result.equal["lakemirror"]
    assert {len(seconds) for seconds in result.seconds.values()} == {2}
    written = json.loads((tmp_path / "apply.json").read_text())
    assert written["results"][0]["load"]["events"] == 1000
