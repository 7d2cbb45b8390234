"""Mirrors, checkpoint, quarantine and owner record on an S3 API equal the source in every delivery."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.conformance.captures import FIXED_SCHEMA, Capture, wrong
from tests.support.delivery import Batches, cut, doubled, interleaved, parts, restarted, shuffled, whole
from tests.support.mirroring import audited
from tests.support.object_store import Bucket
from tests.support.records import Record
from tests.support.store_mirroring import StoreMirroring

pytestmark = pytest.mark.sources
DELIVERIES: dict[str, Callable[[Sequence[Record]], Batches]] = {
    "whole": whole,
    "doubled": lambda records: whole(doubled(records)),
    "restarted": lambda records: parts(restarted(records, back=40, every=100), 2),
    "interleaved": lambda records: cut(interleaved(records, 1), -(-len(records) // 3)),
    "shuffled": lambda records: parts(shuffled(records, 1), 2),
}


def delivered(deliveries: Sequence[str]) -> tuple[list[Capture], Batches]:
    """Three captures in each delivery under a database of its own, all in the same batches."""
    captures = [
        Capture(scenario, as_db=f"{delivery}_{scenario}")
        for delivery in deliveries
        for scenario in FIXED_SCHEMA
    ]
    of_each = [DELIVERIES[each.db.partition("_")[0]](each.records) for each in captures]
    batches = [list(itertools.chain(*several)) for several in itertools.zip_longest(*of_each, fillvalue=())]
    return captures, batches


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "deliveries",
    [
        pytest.param(["shuffled"], id="shuffled"),
        pytest.param(list(DELIVERIES), id="all", marks=pytest.mark.thorough),
    ],
)
def test_three_captures_end_in_the_rows_of_their_databases(
    deliveries: Sequence[str], s3: SparkSession, bucket: Bucket, tmp_path: Path
) -> None:
    captures, batches = delivered(deliveries)
    bad = {**batches[0][0], "topic": "bad", "offset": 0, "value": "{"}
    mirroring = StoreMirroring(tmp_path, bucket).deliver([[*batches[0], bad], *batches[1:]])
    mirroring.run(s3)
    for capture in captures:
        assert not wrong(capture.differences(s3, mirroring))
    assert not list(tmp_path.rglob("_delta_log"))
    assert bucket.exists("checkpoint/owner/1.json")
    assert not list(bucket.files.rglob("_lakemirror_probe/*"))
    quarantine = s3.read.format("delta").load(f"{mirroring.checkpoint}/quarantine")
    assert [row["topic"] for row in quarantine.collect()] == ["bad"]
    assert sum(total["records"] for total in audited(s3, mirroring, ("records",)).values()) > 0
    before = mirroring.versions()
    mirroring.run(s3)
    assert mirroring.versions() == before, "a second run makes no new version"
