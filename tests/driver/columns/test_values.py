"""A value in a column is what the rules make of it, or its record is odd: none is rounded or guessed."""

from __future__ import annotations

import json
from base64 import b64encode
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakemirror.driver.columns.changes import as_events
from lakemirror.driver.columns.decode import Decoder
from lakemirror.driver.columns.facts import Facts
from lakemirror.driver.columns.raw_records import RawRecords
from lakemirror.driver.rules import texts
from lakemirror.driver.rules.envelopes.records import Record, TableName
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
    Decimals,
    Kind,
)
from lakemirror.driver.rules.positions import Origin
from lakemirror.driver.rules.row_keys import KeyOfTable
from lakemirror.driver.rules.rows import Column
from lakemirror.driver.rules.schemas import field_of
from lakemirror.driver.rules.types import kind_of
from lakemirror.driver.rules.values import Event
from tests.support.columnar import block_of, decoded, read
from tests.support.wires import CONNECT, DATA, FIELDS, TIME, UNTYPED
from tests.support.wires import field as schema_of

pytestmark = pytest.mark.guarantee(
    "A value of each type of Debezium is the same in the rules and in the driver: exact, text, or refused"
)

TABLE = TableName("demo", "public", "items")


def facts_of(column: Column, **more: Any) -> Facts:
    """A table with a key ``id`` and a column ``v``."""
    columns = {"id": Column("id", INT, codec=None), "v": column}
    return Facts(TABLE, columns, KeyOfTable(["id"], {"id": columns["id"]}), "postgresql", **more)


def facts_of_key(column: Column) -> Facts:
    """A table with the key ``v``."""
    return Facts(TABLE, {"v": column}, KeyOfTable(["v"], {"v": column}), "postgresql")


def record(value: str, number: int = 0) -> Record:
    """An insert of a row with a value, which is JSON."""
    return _record('{"id":1}', f'{{"id":1,"v":{value}}}', number)


def _record(key: str, row: str, number: int) -> Record:
    sequence = json.dumps(json.dumps(["5", str(10 + number)], separators=(",", ":")))
    source = (
        '{"connector":"postgresql","name":"demo","db":"demo","schema":"public","table":"items",'
        f'"lsn":{10 + number},"sequence":{sequence},"ts_us":1700000000000000,"ts_ms":1700000000000}}'
    )
    value = f'{{"before":null,"after":{row},"source":{source},"op":"c","ts_ms":1}}'
    return Record(value.encode(), key.encode(), origin=Origin("t", 0, number))


def agree(records: list[Record], facts: Facts) -> list[bool]:
    """Compare what is plain with the rules. Return for each record whether it is."""
    decoded = Decoder(facts).decode(RawRecords.of(block_of(records)))
    kinds = {name: each.kind for name, each in facts.columns.items()}
    events = as_events(decoded.changes, kinds, list(facts.key.names)) if len(decoded.numbers) else []
    for number, event in zip(decoded.numbers, events, strict=True):
        found = read(records[number], facts)
        assert isinstance(found, list), (records[number], found)
        assert [shown(each) for each in found] == [shown(event)]
    told = sorted([*decoded.numbers.tolist(), *decoded.tombstones.tolist(), *decoded.odd.tolist()])
    assert told == list(range(len(records)))
    return [i in set(decoded.numbers.tolist()) for i in range(len(records))]


def shown(event: Event) -> str:
    """An event as text, in which NaN is NaN; a decimal of zero has no sign, and a float has its own."""
    row = {name: json.dumps(each) if isinstance(each, float) else each for name, each in event.row.items()}
    return repr(event._replace(op=str(event.op), row=dict(sorted(row.items())), texts=dict(event.texts)))


@pytest.mark.parametrize(
    "i",
    range(len(FIELDS)),
    ids=[f"{s['type']} {s.get('name', '').rpartition('.')[2]} {k or ''}" for s, k, _ in FIELDS],
)
def test_a_value_of_a_field_is_that_of_the_rules(i: int) -> None:
    schema, kind, wires = FIELDS[i]
    found = field_of(schema)
    facts = facts_of(Column.of(found, kind or kind_of(found)))
    together = agree([record(each, n) for n, each in enumerate([*wires, "null"])], facts)
    alone = [agree([record(each)], facts)[0] for each in [*wires, "null"]]
    assert together == alone  # one odd value makes no other odd
    assert any(together) == (str(facts.columns["v"].kind) != "VARIANT")


