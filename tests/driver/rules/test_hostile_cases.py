"""The hostile cases go through the rules alone: each ends as it says, as it does in a pipeline.

`tests/hostile/test_cases.py` compares the whole text of reasons, and the counts, with the driver's.
"""

from __future__ import annotations

import pytest

from tests.hostile import rules
from tests.hostile.cases import RECORDS, TABLES, RecordCase, TableCase

pytestmark = pytest.mark.guarantee("The rules and the driver's engine make the same of the same records")

RECORDS_ENGINE = rules.of_records()


@pytest.mark.parametrize("number", range(len(RECORDS)), ids=[case.name for case in RECORDS])
def test_a_record(number: int) -> None:
    case: RecordCase = RECORDS[number]
    reason = rules.reasons(RECORDS_ENGINE).get(number + 1)
    row = rules.rows_by_id(RECORDS_ENGINE).get(number)
    if case.outcome == "applied":
        assert reason is None
        assert row == {"id": number, "v": number, "text": None, **(case.row or {})}
    else:
        assert row is None
        assert (reason is not None) == (case.outcome == "quarantined")
        assert case.reason in (reason or "")


def test_the_good_rows_beside_hostile_records_are_there() -> None:
    rows = rules.rows_by_id(RECORDS_ENGINE)
    applied = {number for number, case in enumerate(RECORDS) if case.outcome == "applied"}
    assert rows.keys() == applied | set(rules.GOOD)


@pytest.mark.parametrize("number", rules.COVERED, ids=[TABLES[number].name for number in rules.COVERED])
def test_a_table(number: int) -> None:
    case: TableCase = TABLES[number]
    table = rules.of_table(number)
    assert {name: n for name, n in table.counts.items() if n} == dict(case.counts)
    assert rules.in_order(rules.rows_of(table)) == rules.in_order(case.rows or [])


def test_what_is_left_out_is_there() -> None:
    assert {case.name for case in TABLES} >= rules.LEFT_OUT.keys()
