"""Values of records with a schema: what each field's value is in the mirror, and what was not sent."""

from __future__ import annotations

import base64
import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from lakemirror.driver.rules.conversions import GAP, MISFIT, Read
from lakemirror.driver.rules.kinds import (
    BIGINT,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    Arrays,
    Decimals,
    Kind,
    Maps,
    Structs,
)
from lakemirror.driver.rules.members import Repeated
from lakemirror.driver.rules.schemas import PADDED, field_of
from lakemirror.driver.rules.types import (
    MOST_BITS,
    UNAVAILABLE,
    Bits,
    Placeholder,
    codec_of,
    has_twice,
    json_of,
    read,
    together,
)

pytestmark = pytest.mark.guarantee(
    "A value of each type of Debezium is the same in the rules and in the driver: exact, text, or refused"
)

CONNECT, TIME, DATA = "org.apache.kafka.connect.data.", "io.debezium.time.", "io.debezium.data."
NOON = datetime(2024, 2, 29, 12)
NOON_MILLIS = 1_709_208_000_000


def base64_of(octets: bytes) -> str:
    return base64.b64encode(octets).decode()


def lost(text: str, value: Any = None) -> Read:
    return Read(value, is_lost=True, text=text)


def told(schema: dict[str, Any], value: Any, kind: Kind | None = None) -> Read:
    return read(value, field_of({**schema, "field": "v"}), kind)


def decimal(scale: int, precision: int | None = None, **more: str) -> dict[str, Any]:
    known = {} if precision is None else {"connect.decimal.precision": str(precision)}
    return {
        "type": "bytes",
        "name": CONNECT + "Decimal",
        "parameters": {"scale": str(scale), **known, **more},
    }


STRUCT = {
    "type": "struct",
    "fields": [{"type": "int32", "field": "x"}, {"type": "int32", "name": TIME + "Date", "field": "d"}],
}
DAYS = {"type": "int32", "name": TIME + "Date"}
OF_BYTES = {
    "type": "struct",
    "fields": [{"type": "bytes", "field": "b"}, {"type": "int32", "name": TIME + "Date", "field": "d"}],
}
LATE_DAY = lost('{"b":"a","d":"10000-01-01"}', {"b": b"a", "d": None})
UNSPELLED = Read({"b": b"\xff", "d": None}, is_lost=True)
"""No text says what the bytes are."""
PAIRS = {"type": "map", "keys": {"type": "string"}, "values": {"type": "int32"}}
LIST_OF_PAIRS = {"type": "map", "keys": DAYS, "values": {"type": "int32"}}
VARIABLE = {"type": "struct", "name": DATA + "VariableScaleDecimal", "fields": []}


