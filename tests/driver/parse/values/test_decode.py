"""Each kind of column at its edges: wire values in, Spark values (or why there are none) out."""

from __future__ import annotations

import base64
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    TimestampNTZType,
    TimestampType,
)

from lakemirror.driver.parse.values import Field, RowDecoder
from lakemirror.driver.parse.values.connect import schemaless
from lakemirror.driver.parse.values.decimals import twos_complement
from lakemirror.driver.parse.values.placeholder import Placeholder
from lakemirror.driver.rules.schemas import PADDED
from tests.driver.parse.values.images import CORRUPT, GAP, MISFIT, fine, lost, outcomes, wired

TIME, DATA, CONNECT = "io.debezium.time.", "io.debezium.data.", "org.apache.kafka.connect.data."
MARK = "__debezium_unavailable_value"
UUID = "ffffffff-ffff-ffff-ffff-ffffffffffff"


def field(physical: str, semantic: str | None = None, **more: Any) -> Field:
    return Field("c", physical, semantic, **more)


def decimal(precision: int | None, scale: int) -> Field:
    parameters = {"scale": str(scale)}
    if precision is not None:
        parameters["connect.decimal.precision"] = str(precision)
    return field("bytes", CONNECT + "Decimal", parameters=parameters)


def b64(octets: bytes) -> str:
    return base64.b64encode(octets).decode()


def unscaled(value: int) -> str:
    return b64(twos_complement(value))


OF_BYTES = field("struct", fields=(Field("b", "bytes"), Field("d", "int32", "io.debezium.time.Date")))
FIXED = field(
    "bytes", CONNECT + "Decimal", parameters={"scale": "2", "connect.decimal.precision": "10", PADDED: "true"}
)
VARIABLE = field("struct", DATA + "VariableScaleDecimal")

