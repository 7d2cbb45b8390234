"""Row images of a capture, and what they decode to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from lakemirror.driver.values import RowDecoder
from tests.support import records

CAPTURES = Path(__file__).parents[2] / "fixtures" / "debezium"


@dataclass
class Images:
    """The last image of each key of one table, as JSON text, and the envelope's schema (None without)."""

    schema: str | None = None
    last: dict[str, str] = field(default_factory=dict)
    all: list[str] = field(default_factory=list)


def of_capture(path: Path) -> dict[str, Images]:
    """Images by table (``schema.table``), by a last-one-wins reduction in offset order."""
    tables: dict[str, Images] = {}
    for record in records.read(path):
        value = json.loads(record["value"]) if record["value"] else {}
        payload = value.get("payload", value) if isinstance(value, dict) else {}
        if not isinstance(payload, dict) or payload.get("op") not in ("c", "r", "u", "d"):
            continue
        source = payload["source"]
        images = tables.setdefault(f"{source.get('schema') or source['db']}.{source['table']}", Images())
        if "schema" in value:
            images.schema = records.dumps(value["schema"])
        key = records.dumps(records.payload(record["key"]))
        if payload["op"] == "d":
            images.last.pop(key)
            continue
        images.last[key] = records.dumps(payload["after"])
        images.all.append(images.last[key])
    return tables


def wired(spark: SparkSession, decoder: RowDecoder, texts: list[str]) -> DataFrame:
    """Images as the wire struct ``wire`` beside their ``text``."""
    frame = spark.createDataFrame([(text,) for text in texts], "text STRING")
    return frame.withColumn("wire", decoder.parse(F.col("text")))


def values(spark: SparkSession, decoder: RowDecoder, texts: list[str]) -> DataFrame:
    """Images as decoded values."""
    decoded = decoder.project(F.col("wire"))
    return wired(spark, decoder, texts).select(*(d.value.alias(name) for name, d in decoded.items()))


def one(
    spark: SparkSession, decoder: RowDecoder, row: Mapping[str, Any] | str, name: str = "c"
) -> dict[str, Any]:
    """All that becomes of one column of one row; a TIMESTAMP as microseconds, and NTZ and DATE as text."""
    decoded = decoder.project(F.col("wire"))[name]
    text = row if isinstance(row, str) else records.dumps(row)
    columns = {
        "value": _plain(decoded.value, decoder.types[name]),
        "gap": decoded.gap,
        "unrepresentable": decoded.unrepresentable,
        "text": decoded.text,
        "misfit": decoded.misfit,
        "problem": decoder.problem(F.col("text"), F.col("wire")),
    }
    shown = [F.lit(None).alias(n) if c is None else c.alias(n) for n, c in columns.items()]
    return wired(spark, decoder, [text]).select(*shown).collect()[0].asDict(recursive=True)


def _plain(value: Any, type: DataType) -> Any:
    return {"timestamp": F.unix_micros, "timestamp_ntz": _text, "date": _text}.get(
        type.simpleString(), lambda column: column
    )(value)


def _text(column: Any) -> Any:
    return column.cast("string")
