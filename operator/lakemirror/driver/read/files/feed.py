"""Files in the order of their names or times, each applied once.

A file that is still being copied is not read. A ``.gz`` file is read once it is a complete gzip stream,
another text file whose last line has no end once it has not changed for a while, and Parquet and Avro files
once they are complete. If a file is read too early nevertheless, this is detected, because the new content
then begins with the former content. The whole file is read again, which changes no row that is right.

Files of rows have no positions. Each row gets an offset when its file is recorded: the offsets of a file
follow those of the files before it. Offsets start from the current time, so they usually keep increasing even
if the checkpoint is deleted and created again. The clock does not decide: if a table has rows with higher
offsets, because the clock was ahead then, the files get offsets after those. A file keeps its offsets, even
if it was edited and is read again.

Content that was read before is skipped if it comes again under another name and says nothing new: if rows say
when they are from, or if no other content came between.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from lakemirror.api.source import FilesSource, Source
from lakemirror.driver import faults
from lakemirror.driver.checkpoint import identity
from lakemirror.driver.checkpoint.storage import Entry, Storage
from lakemirror.driver.errors import BatchMismatch, OffsetsTaken, PipelineStopped
from lakemirror.driver.read.base import Batch, Committed, Lag, SourceFile, Standing
from lakemirror.driver.read.files.ledger import InputFile, Ledger
from lakemirror.driver.read.files.limits import fits
from lakemirror.driver.read.files.listing import InputMissing, Inputs
from lakemirror.driver.read.files.rows import SUFFIXES, as_reread, place_of, reader_of
from lakemirror.driver.read.files.waiting import Waiting
from lakemirror.driver.read.watch import SourceWatch
from lakemirror.driver.waiting import LOOK_SECONDS, pause

_FIRST_SECOND: Final = 1_577_836_800
"""The beginning of the year 2020. Offsets of rows start there, and last until 2091."""
_PER_MICROSECOND: Final = 4096
"""Offsets of rows: four billion per second, which is faster than rows are read."""
_LAST_OF_CLOCK: Final = 2**62
_LEAST_ROOM: Final = 2**24
_GROWTH: Final = 4
"""The minimum number of offsets for a file of rows, and the factor by which it gets more than it needs.

