"""How values are stored in data files."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from lakemirror.driver.rules import kinds
from lakemirror.driver.writer.data_files import encoded
from lakemirror.driver.writer.schema import Column, Group, ListOf, MapOf, arrow_schema

COLUMNS = [
    Column("id", kinds.BIGINT),
    Column("state", kinds.STRING, metadata={"delta.columnMapping.physicalName": "p"}),
    Column("inner", Group((Column("same", kinds.STRING), Column("other", kinds.STRING)))),
    Column("items", ListOf(kinds.INT)),
    Column("named", MapOf(kinds.STRING, kinds.INT)),
    Column("empty", MapOf(kinds.STRING, kinds.STRING)),
    Column("none", kinds.DOUBLE),
]


def table(rows: int) -> pa.Table:
    made = [
        {
            "id": i,
            "state": "open",
            "inner": {"same": "a", "other": f"{i}"} if i % 3 else None,
            "items": [i, 7, 7],
            "named": [("a", i)] if i % 2 else None,
            "empty": [],
            "none": None,
        }
        for i in range(rows)
    ]
    return pa.Table.from_pylist(made, arrow_schema(COLUMNS))


def with_dictionary(content: pa.Buffer) -> set[str]:
    group = pq.ParquetFile(pa.BufferReader(content)).metadata.row_group(0)
    columns = [group.column(i) for i in range(group.num_columns)]
    return {each.path_in_schema for each in columns if each.has_dictionary_page}


def test_values_that_repeat_are_stored_in_a_dictionary_and_others_are_not() -> None:
    for rows in (table(5_000), pa.concat_tables([table(3), table(5_000), table(2_000)]).slice(1)):
        content = encoded(rows, COLUMNS)
        repeating = {"p", "inner.same", "items.list.element", "named.key_value.key"}
        assert (
            with_dictionary(content) - {"empty.key_value.key", "empty.key_value.value", "none"} == repeating
        )
        read = pq.read_table(pa.BufferReader(content)).rename_columns([each.name for each in COLUMNS])
        assert read.to_pylist() == rows.to_pylist()


def test_few_values_are_not_looked_at() -> None:
    assert "id" in with_dictionary(encoded(table(1_000), COLUMNS))


def test_a_path_that_two_leaves_have_gets_no_bounds_if_one_may_have_nan() -> None:
    """Arrow takes the path for both. Its bounds leave NaN out, which is the greatest value for Spark."""
    inner = Column("a", Group((Column("b", kinds.DOUBLE), Column("c", kinds.INT))))
    columns = (Column("a.b", kinds.INT), inner, Column("d", kinds.DOUBLE))
    made = [{"a.b": 1, "a": {"b": each, "c": 2}, "d": 1.5} for each in (1.0, float("nan"))]
    content = encoded(pa.Table.from_pylist(made, arrow_schema(columns)), columns)
    group = pq.ParquetFile(pa.BufferReader(content)).metadata.row_group(0)
    found = [(group.column(i).path_in_schema, group.column(i).statistics) for i in range(4)]
    assert [path for path, told in found if told is not None] == ["a.c", "d"]
