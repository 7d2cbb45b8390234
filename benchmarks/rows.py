"""The rows of the source. The initial ones follow from their keys, in Python and in Polars alike."""

from __future__ import annotations

import polars as pl

from benchmarks.columns import FEWEST, types_of
from benchmarks.records import iso

Row = tuple[int, int, int, int]
"""The owner's number, the balance, the tier's number, and the time of the change in microseconds."""

START = 1_790_000_000_000_000
TIERS = (None, "basic", "gold")
_OWNERS = 1_000_000
_MULTIPLIER = 2_654_435_761


def first(key: int) -> Row:
    """Return the initial row of a key."""
    mixed = key * _MULTIPLIER % 2**32
    return mixed % _OWNERS, mixed * 200 - 10**9, mixed % 3, START


def as_json(row: Row, columns: int) -> list[str]:
    """Return the row's values as JSON."""
    owner, balance, tier, at = row
    tier_text = "null" if TIERS[tier] is None else f'"{TIERS[tier]}"'
    values = [f'"owner {owner} ż"', str(balance), tier_text, f'"{iso(at)}"']
    more = range(columns - len(FEWEST))
    return values + [f'"note {balance + n}"' if n % 2 else str(balance + n) for n in more]


def firsts(keys: pl.DataFrame) -> pl.DataFrame:
    """Return the initial rows of the keys in a column `id`, as in `Row`."""
    mixed = pl.col("id").cast(pl.UInt64) * _MULTIPLIER % 2**32
    return keys.select(
        "id",
        (mixed % _OWNERS).cast(pl.Int64).alias("owner"),
        (mixed.cast(pl.Int64) * 200 - 10**9).alias("balance"),
        (mixed % 3).cast(pl.Int64).alias("tier"),
        pl.lit(START).alias("at"),
    )


def as_table(rows: pl.DataFrame, columns: int) -> pl.DataFrame:
    """Return the table's columns, from rows as in `Row`."""
    tier = pl.col("tier").replace_strict(dict(enumerate(TIERS)), return_dtype=pl.String)
    return rows.select(
        pl.col("id").cast(pl.Int32),
        pl.format("owner {} ż", "owner").alias("owner"),
        "balance",
        tier.alias("tier"),
        pl.col("at").cast(pl.Datetime("us", "UTC")).alias("updated_at"),
        *_further(columns),
    )


def _further(columns: int) -> list[pl.Expr]:
    shown = []
    for n, (name, kind) in enumerate(list(types_of(columns).items())[len(FEWEST) :]):
        number = pl.col("balance") + n
        shown.append((number if kind == "bigint" else pl.format("note {}", number)).alias(name))
    return shown