@pytest.mark.parametrize(
    ("schema", "value", "kind", "expected"),
    [
        ({"type": "int32"}, None, None, Read()),
        # whole numbers, floats, truth values
        ({"type": "int8"}, 127, None, Read(127)),
        ({"type": "int8"}, -128, None, Read(-128)),
        ({"type": "int8"}, 128, None, MISFIT),
        ({"type": "int8"}, -129, None, MISFIT),
        ({"type": "int32"}, True, None, MISFIT),
        ({"type": "int32"}, 1.0, None, MISFIT),
        ({"type": "int32"}, "1", None, MISFIT),
        ({"type": "int32"}, 5, BIGINT, Read(5)),
        ({"type": "int32"}, 5, STRING, Read("5")),
        ({"type": "int32"}, 5, DATE, MISFIT),
        ({"type": "int32"}, 500, Decimals(3, 1), lost("500")),
        ({"type": "float"}, 0.1, None, Read(0.10000000149011612)),
        ({"type": "float"}, 0.1, STRING, Read("0.1")),
        ({"type": "double"}, 0.1, None, Read(0.1)),
        ({"type": "double"}, 1e10, STRING, Read("1.0E10")),
        ({"type": "double"}, 5, None, Read(5.0)),
        ({"type": "double"}, Decimal("0.5"), None, Read(0.5)),
        ({"type": "double"}, "Infinity", None, Read(float("inf"))),
        ({"type": "double"}, "-Infinity", None, Read(float("-inf"))),
        ({"type": "double"}, "1", None, MISFIT),
        ({"type": "double"}, True, None, MISFIT),
        ({"type": "double"}, [], None, MISFIT),
        ({"type": "boolean"}, True, None, Read(True)),
        ({"type": "boolean"}, 1, None, MISFIT),
        ({"type": "boolean"}, False, STRING, Read("false")),
        ({"type": "boolean"}, True, STRING, Read("true")),
        # texts and bytes
        ({"type": "string"}, "a", None, Read("a")),
        ({"type": "string"}, 5, None, Read("5")),
        ({"type": "string"}, {"a": 1.5}, None, Read('{"a":1.5}')),
        ({"type": "string"}, "5", INT, Read(5)),
        ({"type": "string", "name": DATA + "Uuid"}, UNAVAILABLE, None, Read(UNAVAILABLE)),
        ({"type": "bytes"}, "AAE=", None, Read(b"\0\1")),
        ({"type": "bytes"}, "A", None, MISFIT),
        ({"type": "bytes"}, 5, None, MISFIT),
        ({"type": "bytes"}, b"\0\1", None, Read(b"\0\1")),
        ({"type": "bytes"}, base64_of("aé".encode()), STRING, Read("aé")),
        ({"type": "bytes"}, base64_of(b"a\xff"), STRING, MISFIT),  # no text has these bytes
        (decimal(2, 10), "", STRING, MISFIT),
        # decimals
        (decimal(2, 5), base64_of(b"\x30\x39"), None, Read(Decimal("123.45"))),
        (decimal(2, 3), base64_of(b"\x30\x39"), None, MISFIT),  # more digits than the source has
        (decimal(2), base64_of((10**40).to_bytes(17, "big")), None, lost(f"1{'0' * 38}.00")),
        (decimal(2), "", None, MISFIT),
        (decimal(2, 5), base64_of(b"\0\0\0\x05"), None, MISFIT),  # Connect writes no padding
        (decimal(2, 5, **{PADDED: "true"}), base64_of(b"\0\0\0\x05"), None, Read(Decimal("0.05"))),
        (decimal(2, 5), base64_of(b"\x05"), STRING, Read("0.05")),
        (decimal(2, 5), base64_of(b"\x05"), DOUBLE, MISFIT),
        (decimal(2, 5), base64_of(b"\x32"), DOUBLE, Read(0.5)),
        (decimal(2, 5), base64_of(UNAVAILABLE.encode()), None, MISFIT),
        (decimal(-2), base64_of(b"\x05"), None, Read("500")),
        (decimal(40), base64_of(b"\x05"), None, Read("0." + "0" * 39 + "5")),
        (decimal(40), "", None, MISFIT),
        (VARIABLE, {"scale": 2, "value": "BQ=="}, None, Read("0.05")),
        (VARIABLE, {"scale": 2, "value": b"\x05"}, None, Read("0.05")),
        (VARIABLE, {"scale": 30_000, "value": "BQ=="}, None, MISFIT),
        (VARIABLE, {"scale": "2", "value": "BQ=="}, None, MISFIT),
        (VARIABLE, {"scale": 2, "value": 5}, None, MISFIT),
        (VARIABLE, {"scale": 2, "value": "x"}, None, MISFIT),
        (VARIABLE, "0.05", None, MISFIT),
        (VARIABLE, {"scale": 2, "value": "BQ=="}, Decimals(5, 2), Read(Decimal("0.05"))),
        (VARIABLE, {"scale": 2, "value": "BQ=="}, Decimals(5, 1), lost("0.05")),
        (VARIABLE, {"scale": 2, "value": "BQ=="}, STRING, Read("0.05")),
        (VARIABLE, {"scale": 30_000, "value": "BQ=="}, Decimals(5, 2), MISFIT),
        # days, times, moments
        (DAYS, 19782, None, Read(date(2024, 2, 29))),
        (DAYS, 19782, STRING, Read("2024-02-29")),
        (DAYS, 19782, TIMESTAMP_NTZ, Read(datetime(2024, 2, 29))),
        (DAYS, 2932897, None, lost("10000-01-01")),
        (DAYS, 2932896, None, Read(date.max)),
        (DAYS, -719162, None, Read(date.min)),
        (DAYS, -719163, None, lost("0001-12-31 BC")),
        (DAYS, 2932897, TIMESTAMP_NTZ, lost("10000-01-01")),
        ({"type": "string", "name": TIME + "IsoDate"}, "2024-02-29Z", None, Read(date(2024, 2, 29))),
        ({"type": "string", "name": TIME + "IsoDate"}, "+10000-01-01Z", None, lost("10000-01-01")),
        ({"type": "string", "name": TIME + "IsoDate"}, "soon", None, MISFIT),
        ({"type": "string", "name": TIME + "IsoDate"}, "soon", TIMESTAMP_NTZ, MISFIT),
        ({"type": "string", "name": TIME + "IsoDate"}, "2024-02-29Z", STRING, Read("2024-02-29")),
        ({"type": "string", "name": TIME + "IsoTime"}, "13:14:15.120Z", None, Read("13:14:15.12")),
        ({"type": "int32", "name": CONNECT + "Time"}, 1, None, Read("00:00:00.001")),
        ({"type": "int32", "name": TIME + "Time"}, 1, None, Read("00:00:00.001")),
        ({"type": "int64", "name": TIME + "MicroTime"}, 1, None, Read("00:00:00.000001")),
        ({"type": "int64", "name": TIME + "NanoTime"}, 1, None, Read("00:00:00.000000001")),
        ({"type": "int64", "name": CONNECT + "Timestamp"}, NOON_MILLIS, None, Read(NOON)),
        ({"type": "int64", "name": TIME + "Timestamp"}, NOON_MILLIS, None, Read(NOON)),
        ({"type": "int64", "name": TIME + "MicroTimestamp"}, NOON_MILLIS * 1000, None, Read(NOON)),
        ({"type": "int64", "name": TIME + "NanoTimestamp"}, NOON_MILLIS * 10**6, None, Read(NOON)),
        (
            {"type": "int64", "name": TIME + "NanoTimestamp"},
            NOON_MILLIS * 10**6 + 1,
            None,
            Read(NOON, is_rounded=True),
        ),
        ({"type": "int64", "name": TIME + "MicroTimestamp"}, 2**63 - 1, None, lost("infinity")),
        (
            {"type": "int64", "name": TIME + "Timestamp"},
            NOON_MILLIS,
            TIMESTAMP,
            Read(NOON.replace(tzinfo=UTC)),
        ),
        ({"type": "int64", "name": TIME + "Timestamp"}, 2**62, TIMESTAMP, lost("infinity")),
        ({"type": "int64", "name": TIME + "Timestamp"}, NOON_MILLIS, STRING, Read("2024-02-29 12:00:00")),
        ({"type": "int64", "name": TIME + "Timestamp"}, NOON_MILLIS, DATE, MISFIT),
        ({"type": "string", "name": TIME + "IsoTimestamp"}, "2024-02-29T12:00:00Z", None, Read(NOON)),
        (
            {"type": "string", "name": TIME + "IsoTimestamp"},
            "2024-02-29T12:00:00.5Z",
            STRING,
            Read("2024-02-29 12:00:00.5"),
        ),
        (
            {"type": "string", "name": TIME + "ZonedTimestamp"},
            "2024-02-29T12:00:00Z",
            None,
            Read(NOON.replace(tzinfo=UTC)),
        ),
        (
            {"type": "string", "name": TIME + "ZonedTimestamp"},
            "2024-02-29T12:00:00Z",
            TIMESTAMP_NTZ,
            Read(NOON),
        ),
        (
            {"type": "string", "name": TIME + "ZonedTimestamp"},
            "2024-02-29T14:00+02:00",
            TIMESTAMP_NTZ,
            Read(NOON),
        ),
        ({"type": "string", "name": TIME + "ZonedTimestamp"}, "2024-02-29T12:00:00Z", DATE, MISFIT),
        (
            {"type": "string", "name": TIME + "ZonedTimestamp"},
            "+10000-01-01T00:00:00Z",
            None,
            lost("10000-01-01 00:00:00+00"),
        ),
        ({"type": "string", "name": TIME + "ZonedTimestamp"}, "noon", None, MISFIT),
        (
            {"type": "string", "name": TIME + "ZonedTimestamp"},
            "2024-02-29T12:00:00.0000001Z",
            None,
            Read(NOON.replace(tzinfo=UTC), is_rounded=True),
        ),
        (
            {"type": "string", "name": TIME + "ZonedTimestamp"},
            "2024-02-29T14:00+02:00",
            STRING,
            Read("2024-02-29 12:00:00+00"),
        ),
        ({"type": "int64", "name": TIME + "NanoDuration"}, 1500, None, Read(1, is_rounded=True)),
        ({"type": "int64", "name": TIME + "NanoDuration"}, -1500, None, Read(-2, is_rounded=True)),
        ({"type": "int64", "name": TIME + "NanoDuration"}, 2000, None, Read(2)),
        ({"type": "int64", "name": TIME + "NanoDuration"}, -1050, STRING, Read("-1.05")),
        ({"type": "int64", "name": TIME + "NanoDuration"}, 2000, STRING, Read("2")),
        ({"type": "int64", "name": TIME + "NanoDuration"}, 0, STRING, Read("0")),
        # bits
        ({"type": "bytes", "name": DATA + "Bits", "parameters": {"length": "3"}}, "BQ==", None, Read("101")),
        (
            {"type": "bytes", "name": DATA + "Bits", "parameters": {"length": "9"}},
            "BQE=",
            None,
            Read("100000101"),
        ),
        ({"type": "bytes", "name": DATA + "Bits", "parameters": {"length": "4"}}, "AA==", None, Read("0000")),
        (
            {"type": "bytes", "name": DATA + "Bits", "parameters": {"length": str(2**31 - 1)}},
            "BQ==",
            None,
            Read("00000101"),
        ),
        (
            {
                "type": "array",
                "items": {"type": "bytes", "name": DATA + "Bits", "parameters": {"length": "3"}},
            },
            ["BQ==", "/w=="],
            None,
            Read(["101", None], is_misfit=True),
        ),
        # values made of others
        ({"type": "array", "items": {"type": "int32"}}, [1, None], None, Read([1, None])),
        ({"type": "array", "items": {"type": "int32"}}, [1], Arrays(STRING), Read(["1"])),
        ({"type": "array", "items": {"type": "int32"}}, [1, None], STRING, Read('["1",null]')),
        ({"type": "array", "items": {"type": "bytes"}}, [base64_of(b"a"), None], STRING, Read('["a",null]')),
        (
            {"type": "array", "items": {"type": "bytes"}},
            [base64_of(b"a"), base64_of(b"\xff")],
            STRING,
            MISFIT,
        ),
        ({"type": "array", "items": VARIABLE}, [{"scale": 30_000, "value": "BQ=="}], STRING, MISFIT),
        (OF_BYTES, {"b": base64_of(b"a")}, STRING, Read('{"b":"a"}')),
        (OF_BYTES, {"b": base64_of(b"\xff"), "d": 0}, STRING, MISFIT),
        (OF_BYTES, {"b": base64_of(b"a"), "d": 2932897}, None, LATE_DAY),
        (OF_BYTES, {"b": base64_of(b"\xff"), "d": 2932897}, None, UNSPELLED),
        ({"type": "array", "items": OF_BYTES}, [{"b": base64_of(b"\xff")}], STRING, MISFIT),
        ({"type": "array", "items": OF_BYTES}, [None], STRING, Read("[null]")),
        ({"type": "array", "items": {"type": "int32"}}, ["x"], None, MISFIT),
        ({"type": "array", "items": {"type": "int32"}}, 5, None, MISFIT),
        ({"type": "array", "items": {"type": "int32"}}, [1], INT, MISFIT),
        (
            {"type": "array", "items": DAYS},
            [0, 2932897],
            None,
            lost('["1970-01-01","10000-01-01"]', [date(1970, 1, 1), None]),
        ),
        (
            {"type": "array", "items": {"type": "int64", "name": TIME + "NanoTimestamp"}},
            [1, 0],
            None,
            Read([datetime(1970, 1, 1)] * 2, is_rounded=True),
        ),
        (STRUCT, {"x": 1, "d": 0, "other": 5}, None, Read({"x": 1, "d": date(1970, 1, 1)})),
        (STRUCT, {"x": 1}, None, Read({"x": 1, "d": None})),
        (STRUCT, {"x": "a"}, None, MISFIT),
        (
            {"type": "struct", "fields": [{"type": "array", "items": {"type": "string"}, "field": "a"}]},
            {"a": None},
            None,
            Read({"a": None}),
        ),
        (STRUCT, [1], None, MISFIT),
        (STRUCT, {"x": 1, "d": 2932897}, None, lost('{"x":"1","d":"10000-01-01"}', {"x": 1, "d": None})),
        (STRUCT, {"x": 1, "d": 0}, Structs((("x", BIGINT), ("new", INT))), Read({"x": 1, "new": None})),
        (STRUCT, {"x": 1, "d": 0}, STRING, Read('{"x":"1","d":"1970-01-01"}')),
        (STRUCT, {"x": 1, "d": 0}, INT, MISFIT),
        (PAIRS, {"a": 1, "b": None}, None, Read({"a": 1, "b": None})),
        (PAIRS, {"a": "x"}, None, MISFIT),
        (PAIRS, [["a", 1]], None, MISFIT),
        (PAIRS, {"1": 1, "01": 2}, Maps(INT, INT), MISFIT),  # one key, twice
        (PAIRS, {"1": 1, "2": 2}, Maps(INT, STRING), Read({1: "1", 2: "2"})),
        (PAIRS, {"x": 1}, Maps(INT, INT), MISFIT),
        (
            PAIRS,
            {"2024-02-29T12:00:00.0000001": 1},
            Maps(TIMESTAMP, INT),
            MISFIT,
        ),  # the key would lose digits
        (PAIRS, {"a": 1}, STRING, Read('{"a":1}')),
        (PAIRS, {"a": 1, "b": None}, STRING, Read('{"a":1,"b":null}')),  # as of an hstore
        (PAIRS, Repeated([("a", 1), ("a", 2)]), STRING, Read('{"a":1,"a":2}')),
        (LIST_OF_PAIRS, [[0, 1], [1, None]], STRING, Read("[[0,1],[1,null]]")),
        (
            {"type": "map", "keys": {"type": "string"}, "values": {"type": "bytes"}},
            {"a": "AQI="},
            STRING,
            Read('{"a":"AQI="}'),
        ),
        (
            {"type": "map", "keys": {"type": "string"}, "values": decimal(2, 10)},
            {"a": "AQI="},
            STRING,
            Read('{"a":"AQI="}'),
        ),
        (
            {"type": "map", "keys": {"type": "string"}, "values": {"type": "double"}},
            {"a": Decimal("1e-7"), "b": "NaN", "c": "-Infinity", "d": 1},
            STRING,
            Read('{"a":1.0E-7,"b":"NaN","c":"-Infinity","d":1.0}'),
        ),
        (
            {"type": "map", "keys": {"type": "string"}, "values": VARIABLE},
            {"a": {"scale": 2, "value": "AQI="}},
            STRING,
            Read('{"a":{"scale":2,"value":"AQI="}}'),
        ),
        (PAIRS, {"a": 1}, INT, MISFIT),
        (LIST_OF_PAIRS, [[0, 1], [1, None]], None, Read({date(1970, 1, 1): 1, date(1970, 1, 2): None})),
        (LIST_OF_PAIRS, {"0": 1}, None, MISFIT),
        (LIST_OF_PAIRS, [[0, 1, 2]], None, MISFIT),
        (LIST_OF_PAIRS, [[0, 1], 5], None, MISFIT),
        (LIST_OF_PAIRS, [["x", 1]], None, MISFIT),
        (LIST_OF_PAIRS, [[2932897, 1]], None, MISFIT),
        (
            {"type": "map", "keys": {"type": "string"}, "values": DAYS},
            {"a": 2932897},
            None,
            lost('{"a":2932897}', {"a": None}),
        ),
    ],
)
def test_a_value_is_read_by_its_field(schema: Any, value: Any, kind: Kind | None, expected: Read) -> None:
    found = told(schema, value, kind)
    assert found == expected
    assert type(found.value) is type(expected.value)


