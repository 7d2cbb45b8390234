"""The columns of the tables that are mirrored: four, or as many as a benchmark asks for, after `id`."""

from __future__ import annotations

FEWEST = {"owner": "string", "balance": "bigint", "tier": "string", "updated_at": "timestamp"}


def types_of(columns: int) -> dict[str, str]:
    """Spark's types of so many columns. The further ones follow from the balance: numbers, texts."""
    kinds = ("bigint", "string")
    more = {f"extra_{n:02d}": kinds[n % 2] for n in range(columns - len(FEWEST))}
    return {**FEWEST, **more}


def names_of(columns: int) -> tuple[str, ...]:
    """The names of all columns, `id` included."""
    return ("id", *types_of(columns))