CASES: list[tuple[Field, DataType | None, list[tuple[Any, dict[str, Any]]]]] = [
    (
        FIXED,
        None,
        [
            (b64(number.to_bytes(16, "big", signed=True)), fine(Decimal(number).scaleb(-2)))
            for number in (0, 127, -128, 128, -1, -129, 10**10 - 1, 1 - 10**10)
        ]
        + [(b64((10**10).to_bytes(16, "big")), MISFIT)],
    ),
    (field("int8"), None, [(-128, fine(-128)), (127, fine(127)), (200, MISFIT), (None, fine(None))]),
    (field("int32"), None, [(2147483647, fine(2147483647)), (2147483648, CORRUPT), ("x", CORRUPT)]),
    (field("int64"), None, [(9007199254740993, fine(9007199254740993)), (-(2**63), fine(-(2**63)))]),
    (
        field("double"),
        None,
        [
            ("NaN", fine(pytest.approx(float("nan"), nan_ok=True))),
            ("-Infinity", fine(float("-inf"))),
            (5e-324, fine(5e-324)),
        ],
    ),
    (
        field("float"),
        None,
        [(3.4028235e38, fine(pytest.approx(3.4028235e38))), ("Infinity", fine(float("inf")))],
    ),
    (field("boolean"), None, [(True, fine(True)), (False, fine(False)), ("yes", CORRUPT)]),
    (
        field("string"),
        None,
        [
            ('żółć 🙂\t"', fine('żółć 🙂\t"')),
            ("", fine("")),
            (MARK, GAP),
            (b64(MARK.encode()), GAP),
            (MARK.encode().hex(), GAP),
        ],
    ),
    (
        field("string", DATA + "Json"),
        None,
        [("null", fine("null")), (MARK, GAP), (f'{{"{MARK}":"{MARK}"}}', GAP)],
    ),
    (field("string", DATA + "Uuid"), None, [(UUID, fine(UUID))]),
    (
        field("bytes"),
        None,
        [
            ("", fine(bytearray(b""))),
            ("3q2+7wD/", fine(bytearray.fromhex("deadbeef00ff"))),
            (b64(MARK.encode()), GAP),
            ("A!", CORRUPT),
        ],
    ),
    (
        decimal(10, 2),
        None,
        [
            ("SZYC0g==", fine(Decimal("12345678.90"))),
            (unscaled(0), fine(Decimal("0.00"))),
            (unscaled(-1), fine(Decimal("-0.01"))),
            (unscaled(10**10 - 1), fine(Decimal("99999999.99"))),
            (unscaled(1 - 10**10), fine(Decimal("-99999999.99"))),
            (unscaled(10**10), MISFIT),
            (unscaled(-(10**10)), MISFIT),
            ("", MISFIT),
            (None, fine(None)),
        ],
    ),
    (
        decimal(None, 2),  # money, and decimals of Oracle or MySQL without a precision: held in 38 digits
        None,
        [
            (unscaled(10**38 - 1), fine(Decimal(f"{10**38 - 1}E-2"))),
            (unscaled(1 - 10**38), fine(Decimal(f"{1 - 10**38}E-2"))),
            (unscaled(10**38), lost("1" + "0" * 36 + ".00")),
            (unscaled(-(10**38)), lost("-1" + "0" * 36 + ".00")),
            (unscaled(2**127), lost(f"{2**127 // 100}.{2**127 % 100}")),
        ],
    ),
    (
        decimal(65, 30),
        None,
        [(unscaled(1), fine(Decimal("1E-30"))), (unscaled(10**40), lost("1" + "0" * 10 + "." + "0" * 30))],
    ),
    (decimal(5, -2), None, [(unscaled(-12), fine("-1200")), (unscaled(0), fine("0"))]),
    (decimal(10, 2), DecimalType(14, 4), [(unscaled(22840), fine(Decimal("228.4000")))]),
    (
        decimal(10, 4),
        DecimalType(10, 2),
        [(unscaled(11000), fine(Decimal("1.10"))), (unscaled(11001), lost("1.1001"))],
    ),
    (decimal(10, 2), StringType(), [(unscaled(-5), fine("-0.05"))]),
    (decimal(10, 2), DoubleType(), [(unscaled(150), fine(1.5))]),
    (decimal(20, 0), LongType(), [(unscaled(2**63 - 1), fine(2**63 - 1)), (unscaled(2**63), MISFIT)]),
    (
        VARIABLE,
        None,
        [
            ({"scale": 4, "value": "B1vNFQ=="}, fine("12345.6789")),
            ({"scale": 18, "value": "/w=="}, fine("-0." + "0" * 17 + "1")),
            (
                {"scale": 9, "value": "XODppWAV/sWq36MorjmBFQ=="},
                fine("123456789012345678901234567890.123456789"),
            ),
            ({"scale": 2, "value": unscaled(0)}, fine("0.00")),
            ({"scale": 1, "value": unscaled(-100)}, fine("-10.0")),
            ({"scale": -3, "value": unscaled(-7)}, fine("-7000")),
            ({"scale": -3, "value": unscaled(0)}, fine("0")),
            ({"scale": 0, "value": unscaled(-(2**64))}, fine(str(-(2**64)))),
            ({"scale": 3, "value": unscaled(7**900)}, fine(f"{7**900}"[:-3] + "." + f"{7**900}"[-3:])),
            ({"scale": 0, "value": unscaled(-(10**1000))}, fine("-1" + "0" * 1000)),
            ({"scale": 0, "value": unscaled(256**200)}, fine(str(256**200))),
            ({"scale": 0, "value": unscaled(-(256**200))}, fine(str(-(256**200)))),
            ({"scale": 99999, "value": unscaled(1)}, MISFIT),
            ({"scale": 0, "value": ""}, MISFIT),
            (None, fine(None)),
        ],
    ),
    (
        VARIABLE,
        DecimalType(10, 2),
        [
            ({"scale": 4, "value": unscaled(123400)}, fine(Decimal("12.34"))),
            ({"scale": 4, "value": unscaled(123456)}, lost("12.3456")),
            ({"scale": 0, "value": unscaled(10**40)}, lost("1" + "0" * 40)),
        ],
    ),
    (
        field("string"),
        DecimalType(10, 2),
        [
            ("1.5", fine(Decimal("1.50"))),
            ("NaN", lost("NaN")),
            ("1.005", lost("1.005")),
            ("abc", MISFIT),
            (MARK, GAP),
            ("-12345678.90", fine(Decimal("-12345678.90"))),
        ],
    ),
    (
        field("int32", TIME + "Date"),
        None,
        [
            (-719162, fine("0001-01-01")),
            (-141428, fine("1582-10-14")),
            (-141438, fine("1582-10-04")),
            (2932896, fine("9999-12-31")),
            (2932897, lost("10000-01-01")),
            (-719163, lost("0001-12-31 BC")),
            (-735160, lost("0044-03-15 BC")),
            (2146033979, lost("infinity")),
            (-2147483648, lost("-infinity")),
        ],
    ),
    (field("int32", CONNECT + "Date"), DateType(), [(0, fine("1970-01-01"))]),
    (
        field("int32", TIME + "Date"),
        StringType(),
        [(0, fine("1970-01-01")), (-735160, fine("0044-03-15 BC")), (2146033979, fine("infinity"))],
    ),
    (
        field("int32", TIME + "Date"),
        TimestampNTZType(),
        [(0, fine("1970-01-01 00:00:00")), (-735160, lost("0044-03-15 BC"))],
    ),
    (field("int32", TIME + "Date"), IntegerType(), [(5, MISFIT)]),
    (
        field("string", TIME + "IsoDate"),
        None,
        [
            ("2026-02-28Z", fine("2026-02-28")),
            ("1582-10-10Z", fine("1582-10-10")),
            ("-0043-03-15Z", lost("0044-03-15 BC")),
            ("0000-12-31Z", lost("0001-12-31 BC")),
            ("+5877611-06-21Z", lost("infinity")),
            ("+12345-01-02Z", lost("12345-01-02")),
            ("2026-13-45Z", MISFIT),
        ],
    ),
    (
        field("int64", TIME + "MicroTime"),
        None,
        [
            (47655123456, fine("13:14:15.123456")),
            (0, fine("00:00:00")),
            (47655100000, fine("13:14:15.1")),
            (86400000000, fine("24:00:00")),
            (-45000000000, fine("-12:30:00")),
            (3020399000000, fine("838:59:59")),
            (-3020399000001, fine("-838:59:59.000001")),
        ],
    ),
    (field("int32", TIME + "Time"), None, [(47655123, fine("13:14:15.123")), (-1, fine("-00:00:00.001"))]),
    (field("int64", TIME + "NanoTime"), None, [(86399999999999, fine("23:59:59.999999999"))]),
    (
        field("string", TIME + "IsoTime"),
        None,
        [
            ("13:14:15.123456Z", fine("13:14:15.123456")),
            ("13:14:15.100Z", fine("13:14:15.1")),
            ("00:00:00Z", fine("00:00:00")),
            ("10:10:10.000Z", fine("10:10:10")),
        ],
    ),
    (
        field("int64", TIME + "MicroTimestamp"),
        None,
        [
            (-1, fine("1969-12-31 23:59:59.999999")),
            (253402300799999999, fine("9999-12-31 23:59:59.999999")),
            (253402300800000000, lost("10000-01-01 00:00:00")),
            (-62135596800000000, fine("0001-01-01 00:00:00")),
            (-62135596800000001, lost("0001-12-31 23:59:59.999999 BC")),
            (-63517780800000000, lost("0044-03-15 12:00:00 BC")),
            (9223372036854775807, lost("infinity")),
            (9223372036825200000, lost("infinity")),
            (-9223372036832400000, lost("-infinity")),
            (-(2**63), lost("-infinity")),
            (-12219379200000000 + 1, fine("1582-10-14 00:00:00.000001")),
        ],
    ),
    (
        field("int64", TIME + "Timestamp"),
        None,
        [
            (-1, fine("1969-12-31 23:59:59.999")),
            (9223372036825200000, lost("infinity")),
            (-63517780800000, lost("0044-03-15 12:00:00 BC")),
            (-9223372036832400000, lost("-infinity")),
        ],
    ),
    (
        field("int64", TIME + "NanoTimestamp"),
        None,
        [
            (-1, fine("1969-12-31 23:59:59.999999")),
            (1999, fine("1970-01-01 00:00:00.000001")),
            (2**63 - 1, lost("infinity")),
            (-(2**63), lost("-infinity")),
        ],
    ),
    (field("int64", TIME + "MicroTimestamp"), TimestampType(), [(1, fine(1)), (2**63 - 1, lost("infinity"))]),
    (
        field("int64", TIME + "MicroTimestamp"),
        StringType(),
        [(1500000, fine("1970-01-01 00:00:01.5")), (2**63 - 1, fine("infinity"))],
    ),
    (
        field("string", TIME + "IsoTimestamp"),
        None,
        [
            ("2026-02-28T13:14:15.123456Z", fine("2026-02-28 13:14:15.123456")),
            ("2026-02-28T13:14:15.123456789Z", fine("2026-02-28 13:14:15.123456")),
            ("+292278994-08-16T23:00:00Z", lost("infinity")),
            ("-292275055-05-16T16:47:04.192Z", lost("-infinity")),
            ("-0043-03-15T12:00:00.500Z", lost("0044-03-15 12:00:00.5 BC")),
            ("yesterday", MISFIT),
        ],
    ),
    (
        field("string", TIME + "ZonedTimestamp"),
        None,
        [
            ("1582-10-04T00:00:00.000001Z", fine(-12220243199999999)),
            ("1970-01-01T05:30:00+05:30", fine(0)),
            ("9999-12-31T23:59:59.999999Z", fine(253402300799999999)),
            ("infinity", lost("infinity")),
            ("-infinity", lost("-infinity")),
            ("-0043-03-15T12:00:00.000000Z", lost("0044-03-15 12:00:00+00 BC")),
            ("noon", MISFIT),
        ],
    ),
    (
        field("string", TIME + "ZonedTimestamp"),
        TimestampNTZType(),
        [("1970-01-01T05:30:00+05:30", fine("1970-01-01 00:00:00"))],
    ),
    (
        field("string", TIME + "ZonedTimestamp"),
        StringType(),
        [("1970-01-01T05:30:00+05:30", fine("1970-01-01 00:00:00+00")), ("infinity", fine("infinity"))],
    ),
    (field("string", TIME + "ZonedTime"), None, [("07:44:15.123456Z", fine("07:44:15.123456Z"))]),
    (field("int64", TIME + "MicroDuration"), None, [(37091106789000, fine(37091106789000))]),
    (field("int64", TIME + "NanoDuration"), None, [(1999, fine(1)), (-1, fine(-1))]),
    (field("int32", TIME + "Year"), None, [(2155, fine(2155))]),
    (
        field("bytes", DATA + "Bits", parameters={"length": "8"}),
        None,
        [
            ("qg==", fine("10101010")),
            ("", fine("00000000")),
            ("qgA=", fine("10101010")),
            ("qgE=", MISFIT),
            (b64(MARK.encode()), GAP),
            (b64(b"another placeholder"), MISFIT),
        ],
    ),
    (
        field("bytes", DATA + "Bits", parameters={"length": "12"}),
        None,
        [(b64(bytes([0x34, 0x02])), fine("001000110100"))],
    ),
    (
        field("bytes", DATA + "Bits", parameters={"length": "2147483647"}),
        None,
        [("Cw==", fine("00001011")), ("", fine(""))],
    ),
    (
        field("array", items=field("int32")),
        None,
        [([2147483647, None, -1], fine([2147483647, None, -1])), ([], fine([])), (list(MARK.encode()), GAP)],
    ),
    (
        field("array", items=field("string")),
        None,
        [(["", None, "{}"], fine(["", None, "{}"])), ([MARK], GAP), ([MARK, "x"], fine([MARK, "x"]))],
    ),
    (
        field("array", items=field("bytes")),
        None,
        [([b64(MARK.encode())], GAP), (["AQ=="], fine([bytearray(b"\x01")]))],
    ),
    (
        field("array", items=field("string", DATA + "Uuid")),
        None,
        [([Placeholder().uuid], GAP), ([None], fine([None]))],
    ),
    (
        field("array", items=field("int32", TIME + "Date")),
        StringType(),
        [([0, None, 2146033979], fine('["1970-01-01",null,"infinity"]'))],
    ),
    (
        field("array", items=field("int64", TIME + "MicroTimestamp")),
        StringType(),
        [([0], fine('["1970-01-01 00:00:00"]'))],
    ),
    (
        field("array", items=decimal(6, 2)),
        ArrayType(DecimalType(8, 2)),
        [(["bg==", "/x8=", None], fine([Decimal("1.10"), Decimal("-2.25"), None])), ([], fine([]))],
    ),
    (field("int16"), LongType(), [(-5, fine(-5))]),
    (field("int64"), IntegerType(), [(5, fine(5)), (2**31, MISFIT)]),
    (field("int64"), DecimalType(10, 2), [(5, fine(Decimal("5.00"))), (10**8, lost("100000000"))]),
    (field("int64"), DoubleType(), [(5, fine(5.0)), (2**53 + 1, MISFIT)]),
    (field("int16"), StringType(), [(7, fine("7"))]),
    (
        field("bytes"),
        StringType(),
        [(b64("aé".encode()), fine("aé")), (b64(b"\xff"), MISFIT), (None, fine(None))],
    ),
    (decimal(10, 2), StringType(), [(unscaled(258), fine("2.58")), ("", MISFIT), (None, fine(None))]),
    (
        field("array", items=field("bytes")),
        StringType(),
        [([b64(b"a"), None], fine('["a",null]')), ([b64(b"a"), b64(b"\xff")], MISFIT), (None, fine(None))],
    ),
    (
        field("array", items=decimal(10, 2)),
        StringType(),
        [([unscaled(258)], fine('["2.58"]')), ([""], MISFIT)],
    ),
    (
        OF_BYTES,
        StringType(),
        [
            ({"b": b64(b"a"), "d": 0}, fine('{"b":"a","d":"1970-01-01"}')),
            ({"b": b64(b"\xff"), "d": 0}, MISFIT),
            ({"d": 0}, fine('{"d":"1970-01-01"}')),
            (None, fine(None)),
        ],
    ),
    (
        field("array", items=OF_BYTES),
        StringType(),
        [([{"b": b64(b"\xff")}], MISFIT), ([None], fine("[null]"))],
    ),
    (
        field("map", keys=field("string"), items=field("bytes")),
        StringType(),
        [({"a": "AQI=", "b": None}, fine('{"a":"AQI=","b":null}'))],
    ),
    (
        field("map", keys=field("int32", TIME + "Date"), items=field("double")),
        StringType(),
        [([[0, 1.5], [1, None], [2, 1e-7]], fine("[[0,1.5],[1,null],[2,1.0E-7]]"))],
    ),
    (field("string"), IntegerType(), [("7", fine(7)), ("seven", MISFIT), (None, fine(None)), (MARK, GAP)]),
    (field("double"), ShortType(), [(7.0, fine(7)), (7.5, MISFIT)]),
    (field("boolean"), IntegerType(), [(True, fine(1)), (False, fine(0))]),
]


