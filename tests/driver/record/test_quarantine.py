"""Records that cannot be applied: kept whole, with a reason, and applied later when they can be."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from delta import DeltaTable
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructType

from lakemirror.api.report import Report
from lakemirror.driver.checkpoint.owner import Owner
from lakemirror.driver.checkpoint.storage import open_storage
from lakemirror.driver.errors import BadRecordRefused
from lakemirror.driver.read.base import Batch
from lakemirror.driver.record import quarantine
from lakemirror.driver.runtime.replayer import replay
from lakemirror.driver.tables import creation, delta
from tests.support.mirroring import Mirroring, at
from tests.support.records import Column, Record
from tests.support.shop import Shop, table, timestamp, with_payload

pytestmark = pytest.mark.guarantee("Nothing is lost")

ITEMS = table("items", Column("v", "int32"), timestamp("until"))
INFINITY = 9223372036825200000
NARROW = {"tables": [{"source": "public.items", "columns": {"types": {"v": "smallint"}}}]}
WIDE = {
    "tables": [{"source": "public.items", "columns": {"types": {"v": "int"}}}],
    "onUnrepresentable": "text",
}
SOURCE = "demo.public.items"


def quarantined(spark: SparkSession, mirroring: Mirroring) -> dict[int, Row]:
    """The quarantine's rows by offset."""
    rows = spark.read.format("delta").load(f"{mirroring.checkpoint}/quarantine").collect()
    assert len({row["offset"] for row in rows}) == len(rows)
    return {row["offset"]: row for row in rows}


def told_open(mirroring: Mirroring) -> tuple[int, int]:
    """Open records in the report: in all, and of the table."""
    said = Report.read(json.loads((mirroring.checkpoint / "progress.json").read_text("utf-8")))
    assert said is not None
    return said.totals.quarantined_open, next(t.quarantined_open for t in said.tables if t.source == SOURCE)


@pytest.mark.long
def test_bad_records_are_kept_whole_and_replayed_when_they_can_be_applied(
    spark: SparkSession, tmp_path: Path
) -> None:
    shop = Shop()
    records: list[Record] = [
        *shop.create(ITEMS, id=1, v=1, until=None),
        *shop.garbage(ITEMS, '{"payload": {"op": '),
        *shop.keyless(ITEMS, id=2, v=2, until=None),
        *[with_payload(record, op="z") for record in shop.create(ITEMS, id=3, v=3, until=None)],
        *shop.create(ITEMS, id=4, v=100_000, until=None),
        *shop.create(ITEMS, id=5, v=5, until=INFINITY),
        *shop.create(ITEMS, id=6, v=6, until=None),
    ]
    mirroring = Mirroring(tmp_path, NARROW).deliver([records])
    summary = mirroring.run(spark)

    assert ids(spark, mirroring) == [1, 6]
    assert (summary.counts.records, summary.counts.quarantined) == (7, 5)
    counts = summary.tables[SOURCE].counts
    assert (counts.inserted, counts.quarantined) == (2, 3)
    assert told_open(mirroring) == (5, 4)
    kept = quarantined(spark, mirroring)
    assert {offset: (row["state"], row["source"]) for offset, row in kept.items()} == {
        1: ("open", None),
        2: ("open", SOURCE),
        3: ("open", SOURCE),
        4: ("open", SOURCE),
        5: ("open", SOURCE),
    }
    reasons = {
        1: "not a Debezium JSON object",
        2: "the key is missing",
        3: "unknown op 'z'",
        4: "v (smallint)",
        5: "until: Spark cannot represent infinity",
    }
    for offset, reason in reasons.items():
        row, record = kept[offset], records[offset]
        assert reason in row["reason"]
        assert bytes(row["value"]).decode() == record["value"]
        assert (row["key"] and bytes(row["key"]).decode()) == record["key"]
        assert [[h["key"], bytes(h["value"]).decode()] for h in row["headers"]] == record["headers"]
        assert (row["topic"], row["partition"]) == (record["topic"], record["partition"])
        assert row["file"].endswith("part-00000.jsonl")

    corrected = Mirroring(tmp_path, WIDE)
    with Owner(open_storage(str(corrected.checkpoint), spark), run_id="another"):
        filed = replay(corrected.pipeline, reason="smallint", spark=spark, timeout=0)
    assert filed.filed
    assert (corrected.checkpoint / "replay" / f"{filed.request}.json").exists()
    assert ids(spark, corrected) == [1, 6]
    corrected.run(spark)  # has no new records, and serves the request
    assert ids(spark, corrected) == [1, 4, 6]
    assert states(spark, corrected) == {1: "open", 2: "open", 3: "open", 4: "replayed", 5: "open"}
    assert told_open(corrected) == (4, 3)

    outcome = replay(corrected.pipeline, spark=spark)
    assert (outcome.records, outcome.still_bad, outcome.filed) == (4, 3, False)
    assert ids(spark, corrected) == [1, 4, 5, 6]
    assert states(spark, corrected) == {1: "open", 2: "open", 3: "open", 4: "replayed", 5: "replayed"}
    stored = spark.read.format("delta").load(corrected.path("demo", "public", "items"))
    assert [row["__unrepresentable"] for row in stored.where("id = 5").collect()] == [{"until": "infinity"}]
    assert replay(corrected.pipeline, reason="smallint", spark=spark).records == 0


