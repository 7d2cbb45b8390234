"""From what happens to rows to the files and actions of one commit. Nothing is stored here."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

import pyarrow as pa
from pyroaring import BitMap64

from lakemirror.driver.writer import vectors
from lakemirror.driver.writer.actions import Action, Add, Metadata, Remove, Transaction
from lakemirror.driver.writer.data_files import File, Layout, change_files, data_files
from lakemirror.driver.writer.features import has_change_feed, may_be_written, may_hide_rows
from lakemirror.driver.writer.snapshot import Snapshot


class NotAllowed(ValueError):
    """The table must not be changed in this way."""


@dataclass(frozen=True)
class Change:
    """What happens to a table in one commit.

    ``rows`` are added, and the files ``added``, which are stored already. The files at ``removed`` paths are
    taken out, and of each path in ``hidden``, the rows with these indexes are hidden: all of them, those of
    the vector that the file has included. ``changed`` are the rows for the change data feed
    (`data_files.change_files`). ``transactions`` are one per shard. ``properties`` of the table are set.
    ``rearranges`` says that the table's rows stay the same.
    """

    rows: Sequence[pa.Table] = ()
    removed: Collection[str] = ()
    hidden: Mapping[str, BitMap64] = field(default_factory=dict)
    changed: pa.Table | None = None
    transactions: Sequence[Transaction] = ()
    added: Sequence[Add] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    rearranges: bool = False


@dataclass(frozen=True)
class Prepared:
    """The files of a commit that still have to be stored before it, and its actions."""

    files: tuple[File, ...]
    actions: tuple[Action, ...]


def prepare(
    snapshot: Snapshot, change: Change, now: int, new_id: Callable[[], UUID] = uuid.uuid4
) -> Prepared:
    """Return the files and actions of a change to a table at ``now`` (ms since 1970).

    A file of which no row is left is taken out. Raises NotAllowed if the table is not written here, or if its
    change data feed would not show what happens; NotRepresentable for a partition value; KeyError for a file
    that is not in the table.
    """
    _require(snapshot, change)
    layout = Layout.of(snapshot)
    made = [each for table in change.rows for each in data_files(table, layout, now, new_id)]
    fed = [] if change.changed is None else list(change_files(change.changed, layout, new_id))
    files = {key[0]: each for key, each in snapshot.files.items()}
    gone = set(change.removed) | {
        path for path, rows in change.hidden.items() if _hides_all(files[path], rows)
    }
    kept = {path: rows for path, rows in change.hidden.items() if rows and path not in gone}
    stored, vectors_of = _vectors(kept, new_id)
    actions: tuple[Action, ...] = (
        *change.transactions,
        *_altered(snapshot.metadata, change.properties),
        *change.added,
        *[add for _, add in made],
        *[files[path].hiding(vector) for path, vector in vectors_of.items()],
        *[files[path].removed(now) for path in (*sorted(gone), *vectors_of)],
        *[each for _, each in fed],
    )
    if change.rearranges:
        actions = tuple(map(_rearranging, actions))
    return Prepared((*[file for file, _ in made], *[file for file, _ in fed], *stored), actions)


def _altered(metadata: Metadata, properties: Mapping[str, str]) -> list[Metadata]:
    """Return a table's metadata with other properties, if it does not have them."""
    altered = metadata.with_properties(properties)
    return [] if altered == metadata else [altered]


def _rearranging(action: Action) -> Action:
    """Return an action of a commit that changes no rows: readers of changes pass over it."""
    return replace(action, changes=False) if isinstance(action, (Add, Remove)) else action


def _require(snapshot: Snapshot, change: Change) -> None:
    reason = may_be_written(snapshot)
    if reason is not None:
        raise NotAllowed(f"the table is not written here: {reason}")
    if change.hidden and not may_hide_rows(snapshot.metadata):
        raise NotAllowed("the table must not get deletion vectors")
    if (change.hidden or change.removed) and has_change_feed(snapshot.metadata) and change.changed is None:
        raise NotAllowed("the table's change data feed has to say which rows changed")


def _hides_all(file: Add, rows: BitMap64) -> bool:
    """Return whether no row of a file is left. Raises ValueError if its number of rows is not known."""
    count = file.rows
    if count is None:
        raise ValueError(f"the number of rows of {file.path} is not known")
    if rows and rows.max() >= count:
        raise ValueError(f"{file.path} has {count} rows, and row {rows.max()} is to be hidden")
    return len(rows) == count


def _vectors(
    hidden: Mapping[str, BitMap64], new_id: Callable[[], UUID]
) -> tuple[list[File], dict[str, vectors.Descriptor]]:
    """Return the deletion vectors of files, all in one file."""
    if not hidden:
        return [], {}
    number = new_id()
    content, described = vectors.file_of(number, hidden.values())
    return [File(vectors.file_name(number), content)], dict(zip(hidden, described, strict=True))
