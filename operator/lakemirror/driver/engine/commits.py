"""Commits what a job has made of a table: its tombstones first, and then its rows."""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from lakemirror.driver import faults
from lakemirror.driver.engine import table_change
from lakemirror.driver.engine.buckets import Done
from lakemirror.driver.engine.mirror_files import path_of
from lakemirror.driver.engine.stored_ends import as_rows, recorded
from lakemirror.driver.engine.table_change import TableChange, together
from lakemirror.driver.raised import LakemirrorError
from lakemirror.driver.rules.kinds import Kind
from lakemirror.driver.tables.commits import parse
from lakemirror.driver.tables.delta import SELDOM_READ
from lakemirror.driver.tables.tombstones import TYPES
from lakemirror.driver.writer import entry, log_state
from lakemirror.driver.writer.actions import Action, CommitInfo, Metadata, Protocol, Transaction
from lakemirror.driver.writer.attempt import complete, store
from lakemirror.driver.writer.checkpointing import keep_short
from lakemirror.driver.writer.entry import LOG, Committed, LogStore, name_of
from lakemirror.driver.writer.log_state import State
from lakemirror.driver.writer.stores import Files, LocalDisk, LocalLogStore
from lakemirror.driver.writer.transaction import Change, prepare

log = logging.getLogger(__name__)

_DISK = LocalDisk()
_IN_SCHEMAS: Mapping[str, Any] = {
    "int": "integer",
    "bigint": "long",
    "map<string, binary>": {
        "type": "map",
        "keyType": "string",
        "valueType": "binary",
        "valueContainsNull": True,
    },
}
"""The types of SQL that have other names in a table's schema (PROTOCOL.md, Schema Serialization Format)."""
_NONE: Mapping[str, str] = MappingProxyType({})
_ATTEMPTS = 5
"""How often rows are added to a table of our own that others change, too."""


class Overtaken(LakemirrorError):
    """Somebody else has changed a table since it was read."""


@dataclass(frozen=True)
class Author:
    """Who commits: the application and number of the batch, and what a commit notes about it."""

    app_id: str
    number: int
    note: Mapping[str, Any]


def _not_needed() -> None:
    return None


class DeltaTable:
    """A Delta table, as its log says.

    ``files`` may be set anew, because those of an object store need keys, which change.
    """

    def __init__(
        self, folder: str, files: Files, log: LogStore, by_delta: Callable[[], object] = _not_needed
    ) -> None:
        """``by_delta`` makes Delta write a checkpoint of the table's log, where that is needed."""
        self.folder, self.files, self.log, self._by_delta = folder, files, log, by_delta
        self._state: State | None = None

    @classmethod
    def on_disk(
        cls, folder: Path, by_delta: Callable[[], object] = _not_needed, disk: LocalDisk = _DISK
    ) -> DeltaTable:
        """Return the table in a folder of a local disk."""
        store = LocalLogStore(folder / LOG, disk.mode)
        return cls(str(folder), disk.files(str(folder)), store, by_delta)

    @property
    def state(self) -> State | None:
        """The table as it was last read, or None if there is none."""
        return self._state

    def refresh(self) -> State | None:
        """Return the newest state. Raises NotPlain, and Damaged for a log that cannot be read."""
        if self._state is not None:
            self._state = log_state.advance(self.log, self._state)
        if self._state is None:
            self._state = log_state.read(self.log)
        return self._state

    def was_changed_by_others(self, after: int) -> bool:
        """Return whether rows were changed after a version, up to the known one, by none of our commits."""
        assert self._state is not None
        for version in range(after + 1, self._state.known.version + 1):
            content = self.log.read(name_of(version))
            found = parse(version, "" if content is None else content.decode())
            if found.changes and not found.ours:
                return True
        return False

    def commit(self, change: Change, author: Author, now: int, begun: int | None = None) -> int:
        """Commit a change to the state that is known, and return the version.

        Times are in ms since 1970: ``begun`` is when the first of the files that are stored was begun.
        Raises Overtaken; then nothing of the change is left. After another error, it may be there or not.
        """
        state = self._state
        assert state is not None
        prepared = prepare(state.snapshot, change, now)
        earlier = [path_of(each) for each in change.added]
        attempt = store(self.files, prepared, now if begun is None else begun, earlier)
        info = CommitInfo(
            str(uuid.uuid4()), author.app_id, author.number, state.known.version, now, author.note or None
        )
        done = complete(attempt, self.files, self.log, state.snapshot, state.known, info)
        if not isinstance(done, Committed):
            self._state = None
            raise Overtaken(f"{self.folder} is no longer as it was at version {state.known.version}: {done}")
        if done.known is None:  # it is committed, and somebody has removed the table
            self._state = None
            return done.version
        self._state = State(state.snapshot.after(prepared.actions), done.known)
        keep_short(self.log, self._state, now, self._by_delta)
        return done.version

    def begin(self, actions: Sequence[Action], author: Author, now: int) -> None:
        """Make the table, unless it exists by now. The actions are those of its first version."""
        info = CommitInfo(str(uuid.uuid4()), author.app_id, author.number, None, now)
        entry.begin(self.log, info, actions)

    def append(self, rows: pa.RecordBatch, author: Author, now: int) -> int:
        """Add rows, to whatever the table is by now, in a commit that belongs to no batch."""
        for attempt in range(_ATTEMPTS):
            try:
                return self.commit(Change(rows=[pa.Table.from_batches([rows])]), author, now)
            except Overtaken:
                if attempt == _ATTEMPTS - 1 or self.refresh() is None:
                    raise
        raise AssertionError


