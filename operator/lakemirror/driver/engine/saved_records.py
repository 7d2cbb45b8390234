"""Lines of saved Kafka records as raw records, at a fraction of what it costs Spark to parse them.

Only what is exactly as it is written by whoever saves records is read here. Anything else (a line that is no
record, an unknown member, a number where a text is expected) is for Spark, which says what is wrong with it
(`read.files.records`). The records of a batch are read either here or there, never in part.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Annotated, Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemirror.driver.columns.changes import MOMENT
from lakemirror.driver.columns.decode import without_collecting
from lakemirror.driver.columns.raw_records import RawRecords
from lakemirror.driver.read.files.records import LAST_MILLIS

_LONGEST: Final = 10 * 2**20
"""The length of a line in bytes above which Spark's parser may refuse it."""
_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
_Header = list[str | None]


class NotRecords(Exception):
    """Some line is not exactly a record. The message says why."""


class _Record(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    topic: str
    partition: _Int32
    offset: int
    timestamp: int | None = None
    key: str | None = None
    value: str | None = None
    headers: msgspec.Raw = msgspec.Raw(b"null")


_read: Final = msgspec.json.Decoder(_Record).decode
_read_headers: Final = msgspec.json.Decoder(list[_Header | None] | None).decode
_NO_HEADERS: Final[Mapping[bytes, list[tuple[str | None, bytes | None]] | None]] = {b"null": None, b"[]": []}
"""What most records have."""


class Lines(NamedTuple):
    """A block of lines, none of which is blank, the file of each, and its place there (`blocks.RAW`)."""

    lines: Sequence[bytes]
    files: pa.Array
    rows: pa.Array


def lines_in(blocks: Iterable[pa.RecordBatch]) -> Iterator[Lines]:
    """Yield the lines in blocks that a task gets from Spark (`read.files.records.read_lines`)."""
    file: str | None = None
    for block in blocks:
        files = _filled(file, block.column("file"))
        if len(files):
            file = files[-1].as_py()
        lines, rows = block.column("line"), block.column("row")
        if lines.null_count:  # of a blank line that begins a file
            there = lines.is_valid()
            lines, files, rows = (each.filter(there) for each in (lines, files, rows))
        yield Lines(lines.to_pylist(), files, rows)


def _filled(before: str | None, files: pa.Array) -> pa.Array:
    """Return for each line the file that was named last, which is the one ``before`` until one is named."""
    named = files.is_valid().to_numpy(zero_copy_only=False)
    known = pa.array([before, *files.drop_null().to_pylist()], pa.string())
    return known.take(pa.array(np.cumsum(named)))


def records_of(blocks: Iterable[Lines]) -> Iterator[RawRecords]:
    """Yield blocks of raw records for blocks of lines. Raises NotRecords."""
    for lines, files, rows in blocks:
        with without_collecting():
            records = _block(lines)
        columns = [*records.columns.columns, files, rows]
        named = pa.RecordBatch.from_arrays(columns, [*records.columns.schema.names, "file", "row"])
        yield replace(records, columns=named)


def _block(lines: Sequence[bytes]) -> RawRecords:
    lengths = list(map(len, lines))
    if max(lengths, default=0) > _LONGEST:
        raise NotRecords(f"a line has more than {_LONGEST:,} bytes")
    try:
        records = list(map(_read, lines))
        columns = _columns(records)
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
        raise NotRecords(str(error)) from error
    keys, values = (list(map(attrgetter(name), records)) for name in ("key", "value"))
    return RawRecords(columns, keys, values, np.ones(len(lines), np.bool_), sum(lengths))


def _columns(records: Sequence[_Record]) -> pa.RecordBatch:
    def of(name: str) -> Iterator[Any]:
        return map(attrgetter(name), records)

    columns = {
        "topic": pa.array(of("topic"), pa.string()),
        "partition": pa.array(of("partition"), pa.int32()),
        "offset": pa.array(of("offset"), pa.int64()),
        "timestamp": _moments(list(of("timestamp"))),
        "headers": _headers(list(map(bytes, of("headers")))),
        "problem": pa.nulls(len(records), pa.string()),
    }
    return pa.RecordBatch.from_pydict(columns)


def _moments(millis: Sequence[int | None]) -> pa.Array:
    """Return the times of milliseconds since 1970; null for those that Spark treats as missing."""
    given = pa.array(millis, pa.int64())
    known = pc.and_(pc.greater_equal(given, 0), pc.less_equal(given, LAST_MILLIS))
    return pc.multiply(pc.if_else(known, given, None), 1000).view(MOMENT)


def _headers(texts: Sequence[bytes]) -> pa.Array:
    """Return the headers of records; most have none."""
    distinct = set(texts)
    found = {each: _NO_HEADERS[each] if each in _NO_HEADERS else _headers_in(each) for each in distinct}
    if len(found) == 1:
        return pa.repeat(pa.scalar(found[texts[0]], _HEADERS), len(texts))
    return pa.array(map(found.__getitem__, texts), _HEADERS)


def _headers_in(text: bytes) -> list[tuple[str | None, bytes | None]] | None:
    given = _read_headers(text)
    return None if given is None else [_header(each or ()) for each in given]


def _header(given: Sequence[str | None]) -> tuple[str | None, bytes | None]:
    """Return the name and the value of a header: the first two items, where there are any."""
    name, text = (*given[:2], None, None)[:2]
    return name, None if text is None else text.encode()
