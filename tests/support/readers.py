"""Programs besides Spark that read Delta tables, and how what they read compares with what Spark reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import duckdb_extension_delta
import polars
import pyarrow as pa

from lakemirror.api.tables import LACKING

Row = Mapping[str, Any]


@cache
def _duckdb() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(config={"allow_unsigned_extensions": True})
    [extension] = Path(duckdb_extension_delta.__file__).parent.glob("extensions/*/delta.duckdb_extension")
    connection.load_extension(str(extension))
    return connection


def _with_duckdb(path: str) -> list[Row]:
    return _plain_table(_duckdb().execute("SELECT * FROM delta_scan(?)", [path]).to_arrow_table())


def _with_delta_rs(path: str) -> list[Row]:
    return _plain_table(deltalake.DeltaTable(path).to_pyarrow_table())


def _with_polars(path: str) -> list[Row]:
    return _plain_table(polars.read_delta(path).to_arrow())


READERS: dict[str, Callable[[str], list[Row]]] = {
    "delta-rs": _with_delta_rs,
    "duckdb": _with_duckdb,
    "polars": _with_polars,
}


def _plain_table(table: pa.Table) -> list[Row]:
    return list(table.to_pylist(maps_as_pydicts="strict"))


def features(path: str) -> frozenset[str]:
    """What the table's protocol asks of readers; reader version 2 asks for column mapping."""
    protocol = deltalake.DeltaTable(path).protocol()
    mapped = ["columnMapping"] if protocol.min_reader_version == 2 else []
    return frozenset([*(protocol.reader_features or []), *mapped])


def differences(path: str, rows: Iterable[Row]) -> list[str]:
    """What is wrong with reading the table by other programs: it has to give Spark's ``rows``, or be refused
    where the table has a feature that the program lacks.
    """
    expected = Counter(_text(row) for row in rows)
    return [line for reader in READERS for line in _difference(reader, path, expected)]


def _difference(reader: str, path: str, expected: Counter[str]) -> list[str]:
    lacks = features(path) & LACKING[reader]
    try:
        found = Counter(_text(row) for row in READERS[reader](path))
    except Exception as error:
        return [] if lacks else [f"{reader} cannot read it: {error}"]
    if lacks:
        return [f"{reader} can read it, though it is said to lack {sorted(lacks)}"]
    more, less = found - expected, expected - found
    return [f"{reader} reads {next(iter(more), None)}, not {next(iter(less), None)}"] if more or less else []


def _text(row: Row) -> str:
    return repr(sorted((name, _plain(value)) for name, value in row.items() if not name.startswith("__")))


def _plain(value: Any) -> Any:
    """A value as all readers give it: instants without zone in UTC, bytes, mappings in order."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if isinstance(value, Mapping):
        return sorted((str(name), _plain(each)) for name, each in value.items())
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value
