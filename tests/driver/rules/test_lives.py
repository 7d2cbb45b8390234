"""Columns that are added, dropped and added again: which values are of a former life, who gets a default."""

from __future__ import annotations

from typing import Any

import pytest

from lakemirror.driver.rules.lives import Default, Life, is_constant, with_defaults, without_former
from lakemirror.driver.rules.positions import own
from lakemirror.driver.rules.schemas import Field
from tests.driver.rules.test_merge import at, row

pytestmark = pytest.mark.guarantee(
    "What a record lacks says nothing about other rows: only the log of a database ends a column; a column "
    "that is added again begins a new life, in any order of delivery; a constant default goes to all rows, a "
    "placeholder of a moment or a UUID to none"
)

ALWAYS = Life().after(None, at(9))
GONE = ALWAYS.after(at(20), None)
BACK = GONE.after(None, at(30))


def in_epoch(number: int, seq: bytes) -> bytes:
    return number.to_bytes(2, "big") + seq[2:]


def of(column: str, default: Any, semantic: str | None = None, *, optional: bool = False) -> Field:
    return Field(column, "string", semantic, default=default, optional=optional)


def test_a_column_that_was_always_there_has_no_former_life() -> None:
    assert ALWAYS.begins is None
    assert not ALWAYS.is_former(own(at(1)))


def test_a_column_that_is_gone_keeps_its_values_until_it_returns() -> None:
    assert GONE.marks.is_gone
    assert GONE.begins is None
    assert not GONE.is_former(own(at(9)))


def test_values_up_to_the_last_change_without_the_column_are_of_its_former_life() -> None:
    assert BACK.begins == at(20)
    assert [BACK.is_former(own(at(lsn))) for lsn in (1, 20, 21, 30)] == [True, True, False, False]


def test_marks_do_not_depend_on_the_order_of_delivery() -> None:
    assert Life().after(None, at(30)).after(at(20), at(9)) == BACK
    assert Life().after(at(20), at(30)).after(at(15), at(9)) == BACK


def test_two_changes_at_one_position_begin_nothing() -> None:
    assert ALWAYS.after(at(9), None) == ALWAYS
    assert BACK.after(at(30), None).begins == at(20)


def test_values_without_a_position_and_of_other_epochs_are_of_no_former_life() -> None:
    assert not BACK.is_former(own(bytes(26)))
    later = Life().after(in_epoch(1, at(20)), in_epoch(1, at(30)))
    assert not later.is_former(own(at(5)))
    assert later.is_former(own(in_epoch(1, at(5))))


def test_the_default_is_that_of_the_oldest_schema_of_the_life() -> None:
    former, first, second = (
        Default(at(lsn), of("c", text)) for lsn, text in ((5, "a"), (25, "b"), (27, "c"))
    )
    assert GONE.after(None, at(30), [second, former, first]).default == first
    assert Life().after(None, at(30), [second]).after(at(20), None, [first]).default == first
    assert GONE.after(None, None, [former]).default == former


@pytest.mark.parametrize(
    ("field", "connector", "constant"),
    [
        (of("c", None), "postgresql", False),
        (of("c", "x"), "postgresql", True),
        (of("c", ""), "postgresql", True),
        (of("c", 0, "io.debezium.time.MicroTimestamp"), "postgresql", False),
        (of("c", 0, "io.debezium.time.MicroTimestamp"), None, False),
        (of("c", 0, "io.debezium.time.MicroTimestamp"), "sqlserver", True),
        (of("c", 1, "io.debezium.time.MicroTimestamp"), "postgresql", True),
        (of("c", "1970-01-01T00:00:00.000000Z", "io.debezium.time.ZonedTimestamp"), "mysql", False),
        (of("c", "1970-01-01T00:00:01Z", "io.debezium.time.ZonedTimestamp"), "mysql", True),
        (of("c", "1970-01-02T00:00:00Z", "io.debezium.time.ZonedTimestamp"), "mysql", True),
        (of("c", 0, "io.debezium.time.Date"), "postgresql", False),
        (of("c", 0, "io.debezium.time.Date"), "mariadb", True),
        (of("c", "00000000-0000-0000-0000-000000000000", "io.debezium.data.Uuid"), "postgresql", False),
        (of("c", "00000000-0000-0000-0000-000000000001", "io.debezium.data.Uuid"), "postgresql", True),
        (of("c", "00000000-0000-0000-0000-000000000000", "io.debezium.data.Uuid"), "mysql", True),
        (of("c", "x", optional=True), "sqlserver", False),
        (of("c", "x", optional=True), "mysql", True),
        (Field("c", "array", items=of("", None), default=[]), "postgresql", False),
        (Field("c", "struct", fields=(of("a", None),), default={}), "postgresql", False),
    ],
)
def test_a_constant_default_is_told_from_what_stands_for_a_function(
    field: Field, connector: str | None, constant: bool
) -> None:
    assert is_constant(field, connector) == constant


def test_rows_get_defaults_of_columns_that_are_added() -> None:
    stored = row(5, 5, "e")
    assert with_defaults(stored, {"c": 7}).values == {**stored.values, "c": 7}
    assert with_defaults(stored._replace(unseen=True), {"c": 7}).values == stored.values


def test_rows_lose_values_of_a_former_life_alone() -> None:
    former, later = row(5, 5, "e"), row(25, 5, "e")
    assert without_former(former, {"note": BACK}, {"note": "d"}).values["note"] == "d"
    assert without_former(former, {"note": BACK}, {}).values["note"] is None
    assert without_former(later, {"note": BACK}, {"note": "d"}) == later
    assert without_former(former, {"note": GONE}, {"note": "d"}) == former
    assert without_former(former._replace(unseen=True), {"note": BACK}, {"note": "d"}).values["note"] == "e"


def test_a_value_that_is_older_than_its_row_may_be_of_a_former_life() -> None:
    stored = row(25, 5, "e", seqs={"note": own(at(12))})
    assert without_former(stored, {"v": BACK, "note": BACK}, {"note": "d"}).values["note"] == "d"
    assert without_former(stored, {"v": BACK, "note": BACK}, {"note": "d"}).values["v"] == 5
