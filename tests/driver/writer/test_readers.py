"""What other programs read of generated tables: all rows, and with filters the same as without statistics."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import deltalake
import polars
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from lakemirror.api.tables import LACKING
from lakemirror.driver.writer.data_files import Layout
from lakemirror.driver.writer.schema import parse
from tests.driver.writer.delta_tables import (
    TYPES,
    History,
    Written,
    histories,
    live_rows,
    plain,
    read_vector,
    twin,
)
from tests.support.readers import _duckdb

MANY = 2_000
_EPOCH = datetime(1970, 1, 1)
Read = Callable[[str, str | None], pa.Table]
"""Reads a table at a path, all of it or the rows for which a condition in SQL holds."""


def _with_duckdb(path: str, condition: str | None) -> pa.Table:
    where = "" if condition is None else f" WHERE {condition}"
    return _duckdb().execute(f"SELECT * FROM delta_scan(?){where}", [path]).to_arrow_table()


def _with_delta_rs(path: str, condition: str | None) -> pa.Table:
    where = "" if condition is None else f" WHERE {condition}"
    builder = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(path))
    found = builder.execute(f"SELECT * FROM t{where}")
    return pa.table(found.read_all() if hasattr(found, "read_all") else found)


def _with_polars(path: str, condition: str | None) -> pa.Table:
    frame = polars.scan_delta(path)
    if condition is None:
        return frame.collect().to_arrow()
    return polars.SQLContext(t=frame).execute(f"SELECT * FROM t WHERE {condition}").collect().to_arrow()


READERS: Mapping[str, Read] = {"delta-rs": _with_delta_rs, "duckdb": _with_duckdb, "polars": _with_polars}


@contextmanager
def written(history: History) -> Iterator[Written]:
    with tempfile.TemporaryDirectory() as folder:
        table = Written.of(Path(folder) / "t", history)
        for step in history.steps:
            table.apply(step)
        yield table


def able(reader: str, history: History) -> bool:
    lacks = LACKING[reader] - {"deletionVectors"}  # in queries, delta-rs reads them
    if reader == "duckdb" and history.mapped and history.partitions:
        return False  # it gives null for partition columns, also of tables that Spark has written
    return not (history.mapped and "columnMapping" in lacks)


def require_all(table: Written) -> None:
    """Every reader gives the rows of the model."""
    names = table.history.names
    expected = plain(table.table(table.rows.values()), names)
    for reader, read in READERS.items():
        if able(reader, table.history):
            assert plain(read(str(table.path), None), names) == expected, reader


def literal(value: Any, name: str) -> str | None:
    """A value in SQL as DuckDB, DataFusion and Polars understand it; None if there is none."""
    kind = TYPES[name]
    match value:
        case None | bool() | bytes() | dict() | list():
            return None
        case float():
            text = {math.inf: "Infinity", -math.inf: "-Infinity"}.get(
                value, "NaN" if value != value else repr(value)
            )
            return f"CAST('{text}' AS {'REAL' if kind == 'float' else 'DOUBLE'})"
        case Decimal():
            return f"CAST('{value:f}' AS {kind})"
        case str():
            return "'" + value.replace("'", "''") + "'" if value.isprintable() else None
    if kind == "date":
        return f"CAST('{(_EPOCH + timedelta(days=value)).date().isoformat()}' AS DATE)"
    if kind in ("timestamp", "timestamp_ntz"):
        moment = _EPOCH + timedelta(microseconds=value)
        zone = "+00:00" if kind == "timestamp" else ""
        with_zone = "TIMESTAMP WITH TIME ZONE" if zone else "TIMESTAMP"
        return f"CAST('{moment.isoformat(' ', 'microseconds')}{zone}' AS {with_zone})"
    return str(value)


def conditions(table: Written) -> list[str]:
    """Filters on every column, by the values that stand in it."""
    found = []
    for name in table.history.names:
        found += [f'"{name}" IS NULL', f'"{name}" IS NOT NULL']
        texts = {text for row in table.rows.values() if (text := literal(row.get(name), name)) is not None}
        found += [f'"{name}" {sign} {text}' for sign in ("=", "<", "<=", ">", ">=") for text in sorted(texts)]
    return found


def require_filters(table: Written, chosen: list[str], readers: Mapping[str, Read] = READERS) -> None:
    """Filters give the same rows with statistics as without."""
    bare = table.path.with_name("bare")
    twin(table.path, bare)
    for reader, read in readers.items():
        if not able(reader, table.history):
            continue
        for condition in chosen:
            try:
                expected = read(str(bare), condition)
            except Exception:  # a program that cannot compute it at all says nothing about statistics
                continue
            found = read(str(table.path), condition)
            assert plain(found, ["id"]) == plain(expected, ["id"]), (reader, condition)


def require_valid(table: Written) -> None:
    """No value of a file is beyond its bounds, whatever order special numbers are in; nulls are counted."""
    snapshot = live_rows(table.path)
    assert snapshot == table.snapshot
    columns = parse(snapshot.metadata.schema)
    chosen = Layout.of(snapshot).indexed
    for add in snapshot.files.values():
        told = json.loads(add.statistics or "", parse_float=Decimal)
        content = pq.ParquetFile(table.path / unquote(add.path)).read()
        assert told["numRecords"] == content.num_rows == add.rows
        assert told["tightBounds"] is (add.vector is None)
        assert add.size == (table.path / unquote(add.path)).stat().st_size
        assert len(read_vector(table.path, add)) < content.num_rows
        stored = [each for each in columns if each.physical not in add.values]
        assert content.column_names == [each.physical for each in stored]
        assert told["minValues"].keys() == told["maxValues"].keys() <= told["nullCount"].keys()
        for each in stored:
            if each.name in chosen and each.name != "inner":
                assert told["nullCount"][each.physical] == content[each.physical].null_count
            if each.physical in told["minValues"]:
                least, greatest = told["minValues"][each.physical], told["maxValues"][each.physical]
                _within(content[each.physical], TYPES[each.name], least, greatest)


def _within(values: pa.ChunkedArray, kind: str, least: Any, greatest: Any) -> None:
    if kind in ("timestamp", "timestamp_ntz", "date"):
        numbers = values.cast(pa.int32() if kind == "date" else pa.int64()).to_pylist()
        least, greatest = _number(least, kind), _number(greatest, kind)
    elif kind == "string":
        numbers = [None if each is None else each.encode() for each in values.to_pylist()]
        least, greatest = least.encode(), greatest.encode()
    elif kind in ("float", "double"):
        assert not pc.any(pc.is_nan(values)).as_py()
        assert math.copysign(1, least or Decimal("-0.0")) == -1 or least > 0
        assert str(least) != "0.0"
        assert str(greatest) != "-0.0"
        numbers = [None if each is None else Decimal(each) for each in values.to_pylist()]
        least, greatest = Decimal(float(least)), Decimal(float(greatest))
    else:
        numbers = values.to_pylist()
    there = [each for each in numbers if each is not None]
    assert all(least <= each <= greatest for each in there), (least, greatest, there)
    if kind not in ("timestamp", "timestamp_ntz", "string"):
        assert least in there  # Delta answers MIN and MAX from them
        assert greatest in there


def _number(text: str, kind: str) -> int:
    if kind == "date":
        return (date.fromisoformat(text) - _EPOCH.date()).days
    assert text.endswith("Z") is (kind == "timestamp")
    moment = datetime.fromisoformat(text.removesuffix("Z"))
    return (moment - _EPOCH) // timedelta(microseconds=1)


def check(history: History, choose: Callable[[list[str]], list[str]]) -> None:
    with written(history) as table:
        require_valid(table)
        require_all(table)
        require_filters(table, choose(conditions(table)))


def some(data: st.DataObject) -> Callable[[list[str]], list[str]]:
    return lambda found: data.draw(st.lists(st.sampled_from(found), max_size=8, unique=True))


ONCE = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


@settings(ONCE, max_examples=15, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(histories(), st.data())
def test_readers_agree(history: History, data: st.DataObject) -> None:
    check(history, some(data))


@pytest.mark.thorough
@settings(ONCE, max_examples=MANY)
@given(histories(), st.data())
def test_readers_agree_on_thousands(history: History, data: st.DataObject) -> None:
    check(history, some(data))


@pytest.mark.thorough
@settings(ONCE, max_examples=MANY // 2)
@given(histories(mapped=False), st.data())
def test_all_readers_agree_on_thousands(history: History, data: st.DataObject) -> None:
    """Without column mapping, which some do not read."""
    check(history, some(data))
