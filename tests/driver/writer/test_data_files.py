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
