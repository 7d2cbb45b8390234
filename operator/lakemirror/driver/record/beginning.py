"""Which batches in the audit belong to the current reading of the source, whatever the clocks showed.

The times of the audit only order batches of one checkpoint. They come from a clock that may have been ahead,
or gone back since. Therefore a checkpoint begins after all batches before it, and no batch is recorded with
an earlier time than those before it.
"""

from __future__ import annotations

from datetime import UTC, datetime

from lakemirror.driver.checkpoint.identity import Identity
from lakemirror.driver.record.history import AuditHistory

_EVER = datetime.min.replace(tzinfo=UTC)


def latest(history: AuditHistory, begun: Identity | None = None) -> datetime:
    """Return the time that no later batch may precede, and no later beginning."""
    known = [history.forgotten, None if begun is None else begun.begun_at, *history.committed.values()]
    return max((each for each in known if each is not None), default=_EVER)


def since(history: AuditHistory, begun: Identity) -> datetime:
    """Return from when on batches belong to the current reading of the source.

    Earlier versions recorded batches with the times that the clock showed. If one of this very query precedes
    its beginning, the clock was ahead then, and all batches count.
    """
    at = history.committed.get(begun.query_id)
    return _EVER if at is not None and at < begun.begun_at else begun.begun_at