@pytest.mark.parametrize("i", range(len(UNTYPED)), ids=[f"{kind} {writing}" for kind, writing, _ in UNTYPED])
def test_a_value_without_a_schema_is_that_of_the_rules(i: int) -> None:
    kind, writing, wires = UNTYPED[i]
    facts = facts_of(Column("v", kind, writing=getattr(texts, writing)))
    together = agree([record(each, n) for n, each in enumerate([*wires, "null"])], facts)
    alone = [agree([record(each)], facts)[0] for each in [*wires, "null"]]
    assert together == alone
    assert any(together) == ("VARIANT" not in str(kind))


# -- any value --------------------------------------------------------------------------------------------

DECIMAL = {"scale": "2", "connect.decimal.precision": "10"}
OF_SCHEMA: list[Column] = [
    Column.of(field_of(each))
    for each in (
        schema_of("int16"),
        schema_of("int64"),
        schema_of("float"),
        schema_of("double"),
        schema_of("boolean"),
        schema_of("string"),
        schema_of("bytes"),
        schema_of("bytes", CONNECT + "Decimal", parameters=DECIMAL),
        schema_of("bytes", CONNECT + "Decimal", parameters={"scale": "5"}),
        schema_of("int32", TIME + "Date"),
        schema_of("int64", TIME + "Timestamp"),
        schema_of("int64", TIME + "MicroTimestamp"),
        schema_of("int64", TIME + "NanoTimestamp"),
        schema_of("int64", TIME + "MicroTime"),
        schema_of("string", TIME + "ZonedTimestamp"),
        schema_of("string", TIME + "IsoTimestamp"),
        schema_of("string", DATA + "Json"),
        schema_of("array", items={"type": "double"}),
        schema_of("map", keys={"type": "string"}, values={"type": "int32"}),
    )
]
PLAIN: list[Kind] = [INT, BIGINT, FLOAT, DOUBLE, BOOLEAN, STRING, DATE, TIMESTAMP, TIMESTAMP_NTZ]
WITHOUT: list[Column] = [Column("v", kind) for kind in (*PLAIN, Decimals(10, 2), Decimals(38, 10))]

NUMBERS = st.one_of(
    st.integers().map(str),
    st.integers(-(2**65), 2**65).map(str),
    st.sampled_from([10**3, 10**9, 10**12, 10**15, 10**18]).flatmap(
        lambda most: st.integers(-most, most).map(str)
    ),
    st.floats().map(json.dumps),
    st.decimals(allow_nan=False, allow_infinity=False, places=2).map(str),
    st.from_regex(r"\A-?(0|[1-9]\d{0,20})(\.\d{1,20})?([eE][-+]?\d{1,3})?\Z"),
)
MOMENTS = st.from_regex(
    r"\A[0-3]\d{3}-[01]\d-[0-3]\d[T ][0-2]\d:[0-6]\d:[0-6]\d(\.\d{1,7})?(Z|[-+]0[0-9]:[03]0)?\Z"
).map(json.dumps)
BASE64 = st.binary(max_size=20).map(lambda octets: json.dumps(b64encode(octets).decode()))
LOOSE_BASE64 = st.text("AQgw09+/=-_", max_size=9).map(json.dumps)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda each: st.lists(each, max_size=3) | st.dictionaries(st.text(max_size=5), each, max_size=3),
    max_leaves=5,
).map(json.dumps)
VALUES = NUMBERS | MOMENTS | BASE64 | LOOSE_BASE64 | JSON_VALUES
NOT_SLOW = settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@given(st.sampled_from([*OF_SCHEMA, *WITHOUT]), st.lists(VALUES, min_size=1, max_size=5))
@NOT_SLOW
def test_any_value_is_that_of_the_rules(column: Column, values: list[str]) -> None:
    agree([record(each, n) for n, each in enumerate(values)], facts_of(column))


@given(
    st.sampled_from([*OF_SCHEMA[:-1], *WITHOUT]), st.lists(st.tuples(VALUES, VALUES | st.none()), min_size=1)
)
@NOT_SLOW
def test_any_value_of_a_key_is_that_of_the_rules(
    column: Column, values: list[tuple[str, str | None]]
) -> None:
    records = [
        _record(f'{{"v":{key}}}', f'{{"v":{key if row is None else row}}}', n)
        for n, (key, row) in enumerate(values)
    ]
    agree(records, facts_of_key(column))


