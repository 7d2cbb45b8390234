"""Every row image of the ``types`` captures, in each of the connector's modes, against the source's rows."""

from __future__ import annotations

from functools import cache

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DateType, StringType, TimestampNTZType, TimestampType

from lakemirror.driver.parse.values import RowDecoder, infer, parse_envelope, resolve, schemaless
from tests.driver.parse.values import images
from tests.support import records, truth

pytestmark = pytest.mark.guarantee("Types are exact")

TYPES = images.CAPTURES / "types"
TABLES = ["public.types_full", "public.types_default"]
KEY = ("id",)


@cache
def captured(variant: str) -> dict[str, images.Images]:
    return images.of_capture(TYPES / f"{variant}.jsonl.gz")


def decoder_of(variant: str, table: str, columns: dict[str, DataType] | None = None) -> RowDecoder:
    schema = captured(variant)[table].schema
    assert schema is not None
    return RowDecoder(parse_envelope(schema), columns)


def differences(
    spark: SparkSession, decoder: RowDecoder, variant: str, table: str, millis: bool = False
) -> list[str]:
    mirror = images.values(spark, decoder, list(captured(variant)[table].last.values()))
    rows = truth.load_truth(TYPES / "truth" / f"{table}.jsonl", KEY)
    kinds = truth.source_types(TYPES)[table]
    return truth.diff(truth.collect(mirror), rows, kinds, mirror.schema, KEY, millis=millis)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("variant", ["jsons", "jsonalt", "jsonconnect"])
def test_decoded_rows_equal_the_sources(spark: SparkSession, variant: str, table: str) -> None:
    decoder = decoder_of(variant, table)
    assert decoder.unknown == {}
    assert differences(spark, decoder, variant, table, millis=variant == "jsonconnect") == []


@pytest.mark.parametrize("variant", ["jsons", "jsonalt", "jsonconnect"])
def test_as_text_unrepresentable_values_have_the_sources_spelling(spark: SparkSession, variant: str) -> None:
    table = TABLES[0]
    temporal = (DateType, TimestampType, TimestampNTZType)
    natural = decoder_of(variant, table).types
    as_text = {name: StringType() for name, kind in natural.items() if isinstance(kind, temporal)}
    decoder = decoder_of(variant, table, {**natural, **as_text})
    assert differences(spark, decoder, variant, table, millis=variant == "jsonconnect") == []


@pytest.mark.parametrize("variant", ["jsons", "jsonalt", "jsonconnect"])
def test_only_infinities_and_bc_are_unrepresentable(spark: SparkSession, variant: str) -> None:
    decoder = decoder_of(variant, TABLES[0])
    decoded = decoder.project(F.col("wire"))
    marked = {n: d for n, d in decoded.items() if d.unrepresentable is not None and d.text is not None}
    frame = images.wired(spark, decoder, captured(variant)[TABLES[0]].all)
    rows = frame.select("wire.id", *(d.text.alias(n) for n, d in marked.items())).collect()
    found = {(r["id"], n): r[n] for r in rows for n in marked if r[n] is not None}
    assert found == {
        (7, "c_date"): "infinity",
        (7, "c_ts"): "infinity",
        (7, "c_tstz"): "-infinity",
        (8, "c_date"): "0044-03-15 BC",
        (8, "c_ts"): "0044-03-15 12:00:00 BC",
        (8, "c_tstz"): "0044-03-15 12:00:00+00 BC",
    }


@pytest.mark.parametrize("variant", ["jsons", "jsonalt", "jsonconnect"])
def test_no_captured_row_is_bad(spark: SparkSession, variant: str) -> None:
    for table in TABLES:
        decoder = decoder_of(variant, table)
        frame = images.wired(spark, decoder, captured(variant)[table].all)
        problem = decoder.problem(F.col("text"), F.col("wire"))
        assert frame.select(problem.alias("p")).where("p IS NOT NULL").collect() == []


@pytest.mark.parametrize("table", TABLES)
def test_without_schemas_rows_equal_the_sources_in_physical_form(spark: SparkSession, table: str) -> None:
    texts = captured("json")[table].all
    found = infer(spark.createDataFrame([(table, text) for text in texts], "table STRING, text STRING"))
    types = resolve(found[table], {}, {})
    decoder = RowDecoder([schemaless(name) for name in types], types)
    assert list(types) == list(truth.source_types(TYPES)[table])
    # What needs the schema stays physical: see truth.py. A VariableScaleDecimal tells its scale itself.
    assert types["c_num"] == StringType()
    rows = images.values(spark, decoder, list(captured("json")[table].last.values()))
    kinds = truth.source_types(TYPES)[table]
    expected = truth.load_truth(TYPES / "truth" / f"{table}.jsonl", KEY)
    problems = truth.diff(truth.collect(rows), expected, kinds, rows.schema, KEY)
    nothing_in_spark = [("c_date", 7), ("c_ts", 7), ("c_tstz", 7), ("c_date", 8), ("c_ts", 8), ("c_tstz", 8)]
    unexpected = [
        p for p in problems if not any(f"row ({i},), column {c} " in p for c, i in nothing_in_spark)
    ]
    assert unexpected == []


@pytest.mark.parametrize("table", TABLES)
def test_without_schemas_known_types_give_the_same_values(spark: SparkSession, table: str) -> None:
    """The table exists, with the types that schemas gave it: they decode what is unambiguous."""
    types = decoder_of("jsons", table).types
    decoder = RowDecoder([schemaless(name) for name in types], types)
    assert differences(spark, decoder, "json", table) == []


@pytest.mark.parametrize("scenario", ["inventory", "composite_pk", "pk_change", "mariadb_inventory"])
def test_other_captures_too(spark: SparkSession, scenario: str) -> None:
    path = images.CAPTURES / scenario
    keys = truth.primary_keys(records.read(path / "jsons.jsonl.gz"))
    for table, found in images.of_capture(path / "jsons.jsonl.gz").items():
        assert found.schema is not None
        mirror = images.values(spark, RowDecoder(parse_envelope(found.schema)), list(found.last.values()))
        expected = truth.load_truth(path / "truth" / f"{table}.jsonl", keys[table])
        kinds = truth.source_types(path)[table]
        assert truth.diff(truth.collect(mirror), expected, kinds, mirror.schema, keys[table]) == []
