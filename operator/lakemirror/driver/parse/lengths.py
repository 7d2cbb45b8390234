"""Sets apart the events whose names are longer than a limit (`lakemirror.api.limits`)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F

from lakemirror.api.limits import CONNECTOR_LENGTH, NAME_LENGTH, TOPIC_LENGTH, Limit

NOT_ADMITTED: Final = "not admitted"
"""``kind`` of an event that may not be applied; ``reason`` says why."""

_PARTS: Final = ("database", "schema", "table")
_LONGEST: Final[dict[str, tuple[Limit, str]]] = {
    **dict.fromkeys(_PARTS, (NAME_LENGTH, "the name of its table")),
    **dict.fromkeys(("stream", "server"), (CONNECTOR_LENGTH, "the name of its connector or server")),
    "topic": (TOPIC_LENGTH, "the name of its topic"),
}
"""The limit of each column, and what the column is."""


def step(columns: Sequence[str]) -> list[Column]:
    """Return the ``columns`` of a classified event, set apart (`NOT_ADMITTED`) if a name is too long.

    The longer names are null then, so that nothing keeps them. The topic stays: it locates the record.
    """
    long = {name: F.length(name) > limit.most for name, (limit, _) in _LONGEST.items()}
    reason = F.coalesce(
        *[
            F.when(
                long[name],
                F.concat(F.lit(f"{what} has "), F.length(name), F.lit(f" characters: beyond {limit}")),
            )
            for name, (limit, what) in _LONGEST.items()
        ]
    )
    apart = F.col("kind").isin("change", "truncate") & F.coalesce(
        reduce(Column.__or__, long.values()), F.lit(False)
    )
    kept = {name: ~F.coalesce(each, F.lit(False)) for name, each in long.items() if name != "topic"}
    whole = reduce(Column.__and__, [kept.pop(name) for name in _PARTS])  # a part alone is another name
    kept |= dict.fromkeys(_PARTS, whole)
    changed = {
        "kind": F.when(apart, NOT_ADMITTED).otherwise(F.col("kind")),
        "reason": F.when(apart, reason).otherwise(F.col("reason")),
        **{name: F.when(condition, F.col(name)) for name, condition in kept.items()},
    }
    return [changed.get(name, F.col(name)).alias(name) for name in columns]
