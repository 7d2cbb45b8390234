"""An attempt to commit: files are stored first, and then the entry that names them.

What becomes of the files depends on what is known of the entry. If it is in the log, they are the table's. If
it is not and never will be, they are deleted. If nobody can say, because the store did not, they stay: they
may be the table's. Nothing reads them otherwise, and VACUUM deletes them, as it does what a crash has left.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lakemirror.driver import faults
from lakemirror.driver.writer.actions import Action, CommitInfo
from lakemirror.driver.writer.entry import Committed, Known, LogStore, Outcome, commit
from lakemirror.driver.writer.retention import of_files
from lakemirror.driver.writer.snapshot import Snapshot
from lakemirror.driver.writer.stores import Files, discard
from lakemirror.driver.writer.transaction import Prepared


@dataclass(frozen=True)
class FilesGone:
    """Files of the attempt were deleted before its entry was put, as by VACUUM. Nothing was committed."""

    paths: tuple[str, ...]


@dataclass(frozen=True)
class Attempt:
    """What is stored for a commit.

    ``paths`` are those of its files in the table's folder, those that tasks have stored included, and
    ``begun`` is when the first of them was begun, in ms since 1970.
    """

    paths: tuple[str, ...]
    actions: tuple[Action, ...]
    begun: int


def store(files: Files, prepared: Prepared, begun: int, earlier: Iterable[str] = ()) -> Attempt:
    """Store the files of a commit. ``earlier`` are the paths of files of it that are stored already.

    If that fails, those that were stored are deleted: they are in no entry.
    """
    done = list(earlier)
    try:
        for each in prepared.files:
            done.append(each.path)
            files.write(each)
    except Exception:
        discard(files, done)
        raise
    faults.reach("after-files")
    return Attempt(tuple(done), prepared.actions, begun)


def complete(
    attempt: Attempt, files: Files, log: LogStore, snapshot: Snapshot, before: Known, info: CommitInfo
) -> Outcome | FilesGone:
    """Commit what is stored to the table of a snapshot, whose version is ``before``.

    Raises the store's error if it is not known whether the entry will appear; then the files stay.
    """
    try:
        gone = _gone(attempt, files, snapshot, info.now)
    except Exception:
        discard(files, attempt.paths)
        raise
    outcome = FilesGone(gone) if gone else commit(log, before, info, attempt.actions)
    if not isinstance(outcome, Committed):
        discard(files, attempt.paths)
    return outcome


def _gone(attempt: Attempt, files: Files, snapshot: Snapshot, now: int) -> tuple[str, ...]:
    """Return which files are gone, if the attempt is so old that VACUUM may have deleted any.

    It deletes files that no version names once they are older than the retention. Half of it leaves time for
    clocks that differ and for the put.
    """
    retention = of_files(snapshot.metadata.properties)
    if retention is not None and 0 <= now - attempt.begun < retention / 2:
        return ()
    return tuple(each for each in attempt.paths if not files.exists(each))