The extra offsets leave room for the file to grow.
"""
_log = logging.getLogger(__name__)


class FilesFeed:
    """A directory, a pattern (``dir/*.jsonl``) or a single file as a source; see ``base.Feed``.

    ``base64`` says that keys and values are stored as base64 of their bytes, and ``optional`` names the
    column that rows of CSV without header may lack. ``dated`` says that rows say when they are from.
    Otherwise, known content that comes again after other content is applied again: rows are as they were
    before. ``warn`` is called for files that are not applied: a known name with new content, or known content
    under a new name. ``watch`` records whether the files can be listed. ``rereads`` is the feed that has read
    these files before. Their rows keep their offsets, even if a file was edited, and are applied even though
    tables may have them. ``standing`` tells about the checkpoint.
    """

    def __init__(
        self,
        spark: SparkSession,
        source: FilesSource,
        storage: Storage,
        *,
        base64: bool = False,
        optional: str | None = None,
        dated: bool = True,
        interval_seconds: float = 10.0,
        warn: Callable[[str], None] = _log.warning,
        watch: SourceWatch | None = None,
        rereads: FilesFeed | None = None,
        standing: Standing | None = None,
    ) -> None:
        self._spark = spark
        self._standing = standing or Standing()
        self._watch = watch or SourceWatch()
        self._source = source
        self._of_rows = source.format != "records"
        self._dated = dated or not self._of_rows
        self._inputs = Inputs(source.path, spark, SUFFIXES[source.format])
        self._reader = reader_of(
            spark, source, self._inputs, base64=base64, optional=optional, table_of=self._table_of
        )
        self._storage = storage
        self._interval = interval_seconds
        self._warn = warn
        self._rereads = rereads
        self._ledger = self._load()
        self._looked_at: dict[str, tuple[int, int]] = {}
        self._waiting = Waiting(self._why_not, warn)
        self._caught_up = False
        self._had_all_at: float | None = None
        self._is_there = False
        """Whether the place existed when the files were last listed."""
        self._renumbered: set[str] = set()
        """Files of an abandoned batch, which do not get the offsets again that they had."""
        self._first_offset = 0
        """The offsets of rows that a table has from a former checkpoint are below this one, if it has any."""
        self.changed = 0
        self.skipped = 0
        self.query_id = identity.query_id(storage, "files", started=self._ledger.next_id > 0)
        self._ledger.require_known()

    def run(
        self,
        apply: Callable[[DataFrame, Batch], None],
        *,
        once: bool,
        stopping: Callable[[], bool],
    ) -> None:
        self._caught_up = False
        looked, listing = time.monotonic(), self._list(once=once)
        self._ledger = self._load(self._ledger)
        self._waiting.once = once
        for batch_id, files in self._ledger.pending():
            if stopping():
                return
            self._go_on(apply, batch_id, files)
        while not stopping():
            files = self._record_next(listing)
            self._caught_up = not files and not self._waiting and self._is_there
            if self._caught_up and not once:  # a run with ``once`` looks only once
                self._had_all_at = looked
            if files:
                self._apply(apply, self._ledger.next_id - 1, files)
            elif once and self._waiting.all_told:
                self._waiting.require_none()
                return
            else:
                pause(LOOK_SECONDS if once else self._interval, stopping)
            if not once:
                looked, listing = time.monotonic(), self._list(once=once)
            elif not files:
                listing = [entry for entry in self._list(once=once) if entry.name in self._waiting]

    def _load(self, before: Ledger | None = None) -> Ledger:
        return Ledger.load(self._storage, self._table_of, before)

    def _table_of(self, name: str) -> str:
        """Return the table of rows that do not name one, or "" for records."""
        return (self._source.table or self._inputs.table_of(name)) if self._of_rows else ""

    def _list(self, *, once: bool) -> list[Entry]:
        """Return the existing files, in their order.

        If the place does not exist, it is waited for, except in a run with ``once``.
        """
        try:
            with self._watch.asking():
                listed = self._inputs.files()
        except InputMissing:
            self._is_there = False
            if once:
                raise
            return []
        self._is_there = True
        return sorted(listed, key=lambda each: (each.mtime, each.name)) if self._by_time else listed

    @property
    def _by_time(self) -> bool:
        return self._source.order == "time"

    def lag(self) -> Lag:
        records = 0 if self._caught_up else None
        return Lag(records, self._caught_up, self._had_all_at, self._waiting.said)

    def has_read(self, name: str) -> bool:
        """Return whether a file was read, so that it is not read again unless it grows."""
        return name in self._ledger.files

    def from_its_beginning(self) -> Source:
        """Return the source as a new checkpoint would read it."""
        return Source(files=self._source)

    def committed(self) -> Committed | None:
        return self._ledger.committed()

    def pending(self) -> Iterator[Batch]:
        return (self._batch(batch_id, files) for batch_id, files in self._ledger.pending())

    def close(self) -> None:
        """Do nothing: the feed holds no resources."""

    def _go_on(
        self, apply: Callable[[DataFrame, Batch], None], batch_id: int, files: list[InputFile]
    ) -> None:
        """Apply a batch that was begun, unless its files have grown, or it is applied already."""
        try:
            grown = self._grown(batch_id, files)
        except (InputMissing, BatchMismatch):
            if self._standing.applied(self.query_id) < batch_id:
                raise
            self._commit(batch_id, files, settled=True)
            return
        unfit = {} if grown else self._unfit(files)
        if grown or not files:
            self._ledger.abandon(batch_id)
        elif unfit:
            self._set_aside(batch_id, unfit)
        else:
            self._apply(apply, batch_id, files)

    def _commit(self, batch_id: int, files: list[InputFile], *, settled: bool = False) -> None:
        """Mark a batch as done that all tables have; see `_grown`."""
        self._standing.check()
        self._ledger.commit(batch_id, self._grown(batch_id, files, applied=True, settled=settled))

    def _apply(
        self, apply: Callable[[DataFrame, Batch], None], batch_id: int, files: list[InputFile]
    ) -> None:
        # Looked at again: whoever may write to the folder may have put a link in the place of a file.
        links = {file.name: why for file in files if (why := self._inputs.outside(file.name)) is not None}
        if links:
            self._set_aside(batch_id, links)
            return
        try:
            rows = self._reader.read(files)
            if self._of_rows and self._rereads is not None:
                rows = as_reread(rows)
            apply(rows, self._batch(batch_id, files))
        except OffsetsTaken as taken:
            _log.info("%s: the files of batch %d get offsets after these", taken, batch_id)
            self._number_after(taken.highest, batch_id, files)
            return
        except Exception as error:
            damaged = {} if isinstance(error, PipelineStopped) else self._damaged(files)
            if not damaged:
                raise
            self._set_aside(batch_id, damaged)
            return
        faults.reach("before-checkpoint-commit")
        self._commit(batch_id, files)

    def _number_after(self, highest: int, batch_id: int, files: Iterable[InputFile]) -> None:
        """Abandon a batch, of which nothing has been written. Its files come again, with higher offsets."""
        self._first_offset = max(self._first_offset, highest + 1)
        self._ledger.abandon(batch_id)
        for file in files:
            self._renumbered.add(file.name)
            self._looked_at.pop(file.name, None)

    def _unfit(self, files: Iterable[InputFile]) -> dict[str, str]:
        """Return the files of a batch of an earlier run that are not to be read, and why.

        That run may have ended because of them, and had no limits if it was one of an earlier version.
        """
        found = {file.name: self._why_not(file.name, settled=True) for file in files}
        return {name: why for name, why in found.items() if why is not None}

    def _why_not(self, name: str, *, settled: bool = False) -> str | None:
        """Return why a file cannot be read now, or must not be, or None if it can."""
        unfit = self._inputs.nameless(name) or self._inputs.outside(name)
        return unfit or self._reader.why_not(name, settled=settled)

    def _damaged(self, files: Iterable[InputFile]) -> dict[str, str]:
        """Return the files that cannot be read to the end, and why.

        Nothing of their batch has been written, because a batch is read first.
        """
        found = {file.name: self._reader.damage(file) for file in files}
        return {name: why for name, why in found.items() if why is not None}

    def _set_aside(self, batch_id: int, damaged: Mapping[str, str]) -> None:
        """Abandon a batch because of its damaged files. Its other files come in the next batch."""
        for name, why in damaged.items():
            entry = self._inputs.storage().stat(name)
            self._waiting.put(Entry(name, entry.size, entry.mtime), why)
        files = dict(self._ledger.pending())[batch_id]
        self._ledger.abandon(batch_id)
        for file in files:
            self._looked_at.pop(file.name, None)

    def _batch(self, batch_id: int, files: Sequence[InputFile]) -> Batch:
        extent = {"files": [[file.name, file.sha256] for file in files]}
        lines = partial(self._reader.lines, files)
        return Batch(self.query_id, batch_id, extent, self._marked(files), lines=lines)

    def _marked(self, files: Iterable[InputFile]) -> tuple[SourceFile, ...]:
        """Return the files that tables remember having.

        These are files whose rows cannot otherwise be distinguished from new ones.
        """
        if not self._of_rows:
            return ()
        again = self._rereads is not None
        places = [(place_of(self._spark, self._inputs.uri(file.name)), file) for file in files]
        return tuple(
            SourceFile(place, file.name, file.sha256, again, start=file.start or 0) for place, file in places
        )

    # -- which files come next ----------------------------------------------------------------------

    def _record_next(self, listing: list[Entry]) -> list[InputFile]:
        """Record the next batch and return its files. Empty if there is nothing new."""
        fresh: list[InputFile] = []
        skipped: list[InputFile] = []
        layouts: set[str] = set()
        self._waiting.keep({entry.name for entry in listing})
        for entry in listing:
            layout = self._layout_of(entry)
            if layout is None:
                continue
            if not fits(layout, layouts):  # this file and those after it come in the next batch
                break
            file = self._look_at(entry, fresh)
            if file is not None and file.same_as is None:
                layouts.add(layout)
            if file is not None:
                (skipped if file.same_as else fresh).append(file)
            if len(fresh) == self._source.max_files_per_batch:
                break
        if fresh:
            self._ledger.record(fresh, skipped, self.query_id)
        elif skipped:  # what comes later does not make them say something new
            self._ledger.skip(skipped, self.query_id)
        return fresh

    def _layout_of(self, entry: Entry) -> str | None:
        """Return what identifies the columns of a file that may be new or have grown.

        Returns None if it is known, empty or not complete yet.
        """
        known = self._ledger.files.get(entry.name)
        seen = self._looked_at.get(entry.name) or (known and (known.size, known.mtime))
        if entry.size == 0 or seen == (entry.size, entry.mtime):
            return None
        try:
            return self._reader.layout(entry) if self._waiting.is_ready(entry) else None
        except FileNotFoundError:  # it existed when the folder was listed
            return None

    def _look_at(self, entry: Entry, fresh: list[InputFile]) -> InputFile | None:
        """Return a file that is ready if it should be read, or None if it has changed."""
        stamp = (entry.size, entry.mtime)
        known = self._ledger.files.get(entry.name)
        try:
            if known is not None and not self._has_grown(known, entry):
                self._looked_at[entry.name] = stamp
                return None
            sha256 = self._inputs.sha256(entry.name, entry.size)
            room = self._reader.room(entry)
        except FileNotFoundError:
            return None
        if known is not None:
            self._warn(_grown_text(entry.name))
        self._looked_at[entry.name] = stamp
        file = InputFile(entry.name, entry.size, entry.mtime, sha256)
        table = self._table_of(entry.name)
        like = self._like(file, table, fresh)
        if like is not None and (self._dated or not self._has_others_after(like, table, fresh)):
            self.skipped += 1
            self._warn(f"{entry.name} is skipped: {like.name} has the same content and is applied already")
            return InputFile(entry.name, entry.size, entry.mtime, sha256, like.name)
        if like is not None and self._rereads is None:
            self._warn(
                f"{entry.name} has the same content as {like.name} and is applied, because other files came "
                "between them, and where rows have no time of their own, the last ones count"
            )
        if room is None:
            return file
        self._warn_if_late(file, table)
        return self._placed(file, room, fresh)

    def _like(self, file: InputFile, table: str, fresh: list[InputFile]) -> InputFile | None:
        """Return the last of the known files whose content a file repeats."""
        alike = [each for each in fresh if each.sha256 == file.sha256 and self._table_of(each.name) == table]
        known = self._ledger.with_content(file.sha256, table)
        return max([*([known] if known else []), *alike], key=lambda each: each.start or 0, default=None)

    def _has_others_after(self, file: InputFile, table: str, fresh: list[InputFile]) -> bool:
        """Return whether other content of the table came after that of a file."""
        of_batch = any(each.is_after(file) and self._table_of(each.name) == table for each in fresh)
        return of_batch or self._ledger.has_others_after(file)

    def _placed(self, file: InputFile, room: int, fresh: list[InputFile]) -> InputFile | None:
        """Return the file with offsets for its rows, or None if there are not enough.

        These are the offsets that it had, or new ones after those of all files. A file that was edited keeps
        the offsets that it had when it was applied: its rows are not newer than those of later files.
        """
        earlier, ledger = self._ledger.former(file.name), self._ledger
        if earlier is None and self._rereads is not None:
            ledger = self._rereads._ledger
            earlier = ledger.origin_of(file.name)
        if earlier is not None and earlier.start is not None and file.name not in self._renumbered:
            most = ledger.room_of(earlier)
            if most is not None and room > most:
                self.changed += 1
                self._warn(
                    f"{file.name} has changed since it was applied, and has too many rows by now for its "
                    "place among the files: it is not applied. Give new records a file of their own"
                )
                return None
            if ledger is not self._ledger:
                if not self._begins_with(file, earlier):
                    self._warn(
                        f"{file.name} has changed since it was applied, and is read again in its place: "
                        "rows of later files stay, and so do rows that stand further up in it than before"
                    )
                file = replace(file, mtime=earlier.mtime)  # its time belongs to its place
            return _at(file, earlier.start, max(room, earlier.room or 0))
        self._renumbered.discard(file.name)
        ends = [_clock(), self._first_offset, self._ledger.end, *[each.end for each in fresh]]
        return _at(file, max(ends), max(room * _GROWTH, _LEAST_ROOM))

    def _begins_with(self, file: InputFile, earlier: InputFile) -> bool:
        """Return whether a file begins with the content that it had before."""
        if file.size <= earlier.size:
            return file.sha256 == earlier.sha256
        return self._inputs.sha256(file.name, earlier.size) == earlier.sha256

    def _warn_if_late(self, file: InputFile, table: str) -> None:
        last = self._ledger.last.get(table)
        if last is None or self._ledger.former(file.name) is not None or self._rereads is not None:
            return
        late = (file.mtime, file.name) < (last.mtime, last.name) if self._by_time else file.name < last.name
        if late:
            by = "time" if self._by_time else "name"
            self._warn(
                f"{file.name} was read after {last.name}, though it comes before it by {by}: where rows have "
                "no time of their own, its rows count as newer"
            )

    def _has_grown(self, known: InputFile, entry: Entry) -> bool:
        """Return whether an applied file begins with its former content and has more."""
        if entry.size >= known.size and self._inputs.sha256(entry.name, known.size) == known.sha256:
            if entry.size == known.size:
                return False
            room = self._ledger.room_of(known) if known.start is not None else None
            needed = self._reader.room(entry)
            if room is None or needed is None or needed <= room:
                return True
        self.changed += 1
        self._warn(
            f"{entry.name} has changed since it was applied; the new content is not applied. "
            "Give new records a file of their own"
        )
        return False

    def _grown(
        self, batch_id: int, files: list[InputFile], *, applied: bool = False, settled: bool = False
    ) -> list[str]:
        """Return the files of a batch that have grown since it was recorded.

        Raises BatchMismatch if a file has other content, unless an earlier run has ``settled`` the batch, and
        InputMissing if one has gone before it was ``applied``.
        """
        grown = []
        for file in files:
            try:
                now = self._inputs.storage().stat(file.name)
                if applied and (now.size, now.mtime) == (file.size, file.mtime):
                    continue
                same = now.size >= file.size and self._inputs.sha256(file.name, file.size) == file.sha256
            except FileNotFoundError:
                if applied:
                    continue
                raise InputMissing(
                    f"{file.name} is gone, but batch {batch_id}, which was begun and not finished, needs it: "
                    "put it back"
                ) from None
            if not same and settled:  # like any file that changes later; the next listing says so
                continue
            if not same:
                raise BatchMismatch(
                    f"{file.name} belongs to batch {batch_id}, which was begun and not finished, and has "
                    "changed since: put the former content back, and the new records into a file of their own"
                )
            if now.size > file.size:
                self._warn(_grown_text(file.name))
                grown.append(file.name)
        return grown


def _clock() -> int:
    """Return an offset that grows with the time. A clock that is ahead by decades says nothing."""
    now = (time.time_ns() // 1000 - _FIRST_SECOND * 1_000_000) * _PER_MICROSECOND
    return now if 0 <= now < _LAST_OF_CLOCK else 0


def _at(file: InputFile, start: int, room: int) -> InputFile:
    return InputFile(file.name, file.size, file.mtime, file.sha256, None, start, room)


def _grown_text(name: str) -> str:
    return (
        f"{name} has grown since it was read, and is read again whole. Move a file into the folder once it "
        "is complete, and give new records a file of their own"
    )
