"""``ordering.by: columns``: which value comes before which, and what has no place."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from lakemirror.api.spec import PipelineSpec
from lakemirror.driver.parse.encodings import UNKNOWN_SCHEMA
from lakemirror.driver.parse.envelopes import chooser
from lakemirror.driver.read import rows
from lakemirror.driver.record import quarantine
from lakemirror.driver.sequence import VALUE, event_part, is_snapshot, own, sequence_of_values
from tests.driver.parse.envelopes.test_envelopes import classified
from tests.support.mirroring import Mirroring, at
from tests.support.ordered_values import IN_ORDER
from tests.support.records import Column
from tests.support.shop import Shop, decimal, table, timestamp

pytestmark = pytest.mark.guarantee(
    "A mirror equals its source after any delivery, also when columns of the rows define the order"
)

SPEC: dict[str, Any] = {
    "source": {"files": {"path": "in"}},
    "target": {"path": "lake/{table}"},
    "checkpoint": "state",
}


def test_sequences_compare_as_values_then_origin_then_offset(spark: SparkSession) -> None:
    rnd = random.Random(3)
    numbers = [Decimal(rnd.randint(-(10**k), 10**k)) / 10**9 for k in range(1, 38, 4) for _ in range(2)]
    values = [None, *sorted({*numbers, Decimal(0), Decimal("1E-9"), Decimal("-1E-9"), Decimal(10) ** 28})]
    wanted = [
        (value, second, snapshot, offset)
        for value in values
        for second in (None, Decimal(-1), Decimal(2))
        for snapshot, offset in ((True, 9), (False, 0), (False, 10), (False, 2**62))
    ]
    frame = spark.createDataFrame(wanted, f"a {VALUE}, b {VALUE}, snapshot BOOLEAN, offset BIGINT")
    seq = sequence_of_values(
        [F.col("a"), F.col("b")],
        snapshot=F.col("snapshot"),
        topic=F.lit("t"),
        partition=F.lit(0),
        offset=F.col("offset"),
        epochs=[],
    )
    made = frame.select("*", seq.alias("seq")).select(
        "*", is_snapshot(F.col("seq")).alias("old"), event_part(own(F.col("seq")), F.col("seq")).alias("part")
    )
    found = made.orderBy("seq").collect()
    assert [tuple(row)[:4] for row in found] == wanted
    assert {len(row["seq"]) for row in found} == {2 + 2 * 20 + 1 + 8}
    assert not any(row["old"] for row in found), "snapshot rows are told by positions, not by values"
    assert all(row["part"] == row["seq"] for row in found)


NO_TIMES = [
    "10:15",
    "10:15:00.5",
    "T10:15:00",
    "2024-01",
    "2024-01-02 junk",
    "2024-01-02junk",
    "2024-01-02 10:15:00 junk",
    "2024-01-02T10:15:00Z junk",
    "2024-00-15",
    "0000-00-00 00:00:00",
]
"""Texts that Spark casts to today's moment, or cuts, and dates that there are not."""


def test_values_of_custom_records_are_compared_as_what_they_are(spark: SparkSession) -> None:
    """A delete has the value of its before image where it has no other."""
    envelope = {"format": "custom", "fields": {"op": "op", "after": "new", "before": "old", "table": "t"}}
    made = chooser.classifier(
        PipelineSpec.model_validate(
            {**SPEC, "envelope": envelope, "ordering": {"by": "columns", "columns": ["new.v", "new.m.n"]}}
        )
    )
    good = [f'{{"op":"u","t":"s.t","new":{{"v":{v},"m":{{"n":1}}}}}}' for v in IN_ORDER]
    good.append(f'{{"op":"d","t":"s.t","old":{{"v":{IN_ORDER[-1]},"m":{{"n":1}}}}}}')
    bad = {
        '{"op":"u","t":"s.t","new":{"m":{"n":1}}}': "no new.v",
        '{"op":"u","t":"s.t","new":{"v":"abc","m":{"n":1}}}': "neither a number nor a time: abc",
        '{"op":"u","t":"s.t","new":{"v":"T12:00","m":{"n":1}}}': "neither a number nor a time",
        **{
            f'{{"op":"u","t":"s.t","new":{{"v":"{text}","m":{{"n":1}}}}}}': f"nor a time: {text}"
            for text in NO_TIMES
        },
        '{"op":"u","t":"s.t","new":{"v":true,"m":{"n":1}}}': "neither a number nor a time: true",
        '{"op":"u","t":"s.t","new":{"v":1e40,"m":{"n":1}}}': "neither a number nor a time",
        f'{{"op":"u","t":"s.t","new":{{"v":"{"1" * 39}","m":{{"n":1}}}}}}': "neither a number nor a time: 1",
        f'{{"op":"u","t":"s.t","new":{{"v":"{"1" * 33}.5","m":{{"n":1}}}}}}': "neither a number nor a time",
        '{"op":"u","t":"s.t","new":{"v":1}}': "no new.m.n",
        '{"op":"d","t":"s.t","old":{"v":1}}': "no new.m.n",
        '{"op":"t","t":"s.t"}': "a truncate has no row",
    }
    events = classified(spark, made, [('{"id":1}', value) for value in (*good, *bad)])
    placed, apart = events[: len(good)], events[len(good) :]
    assert [event["reason"] for event in placed] == [None] * len(good)
    seqs = [bytes(event["seq"]) for event in placed]
    assert seqs == sorted(set(seqs))
    for event, why in zip(apart, bad.values(), strict=True):
        assert (event["kind"], event["seq"]) == ("no place", None)
        assert why in event["reason"]


