"""The load that benchmarks apply is what it says."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from benchmarks.columns import names_of
from benchmarks.events import Load, make
from benchmarks.records import NOT_SENT
from tests.support.records import Record, payload, read
from tests.support.reference import Mirror, in_source_order


def records(files: list[Path]) -> list[Record]:
    return [record for path in files for record in read(path)]


def key_of(record: Record) -> int:
    return int(payload(record["key"])["id"])


@pytest.mark.parametrize(
    "load",
    [
        Load(rows=200, batch=300, batches=4),
        Load(rows=200, batch=300, batches=4, schemas=True),
        Load(rows=200, batch=300, batches=4, tables=7),
        Load(rows=200, batch=300, batches=4, columns=9, schemas=True),
        Load(rows=2000, batch=300, batches=4, hot=0.8, recent=2),
        Load(rows=50, batch=300, batches=4, inserts=0.1, deletes=0.8),
        Load(rows=200, batch=300, batches=4, gaps=0.5),
    ],
    ids=["plain", "schemas", "tables", "wide", "uneven keys", "few left", "gaps"],
)
def test_a_load_ends_in_its_truth(tmp_path: Path, load: Load) -> None:
    files = make(load, tmp_path)
    mirror = Mirror().replay(records([*files.snapshot, *files.batches]))
    assert set(mirror.tables) == {f"public.{name}" for name in load.names}
    rows = {key: row for table in mirror.tables.values() for (key,), row in table.items()}
    truth = {row["id"]: row for row in pq.read_table(files.truth).to_pylist()}
    assert set(rows) == set(truth)
    for key, row in rows.items():
        expected = {**truth[key], "updated_at": truth[key]["updated_at"].strftime("%Y-%m-%dT%H:%M:%S.%fZ")}
        assert {name: row[name] for name in names_of(load.columns)} == expected


def test_each_partition_counts_its_offsets(tmp_path: Path) -> None:
    files = make(Load(rows=200, batch=300, batches=2, tables=3), tmp_path)
    seen: dict[tuple[str, int], int] = {}
    for record in records([*files.snapshot, *files.batches]):
        place = record["topic"], record["partition"]
        assert record["offset"] > seen.get(place, -1)
        seen[place] = record["offset"]
    assert len(seen) == 9


def test_recent_batches_change_only_the_newest_keys(tmp_path: Path) -> None:
    files = make(Load(rows=1000, batch=200, batches=2, recent=1, inserts=0, reinserts=0), tmp_path)
    recent, random = ({key_of(r) for r in records([batch])} for batch in files.batches)
    assert min(recent) >= 950
    assert min(random) < 500


def test_a_load_has_the_shares_it_names(tmp_path: Path) -> None:
    files = make(Load(rows=2000, batch=2000, batches=3), tmp_path)
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


def test_some_updates_lack_a_value_and_some_records_cannot_be_read(tmp_path: Path) -> None:
    files = make(Load(rows=2000, batch=2000, batches=1, gaps=0.3, bad=0.1), tmp_path)
    values = [record["value"] for record in records(files.batches) if record["value"]]
    updates = [value for value in values if '"op":"u"' in value]
    assert sum(NOT_SENT in value for value in updates) == pytest.approx(0.3 * len(updates), abs=60)
    assert len(values) - 2000 == pytest.approx(200, abs=40)


def test_hot_keys_get_most_of_the_updates(tmp_path: Path) -> None:
    files = make(Load(rows=2000, batch=1000, batches=1, hot=0.8, inserts=0, reinserts=0, deletes=0), tmp_path)
    keys = [key_of(record) for record in records(files.batches)]
    assert sum(key < 2 for key in keys) == pytest.approx(800, abs=60)


def test_late_and_repeated_events_change_nothing_but_their_order(tmp_path: Path) -> None:
    messy = make(Load(rows=200, batch=100, batches=10, late=0.1, repeated=0.1), tmp_path)
    sent = records(messy.batches)
    lsns = [payload(r["value"])["source"]["lsn"] for r in sent if r["value"]]
    assert lsns != sorted(lsns)
    assert len(lsns) > len(set(lsns)) == 1000
    ordered = Mirror().replay([*records(messy.snapshot), *in_source_order(sent)]).tables["public.accounts"]
    assert {key for (key,) in ordered} == set(pq.read_table(messy.truth)["id"].to_pylist())
