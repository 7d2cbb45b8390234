"""Numbers as bytes and as text, exactly or not at all."""

from __future__ import annotations

from decimal import Decimal

import pytest

from lakemirror.driver.rules import numbers
from lakemirror.driver.rules.kinds import DOUBLE, FLOAT, Kind

pytestmark = pytest.mark.guarantee(
    "A value of each type of Debezium is the same in the rules and in the driver: exact, text, or refused"
)


@pytest.mark.parametrize(
    ("number", "octets"),
    [
        (0, "00"),
        (127, "7f"),
        (128, "0080"),
        (-1, "ff"),
        (-128, "80"),
        (-129, "ff7f"),
        (255, "00ff"),
        (-256, "ff00"),
        (2**63, "008000000000000000"),
    ],
)
def test_a_number_is_the_bytes_that_java_writes(number: int, octets: str) -> None:
    """(``BigInteger.toByteArray``: the fewest bytes, with a bit for the sign)."""
    assert numbers.unscaled(bytes.fromhex(octets)) == number
    pad = "ff" if number < 0 else "00"
    assert numbers.shortest(bytes.fromhex(pad * 3 + octets)).hex() == octets
    assert numbers.shortest(bytes.fromhex(octets)).hex() == octets


def test_no_bytes_are_no_number() -> None:
    assert numbers.shortest(b"") == b""
    assert numbers.decimal(b"", 5, 2) is None
    assert numbers.plain_text(b"", 2) is None


@pytest.mark.parametrize(
    ("octets", "precision", "scale", "expected"),
    [
        (b"\x03\xe7", 3, 0, "999"),
        (b"\x03\xe8", 3, 0, None),  # 1000 has a digit too many
        (b"\xfc\x19", 3, 0, "-999"),
        (b"\xfc\x18", 3, 0, None),
        (b"\x03\xe7", 3, 2, "9.99"),
        (b"\x00\x00\x05", 3, 0, None),  # bytes that pad the number count
        (b"\x05", 38, 38, "0." + "0" * 37 + "5"),
    ],
)
def test_a_decimal_has_no_more_digits_than_its_type(
    octets: bytes, precision: int, scale: int, expected: str | None
) -> None:
    found = numbers.decimal(octets, precision, scale)
    assert (None if found is None else f"{found:f}") == expected


@pytest.mark.parametrize(
    ("octets", "scale", "text"),
    [
        (b"\x05", 0, "5"),
        (b"\x05", -2, "500"),
        (b"\xff", 0, "-1"),
        (b"\x00", -2, "0"),
        (b"\x05", 1, "0.5"),
        (b"\x05", 3, "0.005"),
        (b"\xfb", 3, "-0.005"),
        (b"\x30\x39", 2, "123.45"),
        (b"\xcf\xc7", 2, "-123.45"),
        (b"\x05", numbers.MAX_SCALE, "0." + "0" * (numbers.MAX_SCALE - 1) + "5"),
        (b"\x05", -numbers.MAX_SCALE, "5" + "0" * numbers.MAX_SCALE),
        (b"\x05", numbers.MAX_SCALE + 1, None),
        (b"\x05", -numbers.MAX_SCALE - 1, None),
        (bytes(numbers.MAX_BYTES), 0, "0"),
        (bytes(numbers.MAX_BYTES + 1), 0, None),
    ],
)
def test_a_number_is_spelled_to_the_last_digit(octets: bytes, scale: int, text: str | None) -> None:
    assert numbers.plain_text(octets, scale) == text


