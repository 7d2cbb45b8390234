"""Tracks whether the source can be reached. Each request to it ends in an answer, an error, or hangs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from lakemirror.api.report import SourceReport
from lakemirror.driver.document import iso
from lakemirror.driver.errors import cause_of

_UNANSWERED_SECONDS = 60.0
"""A request that takes longer counts as unanswered."""
_SOURCE = "source"


class SourceWatch:
    """Records how requests to the source ended. Thread-safe.

    ``tell`` is called with the state when the source is reached, is lost, or is lost for another reason.
    """

    def __init__(self, tell: Callable[[SourceReport], None] = lambda said: None) -> None:
        self._tell = tell
        self._lock = threading.Lock()
        self._said = SourceReport()
        self._away: dict[str, str] = {}
        self._asked: dict[int, float] = {}

    @contextmanager
    def asking(self, why: Callable[[Exception], str] = cause_of, *, of: str = _SOURCE) -> Iterator[None]:
        """Make a request to the source inside this context.

        The source is reached if that succeeds, and lost if it raises. ``why`` explains the error. Something
        that the source cannot be read without, such as a schema registry, is a part ``of`` its own. The
        source is lost while any part is.
        """
        thread = threading.get_ident()
        self._asked[thread] = time.monotonic()
        try:
            yield
        except Exception as error:
            self._lost(why(error), of)
            raise
        finally:
            del self._asked[thread]
        self._reached(of)

    @property
    def said(self) -> SourceReport:
        """The current state."""
        waited = time.monotonic() - min(list(self._asked.values()), default=time.monotonic())
        with self._lock:
            if self._said.lost_since is not None or waited < _UNANSWERED_SECONDS:
                return self._said
            since = iso(datetime.now(UTC) - timedelta(seconds=waited))
            return self._said.model_copy(
                update={"lost_since": since, "error": f"it has not answered for {waited:.0f} s"}
            )

    @property
    def lost(self) -> str | None:
        """Why the source cannot be reached, or None if it can, as far as is known."""
        return self.said.error

    def _reached(self, part: str) -> None:
        with self._lock:
            before = self._said
            if self._away.pop(part, None) is None and (part != _SOURCE or self._away):
                return
            if self._away:
                self._said = now = before.model_copy(update={"error": next(iter(self._away.values()))})
            else:
                first = before.reached_at or iso(datetime.now(UTC))
                self._said = now = SourceReport(reached_at=first)
        if now != before:
            self._tell(now)

    def _lost(self, error: str, part: str) -> None:
        with self._lock:
            before = self._said
            self._away[part] = error
            since = before.lost_since or iso(datetime.now(UTC))
            self._said = now = before.model_copy(update={"lost_since": since, "error": error})
        if now != before:
            self._tell(now)
