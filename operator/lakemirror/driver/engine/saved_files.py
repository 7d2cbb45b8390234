"""Files of saved records on a local disk, read by the tasks themselves.

A file is read in pieces, like in Hadoop: a line belongs to the piece in which it begins. Spark would read the
same lines, and copy each of them several times before a task has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import IO, Final

import numpy as np
import pyarrow as pa

from lakemirror.driver.columns.masks import Indices
from lakemirror.driver.engine.blocks import Report
from lakemirror.driver.engine.saved_records import Lines, NotRecords
from lakemirror.driver.read.base import SavedLines

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

    def lines(self, blocks: Iterable[pa.RecordBatch]) -> Iterator[Lines]:
        """Yield the lines that the tasks whose numbers are in the column ``id`` read. Raises NotRecords.

        The place of a line is its first byte (see `placed`).
        """
        for block in blocks:
            for number in block.column("id").to_pylist():
                for piece in self.tasks[number]:
                    for lines, starts in lines_of(piece):
                        yield Lines(lines, pa.repeat(piece.path, len(lines)), pa.array(starts))


def lines_of(piece: Piece) -> Iterator[tuple[list[bytes], Indices]]:
    """Yield blocks of the lines of a piece that are not blank, without line feeds, and where each begins.

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
            lines = content.split(b"\n")
            starts = at + np.cumsum([0, *(len(line) + 1 for line in lines[:-1])], dtype=np.int64)
            at += len(content)
            there = [i for i, line in enumerate(lines) if line and not line.isspace()]
            if there:
                yield [lines[i] for i in there], starts[there]


def _first_line(file: IO[bytes], piece: Piece) -> int:
    """Go to the first line that begins in a piece, and return where that is: at its end if none does."""
    if piece.begin == 0:
        return 0
    file.seek(piece.begin - 1)
    return piece.begin - 1 + len(file.readline(piece.size - piece.begin + 1))


def placed(reports: Mapping[str | None, Report], lines: SavedLines) -> dict[str | None, Report]:
    """Return reports whose lines have the file and the row that Spark tells (`read.files.lines`).

    Raises OSError.
    """
    starts: dict[str, set[int]] = {}
    for report in reports.values():
        for each in report.aside:
            if each.raw is not None and each.raw.file is not None and each.raw.row is not None:
                starts.setdefault(each.raw.file, set()).add(each.raw.row)
    names = {path: lines.name(path) for path in starts}
    rows = {path: rows_at(path, mine, lines.block) for path, mine in starts.items()}

    def of(report: Report) -> Report:
        aside = []
        for each in report.aside:
            raw = each.raw
            if raw is not None and raw.file is not None and raw.row is not None:
                raw = raw._replace(file=names[raw.file], row=rows[raw.file][raw.row])
            aside.append(each._replace(raw=raw))
        return replace(report, aside=tuple(aside))

    return {topic: of(report) for topic, report in reports.items()}


def rows_at(path: str, starts: Iterable[int], block: int) -> dict[int, int]:
    """Return the rows of lines of a file that begin at some bytes, if Spark reads ``block`` bytes at a time.

    Like Hadoop, it takes a line that begins where a block does for one of the block before.
    """
    found: dict[int, int] = {}
    first, at, count = -1, 0, 0
    with open(path, "rb") as file:
        for start in sorted(starts):
            mine = (start - 1) // block * block if start else 0
            if mine != first:
                first, at, count = mine, mine, -1 if mine else 0
                file.seek(at)
            count += file.read(start - at).count(b"\n")
            at = start
            found[start] = first + count
    return found
