"""What filters and expectations make of a change, and why nothing tells whether its row meets them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import pytest

from lakemirror.driver.rules.conditions import (
    Condition,
    Evidence,
    Expected,
    Fails,
    Verdict,
    filtered_or_why,
    verdict,
)
from lakemirror.driver.rules.values import NOTHING, Event, Values

pytestmark = pytest.mark.guarantee(
    "A row that fails an expectation is counted, quarantined, or holds its table, until the source corrects "
    "it"
)

Truth = Callable[[Values], bool | None]


def fails(_: Values) -> bool | None:
    raise Fails


def positive(row: Values) -> bool | None:
    return None if row.get("v") is None else row["v"] > 0


FILTER = Condition("v > 0", "tables[t].filter", ("v",), positive)


def changed(op: str = "u", v: object = 1, **more: object) -> Event:
    return Event((1,), op, b"\1", row={} if op == "d" else {"id": 1, "v": v}, **more)  # type: ignore[arg-type]


# -- filters ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["c", "u", "r"])
def test_a_row_that_does_not_meet_the_filter_goes_and_changes_no_list(op: str) -> None:
    good, bad, null = changed(op), changed(op, -1, old_key=(2,)), changed(op, None)
    assert filtered_or_why(good, FILTER, Evidence(), keyed=True) is good
    for each in (bad, null):
        gone = filtered_or_why(each, FILTER, Evidence(), keyed=True)
        assert gone == each._replace(op="d", row=NOTHING, old_key=None)
        assert filtered_or_why(each, FILTER, Evidence(), keyed=False) is None


def test_a_delete_passes_whatever_is_known_of_its_row() -> None:
    gone = changed("d")
    for evidence in (Evidence(), Evidence(["v"]), Evidence((), ["v"])):
        assert filtered_or_why(gone, FILTER, evidence, keyed=True) is gone
        assert filtered_or_why(gone, FILTER, evidence, keyed=False) is gone


def test_a_filter_needs_the_whole_row_if_rows_have_a_key() -> None:
    why = filtered_or_why(changed(), FILTER, Evidence(["note", "big"]), keyed=True)
    assert why == (
        "the source did not send note, big, and tables[t].filter needs the whole row: set REPLICA IDENTITY "
        "FULL on the table"
    )
    event = changed()
    assert filtered_or_why(event, FILTER, Evidence(["note"]), keyed=False) is event
    assert "did not send v" in str(filtered_or_why(event, FILTER, Evidence(["v"]), keyed=False, remedy="x"))


def test_a_member_that_a_row_lacks_is_no_null() -> None:
    why = (
        "the record lacks v, which tables[t].filter reads: send null if the value is null, or change the "
        "condition if the source no longer has the column, and run `lakemirror replay`"
    )
    for keyed in (True, False):
        assert filtered_or_why(changed(), FILTER, Evidence((), ["a", "v"]), keyed=keyed) == why
        other = changed()
        assert filtered_or_why(other, FILTER, Evidence((), ["a"]), keyed=keyed) is other


def test_a_filter_that_fails_for_a_row_tells_nothing_about_it() -> None:
    why = "tables[t].filter, v > 0, fails for the row"
    assert filtered_or_why(changed(), FILTER._replace(evaluate=fails), Evidence(), keyed=True) == why


# -- expectations -----------------------------------------------------------------------------------------


def expected(
    evaluate: Truth = positive, on_violation: Literal["warn", "quarantine", "fail"] = "warn", name: str = "e"
) -> Expected:
    return Expected(
        name, Condition("v > 0", f"tables[t].expectations[{name}]", ("v", "w"), evaluate), on_violation
    )


SHOWN = "the expectation e, v > 0 (tables[t].expectations[e])"


def test_a_row_that_meets_its_expectations_passes_and_so_does_a_delete() -> None:
    listed = [expected(on_violation=each) for each in ("warn", "quarantine", "fail")]  # type: ignore[arg-type]
    assert verdict(changed(), listed, Evidence()) == Verdict()
    assert verdict(changed("d"), listed, Evidence(["v"], ["w"])) == Verdict()


def test_a_violation_is_counted_and_only_one_that_asks_for_it_keeps_the_record_aside() -> None:
    for v in (-1, None):
        assert verdict(changed(v=v), [expected()], Evidence()) == Verdict(("e",))
        assert verdict(changed(v=v), [expected(on_violation="fail")], Evidence()) == Verdict(("e",))
        aside = verdict(changed(v=v), [expected(on_violation="quarantine")], Evidence())
        assert aside == Verdict(("e",), f"the row does not meet {SHOWN}")


def test_the_first_reason_counts_and_all_violations_do() -> None:
    listed = [expected(name="a"), *(expected(on_violation="quarantine", name=each) for each in "bc")]
    found = verdict(changed(v=-1), listed, Evidence())
    assert found.violates == ("a", "b", "c")
    assert "the expectation b" in str(found.problem)


def test_a_change_without_any_of_the_columns_is_not_judged() -> None:
    for on_violation in ("warn", "quarantine", "fail"):
        each = expected(fails, on_violation)  # type: ignore[arg-type]
        assert verdict(changed(), [each], Evidence(["v", "w", "x"])) == Verdict()


def test_a_change_with_some_of_the_columns_cannot_be_judged() -> None:
    gaps, lacks = Evidence(["x", "w"]), Evidence((), ["w", "x"])
    assert verdict(changed(v=-1), [expected()], gaps) == Verdict()
    assert verdict(changed(v=-1), [expected()], lacks) == Verdict()
    for on_violation in ("quarantine", "fail"):
        listed = [expected(fails, on_violation)]  # type: ignore[arg-type]
        assert verdict(changed(), listed, gaps).problem == (
            f"the source did not send x, w, so that nobody can tell whether the row meets {SHOWN}: set "
            "REPLICA IDENTITY FULL on the table, or onViolation: warn"
        )
        lacking = str(verdict(changed(), listed, lacks).problem)
        assert lacking.startswith("the record lacks w, which tables[t].expectations[e] reads: ")
        assert verdict(changed(), listed, Evidence(["v", "w"], ["w"])).problem == lacking


def test_a_condition_that_fails_is_not_met_and_holds_no_table() -> None:
    why = "tables[t].expectations[e], v > 0, fails for the row"
    assert verdict(changed(), [expected(fails)], Evidence()) == Verdict(("e",))
    assert verdict(changed(), [expected(fails, "quarantine")], Evidence()) == Verdict(("e",), why)
    assert verdict(changed(), [expected(fails, "fail")], Evidence()) == Verdict((), why)


def test_a_condition_that_reads_nothing_is_judged_whatever_is_missing() -> None:
    constant = Expected("e", Condition("false", "p", (), lambda _: False))
    assert verdict(changed(), [constant], Evidence(["v"], ["w"])) == Verdict(("e",))