def test_records_of_debezium_without_schema_need_none(spark: SparkSession) -> None:
    made = chooser.classifier(
        PipelineSpec.model_validate({**SPEC, "ordering": {"by": "columns", "columns": ["v"]}})
    )
    source = '{"connector":"postgresql","name":"p","db":"d","schema":"s","table":"t","lsn":1}'
    value = f'{{"op":"c","before":null,"after":{{"id":1,"v":5}},"source":{source},"ts_ms":1}}'
    [event] = classified(spark, made, [('{"id":1}', value)])
    assert (event["kind"], event["reason"]) == ("change", None)
    assert event["seq"] is not None


@pytest.mark.long
def test_values_of_typed_custom_records_are_compared_as_what_they_are(spark: SparkSession) -> None:
    """As rows of Parquet and Avro come: decimals as bytes, dates and times as numbers. Of some decimals the
    base64 of the bytes is digits.
    """
    kinds = {
        "decimal(20,2)": ["null", "-26588.24", "-3276.80", "0", "655.36", "26588.24", "5e15"],
        "date": ["null", "'0001-01-01'", "'1969-12-31'", "'1970-01-01'", "'2026-11-23'"],
        "timestamp": [
            "null",
            "'1960-01-01T00:00:00Z'",
            "'2026-01-01T00:00:00.000001Z'",
            "'2026-11-23T00:00:00Z'",
        ],
        "timestamp_ntz": ["null", "'1969-12-31T23:59:59.999999'", "'1970-01-01T00:00:00'", "'2300-01-01'"],
        "bigint": ["null", "-9223372036854775808", "9", "10", "9223372036854775807"],
        "double": ["null", "-1e9", "0.5", "9", "10"],
        "decimal(38,0)": ["-20240115123456780000000000000000123", "7", "20240115123456780000000000000000123"],
        "string": ["null", "'9'", "'10'", "'2026-11-23'", "'20240115123456780000000000000000123'"],
    }
    documents = []
    for kind, texts in kinds.items():
        values = ", ".join(f"({number}, CAST({text} AS {kind}))" for number, text in enumerate(texts))
        typed = spark.sql(
            f"SELECT number, named_struct('v', v) AS after FROM VALUES {values} AS t(number, v)"
        )
        fields = typed.schema.fields[1:]
        text = rows.document(rows.schema_of(fields), rows.wire(fields))
        documents += [row[0] for row in typed.orderBy("number").select(text).collect()]
    spec = {"envelope": {"format": "custom", "fields": {"after": "after"}}}
    made = chooser.classifier(
        PipelineSpec.model_validate({**SPEC, **spec, "ordering": {"by": "columns", "columns": ["after.v"]}})
    )
    records = [('{"id":1}', document) for document in documents]
    first = classified(spark, made, records)
    assert {event["reason"] for event in first} == {UNKNOWN_SCHEMA}
    known = {event["schema_id"]: event["schema_text"] for event in first}
    assert len(known) == len(kinds)
    events = iter(classified(spark, made, records, known=known))
    for kind, texts in kinds.items():
        mine = [next(events) for _ in texts]
        assert [event["reason"] for event in mine] == [None] * len(texts), kind
        seqs = [bytes(event["seq"]) for event in mine]
        assert seqs == sorted(set(seqs)), kind


