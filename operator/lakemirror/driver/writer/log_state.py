"""The state of a table as its log says, without Delta's own snapshot, which takes a Spark job.

A log is read from its last checkpoint on, of whatever kind that is: what reads one kind has nearly all that
it takes for the others. Delta Kernel, which could read them too, costs five times as much, and returns its
rows one by one through Py4J. What is left to Delta is `NotPlain`: tables whose readers need to know something
that is not known here. Their logs might mean something else, and such a table is not written here anyway.

Nothing is guessed: a gap in the log, a file that is gone and one that was cut off are errors that name it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from lakemirror.driver.raised import LakemirrorError
from lakemirror.driver.writer import log_checkpoints
from lakemirror.driver.writer.actions import Action
from lakemirror.driver.writer.entry import Known, LogStore, known, name_of
from lakemirror.driver.writer.features import what_may_be_read
from lakemirror.driver.writer.log_files import LAST_CHECKPOINT, Damaged, Missing, Segment, hinted, segment_of
from lakemirror.driver.writer.snapshot import Snapshot, actions_of, begun

_MANY: Final = 100
"""After so many entries it is cheaper to read the log anew."""


class NotPlain(LakemirrorError):
    """The table's log has to be read by Delta."""


@dataclass(frozen=True)
class State:
    """A table at its newest version, and what `entry.commit` has to know of that version."""

    snapshot: Snapshot
    known: Known


def read(log: LogStore) -> State | None:
    """Return the state of a table, or None if there is no table.

    Raises NotPlain, and Damaged for a file that is missing or not what it should be.
    """
    missing = Missing(name_of(0))
    hint = hinted(log.read(LAST_CHECKPOINT))
    # The hint may be wrong. A listing does not show one moment, and files may go while others are read.
    for begins in (hint, 0, 0):
        try:
            found = _read_from(log, begins)
            if found is None and hint:
                raise Missing(name_of(hint))
            return found
        except Missing as error:
            missing = error
    raise missing


def advance(log: LogStore, state: State) -> State | None:
    """Return the state with what others have committed since, or None if the log has to be read anew.

    It has to be if the newest known entry is gone or another one, and after very many entries. Raises as
    `read` does. This costs two looks at the log, and one more and a read for each entry.
    """
    newest, entries = state.known, list[list[Action]]()
    while (after := known(log, newest.version + 1)) is not None:
        if len(entries) == _MANY:
            return None
        try:
            entries.append(entry_of(log, after.version))
        except Missing:
            return None
        newest = after
    # Looked at last: as long as it is there, the log was not cleaned of what comes after it.
    if known(log, state.known.version) != state.known:
        return None
    return _allowed(state.snapshot.after_all(entries), newest)


def _read_from(log: LogStore, begins: int) -> State | None:
    """Return the state of a table by the files of a version and of later ones."""
    segment = segment_of(log.list_from(begins))
    return None if segment is None else _read(log, segment)


def _read(log: LogStore, segment: Segment) -> State:
    newest = known(log, segment.version)  # before anything is read, as `known` demands
    if newest is None:
        raise Missing(name_of(segment.version))
    first, actions = _beginning(log, segment)
    try:
        snapshot = begun(max(segment.begins, 0), actions)
    except ValueError as error:
        raise Damaged(first, f"is no beginning: {error}") from error
    rest = segment.entries if segment.checkpoint else segment.entries[1:]
    return _allowed(snapshot.after_all([entry_of(log, version) for version in rest]), newest)


def _beginning(log: LogStore, segment: Segment) -> tuple[str, list[Action]]:
    """Return the actions of the checkpoint or of the first entry, and its name."""
    if not segment.checkpoint:
        return name_of(0), entry_of(log, 0)
    return segment.checkpoint[0], log_checkpoints.read(segment.checkpoint, lambda name: content_of(log, name))


def entry_of(log: LogStore, version: int) -> list[Action]:
    """Return the actions of an entry that make the table's state. Raises Damaged."""
    name = name_of(version)
    content = content_of(log, name)
    try:
        if not content.strip():
            raise ValueError("it is empty")
        return list(actions_of(content.decode()))
    except ValueError as error:
        raise Damaged(name, f"is no entry: {error}") from error


def content_of(log: LogStore, name: str) -> bytes:
    """Return the content of a file. Raises Missing."""
    content = log.read(name)
    if content is None:
        raise Missing(name)
    return content


def _allowed(snapshot: Snapshot, newest: Known) -> State:
    reason = what_may_be_read(snapshot.protocol)
    if reason is not None:
        raise NotPlain(f"the table's log is not read here: {reason}")
    return State(snapshot, newest)
