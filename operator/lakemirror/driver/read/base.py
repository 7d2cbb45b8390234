"""What every source yields: raw records in micro-batches, with provenance."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Protocol

from pyspark.sql import DataFrame

from lakemirror.api.source import Source

RAW = (
    "topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, "
    "key BINARY, value BINARY, headers ARRAY<STRUCT<key: STRING, value: BINARY>>, "
    "file STRING, row BIGINT, problem STRING"
)
"""Schema of a raw record.

``key`` and ``value`` are the bytes of the record (null for a null payload). ``file`` and ``row``
say where a record of a file stood and are null for Kafka. ``problem`` is null unless the record
itself could not be read (a line that is not a record): then it says why, ``value`` holds the raw
bytes and the other columns may be null.
"""

RAW_NAMES = (
    *("topic", "partition", "offset", "timestamp", "key", "value", "headers"),
    *("file", "row", "problem"),
)
"""The columns of `RAW`."""


CONTENT: Final = "lakemirror.sha256"
"""The header of a row of a file that has the hash of the file's content."""


@dataclass(frozen=True)
class SourceFile:
    """A file of rows. ``place`` is what its records have as ``file``, ``sha256`` the hash of its content.
    ``again``: it is read though tables may have it. ``table`` is the only one for which the batch has it, if
    it is not there for all.
    """

    place: str
    name: str
    sha256: str
    again: bool = False
    table: str | None = None


def _nothing_known(_: Exception) -> Exception | None:
    return None


@dataclass(frozen=True)
class Batch:
    """What identifies one micro-batch.

    ``extent`` is the JSON-able range of input it covers, the same in any replay: for Kafka
    ``{"topic": {"partition": [from, until]}}``, for files ``{"files": [[name, sha256], ...]}``.
    ``files`` are files of rows, which it has whole. ``explain`` gives what to raise in place of an error
    that says that the source no longer has the records; None for other errors.
    """

    query_id: str
    batch_id: int
    extent: dict[str, Any] = field(default_factory=dict)
    files: tuple[SourceFile, ...] = ()
    explain: Callable[[Exception], Exception | None] = field(default=_nothing_known, compare=False)

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Raise what explains an error from inside, if there is such a thing (``explain``)."""
        try:
            yield
        except Exception as error:
            told = self.explain(error)
            if told is None:
                raise
            raise told from error

    @property
    def note(self) -> dict[str, Any]:
        """What its commits say of it."""
        return {"query": self.query_id, "batch": self.batch_id, "extent": self.extent}


@dataclass(frozen=True)
class Lag:
    """What a source still holds: records (None where it cannot be known), and if nothing is left.

    ``had_all_at`` is the last moment (of `time.monotonic`) of which it is known that all is applied that the
    source had then; None where only ``caught_up`` tells.
    """

    records: int | None
    caught_up: bool
    had_all_at: float | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Committed:
    """The last batch that is done, and when it was."""

    batch_id: int
    at: datetime


class Feed(Protocol):
    """A source: hands micro-batches to ``apply`` exactly in order, replaying after a crash.

    A batch is recorded durably before ``apply`` sees it and marked done after ``apply`` returned;
    a batch that was recorded and not marked done is handed over again, with the same extent.
    ``query_id`` stands for the checkpoint in what its batches write; see ``checkpoint.identity``.
    """

    query_id: str

    def run(
        self,
        apply: Callable[[DataFrame, Batch], None],
        *,
        once: bool,
        stopping: Callable[[], bool],
    ) -> None:
        """Run until ``stopping()``, or until all that was there at the start was applied."""

    def lag(self) -> Lag: ...

    def from_its_beginning(self) -> Source:
        """The source from where this checkpoint began to read it."""

    def committed(self) -> Committed | None:
        """The last batch that the checkpoint has as done; None before the first."""

    def pending(self) -> Iterator[Batch]:
        """Batches recorded and not marked done."""

    def close(self) -> None:
        """Give back what the feed holds, such as connections."""
