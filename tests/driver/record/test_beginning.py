"""What belongs to the current reading of the source does not depend on what clocks show."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from lakemirror.driver.checkpoint import identity
from lakemirror.driver.checkpoint.identity import Identity
from lakemirror.driver.checkpoint.storage import LocalStorage
from lakemirror.driver.record.beginning import latest, since
from lakemirror.driver.record.history import AuditHistory

pytestmark = pytest.mark.guarantee(
    "No clock decides: not whether a target may move, which rows of files are newer, how far the source is "
    "applied, or when the next comparison is due"
)

NOW = datetime(2026, 3, 1, tzinfo=UTC)
YEAR = timedelta(days=365)


def test_no_batch_precedes_the_beginning_or_an_earlier_batch() -> None:
    begun = Identity("q", "files", NOW)
    assert latest(AuditHistory()) < NOW
    assert latest(AuditHistory(), begun) == NOW
    assert latest(AuditHistory(committed={"q": NOW + YEAR, "r": NOW}), begun) == NOW + YEAR


def test_a_query_whose_batches_precede_its_beginning_began_with_a_clock_that_was_ahead() -> None:
    begun = Identity("q", "files", NOW)
    assert since(AuditHistory(), begun) == NOW
    assert since(AuditHistory(committed={"q": NOW, "former": NOW - YEAR}), begun) == NOW
    assert since(AuditHistory(committed={"q": NOW - YEAR}), begun) < NOW - 1000 * YEAR


def test_a_reading_begins_after_all_batches_before_it(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    identity.begin_after(storage, NOW)  # nothing has begun
    query = identity.query_id(storage, "files", started=False)
    for moment in (datetime.now(UTC) + YEAR, NOW - YEAR):
        identity.begin_after(storage, moment)
        begun = identity.stored(storage)
        assert begun is not None
        assert begun.begun_at > moment
    assert begun.query_id == query
    assert begun.begun_at > datetime.now(UTC) + YEAR / 2, "it does not begin earlier than it did"
