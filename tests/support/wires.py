"""One table of values on the wire: by field of a schema, and by type where records have no schema."""

from __future__ import annotations

import base64
from typing import Any

from lakemirror.driver.rules.kinds import (
    BIGINT,
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    SMALLINT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    VARIANT,
    Arrays,
    Decimals,
    Kind,
    Maps,
    Structs,
)
from lakemirror.driver.rules.types import Placeholder

HOLE = Placeholder()
B64 = base64.b64encode(HOLE.octets).decode()


def of(number: int | bytes) -> str:
    """JSON of the base64 of an unscaled number, as Connect writes it."""
    octets = number if isinstance(number, bytes) else _bytes(number)
    return f'"{base64.b64encode(octets).decode()}"'


def _bytes(number: int) -> bytes:
    return number.to_bytes((number + (number < 0)).bit_length() // 8 + 1, "big", signed=True)


def field(physical: str, semantic: str | None = None, **more: Any) -> dict[str, Any]:
    """The schema of a column."""
    name = {} if semantic is None else {"name": semantic}
    return {"type": physical, "optional": True, "field": "v", **name, **more}


TIME, DATA, CONNECT = "io.debezium.time.", "io.debezium.data.", "org.apache.kafka.connect.data."
NOT_NUMBERS = ['"5"', "1.5", "true", "[]", "{}"]
DAYS = ["0", "-719162", "-719163", "2932896", "2932897", "2147483647", "-2147483648", "-1", "19000"]
MILLIS = [
    "0",
    "-1",
    "1767323045006",
    "-62135596800000",
    "-62135596800001",
    "253402300799999",
    "253402300800000",
]
EXTREMES = ["9223372036854775807", "-9223372036854775808", "9223372036825200000", "-9223372036832400000"]
MICROS = [
    "0",
    "-1",
    "1767323045006007",
    "-62135596800000000",
    "-62135596800000001",
    "253402300799999999",
    *EXTREMES,
]
NANOS = ["0", "-1", "1767323045006007008", "1767323045006007000", *EXTREMES]
CLOCKS = ["0", "-1", "45006", "86399999", "3020399000"]
ISO_DAYS = [
    '"2026-01-02Z"',
    '"2026-01-02"',
    '"0044-03-15Z"',
    '"-0043-03-15Z"',
    '"+12345-01-01Z"',
    '"+999999999-12-31Z"',
]
ISO_DAYS += [
    '"2026-02-30Z"',
    '"2026-1-2"',
    '"0000-00-00"',
    '"2026-00-10"',
    '"x"',
    '"2026-01-02T00:00:00Z"',
    '"2026-01"',
]
ISO_MOMENTS = [
    *('"2026-01-02T03:04:05.000006Z"', '"2026-01-02T03:04:05Z"', '"2026-01-02T03:04:05.1234567Z"'),
    *(
        '"2026-01-02T03:04:05.1000000Z"',
        '"2026-01-02T10:15+02:00"',
        '"2026-01-02T03:04:05+02:00[Europe/Berlin]"',
    ),
    *('"2026-01-02 03:04:05"', '"2026-01-02"', '"-0043-03-15T00:00:00Z"', '"+294277-01-01T00:00:00Z"'),
    *(
        '"0001-01-01T00:00:00Z"',
        '"9999-12-31T23:59:59.999999Z"',
        '"12:30:00"',
        '"x"',
        '"2026-13-01T00:00:00Z"',
    ),
    *('"2026-01-02T03:04:05-07:30"', '"2026-01-02T24:00:00Z"', '"0000-00-00T00:00:00Z"'),
]
PLACEHOLDERS = [f'"{each}"' for each in (HOLE.text, B64, HOLE.octets.hex())]

TWICE = [
    '{"a":1,"a":2}',
    '{"a": 1.50, "b": [ {"a": "x", "\\u0061": null} ], "c": "\\u0022"}',
    f'{{"scale":2,"scale":2,"value":{of(12345)}}}',
]
"""Objects that have a member twice."""

FIELDS: list[tuple[dict[str, Any], Kind | None, list[str]]] = [
    (field("int8"), None, ["-128", "127", "128", "200", *NOT_NUMBERS]),
    (field("int16"), None, ["-32768", "32768", *NOT_NUMBERS]),
    (field("int32"), None, ["-2147483648", "2147483648", *NOT_NUMBERS]),
    (field("int64"), None, ["-9223372036854775808", "9223372036854775808", "1e3", *NOT_NUMBERS]),
    (field("int64"), INT, ["5", "2147483648"]),
    (field("int64"), STRING, ["5"]),
    (field("int32"), Decimals(5, 2), ["5", "999", "1000"]),
    (field("float"), None, ["1.5", "0.1", "5", '"NaN"', '"Infinity"', '"x"', "true"]),
    (field("double"), None, ["1.5", "0.1", "5", "1e300", '"NaN"', '"-Infinity"', '"x"', "[]"]),
    (field("double"), FLOAT, ["1.5", "0.1"]),
    (field("double"), Decimals(10, 2), ["1.5", "1.005", "1e20"]),
    (field("boolean"), None, ["true", "false", "1", '"true"']),
    (
        field("string"),
        None,
        ['"a"', '"żółw \\" \\\\"', "5", "1.50", "true", "[1, 2]", '{"a": 1}', *PLACEHOLDERS, *TWICE],
    ),
    (field("string"), INT, ['"5"', '" 5 "', '"5.5"', '"x"', '"2147483648"']),
    (field("string"), DOUBLE, ['"0.1"', '"NaN"', '"Infinity"', '"0.12345678901234567890"', '"x"']),
    (
        field("string"),
        Decimals(10, 2),
        ['"1.5"', '"1.005"', '"1e2"', '"NaN"', '"x"', '"99999999.99"', '"999999999"'],
    ),
    (field("string"), DATE, ISO_DAYS),
    (field("string"), TIMESTAMP, ISO_MOMENTS),
    (field("string"), TIMESTAMP_NTZ, ISO_MOMENTS),
    (field("string"), BOOLEAN, ['"true"', '"f"', '"1"', '"yes"', '"x"']),
    (field("bytes"), None, ['""', '"AAEC"', '"x"', '"AAE"', "5", f'"{B64}"']),
    (
        field("bytes", CONNECT + "Decimal", parameters={"scale": "2", "connect.decimal.precision": "5"}),
        None,
        [of(0), of(12345), of(-99999), of(99999), of(100000), '""', of(b"\0\0\5"), of(b"\0" * 20 + b"\5")],
    ),
    (
        field("bytes", CONNECT + "Decimal", parameters={"scale": "2"}),
        None,
        [of(10**38 - 1), of(10**38), of(-(10**38)), of(10**100), of(b"\0" * 20 + b"\5")],
    ),
    (
        field("bytes", CONNECT + "Decimal", parameters={"scale": "0", "lakemirror.padded": "1"}),
        None,
        [of(b"\0" * 20 + b"\5"), of(b"\xff" * 20 + b"\xfb")],
    ),
    (field("bytes", CONNECT + "Decimal", parameters={"scale": "-2"}), None, [of(5), of(-5), of(0)]),
    (field("bytes", CONNECT + "Decimal", parameters={"scale": "40"}), None, [of(5), of(-(10**41))]),
    (
        field("bytes", CONNECT + "Decimal", parameters={"scale": "2", "connect.decimal.precision": "5"}),
        STRING,
        [of(12345), of(5)],
    ),
    (
        field("bytes", CONNECT + "Decimal", parameters={"scale": "2", "connect.decimal.precision": "5"}),
        Decimals(5, 0),
        [of(12300), of(12345)],
    ),
    (
        field(
            "struct",
            DATA + "VariableScaleDecimal",
            fields=[{"type": "int32", "field": "scale"}, {"type": "bytes", "field": "value"}],
        ),
        None,
        [
            f'{{"scale":2,"value":{of(12345)}}}',
            f'{{"scale":-2,"value":{of(5)}}}',
            f'{{"scale":0,"value":"{B64}"}}',
        ],
    ),
    (field("int32", TIME + "Date"), None, DAYS),
    (field("int32", CONNECT + "Date"), STRING, DAYS),
    (field("int32", TIME + "Date"), TIMESTAMP_NTZ, DAYS),
    (field("string", TIME + "IsoDate"), None, ISO_DAYS),
    (field("string", TIME + "IsoDate"), STRING, ISO_DAYS),
    (field("int32", TIME + "Time"), None, CLOCKS[:4]),
    (field("int64", TIME + "MicroTime"), None, CLOCKS),
    (field("int64", TIME + "NanoTime"), None, CLOCKS),
    (field("string", TIME + "IsoTime"), None, ['"13:14:15.1230Z"', '"13:14:15Z"', '"13:14:15.000"', '"x"']),
    (field("string", TIME + "ZonedTime"), None, ['"13:14:15+02:00"', f'"{HOLE.text}"']),
    (field("int64", TIME + "Timestamp"), None, [*MILLIS, *EXTREMES]),
    (field("int64", CONNECT + "Timestamp"), TIMESTAMP, MILLIS),
    (field("int64", TIME + "MicroTimestamp"), None, MICROS),
    (field("int64", TIME + "MicroTimestamp"), STRING, MICROS),
    (field("int64", TIME + "NanoTimestamp"), None, NANOS),
    (field("int64", TIME + "NanoTimestamp"), STRING, NANOS),
    (field("string", TIME + "IsoTimestamp"), None, ISO_MOMENTS),
    (field("string", TIME + "ZonedTimestamp"), None, ISO_MOMENTS),
    (field("string", TIME + "ZonedTimestamp"), TIMESTAMP_NTZ, ISO_MOMENTS),
    (field("string", TIME + "ZonedTimestamp"), STRING, ISO_MOMENTS),
    (field("int64", TIME + "MicroDuration"), None, ["5", "-5"]),
    (field("int64", TIME + "NanoDuration"), None, ["5", "-5", "5000", "1500"]),
    (field("int64", TIME + "NanoDuration"), STRING, ["5", "5000", "1500"]),
    (field("string", TIME + "Interval"), None, ['"P1Y2M"']),
    (field("int32", TIME + "Year"), None, ["2026"]),
    (
        field("bytes", DATA + "Bits", parameters={"length": "10"}),
        None,
        [of(b"\x05\x02"), of(b""), of(b"\xff\xff")],
    ),
    (field("bytes", DATA + "Bits", parameters={"length": "2147483647"}), None, [of(b"\x05\x02"), of(b"")]),
    (field("string", DATA + "Uuid"), None, [f'"{HOLE.text}"', '"a"']),
    (field("string", DATA + "Json"), None, ['"{}"', f'"{HOLE.text}"']),
    (field("string", DATA + "Json"), VARIANT, ['"{\\"a\\":1}"', '"x"']),
    (field("string", "com.example.Unknown"), None, ['"a"']),
    (field("array", items={"type": "string"}), None, ['["a",null]', "[]", '"x"', f'["{HOLE.text}"]', "[5]"]),
    (field("array", items={"type": "int32"}), None, ["[1,null]", '["a"]', str(HOLE.codes)]),
    (field("array", items={"type": "int32", "name": TIME + "Date"}), None, ["[0,null]", "[0,2932897]"]),
    (field("array", items={"type": "string", "name": DATA + "Uuid"}), None, [f'["{HOLE.uuid}"]', '["a"]']),
    (
        field("array", items={"type": "string", "name": TIME + "ZonedTimestamp"}),
        None,
        [f'["{HOLE.text}"]', '["x"]'],
    ),
    (
        field(
            "struct",
            fields=[{"type": "double", "field": "x"}, {"type": "int32", "name": TIME + "Date", "field": "d"}],
        ),
        None,
        ['{"x":1.5,"d":0}', '{"x":1.5,"d":2932897}', "{}", '{"x":1,"y":2}', '{"x":"a"}', "[]"],
    ),
    (
        field("map", keys={"type": "string"}, values={"type": "string"}),
        None,
        ['{"a":"b","c":null}', "{}", f'{{"{HOLE.text}":"{HOLE.text}"}}', "[]", *TWICE],
    ),
    (
        field("map", keys={"type": "int32"}, values={"type": "string"}),
        None,
        ['[[1,"a"],[2,null]]', '[[1,"a"],[1,"b"]]', '[["x","a"]]', "[[1]]"],
    ),
]
"""Fields, the type of the mirror's column (None: the closest), and JSON of values. Null is one of each."""

JSON_NUMBERS = [
    "5",
    "-5",
    "1.5",
    "1e2",
    "0.1",
    "9223372036854775808",
    "123456789012345678901234567890",
    "1e400",
]
JSON_OTHERS = ['"5"', '"x"', "true", "[]", "{}", '[1,"a",null]', '{"a":1}']
UNTYPED: list[tuple[Kind, str, list[str]]] = [
    (INT, "DEBEZIUM", [*JSON_NUMBERS, *JSON_OTHERS, "2147483648"]),
    (SMALLINT, "DEBEZIUM", ["5", "32768"]),
    (BIGINT, "DEBEZIUM", [*JSON_NUMBERS, *JSON_OTHERS]),
    (
        DOUBLE,
        "DEBEZIUM",
        [*JSON_NUMBERS, *JSON_OTHERS, '"NaN"', '"-Infinity"', '"INF"', "0.1234567890123456789"],
    ),
    (FLOAT, "DEBEZIUM", ["1.5", "0.1", "16777217", "0.123456789", '"NaN"', *TWICE]),
    (BOOLEAN, "DEBEZIUM", ["true", "false", "1", "0", '"true"', "2", '"x"']),
    (
        Decimals(10, 2),
        "DEBEZIUM",
        [*JSON_NUMBERS, *JSON_OTHERS, '"1.50"', '"1500"', '"MDk="', '"NaN"', f'"{HOLE.text}"'],
    ),
    (Decimals(10, 2), "MAXWELL", ['"1.50"', '"1500"', '"MDk="', "1.5"]),
    (Decimals(10, 2), "UNKNOWN", ['"1.50"', '"1500"', '"MDk="', "1.5"]),
    (
        Decimals(38, 18),
        "DEBEZIUM",
        [f'{{"scale":2,"value":{of(12345)}}}', f'{{"scale":20,"value":{of(5)}}}', *TWICE],
    ),
    (DATE, "DEBEZIUM", [*DAYS, *ISO_DAYS, "true", "1.5", "99999999999"]),
    (TIMESTAMP, "DEBEZIUM", [*ISO_MOMENTS, *MILLIS, *MICROS, *NANOS, "1.5", "1e3", "true", '"5"']),
    (
        TIMESTAMP_NTZ,
        "UNKNOWN",
        [*ISO_MOMENTS, "5", "1767323045", "1767323045.5", "1767323045006", "100000000000"],
    ),
    (BINARY, "DEBEZIUM", ['"AAEC"', '"0001"', '"\\\\x0001"', '"deadbeef"', '"x"', '"AA-_"', "5", '""']),
    (BINARY, "MAXWELL", ['"AAEC"', '"0001"', '"AAE"', '"x"']),
    (BINARY, "UNKNOWN", ['"AAEC"', '"DEADBEEF"', '"0xDEAD"']),
    (
        STRING,
        "DEBEZIUM",
        [
            *JSON_NUMBERS,
            *JSON_OTHERS,
            f'{{"scale":2,"value":{of(12345)}}}',
            *PLACEHOLDERS,
            *TWICE,
            '"{\\"scale\\":2,\\"value\\":\\"MDk=\\"}"',
        ],
    ),
    (
        VARIANT,
        "DEBEZIUM",
        [
            *(
                "5",
                "1.5",
                "1e2",
                '"x"',
                '"{\\"a\\": 1}"',
                "[1, null]",
                '{"b": 1, "a": null}',
                f'"{HOLE.text}"',
            ),
            *TWICE,
        ],
    ),
    (Arrays(INT), "DEBEZIUM", ["[1,null]", '["a"]', '"x"', str(HOLE.codes), f'["{HOLE.text}"]']),
    (Arrays(STRING), "DEBEZIUM", ['["a",5,null,[1]]', f'["{HOLE.text}"]', f"[{','.join(TWICE)}]"]),
    (Arrays(VARIANT), "DEBEZIUM", ["[5,null]", *(f"[{each}]" for each in TWICE)]),
    (Arrays(DATE), "DEBEZIUM", ['[0,"2026-01-02"]', '["x"]', "[2932897]"]),
    (
        Structs((("a", INT), ("b", STRING))),
        "DEBEZIUM",
        ['{"a":1,"b":"x"}', '{"a":1,"c":2}', '{"a":1,"c":null}', '{"a":"x"}', "[]", *TWICE],
    ),
    (
        Structs((("a", INT), ("v", VARIANT))),
        "DEBEZIUM",
        ['{"a":1,"v":5}', *(f'{{"v":{each}}}' for each in TWICE)],
    ),
    (Maps(STRING, INT), "DEBEZIUM", ['{"a":1,"b":null}', '{"a":"x"}', f'{{"{HOLE.text}":1}}', *TWICE]),
    (
        Maps(STRING, STRING),
        "DEBEZIUM",
        [*(f'{{"m":{each}}}' for each in TWICE), f'{{"{HOLE.text}":"a","{HOLE.text}":"a"}}'],
    ),
    (Maps(STRING, VARIANT), "DEBEZIUM", ['{"m":5}', *(f'{{"m":{each}}}' for each in TWICE)]),
    (Maps(INT, STRING), "DEBEZIUM", ['{"1":"a"}', '{"x":"a"}']),
    (Maps(Decimals(10, 2), STRING), "DEBEZIUM", ['{"1.5":"a"}', '{"1.5":"a","1.50":"b"}']),
]
"""Types of columns whose records have no schema, how their producer writes, and JSON of values."""
