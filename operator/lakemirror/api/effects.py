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

Besides, ``controller.fields.incompatible`` compares source kinds, and of each listed table its target, key,
mode, filter, shards, tracked columns, first moment and columns that the manifest adds or has computed, as
they come out of ``tables``, ``target`` and ``defaults`` together.
"""

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
