"""The interface of all sources: raw records in micro-batches, with provenance."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol

from pyspark.sql import DataFrame

from lakemirror.api.source import Source
from lakemirror.driver.errors import PipelineStopped

RAW = (
    "topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, "
    "key BINARY, value BINARY, headers ARRAY<STRUCT<key: STRING, value: BINARY>>, "
    "file STRING, row BIGINT, problem STRING"
)
"""Schema of a raw record.

``key`` and ``value`` are the bytes of the record (null for a null payload). ``file`` and ``row`` are the
place of a record in a file, and null for Kafka. ``problem`` is null unless the record itself could not be
read (such as a line that is not a record). In that case it says why, ``value`` holds the raw bytes, and the
other columns may be null.
"""

RAW_NAMES = (
    *("topic", "partition", "offset", "timestamp", "key", "value", "headers"),
    *("file", "row", "problem"),
)
"""The columns of `RAW`."""


class ChangesLost(PipelineStopped):
    """What is to be read next is no longer in the source, or is not what was read before."""


CONTENT: Final = "lakemirror.sha256"
"""The header that holds the hash of the file's content, for a row from a file."""

REREAD: Final = "lakemirror.reread"
"""The header of a row whose file is read even though tables may already have it."""


@dataclass(frozen=True)
class SourceFile:
    """A file of rows.

    ``place`` is the value of ``file`` in its records, and ``sha256`` the hash of its content. ``again`` says
    that the file is read even though tables may already have it. ``table`` is set if the batch contains the
    file for that table only, and None if for all. A file that is not ``whole`` has more rows than the batch:
    its table does not get to have it by the batch. ``start`` is the offset of its first row.
    """

    place: str
    name: str
    sha256: str
    again: bool = False
    table: str | None = None
    whole: bool = True
    start: int = 0


@dataclass(frozen=True)
class SavedLines:
    """The records of a batch, each as a line of JSON whose key and value are text.

    ``frame`` returns the lines (`files.records.read_lines`). ``files`` are the paths and the sizes of the
    files that have them, in bytes, if all of these are plain files on a local disk, and otherwise None. Of
    such files, Spark reads ``block`` bytes at a time, and ``name`` returns what is the ``file`` of records.
    """

    frame: Callable[[], DataFrame]
    files: tuple[tuple[str, int], ...] | None = None
    block: int = 1
    name: Callable[[str], str] = str


def _no_lines() -> None:
    return None


def _nothing_known(_: Exception) -> Exception | None:
    return None


@dataclass(frozen=True)
class Batch:
    """The identity of one micro-batch.

    ``extent`` is the range of input that it covers, as a JSON-compatible value that is the same in any
    replay: for Kafka ``{"topic": {"partition": [from, until]}}``, for files ``{"files": [[name, sha256],
    ...]}``. ``files`` are the files of rows that its records are from. ``explain`` returns the error to
    raise instead of one that means that the source no longer has the records, and None for other errors.
    ``lines`` returns the batch's records as lines of JSON, or None if they are not stored so.
    """

    query_id: str
    batch_id: int
    extent: dict[str, Any] = field(default_factory=dict)
    files: tuple[SourceFile, ...] = ()
    explain: Callable[[Exception], Exception | None] = field(default=_nothing_known, compare=False)
    lines: Callable[[], SavedLines | None] = field(default=_no_lines, compare=False)

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Replace errors raised inside by what ``explain`` returns for them, if anything."""
        try:
            yield
        except Exception as error:
            told = self.explain(error)
            if told is None:
                raise
            raise told from error

    @property
    def offsets(self) -> int | None:
        """How many offsets of Kafka the batch covers, which is the most records that it can have."""
        topics = self.extent.values()
        if not all(isinstance(partitions, dict) for partitions in topics):
            return None
        return sum(int(until) - int(start) for each in topics for start, until in each.values())

    @property
    def note(self) -> dict[str, Any]:
        """What the batch's commits record about it."""
        return {"query": self.query_id, "batch": self.batch_id, "extent": self.extent}


@dataclass(frozen=True)
class Lag:
    """What a source still holds: the number of records (None if unknown), and whether nothing is left.

    ``had_all_at`` is the latest moment (of `time.monotonic`) for which it is known that everything the source
    had then is applied. It is None if only ``caught_up`` is known. ``waiting`` names what the source has and
    what cannot be read, each with the reason. Nothing is caught up as long as there is any.
    """

    records: int | None
    caught_up: bool
    had_all_at: float | None = field(default=None, compare=False)
    waiting: tuple[str, ...] = ()

    def had_all(self, asked: datetime) -> datetime | None:
        """Return ``had_all_at`` as a time, or when the lag was ``asked`` for, if nothing was left then."""
        if self.had_all_at is None:
            return asked if self.caught_up else None
        return datetime.now(UTC) - timedelta(seconds=time.monotonic() - self.had_all_at)


@dataclass(frozen=True)
class Committed:
    """The last batch that is done, and when it was completed."""

    batch_id: int
    at: datetime


def _checks_nothing() -> None:
    return None


def _knows_nothing(query_id: str) -> int:
    return -1


@dataclass(frozen=True)
class Standing:
    """What a feed may ask about the checkpoint that it belongs to.

    ``check`` raises CheckpointInUse if another driver has taken it. ``applied`` returns the last batch of a
    query that all tables have, or -1 if that is not known of any: its input is not needed any more.
    """

    check: Callable[[], None] = _checks_nothing
    applied: Callable[[str], int] = _knows_nothing


class Feed(Protocol):
    """A source that hands micro-batches to ``apply`` in exact order, and replays after a crash.

    A batch is recorded durably before ``apply`` sees it, and marked as done after ``apply`` has returned. A
    batch that was recorded but not marked as done is handed over again, with the same extent. ``query_id``
    identifies the checkpoint in what its batches write; see ``checkpoint.identity``.
    """

    query_id: str

    def run(
        self,
        apply: Callable[[DataFrame, Batch], None],
        *,
        once: bool,
        stopping: Callable[[], bool],
    ) -> None:
        """Run until ``stopping()``, or with ``once``, until the input present at the start is applied."""

    def lag(self) -> Lag: ...

    def from_its_beginning(self) -> Source:
        """Return the source, starting where this checkpoint started to read it."""

    def committed(self) -> Committed | None:
        """Return the last batch that the checkpoint marks as done, or None before the first."""

    def pending(self) -> Iterator[Batch]:
        """Return the batches that are recorded but not marked as done."""

    def close(self) -> None:
        """Release the feed's resources, such as connections."""