def test_numbers_of_any_size_have_digits() -> None:
    """Python refuses to spell a number of more than 4,300 digits at once."""
    for power in (3999, 4000, 4001, 8000, 9000):
        assert numbers.str_of(10**power) == "1" + "0" * power
        assert numbers.str_of(10**power + 7) == "1" + "0" * (power - 1) + "7"
        assert numbers.str_of(10**power - 1) == "9" * power


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("0.1", DOUBLE, 0.1),
        ("0.10", DOUBLE, 0.1),
        ("1e2", DOUBLE, 100.0),
        ("1E+2", DOUBLE, 100.0),
        ("123456789012345", DOUBLE, 123456789012345.0),  # 15 digits always survive
        ("9007199254740993", DOUBLE, None),  # 2^53 + 1, which only 16 digits tell
        ("9007199254740992", DOUBLE, 9007199254740992.0),
        ("0.30000000000000004", DOUBLE, 0.1 + 0.2),  # its shortest spelling
        ("0.30000000000000005", DOUBLE, None),
        ("0.123456789012345678", DOUBLE, None),
        ("1.7976931348623157e308", DOUBLE, 1.7976931348623157e308),
        ("1.8e308", DOUBLE, None),
        ("4.9e-324", DOUBLE, 5e-324),
        ("5e-324", DOUBLE, None),  # a mirror would show it as 4.9e-324: Java writes two digits at least
        ("1e-323", DOUBLE, None),
        ("9.9e-324", DOUBLE, 1e-323),
        ("2e-323", DOUBLE, 2e-323),
        ("7e-324", DOUBLE, None),  # is 5e-324, with fewer bits than its digits need
        ("1e-400", DOUBLE, None),
        ("-2.5", DOUBLE, -2.5),
        (" 2.5 ", DOUBLE, 2.5),
        ("inf", DOUBLE, None),
        ("nan", DOUBLE, None),
        ("1_000", DOUBLE, None),
        ("x", DOUBLE, None),
        ("0.1", FLOAT, 0.10000000149011612),
        ("16777216", FLOAT, 16777216.0),
        ("16777217", FLOAT, None),
        ("0.10000000149011612", FLOAT, 0.10000000149011612),  # the same float as a DOUBLE
        ("0.1000000015", FLOAT, None),
        ("1e39", FLOAT, None),
        ("1e11", FLOAT, 99999997952.0),  # its shortest spelling
        ("1.4e-45", FLOAT, 2.0**-149),  # as Java writes it
        ("1e-46", FLOAT, None),
    ],
)
def test_digits_are_those_of_a_float_or_there_is_none(text: str, kind: Kind, value: float | None) -> None:
    assert numbers.float_of(text, kind) == value


def test_the_digits_of_a_number_are_those_that_tell_its_value() -> None:
    assert numbers.digits_of("-0.00120E+5") == numbers.digits_of("1.2e3") == "12"


def test_the_shortest_text_of_a_single_float_has_few_digits() -> None:
    assert [numbers.shortest_single(numbers.single(each)) for each in (0.1, 16777216.0, 1e-45)] == [
        "0.1",
        "16777216",
        "1e-45",
    ]
    assert numbers.shortest_single(float("nan")) == "nan"


def test_what_exceeds_a_single_float_is_infinite() -> None:
    assert numbers.single(1e39) == float("inf")
    assert numbers.single(-1e39) == float("-inf")
    assert numbers.double(-(10**400)) == float("-inf")


@pytest.mark.parametrize(
    ("number", "expected"),
    [("999.99", "999.99"), ("1000", None), ("-999.99", "-999.99"), ("-1000", None), ("0.001", None)],
)
def test_a_type_holds_a_number_exactly_or_not(number: str, expected: str | None) -> None:
    found = numbers.holds(Decimal(number), 5, 2)
    assert (None if found is None else str(found)) == expected


def test_a_text_of_a_thousand_characters_is_the_longest_that_is_read() -> None:
    assert numbers.of_digits("0" * numbers.LONGEST, 5, 2) == 0
    assert numbers.of_digits("0" * (numbers.LONGEST + 1), 5, 2) is None


@pytest.mark.parametrize("text", ["AA", "AA=", "A===", "AA==\n", "A A==", "-_8="])
def test_base64_that_is_not_strict_stands_for_no_bytes(text: str) -> None:
    assert numbers.octets_of_base64(text) is None
    assert numbers.octets_of_base64("AA==") == b"\0"