@pytest.mark.parametrize(
    "case", CASES, ids=lambda case: f"{case[0].semantic_name or case[0].connect_type}->{case[1]}"
)
def test_edges(
    spark: SparkSession, case: tuple[Field, DataType | None, list[tuple[Any, dict[str, Any]]]]
) -> None:
    column, target, values = case
    found = outcomes(spark, column, [wire for wire, _ in values], target)
    assert found == [expected for _, expected in values]


@pytest.mark.guarantee(
    "A value that a type cannot hold exactly is kept as text, refused by name or, below the microsecond and "
    "outside of keys, rounded and reported; it is never a key and never null"
)
def test_an_array_with_one_unrepresentable_element(spark: SparkSession) -> None:
    dates = field("array", items=field("int32", TIME + "Date"))
    found = outcomes(spark, dates, [[0, 2146033979, None], [0]])
    assert [f["is"] for f in found] == ["unrepresentable", None]
    assert found[0]["text"] == '["1970-01-01","infinity",null]'
    assert [str(d) if d else None for d in found[0]["value"]] == ["1970-01-01", None, None]


@pytest.mark.parametrize("name", [TIME + "ZonedTimestamp", DATA + "Enum", TIME + "Interval", ""])
def test_an_array_of_texts_that_was_left_out(spark: SparkSession, name: str) -> None:
    of_texts = field("array", items=field("string", name))
    assert outcomes(spark, of_texts, [[MARK], None]) == [GAP, fine(None)]


