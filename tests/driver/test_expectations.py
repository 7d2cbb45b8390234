"""``tables[].expectations``: what rows should be like, and what becomes of records whose rows are not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from lakemirror.api.report import Report
from lakemirror.driver.record import audit
from lakemirror.driver.results import Violated
from lakemirror.driver.runtime.display import table_line
from lakemirror.driver.runtime.replayer import replay
from lakemirror.driver.runtime.supported import WrongFilter
from tests.support.mirroring import Mirroring, at
from tests.support.records import UNAVAILABLE, Column, PostgresPosition, Record, Table
from tests.support.shop import Shop, table

pytestmark = pytest.mark.guarantee(
    "A row that fails an expectation is counted, quarantined, or holds its table, until the source corrects "
    "it"
)

V, NOTE = Column("v", "int32", optional=True), Column("note", "string", optional=True)


def unmet(condition: str, on_violation: str = "warn", name: str = "positive") -> dict[str, Any]:
    return {"name": name, "condition": condition, "onViolation": on_violation}


def rows(spark: SparkSession, mirroring: Mirroring, name: str) -> list[tuple[object, ...]]:
    """A mirror's rows as tuples, in order."""
    return sorted(
        (tuple(row) for row in at(spark, mirroring.path("demo", "public", name)).collect()), key=repr
    )


@pytest.mark.thorough
def test_a_record_whose_row_is_not_as_expected_is_counted_or_kept_aside(
    spark: SparkSession, tmp_path: Path
) -> None:
    shop = Shop()
    warned, aside, listed, history, gaps = (
        table(name, V, NOTE) for name in ("warned", "aside", "listed", "history", "gaps")
    )
    first, second, third = [], [], []
    for of in (warned, aside, listed, history):
        for id in (1, 2, 3):
            first += shop.create(of, id=id, v=id, note=None)
        second += shop.update(of, id=1, v=-1, note="bad")
        second += shop.update(of, id=2, v=None, note="unknown")
        third += shop.update(of, id=2, v=22, note="good again")
        third += shop.delete(of, id=3, v=-3, note=None)
    first += shop.create(gaps, id=1, v=1, note="long")
    second += shop.update(gaps, id=1, v=2, note=UNAVAILABLE)
    second += shop.create(gaps, id=2, v=1, note="")
    settings = {
        "warned": {"filter": "id > 0", "expectations": [unmet("v > 0"), unmet("id < 9", name="few")]},
        "aside": {"expectations": [unmet("v > 0", "quarantine")]},
        "listed": {"mode": "append", "expectations": [unmet("v > 0", "quarantine")]},
        "history": {"mode": "scd2", "expectations": [unmet("V > 0", "quarantine")]},
        "gaps": {
            "expectations": [
                unmet("note <> ''", "quarantine", "noted"),
                unmet("v < 9 OR note <> ''", "quarantine", "both"),
            ]
        },
    }
    tables = {"tables": [{"source": name, **each} for name, each in settings.items()]}
    mirroring = Mirroring(tmp_path, tables).deliver([first, second, third])
    summary = mirroring.run(spark)
    counts = {source.rpartition(".")[2]: each.counts for source, each in summary.tables.items()}
    assert (summary.counts.unaccounted, summary.counts.refused) == (0, 0)

    assert rows(spark, mirroring, "warned") == [(1, -1, "bad"), (2, 22, "good again")]
    assert (counts["warned"].violations, counts["warned"].quarantined) == (2, 0), "null does not meet it"
    assert rows(spark, mirroring, "aside") == [(1, 1, None), (2, 22, "good again")], "its last good state"
    assert (counts["aside"].violations, counts["aside"].quarantined) == (2, 2), "a delete is not judged"
    assert [row[0] for row in rows(spark, mirroring, "listed")] == [1, 2, 2, 3, 3]
    versions = spark.read.format("delta").load(mirroring.path("demo", "public", "history"))
    found = versions.orderBy("id", "__seq").select("id", "v", "__is_current", "__is_deleted").collect()
    assert [tuple(row) for row in found] == [
        (1, 1, True, False),
        (2, 2, False, False),
        (2, 22, True, False),
        (3, 3, False, True),
    ]
    assert rows(spark, mirroring, "gaps") == [(1, 1, "long")], "v alone may have changed for the worse"
    bad = spark.read.format("delta").load(f"{mirroring.checkpoint}/quarantine")
    reasons = bad.where("source = 'demo.public.gaps'").orderBy("offset").select("reason").collect()
    assert "did not send note, so that nobody can tell" in reasons[0][0]
    assert "REPLICA IDENTITY FULL" in reasons[0][0]
    assert "does not meet the expectation noted, note <> ''" in reasons[1][0]

    report = Report.read(json.loads((mirroring.checkpoint / "progress.json").read_text("utf-8")))
    assert report is not None
    said = {each.source: each.expectations for each in report.tables}["demo.public.aside"]
    assert [(e.name, e.on_violation, e.violations) for e in said] == [("positive", "quarantine", 2)]
    kept = audit.history(spark, str(mirroring.checkpoint)).tables["demo.public.warned"]
    assert kept.violated == (Violated("positive", "warn", 2),)
    assert kept.counts.violations == 2
    assert "expectations not met: positive (2, warn)" in table_line(kept)

    # Another condition: what was kept aside is applied, each change at its place.
    wider = {"tables": [{"source": name, **each} for name, each in settings.items()]}
    for each in wider["tables"]:
        if each["source"] in ("aside", "listed", "history"):
            each["expectations"] = [unmet("v > -9 OR v IS NULL", "quarantine")]
    outcome = replay(Mirroring(tmp_path, wider).pipeline, spark=spark)
    assert (outcome.records, outcome.still_bad) == (8, 2)
    assert rows(spark, mirroring, "aside") == [(1, -1, "bad"), (2, 22, "good again")], "a later change stands"
    assert len(rows(spark, mirroring, "listed")) == 7
    versions = spark.read.format("delta").load(mirroring.path("demo", "public", "history"))
    found = versions.orderBy("id", "__seq").select("id", "v", "__is_current", "__is_deleted").collect()
    assert [row[1] for row in found] == [1, -1, 2, None, 22, 3]
    assert audit.history(spark, str(mirroring.checkpoint)).tables["demo.public.gaps"].counts.violations == 1


