"""Kafka records saved as JSON Lines, one record per line."""

from __future__ import annotations

import re
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from lakemirror.driver.expressions import kept
from lakemirror.driver.read.files.lines import BLOCK, lines, lines_alone
from lakemirror.driver.read.registry import SCHEMA_HEADERS

_LEAST_BLOCK: Final = 2 * 2**20
"""The maximum number of bytes of a file that a task reads in a small batch."""
LAST_MILLIS: Final = 253_370_764_799_999
"""The end of the year 9998. Later timestamps are treated as missing."""
_RECORD: Final = (
    "topic STRING, partition INT, offset BIGINT, timestamp BIGINT, "
    "key STRING, value STRING, headers ARRAY<ARRAY<STRING>>"
)


def read_records(spark: SparkSession, uris: list[str], *, size: int = 0, base64: bool = False) -> DataFrame:
    """Return the records of JSON Lines files as a frame of schema RAW. Blank lines are left out.

    ``size`` is the total size of the files in bytes.

    ``row`` counts lines from 0. (If Spark reads a file in several blocks, it is the block's first byte plus
    the line number in the block. It increases through the file, but counts lines only in the first block.)
    """
    steps = _steps(base64)
    return reduce(lambda frame, columns: frame.select(*columns), steps, _lines(spark, uris, size))


def read_lines(spark: SparkSession, uris: list[str], *, size: int = 0) -> DataFrame:
    """Return the lines of the records that `read_records` returns: line BINARY, row BIGINT, file STRING.

    The first row of a block has its ``file``, also if its line is blank, and so null (`lines.lines_alone`).
    """
    columns, says_something = _of_lines()
    return lines_alone(spark, uris, block_of(size)).select(*columns).where(says_something)


@kept
def _of_lines() -> tuple[list[Column], Column]:
    """Return the columns to select from lines, and the condition for a row."""
    line, row, file = map(F.col, ("line", "row", "file"))
    told = F.when(_is_not_blank(line), line.cast("binary")).alias("line")
    return [told, row, file], line.isNotNull() | file.isNotNull()


@kept
def _steps(base64: bool) -> list[list[Column]]:
    """Return the columns to select from lines, one list for each step."""
    fine = F.col("problem").isNull()

    def payload(name: str) -> Column:
        text = F.col(f"r.{name}")
        return F.try_to_binary(text, F.lit("base64")) if base64 else text.cast("binary")

    # A header that names a schema contains bytes, which text cannot represent.
    text = "CAST(get(h, 1) AS BINARY)"
    raw = f"IF(get(h, 0) RLIKE '{SCHEMA_HEADERS}', try_to_binary(get(h, 1), 'base64'), {text})"
    header = f"struct(get(h, 0) AS key, {raw if base64 else text} AS value)"
    record = [
        F.when(fine, F.col("r.topic")).alias("topic"),
        F.when(fine, F.col("r.partition")).alias("partition"),
        F.when(fine, F.col("r.offset")).alias("offset"),
        F.when(fine & F.col("r.timestamp").between(0, LAST_MILLIS), F.timestamp_millis("r.timestamp")).alias(
            "timestamp"
        ),
        F.when(fine, payload("key")).alias("key"),
        F.when(fine, payload("value")).otherwise(F.col("line").cast("binary")).alias("value"),
        F.when(fine, F.expr(f"transform(r.headers, h -> {header})")).alias("headers"),
        *map(F.col, ("file", "row", "problem")),
    ]
    problem = _problem(F.col("line"), F.col("r"), base64).alias("problem")
    return [[F.col("*"), _parsed(F.col("line")).alias("r")], [F.col("*"), problem], record]


def _lines(spark: SparkSession, uris: list[str], size: int) -> DataFrame:
    """Return (line, file, row) of all lines that are not blank."""
    return lines(spark, uris, block_of(size)).where(_is_not_blank(F.col("line")))


def block_of(size: int) -> int:
    """Return how many bytes of a file a task reads.

    It depends only on the batch, so that a replay numbers its lines the same way.
    """
    return min(max(size // 2 + 1, _LEAST_BLOCK), BLOCK)


def _is_not_blank(line: Column) -> Column:
    return line.startswith("{") | line.rlike(r"\S")


def _parsed(line: Column) -> Column:
    # Wrapped in an object, so that text after the record (two records on one line) is an error, too.
    schema = f"r STRUCT<{_struct_fields(_RECORD)}>, bad STRING"
    return F.from_json(
        F.concat(F.lit('{"r":'), line, F.lit("}")), schema, {"columnNameOfCorruptRecord": "bad"}
    ).getField("r")


def _problem(line: Column, record: Column, base64: bool) -> Column:
    """STRING: why a line is not a record; null if it is one."""
    checks = [
        (~F.is_valid_utf8(line), "the line is not valid UTF-8"),
        (
            ~_begins(line) | record.isNull(),
            "the line is not a JSON object of a record",
        ),
    ]
    checks += [
        (record[name].isNull(), f"the record has no {name}") for name in ("topic", "partition", "offset")
    ]
    if base64:
        for name in ("key", "value"):
            text = record[name]
            undecodable = text.isNotNull() & F.try_to_binary(text, F.lit("base64")).isNull()
            checks.append((undecodable, f"{name} is not base64, as envelope.encoding: avro wants it"))
    return F.coalesce(*(F.when(condition, F.lit(text)) for condition, text in checks))


def _begins(line: Column) -> Column:
    return line.startswith("{") | line.rlike(r"^\s*\{")


def _struct_fields(ddl: str) -> str:
    return re.sub(r"(\w+) (\w+(?:<.*>)?)(, |$)", r"\1: \2\3", ddl)
