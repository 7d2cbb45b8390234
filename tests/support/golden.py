"""Golden files of the rules: what the driver stores, written by the driver itself.

``python -m tests.support.golden`` makes them anew. Mirrors, tombstones and quarantines hold these texts, so a
difference is a mistake, unless it is migrated.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructField, StructType

from lakemirror.driver.parse.envelopes.base import as_sent
from lakemirror.driver.parse.values import texts as writings
from lakemirror.driver.parse.values.connect import parse_key, schemaless
from lakemirror.driver.parse.values.decode import RowDecoder
from lakemirror.driver.record.quarantine import _identity
from lakemirror.driver.rules.keys import can_be_key
from lakemirror.driver.rules.kinds import Kind
from lakemirror.driver.runtime.session import create_session
from lakemirror.driver.tables import keys
from tests.support.values import HASHED, RECORDS, VALUES
from tests.support.wires import FIELDS, UNTYPED

FOLDER = Path(__file__).parents[1] / "driver" / "rules" / "golden"


def main() -> None:
    """Write all files."""
    spark = create_session(
        "golden", {"spark.master": "local[1]", "spark.driver.memory": "1g", "spark.ui.enabled": "false"}
    )
    write("keys", [_of_kind(spark, kind, values) for kind, values in VALUES])
    write("quarantine", _ids(spark))
    write("hashes", [_hash(spark, each) for each in HASHED])
    write("fields", [_of_field(spark, *each) for each in FIELDS])
    write("untyped", [_of_type(spark, *each) for each in UNTYPED])
    spark.stop()


def write(name: str, content: Any) -> None:
    text = json.dumps(content, ensure_ascii=True, indent=1)
    (FOLDER / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def read(name: str) -> Any:
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def spark_type(kind: Kind) -> DataType:
    return DataType.fromDDL(str(kind))


def _of_kind(spark: SparkSession, kind: Kind, values: Iterable[Any]) -> dict[str, Any]:
    """Return the texts of the values of a type, as key, row, canonical row and hash."""
    of_value = StructType([StructField("v", spark_type(kind))])
    frame = spark.createDataFrame(
        [((each,),) for each in [None, *values]], StructType([StructField("r", of_value)])
    )
    row = F.col("r")
    canonical = keys.canonical_row({"v": row["v"]}, {"v": of_value["v"].dataType})
    found = {
        "key": keys.encode(row, of_value) if can_be_key(kind) else F.lit(None),
        "row": keys.encode_row(row, of_value),
        "canonical": canonical,
        "hash": F.sha2(canonical, 256),
    }
    rows = frame.coalesce(1).select(*[column.alias(name) for name, column in found.items()]).collect()
    return {"type": str(kind), **{name: [each[name] for each in rows] for name in found}}


def _ids(spark: SparkSession) -> list[str]:
    raw = "topic STRING, partition INT, offset BIGINT, file STRING, row BIGINT, key BINARY, value BINARY"
    frame = spark.createDataFrame(RECORDS, raw).coalesce(1)
    return [each[0] for each in frame.select(_identity()).collect()]


def _hash(spark: SparkSession, values: Iterable[str | int | None]) -> int:
    columns = [F.lit(each).cast("bigint" if isinstance(each, int) else "string") for each in values]
    row = spark.range(1).select(F.xxhash64(*columns) if columns else F.lit(42)).first()
    assert row is not None
    return int(row[0])


def _of_field(spark: SparkSession, schema: dict[str, Any], kind: Kind | None, texts: Iterable[str]) -> Any:
    """Return what the driver makes of values of a field."""
    document = json.dumps({"type": "struct", "fields": [schema]})
    columns = None if kind is None else {"v": spark_type(kind)}
    return _decoded(spark, RowDecoder(parse_key(document), columns), texts)


def _of_type(spark: SparkSession, kind: Kind, writing: str, texts: Iterable[str]) -> Any:
    """Return what the driver makes of values without a schema."""
    decoder = RowDecoder([schemaless("v")], {"v": spark_type(kind)}, writing=getattr(writings, writing))
    return _decoded(spark, decoder, texts, as_sent)


def _decoded(
    spark: SparkSession,
    decoder: RowDecoder,
    texts: Iterable[str],
    given: Callable[[Column], Column] = lambda text: text,
) -> Any:
    frame = spark.createDataFrame([(f'{{"v": {each}}}',) for each in ["null", *texts]], "text STRING")
    frame = frame.coalesce(1).select(given(F.col("text")).alias("text"))
    frame = frame.select("text", decoder.parse(F.col("text")).alias("wire"))
    wire, found = F.col("wire"), decoder.project(F.col("wire"))["v"]
    kind = StructType([StructField("v", decoder.types["v"])])
    no = F.lit(False)
    doubt = decoder.doubt(wire)
    parts = {
        "value": keys.encode_row(F.struct(found.value.alias("v")), kind),
        "gap": no if found.gap is None else found.gap,
        "lost": no if found.unrepresentable is None else found.unrepresentable,
        "text": F.lit(None).cast("string") if found.text is None else found.text,
        "misfit": decoder.problem(F.col("text"), wire).isNotNull(),
        "rounded": no if found.rounded is None else found.rounded,
        "doubt": no if doubt is None else doubt.isNotNull(),
    }
    rows = frame.select(*[column.alias(name) for name, column in parts.items()]).collect()
    return {"type": decoder.types["v"].simpleString(), "rows": [list(each) for each in rows]}


if __name__ == "__main__":
    main()
