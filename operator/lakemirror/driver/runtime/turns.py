"""Who applies batches, and when: one at a time, whether of the source, of a resync or of a replay."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from pyspark.sql import DataFrame

from lakemirror.driver.checkpoint.owner import Owner
from lakemirror.driver.read.base import Batch
from lakemirror.driver.results import BatchResult


class Applier(Protocol):
    """What applies batches; see ``batch.BatchApplier``."""

    def apply(self, raw: DataFrame, batch: Batch) -> BatchResult: ...

    def collect_tombstones(self, *, caught_up: bool) -> int: ...

    def forget(self) -> None: ...


class Turns:
    """Gives appliers their turns, while ``owner`` has the checkpoint. ``first`` is that of the source."""

    def __init__(self, owner: Owner, first: Applier) -> None:
        self.first = first
        self._owner = owner
        self._appliers = [first]
        self._busy = threading.Lock()

    @property
    def alone(self) -> bool:
        """Whether the source's applier is the only one."""
        return len(self._appliers) == 1

    @contextmanager
    def turn(self, applier: Applier | None = None) -> Iterator[None]:
        """No other turn meanwhile; afterwards all appliers but this one read the mirrors anew.

        Raises CheckpointInUse where another driver has the checkpoint by now.
        """
        with self._busy:
            self._owner.check()
            try:
                yield
            finally:
                self._forget_all_but(applier)

    @contextmanager
    def pause(self) -> Iterator[None]:
        """No turn meanwhile, for work that changes no row: all appliers keep what they know of the mirrors.

        Raises CheckpointInUse where another driver has the checkpoint by now.
        """
        with self._busy:
            self._owner.check()
            yield

    def forget(self, applier: Applier) -> None:
        """Have an applier read the mirrors anew."""
        with self._busy:
            applier.forget()

    @contextmanager
    def shared_with(self, applier: Applier) -> Iterator[None]:
        """Another applier takes turns meanwhile."""
        self._appliers.append(applier)
        yield
        self._appliers.remove(applier)

    def _forget_all_but(self, applier: Applier | None) -> None:
        for each in self._appliers:
            if each is not applier:
                each.forget()
