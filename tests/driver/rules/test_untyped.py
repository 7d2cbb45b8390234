"""Values of records without a schema: the type of the column says what they mean, or nobody can tell."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from lakemirror.driver.rules import texts
from lakemirror.driver.rules.conversions import GAP, MISFIT, Read
from lakemirror.driver.rules.kinds import (
    BIGINT,
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    TINYINT,
    VARIANT,
    Arrays,
    Decimals,
    Kind,
    Maps,
    Structs,
)
from lakemirror.driver.rules.texts import DEBEZIUM, MAXWELL, UNKNOWN, Writing, octets_of
from lakemirror.driver.rules.types import UNAVAILABLE, Placeholder
from lakemirror.driver.rules.untyped import Number, dumps, loads, micros_per_unit, read

pytestmark = pytest.mark.guarantee(
    "A value of each type of Debezium is the same in the rules and in the driver: exact, text, or refused"
)

MONEY = Decimals(10, 2)
NOON = datetime(2024, 2, 29, 12)
SECONDS = 1_709_208_000
DOUBT = Read(is_misfit=True, is_doubtful=True)


def lost(text: str, value: Any = None) -> Read:
    return Read(value, is_lost=True, text=text)


@pytest.mark.parametrize(
    ("text", "kind", "expected"),
    [
        ("null", INT, Read()),
        # whole numbers, floats, truth values
        ("127", TINYINT, Read(127)),
        ("128", TINYINT, MISFIT),
        ("-128", TINYINT, Read(-128)),
        ("-129", TINYINT, MISFIT),
        ("1.0", INT, MISFIT),
        ('"1"', INT, MISFIT),
        ("true", INT, MISFIT),
        ("9223372036854775807", BIGINT, Read(2**63 - 1)),
        ("9223372036854775808", BIGINT, MISFIT),
        ("1.5", DOUBLE, Read(1.5)),
        ("1", DOUBLE, Read(1.0)),
        ("9007199254740993", DOUBLE, MISFIT),
        ("0.1", FLOAT, Read(0.10000000149011612)),
        ("16777217", FLOAT, MISFIT),
        ('"Infinity"', DOUBLE, Read(math.inf)),
        ('"+INF"', FLOAT, Read(math.inf)),
        ('"-INF"', DOUBLE, Read(-math.inf)),
        ('"1.5"', DOUBLE, MISFIT),
        ("true", DOUBLE, MISFIT),
        ("[]", DOUBLE, MISFIT),
        ("true", BOOLEAN, Read(True)),
        ("false", BOOLEAN, Read(False)),
        ("1", BOOLEAN, Read(True)),
        ("0", BOOLEAN, Read(False)),
        ('"true"', BOOLEAN, Read(True)),
        ('"0"', BOOLEAN, Read(False)),
        ('"false"', BOOLEAN, Read(False)),
        ('"yes"', BOOLEAN, MISFIT),
        ("1.0", BOOLEAN, MISFIT),
        # days
        ("19782", DATE, Read(date(2024, 2, 29))),
        ('"19782"', DATE, Read(date(2024, 2, 29))),
        ("2932896", DATE, Read(date.max)),
        ("2932897", DATE, lost("10000-01-01")),
        ("-719162", DATE, Read(date.min)),
        ("-719163", DATE, lost("0001-12-31 BC")),
        ("2147483647", DATE, lost("infinity")),
        ("2147483648", DATE, MISFIT),
        ("-2147483648", DATE, lost("-infinity")),
        ("-2147483649", DATE, MISFIT),
        ("99999999999", DATE, MISFIT),
        ("999999999999", DATE, MISFIT),
        ('"00000000000"', DATE, Read(date(1970, 1, 1))),
        ('"2024-02-29"', DATE, Read(date(2024, 2, 29))),
        ('"+10000-01-01"', DATE, lost("10000-01-01")),
        ('"soon"', DATE, MISFIT),
        ("1.5", DATE, MISFIT),
        # moments
        (f"{SECONDS * 1000}", TIMESTAMP_NTZ, Read(NOON)),
        (f"{SECONDS * 10**6}", TIMESTAMP_NTZ, Read(NOON)),
        (f"{SECONDS * 10**9}", TIMESTAMP_NTZ, Read(NOON)),
        (f"{SECONDS * 10**9 + 1}", TIMESTAMP_NTZ, Read(NOON, is_rounded=True)),
        (f"{SECONDS * 1000}.5", TIMESTAMP_NTZ, Read(NOON.replace(microsecond=500))),
        (f"{SECONDS * 1000}.0001", TIMESTAMP_NTZ, Read(NOON, is_rounded=True)),
        (f"{SECONDS * 1000}", TIMESTAMP, Read(NOON.replace(tzinfo=UTC))),
        (f'" {SECONDS * 1000} "', TIMESTAMP, Read(NOON.replace(tzinfo=UTC))),
        ("-1", TIMESTAMP_NTZ, Read(datetime(1969, 12, 31, 23, 59, 59, 999_000))),
        ("9223372036825200000", TIMESTAMP_NTZ, lost("infinity")),
        (
            "9223372036825199999",
            TIMESTAMP_NTZ,
            Read(datetime(2262, 4, 11, 23, 47, 16, 825_199), is_rounded=True),
        ),
        ("-62135596800000001", TIMESTAMP_NTZ, lost("0001-12-31 23:59:59.999999 BC")),
        ("1e400", TIMESTAMP_NTZ, MISFIT),
        ('"2024-02-29T12:00:00Z"', TIMESTAMP, Read(NOON.replace(tzinfo=UTC))),
        ('"2024-02-29T12:00:00Z"', TIMESTAMP_NTZ, Read(NOON)),
        ('"2024-02-29 12:00:00"', TIMESTAMP, Read(NOON.replace(tzinfo=UTC))),
        ('"2024-02-29 12:00:00"', TIMESTAMP_NTZ, Read(NOON)),
        ('"2024-02-29T14:00:00+02:00"', TIMESTAMP_NTZ, Read(NOON)),
        ('"2024-02-29T12:00:00.0000001"', TIMESTAMP_NTZ, Read(NOON, is_rounded=True)),
        ('"+10000-01-01T00:00:00"', TIMESTAMP, lost("10000-01-01 00:00:00+00")),
        ('"+10000-01-01T00:00:00"', TIMESTAMP_NTZ, lost("10000-01-01 00:00:00")),
        ('"noon"', TIMESTAMP, MISFIT),
        ("true", TIMESTAMP, MISFIT),
        # text and variants
        ('"a"', STRING, Read("a")),
        ("1.50", STRING, Read("1.5")),
        ("1e400", STRING, Read("1e400")),
        ('{"a":[1.0,null]}', STRING, Read('{"a":[1.0,null]}')),
        ('{"scale":2,"value":"BQ=="}', STRING, Read("0.05")),
        ('{"value":"BQ==","scale":2}', STRING, Read('{"value":"BQ==","scale":2}')),
        ('{"scale":2,"value":"x"}', STRING, Read('{"scale":2,"value":"x"}')),
        ('{"scale":2,"value":5}', STRING, Read('{"scale":2,"value":5}')),
        ('{"scale":2.0,"value":"BQ=="}', STRING, Read('{"scale":2.0,"value":"BQ=="}')),
        ('{"scale":2,"value":""}', STRING, Read('{"scale":2,"value":""}')),
        (f'"{UNAVAILABLE}"', STRING, GAP),
        (f'"{UNAVAILABLE}"', MONEY, GAP),
        (f'"{UNAVAILABLE}"', BINARY, GAP),
        (f'"{UNAVAILABLE}"', VARIANT, GAP),
        ('"[1]"', VARIANT, Read([1])),
        (r'"{\"a\":{\"a\":1}}"', VARIANT, Read({"a": {"a": 1}})),
        (r'"{\"a\":1,\"a\":2}"', VARIANT, Read('{"a":1,"a":2}')),  # a VARIANT would lose one
        (r'"[{\"a\":1e99999999999999999999}]"', VARIANT, Read('[{"a":1e99999999999999999999}]')),
        ('"a"', VARIANT, Read("a")),
        ("[1]", VARIANT, Read([1])),
        # decimals
        ("1.5", MONEY, Read(Decimal("1.50"))),
        ("5", MONEY, Read(Decimal("5.00"))),
        ("1.555", MONEY, lost("1.555")),
        ("123456789", MONEY, lost("123456789")),
        ("true", MONEY, MISFIT),
        ("[1]", MONEY, MISFIT),
        ('{"scale":2,"value":"BQ=="}', MONEY, Read(Decimal("0.05"))),
        ('{"value":"BQ==","scale":2}', MONEY, Read(Decimal("0.05"))),
        ('{"scale":3,"value":"BQ=="}', MONEY, lost('{"scale":3,"value":"BQ=="}')),
        ('{"a":1}', MONEY, lost('{"a":1}')),
        ("5", BINARY, MISFIT),
        # values made of others
        ("[1,null]", Arrays(INT), Read([1, None])),
        ("[1,1.5]", Arrays(INT), Read([1, None], is_misfit=True)),
        ("5", Arrays(INT), MISFIT),
        ("[0,2932897]", Arrays(DATE), lost('["0","2932897"]', [date(1970, 1, 1), None])),
        (f'["{UNAVAILABLE}"]', Arrays(STRING), Read(is_gap=True)),
        (f'["{UNAVAILABLE}"]', Arrays(DATE), Read(is_gap=True)),
        (f'["{UNAVAILABLE}"]', Arrays(MONEY), Read(is_gap=True)),
        (f'["{UNAVAILABLE}"]', Arrays(INT), Read([None], is_misfit=True)),
        (f'["a","{UNAVAILABLE}"]', Arrays(VARIANT), Read(["a", UNAVAILABLE])),
        (str(Placeholder().codes), Arrays(INT), Read(is_gap=True)),
        (str(Placeholder().codes), Arrays(DOUBLE), Read([float(each) for each in Placeholder().codes])),
        ('["1"]', Arrays(VARIANT), Read(["1"])),
        ('{"a":1}', Structs((("a", INT), ("b", INT))), Read({"a": 1, "b": None})),
        ('{"a":1,"c":null}', Structs((("a", INT),)), Read({"a": 1})),
        ('{"a":1,"c":2}', Structs((("a", INT),)), MISFIT),
        ('{"a":"x"}', Structs((("a", INT),)), Read({"a": None}, is_misfit=True)),
        ('{"a":2932897}', Structs((("a", DATE),)), lost('{"a":2932897}', {"a": None})),
        (f'{{"a":"{UNAVAILABLE}"}}', Structs((("a", STRING),)), Read(is_gap=True)),
        ("[1]", Structs((("a", INT),)), MISFIT),
        ('{"a":1,"b":null}', Maps(STRING, INT), Read({"a": 1, "b": None})),
        ('{"1":"x"}', Maps(INT, STRING), Read({1: "x"})),
        ('{"1":1,"01":2}', Maps(INT, INT), MISFIT),
        ('{"x":1}', Maps(INT, INT), MISFIT),
        ('{"1500":1}', Maps(MONEY, INT), Read({Decimal("1500.00"): 1})),
        ('{"2024-02-29":1}', Maps(DATE, INT), Read({date(2024, 2, 29): 1})),
        ('{"2024-02-29T12:00:00.0000001Z":1}', Maps(TIMESTAMP, INT), MISFIT),
        ('{"a":2932897}', Maps(STRING, DATE), lost('{"a":2932897}', {"a": None})),
        ('{"a":"x"}', Maps(STRING, INT), Read({"a": None}, is_misfit=True)),
        (f'{{"{UNAVAILABLE}":"{UNAVAILABLE}"}}', Maps(STRING, STRING), Read(is_gap=True)),
        ("[]", Maps(STRING, INT), MISFIT),
        # objects that have a member twice
        ('{"a":1, "a":1.50}', STRING, Read('{"a":1,"a":1.5}')),
        ('{"o":[{"a":1,"\\u0061":{"b":null}}]}', STRING, Read('{"o":[{"a":1,"a":{"b":null}}]}')),
        ('{"scale":3,"scale":2,"value":"BQ=="}', STRING, Read('{"scale":3,"scale":2,"value":"BQ=="}')),
        ('{"scale":2,"scale":2,"value":"BQ=="}', MONEY, MISFIT),
        ('{"scale":2,"value":"BQ==","more":[{"a":1,"a":1}]}', MONEY, MISFIT),
        ('{"a":1,"a":2}', VARIANT, MISFIT),
        ('[{"o":{"a":1,"a":1}}]', VARIANT, MISFIT),
        ('{"a":1,"a":2}', Maps(STRING, INT), MISFIT),
        ('{"m":{"a":1,"a":2}}', Maps(STRING, STRING), Read({"m": '{"a":1,"a":2}'})),
        ('{"m":{"a":1,"a":2}}', Maps(STRING, VARIANT), Read({"m": None}, is_misfit=True)),
        ('[{"a":1,"a":2}]', Arrays(VARIANT), Read([None], is_misfit=True)),
        ('[{"a":1,"a":2}]', Arrays(Maps(STRING, INT)), Read([None], is_misfit=True)),
        ('{"a":1,"a":2}', Structs((("a", INT),)), Read({"a": 2})),
        ('{"v":{"a":1,"a":2}}', Structs((("v", VARIANT),)), Read({"v": None}, is_misfit=True)),
        (f'{{"{UNAVAILABLE}":"a","{UNAVAILABLE}":"a"}}', Maps(STRING, STRING), Read(is_gap=True)),
    ],
)
def test_a_value_is_read_by_the_type_of_its_column(text: str, kind: Kind, expected: Read) -> None:
    found = read(loads(text), kind)
    assert found == expected
    assert type(found.value) is type(expected.value)
    if isinstance(kind, Decimals) and found.value is not None:
        assert str(found.value) == str(expected.value)


OTHER = Placeholder("nothing")


@pytest.mark.parametrize(
    ("text", "kind", "expected"),
    [
        ('{"nothing":"nothing"}', Maps(STRING, STRING), GAP),
        (f'{{"{UNAVAILABLE}":"a"}}', Maps(STRING, STRING), Read({UNAVAILABLE: "a"})),
        ('{"a":"nothing"}', Maps(STRING, STRING), Read({"a": "nothing"})),
        ('["nothing","b"]', Arrays(STRING), Read(["nothing", "b"])),
        ('["a","nothing"]', Arrays(STRING), Read(["a", "nothing"])),
        ('["nothing"]', Arrays(STRING), GAP),
        ('[["nothing"]]', Arrays(Arrays(STRING)), GAP),
        ('[["nothing"],["b"]]', Arrays(Arrays(STRING)), Read([["nothing"], ["b"]])),
        ('[{"a":"nothing"}]', Arrays(Structs((("a", STRING),))), GAP),
    ],
)
def test_the_placeholder_of_a_connector_stands_for_a_whole_value(
    text: str, kind: Kind, expected: Read
) -> None:
    assert read(loads(text), kind, placeholder=OTHER) == expected


@pytest.mark.parametrize("kind", [STRING, VARIANT])
def test_without_a_placeholder_a_text_that_resembles_one_is_a_text(kind: Kind) -> None:
    assert read(UNAVAILABLE, kind, placeholder=None) == Read(UNAVAILABLE)
    assert read([UNAVAILABLE], Arrays(kind), placeholder=None) == Read([UNAVAILABLE])
    assert read({UNAVAILABLE: "a"}, Maps(STRING, kind), placeholder=None) == Read({UNAVAILABLE: "a"})
    assert read([], Arrays(INT), placeholder=None) == Read([])


def test_a_number_of_seconds_is_one_where_the_source_may_write_them() -> None:
    assert read(SECONDS, TIMESTAMP_NTZ, UNKNOWN) == Read(NOON)
    assert read(SECONDS, TIMESTAMP_NTZ, DEBEZIUM) == Read(datetime(1970, 1, 20, 18, 46, 48))
    for number, micros in (
        (99_999_999_999, 10**6),  # the year 5138
        (100_000_000_000, 1000),
        (-62_135_596_800, 10**6),
        (-62_135_596_801, 1000),
        (253_402_300_799_999, 1000),
        (253_402_300_800_000, 1),
        (253_402_300_799_999_999, 1),
    ):
        assert micros_per_unit(Decimal(number)) == micros, number
    assert micros_per_unit(Decimal(253_402_300_800_000_000)) == Decimal("0.001")
    assert micros_per_unit(Decimal(-62_135_596_800_001)) == 1


# -- texts that stand for bytes ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "writing", "expected"),
    [
        ("AAE=", DEBEZIUM, Read(b"\0\1")),
        ("0001", DEBEZIUM, DOUBT),  # hexadecimal, or base64 of three bytes
        ("00010", DEBEZIUM, MISFIT),
        ("000102", DEBEZIUM, Read(b"\0\1\2")),
        ("\\x0001", DEBEZIUM, Read(b"\0\1")),
        ("ABCDEF", DEBEZIUM, MISFIT),  # Debezium writes lower case
        ("ABCDEF", UNKNOWN, Read(b"\xab\xcd\xef")),
        ("0xABCDEF", UNKNOWN, DOUBT),
        ("0xABCD", UNKNOWN, Read(b"\xab\xcd")),
        ("-_8=", DEBEZIUM, Read(b"\xfb\xff")),
        ("", DEBEZIUM, Read(b"")),
        ("0001", MAXWELL, Read(b"\xd3\x4d\x35")),
        ("00010", MAXWELL, MISFIT),
        ("0001", Writing("hex"), Read(b"\0\1")),
        ("0001", Writing("text"), Read(b"0001")),
        ("-_8", Writing("base64url"), Read(b"\xfb\xff")),
        ("-_8", Writing("base64"), MISFIT),
        ("AAF=", DEBEZIUM, MISFIT),  # bits that no encoder sets
    ],
)
def test_bytes_are_told_by_their_text_or_in_doubt(text: str, writing: Writing, expected: Read) -> None:
    assert read(text, BINARY, writing) == expected


@pytest.mark.parametrize(
    ("text", "writing", "expected"),
    [
        ("1500", DEBEZIUM, DOUBT),  # a number, or base64 of three bytes
        ("15.00", DEBEZIUM, Read(Decimal("15.00"))),
        ("150", DEBEZIUM, Read(Decimal("150.00"))),
        ("BQ==", DEBEZIUM, Read(Decimal("0.05"))),
        ("abcd", DEBEZIUM, Read(Decimal("69281.57"))),
        ("NaN", DEBEZIUM, lost("NaN")),
        ("x", DEBEZIUM, MISFIT),
        ("1500", MAXWELL, Read(Decimal("1500.00"))),
        ("BQ==", MAXWELL, MISFIT),
        ("abcd", UNKNOWN, DOUBT),
        ("Infinity", UNKNOWN, lost("Infinity")),
        ("15.00", UNKNOWN, Read(Decimal("15.00"))),
        ("1500", Writing("text"), Read(Decimal("1500.00"))),
        ("BQ==", Writing("text"), MISFIT),
        ("BQ==", Writing("text", decimals="connect"), MISFIT),
        ("BQ", Writing("base64"), Read(Decimal("0.05"))),
        ("05", Writing("hex"), Read(Decimal("0.05"))),
        ("", Writing("hex"), MISFIT),
        ("7fffffffffffffff", Writing("hex"), lost("92233720368547758.07")),
        ("7f" * 17, Writing("hex"), lost("7f" * 17)),  # more digits than any decimal
    ],
)
def test_decimals_are_told_by_their_text_or_in_doubt(text: str, writing: Writing, expected: Read) -> None:
    assert read(text, MONEY, writing) == expected


@pytest.mark.parametrize(
    ("text", "encoding", "octets"),
    [
        ("\u00e9", "text", "\u00e9".encode()),
        ("0Xab", "hex", b"\xab"),
        ("\\xab", "hex", b"\xab"),
        ("abc", "hex", None),
        ("0x", "hex", b""),
        ("AA\r\nE=", "base64", b"\0\1"),
        ("AAE", "base64", b"\0\1"),
        ("A", "base64", None),
        ("AAF", "base64", None),
        ("+/8=", "base64", b"\xfb\xff"),
        ("+/8=", "base64url", b"\xfb\xff"),
        ("-_8=", "base64url", b"\xfb\xff"),
        ("\u00e9", "base64", None),
    ],
)
def test_a_text_of_an_encoding_stands_for_bytes(text: str, encoding: Any, octets: bytes | None) -> None:
    assert octets_of(text, encoding) == octets
    assert texts.canonical("AA==") == b"\0"


# -- JSON -------------------------------------------------------------------------------------------------


def test_a_number_keeps_the_text_that_was_sent() -> None:
    found = loads("[1.50, 1e2, 12345678901234567890, 0.1234567890123456789]")
    assert [type(each) for each in found] == [Number, Number, int, Number]
    assert found[0].sent == "1.50"
    assert dumps(found) == "[1.5,100.0,12345678901234567890,0.1234567890123456789]"
    assert dumps({"a": [None, True, 'x"y']}) == '{"a":[null,true,"x\\"y"]}'


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", "{", "1 2", ""])
def test_what_is_no_json_is_a_mistake(text: str) -> None:
    with pytest.raises(ValueError, match=r"JSON|Expecting|Extra data"):
        loads(text)
