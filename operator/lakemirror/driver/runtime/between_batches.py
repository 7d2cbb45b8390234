"""Work that a run does between batches, on its quarantine and its tables."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

from lakemirror.driver.errors import CheckpointInUse, cause_of
from lakemirror.driver.runtime.backoff import Backoff
from lakemirror.driver.runtime.held import HeldRecords
from lakemirror.driver.runtime.replay_requests import ReplayRequests

_EVERY_SECONDS = 5.0
_LONGEST_DELAY_SECONDS = 300.0


class BetweenBatches:
    """Serves requests for replays, repairs and reloads, retries held records, and then does ``more``.

    ``collect`` collects tombstones. ``warn`` receives a message if one of these fails as a whole. If another
    driver has taken the checkpoint, they raise CheckpointInUse, which ends the run.
    """

    def __init__(
        self,
        requests: ReplayRequests,
        held: HeldRecords,
        warn: Callable[[str], None],
        more: Callable[[], object] = lambda: None,
        repairs: Callable[[], object] = lambda: None,
        reloads: Callable[[], object] = lambda: None,
        collect: Callable[[], object] = lambda: None,
    ) -> None:
        self._requests, self._held, self._warn, self._more = requests, held, warn, more
        self._repairs, self._reloads, self._collect = repairs, reloads, collect
        self._delays: Backoff[str] = Backoff(_EVERY_SECONDS, _LONGEST_DELAY_SECONDS)

    def serve_until(self, over: threading.Event) -> None:
        """Do what is due at once, and then every few seconds until the run is ``over``."""
        self.serve()
        while not over.wait(_EVERY_SECONDS):
            self.serve()

    def serve(self, *, last: bool = False) -> None:
        """Do what is due. ``last``: no batch follows in this run."""
        self._attempt("requests for a replay", lambda: self._recounting(self._requests.serve))
        self._attempt("requests for a repair", lambda: self._recounting(self._repairs))
        self._attempt("requests for a reload", lambda: self._recounting(self._reloads))
        self._attempt("held records", partial(self._held.serve, last=last))
        self._attempt("tombstones", self._collect)
        self._attempt("maintenance", self._more)

    def _recounting(self, serve: Callable[[], object]) -> None:
        """Serve requests. Any of them may have put records into the quarantine, or have taken some out."""
        if serve():
            self._held.recount()

    def _attempt(self, what: str, serve: Callable[[], object]) -> None:
        if not self._delays.is_due(what):
            return
        try:
            serve()
            self._delays.forget(what)
        except CheckpointInUse:
            raise
        except Exception as error:
            self._delays.failed(what)
            self._warn(f"{what} could not be served: {cause_of(error)}")
