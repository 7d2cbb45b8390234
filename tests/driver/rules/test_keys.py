"""Texts of keys and rows, and hashes, are those that mirrors, tombstones and quarantines hold.

The golden files are what the driver wrote with Spark (`tests.support.golden`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lakemirror.driver.rules import keys
from lakemirror.driver.rules.hashes import xxhash64
from lakemirror.driver.rules.kinds import INT, STRING, VARIANT, Arrays, Decimals, Kind, Maps
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
