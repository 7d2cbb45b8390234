"""Texts of keys and rows, and hashes, are those that mirrors, tombstones and quarantines hold.

The golden files are what the driver wrote with Spark (`tests.support.golden`).
"""

from __future__ import annotations

import json
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from lakemirror.driver.rules import keys
from lakemirror.driver.rules.hashes import xxh64, xxhash64, xxhash64_of_int
from lakemirror.driver.rules.kinds import (
    BIGINT,
    DATE,
    DOUBLE,
    INT,
    STRING,
    TIMESTAMP_NTZ,
    VARIANT,
    Arrays,
    Decimals,
    Kind,
    Maps,
    Structs,
)
from lakemirror.driver.rules.values import is_same
from tests.support.values import HASHED, RECORDS, VALUES

pytestmark = pytest.mark.guarantee(
    "Keys in tombstones, hashes and the identities of quarantined records stay the texts that they are"
)

GOLDEN = Path(__file__).parent / "golden"


def golden(name: str) -> Any:
    return json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("number", range(len(VALUES)), ids=[str(kind) for kind, _ in VALUES])
def test_a_value_of_each_type_has_the_text_that_the_driver_wrote(number: int) -> None:
    kind, values = VALUES[number]
    expected = golden("keys")[number]
    assert expected["type"] == str(kind), "stale: python -m tests.support.golden makes the files anew"
    for i, value in enumerate([None, *values]):
        row, kinds = {"v": value}, {"v": kind}
        assert keys.canonical_row(row, kinds) == expected["canonical"][i], value
        assert keys.row_hash(row, kinds) == expected["hash"][i], value
        if "MAP" not in str(kind):  # the entries of a map have no order there
            assert keys.encode_row(row, kinds) == expected["row"][i], value
        if keys.can_be_key(kind):
            assert keys.encode(row, kinds) == expected["key"][i], value


@pytest.mark.parametrize("number", range(len(VALUES)), ids=[str(kind) for kind, _ in VALUES])
def test_what_the_driver_wrote_is_read_back(number: int) -> None:
    """The same text shows that it is the same value, also where values that differ are equal: zeros."""
    kind, values = VALUES[number]
    written = golden("keys")[number]
    for i, value in enumerate([None, *values]):
        row = keys.decode_row(written["row"][i], {"v": kind})
        assert keys.canonical_row(row, {"v": kind}) == written["canonical"][i], value
        assert keys.encode_row(row, {"v": kind}) == written["row"][i], value
        assert type(row["v"]) is type(value)
        if keys.can_be_key(kind):
            key = keys.decode(written["key"][i], {"v": kind})
            assert keys.encode(key, {"v": kind}) == written["key"][i]
            assert is_same(key["v"], value)


def test_a_key_is_read_as_what_it_was_widened_to() -> None:
    text = keys.encode({"b": 5, "a": "x"}, {"b": INT, "a": STRING})
    assert keys.decode(text, {"b": Decimals(10, 2), "a": STRING}) == {"a": "x", "b": Decimal("5.00")}
    assert keys.decode('["5"]', {"v": DOUBLE}) == {"v": 5.0}
    day = keys.encode({"v": date(2026, 1, 2)}, {"v": DATE})
    assert keys.decode(day, {"v": TIMESTAMP_NTZ}) == {"v": datetime(2026, 1, 2)}


def test_a_row_lacks_what_its_image_did_not_have() -> None:
    assert keys.decode_row('{"a":"x","gone":"y"}', {"a": STRING, "b": INT}) == {"a": "x", "b": None}


def test_the_parts_of_a_key_are_in_the_order_of_their_names() -> None:
    assert keys.encode({"b": 1, "a": "x"}, {"b": INT, "a": STRING}) == '["x","1"]'


@pytest.mark.parametrize("kind", [VARIANT, Maps(STRING, INT), Arrays(Maps(STRING, INT))], ids=str)
def test_types_that_nothing_compares_are_no_keys(kind: Kind) -> None:
    with pytest.raises(TypeError, match=r"column v of type .* cannot be a key"):
        keys.encode({"v": None}, {"v": kind})


def test_a_widened_key_keeps_its_text() -> None:
    one = keys.encode({"v": 5}, {"v": INT})
    assert keys.encode({"v": 5.0}, {"v": Decimals(10, 2)}) == one


def test_a_record_that_arrives_again_has_the_same_identity() -> None:
    assert [keys.quarantine_id(*each) for each in RECORDS] == golden("quarantine")


def test_hashes_are_those_of_spark() -> None:
    assert [xxhash64(*each) for each in HASHED] == golden("hashes")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0xEF46DB3751D8E999),
        ("a", 0xD24EC4F1A98C6E5B),
        ("abc", 0x44BC2CF5AD770999),
        ("Nobody inspects the spammish repetition", 0xFBCEA83C8A378BF1),
    ],
)
def test_hashes_are_those_of_xxhash(text: str, expected: int) -> None:
    """(The values are in xxHash's and python-xxhash's own documentation.)"""
    assert xxh64(text.encode(), 0) == expected


