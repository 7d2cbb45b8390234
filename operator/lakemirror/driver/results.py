"""What a batch did, table by table."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Final


@dataclass(frozen=True)
class Drift:
    """One change of a column: what changed, and what was done about it.

    ``change`` is one of added, widened, dropped, incompatible, unknown-type; ``action`` one of
    added, altered, kept, skipped, quarantined, stored-as-text. Types are Spark SQL names.
    """

    column: str
    change: str
    from_type: str | None
    to_type: str | None
    action: str
    since: datetime | None = None


@dataclass(frozen=True)
class TableResult:
    """What one batch did to one table. Counts are events, except the tombstone records (Kafka's)."""

    source: str
    target: str | None = None
    version: int | None = None
    events: int = 0
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    stale: int = 0
    duplicates: int = 0
    tombstone_records: int = 0
    tombstones_retained: int = 0
    late_after_collection: int = 0
    quarantined: int = 0
    rows: int | None = None
    last_event_time: datetime | None = None
    drift: tuple[Drift, ...] = ()
    error: str | None = None


COUNTS: Final = (
    "events",
    "inserted",
    "updated",
    "deleted",
    "stale",
    "duplicates",
    "tombstone_records",
    "late_after_collection",
    "quarantined",
)
"""Fields of a table's result that add up over batches."""


@dataclass(frozen=True)
class BatchResult:
    """What one batch did: ``records`` read, of them ``ignored`` (no row changes) and ``quarantined``."""

    batch_id: int
    records: int = 0
    ignored: int = 0
    quarantined: int = 0
    tables: dict[str, TableResult] = field(default_factory=dict)