def test_fail_names_the_record_and_writes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    shop = Shop()
    records = [*shop.create(ITEMS, id=1, v=1, until=None), *shop.create(ITEMS, id=2, v=100_000, until=None)]
    mirroring = Mirroring(tmp_path, {**NARROW, "onBadRecord": "fail"}).deliver([records])
    with pytest.raises(BadRecordRefused, match=r"demo\.public\.items/0/1: .*v \(smallint\)"):
        mirroring.run(spark)
    assert mirroring.versions() == {}
    assert not (mirroring.checkpoint / "quarantine").exists()
    assert not (mirroring.checkpoint / "audit").exists()


def bad(place: str, reason: str, scope: str | None = None, **other: str) -> str:
    """A record for `store`, as a SELECT."""
    source = other.get("source", "'demo.public.items'")
    value = other.get("value", "'v'")
    scoped = "" if scope is None else f", '{scope}' AS scope"
    return (
        f"SELECT {source} AS source, '{reason}' AS reason{scoped}, 't' AS topic, 0 AS partition, "
        f"1L AS offset, current_timestamp() AS timestamp, CAST(NULL AS BINARY) AS key, "
        f"CAST({value} AS BINARY) AS value, "
        f"CAST(NULL AS ARRAY<STRUCT<key: STRING, value: BINARY>>) AS headers, "
        f"'{place}' AS file, 0L AS row, CAST(NULL AS STRING) AS problem"
    )


def test_what_is_open_is_counted_and_a_replayed_record_that_is_bad_again_is_open_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    """In a table that an earlier version has made, without scopes."""
    where = str(tmp_path)
    assert quarantine.open_counts(spark, where) == {}
    columns = DataType.fromDDL(quarantine.COLUMNS.removesuffix(", scope STRING"))
    assert isinstance(columns, StructType)
    creation.create(spark, quarantine.path(where), columns)
    old = f"SELECT 'x' AS id, 'open' AS state, * FROM ({bad('old', 'as it was')})"
    spark.sql(old).write.format("delta").mode("append").save(quarantine.path(where))
    assert quarantine.open_counts(spark, where) == {SOURCE: {"record": 1}}

    def store(batch: int, *records: str) -> None:
        quarantine.store(spark.sql(" UNION ALL ".join(records)), where, Batch("q", batch))

    store(
        0,
        bad("a", "first"),
        bad("b", "first"),
        bad("b", "first"),
        bad("a", "no table", source="NULL", value="'w'"),
    )
    assert quarantine.open_counts(spark, where) == {SOURCE: {"record": 3}, "": {"record": 1}}
    version = DeltaTable.forPath(spark, quarantine.path(where)).history(1).collect()[0]["version"]
    store(1, bad("a", "parked", "table"), bad("c", "unsure", "order"))
    DeltaTable.forPath(spark, quarantine.path(where)).update("file = 'b'", {"state": F.lit("replayed")})
    assert quarantine.open_counts(spark, where)[SOURCE] == {"record": 1, "table": 1, "order": 1}
    store(2, bad("b", "second", "record"), bad("c", "refused", "table"))
    rows = quarantine.read(spark, where)
    assert rows is not None
    found = {
        r["file"]: (r["state"], r["scope"], r["reason"], r["batch_id"])
        for r in rows.where("source IS NOT NULL").collect()
    }
    assert found == {
        "old": ("open", "record", "as it was", None),
        "a": ("open", "table", "parked", 1),
        "b": ("open", "record", "second", 2),
        "c": ("open", "order", "refused", 2),  # what decides it is still its place in the order
    }
    before = quarantine.read(spark, where, version)
    assert before is not None
    assert before.count() == 4
    DeltaTable.forPath(spark, quarantine.path(where)).update("file = 'a'", {"state": F.lit("discarded")})
    for _ in range(2):
        assert quarantine.forget(spark, where, datetime.now(UTC) - timedelta(days=1)) == 0
        rows = quarantine.read(spark, where)
        assert rows is not None
        assert {row["file"]: row["state"] for row in rows.collect()} == {
            **dict.fromkeys(("old", "b", "c"), "open"),
            "a": "discarded",
        }
        # What is closed is not read for what is open.
        assert {"state=open" in each for each in rows.where("state = 'open'").inputFiles()} == {True}


