"""Decides who applies batches and when: one at a time, from the source, a resync or a replay."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Protocol

from pyspark.sql import DataFrame

from lakemirror.driver.checkpoint.owner import Owner
from lakemirror.driver.read.base import Batch
from lakemirror.driver.results import BatchResult


class Applier(Protocol):
    """Applies batches; see ``batch.BatchApplier``."""

    def apply(self, raw: DataFrame, batch: Batch) -> BatchResult: ...

    def collect_tombstones(self, *, had_all_at: datetime | None) -> int: ...

    def forget(self) -> None: ...


class Turns:
    """Gives appliers their turns while ``owner`` has the checkpoint. ``first`` is the source's applier."""

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
        """Keep other turns away. Afterwards, all appliers except ``applier`` read the mirrors again.

        Raises CheckpointInUse if another driver has taken the checkpoint.
        """
        with self._busy:
            self._owner.check()
            try:
                yield
            finally:
                self._forget_all_but(applier)

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Keep all turns away, for work that changes no row.

        All appliers keep what they know about the mirrors. Raises CheckpointInUse if another driver has taken
        the checkpoint.
        """
        with self._busy:
            self._owner.check()
            yield

    def forget(self, applier: Applier) -> None:
        """Make an applier read the mirrors again."""
        with self._busy:
            applier.forget()

    @contextmanager
    def shared_with(self, applier: Applier) -> Iterator[None]:
        """Let another applier take turns while the context is active."""
        self._appliers.append(applier)
        try:
            yield
        finally:
            self._appliers.remove(applier)

    def _forget_all_but(self, applier: Applier | None) -> None:
        for each in self._appliers:
            if each is not applier:
                each.forget()