def test_structs_and_maps(spark: SparkSession) -> None:
    point = field(
        "struct",
        DATA + "geometry.Point",
        fields=(Field("x", "double"), Field("wkb", "bytes"), Field("srid", "int32")),
    )
    given = [
        {"x": 1e10, "wkb": "AQ==", "srid": None},
        None,
        {"x": 0.0, "wkb": b64(MARK.encode()), "srid": None},
    ]
    assert outcomes(spark, point, given) == [
        fine({"x": 1e10, "wkb": bytearray(b"\x01"), "srid": None}),
        fine(None),
        GAP,
    ]
    hstore = field("map", keys=Field("", "string"), items=Field("", "string"))
    assert outcomes(spark, hstore, [{"a": None, "b": "1"}, {MARK: MARK}]) == [
        fine({"a": None, "b": "1"}),
        GAP,
    ]
    vector = field("map", keys=Field("", "int16"), items=Field("", "double"))
    assert outcomes(spark, vector, [[[1, 1.5], [7, -2.0]]]) == [fine({1: 1.5, 7: -2.0})]


def test_the_session_time_zone_does_not_matter(spark: SparkSession) -> None:
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        for physical, semantic, wire in (
            ("int64", "MicroTimestamp", 1_500_000),
            ("string", "IsoTimestamp", "1970-01-01T00:00:01.5Z"),
        ):
            for target, expected in ((None, "1970-01-01 00:00:01.5"), (TimestampType(), 1_500_000)):
                assert outcomes(spark, field(physical, TIME + semantic), [wire], target) == [fine(expected)]
        zoned = field("string", TIME + "ZonedTimestamp")
        assert outcomes(spark, zoned, ["1970-01-01T00:00:01.5Z"], StringType()) == [
            fine("1970-01-01 00:00:01.5+00")
        ]
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


