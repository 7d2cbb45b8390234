"""Deliveries of the hostile tests go through the rules alone, and end as they end in a pipeline."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from lakemirror.driver.rules.envelopes import maxwell
from tests.hostile.test_identity import _binlog, _compressed, _maxwell
from tests.support.records import Record, Row
from tests.support.rule_engine import Asked, Classify, Engine, Mirrored

pytestmark = pytest.mark.guarantee("The rules and the driver's engine make the same of the same records")


def delivered(batches: Iterable[list[Record]], asked: Asked, **more: Any) -> Mirrored:
    """The only table of these batches."""
    engine = Engine(default=asked, **more)
    for batch in batches:
        engine.deliver(batch)
    assert not engine.reasons
    [table] = engine.tables.values()
    return table


def current(table: Mirrored) -> list[Row]:
    """The rows that are there, in the order of their keys."""
    if table.mode == "scd2":
        versions = [each for stored in table.versions.keys.values() for each in stored.versions]
        rows = [dict(each.row.values) for each in versions if each.is_current]
    else:
        rows = [dict(each.values) for each in table.rows.values()]
    return sorted(rows, key=lambda row: int(row["id"]))


MODES = [Asked(), Asked(soft=True), Asked("scd2")]


@pytest.mark.parametrize("order", ["one batch", "one by one", "backwards"])
@pytest.mark.parametrize("asked", MODES, ids=["rows", "soft", "versions"])
def test_changes_of_a_compressed_transaction_are_ordered_by_their_offsets(order: str, asked: Asked) -> None:
    sent = _compressed(_binlog("t"))
    batches = [sent] if order == "one batch" else [[each] for each in sent]
    table = delivered([*(batches[::-1] if order == "backwards" else batches), sent[-1:]], asked)
    assert current(table) == [{"id": 1, "v": "one"}, {"id": 2, "v": "last"}, {"id": 4, "v": "again"}]
    assert table.counts["duplicates"] >= 1
    assert table.counts.total() == len(sent) + 1


def test_a_list_has_each_event_of_a_compressed_transaction_once() -> None:
    sent = _compressed(_binlog("t"))
    table = delivered([sent, sent[-1:]], Asked("append"))
    assert [each.origin.offset for each in table.listed] == list(range(len(sent)))
    assert table.counts == {"applied": len(sent), "duplicates": 1}


MAXWELL: Classify = maxwell.classify


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("asked", MODES, ids=["rows", "soft", "versions"])
def test_values_that_maxwell_leaves_out_stay(together: bool, asked: Asked) -> None:
    changes = [
        _maxwell(0, "insert", {"id": 1, "n": 5, "v": "a", "w": "x"}),
        _maxwell(1, "insert", {"id": 2, "n": 6, "v": "b"}),
        _maxwell(2, "update", {"id": 1, "v": "c"}, {"v": "a"}),
        _maxwell(3, "update", {"id": 1}, {"w": "x"}),
        _maxwell(4, "update", {"id": 3, "v": "d"}, {"id": 2, "v": "b"}),
    ]
    table = delivered([changes] if together else [[each] for each in changes], asked, classify=MAXWELL)
    assert current(table) == [{"id": 1, "n": 5, "v": "c", "w": None}, {"id": 3, "n": 6, "v": "d", "w": None}]


def test_a_key_change_in_an_event_list_ends_the_former_row() -> None:
    changes = [
        _maxwell(0, "insert", {"id": 1, "v": "a"}),
        _maxwell(1, "insert", {"id": 2, "v": "b"}),
        _maxwell(2, "update", {"id": 3, "v": "b"}, {"id": 2}),
        _maxwell(3, "update", {"id": 2, "v": "a"}, {"id": 1}),
    ]
    again = [{**each, "offset": each["offset"] + 9} for each in changes[2:]]
    table = delivered([changes[:2], changes[2:], again], Asked("append"), classify=MAXWELL)
    moved = {str(each.op): each for each in table.listed if each.origin.offset == 2}
    assert {op: each.values["id"] for op, each in moved.items() if each.values} == {"u": 3, "d": 2}
    assert moved["u"].seq == moved["d"].seq
    assert len(table.listed) == 6
    assert table.counts == {"applied": 4, "duplicates": 2}
