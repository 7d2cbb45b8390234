"""What one pipeline does to single tables: deletes, keys, columns, targets, tombstones, totals."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import ClassVar

import pytest
from pyspark.sql import SparkSession

from lakemirror.driver.batch import BatchApplier
from lakemirror.driver.runtime import batches, between_batches
from lakemirror.driver.runtime.reporter import Reporter
from lakemirror.driver.runtime.runner import run
from tests.support import maxwell
from tests.support.delivery import cut, doubled, restarted
from tests.support.maxwell import History
from tests.support.mirroring import Mirroring, at
from tests.support.records import Column, Record, Table
from tests.support.shop import Shop, decimal, table

V = Column("v", "int32")
SOFT = {"defaults": {"delete": {"type": "soft", "column": "deleted_at"}}}


def found(spark: SparkSession, mirroring: Mirroring, name: str) -> list[tuple[object, ...]]:
    """A mirror's rows as tuples, in order."""
    return sorted(tuple(row) for row in at(spark, mirroring.path("demo", "public", name)).collect())


def audited(spark: SparkSession, mirroring: Mirroring) -> list[tuple[object, ...]]:
    audit = spark.read.format("delta").load(f"{mirroring.checkpoint}/audit").where("source IS NOT NULL")
    names = ("source", "records", "inserted", "updated", "deleted", "stale", "duplicates", "quarantined")
    return sorted((row["batch_id"], *(row[name] for name in names)) for row in audit.collect())


def life(shop: Shop, of: Table) -> list[list[Record]]:
    """One row is updated and deleted, another deleted and inserted again; one list an event."""
    return [
        shop.create(of, id=1, v=1),
        shop.update(of, id=1, v=2),
        [*shop.create(of, id=2, v=1), *shop.delete(of, id=1, v=2)],
        shop.delete(of, id=2, v=1),
        shop.create(of, id=2, v=3),
    ]


@pytest.mark.long
def test_a_soft_delete_keeps_the_last_row_in_any_batches(spark: SparkSession, tmp_path: Path) -> None:
    """It is an update of the mirror, and is counted as one."""
    shop = Shop()
    events, at_once = life(shop, table("apart", V)), life(shop, table("at_once", V))
    events[0] += [record for event in at_once for record in event]
    mirroring = Mirroring(tmp_path, SOFT).deliver(events)
    mirroring.run(spark)
    for name in ("apart", "at_once"):
        rows = [(id, v, gone is not None) for id, v, gone in found(spark, mirroring, name)]
        assert rows == [(1, 2, True), (2, 3, False)], name
    one, whole = "demo.public.apart", "demo.public.at_once"
    before = audited(spark, mirroring)
    assert before == [
        (0, one, 1, 1, 0, 0, 0, 0, 0),
        (0, whole, 8, 2, 0, 0, 0, 0, 0),
        (1, one, 1, 0, 1, 0, 0, 0, 0),
        (2, one, 3, 1, 1, 0, 0, 0, 0),
        (3, one, 2, 0, 1, 0, 0, 0, 0),
        (4, one, 1, 0, 1, 0, 0, 0, 0),
    ]
    mirroring.run(spark)
    assert audited(spark, mirroring) == before


