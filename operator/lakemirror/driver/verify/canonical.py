"""Reduces rows of either side to a key and a digest, computed by a single engine."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    DataType,
    DateType,
    DecimalType,
    IntegralType,
    StringType,
    StructField,
    StructType,
)

from lakemirror.driver.tables import keys
from lakemirror.driver.tables.delta import quoted
from lakemirror.driver.verify.ranges import KeyRange
from lakemirror.driver.verify.sources import UNFIT, Compared

_RANGED = (IntegralType, DecimalType, StringType, DateType)
"""Types of a first key column that rows can be split into ranges by: Python and Spark order them alike."""


def has_ranges(compared: Compared) -> bool:
    """Return whether the rows of a table can be split into ranges of keys."""
    return bool(compared.key) and is_ranged(compared.columns[compared.key[0]])


def is_ranged(kind: DataType) -> bool:
    """Return whether Python and Spark order values of a type alike, and Python can represent all of them."""
    return isinstance(kind, _RANGED)


def canonical(rows: DataFrame, compared: Compared, *kept: str) -> DataFrame:
    """Return ``key`` STRING, ``first`` (the first key column) and ``digest`` BIGINT of each row.

    Columns that are ``kept`` follow. The key of a table without one is "".
    """
    values, members = [], []
    for index, (name, kind) in enumerate(compared.columns.items()):
        same = compared.same.get(name)
        value = F.col(quoted(name))
        values.append((value if same is None else same(value)).alias(f"c{index}"))
        members.append(StructField(f"c{index}", kind if same is None else StringType()))
    text = keys.comparable_row(F.struct(*values), StructType(members)) if values else F.lit("")
    unfit = [F.col(UNFIT)] if UNFIT in rows.columns else []
    return rows.select(
        key_text(compared).alias("key"),
        (F.col(quoted(compared.key[0])) if compared.key else F.lit(None).cast("string")).alias("first"),
        F.xxhash64(text, *unfit).alias("digest"),
        *kept,
    )


def key_type(compared: Compared) -> StructType:
    """Return the type of a key."""
    return StructType([StructField(name, compared.columns[name]) for name in compared.key])


def key_text(compared: Compared) -> Column:
    """STRING: the key of a row, in the format of tombstones."""
    if not compared.key:
        return F.lit("")
    return keys.encode(F.struct(*[F.col(quoted(name)) for name in compared.key]), key_type(compared))


def by_key(rows: DataFrame, *kept: str) -> DataFrame:
    """Return canonical rows with one digest per key, even if several rows share it.

    Columns that are ``kept`` have the value of one of these rows.
    """
    found = rows.groupBy("key").agg(
        F.count("*").alias("rows"),
        F.first("digest").alias("one"),
        _sum().alias("total"),
        *[F.first(name).alias(name) for name in kept],
    )
    digest = F.when(F.col("rows") == 1, F.col("one")).otherwise(F.xxhash64("rows", "total"))
    return found.select("key", digest.alias("digest"), *kept)


def digest_columns() -> list[Column]:
    """Return the aggregates that form a `ranges.Digest`."""
    mixed = F.coalesce(F.bit_xor("digest"), F.lit(0))
    return [F.count("*").alias("rows"), F.coalesce(_sum(), F.lit(0)).alias("total"), mixed.alias("mixed")]


def _sum() -> Column:
    return F.sum(F.col("digest").cast("decimal(38,0)"))


def literal(value: Any) -> Column:
    """Return a literal of a first key column. py4j cannot transfer dates before the year 1000."""
    return F.lit(value.isoformat()).cast("date") if isinstance(value, date) else F.lit(value)


def index_of(ranges: Sequence[KeyRange]) -> Column:
    """INT: the index of the range that contains ``first``, or -1. Ranges are in order and do not overlap."""
    return _between(list(enumerate(ranges)))


def _between(ranges: Sequence[tuple[int, KeyRange]]) -> Column:
    first = F.col("first")
    if len(ranges) == 1:
        [(index, only)] = ranges
        inside = F.lit(True)
        if only.low is not None:
            inside = inside & (first >= literal(only.low))
        if only.high is not None:
            inside = inside & (first < literal(only.high))
        if only.low is None:
            inside = inside | first.isNull()
        return F.when(inside, index).otherwise(-1)
    half = len(ranges) // 2
    low: Any = ranges[half][1].low
    below = first.isNull() | (first < literal(low))
    return F.when(below, _between(ranges[:half])).otherwise(_between(ranges[half:]))
