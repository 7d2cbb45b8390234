"""Which row a change is of, and changes of which nobody can tell."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pytest

from lakemirror.driver.rules.envelopes.records import Change, TableName
from lakemirror.driver.rules.kinds import (
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    INT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    Decimals,
    Kind,
)
from lakemirror.driver.rules.positions import Source
from lakemirror.driver.rules.row_keys import Keyed, KeyOfTable, Left, keyed, left
from lakemirror.driver.rules.rows import Column
from lakemirror.driver.rules.schemas import field_of
from lakemirror.driver.rules.untyped import loads

pytestmark = pytest.mark.guarantee(
    "A change whose row is in doubt is refused with the reason, and applied to no other row"
)

FULL = (
    "primaryKey has tenant, which the record's own key does not have: set REPLICA IDENTITY FULL on the "
    "table, or declare the record's key with a new target and a new resyncToken"
)


def table(*names: str, from_rows: tuple[str, ...] = (), kind: Kind = INT, **more: Any) -> KeyOfTable:
    return KeyOfTable(names, {name: Column(name.upper(), kind) for name in names}, from_rows, **more)


ONE = table("id")
TWO = table("id", "tenant", from_rows=("tenant",))
"""The records have the key ``id``; the manifest declares ``id`` and ``tenant``."""


def change(op: str, **given: Any) -> Change:
    return Change(TableName("d", "s", "t"), op, Source(), b"", **given)


def told(of: KeyOfTable, op: str, *, has_key: bool = True, **given: Any) -> Keyed | str:
    return keyed(change(op, **given), has_key, of)


# -- the key of the record --------------------------------------------------------------------------------


def test_a_key_is_that_of_its_record() -> None:
    assert told(ONE, "u", key={"ID": 1}, row={"ID": 1}) == Keyed((1,))
    assert told(ONE, "d", key={"ID": 1}, before={"ID": 7}) == Keyed((1,)), (
        "the image of a delete is not asked"
    )
    assert told(table("a", "b"), "c", key={"B": 2, "A": 1}, row={"A": 1, "B": 2}) == Keyed((1, 2))


def test_halves_of_a_change_of_a_key_name_the_other_one() -> None:
    assert told(ONE, "d", key={"ID": 1}, new_key={"ID": 2}) == Keyed((1,), new_key=(2,))
    assert told(ONE, "c", key={"ID": 2}, old_key={"ID": 1}, row={"ID": 2}) == Keyed((2,), old_key=(1,))
    odd = told(ONE, "c", key={"ID": 2}, old_key={"ID": "x"}, row={"ID": 2})
    assert odd == Keyed((2,)), "a create is there, wherever its row was before"


def test_a_key_in_a_header_has_numbers_where_others_have_bytes() -> None:
    """Connect's SimpleHeaderConverter writes no schema, and logical types as what they are."""
    price = field_of(
        {
            "type": "bytes",
            "field": "PRICE",
            "name": "org.apache.kafka.connect.data.Decimal",
            "parameters": {"scale": "2", "connect.decimal.precision": "8"},
        }
    )
    day = field_of({"type": "int32", "field": "DAY", "name": "org.apache.kafka.connect.data.Date"})
    of = KeyOfTable(("price", "day"), {"price": Column.of(price), "day": Column.of(day)})
    mine, other = {"PRICE": "bw==", "DAY": 1}, loads('{"PRICE": 1.10, "DAY": "1970-01-03"}')
    here, there = (Decimal("1.11"), date(1970, 1, 2)), (Decimal("1.10"), date(1970, 1, 3))
    assert told(of, "d", key=mine, new_key=other) == Keyed(here, new_key=there)
    assert told(of, "c", key=mine, row=mine, old_key=other) == Keyed(here, old_key=there)
    assert told(of, "c", key=mine, row=mine, old_key={"PRICE": "bg==", "DAY": 2}) == Keyed(
        here, old_key=there
    )
    odd = told(of, "u", key=mine, row=mine, old_key=other)
    assert odd == "the row's former key does not fit (key columns: price, day)", "it is a before image"


def test_an_update_that_changes_its_key_ends_the_row_with_the_former_one() -> None:
    assert told(ONE, "u", key={"ID": 2}, old_key={"ID": 1}, row={"ID": 2}) == Keyed((2,), former=(1,))
    assert told(ONE, "u", key={"ID": 2}, old_key={"ID": 2}, row={"ID": 2}) == Keyed((2,))
    assert told(ONE, "u", key={"ID": 2}, new_key={"ID": 3}, row={"ID": 2}) == Keyed((2,))
    odd = told(ONE, "u", key={"ID": 2}, old_key={"ID": None}, row={"ID": 2})
    assert odd == "the row's former key does not fit (key columns: id)"