@pytest.mark.thorough
def test_columns_have_the_types_of_their_schema(spark: SparkSession, tmp_path: Path) -> None:
    """A decimal comes as bytes in base64, a time as a number. Without a schema nothing tells the base64 of
    bytes from digits, so that such records wait, as do a truncate and a delete whose before image was made
    up. A mirror keeps its order.
    """
    shop = Shop()
    columns = (decimal("v", 20, 2), timestamp("at"))
    full, bare = table("full", *columns, full=True), table("bare", *columns)
    plain = table("plain", replace(columns[0], default="AA=="), columns[1])  # zero, as a delete has it
    second = 1_000_000
    old, new = "+wA=", "AQAA"  # -3276.80 and 655.36: as text the first is the greater
    records = [
        *shop.create(full, id=1, v=old, at=None),
        *shop.update(full, id=1, v=new, at=None),
        *shop.update(full, id=1, v=old, at=9 * second),
        *shop.create(full, id=2, v=new, at=2 * second),
        *shop.update(full, id=2, v=new, at=None),
        *shop.create(full, id=3, v=new, at=None),
        *shop.delete(full, id=3, v=new, at=None),
        *shop.create(plain, id=1, v=new, at=second),
        *shop.delete(plain, id=1, v=new, at=second),
        *shop.truncate(plain),
        *map(_bare, shop.create(bare, id=1, v=new, at=second)),
    ]
    settings = {"ordering": {"by": "columns", "columns": ["v", "at"]}}
    mirroring = Mirroring(tmp_path, settings).deliver([records])
    mirroring.run(spark)
    found = at(spark, mirroring.path("demo", "public", "full")).orderBy("id").collect()
    assert [(row["id"], str(row["v"])) for row in found] == [(1, "655.36"), (2, "655.36")]
    assert found[1]["at"] is not None
    assert at(spark, mirroring.path("demo", "public", "plain")).count() == 1
    aside = quarantine.read(spark, str(mirroring.checkpoint))
    assert aside is not None
    assert [row["reason"][:44] for row in aside.orderBy("reason").collect()] == [
        "a delete whose before image may lack orderin",
        "a truncate has no row, so that ordering.colu",
        "v of ordering.columns (v, at) is neither a n",
    ]

    changed = Mirroring(tmp_path, {"ordering": {"by": "timestamp"}, "checkpoint": str(tmp_path / "other")})
    error = changed.run(spark).tables["demo.public.full"].error
    assert error is not None
    assert 'in the order of ["v", "at"], and the order of time is asked for now' in error


@pytest.mark.thorough
def test_a_mirror_keeps_its_kind_of_order(spark: SparkSession, tmp_path: Path) -> None:
    """Times are above all positions: a row that was placed by its time would never change again."""
    shop, items = Shop(), table("items", Column("v", "int32"))

    def ordered(by: str) -> str:
        settings = {"ordering": {"by": by}, "checkpoint": str(tmp_path / by)}
        return Mirroring(tmp_path, settings).run(spark).tables["demo.public.items"].error or ""

    Mirroring(tmp_path).deliver([shop.create(items, id=1, v=1)])
    assert ordered("auto") == ordered("lsn") == ""
    for by in ("timestamp", "offset"):
        said = ordered(by)
        assert "was made in the order of positions, and the order of" in said
        assert "Choose another target with a new resyncToken, or set ordering as it was" in said
    mirror = Mirroring(tmp_path).path("demo", "public", "items")
    spark.sql(f"ALTER TABLE delta.`{mirror}` UNSET TBLPROPERTIES ('lakemirror.ordering')")
    assert "made in the order of" not in ordered("timestamp"), "an earlier mirror does not say"


def _bare(record: dict[str, Any]) -> dict[str, Any]:
    """The record as JsonConverter writes it without schemas."""
    texts = {name: record[name] for name in ("key", "value")}
    return {
        **record,
        **{name: text and json.dumps(json.loads(text)["payload"]) for name, text in texts.items()},
    }


@pytest.mark.long
def test_a_schema_that_cannot_be_read_leaves_its_records_aside(spark: SparkSession, tmp_path: Path) -> None:
    shop, items = Shop(), table("items", Column("v", "int32"), full=True)
    good = shop.create(items, id=1, v=1)
    broken = [
        {**record, "value": record["value"].replace('"int32"', '"int33"')}
        for record in shop.update(items, id=1, v=2)
    ]
    mirroring = Mirroring(tmp_path, {"ordering": {"by": "columns", "columns": ["v"]}})
    summary = mirroring.deliver([good, broken, shop.update(items, id=1, v=3)]).run(spark)
    assert [tuple(row) for row in at(spark, mirroring.path("demo", "public", "items")).collect()] == [(1, 3)]
    aside = quarantine.read(spark, str(mirroring.checkpoint))
    assert aside is not None
    assert ["schema cannot be read" in row["reason"] for row in aside.collect()] == [True]
    assert summary.batches == 3
