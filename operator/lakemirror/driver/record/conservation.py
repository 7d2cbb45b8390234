"""The law of conservation: each record that was read has exactly one outcome.

Records are counted when they are classified (`overview`), and outcomes where they arise: in the state that is
merged, in the commit, and in the quarantine. If the two differ, the batch is not marked as done.
"""

from __future__ import annotations

from lakemirror.api.report import OUTCOMES, Counts
from lakemirror.driver.errors import RecordsUnaccounted
from lakemirror.driver.results import BatchResult

_REMEDY = "Nothing is marked done, and the batch is repeated. Please report this with these numbers"


def require_accounted(result: BatchResult, read: int) -> None:
    """Raise RecordsUnaccounted, with the numbers, if the outcomes do not add up to what was ``read``."""
    for table in result.tables.values():
        _require(f"batch {result.batch_id}, table {table.source}", table.counts, table.counts.records)
    _require(f"batch {result.batch_id}", result.counts, read)


def _require(where: str, counts: Counts, read: int) -> None:
    if counts.unaccounted or counts.records != read:
        numbers = ", ".join(f"{name}: {counts.values()[name]}" for name in OUTCOMES)
        raise RecordsUnaccounted(
            f"{where}: the outcomes do not add up to the {read} records that were read: {numbers}. {_REMEDY}"
        )


def require_stored(expected: int, found: int) -> None:
    """Raise RecordsUnaccounted if the quarantine stored a different number of records than were counted."""
    if found != expected:
        raise RecordsUnaccounted(
            f"{expected} records were to be kept in quarantine, and {found} were: {_REMEDY}"
        )