@pytest.mark.parametrize(
    ("key", "has_key", "reason"),
    [
        (None, True, "the key is not a JSON object"),
        (None, False, "the key is missing or does not fit (key columns: id)"),
        (
            {},
            True,
            "the key is missing or does not fit (key columns: id): id is null or missing, so that nothing",
        ),
        (
            {"ID": None},
            True,
            "the key is missing or does not fit (key columns: id): id is null or missing, so that",
        ),
        ({"ID": "x"}, True, "the key is missing or does not fit (key columns: id)"),
    ],
)
def test_a_key_that_is_none_is_named(key: Any, has_key: bool, reason: str) -> None:
    found = told(ONE, "u", has_key=has_key, key=key, row={"ID": 1})
    assert isinstance(found, str)
    assert found.startswith(reason)
    assert ("null or missing" in found) == ("null or missing" in reason)


def test_parts_of_a_key_that_no_type_holds_are_named() -> None:
    days = told(table("day", kind=DATE), "d", key={"DAY": 2147483647})
    assert days == (
        "the key is missing or does not fit (key columns: day): Spark cannot represent day, which is infinity"
    )
    nanos = KeyOfTable(
        ("at",),
        {
            "at": Column.of(
                field_of({"type": "int64", "name": "io.debezium.time.NanoTimestamp", "field": "AT"})
            )
        },
    )
    found = told(nanos, "d", key={"AT": 1001})
    assert isinstance(found, str)
    assert "at has digits below the microsecond, without which keys would be equal" in found
    assert "set columns.types: {AT: string}, with a new target and a new resyncToken" in found
    assert told(nanos, "d", key={"AT": 1000}) == Keyed((datetime(1970, 1, 1, 0, 0, 0, 1),))
    two = told(table("a", "b"), "d", key={"A": None, "B": "x"})
    assert two == "the key is missing or does not fit (key columns: a, b)", "a misfit is told as such"


def test_a_schema_that_lacks_a_column_of_the_key_has_no_key() -> None:
    lacks = KeyOfTable(("id", "tenant"), {"id": Column("ID", INT)})
    found = told(lacks, "d", key={"ID": 1})
    assert found == "the key is missing or does not fit (key columns: id, tenant)"


def test_a_key_with_other_columns_is_refused() -> None:
    other = table("id", other="the key has other columns: set a new target")
    assert (
        told(other, "u", key={"ID": 1, "X": 2}, row={"ID": 1})
        == "the key has other columns: set a new target"
    )
    assert told(other, "u", key={"X": 1}, row={"ID": 1}) == "the key has other columns: set a new target"
    assert told(other, "u", key={"ID": 1}, row={"ID": 1}) == Keyed((1,))
    assert told(other, "u", key=None, row={"ID": 1}) == "the key is not a JSON object"
    assert told(ONE, "u", key={"ID": 1, "X": 2}, row={"ID": 1}) == Keyed((1,))


def test_a_row_with_another_key_than_its_record_is_refused() -> None:
    assert told(ONE, "u", key={"ID": 1}, row={"ID": 2}) == "key and row differ in id"
    assert told(ONE, "c", key={"ID": 1}, row={}) == "key and row differ in id"
    assert (
        told(table("a", "b"), "u", key={"A": 1, "B": 2}, row={"A": 1, "B": 3}) == "key and row differ in a, b"
    )


# -- a key that the manifest declares ---------------------------------------------------------------------


def test_a_declared_key_is_taken_from_the_row() -> None:
    row = {"ID": 1, "TENANT": 2}
    assert told(TWO, "c", key={"ID": 9}, row=row) == Keyed((1, 2))
    assert told(TWO, "d", key={"ID": 9}, before=row) == Keyed((1, 2))
    assert (
        told(TWO, "c", row=None, has_key=False)
        == "the key is missing or does not fit (key columns: id, tenant)"
    )
    assert told(TWO, "c", row={"ID": 1}) == (
        "the key is missing or does not fit (key columns: id, tenant): "
        "tenant is null or missing, so that nothing identifies the row"
    )


def test_an_update_shows_the_declared_key_that_its_row_had() -> None:
    row, before = {"ID": 1, "TENANT": 2}, {"ID": 1, "TENANT": 5}
    assert told(TWO, "u", row=row, before=before) == Keyed((1, 2), former=(1, 5))
    assert told(TWO, "u", row=row, before=row) == Keyed((1, 2))
    assert told(TWO, "c", row=row, before=before) == Keyed((1, 2))
    assert told(TWO, "u", row=row) == f"an update without a before image, but {FULL}"
    assert told(TWO, "d") == f"a delete without a before image, but {FULL}"