@pytest.mark.parametrize(
    ("column", "value", "is_plain"),
    [
        (Column.of(field_of(schema_of("double"))), "1.5", True),
        (Column.of(field_of(schema_of("double"))), '"NaN"', False),
        (Column.of(field_of(schema_of("double"))), "-0.0", True),
        (Column("v", Decimals(10, 2)), "1.50", True),
        (Column.of(field_of(schema_of("int64", TIME + "MicroTimestamp"))), "1700000000000001", True),
        (Column("v", STRING), '"żółw"', True),
    ],
)
def test_a_key_is_plain_if_it_equals_itself(column: Column, value: str, is_plain: bool) -> None:
    assert agree([_record(f'{{"v":{value}}}', f'{{"v":{value}}}', 0)], facts_of_key(column)) == [is_plain]


def test_a_key_whose_row_has_the_other_zero_is_odd() -> None:
    facts = facts_of_key(Column.of(field_of(schema_of("double"))))
    assert agree([_record('{"v":0.0}', '{"v":-0.0}', 0)], facts) == [False]


# -- any record -------------------------------------------------------------------------------------------


@st.composite
def changed(draw: st.DrawFn) -> Record:
    """A record with any value in the place of a member, a member more, or any bytes."""
    made = record('"x"')
    assert made.value is not None
    if draw(st.booleans()):
        octets = bytearray(made.value)
        at = draw(st.integers(0, len(octets)))
        octets[at : at + draw(st.integers(0, 2))] = draw(
            st.binary(max_size=2)
            | st.sampled_from([b'"', b"\\u", b"\\ud800", b"{", b"\n", b"\xff", b",", b"0"])
        )
        return made._replace(value=bytes(octets))
    document = json.loads(made.value)
    part = draw(st.sampled_from([document, document["source"], document["after"]]))
    name = draw(st.sampled_from([*part, "file", "pos", "scn", "snapshot", "payload", "more", "before"]))
    part[name] = draw(JSON_VALUES.map(json.loads) | st.sampled_from([{}, [[]], "u", "d", -1, 10**18, "NULL"]))
    key = draw(
        st.sampled_from([made.key, None, b"5", b'{"id":2}', b'{"id":1,"x":2}', b'{"id":null}', b"\xff"])
    )
    return made._replace(value=json.dumps(document).encode(), key=key)


@given(st.lists(changed(), min_size=1, max_size=4))
@settings(NOT_SLOW, max_examples=1000)
def test_any_record_is_what_it_is_to_the_rules(records: list[Record]) -> None:
    agree(records, facts_of(Column("v", STRING)))


@pytest.mark.parametrize(
    "skipped",
    [
        "[" * 150 + "]" * 150,
        '"\\ud800"',
        "9" * 5000,
        '"\\x"',
        "NaN",
        "01",
        '{"a":1,"a":2}',
        "1e400",
    ],
)
@pytest.mark.parametrize("place", ["before", "more"])
def test_what_is_skipped_is_within_the_limits_of_the_rules(skipped: str, place: str) -> None:
    made = record('"x"')
    assert made.value is not None
    value = made.value.replace(b'"before":null', f'"{place}":{skipped}'.encode())
    agree([made._replace(value=value), made], facts_of(Column("v", STRING)))


def test_what_is_skipped_is_utf_8() -> None:
    made = record('"x"')
    assert made.value is not None
    value = made.value.replace(b'"before":null', b'"before":{"a":"\xff"}')
    assert agree([made._replace(value=value), made], facts_of(Column("v", STRING))) == [False, True]


@pytest.mark.parametrize("name", ["__topic", "__partition", "__offset", "__log"])
def test_a_column_with_the_name_of_one_that_changes_have_is_for_the_rules(name: str) -> None:
    facts = replace(facts_of(Column("v", INT)), columns={"id": Column("id", INT), name: Column("v", INT)})
    assert not facts.are_plain
    assert decoded([record("1")], facts).odd.tolist() == [0]


@pytest.mark.parametrize("name", ['a "b"', "a\\b", "a\tb"])
def test_a_table_with_a_name_that_json_escapes_is_for_the_rules(name: str) -> None:
    facts = facts_of(Column(name, INT))
    assert not facts.are_plain
    given = record("1")
    assert decoded([given], facts).odd.tolist() == [0]
