"""What each field of the spec means for a running driver: the one table by which changes are judged.

The operator judges by it (``controller.fields``), and the CRD's rules on changes that the checkpoint cannot
follow are derived from it.
"""

from __future__ import annotations

from enum import Enum


class Effect(Enum):
    """What a change of a field needs."""

    LIVE = "the operator alone acts upon it; the driver goes on"
    RESTART = "the driver is restarted once, from its checkpoint"
    RESET = "the checkpoint cannot follow it: refused until spec.spark.resetToken changes too"


EFFECTS: dict[str, Effect] = {
    "suspend": Effect.LIVE,
    "restartToken": Effect.RESTART,
    "source": Effect.RESTART,
    "source.kafka": Effect.RESTART,
    "source.files": Effect.RESTART,
    "source.files.path": Effect.RESET,
    "source.files.format": Effect.RESET,
    "source.files.table": Effect.RESET,
    "source.changeFeed": Effect.RESTART,
    "source.changeFeed.path": Effect.RESET,
    "source.changeFeed.table": Effect.RESET,
    "envelope": Effect.RESTART,
    "envelope.format": Effect.RESET,
    "target": Effect.RESTART,
    "target.path": Effect.RESET,
    "target.table": Effect.RESET,
    "target.jdbc": Effect.RESTART,
    "target.jdbc.url": Effect.RESET,
    "defaults": Effect.RESTART,
    "defaults.mode": Effect.RESET,
    "unlisted": Effect.RESTART,
    "tables": Effect.RESTART,
    "ordering": Effect.RESTART,
    "ordering.by": Effect.RESET,
    "ordering.columns": Effect.RESET,
    "schemaEvolution": Effect.RESTART,
    "driftAcknowledgedUntil": Effect.LIVE,
    "onBadRecord": Effect.RESTART,
    "onUnrepresentable": Effect.RESTART,
    "tombstones": Effect.RESTART,
    "retention": Effect.RESTART,
    "checkpoint": Effect.RESET,
    "trigger": Effect.RESTART,
    "trigger.schedule": Effect.LIVE,
    "maintenance": Effect.RESTART,
    "verify": Effect.RESTART,
    "progressDeadline": Effect.LIVE,
    "restart": Effect.LIVE,
    "deletionPolicy": Effect.LIVE,
    "spark": Effect.RESTART,
    "spark.resetToken": Effect.RESTART,
}
"""The longest path that a field's path begins with tells its effect.

Besides, ``controller.fields.incompatible`` compares source kinds, and of each table the settings that its
mirror cannot follow (`KEPT_ROWS`), as they come out of ``tables``, ``target`` and ``defaults`` together.
"""


class KeptRows(Enum):
    """What becomes of the rows that a mirror has already when a setting changes."""

    REFUSED = "the table is refused until it has a new target with a new resyncToken, or the former value"
    KEPT_OR_LATER = (
        "a column of the mirror cannot be left out: the table is refused; one that is taken in has no value "
        "in a row until its next change, and the drift says in how many rows"
    )
    CARRIED_OUT = (
        "rows are changed as well; where a type cannot hold the values, the drift says in how many rows"
    )
    LATER = "rows stay as they are until their next change"
    UNAFFECTED = "rows mean the same as before"


KEPT_ROWS: dict[str, KeptRows] = {
    "tables.source": KeptRows.UNAFFECTED,
    "tables.topics": KeptRows.UNAFFECTED,
    "tables.primaryKey": KeptRows.REFUSED,
    "tables.mode": KeptRows.REFUSED,
    "tables.target": KeptRows.REFUSED,
    "tables.target.compatibility": KeptRows.UNAFFECTED,
    "tables.target.changeFeed": KeptRows.UNAFFECTED,
    "tables.columns.include": KeptRows.KEPT_OR_LATER,
    "tables.columns.exclude": KeptRows.KEPT_OR_LATER,
    "tables.columns.rename": KeptRows.CARRIED_OUT,
    "tables.columns.types": KeptRows.CARRIED_OUT,
    "tables.columns.encodings": KeptRows.LATER,
    "tables.columns.metadata": KeptRows.REFUSED,
    "tables.columns.rowHash": KeptRows.REFUSED,
    "tables.columns.keyHash": KeptRows.REFUSED,
    "tables.columns.identity": KeptRows.REFUSED,
    "tables.columns.expressions": KeptRows.REFUSED,
    "tables.delete": KeptRows.REFUSED,
    "tables.onConflict": KeptRows.UNAFFECTED,
    "tables.filter": KeptRows.REFUSED,
    "tables.expectations": KeptRows.LATER,
    "tables.trackedColumns": KeptRows.REFUSED,
    "tables.initialValidFrom": KeptRows.REFUSED,
    "tables.mergeShards": KeptRows.REFUSED,
    "tables.suspend": KeptRows.UNAFFECTED,
    "tables.snapshot": KeptRows.UNAFFECTED,
    "tables.resyncToken": KeptRows.UNAFFECTED,
    "target": KeptRows.REFUSED,
    "target.compatibility": KeptRows.UNAFFECTED,
    "target.changeFeed": KeptRows.UNAFFECTED,
    "defaults.mode": KeptRows.REFUSED,
    "defaults.delete": KeptRows.REFUSED,
    "ordering.by": KeptRows.REFUSED,
    "ordering.columns": KeptRows.REFUSED,
    "ordering.epochs": KeptRows.UNAFFECTED,
    "ordering.toleranceMs": KeptRows.UNAFFECTED,
    "schemaEvolution": KeptRows.LATER,
    "onUnrepresentable": KeptRows.LATER,
}
"""What a change of a setting does to stored rows, by path (below ``tables`` without the entry). A test holds
docs/operator.md to it. `NOT_OF_ROWS` has the fields that say nothing about rows.
"""

NOT_OF_ROWS = frozenset(
    {
        "suspend",
        "restartToken",
        "source",
        "envelope",
        "unlisted",
        "driftAcknowledgedUntil",
        "onBadRecord",
        "tombstones",
        "retention",
        "checkpoint",
        "trigger",
        "maintenance",
        "verify",
        "progressDeadline",
        "restart",
        "deletionPolicy",
        "spark",
    }
)

KEPT_BY_MIRRORS = ("defaults.mode", "ordering.by", "ordering.columns")
"""Fields that need another target as well: mirrors that are there stay as they were made."""

WHERE_IT_ENDS: dict[str, str] = {"target.jdbc.url": "?"}
"""Of fields that need a reset, the mark that ends what must not change. What comes after it are options."""


def effect(path: str) -> Effect:
    """Return what a change of the field ``path`` (dotted, below spec) needs.

    Raises KeyError if it is not in the table.
    """
    parts = path.split(".")
    prefixes = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return EFFECTS[next((prefix for prefix in prefixes if prefix in EFFECTS), path)]