@pytest.mark.thorough
def test_tables_without_a_key_are_appended_to_and_targets_are_not_shared(
    spark: SparkSession, tmp_path: Path
) -> None:
    shop = Shop()
    log, asked, keyed = (table(name, V) for name in ("log", "asked", "keyed"))
    records = [
        *shop.delete(keyed, id=9, v=9),
        *(record for v in (1, 1, 2) for record in shop.keyless(log, id=1, v=v)),
        *shop.keyless(asked, id=1, v=1),
        *shop.create(keyed, id=1, v=1),
    ]
    listed = {"tables": [{"source": "public.asked", "mode": "scd1"}]}
    mirroring = Mirroring(tmp_path / "one", listed).deliver([doubled(records)])
    tables = mirroring.run(spark).tables
    assert found(spark, mirroring, "log") == [(1, 1), (1, 1), (1, 2)]
    assert found(spark, mirroring, "keyed") == [(1, 1)]
    assert "tables[public.asked].primaryKey" in (tables["demo.public.asked"].error or "")
    assert not Path(mirroring.path("demo", "public", "asked")).exists()
    bad = spark.read.format("delta").load(f"{mirroring.checkpoint}/quarantine").collect()
    twice = [("demo.public.asked", 0)] * 2
    assert [(row["source"], row["offset"]) for row in bad] == twice, "two lines of a file are two records"

    shutil.rmtree(mirroring.checkpoint)
    mirroring.run(spark)
    assert found(spark, mirroring, "log") == [(1, 1), (1, 1), (1, 2)]

    other = Mirroring(
        tmp_path / "two",
        {
            "target": {"path": f"{mirroring.lake}/{{db}}/{{schema}}/{{table}}"},
            "tombstones": {"retention": "0s"},
        },
        name="other",
    )
    versions = mirroring.versions()
    result = other.deliver([shop.create(keyed, id=2, v=2)]).run(spark)
    assert "is the mirror of test/demo.public.keyed" in (result.tables["demo.public.keyed"].error or "")
    assert result.counts.refused == 1
    assert mirroring.versions() == versions, "nothing of it is touched, nor its tombstones"


@pytest.mark.guarantee("Drift is detected and applied by policy")
def test_settings_of_single_tables(spark: SparkSession, tmp_path: Path) -> None:
    shop = Shop()
    secret = Column("secret", "string", optional=True)
    narrow, wide, coded = (
        table("narrow", V, secret),
        table("wide", V, decimal("price", 5, 2), secret),
        table("coded", Column("code", "string"), V),
    )
    settings = {
        "unlisted": "ignore",
        "tables": [
            {"source": "narrow", "columns": {"include": ["id", "v"]}},
            {
                "source": "wide",
                "columns": {"exclude": ["secret"], "rename": {"v": "amount"}, "types": {"v": "bigint"}},
            },
            {"source": "coded", "primaryKey": ["code"]},
            {"source": "parked", "suspend": True},
        ],
    }
    records = [
        *shop.create(narrow, id=1, v=1, secret="x"),
        *shop.create(wide, id=1, v=1, price="AME=", secret="x"),  # 193
        *shop.create(coded, id=1, code="a", v=1),
        *shop.create(coded, id=2, code="a", v=2),
        *shop.create(coded, id=2, code="b", v=3),
        *shop.create(table("parked", V), id=1, v=1),
        *shop.create(table("other", V), id=1, v=1),
    ]
    mirroring = Mirroring(tmp_path, settings).deliver([records])
    summary = mirroring.run(spark)
    assert found(spark, mirroring, "narrow") == [(1, 1)]
    frame = at(spark, mirroring.path("demo", "public", "wide"))
    assert frame.dtypes == [("id", "int"), ("amount", "bigint"), ("price", "decimal(5,2)")]
    assert [(row["amount"], str(row["price"])) for row in frame.collect()] == [(1, "1.93")]
    assert found(spark, mirroring, "coded") == [(2, "a", 2), (2, "b", 3)]
    assert {path.name for path in mirroring.lake.glob("demo/public/*")} == {"narrow", "wide", "coded"}
    counts = summary.counts
    assert (counts.records, counts.no_row_change, counts.refused) == (7, 1, 1), "one is suspended"


class Collecting(BatchApplier):
    """Keeps of each attempt whether it was known what of the source is read, and how many were collected."""

    collected: ClassVar[list[tuple[bool, int]]]

    def collect_tombstones(self, *, had_all_at: datetime | None) -> int:
        found = super().collect_tombstones(had_all_at=had_all_at)
        self.collected.append((had_all_at is not None, found))
        return found


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, int]]:
    """What `Collecting` keeps. Tombstones are collected after each batch."""
    monkeypatch.setattr(batches, "_COLLECT_EVERY_SECONDS", -1.0)
    Collecting.collected = []
    return Collecting.collected