def test_another_placeholder(spark: SparkSession) -> None:
    decoder = RowDecoder([field("string")], placeholder="ŻŻ")
    gap = decoder.project(F.col("wire"))["c"].gap
    assert gap is not None
    found = wired(spark, decoder, ['{"c":"ŻŻ"}', f'{{"c":"{MARK}"}}']).select(gap.alias("g")).collect()
    assert [row["g"] for row in found] == [True, False]


@pytest.mark.parametrize("columns", [[field("string")], [schemaless("c")]])
def test_without_a_placeholder_each_text_is_one(spark: SparkSession, columns: list[Field]) -> None:
    """Maxwell and custom producers have none: such a text must not become null."""
    decoder = RowDecoder(columns, {"c": StringType()}, placeholder=None)
    found = decoder.project(F.col("wire"))["c"]
    assert found.gap is None
    rows = wired(spark, decoder, [f'{{"c":"{MARK}"}}', '{"c":""}']).select(found.value.alias("v")).collect()
    assert [row["v"] for row in rows] == [MARK, ""]


def test_unknown_semantic_names_keep_the_physical_type_and_are_told() -> None:
    decoder = RowDecoder([field("int32", "com.example.Money"), Field("d", "int32", TIME + "Date")])
    assert decoder.unknown == {"c": "com.example.Money"}
    assert decoder.types == {"c": IntegerType(), "d": DateType()}