def test_what_is_no_number_is_nan() -> None:
    found = told({"type": "double"}, "NaN").value
    assert math.isnan(found)


# -- what was not sent ------------------------------------------------------------------------------------

OTHER = Placeholder("n\u00e9ant")
OCTETS = OTHER.text.encode()


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "string"}, OTHER.text),
        ({"type": "string", "name": DATA + "Json"}, OTHER.text),
        ({"type": "string"}, base64_of(OCTETS)),  # binary.handling.mode
        ({"type": "string"}, base64.urlsafe_b64encode(OCTETS).decode()),
        ({"type": "string"}, OCTETS.hex()),
        ({"type": "string"}, json.dumps({OTHER.text: OTHER.text}, separators=(",", ":"))),  # an hstore
        ({"type": "bytes"}, base64_of(OCTETS)),
        ({"type": "bytes", "name": DATA + "Bits"}, base64_of(OCTETS)),
        (VARIABLE, {"scale": 0, "value": base64_of(OCTETS)}),
        ({"type": "array", "items": {"type": "string"}}, [OTHER.text]),
        ({"type": "array", "items": {"type": "string", "name": TIME + "ZonedTimestamp"}}, [OTHER.text]),
        (
            {"type": "array", "items": {"type": "int32"}},
            [each - 256 if each > 127 else each for each in OCTETS],
        ),
        ({"type": "array", "items": DAYS}, [each - 256 if each > 127 else each for each in OCTETS]),
        ({"type": "array", "items": {"type": "bytes"}}, [base64_of(OCTETS)]),
        ({"type": "array", "items": {"type": "string", "name": DATA + "Uuid"}}, [OTHER.uuid]),
        ({"type": "struct", "fields": [{"type": "string", "field": "a"}]}, {"a": OTHER.text}),
        (PAIRS, {OTHER.text: None}),
        ({**PAIRS, "values": {"type": "string"}}, {OTHER.text: OTHER.text}),
    ],
)
def test_a_value_that_was_not_sent_has_a_placeholder(schema: Any, value: Any) -> None:
    field = field_of({**schema, "field": "v"})
    assert read(value, field, placeholder=OTHER) == GAP
    assert read(value, field, STRING, OTHER) == GAP
    assert read(value, field) != GAP, "it is the placeholder of another connector"
    assert read(value, field, placeholder=None) == read(value, field)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "string", "name": DATA + "Uuid"}, OTHER.text),
        ({"type": "array", "items": {"type": "string"}}, [OTHER.text, "b"]),
        ({"type": "array", "items": {"type": "string"}}, [None]),
        ({"type": "array", "items": {"type": "string"}}, []),
        ({"type": "array", "items": {"type": "string", "name": DATA + "Uuid"}}, [OTHER.text]),
        ({"type": "array", "items": {"type": "string"}}, [OTHER.uuid]),
        ({"type": "array", "items": {"type": "double"}}, [5]),
        ({"type": "struct", "fields": [{"type": "string", "field": "a"}]}, {"a": None, "b": OTHER.text}),
        (LIST_OF_PAIRS, [[0, 5]]),
    ],
)
def test_a_value_that_resembles_the_placeholder_is_one(schema: Any, value: Any) -> None:
    assert not read(value, field_of({**schema, "field": "v"}), placeholder=OTHER).is_gap


