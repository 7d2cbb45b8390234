"""The records of a feed's batches, and the markers that say which of them are done.

A batch is recorded in ``<offsets>/<N>.json`` before it is applied, and marked as done afterwards, in
``<commits>/<N>.json``. A record has an identity (``id``) and names its query. Its marker has both. Markers
can be without their record: a backup may have copied one folder before the other, and a driver that has lost
the checkpoint may wake up and write one. No new batch gets the number of such a marker.

Batches are applied in the order of their numbers. A batch is therefore done if it has a marker, or if one of
a later number in its query has. Records and markers of earlier versions name neither identity nor query.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from lakemirror.driver.checkpoint import identity
from lakemirror.driver.checkpoint.storage import FileCutOff, Storage, numbered
from lakemirror.driver.document import from_millis, iso
from lakemirror.driver.errors import CheckpointInUse, LakemirrorError
from lakemirror.driver.read.base import Committed


@dataclass(frozen=True)
class Mark:
    """What identifies a record: its own identity and its query, each None if an earlier version wrote it."""

    id: str | None = None
    query: str | None = None


def pending_of(records: Mapping[int, Mark], markers: Mapping[int, Mark]) -> set[int]:
    """Return the batches that are recorded but not done. Pure."""
    ended: dict[str | None, int] = {}
    for number, marker in markers.items():
        ended[marker.query] = max(number, ended.get(marker.query, -1))
    return {number for number, record in records.items() if not _is_done(number, record, markers, ended)}


def _is_done(number: int, record: Mark, markers: Mapping[int, Mark], ended: Mapping[str | None, int]) -> bool:
    marker = markers.get(number)
    if marker is not None and (marker.id is None or marker.id == record.id):
        return True  # an earlier version marks the batches of later ones without an identity
    return record.query is not None and ended.get(record.query, -1) > number


class Markers:
    """The records and markers in two folders of a checkpoint."""

    def __init__(self, storage: Storage, offsets: str, commits: str) -> None:
        self._storage, self._offsets, self._commits = storage, offsets, commits
        self._known: dict[str, Mark] = {}
        """The records and markers that were read. They do not change, unless this object writes them."""

    def recorded(self) -> set[int]:
        """Return the numbers of the recorded batches."""
        return numbered(self._storage, self._offsets)

    def next(self) -> int:
        """Return a number above every number that is there."""
        return max(self.recorded() | numbered(self._storage, self._commits), default=-1) + 1

    def pending(self) -> set[int]:
        """Return the batches that are recorded but not done."""
        return pending_of(*self._found())

    def committed(self) -> Committed | None:
        """Return the last batch that is done, or None if no marker is there."""
        records, markers = self._found()
        done = markers.keys() - pending_of(records, markers)
        if not done:
            return None
        last = max(done)
        return Committed(last, from_millis(self._storage.stat(self._marker(last)).mtime))

    def record(self, number: int, document: Mapping[str, Any], query_id: str) -> None:
        """Record a batch of a query. Raises CheckpointInUse if there is one of this number."""
        whole = {"id": uuid.uuid4().hex, "query": query_id, "recordedAt": _now(), **document}
        if not self._storage.write_text_new(self._record(number), json.dumps(whole) + "\n"):
            raise CheckpointInUse(
                f"batch {number} of the checkpoint {self._storage.uri} was begun by another driver: "
                "stop that driver, or give this pipeline a checkpoint of its own"
            )

    def commit(self, number: int) -> None:
        """Mark a recorded batch as done."""
        record = self._mark(self._record(number))
        document = {"committedAt": _now(), "id": record.id, "query": record.query}
        self._storage.write_text(self._marker(number), json.dumps(document) + "\n")
        self._known[self._marker(number)] = record

    def require_known(self) -> None:
        """Raise LakemirrorError if the newest record belongs to another query than the checkpoint."""
        newest = max(self.recorded(), default=None)
        if newest is not None:
            name = self._record(newest)
            identity.require_known(self._storage, self._mark(name).query, name)

    def _found(self) -> tuple[dict[int, Mark], dict[int, Mark]]:
        """Return the records and the markers."""
        records = {number: self._mark(self._record(number)) for number in self.recorded()}
        numbers = numbered(self._storage, self._commits)
        return records, {number: self._mark(self._marker(number)) for number in numbers}

    def _mark(self, name: str) -> Mark:
        """Return what a record or a marker names."""
        if name not in self._known:
            self._known[name] = self._read(name)
        return self._known[name]

    def _read(self, name: str) -> Mark:
        """Return what a file names. A damaged marker names nothing; its number says enough."""
        try:
            document = json.loads(self._storage.read_text(name))
            return Mark(document.get("id"), document.get("query"))
        except (ValueError, TypeError, KeyError, AttributeError, FileCutOff) as error:
            if name.startswith(f"{self._commits}/"):
                return Mark()
            raise LakemirrorError(
                f"{self._storage.uri}/{name} is damaged ({error}): restore it from a copy"
            ) from None

    def _record(self, number: int) -> str:
        return f"{self._offsets}/{number}.json"

    def _marker(self, number: int) -> str:
        return f"{self._commits}/{number}.json"


def _now() -> str:
    return iso(datetime.now(UTC))
