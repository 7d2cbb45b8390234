"""Deliveries of the hostile tests go through the rules alone, and end as they end in a pipeline."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from lakemirror.driver.rules.envelopes import flat, maxwell
from lakemirror.driver.rules.schemas import fields_of_struct
from tests.hostile import test_columns
from tests.hostile.test_identity import _binlog, _compressed, _maxwell
from tests.support.records import Record, Row
from tests.support.rule_engine import Asked, Classify, Engine, Mirrored
from tests.support.shop import Shop

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


@pytest.mark.parametrize("mode", test_columns.MODES)
def test_only_the_log_of_a_database_ends_a_column(mode: str) -> None:
    """Tables are named by what happens to their column: absent members, snapshots and copies end nothing."""
    asked = {"scd1": Asked(), "soft": Asked(soft=True), "scd2": Asked("scd2")}
    engine = Engine(default=asked[mode])
    for batch in test_columns.of_postgres(Shop(), mode):
        engine.deliver(batch)
    found = {
        name: [(row["id"], row.get("c")) for row in current(engine.tables[f"demo.public.{name}_{mode}"])]
        for name in ("bare", "generated", "again", "copied")
    }
    assert found == {
        "bare": [(1, 5), (2, None), (3, None), (4, 7)],
        "generated": [(1, None), (2, 2), (3, None)],
        "again": [(1, 7), (2, 7), (3, 7), (4, 4)],
        "copied": [(1, 1), (2, None), (3, 3)],
    }
    first, second, third = current(engine.tables[f"demo.public.added_{mode}"])
    assert {name: first.get(name) for name in test_columns.WRITTEN} == {
        **dict.fromkeys(("at", "zoned", "day", "uid")),
        **{"number": 0, "flag": False, "said": ""},
    }
    assert {**second, "id": 3, "note": "c"} == third


def test_versions_that_ended_keep_what_they_had_in_a_column_that_was_dropped() -> None:
    engine = Engine(default=Asked("scd2"))
    for batch in test_columns.of_postgres(Shop(), "scd2"):
        engine.deliver(batch)
    keys = engine.tables["demo.public.again_scd2"].versions.keys
    found = {key: [(each.row.values["c"], each.is_current) for each in keys[key].versions] for key in keys}
    assert found == {
        (1,): [(1, False), (7, True)],
        (2,): [(7, True)],
        (3,): [(3, False), (7, True)],
        (4,): [(4, True)],
    }


@pytest.mark.parametrize("order", ["in order", "mixed"])
def test_columns_of_flat_records_begin_new_lives(order: str) -> None:
    first, second, third, fourth, fifth = map(test_columns.flat, test_columns.changing(Shop()))
    batches = {
        "in order": [[first], [second], [third], [fourth], [fifth]],
        "mixed": [[fifth, first], [third], [fourth, second]],
    }
    table = delivered(
        batches[order],
        Asked(),
        classify=flat.classify,
        is_metadata=flat.is_metadata,
        fields_of=fields_of_struct,
    )
    assert [(row["id"], row["c"]) for row in current(table)] == [(1, 7), (2, 7), (3, 3), (5, 7)]
