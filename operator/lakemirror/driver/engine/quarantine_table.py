"""The quarantine without Spark: bad records are added, and what is open is counted, from the table's log.

This is for what each batch does. All else is left to `record.quarantine`: a table that does not exist yet, or
is one of an earlier version; records that may be in it already, which are not added twice; closing records.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar

import pyarrow as pa
from pyspark.sql import SparkSession

from lakemirror.driver.engine import bounds
from lakemirror.driver.engine.blocks import RawRecord
from lakemirror.driver.engine.commits import Author, DeltaTable, Overtaken
from lakemirror.driver.engine.file_systems import FileSystems
from lakemirror.driver.engine.key_search import KeySearch
from lakemirror.driver.engine.mirror_files import MirrorFiles, NotForEngine
from lakemirror.driver.engine.quarantine_rows import (
    OPEN,
    PLACE,
    AsideRecord,
    OpenRows,
    added_up,
    reason_against,
    rows_of,
)
from lakemirror.driver.engine.stored_ends import rows_of as stored_rows_of
from lakemirror.driver.engine.stored_rows import look_up
from lakemirror.driver.errors import cause_of, stops_pipeline
from lakemirror.driver.read.base import Batch
from lakemirror.driver.record import quarantine
from lakemirror.driver.record.aside import BadRecord
from lakemirror.driver.record.quarantine import OpenRecords
from lakemirror.driver.tables import housekeeping
from lakemirror.driver.writer.actions import Add
from lakemirror.driver.writer.data_files import Layout
from lakemirror.driver.writer.log_state import State
from lakemirror.driver.writer.schema import arrow_schema
from lakemirror.driver.writer.snapshot import Key
from lakemirror.driver.writer.transaction import Change

log = logging.getLogger(__name__)
Out = TypeVar("Out")

_ATTEMPTS: Final = 5
"""How often rows are added to a table that others change, too."""
_MOST_ROWS: Final = 2_000_000
"""Maximum number of rows of which columns are read here. Spark reads more of them side by side."""
_MANY_FILES: Final = 100
"""How many files of open records may have been added before they are combined.