def test_problems_name_the_columns(spark: SparkSession) -> None:
    decoder = RowDecoder([Field("a", "int32"), Field("b", "string"), Field("d", "string", TIME + "IsoDate")])
    rows = [
        '{"a":1,"b":"x","d":null}',
        '{"a":"one","b":"x","d":"someday"}',
        '{"a":3000000000}',
        "[1]",
        "{",
        None,
    ]
    frame = wired(spark, decoder, rows)  # type: ignore[arg-type]
    found = [
        r["p"]
        for r in frame.coalesce(1).select(decoder.problem(F.col("text"), F.col("wire")).alias("p")).collect()
    ]
    no_row = "the row is not a JSON object of the table's schema"
    assert found == [
        None,
        "the value does not fit a (int), d (date)",
        "the value does not fit a (int)",
        no_row,
        no_row,
        None,
    ]


def test_defaults(spark: SparkSession) -> None:
    fields = [
        Field("t", "string", default="n/a"),
        Field(
            "n",
            "bytes",
            CONNECT + "Decimal",
            {"scale": "2", "connect.decimal.precision": "10"},
            default="AeJA",
        ),
        Field("d", "int32", TIME + "Date", default=1),
        Field("none", "int64"),
    ]
    decoder = RowDecoder(fields)
    row = spark.range(1).select(*(decoder.default(f.name).alias(f.name) for f in fields)).collect()[0]
    assert (row["t"], row["n"], str(row["d"]), row["none"]) == ("n/a", Decimal("1234.56"), "1970-01-02", None)


@pytest.mark.guarantee(
    "A value that a type cannot hold exactly is kept as text, refused by name or, below the microsecond and "
    "outside of keys, rounded and reported; it is never a key and never null"
)
@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_decimals_of_any_size_are_exact(spark: SparkSession, data: st.DataObject) -> None:
    """Hundreds of numbers around the limits of 8, 16 and more bytes, in one job."""
    sizes = st.integers(0, 700).flatmap(lambda bits: st.integers(-(2**bits), 2**bits))
    edges = st.sampled_from(
        [
            s * (b**e + d)
            for s in (1, -1)
            for b in (2, 10, 16)
            for e in (37, 38, 63, 64, 127, 128, 256)
            for d in (-1, 0, 1)
        ]
    )
    numbers = data.draw(st.lists(st.tuples(sizes | edges, st.integers(0, 60)), min_size=100, max_size=100))
    found = outcomes(spark, VARIABLE, [{"scale": s, "value": unscaled(n)} for n, s in numbers])
    assert [f["value"] for f in found] == [format(_exact(n, s), "f") for n, s in numbers]


def _exact(number: int, scale: int) -> Decimal:
    return Decimal((number < 0, tuple(int(d) for d in str(abs(number))), -scale))
