"""Row images of a capture, and what they decode to."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from lakemirror.driver.parse.values import Field, RowDecoder
from tests.support import records

CAPTURES = Path(__file__).parents[3] / "fixtures" / "debezium"


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


def outcomes(
    spark: SparkSession, field: Field, wire: list[Any], target: DataType | None = None, **options: Any
) -> list[dict[str, Any]]:
    """What becomes of one column's wire values (as JSON values), a dict each.

    ``value`` (a TIMESTAMP as microseconds, NTZ and DATE as text), ``text``, and ``is``: what holds of it, one
    of gap, unrepresentable, misfit, corrupt; None where none does. ``options`` are those of the decoder.
    """
    decoder = RowDecoder([field], None if target is None else {field.name: target}, **options)
    decoded = decoder.project(F.col("wire"))[field.name]
    flags = {"gap": decoded.gap, "unrepresentable": decoded.unrepresentable, "misfit": decoded.misfit}
    flags["corrupt"] = F.col(f"wire.{decoder.corrupt}").isNotNull()
    held = F.array_compact(F.array(*(F.when(c, F.lit(n)) for n, c in flags.items() if c is not None)))
    frame = wired(spark, decoder, [records.dumps({field.name: value}) for value in wire])
    value = _plain(decoded.value, decoder.types[field.name])
    text = F.lit(None) if decoded.text is None else decoded.text
    rows = frame.coalesce(1).select(value.alias("value"), text.alias("text"), held.alias("is")).collect()
    return [{**row.asDict(recursive=True), "is": ",".join(row["is"]) or None} for row in rows]


def fine(value: Any) -> dict[str, Any]:
    return {"value": value, "text": None, "is": None}


def lost(text: str | None) -> dict[str, Any]:
    return {"value": None, "text": text, "is": "unrepresentable"}


MISFIT = {"value": None, "text": None, "is": "misfit"}
CORRUPT = {"value": None, "text": None, "is": "corrupt"}
GAP = {"value": None, "text": None, "is": "gap"}


def _plain(value: Column, type: DataType) -> Column:
    name = type.simpleString()
    if name == "timestamp":
        return F.unix_micros(value)
    if "variant" in name:
        return F.to_json(value)
    return value.cast("string") if name in ("timestamp_ntz", "date") else value
