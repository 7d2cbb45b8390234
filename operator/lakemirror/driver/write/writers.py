"""Which writer a table has."""

from __future__ import annotations

from functools import cached_property
from typing import Final

from lakemirror.driver.plan.mirrored import MirroredTable
from lakemirror.driver.reduce.changes import Changes
from lakemirror.driver.write import direct
from lakemirror.driver.write.direct import DirectWriter
from lakemirror.driver.write.merge import MergeWriter
from lakemirror.driver.write.writer import Writer

SETTING: Final = "spark.lakemirror.writer"
"""A setting of Spark: ``merge`` has every table written with MERGE."""


class Writers:
    """The writers of one table, of which the fastest that can do it is taken."""

    def __init__(self, table: MirroredTable) -> None:
        self._table = table
        self.merged = True
        """Whether the batch before was written with MERGE."""

    def for_changes(self, changes: Changes) -> Writer:
        """The writer that carries out ``changes`` fastest."""
        mirror = self._table.mirror
        asked = self._table.spark.conf.get(SETTING, "") == "merge"
        self.merged = asked or bool(changes.untouched) or not direct.possible(mirror)
        return MergeWriter(mirror) if self.merged else self._direct

    @cached_property
    def _direct(self) -> DirectWriter:
        return DirectWriter(self._table.mirror, self._table.avoided)
