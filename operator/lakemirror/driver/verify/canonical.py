"""Rows of either side as a key, a digest and nothing else, by one engine."""

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
"""Types of a first key column by which rows are cut into ranges: those whose order Python and Spark share."""


def has_ranges(compared: Compared) -> bool:
    """Whether the rows of a table can be cut into ranges of keys."""
    return bool(compared.key) and is_ranged(compared.columns[compared.key[0]])


def is_ranged(kind: DataType) -> bool:
    """Whether Python and Spark order values of a type alike, and Python has them all."""
    return isinstance(kind, _RANGED)


def canonical(rows: DataFrame, compared: Compared, *kept: str) -> DataFrame:
    """``key`` STRING, ``first`` (the first key column) and ``digest`` BIGINT of each row; and columns that
    are ``kept``. The key of a table without one is "".
    """
    values, members = [], []
    for index, (name, kind) in enumerate(compared.columns.items()):
        same = compared.same.get(name)
        value = F.col(quoted(name))
        values.append((value if same is None else same(value)).alias(f"c{index}"))
        members.append(StructField(f"c{index}", kind if same is None else StringType()))
    text = keys.encode_row(F.struct(*values), StructType(members)) if values else F.lit("")
    unfit = [F.col(UNFIT)] if UNFIT in rows.columns else []
    return rows.select(
        key_text(compared).alias("key"),
        (F.col(quoted(compared.key[0])) if compared.key else F.lit(None).cast("string")).alias("first"),
        F.xxhash64(text, *unfit).alias("digest"),
        *kept,
    )


def key_type(compared: Compared) -> StructType:
    """The type of a key."""
    return StructType([StructField(name, compared.columns[name]) for name in compared.key])


def key_text(compared: Compared) -> Column:
    """STRING: the key of a row, as tombstones have it."""
    if not compared.key:
        return F.lit("")
    return keys.encode(F.struct(*[F.col(quoted(name)) for name in compared.key]), key_type(compared))


def by_key(rows: DataFrame, *kept: str) -> DataFrame:
    """Canonical rows with one digest a key, also where rows share it; and of columns that are ``kept`` the
    value of one of them.
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
    """The aggregates that are a `ranges.Digest`."""
    mixed = F.coalesce(F.bit_xor("digest"), F.lit(0))
    return [F.count("*").alias("rows"), F.coalesce(_sum(), F.lit(0)).alias("total"), mixed.alias("mixed")]


def _sum() -> Column:
    return F.sum(F.col("digest").cast("decimal(38,0)"))


def literal(value: Any) -> Column:
    """A value of a first key column; py4j cannot hand over dates before the year 1000."""
    return F.lit(value.isoformat()).cast("date") if isinstance(value, date) else F.lit(value)


def index_of(ranges: Sequence[KeyRange]) -> Column:
    """INT: in which of these ranges, which are in order and do not meet, ``first`` lies; -1 in none."""
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