def test_a_placeholder_has_the_codes_of_its_bytes() -> None:
    plain = Placeholder()
    assert (plain.text, plain.octets, plain.codes) == (
        UNAVAILABLE,
        UNAVAILABLE.encode(),
        list(UNAVAILABLE.encode()),
    )


@pytest.mark.parametrize(
    ("schema", "value", "found"),
    [
        ({"type": "string"}, UNAVAILABLE, UNAVAILABLE),
        ({"type": "bytes"}, base64_of(UNAVAILABLE.encode()), UNAVAILABLE.encode()),
        ({"type": "bytes"}, "", b""),
        (
            {"type": "array", "items": {"type": "int32"}},
            list(UNAVAILABLE.encode()),
            list(UNAVAILABLE.encode()),
        ),
        ({"type": "array", "items": {"type": "int32"}}, [], []),
        ({**PAIRS, "values": {"type": "string"}}, {UNAVAILABLE: "a"}, {UNAVAILABLE: "a"}),
    ],
)
def test_without_a_placeholder_each_value_is_one(schema: Any, value: Any, found: Any) -> None:
    assert read(value, field_of({**schema, "field": "v"}), placeholder=None) == Read(found)


# -- parts ------------------------------------------------------------------------------------------------


def test_what_is_wrong_with_a_part_is_wrong_with_the_whole() -> None:
    def whole(*items: Read) -> Read:
        return together(list(items), lambda values: values, lambda: "text")

    assert whole(Read(1), Read(2)) == Read([1, 2])
    assert whole(Read(1), lost("x")) == Read([1, None], is_lost=True, text="text")
    assert whole(Read(1), MISFIT) == Read([1, None], is_misfit=True)
    assert whole(Read(1, is_rounded=True), Read(2)) == Read([1, 2], is_rounded=True)
    assert whole(Read(is_doubtful=True)) == Read([None], is_doubtful=True)
    assert whole() == Read([])


