"""The columns of the mirrored tables: after `id`, four or as many as a benchmark asks for."""

from __future__ import annotations

FEWEST = {"owner": "string", "balance": "bigint", "tier": "string", "updated_at": "timestamp"}


def types_of(columns: int) -> dict[str, str]:
    """Return the Spark types of this many columns.

    The additional ones follow from the balance and are numbers and texts.
    """
    kinds = ("bigint", "string")
    more = {f"extra_{n:02d}": kinds[n % 2] for n in range(columns - len(FEWEST))}
    return {**FEWEST, **more}


def all_types_of(columns: int) -> dict[str, str]:
    """Return the Spark types of all columns, including `id`."""
    return {"id": "int", **types_of(columns)}


def names_of(columns: int) -> tuple[str, ...]:
    """Return the names of all columns, including `id`."""
    return ("id", *types_of(columns))
