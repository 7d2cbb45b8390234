"""The checkpoint's records about files: which batch each belongs to, and which batches are done.

Besides the query ID (``metadata.json``), the checkpoint holds::

    files/offsets/<N>.json   written before batch N is applied: its files with size, mtime and sha256
    files/commits/<N>.json   written after batch N was applied
    files/grown/<N>.json     names of files of batch N that grew since it was recorded: not applied
    files/state/<N>.json     all files of the batches up to N, in place of the older files of these kinds

Records and markers name the query that they belong to, and a marker has the identity of its record
(`lakemirror.driver.read.markers`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final

from lakemirror.driver.checkpoint.storage import Storage, numbered
from lakemirror.driver.document import from_millis
from lakemirror.driver.errors import LakemirrorError
from lakemirror.driver.read.base import Committed
from lakemirror.driver.read.markers import Markers

COMPACT_EVERY: Final = 50


@dataclass(frozen=True)
class InputFile:
    """A file of a batch. If it is skipped, ``same_as`` names the applied file with the same content.

    ``start`` is the offset of its first row, and ``room`` the number of offsets reserved for its rows. Both
    are None for files of records, which have offsets of their own.
    """

    name: str
    size: int
    mtime: int
    sha256: str
    same_as: str | None = None
    start: int | None = None
    room: int | None = None

    @property
    def end(self) -> int:
        """The first offset after those of its rows."""
        return (self.start or 0) + (self.room or 0)

    def is_after(self, other: InputFile) -> bool:
        """Return whether its rows come after those of a file with other content."""
        return self.sha256 != other.sha256 and (self.start or 0) > (other.start or 0)


class Ledger:
    """The files of the batches.

    ``table_of`` returns the table that the rows of a file belong to, as far as its path determines it. The
    same content may be meant for two tables.
    """

    def __init__(
        self, storage: Storage, table_of: Callable[[str], str], markers: Markers | None = None
    ) -> None:
        self._storage = storage
        self._markers = markers or Markers(storage, "files/offsets", "files/commits")
        self._table_of = table_of
        self._pending: dict[int, list[InputFile]] = {}
        self._by_content: dict[tuple[str, str], InputFile] = {}
        """The last of the files with a content that were not skipped, by content and table."""
        self._newest: dict[str, dict[str, int]] = {}
        """The last two contents of each table, with the offset of the first row of their last file."""
        self._former: dict[str, InputFile] = {}
        self.files: dict[str, InputFile] = {}
        self.last: dict[str, InputFile] = {}
        """The file that was recorded last, by table."""
        self.end = 0
        """The first offset after those of all files."""
        self.next_id = 0

    @classmethod
    def load(cls, storage: Storage, table_of: Callable[[str], str], before: Ledger | None = None) -> Ledger:
        """Load what is recorded. ``before`` was loaded before by the same driver."""
        ledger = cls(storage, table_of, None if before is None else before._markers)
        compacted = max(numbered(storage, "files/state"), default=-1)
        if compacted >= 0:
            ledger._remember(_files(storage, f"files/state/{compacted}.json"))
            former = _files(storage, f"files/state/{compacted}.json", "former")
            ledger._former = {file.name: file for file in former}
        grown, pending = numbered(storage, "files/grown"), ledger._markers.pending()
        for batch_id in sorted(ledger._markers.recorded()):
            if batch_id <= compacted:
                continue
            files = _files(storage, f"files/offsets/{batch_id}.json")
            ledger._remember(files)
            if batch_id in grown:
                ledger._forget(_grown_names(storage, batch_id))
            if batch_id in pending:
                ledger._pending[batch_id] = [file for file in files if file.same_as is None]
        ledger.next_id = max(ledger._markers.next(), compacted + 1, max(grown, default=-1) + 1)
        return ledger

    def committed(self) -> Committed | None:
        """Return the last batch that is done."""
        done = self._markers.committed()
        compacted = max(numbered(self._storage, "files/state"), default=-1)
        if done is None or done.batch_id < compacted:
            return None if compacted < 0 else Committed(compacted, self._compacted_at(compacted))
        return done

    def _compacted_at(self, batch_id: int) -> datetime:
        return from_millis(self._storage.stat(f"files/state/{batch_id}.json").mtime)

    def require_known(self) -> None:
        """Raise LakemirrorError if the batches and the identity of the checkpoint do not belong together."""
        self._markers.require_known()

    def pending(self) -> list[tuple[int, list[InputFile]]]:
        """Return the batches that are recorded but not done, with their files."""
        return sorted(self._pending.items())

    def with_content(self, sha256: str, table: str) -> InputFile | None:
        """Return the last of the files with this content whose rows belong to the same table."""
        return self._by_content.get((sha256, table))

    def has_others_after(self, file: InputFile) -> bool:
        """Return whether rows of other content, of the same table, come after those of a file."""
        newest = self._newest.get(self._table_of(file.name), {})
        return any(start > (file.start or 0) for sha256, start in newest.items() if sha256 != file.sha256)

    def origin_of(self, name: str) -> InputFile | None:
        """Return the file as it was last recorded, or the one with its content if it was skipped for that."""
        file = self.former(name)
        other = self.former(file.same_as) if file is not None and file.same_as is not None else None
        return other if other is not None and file is not None and other.sha256 == file.sha256 else file

    def former(self, name: str) -> InputFile | None:
        """Return the file as it was last recorded, even if it has grown since."""
        return self.files.get(name) or self._former.get(name)

    def room_of(self, file: InputFile) -> int | None:
        """Return how many offsets a file may have, up to those of the next file, or None for any number."""
        assert file.start is not None
        later = [each.start for each in self.files.values() if each.start and each.start > file.start]
        return min(later) - file.start if later else None

    def skip(self, skipped: list[InputFile], query_id: str) -> None:
        """Record files that are skipped, as a batch of a query that is done."""
        self.record([], skipped, query_id)
        self.commit(self.next_id - 1)

    def record(self, fresh: list[InputFile], skipped: list[InputFile], query_id: str) -> None:
        """Record the next batch, of a query."""
        batch_id = self.next_id
        document = {"files": [_document(file) for file in [*fresh, *skipped]]}
        self._markers.record(batch_id, document, query_id)
        self._remember([*fresh, *skipped])
        self._pending[batch_id] = fresh
        self.next_id = batch_id + 1

    def abandon(self, batch_id: int) -> None:
        """Mark the batch as done, and treat its files as not read."""
        self.commit(batch_id, [file.name for file in self._pending[batch_id]])

    def commit(self, batch_id: int, grown: Sequence[str] = ()) -> None:
        """Mark the batch as applied, except for files that have to be read again."""
        if grown:
            text = json.dumps({"files": list(grown)}) + "\n"
            self._storage.write_text(f"files/grown/{batch_id}.json", text)
            self._forget(grown)
        self._markers.commit(batch_id)
        del self._pending[batch_id]
        if (batch_id + 1) % COMPACT_EVERY == 0 and not self._pending:
            self._compact(batch_id)

    def _compact(self, batch_id: int) -> None:
        document = {
            "files": [_document(file) for file in self.files.values()],
            "former": [_document(file) for file in self._former.values()],
        }
        self._storage.write_text(f"files/state/{batch_id}.json", json.dumps(document) + "\n")
        for folder, last in (
            ("offsets", batch_id),
            ("commits", batch_id),
            ("grown", batch_id),
            ("state", batch_id - 1),
        ):
            for old in numbered(self._storage, f"files/{folder}"):
                if old <= last:
                    self._storage.delete(f"files/{folder}/{old}.json")

    def _forget(self, names: Iterable[str]) -> None:
        for name in names:
            file = self.files.pop(name, None)
            if file is None:
                continue
            self._former[name] = file
            content = (file.sha256, self._table_of(name))
            if content in self._by_content and self._by_content[content].name == name:
                del self._by_content[content]

    def _remember(self, files: Iterable[InputFile]) -> None:
        for file in files:
            table = self._table_of(file.name)
            self.files[file.name] = file
            self._former.pop(file.name, None)
            self.last[table] = file
            if file.same_as is None:
                newest = self._newest.setdefault(table, {})
                newest[file.sha256] = max(file.start or 0, newest.get(file.sha256, 0))
                if len(newest) > 2:
                    del newest[min(newest, key=lambda sha256: newest[sha256])]
                known = self._by_content.get((file.sha256, table))
                if known is None or (file.start or 0) > (known.start or 0):
                    self._by_content[file.sha256, table] = file
            self.end = max(self.end, file.end)


def _document(file: InputFile) -> dict[str, Any]:
    rows = ("start", "room")
    return {name: value for name, value in asdict(file).items() if name not in rows or value is not None}


def _files(storage: Storage, name: str, part: str = "files") -> list[InputFile]:
    try:
        document: dict[str, Any] = json.loads(storage.read_text(name))
        listed = document[part] if part == "files" else document.get(part, [])
        return [InputFile(**file) for file in listed]
    except (ValueError, TypeError, KeyError) as error:
        raise LakemirrorError(f"{storage.uri}/{name} is damaged ({error}): restore it from a copy") from None


def _grown_names(storage: Storage, batch_id: int) -> list[str]:
    name = f"files/grown/{batch_id}.json"
    try:
        return [str(each) for each in json.loads(storage.read_text(name))["files"]]
    except (ValueError, TypeError, KeyError) as error:
        raise LakemirrorError(f"{storage.uri}/{name} is damaged ({error}): restore it from a copy") from None
