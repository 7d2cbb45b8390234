"""Finds the epochs that tables and logs are in (`lakemirror.driver.profile.epochs`).

Mirrors and the audit are only asked if the manifest declares an epoch at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property

from lakemirror.api import CdcPipeline
from lakemirror.driver.checkpoint.storage import Storage
from lakemirror.driver.plan.mirrored import MirroredTable
from lakemirror.driver.profile.epochs import epoch_of_log, epoch_of_table
from lakemirror.driver.profile.positions import Memory
from lakemirror.driver.read.offset_log import partitions_of
from lakemirror.driver.sequence import epoch_of


class TableEpochs:
    """The epochs of the tables of ``pipeline``. ``memory`` returns what is remembered of its streams."""

    def __init__(self, pipeline: CdcPipeline, storage: Storage, memory: Callable[[], Memory]) -> None:
        self._pipeline, self._storage, self._ask = pipeline, storage, memory
        self._ordering = pipeline.spec.order
        self.declared = tuple(each.epoch for each in self._ordering.epochs)

    def lowest(self, table: MirroredTable) -> int:
        """Return the lowest epoch among the partitions of a table."""
        if not self.declared:
            return 0
        return epoch_of_table(table.origins(), self._partitions, self._ordering)

    def to_write(self, table: MirroredTable) -> int:
        """Return the epoch in which rows of a table are written that do not come from its stream.

        It is at least that of the last truncate: what is below that is stale anyway.
        """
        floor = table.tombstone_summary.floor
        return max(self.lowest(table), epoch_of(floor) if floor is not None else 0)

    def of_log(self, log: str | None) -> int:
        """Return the epoch that a log is in now."""
        return epoch_of_log(self._memory, log, self._ordering) if self.declared else 0

    @cached_property
    def _memory(self) -> Memory:
        return self._ask()

    @cached_property
    def _partitions(self) -> Mapping[str, set[int]]:
        """The partitions of each topic, as far as the checkpoint knows them."""
        found = partitions_of(self._pipeline, self._storage)
        for stream in self._memory:
            found.setdefault(stream.topic, set()).add(stream.partition)
        return found