@pytest.mark.thorough
def test_a_row_that_is_not_as_expected_holds_its_table_until_the_source_corrects_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    shop, strict, other = Shop(), table("strict", V), table("other", V)
    first = [
        *shop.create(strict, id=1, v=1),
        *shop.create(strict, id=2, v=-5),
        *shop.update(strict, id=2, v=2),
    ]
    second = [
        *shop.update(strict, id=1, v=-1),
        *shop.create(strict, id=3, v=-3),
        *shop.create(other, id=1, v=-1),
    ]
    expected = {"expectations": [unmet("v > 0", "fail")]}
    tables = {"tables": [{"source": "strict", **expected}]}
    mirroring = Mirroring(tmp_path, tables).deliver([first, second])
    summary = mirroring.run(spark)
    assert rows(spark, mirroring, "strict") == [(1, 1), (2, 2)], (
        "what a change of the same batch has corrected"
    )
    assert rows(spark, mirroring, "other") == [(1, -1)]
    told = summary.tables["demo.public.strict"]
    first_bad = "the first of them the record demo.public.strict/0/3"
    for part in ("2 record(s) of demo.public.strict", "positive, v > 0", first_bad, "onViolation is fail"):
        assert part in (told.error or "")
    assert '"id"' not in (told.error or ""), "the status shows it to whoever may read the pipeline"
    assert (told.counts.refused, told.counts.violations) == (2, 0)

    mirroring.deliver([[*shop.update(strict, id=1, v=11), *shop.delete(strict, id=3, v=-3)]])
    summary = mirroring.run(spark)
    assert rows(spark, mirroring, "strict") == [(1, 11), (2, 2)]
    assert summary.tables["demo.public.strict"].error is None
    open_still = spark.read.format("delta").load(f"{mirroring.checkpoint}/quarantine").where("state = 'open'")
    assert open_still.agg(F.count("*")).collect()[0][0] == 0, "what was held is overtaken"


