"""Keys and rows as text, compared with what Spark itself says of many pairs, in one job each."""

from __future__ import annotations

import math
import random
import string
import struct
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, localcontext
from typing import Any

import pytest
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, MapType, StringType, StructField, StructType

from lakemirror.driver.tables import keys

ODD = [
    "",
    " ",
    "a",
    "A",
    "a ",
    "é",
    "e\u0301",
    "\u0000",
    "\n",
    '"',
    "\\",
    "\\u0041",
    "[]",
    "null",
    "😀",
    "\u2028",
]
Make = Callable[[random.Random], Any]


def a_text(chance: random.Random) -> str:
    return chance.choice(ODD) + "".join(
        chance.choices(string.printable + "äß😀\u0001", k=chance.randint(0, 3))
    )


def an_integer(bits: int) -> Make:
    top = 1 << (bits - 1)
    near = [0, 1, -1, 2, 10, 100, top - 1, -top]
    return lambda chance: (
        chance.choice(near)
        if chance.random() < 0.7
        else chance.randint(-top, top - 1) >> chance.randint(0, bits)
    )


def a_decimal(precision: int, scale: int) -> Make:
    def make(chance: random.Random) -> Decimal:
        digits = chance.randint(0, precision)
        unscaled = chance.choice([0, 1, 10, 100, 10**digits - 1, chance.randint(0, 10**digits)])
        unscaled = min(unscaled, 10**precision - 1) * chance.choice([1, -1])
        with localcontext(prec=50):
            return Decimal(unscaled).scaleb(-scale)

    return make


def a_double(chance: random.Random) -> float:
    near = [0.0, -0.0, 1.0, 0.1, 0.1 + 0.2, 0.3, 1e300, 5e-324, 2.0**53, 2.0**53 + 2, 2.0**63, -(2.0**63)]
    near += [math.nan, math.inf, -math.inf, 1e22, 1e23, 2.2250738585072014e-308]
    bits = struct.pack("<Q", chance.getrandbits(64))
    return chance.choice(near) if chance.random() < 0.8 else float(struct.unpack("<d", bits)[0])


def a_float(chance: random.Random) -> float:
    near = [0.0, -0.0, 1.0, 0.1, 1e30, 1e-45, 16777216.0, math.nan, math.inf, -math.inf, 3.4e38]
    return float(struct.unpack("<f", struct.pack("<f", chance.choice(near) * chance.choice([1, 1, 3e-3])))[0])


def a_date(chance: random.Random) -> date:
    return (
        chance.choice([date(1, 1, 1), date(1582, 10, 4), date(1969, 12, 31), date(9999, 12, 31)])
        if (chance.random() < 0.5)
        else date(1970, 1, 1) + timedelta(days=chance.randint(-3, 3))
    )


def a_moment(chance: random.Random) -> datetime:
    begin = chance.choice(
        [datetime(1, 1, 2), datetime(1969, 12, 31, 23, 59, 59), datetime(2026, 3, 29, 2, 30)]
    )
    return begin + timedelta(microseconds=chance.choice([0, 1, 10, 999, 1000, 100_000, 999_999, 1_000_000]))


def an_instant(chance: random.Random) -> datetime:
    return a_moment(chance).replace(tzinfo=UTC)


def some_bytes(chance: random.Random) -> bytes:
    return bytes(chance.choices([0, 1, 0x41, 0x80, 0xFF], k=chance.randint(0, 2)))


def maybe(make: Make, probability: float = 0.2) -> Make:
    return lambda chance: None if chance.random() < probability else make(chance)


def a_list(make: Make) -> Make:
    return lambda chance: [make(chance) for _ in range(chance.randint(0, 2))]


