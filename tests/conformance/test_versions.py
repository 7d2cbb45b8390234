"""Mode scd2 on captured change events: the current rows equal the databases, and the history is that of a
delivery in order; wherever the driver dies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import get_args

import pytest
from pyspark.sql import SparkSession

from lakemirror.api import CdcPipeline
from lakemirror.driver import faults
from lakemirror.driver.runtime.runner import run
from tests.conformance.captures import SCENARIOS, Capture, wrong
from tests.support.delivery import Batches, doubled, interleaved, parts, shuffled, whole
from tests.support.mirroring import Mirroring, audited
from tests.support.records import Record
from tests.support.versions import Version, mirrored

pytestmark = pytest.mark.guarantee(
    "A mirror of versions has the history of the source, in any order of delivery"
)

SCD2 = {"defaults": {"mode": "scd2"}}
CAPTURE = Capture("pk_change")
ROOT = Path(__file__).parents[2]
COUNTS = ("records", "applied", "superseded", "stale", "duplicates", "inserted", "updated", "deleted")


def versions(spark: SparkSession, mirroring: Mirroring) -> dict[str, dict[tuple[object, ...], list[Version]]]:
    """All mirrors of the capture."""
    found = {}
    for table in CAPTURE.tables:
        path = mirroring.path(CAPTURE.db, *table.split("."))
        found[table] = mirrored(spark, path, ("id",))
    return found


@pytest.fixture(scope="module")
def undisturbed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Mirroring:
    """Two batches, applied without a crash."""
    mirroring = Mirroring(tmp_path_factory.mktemp("undisturbed"), SCD2).deliver(parts(CAPTURE.records, 2))
    mirroring.run(spark)
    return mirroring


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "deliver",
    [
        pytest.param(lambda records: whole(doubled(records)), id="doubled", marks=pytest.mark.thorough),
        pytest.param(
            lambda records: parts(interleaved(records, 1), 3), id="interleaved", marks=pytest.mark.thorough
        ),
        pytest.param(
            lambda records: parts(shuffled(records, 3), 4), id="shuffled", marks=pytest.mark.thorough
        ),
    ],
)
def test_the_current_rows_are_those_of_the_database(
    deliver: Callable[[Sequence[Record]], Batches], spark: SparkSession, tmp_path: Path
) -> None:
    captures = [Capture(scenario) for scenario in SCENARIOS]
    mirroring = Mirroring(tmp_path, SCD2)
    mirroring.deliver(deliver([record for capture in captures for record in capture.records]))
    summary = mirroring.run(spark)
    differences = [capture.differences(spark, mirroring, where="__is_current") for capture in captures]
    assert not "\n".join(filter(None, map(wrong, differences)))
    assert summary.counts.quarantined == summary.counts.stale == 0


@pytest.mark.thorough
def test_any_delivery_of_a_capture_gives_the_same_history(
    spark: SparkSession, tmp_path: Path, undisturbed: Mirroring
) -> None:
    mirroring = Mirroring(tmp_path, SCD2).deliver(parts(shuffled(doubled(CAPTURE.records), 5), 3))
    mirroring.run(spark)
    expected = versions(spark, undisturbed)
    assert versions(spark, mirroring) == expected
    assert all(any(len(each) > 1 for each in of.values()) for of in expected.values())


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_after_crashes_the_versions_and_totals_are_as_without_them(
    spark: SparkSession, tmp_path: Path, undisturbed: Mirroring
) -> None:
    """The second batch crashes at each of the named points in turn, each time a step further."""
    batches = parts(CAPTURE.records, 2)
    mirroring = Mirroring(tmp_path, SCD2).deliver(batches[:1])
    mirroring.run(spark)
    mirroring.deliver(batches[1:])
    for point in get_args(faults.Point):
        faults.arm(point)
        with pytest.raises(faults.InjectedCrash):
            mirroring.run(spark)
    crashed = mirroring.versions()
    mirroring.run(spark)
    assert mirroring.versions() == crashed, "a replayed batch makes no new version"
    assert versions(spark, mirroring) == versions(spark, undisturbed)
    assert audited(spark, mirroring, COUNTS) == audited(spark, undisturbed, COUNTS)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_example_keeps_the_history_of_its_shop(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many versions as there are images in its records, and as many of them ended as there are deletes."""
    monkeypatch.chdir(ROOT)
    given = CdcPipeline.from_yaml(Path("examples/history/pipeline.yaml").read_text(encoding="utf-8"))
    target = given.spec.target.model_copy(update={"path": f"{tmp_path}/{{schema}}/{{table}}"})
    spec = given.spec.model_copy(update={"target": target, "checkpoint": f"{tmp_path}/_checkpoint"})
    summary = run(given.model_copy(update={"spec": spec}), once=True, spark=spark)
    assert {name: table.error for name, table in summary.tables.items() if table.error} == {}
    customers = spark.read.format("delta").load(f"{tmp_path}/public/customers")
    assert customers.count() == 12 + 37 + 51
    assert customers.where("__is_current").count() == 12 + 37 - 21
    assert customers.where("__delete_seq IS NOT NULL").count() == 21
    last = customers.where("__is_current OR __is_deleted")
    assert last.count() == customers.select("id").distinct().count() == 12 + 37 - 21 + 10
    newest = customers.selectExpr("unix_micros(max(__valid_to))").first()
    assert newest is not None
    at = f"timestamp_micros({newest[0]})"
    past = customers.where(f"__valid_from <= {at} AND (__valid_to > {at} OR __valid_to IS NULL)")
    assert past.count() == past.select("id").distinct().count() > 0
    assert "__valid_from" not in spark.read.format("delta").load(f"{tmp_path}/public/orders").columns