def test_a_number_is_hashed_as_its_bytes() -> None:
    for number in (0, 1, -1, 42, 2**31 - 1, -(2**31)):
        octets = number.to_bytes(4, "little", signed=True)
        assert xxhash64_of_int(number, 7) == xxh64(octets, 7)
        long = xxh64(number.to_bytes(8, "little", signed=True), 42)
        assert xxhash64(number) == (long - 2**64 if long >= 2**63 else long)
    assert xxhash64(b"a") == xxhash64("a") == xxhash64("a", None)
    assert -(2**63) <= xxhash64("b") < 2**63


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (float("nan"), "NaN"),
        (float("inf"), "Infinity"),
        (float("-inf"), "-Infinity"),
        (0.0, "0.0"),
        (-0.0, "-0.0"),
        (1.0, "1.0"),
        (0.001, "0.001"),
        (0.0009, "9.0E-4"),
        (9999999.0, "9999999.0"),
        (10000000.0, "1.0E7"),
        (-123456789.125, "-1.23456789125E8"),
        (1.5e300, "1.5E300"),
        (5e-324, "4.9E-324"),
        (-1e-323, "-9.9E-324"),
        (2e-323, "2.0E-323"),
        (2.2250738585072014e-308, "2.2250738585072014E-308"),
    ],
)
def test_a_double_is_written_as_java_does(number: float, text: str) -> None:
    assert keys.java_text(number) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (1.0, "0x1.0p0"),
        (-1.5, "-0x1.8p0"),
        (0.0, "0x0.0p0"),
        (-0.0, "-0x0.0p0"),
        (0.1, "0x1.999999999999ap-4"),
        (5e-324, "0x0.0000000000001p-1022"),
        (1.7976931348623157e308, "0x1.fffffffffffffp1023"),
        (float("nan"), "NaN"),
        (float("-inf"), "-Infinity"),
        (float("inf"), "Infinity"),
    ],
)
def test_a_float_is_written_in_hexadecimal_as_java_does(number: float, text: str) -> None:
    assert keys.java_hex(number) == text


def test_a_variant_is_json_with_its_members_in_order() -> None:
    value = {"b": [1, True, None, "x"], "a": {"d": Decimal("1.50"), "c": Decimal("1e2")}}
    assert keys.variant_json(value) == '{"a":{"c":100,"d":1.5},"b":[1,true,null,"x"]}'
    assert keys.variant_json(Decimal("1" * 38)) == "1" * 38
    assert keys.variant_json(Decimal("1e38")) == "1.0E38", "39 digits are more than any decimal has"
    assert keys.variant_json(Decimal("-0.5")) == "-0.5"
    assert keys.variant_json(Decimal("-0.0")) == "0"


def test_moments_have_no_needless_digits() -> None:
    assert keys.local_text(datetime(2026, 1, 2, 3, 4, 5)) == "2026-01-02 03:04:05"
    assert keys.local_text(datetime(2026, 1, 2, 3, 4, 5, 600_000)) == "2026-01-02 03:04:05.6"
    assert keys.local_text(datetime(5, 1, 2, 3, 4, 50)) == "0005-01-02 03:04:50"
    assert keys.micros_of(datetime(1970, 1, 1, 1, tzinfo=timezone(timedelta(hours=1)))) == 0
    assert keys.micros_of(datetime(1970, 1, 1, 0, 0, 0, 1)) == 1


def test_numbers_that_are_equal_have_one_text_in_a_key() -> None:
    for one, other in (
        ((5, INT), (5.0, DOUBLE)),
        ((5, INT), (Decimal("5.00"), Decimals(5, 2))),
        ((0, INT), (-0.0, DOUBLE)),
        ((2**63 - 1, BIGINT), (9.223372036854775807e18, DOUBLE)),
        ((-(2**63), BIGINT), (-(2.0**63), DOUBLE)),
    ):
        assert keys.canonical(*one) == keys.canonical(*other)
    assert keys.canonical(0.5, DOUBLE) != keys.canonical(0, INT)
    assert keys.canonical(2.0**64, DOUBLE) != keys.canonical(2**63 - 1, BIGINT)
    assert keys.canonical(Decimal("100"), Decimals(5, 0)) == "100"
    assert keys.canonical(-1e19, DOUBLE) == keys.exact(-1e19, DOUBLE), "no BIGINT is as small"


def test_members_that_are_null_are_left_out_of_json_and_elements_are_not() -> None:
    assert keys.to_json({"a": None, "b": [None, {"c": None}], "d": {"e": 1}}) == '{"b":[null,{}],"d":{"e":1}}'
    assert keys.to_json("\x01\\u001f\x1f") == '"\\u0001\\\\u001f\\u001F"'


def test_types_that_compare_are_keys_in_lists_and_structs() -> None:
    assert keys.can_be_key(Arrays(INT))
    assert keys.can_be_key(Structs((("a", INT), ("b", Arrays(STRING)))))
    assert not keys.can_be_key(Structs((("a", INT), ("b", VARIANT))))
    assert not keys.can_be_key(Arrays(Structs((("a", Maps(INT, INT)), ("b", INT)))))
