"""How much a file may hold, so that none takes the memory or the time of the others.

Lines are read whole, and a compressed file may hold a thousand times its size. A file beyond a limit is not
read: it waits, by name, and the other files are applied.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from typing import Final

LONGEST_LINE: Final = 32 * 2**20
"""The longest line of a text file, in bytes."""
LARGEST_TEXT: Final = 64 * 2**30
"""The most text that a compressed file may hold, in bytes. One task reads it."""
LARGEST_RATIO: Final = 200
"""How many times its own size a compressed file may hold, if that is more than `ANY_RATIO`."""
ANY_RATIO: Final = 256 * 2**20
"""The text that a compressed file may hold whatever its size, in bytes."""
LONGEST_HEADER: Final = 2**20
"""The longest header of a CSV file, in bytes."""
MOST_COLUMNS: Final = 10_000
"""The most columns in the header of a CSV file."""
MOST_LAYOUTS: Final = 32
"""The most sets of columns that the files of a batch may have.

Each is a part of the queries of the batch, which take longer than in proportion to their parts.
"""
LARGEST_PART: Final = 512 * 2**20
"""The most that a page of a Parquet file or a block of an Avro file may hold, in bytes."""
ANY_PART: Final = 64 * 2**20
"""What a page or a block may hold whatever its size, in bytes.

More is allowed if it is not more than `LARGEST_RATIO` times its size.
"""
BEYOND: Final = "it exceeds a limit: "
"""How the reasons begin for which a file waits that is beyond a limit."""


@dataclass(frozen=True)
class Text:
    """What is known of the text of a file: its bytes, and those of its longest line.

    If the file is beyond a limit, both are what was found until that was known. ``damage`` says why it
    cannot be decompressed to its end.
    """

    size: int
    longest: int
    damage: str | None = None


def most_text(size: int) -> int:
    """Return how much text a compressed file of this size may hold, in bytes."""
    return min(LARGEST_TEXT, max(ANY_RATIO, LARGEST_RATIO * size))


def beyond(text: Text, size: int, *, compressed: bool) -> str | None:
    """Return the limit that a file of this ``size`` in bytes exceeds and what to do, or None."""
    if text.longest > LONGEST_LINE:
        return (
            f"{BEYOND}one of its lines has more than {_bytes(LONGEST_LINE)}. Give each record a line of its "
            "own, or leave the record out"
        )
    if not compressed or text.size <= most_text(size):
        return None
    if text.size > LARGEST_TEXT:
        return f"{BEYOND}it holds more than {_bytes(LARGEST_TEXT)} of text. Divide it into several files"
    return (
        f"{BEYOND}it holds more than {LARGEST_RATIO} times its own size, and more than {_bytes(ANY_RATIO)}. "
        "If it is meant to be read, decompress it, or divide it into smaller files"
    )


@dataclass(frozen=True)
class Parts:
    """What is known of the pages of a Parquet file or the blocks of an Avro file.

    ``total`` is about what all rows hold, in bytes, and ``largest`` what the part holds that is too large, or
    0 if there is none. A ``crowded`` block has more rows than bytes.
    """

    total: int
    largest: int = 0
    crowded: bool = False


def beyond_parts(parts: Parts, part: str) -> str | None:
    """Return the limit that the parts of a file exceed and what to do, or None. ``part`` is what they are."""
    if parts.largest > LARGEST_PART:
        return f"{BEYOND}one of its {part}s holds more than {_bytes(LARGEST_PART)}. Write smaller ones"
    if parts.largest:
        return (
            f"{BEYOND}one of its {part}s holds more than {LARGEST_RATIO} times its own size, and more than "
            f"{_bytes(ANY_PART)}. Write smaller ones"
        )
    if parts.crowded:
        return f"{BEYOND}one of its {part}s has more rows than bytes. Give the rows a column with values"
    if parts.total > LARGEST_TEXT:
        return f"{BEYOND}its rows hold more than {_bytes(LARGEST_TEXT)}. Divide it into several files"
    return None


def beyond_header(first: bytes, delimiter: str) -> str | None:
    """Return the limit that the header of a CSV file exceeds and what to do, or None.

    ``first`` is the beginning of the file, up to the end of its first line or beyond `LONGEST_HEADER`.
    """
    if len(first) > LONGEST_HEADER:
        return f"{BEYOND}its header has more than {_bytes(LONGEST_HEADER)}. Leave out columns"
    if first.count(delimiter.encode()) < MOST_COLUMNS:
        return None
    if len(header_names(first.decode("utf-8", "replace"), delimiter)) > MOST_COLUMNS:
        return f"{BEYOND}its header has more than {MOST_COLUMNS:,} columns. Leave out columns"
    return None


def header_names(header: str, delimiter: str) -> list[str]:
    """Return the names of the columns in the first line of a CSV file."""
    try:
        return next(csv.reader([header.rstrip("\r")], delimiter=delimiter), [])
    except csv.Error:  # a field that is longer than the module takes, or a null byte
        return header.rstrip("\r").split(delimiter)


def fits(layout: str, layouts: set[str]) -> bool:
    """Return whether a file with these columns may join a batch that has files with ``layouts``."""
    return layout in layouts or len(layouts) < MOST_LAYOUTS


def _bytes(size: int) -> str:
    for power, unit in ((30, "GiB"), (20, "MiB")):
        if size >= 2**power:
            return f"{size >> power} {unit}"
    return f"{size:,} bytes"
