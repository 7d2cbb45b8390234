"""Threads that run beside the one that reads the source."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Threads:
    """The threads of a run. An exception in one of them stops all of them and ends the run.

    ``requested`` returns whether the run was asked to stop.
    """

    def __init__(self, requested: Callable[[], bool]) -> None:
        self.requested = requested
        self._failure: BaseException | None = None

    def stopping(self) -> bool:
        """Return whether all work in progress should stop."""
        return self.requested() or self._failure is not None

    @contextmanager
    def beside(
        self,
        name: str,
        work: Callable[[threading.Event], None],
        *,
        wait: bool = False,
        interrupt: Callable[[], None] = lambda: None,
    ) -> Iterator[None]:
        """Run ``work`` in a thread while the context is active. The event that it receives tells it to end.

        With ``wait``, the event is set only after the thread has ended on its own. ``interrupt`` is called if
        the run is interrupted while the context is active. Raises what a thread raised.
        """
        over = threading.Event()
        thread = threading.Thread(target=self._work, args=(work, over), name=name, daemon=True)
        thread.start()
        try:
            yield
            if wait:
                thread.join()
        except KeyboardInterrupt:
            interrupt()
            raise
        finally:
            over.set()
            thread.join()
        if self._failure is not None:
            raise self._failure

    def _work(self, work: Callable[[threading.Event], None], over: threading.Event) -> None:
        try:
            work(over)
        except BaseException as error:  # including a crash that a test injects
            self._failure = error
