"""The benchmark of the rules reads and merges what it makes."""

from __future__ import annotations

import pytest

from benchmarks.rules import COLUMNS, Reader, cost, merged, records


@pytest.mark.parametrize("with_schemas", [False, True])
def test_each_record_is_an_event_with_the_columns_of_the_mirror(with_schemas: bool) -> None:
    made, reader = records(40, with_schemas=with_schemas), Reader()
    events = [reader.event(each) for each in made]
    assert {tuple(each.row) for each in events if each.row} == {tuple(COLUMNS)}
    assert 0 < merged(events) <= len({each.key for each in events})
    assert cost(made).total > 0