@pytest.mark.thorough
def test_of_changes_at_one_position_the_last_arrival_is_judged(spark: SparkSession, tmp_path: Path) -> None:
    shop, good, bad = Shop(), table("good", V), table("bad", V)
    first, second = [], []
    for of, values in ((good, (-1, 2)), (bad, (2, -1))):
        first += shop.create(of, id=1, v=1)
        place = shop.next()
        second += shop.send(of, *[of.update(place, {"id": 1, "v": v}, {"id": 1, "v": 1}) for v in values])
    entries = [{"source": of, "expectations": [unmet("v > 0", "fail")]} for of in ("good", "bad")]
    mirroring = Mirroring(tmp_path, {"tables": entries}).deliver([first, second])
    tables = mirroring.run(spark).tables
    assert rows(spark, mirroring, "good") == [(1, 2)]
    assert tables["demo.public.good"].error is None
    assert rows(spark, mirroring, "bad") == [(1, 1)]
    assert "1 record(s) of demo.public.bad do not meet" in (tables["demo.public.bad"].error or "")


@pytest.mark.long
def test_a_row_that_would_be_shown_holds_its_table_wherever_its_change_stands(
    spark: SparkSession, tmp_path: Path
) -> None:
    shop, tied, opened, read = Shop(), table("tied", V), table("opened", V), table("read", V)
    first, place = shop.create(tied, id=1, v=1), shop.next()
    snapshot = PostgresPosition(9_000, None, 1, shop.next().ts_us, "last")
    open_too = PostgresPosition(5_000, None, 2, shop.next().ts_us)

    def update(of: Table, at: PostgresPosition, v: int) -> list[Record]:
        return shop.send(of, of.update(at, {"id": 1, "v": v}, {"id": 1, "v": 1}))

    first += update(tied, place, 2)
    first += shop.send(opened, opened.read(snapshot, {"id": 1, "v": 1}))
    second = [*update(tied, place, -1), *update(opened, open_too, -1)]
    second += shop.send(read, read.read(snapshot, {"id": 1, "v": -1}))
    first += update(read, open_too, 3)
    names = ("tied", "opened", "read")
    entries = [{"source": of, "expectations": [unmet("v > 0", "fail")]} for of in names]
    mirroring = Mirroring(tmp_path, {"tables": entries}).deliver([first, second])
    tables = mirroring.run(spark).tables
    found = {name: (rows(spark, mirroring, name), tables[f"demo.public.{name}"].error) for name in names}
    assert found["read"] == ([(1, 3)], None), "the row was read before it was changed"
    assert (found["tied"][0], found["opened"][0]) == ([(1, 2)], [(1, 1)])
    for name in ("tied", "opened"):
        assert "1 record(s) of demo.public" in (found[name][1] or ""), name


@pytest.mark.long
def test_an_expectation_that_is_no_condition_on_the_row_is_named(spark: SparkSession, tmp_path: Path) -> None:
    shop, of = Shop(), table("a", V)
    wrong = {"tables": [{"source": "a", "expectations": [unmet("price > 0")]}]}
    summary = Mirroring(tmp_path / "a", wrong).deliver([shop.create(of, id=1, v=1)]).run(spark)
    error = summary.tables["demo.public.a"].error or ""
    assert "tables[a].expectations[positive].condition cannot be evaluated" in error
    broken = {"tables": [{"source": "a", "expectations": [unmet("v >")]}]}
    with pytest.raises(WrongFilter, match=r"expectations\[positive\]\.condition: 'v >' cannot be parsed"):
        Mirroring(tmp_path / "b", broken).run(spark)
