"""Files of saved records on a local disk, read by the tasks themselves.

A file is read in pieces, like in Hadoop: a line belongs to the piece in which it begins. Spark would read the
same lines, and copy each of them several times before a task has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import IO, Final

import pyarrow as pa

from lakemirror.driver.engine.saved_records import NotRecords

_LEAST: Final = 2 * 2**20
"""The number of bytes below which it does not pay to divide a batch further."""
_MOST: Final = 64 * 2**20
"""The maximum number of bytes that a task reads."""
_AT_A_TIME: Final = 8 * 2**20
"""How many bytes of a file become a block of lines, or somewhat more."""

Files = Sequence[tuple[str, int]]
"""The paths of files, and their sizes in bytes: what was added to a file since is not read."""


@dataclass(frozen=True)
class Piece:
    """The lines of a file that begin from ``begin`` on, before ``end``. The file has ``size`` bytes."""

    path: str
    begin: int
    end: int
    size: int


def pieces(files: Files, parallel: int) -> list[list[Piece]]:
    """Return what each task reads of files: about as many bytes as the others, in the order of the files.

    ``parallel`` is how many tasks run at a time.
    """
    total = sum(size for _, size in files)
    number = min(parallel, -(-total // _LEAST))
    if total > number * _MOST:
        number = parallel * -(-total // (parallel * _MOST))
    cuts = [total * i // number for i in range(number + 1)] if number else []
    return [list(_within(files, *ends)) for ends in pairwise(cuts)]


def _within(files: Files, begin: int, end: int) -> Iterator[Piece]:
    """Yield the pieces that are from ``begin`` to ``end``, counted through all files."""
    at = 0
    for path, size in files:
        first, last = max(begin - at, 0), min(end - at, size)
        if first < last:
            yield Piece(path, first, last, size)
        at += size


@dataclass(frozen=True)
class PiecesOfTasks:
    """What each task of a job reads, by its number."""

    tasks: Sequence[Sequence[Piece]]

    def lines(self, blocks: Iterable[pa.RecordBatch]) -> Iterator[list[bytes]]:
        """Yield the lines that the tasks whose numbers are in the column ``id`` read. Raises NotRecords."""
        for block in blocks:
            for number in block.column("id").to_pylist():
                for piece in self.tasks[number]:
                    yield from lines_of(piece)


def lines_of(piece: Piece) -> Iterator[list[bytes]]:
    """Yield blocks of the lines of a piece that are not blank, without their line feeds.

    Raises NotRecords if the file is shorter than it was.
    """
    with open(piece.path, "rb") as file:
        at = _first_line(file, piece)
        while at < piece.end:
            size = min(_AT_A_TIME, piece.end - at)
            content = file.read(size)
            if len(content) < size:
                raise NotRecords(f"{piece.path} is shorter than {piece.size:,} bytes")
            if not content.endswith(b"\n"):
                content += file.readline(piece.size - at - size)
            at += len(content)
            found = [line for line in content.split(b"\n") if line and not line.isspace()]
            if found:
                yield found


def _first_line(file: IO[bytes], piece: Piece) -> int:
    """Go to the first line that begins in a piece, and return where that is: at its end if none does."""
    if piece.begin == 0:
        return 0
    file.seek(piece.begin - 1)
    return piece.begin - 1 + len(file.readline(piece.size - piece.begin + 1))