@pytest.mark.long
@pytest.mark.guarantee(
    "A quiet partition or another source does not keep all tombstones alive; an idle driver collects them"
)
def test_a_quiet_partition_does_not_keep_the_tombstones_of_others(
    spark: SparkSession, tmp_path: Path, collected: list[tuple[bool, int]]
) -> None:
    shop, quiet, busy = Shop(), table("quiet", V), table("busy", V)
    told = [
        [*shop.create(quiet, id=1, v=1), *shop.create(busy, id=1, v=1)],
        shop.delete(busy, id=1, v=1),
        shop.create(busy, id=2, v=2),
    ]
    mirroring = Mirroring(tmp_path, {"tombstones": {"retention": "0s"}}).deliver(told)
    run(mirroring.pipeline, once=True, spark=spark, make_applier=Collecting)
    assert collected == [(False, 0), (False, 0), (False, 1), (True, 0)]


@pytest.mark.thorough
@pytest.mark.guarantee(
    "A quiet partition or another source does not keep all tombstones alive; an idle driver collects them"
)
def test_a_source_with_lower_positions_does_not_keep_the_tombstones_of_others(
    spark: SparkSession, tmp_path: Path, collected: list[tuple[bool, int]]
) -> None:
    """Its positions never pass those of the other one, whose tombstones wait for the other one alone."""
    large, small = Shop(lsn=1_000_000), Shop(seconds=1000)
    busy, other = table("busy", V), replace(table("other", V), prefix="other")
    told = [
        [*large.create(busy, id=1, v=1), *small.create(other, id=1, v=1), *small.delete(other, id=1, v=1)],
        large.delete(busy, id=1, v=1),
        large.create(busy, id=2, v=2),
    ]
    mirroring = Mirroring(tmp_path, {"tombstones": {"retention": "0s"}}).deliver(told)
    run(mirroring.pipeline, once=True, spark=spark, make_applier=Collecting)
    assert collected[:3] == [(False, 0), (False, 0), (False, 1)]
    assert collected[3:] == [(True, 1)], "its own is not passed yet, but nothing else is there"


