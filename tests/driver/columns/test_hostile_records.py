"""Each hostile record, beside good ones: in columns it is what it is by the rules."""

from __future__ import annotations

import random

import pytest

from lakemirror.driver.columns.facts import Facts
from lakemirror.driver.rules.envelopes.records import TableName
from lakemirror.driver.rules.row_keys import KeyOfTable
from lakemirror.driver.rules.rows import Column
from lakemirror.driver.rules.schemas import fields_of_envelope
from lakemirror.driver.rules.untyped import loads
from tests.hostile.cases import RECORDS
from tests.hostile.rules import hostile_records
from tests.support.columnar import Beside, records_of
from tests.support.shop import Shop

LINES = hostile_records(Shop())


def facts() -> Facts:
    """What is known of their table once a good record was read."""
    schema, key_schema = (loads(LINES[0][name] or "")["schema"] for name in ("value", "key"))
    columns = {each.name: Column.of(each) for each in fields_of_envelope(schema)}
    name = TableName("demo", "public", "records")
    key = KeyOfTable(["id"], {"id": columns["id"]})
    return Facts(name, columns, key, "postgresql", schema=schema, key_schema=key_schema)


@pytest.mark.guarantee("The rules and the driver's engine make the same of the same records")
@pytest.mark.parametrize("number", range(len(RECORDS)), ids=[case.name for case in RECORDS])
def test_a_hostile_record_is_what_it_is_by_the_rules(number: int) -> None:
    beside = Beside(facts(), tracked=("v", "text"))
    first, *records, last = records_of(LINES)
    beside.deliver([first], random.Random(1))
    beside.deliver([records[number], last], random.Random(number))
    assert beside.odd < beside.records