FAMILIES: dict[str, tuple[Make, list[str]]] = {
    "tinyint": (an_integer(8), ["tinyint", "smallint", "int", "bigint", "decimal(20,0)", "double"]),
    "int": (an_integer(32), ["int", "bigint", "decimal(10,0)", "decimal(22,3)", "decimal(38,28)"]),
    "int_double": (an_integer(32), ["int", "double"]),
    "bigint": (an_integer(64), ["bigint", "decimal(19,0)", "decimal(38,19)"]),
    "decimal": (a_decimal(10, 2), ["decimal(10,2)", "decimal(12,4)", "decimal(38,2)", "decimal(38,30)"]),
    "tiny_decimal": (a_decimal(18, 18), ["decimal(18,18)", "decimal(38,38)"]),
    "huge_decimal": (a_decimal(38, 0), ["decimal(38,0)"]),
    "deep_decimal": (a_decimal(38, 38), ["decimal(38,38)"]),
    "float": (a_float, ["float", "double"]),
    "double": (a_double, ["double"]),
    "string": (a_text, ["string"]),
    "binary": (some_bytes, ["binary"]),
    "boolean": (lambda chance: chance.random() < 0.5, ["boolean"]),
    "date": (a_date, ["date", "timestamp_ntz"]),
    "timestamp_ntz": (a_moment, ["timestamp_ntz"]),
    "timestamp": (an_instant, ["timestamp"]),
    "array": (a_list(maybe(a_text)), ["array<string>"]),
    "doubles": (a_list(maybe(a_double)), ["array<double>"]),
    "struct": (
        lambda chance: (maybe(a_text)(chance), maybe(a_double)(chance), [maybe(a_moment)(chance)]),
        ["struct<`a b`: string, `c.d`: double, e: array<timestamp_ntz>>"],
    ),
}
POOL = 40


def a_key(value: Column, kind: DataType) -> tuple[Column, StructType]:
    """The value as a key of two columns, of which the other is a constant."""
    shape = StructType([StructField("z", kind), StructField("a `b`", StringType())])
    return F.struct(value.alias("z"), F.lit("x").alias("a `b`")), shape


def encoded(value: Column, kind: DataType) -> Column:
    return keys.encode(*a_key(value, kind))


def test_two_keys_have_one_text_exactly_when_they_are_equal_in_the_mirror_whatever_it_was_widened_to(
    spark: SparkSession,
) -> None:
    chance = random.Random(7)
    kinds = {name: [DataType.fromDDL(each) for each in types] for name, (_, types) in FAMILIES.items()}
    schema = StructType([StructField(name, kinds[name][0]) for name in FAMILIES])
    rows = [tuple(make(chance) for make, _ in FAMILIES.values()) for _ in range(POOL)]
    texts, values = [], []
    for name, types in kinds.items():
        for i, kind in enumerate(types):
            value = F.col(name).cast(kind)
            values.append(value.alias(f"{name}_{i}"))
            texts.append(encoded(value, kind).alias(f"{name}_{i}_text"))
    one = spark.createDataFrame(rows, schema).select(*values, *texts).localCheckpoint()
    other = one.select(*(F.col(column).alias(f"other_{column}") for column in one.columns))
    checks = []
    for name, types in kinds.items():
        widest = len(types) - 1
        equal = F.col(f"{name}_{widest}") == F.col(f"other_{name}_{widest}")
        checks.append(F.count_if(equal).alias(f"{name}: equal"))
        for i, kind in enumerate(types):
            same = F.col(f"{name}_{i}_text") == F.col(f"other_{name}_{widest}_text")
            wrong = F.when(~equal.eqNullSafe(same), F.struct(f"{name}_{i}", f"other_{name}_{widest}"))
            checks.append(
                F.first(wrong, ignorenulls=True).cast("string").alias(f"{name}: {kind.simpleString()}")
            )
    found = one.crossJoin(other).agg(*checks).first()
    assert found is not None
    outcome = found.asDict()
    pairs = {name: outcome.pop(f"{name}: equal") for name in kinds}
    assert {name: why for name, why in outcome.items() if why is not None} == {}
    # Distinct values were compared as well as equal ones that are not of one object.
    assert {name for name, count in pairs.items() if not POOL <= count < POOL * POOL} == set()


def test_a_key_is_read_back_as_it_was_also_as_a_wider_type(spark: SparkSession) -> None:
    chance = random.Random(8)
    schema = StructType(
        [StructField(name, DataType.fromDDL(types[0])) for name, (_, types) in FAMILIES.items()]
    )
    rows = [tuple(make(chance) for make, _ in FAMILIES.values()) for _ in range(POOL)]
    checks = []
    for name, (_, types) in FAMILIES.items():
        text = encoded(F.col(name), schema[name].dataType)
        for ddl in types:
            kind = DataType.fromDDL(ddl)
            key, shape = a_key(F.col(name).cast(kind), kind)
            wrong = F.when(~keys.decode(text, shape).eqNullSafe(key), text)
            checks.append(F.first(wrong, ignorenulls=True).alias(f"{name}: {ddl}"))
    found = spark.createDataFrame(rows, schema).agg(*checks).first()
    assert found is not None
    assert {name: why for name, why in found.asDict().items() if why is not None} == {}


