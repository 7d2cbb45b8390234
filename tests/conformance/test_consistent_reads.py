"""Captured changes of several tables: the versions that are named for a position are the source there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakemirror.driver.consistent.answer import ReadAt
from lakemirror.driver.runtime.read_at import read_at
from tests.conformance.captures import Capture
from tests.support.delivery import parts
from tests.support.mirroring import Mirroring, at, rows
from tests.support.records import Record, payload

pytestmark = pytest.mark.guarantee(
    "Whatever is reported as complete is complete; the versions named for a position show the source at that "
    "position"
)

CAPTURE = Capture("inventory")


def seq_of(record: Record) -> str | None:
    """The position of a captured change of PostgreSQL, from its record alone."""
    value = record["value"] and payload(record["value"])
    source = value.get("source") if isinstance(value, dict) else None
    if not source or source.get("lsn") is None or value.get("op") is None:
        return None
    last = int(json.loads(source["sequence"])[0] or 0)
    lsn, read = source["lsn"], value["op"] == "r"
    return f"{0:04x}{max(lsn, last):020x}{0 if read else lsn:020x}{0 if read else 1:08x}"


def until(position: str) -> Iterator[Record]:
    """The capture's changes up to a position."""
    for record in CAPTURE.records:
        seq = seq_of(record)
        if seq is not None and seq <= position:
            yield record


def same(spark: SparkSession, answer: ReadAt, reference: Mirroring) -> None:
    """Each table, as it is named to be read, has the rows of a mirror that got nothing else."""
    assert len(answer.tables) == len(CAPTURE.tables)
    for table in answer.tables:
        assert table.query is not None
        found = rows(spark.sql(table.query))
        expected = at(spark, reference.path(*table.source.split(".")))
        assert sorted(map(repr, found.select(sorted(found.columns)).collect())) == sorted(
            map(repr, expected.select(sorted(expected.columns)).collect())
        ), table.source


@pytest.mark.thorough
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mode", ["scd1", pytest.param("scd2", marks=pytest.mark.thorough)])
def test_a_join_of_the_versions_that_are_named_sees_one_state_of_the_source(
    mode: str, spark: SparkSession, tmp_path: Path
) -> None:
    mirroring = Mirroring(tmp_path / "all", {"defaults": {"mode": mode}})
    mirroring.deliver(parts(CAPTURE.records, 12)).run(spark)
    positions = sorted({seq for record in CAPTURE.records if (seq := seq_of(record)) is not None})
    wanted = positions[2 * len(positions) // 3]
    answer = read_at(mirroring.pipeline, wanted, settled=True, spark=spark)
    if mode == "scd1" and not answer.found:
        moment = answer.before or answer.after
        assert moment is not None, [table.reason for table in answer.tables]
        wanted = moment.seq
        answer = read_at(mirroring.pipeline, wanted, settled=True, spark=spark)
    assert answer.found, [table.reason for table in answer.tables]
    newest = read_at(mirroring.pipeline, positions[-1], settled=True, spark=spark)
    assert newest.found
    if mode == "scd1":
        assert {t.version for t in answer.tables} != {t.version for t in newest.tables}

    reference = Mirroring(tmp_path / "some").deliver([list(until(wanted))])
    reference.run(spark)
    same(spark, answer, reference)
    orders, customers = (
        next(table for table in answer.tables if table.source.endswith(name))
        for name in ("orders", "customers")
    )
    joined = spark.sql(
        f"SELECT count(*) FROM ({orders.query}) o LEFT ANTI JOIN ({customers.query}) c ON c.id = o.purchaser"
    ).first()
    assert joined is not None
    assert joined[0] == 0, "orders whose customer is not there"

    unsettled = read_at(mirroring.pipeline, positions[-1], spark=spark)
    assert not unsettled.found
    assert all("may not have arrived yet" in (table.reason or "") for table in unsettled.tables)
    document = json.loads(json.dumps(answer.to_document()))
    assert document["found"]
    assert [each["version"] for each in document["tables"]] == [each.version for each in answer.tables]
