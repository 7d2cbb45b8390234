"""What a producer can do to the tables of others: one pipeline, one made-up record after the other."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakemirror.api.limits import Limit
from lakemirror.driver.profile import admission
from lakemirror.driver.runtime.summary import RunSummary
from tests.support.mirroring import Mirroring, at
from tests.support.records import Column, Record, Table
from tests.support.shop import Shop, table

pytestmark = [
    pytest.mark.guarantee("Only topics that may speak of a table change it, where the manifest says so"),
    pytest.mark.guarantee(
        "What records may name has limits, and what exceeds one is quarantined with its name"
    ),
    pytest.mark.guarantee("A record with a made-up position holds the tables of its partition, and no other"),
]

V = Column("v", "int32", optional=True)
VICTIM, BESIDE, ELSEWHERE = (table(name, V) for name in ("victim", "beside", "elsewhere"))
EVIL = "evil.public.topic"
FORGED = "a\n2026-01-01T00:00:00Z ERROR forged\x1b[2J\u202e"
SETTINGS: Mapping[str, Any] = {
    "tables": [
        {"source": "public.elsewhere", "topics": [ELSEWHERE.topic]},
        {"source": "public.victim", "topics": [VICTIM.topic]},
    ]
}


def by(topic: str, records: list[Record], first: int) -> list[Record]:
    """The records as somebody sends them to another topic."""
    return [{**each, "topic": topic, "offset": first + n} for n, each in enumerate(records)]


def found(spark: SparkSession, mirroring: Mirroring, of: Table) -> dict[int, int]:
    rows = at(spark, mirroring.path(of.db, of.schema, of.name)).collect()
    return {row["id"]: row["v"] for row in rows}


def aside(spark: SparkSession, mirroring: Mirroring, condition: str) -> list[str]:
    rows = spark.read.format("delta").load(f"{mirroring.checkpoint}/quarantine").where("state = 'open'")
    return sorted(row["reason"] for row in rows.where(condition).select("reason").collect())


def shown(mirroring: Mirroring) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((mirroring.checkpoint / "progress.json").read_text())
    return document


def positions_that_are_made_up(shop: Shop) -> list[Record]:
    """A change of the victim that stands below all others and is later."""
    crafted = Shop(lsn=10, seconds=50)
    (record,) = crafted.send(VICTIM, VICTIM.create(crafted.next(), {"id": 9, "v": 9}))
    (good,) = shop.update(VICTIM, id=1, v=2)
    return [{**record, "offset": good["offset"]}, {**good, "offset": good["offset"] + 1}]


def remedy(summary: RunSummary) -> list[Any]:
    message = summary.held["demo.public.victim"]
    epochs: list[Any] = json.loads(message.partition("ordering.epochs: ")[2].partition(";")[0])
    return epochs


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_record_stops_at_most_its_table(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "TABLES", Limit("tables", 5, "source tables"))
    monkeypatch.setattr(admission, "CONNECTORS", Limit("connectors", 2, "connectors"))
    shop = Shop()
    first = [record for of in (VICTIM, BESIDE, ELSEWHERE) for record in shop.create(of, id=1, v=1)]
    mirroring = Mirroring(tmp_path, SETTINGS).deliver([first])
    assert mirroring.run(spark).held == {}

    # Another topic changes, deletes and truncates a table that is bound, and one that is not.
    evil = Shop(lsn=100_000, seconds=5)
    stranger = [
        *evil.update(ELSEWHERE, id=1, v=666),
        *evil.delete(ELSEWHERE, id=1, v=1),  # and the Kafka tombstone, which names no table
        *evil.truncate(ELSEWHERE),
        *evil.create(BESIDE, id=2, v=2),
    ]
    # Names that are too long, too many, or made for terminals.
    long, odd = table("n" * 300, V), table(FORGED, V)
    many = [table(f"more{n}", V) for n in range(3)]
    connectors = [replace(BESIDE, prefix=f"c{n}") for n in range(3)]
    named = [record for of in (long, odd, *many) for record in evil.create(of, id=1, v=1)]
    named += [record for of in connectors for record in evil.create(of, id=3, v=3)]
    second = by(EVIL, stranger, 0) + by("evil.public.names", named, 0)
    summary = mirroring.deliver([second]).run(spark)
    assert summary.held == {}
    assert (summary.counts.records, summary.counts.unaccounted) == (len(second), 0)
    assert found(spark, mirroring, ELSEWHERE) == {1: 1}
    assert found(spark, mirroring, BESIDE)[2] == 2
    assert aside(spark, mirroring, "source = 'demo.public'") == [], "part of a name is another name"
    reasons = aside(spark, mirroring, f"topic = '{EVIL}'")
    assert len(reasons) == 3
    for reason in reasons:
        assert reason.startswith(f"table demo.public.elsewhere may not be changed by topic {EVIL}: ")
    reasons = [each.partition(":")[0] for each in aside(spark, mirroring, "topic = 'evil.public.names'")]
    assert sorted(reasons) == [
        *["beyond the limit connectors (2 connectors)"] * 2,
        "beyond the limit tables (5 source tables)",
        *["beyond the limit tables (5 source tables)"],
        "the name of its table has 300 characters",
    ]
    report = shown(mirroring)
    names = [each["source"] for each in report["tables"]]
    assert len(names) == 5
    assert not [name for name in names if "\n" in name or "\x1b" in name or "\u202e" in name]
    assert r"demo.public.a\n2026-01-01T00:00:00Z ERROR forged\u001b[2J\u202e" in names

    # A made-up position: its table waits, in each batch and through restarts, and the others go on.
    third = [*positions_that_are_made_up(shop), *shop.update(BESIDE, id=1, v=3)]
    summary = mirroring.deliver([third]).run(spark)
    assert list(summary.held) == ["demo.public.victim"]
    assert found(spark, mirroring, BESIDE)[1] == 3
    assert found(spark, mirroring, VICTIM) == {1: 1}
    declared = remedy(summary)
    assert declared == [{"epoch": 1, "from": {VICTIM.topic: {"0": 1}}}]
    assert json.dumps(declared) in (shown(mirroring)["positionsRestarted"] or "")
    (late,) = shop.update(VICTIM, id=1, v=4)
    fourth = [{**late, "offset": late["offset"] + 1}, *shop.update(BESIDE, id=1, v=5)]
    summary = mirroring.deliver([fourth]).run(spark)
    assert list(summary.held) == ["demo.public.victim"]
    assert remedy(summary) == declared
    assert (found(spark, mirroring, BESIDE)[1], found(spark, mirroring, VICTIM)) == (5, {1: 1})
    assert summary.counts.unaccounted == 0

    summary = Mirroring(tmp_path, {**SETTINGS, "ordering": {"epochs": declared}}).run(spark)
    assert summary.held == {}
    assert found(spark, mirroring, VICTIM) == {1: 4, 9: 9}
    assert shown(mirroring)["positionsRestarted"] is None
    assert aside(spark, mirroring, "scope <> 'record'") == []