Maintenance does the same between batches (`runtime.maintenance`), but looks only every few minutes, and in a
run with ``once`` at its end. Delta combines them: that takes a second or two, for each hundredth of the
batches that have bad records, and it chooses what fits into memory.
"""


class QuarantineTable:
    """The quarantine of a checkpoint. Not thread-safe.

    Whoever has batches applied begins each of them with ``systems.renew()``.
    """

    def __init__(self, spark: SparkSession, systems: FileSystems, checkpoint: str) -> None:
        self._spark, self._systems, self._path = spark, systems, quarantine.path(checkpoint)
        self._table: DeltaTable | None = None
        self._known: dict[Key, OpenRows] = {}
        """What is remembered of data files of open records."""
        self._own: Key | None = None
        """The data file that this batch has added."""
        self._combined = 0
        """How many files of open records there were after they were last combined."""

    def begin(self) -> None:
        """Begin a batch, or begin one again."""
        self._own = None

    def keep(self, records: Sequence[AsideRecord], batch: Batch, app_id: str) -> bool:
        """Add bad records of a batch, which have the scope ``record``.

        Returns False if Spark has to store them. They are not added then, unless the storage did not say
        whether they were, so that Spark may find them there.
        """
        whole = [(bad, raw) for bad, raw in records if raw is not None]
        if not whole or len(whole) != len(records):
            return False
        author = Author(app_id, batch.batch_id, batch.note)
        return self._tried(partial(self._added, whole, author, batch)) or False

    def open_counts(self) -> OpenRecords | None:
        """Return the number of open records, or None if Spark has to count them."""
        self._systems.renew()
        return self._tried(lambda: added_up(self._open_rows().values()))

    def may_correct(self, batch: Batch) -> bool:
        """Return whether a batch of files may have a line that is open, in another form.

        This is asked after the batch has kept its bad records: they have the form that it has.
        """
        names = {str(name).rpartition("/")[2] for name, _ in batch.extent.get("files", ())}
        found = self._tried(self._open_rows) if names else None
        if found is None:
            return True
        return not all(key == self._own or names.isdisjoint(each.names) for key, each in found.items())

    def _tried(self, step: Callable[[], Out]) -> Out | None:
        """Return the outcome of a step, or None if it is left to Spark."""
        try:
            return step()
        except Exception as error:
            if stops_pipeline(error, self._spark):
                raise
            if not isinstance(error, NotForEngine):
                self._table = None
            if isinstance(error, OSError):
                self._systems.doubt(self._systems.folder(self._path))
            log.debug("the quarantine is left to Spark: %s", cause_of(error))
            return None

    def _opened(self) -> tuple[DeltaTable, State]:
        """Return the table, and its newest state. Raises NotForEngine, NotPlain and errors of the storage."""
        if self._table is None:
            table = self._systems.table(self._systems.folder(self._path))
            state = table.refresh()
            if state is not None:
                self._systems.require_same(table)
                self._table = table
        else:
            table = self._table
            self._systems.renew_table(table)
            state = table.refresh()
        if state is None:
            raise NotForEngine("there is no quarantine yet")
        reason = reason_against(state.snapshot)
        if reason is not None:
            raise NotForEngine(reason)
        return table, state

    # -- adding -----------------------------------------------------------------------------------

    def _added(self, records: Sequence[tuple[BadRecord, RawRecord]], author: Author, batch: Batch) -> bool:
        """Add records, unless others are from the same places, or others keep changing the table."""
        rows = rows_of(records, batch.query_id, batch.batch_id, time.time_ns() // 1000)
        if len(rows["id"].unique()) != len(records):
            return False
        for _ in range(_ATTEMPTS):
            table, state = self._opened()
            if _may_have(table, state, rows):
                return False
            columns = arrow_schema(Layout.of(state.snapshot).columns).names
            try:
                table.commit(Change(rows=[rows.select(columns)]), author, time.time_ns() // 1_000_000)
            except Overtaken:
                continue
            if table.state is not None:
                [self._own] = table.state.snapshot.files.keys() - state.snapshot.files.keys()
                self._known[self._own] = OpenRows.of(rows.to_batches())
                self._combine(table.state)
            return True
        return False

    def _combine(self, state: State) -> None:
        """Have Delta combine the files of open records, if many were added. The table can do without that."""
        number = len(_open_files(state))
        if number - self._combined < _MANY_FILES:
            return
        self._combined = number
        try:
            housekeeping.optimize(housekeeping.session_for(self._spark), self._path)
            _, state = self._opened()
            self._combined = len(_open_files(state))
        except Exception as error:
            if stops_pipeline(error, self._spark):
                raise
            log.warning("files of the quarantine could not be combined: %s", cause_of(error))

    # -- reading ----------------------------------------------------------------------------------

    def _open_rows(self) -> dict[Key, OpenRows]:
        """Return what is remembered of all open records; of files that are new, once they are read."""
        table, state = self._opened()
        live = {each.key: each for each in _open_files(state)}
        new = [each for key, each in live.items() if key not in self._known]
        _require_few(new)
        layout = Layout.of(state.snapshot)
        read = {
            each.key: OpenRows.of(stored_rows_of(table.files, each, layout, OpenRows.COLUMNS)) for each in new
        }
        self._known = {key: each for key, each in self._known.items() if key in live} | read
        return self._known


def _open_files(state: State) -> list[Add]:
    column = next(iter(Layout.of(state.snapshot).dividing))
    return [each for each in state.snapshot.files.values() if each.values.get(column.physical) == OPEN]


def _may_have(table: DeltaTable, state: State, rows: pa.Table) -> bool:
    """Return whether the table has a row from the place of one of ``rows``, in whatever state."""
    layout = Layout.of(state.snapshot)
    keys = {name: rows[name].combine_chunks() for name in PLACE}
    search, columns = KeySearch(keys), [each for each in layout.columns if each.name in keys]
    files = [each for each in state.snapshot.files.values() if bounds.file_may_have(each, search, columns)]
    _require_few(files)
    if not files:
        return False
    mirror = MirrorFiles(
        state.snapshot.version, arrow_schema(layout.columns), layout, tuple(files), may_hide=False
    )
    return look_up(table.files, mirror, keys, threads=table.files.threads).num_rows > 0


def _require_few(files: Sequence[Add]) -> None:
    """Raise NotForEngine if files have too many rows, or do not say how many."""
    if not sum(_MOST_ROWS if each.rows is None else each.rows for each in files) <= _MOST_ROWS:
        raise NotForEngine("there are too many records to look at")
