"""Which schemas of a batch are used: those that can be read."""

from __future__ import annotations

import json

from lakemirror.driver.profile.overview import Group, Overview, TableOverview
from lakemirror.driver.tables.names import TableName

TABLE, OTHER = TableName("d", "s", "t"), TableName("d", "s", "other")
ROW = {"type": "struct", "fields": [{"type": "string", "field": "v"}], "field": "after"}
GOOD = json.dumps({"type": "struct", "fields": [ROW]})
BAD = json.dumps({"type": "struct", "fields": [ROW, "x"]})


def seen(*identities: int, events: int = 1) -> Overview:
    """A batch in which each of these schemas of a table has events, and one of another table."""
    groups = {(each, 1000): Group(each, 1000, events) for each in identities}
    other = {(identities[0], None): Group(identities[0], None, 1)}
    return Overview(tables={TABLE: TableOverview(TABLE, groups), OTHER: TableOverview(OTHER, other)})


def test_a_schema_that_cannot_be_read_is_told_in_each_batch() -> None:
    """Also once it is known, when its records bring only its ID."""
    first = seen(1, 2)
    first.documents = {
        1: GOOD,
        2: BAD,
        1000: json.dumps({"type": "struct", "fields": [{**ROW, "field": "k"}]}),
    }
    assert first.unreadable_schemas({}).keys() == {("schema_id", 2)}
    assert seen(1, 2).unreadable_schemas(first.documents) == first.unreadable_schemas({})
