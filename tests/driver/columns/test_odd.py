"""Odd records that the rules read one by one: what is known of their table has to hold of them."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from typing import Any

import pytest

from lakemirror.driver.columns import odd
from lakemirror.driver.rules.envelopes.records import Record
from lakemirror.driver.rules.kinds import INT, STRING, TIMESTAMP, Arrays, Kind
from lakemirror.driver.rules.rows import Column
from lakemirror.driver.rules.types import UNAVAILABLE
from tests.driver.columns.test_histories import facts_of
from tests.support.columnar import records_of
from tests.support.histories import Shape, Step, play

PLAYED = play([Step(0, "put")], Shape(schemas=False, full=True))
FACTS = facts_of(PLAYED)


def with_members(row: dict[str, Any], key: dict[str, Any]) -> Record:
    """A record without a schema, with more members in its row and in its key."""
    [record, *_] = records_of(PLAYED.records)
    value, of_key = json.loads(record.value or b""), json.loads(record.key or b"")
    value["after"] |= row
    return record._replace(value=json.dumps(value).encode(), key=json.dumps(of_key | key).encode())


def test_a_new_column_is_not_lost() -> None:
    found = odd.read(with_members({"added": 1}, {}), FACTS)
    assert found == odd.Other("with columns that the table did not have")


def test_a_column_that_has_had_no_value_yet_may_be_there() -> None:
    assert isinstance(odd.read(with_members({"unknown": None}, {}), FACTS), odd.OddChange)


@pytest.mark.parametrize("value", [1, None])
def test_rows_of_a_key_with_more_columns_do_not_become_one(value: int | None) -> None:
    found = odd.read(with_members({}, {"added": value}), FACTS)
    assert found == odd.Other("with columns that the table did not have")


@pytest.mark.parametrize(
    ("kind", "sent"),
    [(STRING, UNAVAILABLE.replace("_", "\\u005f")), (Arrays(INT), json.dumps(list(UNAVAILABLE.encode())))],
)
def test_a_value_that_was_not_sent_is_as_before_however_its_placeholder_is_written(
    kind: Kind, sent: str
) -> None:
    record = with_members({"v": "@"}, {})
    text = sent if sent.startswith("[") else f'"{sent}"'
    facts = replace(FACTS, columns={**FACTS.columns, "v": Column("v", kind)})
    found = odd.read(record._replace(value=(record.value or b"").replace(b'"@"', text.encode())), facts)
    assert isinstance(found, odd.OddChange)
    assert [each.gaps for each in found.events] == [{"v"}]


def test_columns_whose_values_lose_digits_are_told() -> None:
    columns = {**FACTS.columns, "at": Column("at", TIMESTAMP)}
    facts = replace(FACTS, columns=columns)
    for text, rounded in (("2026-01-02T03:04:05.1234567Z", {"at"}), ("2026-01-02T03:04:05.123456Z", set())):
        found = odd.read(with_members({"at": text}, {}), facts)
        assert isinstance(found, odd.OddChange)
        assert found.rounded == rounded


def test_what_has_read_records_is_still_sent_to_tasks() -> None:
    record = with_members({}, {})
    found = odd.read(record, FACTS)
    assert isinstance(found, odd.OddChange)
    assert odd.read(record, pickle.loads(pickle.dumps(FACTS))) == found
