"""Threads beside the one that reads the source."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Threads:
    """The threads of a run: what one of them raises has all of them stop, and ends the run.

    ``requested`` tells whether the run was asked to stop.
    """

    def __init__(self, requested: Callable[[], bool]) -> None:
        self.requested = requested
        self._failure: BaseException | None = None

    def stopping(self) -> bool:
        """Whether all that is under way is to come to its end."""
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
        """Does ``work`` in a thread while this is entered; the event that it is given tells it to end.

        With ``wait`` it is told so only when it has ended by itself. ``interrupt`` is called when the run is
        interrupted meanwhile. Raises what a thread raised.
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
        except BaseException as error:  # also a crash that a test injects
            self._failure = error