@pytest.mark.parametrize(
    ("value", "kind", "is_trusted"),
    [
        (5, INT, True),
        (0, INT, False),
        (None, INT, False),
        (7, INT, False),  # the default of the column
        ("", STRING, False),
        ("a", STRING, True),
        (0, DATE, False),
        (1, DATE, True),
        (False, BOOLEAN, False),
        (True, BOOLEAN, True),
        ("0.00", Decimals(10, 2), False),
        ("0.01", Decimals(10, 2), True),
        (0, DOUBLE, False),
        (1, DOUBLE, True),
        ("", BINARY, False),
        ("AAA=", BINARY, False),  # two zeros
        ("AAE=", BINARY, True),
        ("1970-01-01T00:00:00", TIMESTAMP_NTZ, False),
        ("1970-01-01T00:00:00Z", TIMESTAMP, False),
        ("1970-01-01T00:00:01Z", TIMESTAMP, True),
    ],
)
def test_an_incomplete_image_may_have_placeholders(value: Any, kind: Kind, is_trusted: bool) -> None:
    """PostgreSQL sends only its own key; Debezium puts nulls, zeros and defaults into the other columns."""
    columns = {"id": Column("ID", INT), "tenant": Column("TENANT", kind)}
    of = KeyOfTable(("id", "tenant"), columns, ("tenant",), {"tenant": 7})
    image = {"ID": 0, "TENANT": value}
    found = told(of, "d", key={"ID": 0}, before=image, full_before=False)
    assert isinstance(found, Keyed) == is_trusted
    if not is_trusted:
        assert found == f"a delete with an incomplete before image: {FULL}"
    if value is not None:
        assert isinstance(told(of, "d", key={"ID": 0}, before=image), Keyed), "MySQL sends complete images"
        alone = told(of, "d", before=image, has_key=False, full_before=False)
        assert isinstance(alone, Keyed), "without a key, the whole row is its identity"


# -- rows that leave their key ----------------------------------------------------------------------------


def gone_from(of: KeyOfTable, op: str = "u", **given: Any) -> Left | None:
    return left(change(op, **given), of)


def test_a_row_leaves_its_former_key_whatever_its_image_is() -> None:
    moved = {"key": {"ID": 2}, "old_key": {"ID": 1}}
    assert gone_from(ONE, row={"ID": 2}, **moved) == Left((1,), (2,))
    assert gone_from(ONE, row={"ID": 2, "v": object()}, **moved) == Left((1,), (2,))
    for op in "cdr":
        assert gone_from(ONE, op, row={"ID": 2}, **moved) is None
    assert gone_from(ONE, key={"ID": 1}, row={"ID": 1}, old_key={"ID": 1}) is None
    assert gone_from(ONE, key={"ID": 1}, row={"ID": 1}) is None
    assert gone_from(ONE, key={"ID": 2}, row={"ID": 2}, old_key={"ID": "x"}) is None


def test_a_key_that_the_mirror_cannot_have_is_another_one_too() -> None:
    assert gone_from(ONE, key={"ID": "x"}, row={"ID": "x"}, old_key={"ID": 1}) == Left((1,), None)


def test_a_key_that_is_not_certain_proves_nothing() -> None:
    old = {"old_key": {"ID": 1}}
    assert gone_from(ONE, key={"ID": 2}, row={"ID": 3}, **old) is None, "its row does not have it"
    assert gone_from(ONE, key={"ID": None}, row={}, **old) is None
    assert gone_from(ONE, key={}, row={}, **old) is None
    assert gone_from(ONE, row={}, **old) is None
    other = table("id", other="the mirror has another key")
    assert gone_from(other, key={"ID": 2}, row={"ID": 2}, **old) == Left((1,), (2,))
    assert gone_from(other, key={"ID": 2, "b": 1}, row={"ID": 2}, **old) is None
    assert gone_from(other, row={"ID": 2}, **old) is None


def test_a_declared_key_is_left_when_the_rows_show_it() -> None:
    before = {"ID": 1, "TENANT": 5}
    assert gone_from(TWO, before=before, row={"ID": 1, "TENANT": 6}) == Left((1, 5), (1, 6))
    assert gone_from(TWO, before=before, row={"ID": 1, "TENANT": None}) == Left((1, 5), None)
    assert gone_from(TWO, before=before, row={"ID": 1, "TENANT": "x"}) == Left((1, 5), None)
    assert gone_from(TWO, before=before, row={"ID": 1}) is None
    assert gone_from(TWO, before=before, row=before) is None
    assert gone_from(TWO, before=None, row={"ID": 1, "TENANT": 6}) is None