@pytest.mark.guarantee("What is closed in the quarantine is not read for what is open")
def test_open_records_have_files_of_their_own(spark: SparkSession, tmp_path: Path) -> None:
    """A file that is gone in them is found, and so is a folder."""
    where = str(tmp_path)
    quarantine.store(spark.sql(f"{bad('a', 'first')} UNION ALL {bad('b', 'first')}"), where, Batch("q", 0))
    quarantine.close(spark, where, F.col("file") == "a")
    quarantine.store(spark.sql(bad("c", "first")), where, Batch("q", 1))
    folders = {each.name: each for each in (tmp_path / "quarantine").glob("state=*")}
    assert folders.keys() == {"state=open", "state=replayed"}
    assert quarantine.open_counts(spark, where) == {SOURCE: {"record": 2}}
    rows = quarantine.read(spark, where)
    assert rows is not None
    # Files of before are still in the folder, which no version that is read has.
    file = rows.where("file = 'c'").inputFiles()[0]
    (folders["state=open"] / file.rpartition("/")[2]).unlink()
    assert quarantine.open_counts(spark, where) == {SOURCE: {"record": 1}}
    shutil.rmtree(folders["state=open"])
    assert quarantine.open_counts(spark, where) == {}


@pytest.mark.guarantee("What is closed in the quarantine is not read for what is open")
def test_what_was_closed_is_read_only_for_records_from_the_same_places(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A file of closed records that is gone is not missed by others, with and without positions."""
    where = str(tmp_path)

    def store(number: int, *records: str) -> int:
        return quarantine.store(spark.sql(" UNION ALL ".join(records)), where, Batch("q", number))

    def placed(*place: str) -> str:
        names = ("topic", "partition", "offset", "file", "row")
        listed = ", ".join(f"{value} AS {name}" for value, name in zip(place, names, strict=True))
        return f"SELECT * EXCEPT ({', '.join(names)}), {listed} FROM ({bad('x', 'first')})"

    def kafka(partition: int, offset: int) -> str:
        return placed("'t'", f"{partition}", f"{offset}L", "CAST(NULL AS STRING)", "CAST(NULL AS BIGINT)")

    def line(file: str, row: int) -> str:
        return placed(
            "CAST(NULL AS STRING)", "CAST(NULL AS INT)", "CAST(NULL AS BIGINT)", f"'{file}'", f"{row}L"
        )

    assert store(0, kafka(0, 10), kafka(1, 7_000), kafka(1, 7_000), line("a", 3), line("b", 9)) == 4
    quarantine.close(spark, where, F.col("state") == "open")
    version = delta.snapshot(spark, quarantine.path(where)).version()
    [closed] = (tmp_path / "quarantine" / "state=replayed").glob("*.parquet")
    hidden = closed.with_name("hidden")
    closed.rename(hidden)
    # Other places: later ones of each partition, and other lines.
    assert store(1, kafka(0, 7_001), kafka(1, 7_001), line("a", 10), line("c", 4)) == 4
    assert store(2, *[kafka(partition, 7_001) for partition in range(2, 40)]) == 38
    assert delta.snapshot(spark, quarantine.path(where)).version() == version + 2, "no file was missed"
    hidden.rename(closed)
    assert store(3, kafka(0, 10), line("b", 9)) == 2
    assert store(3, kafka(0, 10), line("b", 9)) == 2
    rows = quarantine.read(spark, where)
    assert rows is not None
    states = rows.groupBy("state").agg(F.count("*"), F.count_distinct("id")).collect()
    assert sorted(map(tuple, states)) == [("open", 44, 44), ("replayed", 2, 2)]


def ids(spark: SparkSession, mirroring: Mirroring) -> list[int]:
    return sorted(row["id"] for row in at(spark, mirroring.path("demo", "public", "items")).collect())


def states(spark: SparkSession, mirroring: Mirroring) -> dict[int, str]:
    return {offset: row["state"] for offset, row in quarantined(spark, mirroring).items()}
