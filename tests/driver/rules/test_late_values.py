"""Values that come late, by another key or from a transaction that was open end where the source has them."""

from __future__ import annotations

import pytest

from tests.driver.rules.late_values import CASES
from tests.support.rule_engine import Engine

pytestmark = pytest.mark.guarantee("The rules and the driver's engine make the same of the same records")


@pytest.mark.parametrize("number", range(len(CASES)), ids=[case.name for case in CASES])
def test_the_rules_end_in_the_rows_of_the_source(number: int) -> None:
    engine = Engine()
    for batch in CASES[number].sent(number):
        engine.deliver(batch)
    [table] = engine.tables.values()
    found = {key[1]: (row.values["v"], row.values["big"]) for key, row in table.rows.items()}
    assert found == CASES[number].rows
