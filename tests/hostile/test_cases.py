"""The table of hostile cases: each ends as it says, and all others are as they would be without it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakemirror.api.report import OUTCOMES
from tests.hostile import rules
from tests.hostile.cases import RECORDS, TABLES, RecordCase, TableCase
from tests.hostile.rules import GOOD, RECORDS_SOURCE, hostile_records
from tests.support.mirroring import Mirroring, at
from tests.support.records import Row
from tests.support.shop import Shop


@dataclass(frozen=True)
class Outcome:
    """What became of all cases, after one run of one pipeline."""

    rows: Mapping[int, Row]
    reasons: Mapping[int, str]
    reasons_of_tables: Mapping[str, Mapping[int, str]]
    counts: Mapping[str, Mapping[str, int]]
    errors: Mapping[str, str]
    mirroring: Mirroring


@pytest.fixture(scope="module")
def outcome(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    folder = tmp_path_factory.mktemp("cases")
    (folder / "file").write_text("a file")
    spark.range(1).write.format("delta").save(f"{folder}/foreign")
    settings = [
        {"source": f"public.t{number}", **_placed(case.settings, folder, number)}
        for number, case in enumerate(TABLES)
        if case.settings
    ]
    batches = [hostile_records(Shop()), *[[] for _ in range(3)]]
    for number, case in enumerate(TABLES):
        for at_batch, records in enumerate(case.batches(Shop(), case.table(number))):
            batches[at_batch] += records
    mirroring = Mirroring(folder, {"tables": settings}).deliver([batch for batch in batches if batch])
    mirroring.run(spark)
    audit = spark.read.format("delta").load(f"{mirroring.checkpoint}/audit")
    told = audit.where("source IS NOT NULL AND query_id NOT LIKE 'replay-%'").collect()
    reasons: dict[str, dict[int, str]] = {}
    for row in spark.read.format("delta").load(f"{mirroring.checkpoint}/quarantine").collect():
        reasons.setdefault(row["topic"], {})[row["offset"]] = row["reason"]
    return Outcome(
        {row["id"]: row.asDict() for row in at(spark, mirroring.path("demo", "public", "records")).collect()},
        reasons[RECORDS_SOURCE],
        reasons,
        _added(told),
        {row["source"]: row["error"] for row in told if row["error"]},
        mirroring,
    )


def _placed(settings: Mapping[str, Any], folder: Path, number: int) -> Mapping[str, Any]:
    """The settings of case ``number``, with the places that it names only."""
    if "target" not in settings:
        return settings
    path = settings["target"]["path"]
    for word in ("LAKE", "FOREIGN", "FILE"):
        path = path.replace(word, f"{folder}/{word.lower()}")
    path = path.replace("BEFORE", str(number - 1))
    return {**settings, "target": {"path": path}}


def _added(rows: Iterable[Any]) -> dict[str, Counter[str]]:
    counts: dict[str, Counter[str]] = {}
    for row in rows:
        counts.setdefault(row["source"], Counter()).update({name: row[name] for name in OUTCOMES})
    return counts


@pytest.mark.guarantee("Each record that was read has exactly one outcome (conservation)")
@pytest.mark.guarantee(
    "A fault in one record stops that record alone, and a fault in one table stops that table alone "
    "(isolation)"
)
@pytest.mark.guarantee("A record changes no row only if it is one of Debezium's own, not if it resembles one")
@pytest.mark.guarantee("No record makes a batch fail")
@pytest.mark.parametrize("number", range(len(RECORDS)), ids=[case.name for case in RECORDS])
def test_a_record(number: int, outcome: Outcome) -> None:
    case: RecordCase = RECORDS[number]
    offset, row = number + 1, outcome.rows.get(number)
    if case.outcome == "applied":
        assert outcome.reasons.get(offset) is None
        assert row == {"id": number, "v": number, "text": None, **(case.row or {})}
    else:
        assert row is None
        assert (offset in outcome.reasons) == (case.outcome == "quarantined")
        assert case.reason in outcome.reasons.get(offset, "")


@pytest.mark.guarantee(
    "A fault in one record stops that record alone, and a fault in one table stops that table alone "
    "(isolation)"
)
def test_the_good_rows_beside_hostile_records_are_there(outcome: Outcome) -> None:
    assert {id: outcome.rows[id]["v"] for id in GOOD} == {id: id for id in GOOD}
    named = {number for number, case in enumerate(RECORDS) if case.outcome == "applied"}
    assert outcome.rows.keys() == named | set(GOOD)


@pytest.mark.guarantee("Each record that was read has exactly one outcome (conservation)")
@pytest.mark.guarantee("No two tables share a target")
@pytest.mark.parametrize("number", range(len(TABLES)), ids=[case.name for case in TABLES])
def test_a_table(number: int, spark: SparkSession, outcome: Outcome) -> None:
    case: TableCase = TABLES[number]
    source = f"demo.public.t{number}"
    error = outcome.errors.get(source, "")
    assert case.error in error
    assert bool(case.error) == bool(error)
    assert {name: n for name, n in outcome.counts[source].items() if n} == dict(case.counts)
    target = case.settings.get("target")
    if target is not None and case.rows is None:
        return  # whose table that is, is told by its own case
    place = outcome.mirroring.path("demo", "public", f"t{number}")
    if case.rows is None:
        assert not Path(place, "_delta_log").exists()
    else:
        assert _sorted(row.asDict() for row in at(spark, place).collect()) == _sorted(case.rows)


@pytest.mark.guarantee("The rules and the driver's engine make the same of the same records")
def test_the_rules_say_the_same_of_each_record(outcome: Outcome) -> None:
    engine = rules.of_records(str(outcome.mirroring.lake))
    assert rules.reasons(engine) == dict(outcome.reasons)
    counts = engine.tables[RECORDS_SOURCE].counts
    assert dict(counts) == {name: n for name, n in outcome.counts[RECORDS_SOURCE].items() if n}


@pytest.mark.guarantee("The rules and the driver's engine make the same of the same records")
@pytest.mark.thorough
@pytest.mark.parametrize("number", rules.COVERED, ids=[TABLES[number].name for number in rules.COVERED])
def test_the_rules_give_the_same_reasons_in_a_table(number: int, outcome: Outcome) -> None:
    found = rules.of_table(number).reasons
    mine = {origin.offset: reason for origin, reason in found.items()}
    assert mine == dict(outcome.reasons_of_tables.get(f"demo.public.t{number}", {}))


def _sorted(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: repr(sorted(row.items())))
