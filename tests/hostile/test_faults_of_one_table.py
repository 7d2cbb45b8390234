"""What cannot be opened, read or released concerns one table, or nothing: the others go on."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path

import pytest
import yaml
from pyspark.sql import SparkSession

from lakemirror.driver.checkpoint import identity
from lakemirror.driver.record import audit
from lakemirror.driver.runtime import batches
from lakemirror.driver.runtime.events import BatchDone, Event
from lakemirror.driver.runtime.runner import run
from tests.support.mirroring import Mirroring, at
from tests.support.records import Column, Record
from tests.support.shop import Shop, table, with_payload

pytestmark = [
    pytest.mark.guarantee(
        "A target that cannot be opened holds its table, tombstones that cannot be read stay, and a "
        "checkpoint that cannot be marked as released is given back; nothing else is affected"
    ),
    pytest.mark.guarantee(
        "No clock decides: not whether a target may move, which rows of files are newer, how far the source "
        "is applied, or when the next comparison is due"
    ),
]

V = Column("v", "int32", optional=True)
FINER = {"ts_us": 1000, "ts_ns": 1_000_000}


def dated_2100(record: Record) -> Record:
    """The record of a change that its source dates 2100. Kafka's time is right."""
    source = {**json.loads(record["value"])["payload"]["source"], "ts_ms": 4_102_444_800_000}
    source.update({name: source["ts_ms"] * factor for name, factor in FINER.items() if name in source})
    return with_payload(record, source=source)


def values(spark: SparkSession, path: str) -> list[tuple[int, int | None]]:
    return sorted((row["id"], row["v"]) for row in at(spark, path).collect())


class AYearAhead(datetime):
    """The time of a clock that is a year ahead."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
        return datetime.now(tz) + timedelta(days=365)


def change(mirroring: Mirroring, **settings: object) -> None:
    document = yaml.safe_load(mirroring.manifest.read_text())
    document["spec"].update(settings)
    mirroring.manifest.write_text(yaml.safe_dump(document, sort_keys=False))


@pytest.mark.thorough
def test_a_target_that_cannot_be_opened_and_tombstones_that_cannot_be_read_concern_their_table(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop, names = Shop(), ("ahead", "broken", "elsewhere", "good", "kept", "moved", "nowhere")
    of = {name: table(name, V) for name in names}
    first = [record for name in names for record in shop.create(of[name], id=1, v=1)]
    first += [dated_2100(each) for each in shop.create(of["ahead"], id=3, v=3)]
    mirroring = Mirroring(tmp_path).deliver([first])
    with monkeypatch.context() as ahead:
        ahead.setattr(identity, "datetime", AYearAhead)
        mirroring.run(spark)
    log = tmp_path / "damaged" / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020d}.json").write_text("{not a commit\n")
    moved = {
        "elsewhere": (str(tmp_path / "elsewhere"), ""),
        "moved": (str(log.parent), ""),
        "nowhere": ("hdfs://no-such-host.invalid/lake/nowhere", "again"),
    }
    change(
        mirroring,
        tombstones={"retention": "0s"},
        tables=[
            {"source": name, "target": {"path": path}, "resyncToken": token}
            for name, (path, token) in moved.items()
        ],
    )
    second = [record for name in names for record in shop.create(of[name], id=2, v=2)]
    for name in ("broken", "good"):
        second += shop.delete(of[name], id=1, v=1)
    mirroring.deliver([second])
    monkeypatch.setattr(batches, "_COLLECT_EVERY_SECONDS", 1e9)
    broken = Path(mirroring.path("demo", "public", "broken"), "_tombstones")

    def lose(event: Event) -> None:
        if isinstance(event, BatchDone):
            for file in broken.glob("*.parquet"):
                file.unlink()

    summary = run(mirroring.pipeline, once=True, spark=spark, on_event=lose)
    assert summary.held.keys() == {f"demo.public.{name}" for name in moved}
    assert "demo.public.moved could not be" in summary.held["demo.public.moved"]
    # The clock was ahead at the first start, which gives nobody the right to move a mirror.
    assert "is mirrored at" in summary.held["demo.public.elsewhere"]
    assert not (tmp_path / "elsewhere").exists()
    for name in ("broken", "good"):
        assert values(spark, mirroring.path("demo", "public", name)) == [(2, 2)]
    assert values(spark, mirroring.path("demo", "public", "kept")) == [(1, 1), (2, 2)]
    assert values(spark, mirroring.path("demo", "public", "ahead")) == [(1, 1), (2, 2), (3, 3)]
    said = json.loads((mirroring.checkpoint / "progress.json").read_text())
    assert "2100" not in json.dumps([said["eventTime"], said["completeTime"], said["tables"]])
    history = audit.history(spark, str(mirroring.checkpoint))
    times = [place.time for memory in history.memories.values() for place in memory.values()]
    assert max(filter(None, times)) < datetime.now(UTC).timestamp() * 1e6
    assert summary.counts.unaccounted == 0
    [told] = [each for each in summary.warnings if "tombstones" in each]
    assert told.startswith("the tombstones of demo.public.broken could not be collected")
    gone = spark.read.format("delta").load(f"{mirroring.path('demo', 'public', 'good')}/_tombstones")
    assert [row["kind"] for row in gone.collect()] == ["collected"]
    for file in log.iterdir():
        file.unlink()
    change(mirroring, tables=[])
    assert mirroring.run(spark).held == {}
    for name in moved:
        assert values(spark, mirroring.path("demo", "public", name)) == [(1, 1), (2, 2)]