@pytest.mark.parametrize(
    "ddl", ["map<string,int>", "variant", "array<map<int,int>>", "struct<a: int, b: map<int,int>>"]
)
def test_what_cannot_be_compared_cannot_be_a_key(spark: SparkSession, ddl: str) -> None:
    kind = DataType.fromDDL(ddl)
    assert not keys.can_be_key(kind)
    with pytest.raises(TypeError, match=r"column z of type .* cannot be a key"):
        keys.encode(F.col("key"), StructType([StructField("z", kind)]))


ROW: dict[str, tuple[Make, str]] = {
    "text": (a_text, "string"),
    "bytes": (some_bytes, "binary"),
    "_corrupt_record": (a_text, "string"),
    "odd `,;{}()=.\n\t\"'": (a_text, "string"),
    "doubles": (a_list(maybe(a_double)), "array<double>"),
    "floats": (a_list(maybe(a_float)), "array<float>"),
    "decimals": (a_list(maybe(a_decimal(38, 20))), "array<decimal(38,20)>"),
    "instants": (a_list(maybe(an_instant)), "array<timestamp>"),
    "moments": (a_list(maybe(a_moment)), "array<timestamp_ntz>"),
    "dates": (a_list(maybe(a_date)), "array<date>"),
    "binaries": (a_list(maybe(some_bytes)), "array<binary>"),
    "flags": (a_list(maybe(lambda chance: chance.random() < 0.5)), "array<boolean>"),
    "integers": (a_list(maybe(an_integer(64))), "array<bigint>"),
    "nested": (a_list(a_list(maybe(a_double))), "array<array<double>>"),
    "map": (
        lambda chance: {a_moment(chance): maybe(a_decimal(5, 3))(chance) for _ in range(3)},
        "map<timestamp_ntz, decimal(5,3)>",
    ),
    "maps": (
        a_list(lambda chance: {a_text(chance): (maybe(some_bytes)(chance), maybe(a_float)(chance))}),
        "array<map<string, struct<`a.b`: binary, `c d`: float>>>",
    ),
    "point": (
        maybe(lambda chance: (maybe(a_double, 0.5)(chance), maybe(some_bytes, 0.5)(chance))),
        "struct<x: double, wkb: binary>",
    ),
}


def test_a_row_is_read_back_to_the_last_bit(spark: SparkSession) -> None:
    chance = random.Random(9)
    kind = StructType([StructField(name, DataType.fromDDL(ddl)) for name, (_, ddl) in ROW.items()])
    rows = [tuple(maybe(make)(chance) for make, _ in ROW.values()) for _ in range(150)]
    frame = spark.createDataFrame([(row,) for row in rows], StructType([StructField("row", kind)]))
    text = keys.encode_row(F.col("row"), kind)
    for before, after in frame.select("row", keys.decode_row(text, kind).alias("again")).collect():
        assert repr(after) == repr(before)


def test_a_variant_is_read_back_from_a_row(spark: SparkSession) -> None:
    """Also inside other values; and JSON's null is not SQL's."""
    kind = StructType.fromDDL("v variant, a array<variant>, m map<string,variant>, s struct<v: variant>")
    texts = ["null", "1", "1.50", "1.5e300", '"1"', '"a\\"b"', "true", '{"a":[1,{"b":null}]}', "[]", None]
    frame = spark.createDataFrame([(text,) for text in texts], "text STRING").selectExpr(
        "text",
        "struct(parse_json(text) AS v, array(parse_json(text)) AS a, map('k', parse_json(text)) AS m, "
        "named_struct('v', parse_json(text)) AS s) AS row",
    )
    again = keys.decode_row(keys.encode_row(F.col("row"), kind), kind)
    for before, after in frame.select(F.to_json("row"), F.to_json(again)).collect():
        assert after == before


def test_a_row_lacks_what_its_image_did_not_have(spark: SparkSession) -> None:
    kind = StructType([StructField("a", StringType()), StructField("b", MapType(StringType(), StringType()))])
    row = spark.range(1).select(keys.decode_row(F.lit('{"a":"x","gone":"y"}'), kind).alias("row")).first()
    assert row is not None
    assert row["row"].asDict() == {"a": "x", "b": None}