def discard(files: Files, done: Sequence[Done]) -> None:
    """Delete the files of a change that is not going to be committed."""
    table_change.discard(files, changes_in(done))


def changes_in(done: Sequence[Done]) -> list[TableChange]:
    """Return what the buckets of a table do to it."""
    return [each.change for each in done if each.change is not None]


def tombstones_of(
    done: Sequence[Done], kinds: Mapping[str, Kind], key: Sequence[str], batch: int
) -> pa.RecordBatch | None:
    """Return the tombstones and images of a table's buckets as rows of their table, or None if none."""
    ends = [as_rows(each.tombstones, kinds, key) for each in done if each.tombstones is not None]
    parts = [
        each for each in (*ends, *(each.moved for each in done if each.moved is not None)) if each.num_rows
    ]
    if not parts:
        return None
    return recorded(pa.concat_batches(parts), time.time_ns() // 1000, batch)


def new_tombstones(now: int) -> Sequence[Action]:
    """Return the actions of the first version of a table of tombstones (`tables.tombstones`).

    ``now`` is in ms since 1970. The protocol is the oldest that all readers and writers know.
    """
    fields = [
        {"name": name, "type": _IN_SCHEMAS.get(kind, kind), "nullable": True, "metadata": {}}
        for name, kind in TYPES.items()
    ]
    schema = json.dumps({"type": "struct", "fields": fields})
    return Protocol(1, 2), Metadata.new(schema, SELDOM_READ, now)


def commit_rows(
    table: DeltaTable, done: Sequence[Done], author: Author, properties: Mapping[str, str] = _NONE
) -> int:
    """Commit the rows of a table and its ``properties``, and return the version that has them.

    Raises Overtaken.
    """
    change, now = together(changes_in(done)), time.time_ns() // 1_000_000
    rows = {name: getattr(change, name) for name in ("inserted", "updated", "deleted")}
    mark = Transaction(author.app_id, author.number, now)
    noted = Author(author.app_id, author.number, {**author.note, "rows": rows})
    made = replace(change.commit([mark]), properties=properties)
    version = table.commit(made, noted, now, min(each.begun for each in done))
    faults.reach("after-rows")
    return version
