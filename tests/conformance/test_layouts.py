"""What earlier versions stored is gone on with: mirrors of each mode, tombstones, audit, quarantine and
checkpoint.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.conformance.captures import Capture, wrong
from tests.support import layouts
from tests.support.mirroring import Mirroring, audited
from tests.support.versions import mirrored

pytestmark = pytest.mark.guarantee(
    "The driver continues from a checkpoint of an earlier version, and leaves one of a newer version alone"
)

COUNTS = ("records", "inserted", "updated", "deleted", "stale", "duplicates", "refused")
ARCHIVES = sorted(layouts.FOLDER.glob("*.tar.xz"))


@pytest.fixture(scope="module")
def undisturbed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Mirroring:
    """The same two batches, both applied by the current version."""
    mirroring = Mirroring(tmp_path_factory.mktemp("undisturbed"), layouts.SETTINGS)
    mirroring.deliver(layouts.batches()).run(spark)
    return mirroring


def test_there_is_what_a_version_stored() -> None:
    assert ARCHIVES


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda archive: archive.name.removesuffix(".tar.xz"))
def test_what_a_version_stored_is_gone_on_with(
    archive: Path, spark: SparkSession, tmp_path: Path, undisturbed: Mirroring
) -> None:
    mirroring = layouts.restored(archive, tmp_path)
    before = mirroring.versions()
    again = mirroring.run(spark)
    assert (again.batches, mirroring.versions()) == (0, before), "what was applied is not applied again"
    mirroring.deliver(layouts.batches()[1:])
    summary = mirroring.run(spark)
    assert summary.batches == 1
    assert summary.counts.refused == summary.counts.stale == 0
    of = layouts.CAPTURES
    assert not wrong(of["scd1"].differences(spark, mirroring))
    assert not wrong(of["scd2"].differences(spark, mirroring, where="__is_current"))
    for table in of["scd2"].tables:
        path = of["scd2"].db, *table.split(".")
        assert _versions(spark, mirroring, *path) == _versions(spark, undisturbed, *path)
    assert _events(spark, mirroring, of["append"]) == _events(spark, undisturbed, of["append"])
    assert audited(spark, mirroring, COUNTS) == audited(spark, undisturbed, COUNTS)
    assert _quarantined(spark, mirroring) == _quarantined(spark, undisturbed) == 1


def _versions(spark: SparkSession, mirroring: Mirroring, *path: str) -> object:
    return mirrored(spark, mirroring.path(*path), ("id",))


def _events(spark: SparkSession, mirroring: Mirroring, capture: Capture) -> dict[str, int]:
    """How many events each list has."""
    paths = {table: mirroring.path(capture.db, *table.split(".")) for table in capture.tables}
    return {table: spark.read.format("delta").load(path).count() for table, path in paths.items()}


def _quarantined(spark: SparkSession, mirroring: Mirroring) -> int:
    return spark.read.format("delta").load(f"{mirroring.checkpoint}/quarantine").count()