@pytest.mark.long
@pytest.mark.guarantee(
    "A quiet partition or another source does not keep all tombstones alive; an idle driver collects them"
)
def test_without_positions_an_idle_driver_collects_tombstones(
    spark: SparkSession, tmp_path: Path, collected: list[tuple[bool, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that the source had when it was last asked is applied, so whatever comes is late."""
    monkeypatch.setattr(between_batches, "_EVERY_SECONDS", 0.2)
    for name, seconds in (("at_most_every", 0.3), ("at_least_every", 0.3)):
        monkeypatch.setitem(Reporter.__init__.__kwdefaults__, name, seconds)
    shop, items = Shop(), table("items", V)
    told = [[*shop.create(items, id=1, v=1), *shop.delete(items, id=1, v=1)], shop.create(items, id=2, v=1)]
    settings = {
        "tombstones": {"retention": "1s"},
        "ordering": {"by": "timestamp"},
        "trigger": {"interval": "1s"},
    }
    mirroring = Mirroring(tmp_path, settings).deliver(told)
    end = time.monotonic() + 300

    def stopping() -> bool:
        return (True, 1) in collected or time.monotonic() > end

    run(mirroring.pipeline, spark=spark, make_applier=Collecting, stopping=stopping)
    assert (True, 1) in collected
    assert not any(number for known, number in collected if not known)
    assert found(spark, mirroring, "items") == [(2, 1)]


@pytest.mark.long
@pytest.mark.parametrize("retention", ["0s", "7d"])
def test_a_late_event_after_a_delete(retention: str, spark: SparkSession, tmp_path: Path) -> None:
    """A tombstone stops it; once that is collected nothing can, but it is counted."""
    shop = Shop()
    items = table("items", V)
    created, updated = shop.create(items, id=1, v=1), shop.update(items, id=1, v=2)
    gone = shop.delete(items, id=1, v=2)
    mirroring = Mirroring(tmp_path, {"tombstones": {"retention": retention}}).deliver([gone])
    first = mirroring.run(spark).tables["demo.public.items"]
    assert (first.tombstones_retained, first.counts.tombstone_records) == (1, 1)
    late = mirroring.deliver([gone, [*created, *updated]]).run(spark).tables["demo.public.items"]
    if retention == "7d":
        assert found(spark, mirroring, "items") == []
        assert (late.tombstones_retained, late.counts.late_after_collection) == (1, 0)
        assert (late.counts.stale, late.counts.superseded) == (1, 1)
    else:
        assert found(spark, mirroring, "items") == [(1, 2)]
        assert (late.tombstones_retained, late.counts.stale, late.counts.late_after_collection) == (0, 0, 1)


@pytest.mark.thorough
def test_a_late_event_finds_the_tombstone_of_an_earlier_batch_of_the_run(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Tombstones are read only when an event is not newer than all of them; the batch between is."""
    shop = Shop()
    items = table("items", V)
    created, late = shop.create(items, id=1, v=1), shop.update(items, id=1, v=2)
    gone, other = shop.delete(items, id=1, v=2), shop.create(items, id=2, v=1)
    late_too, again = shop.update(items, id=2, v=2), shop.delete(items, id=2, v=2)
    mirroring = Mirroring(tmp_path).deliver([[*created, *gone], other, late, again, late_too])
    result = mirroring.run(spark).tables["demo.public.items"]
    assert found(spark, mirroring, "items") == []
    assert (result.tombstones_retained, result.counts.stale) == (2, 2)


MAXWELL = {"envelope": {"format": "maxwell"}}


def shifted(database: str) -> tuple[History, list[Record]]:
    """Keys that move up by one and down again, a statement's rows at one position; some are sent again."""
    history = History(database, places=False)
    history.insert(1, "a")
    history.insert(2, "b")
    for by in (1, -1):
        history.move(list(history.rows), by)
    return history, restarted(maxwell.sent(history.lines, database, 1), back=3, every=5)


@pytest.mark.thorough
@pytest.mark.guarantee(
    "Of two changes of a row at one position, the later one of a partition counts, deletes included"
)
def test_a_row_is_deleted_and_made_at_one_position_in_any_batches(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The last change of a position counts, as it does if the row is kept when it is deleted."""
    settings = {"tables": [{"source": "soft.items", **SOFT["defaults"]}]}
    delivered: list[list[Record]] = [[] for _ in range(9)]
    histories = {}
    for database, size in (("ones", 1), ("twos", 2), ("threes", 3), ("soft", 1)):
        histories[database], records = shifted(database)
        for batch, some in zip(delivered, cut(records, size), strict=False):
            batch.extend(some)
    mirroring = Mirroring(tmp_path, {**MAXWELL, **settings}).deliver(delivered)
    mirroring.run(spark)
    for database, history in histories.items():
        frame = at(spark, mirroring.path(database, None, "items"))
        live = frame.where("deleted_at IS NULL") if database == "soft" else frame
        found = {row["id"]: row["v"] for row in live.collect()}
        assert found == {id: row["v"] for id, row in history.rows.items()}, database


@pytest.mark.thorough
@pytest.mark.guarantee(
    "Of two changes of a row at one position, the later one of a partition counts, deletes included"
)
def test_an_earlier_change_of_the_position_of_a_delete_brings_no_row_back(
    spark: SparkSession, tmp_path: Path
) -> None:
    """However late it comes: the delete that was sent last is the one that is remembered."""
    history = History("shop", places=False)
    history.insert(1, "a")
    history.insert(2, "b")
    history.move([1, 2], 1)  # key 2 is left, and taken by key 1
    records = maxwell.sent(history.lines, partitions=1)
    away = {**records[2], "offset": 5}  # sent again, and so is the next one, which comes late
    taken = records[3]
    last = {**records[2], "offset": 7}
    batches = [records[:3], [away], [last], [taken], [{**taken, "offset": 6}]]
    mirroring = Mirroring(tmp_path, MAXWELL).deliver(batches)
    result = mirroring.run(spark).tables["shop.items"]
    assert found_in(spark, mirroring) == {3: "b"}
    assert (result.counts.stale, result.tombstones_retained) == (2, 2)
    mirroring.deliver([[{**taken, "offset": 8}]]).run(spark)
    assert found_in(spark, mirroring) == {2: "a", 3: "b"}


def found_in(spark: SparkSession, mirroring: Mirroring) -> dict[int, str]:
    frame = at(spark, mirroring.path("shop", None, "items"))
    return {row["id"]: row["v"] for row in frame.collect()}
