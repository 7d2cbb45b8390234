"""JSON is read exactly: two decoders agree, of which one is fast and the other one is Python's own."""

from __future__ import annotations

import json
from decimal import InvalidOperation
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakemirror.driver.rules import untyped
from lakemirror.driver.rules.conversions import refuse
from lakemirror.driver.rules.members import Repeated, members_of
from lakemirror.driver.rules.untyped import Number, loads

NUMBERS = st.one_of(
    st.integers(min_value=-(10**30), max_value=10**30).map(str),
    st.from_regex(r"-?(0|[1-9][0-9]{0,25})(\.[0-9]{1,25})?([eE][-+]?[0-9]{1,4})?", fullmatch=True),
    st.sampled_from(["-0", "01", "1.", ".5", "NaN", "-Infinity", "1e", "+1", str(2**64), "9" * 5000]),
)
ESCAPES = st.sampled_from([r"\ud800", r"\udc00", r"\ud83d\ude00", r"\u0000", r"\/", r"\x", "\x01", "\x7f"])
STRINGS = st.one_of(st.text(max_size=5).map(json.dumps), ESCAPES.map(lambda each: f'"{each}"'))
WORDS = st.sampled_from(["true", "null", "nul", "", " 1 ", "\ufeff1", "[1,]", '{"a":1,"b":2,"a":3}', "\xa01"])


def _documents(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    members = st.tuples(STRINGS, inner).map(":".join)
    return st.one_of(
        st.lists(inner, max_size=4).map(lambda each: f"[{','.join(each)}]"),
        st.lists(members, max_size=4).map(lambda each: f"{{{', '.join(each)}}}"),
    )


DOCUMENTS = st.recursive(st.one_of(NUMBERS, STRINGS, WORDS), _documents, max_leaves=8)


@st.composite
def damaged(draw: st.DrawFn) -> str:
    """A document, of which a character may be another one."""
    text = draw(DOCUMENTS)
    at = draw(st.integers(0, len(text)))
    return (
        text[:at]
        + draw(st.sampled_from(["", ",", '"', "\\", "1", "-", "e", "]", "\t", "\x00"]))
        + text[at + 1 :]
    )


def told(value: Any) -> Any:
    """A document with the type and the text of each value, and its members in their order."""
    if isinstance(value, dict):
        return [(name, told(each)) for name, each in members_of(value)]
    if isinstance(value, list):
        return [told(each) for each in value]
    return type(value), value.sent if isinstance(value, Number) else value, str(value)


def read_by(read: Any, text: str) -> Any:
    try:
        return told(read(text))
    except (ValueError, InvalidOperation):
        return "a mistake"


@pytest.mark.guarantee("A number of JSON keeps each of its digits")
@settings(max_examples=300, deadline=None)
@given(st.one_of(DOCUMENTS, damaged()))
def test_both_decoders_agree(text: str) -> None:
    assert read_by(loads, text) == read_by(untyped._THOROUGH.decode, text)


OBJECTS = st.recursive(
    NUMBERS | STRINGS,
    lambda inner: st.lists(
        st.tuples(st.sampled_from(['"a"', '"b"', r'"\u0061"', r'"\u0022"', r'"\""']), inner), max_size=4
    ).map(lambda members: "{" + ", ".join(f"{name} : {value}" for name, value in members) + "}"),
    max_leaves=12,
)


@pytest.mark.guarantee("A member that JSON has twice hides no column of its record")
@settings(max_examples=300, deadline=None)
@given(OBJECTS)
def test_no_member_is_lost_to_another_one_of_its_name(text: str) -> None:
    pairs = json.JSONDecoder(parse_float=Number, parse_constant=refuse, object_pairs_hook=Repeated)
    assert read_by(loads, text) == read_by(pairs.decode, text)


def test_what_is_nested_too_deep_is_said_to_be() -> None:
    with pytest.raises(RecursionError):
        loads("[" * 100_000 + "]" * 100_000)


@pytest.mark.parametrize("text", ["1e9999999999999999999", '["\\ud800", -0E-99999999999999999999]'])
def test_an_exponent_that_no_decimal_has_is_a_mistake(text: str) -> None:
    with pytest.raises(ValueError, match="the exponent of a number has too many digits"):
        loads(text)