def test_keys_are_there_once() -> None:
    nan = float("nan")
    assert not has_twice([1, 2, "1"])
    assert has_twice([1, 2, 1])
    assert has_twice([nan, float("nan")])


def test_json_that_stands_where_a_text_should_is_spelled_as_json() -> None:
    value = {"a": [1, 1.0, Decimal("1e10"), None, True, 'x"y'], "b": {}}
    assert json_of(value) == '{"a":[1,1.0,1.0E10,null,true,"x\\"y"],"b":{}}'


def test_the_length_of_bits_is_that_of_their_column() -> None:
    assert Bits(10).text(b"\1") == "0000000001"
    assert Bits(2).text(b"\3\0") == "11"
    assert Bits(0).text(b"\0") == ""


@pytest.mark.parametrize(
    ("length", "octets"),
    [(2, b"\7"), (3, b"\xff"), (8, b"\0\1"), (0, b"\1"), (None, bytes(MOST_BITS // 8 + 1)), (3, OCTETS)],
)
def test_a_value_with_more_bits_than_its_column_is_none(length: int | None, octets: bytes) -> None:
    """Nobody can tell which of them are the value: it may be the placeholder of another connector."""
    assert Bits(length).read(octets) == MISFIT
    assert Bits(length).read_as(octets, STRING) == MISFIT


def test_the_type_of_a_column_is_known() -> None:
    assert codec_of(field_of({"type": "boolean", "field": "v"})).kind == BOOLEAN
    assert codec_of(field_of({"type": "float", "field": "v"})).kind == FLOAT
