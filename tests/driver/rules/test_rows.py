"""Rows, schemas, types from values, and drift; what the driver has as plain functions is compared."""

from __future__ import annotations

import json
from datetime import datetime
from functools import reduce
from itertools import permutations, product
from typing import Any

import pytest
from pyspark.sql import types as t
from pyspark.sql.types import DataType

from lakemirror.driver.parse.values import avro as driver_avro
from lakemirror.driver.plan import drift as driver_drift
from lakemirror.driver.rules import drift
from lakemirror.driver.rules.avro import connect_schema
from lakemirror.driver.rules.drift import Action, Change, fits, widened
from lakemirror.driver.rules.inference import Shape, kind_of, merge, shape_of, with_members
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
    TINYINT,
    Arrays,
    Decimals,
    Kind,
    Maps,
    Structs,
)
from lakemirror.driver.rules.rows import Column, Image, RowReader, shown
from lakemirror.driver.rules.schemas import SchemaError, field_of, fields_of_envelope
from lakemirror.driver.rules.types import UNAVAILABLE
from lakemirror.driver.rules.untyped import loads

KINDS: list[Kind] = [
    *(TINYINT, SMALLINT, INT, BIGINT, FLOAT, DOUBLE, STRING, BINARY, BOOLEAN, DATE, TIMESTAMP, TIMESTAMP_NTZ),
    *(Decimals(5, 2), Decimals(10, 0), Decimals(38, 0), Decimals(38, 18)),
    *(Arrays(INT), Arrays(BIGINT), Arrays(STRING), Maps(STRING, INT)),
    *(
        Structs((("a", INT),)),
        Structs((("a", BIGINT), ("b", STRING))),
        Structs((("A", INT),)),
        Arrays(Structs((("a", INT),))),
    ),
]


def spark(kind: Kind | None) -> DataType | None:
    return None if kind is None else _parse(kind)


def _parse(kind: Kind) -> DataType:
    plain = {
        **{
            "TINYINT": t.ByteType(),
            "SMALLINT": t.ShortType(),
            "INT": t.IntegerType(),
            "BIGINT": t.LongType(),
        },
        **{
            "FLOAT": t.FloatType(),
            "DOUBLE": t.DoubleType(),
            "STRING": t.StringType(),
            "BINARY": t.BinaryType(),
        },
        **{"BOOLEAN": t.BooleanType(), "DATE": t.DateType(), "TIMESTAMP": t.TimestampType()},
        "TIMESTAMP_NTZ": t.TimestampNTZType(),
    }
    if isinstance(kind, Decimals):
        return t.DecimalType(kind.precision, kind.scale)
    if isinstance(kind, Arrays):
        return t.ArrayType(_parse(kind.item))
    if isinstance(kind, Maps):
        return t.MapType(_parse(kind.key), _parse(kind.value))
    if isinstance(kind, Structs):
        return t.StructType([t.StructField(name, _parse(each)) for name, each in kind.fields])
    return plain[str(kind)]


def test_every_pair_of_types_is_widened_as_the_driver_does_it() -> None:
    for one, other in product(KINDS, repeat=2):
        assert spark(widened(one, other)) == driver_drift.widened(_parse(one), _parse(other)), (one, other)
        assert fits(one, other) == driver_drift.fits(_parse(one), _parse(other)), (one, other)


def test_a_row_has_no_value_of_another_one() -> None:
    reader = RowReader({"id": Column("id", BIGINT), "t": Column("t", STRING)})
    rows = [{"id": 1, "t": "a"}, {"id": 2}, {"t": "b"}]
    assert list(map(reader.read, rows)) == [Image({"id": None, "t": None, **row}) for row in rows]


def test_records_of_an_envelope_without_placeholders_lose_no_text() -> None:
    columns = {"id": Column("id", BIGINT), "t": Column("t", STRING)}
    row = {"id": 1, "t": UNAVAILABLE}
    assert RowReader(columns, None).read(row) == Image(row)
    assert RowReader(columns).read(row) == Image({"id": 1}, frozenset({"t"}))


def test_messages_name_a_type_as_the_driver_does() -> None:
    for kind in (*KINDS, Maps(STRING, Structs((("a b", Decimals(5, 2)), ("`c", Maps(DATE, Arrays(INT))))))):
        assert shown(kind) == _parse(kind).simpleString()


def test_drift_is_noted_with_what_was_done() -> None:
    schemas = [{"id": INT, "v": INT}, {"id": INT, "v": DOUBLE, "new": STRING}, {"id": BOOLEAN, "t": DATE}]
    found = drift.plan({"id": INT, "v": INT, "t": STRING, "old": INT}, schemas, "evolve", dropped=["old"])
    assert [(each.column, each.change, each.action) for each in found.drift] == [
        ("v", Change.WIDENED, Action.ALTERED),
        ("new", Change.ADDED, Action.ADDED),
        ("id", Change.INCOMPATIBLE, Action.QUARANTINED),
        ("t", Change.INCOMPATIBLE, Action.STORED_AS_TEXT),
        ("old", Change.DROPPED, Action.KEPT),
    ]
    assert (found.add, found.alter) == ({"new": STRING}, {"v": DOUBLE})
    assert found.refused == [frozenset(), frozenset(), frozenset({"id"})]


def test_policies_skip_and_fail_change_nothing() -> None:
    schemas = [{"id": BIGINT, "new": STRING}]
    skipped = drift.plan({"id": INT}, schemas, "skip")
    assert [each.action for each in skipped.drift] == [Action.SKIPPED, Action.SKIPPED]
    assert (skipped.columns, skipped.add, skipped.alter) == ({"id": INT}, {}, {})
    assert drift.plan({"id": INT}, schemas, "fail").drift[0].action is Action.REFUSED
    assert drift.plan(None, schemas, "fail").drift == []


def test_a_column_that_is_new_and_grows_at_once_is_added_as_it_is_last() -> None:
    schemas = [{"id": INT}, {"id": INT, "new": INT}, {"id": INT, "new": DOUBLE}]
    found = drift.plan({"id": INT}, schemas, "evolve")
    assert (found.add, found.alter) == ({"new": DOUBLE}, {})
    first = drift.plan(None, [{"id": INT}, {"id": BIGINT, "new": INT}], "evolve")
    assert (first.columns, first.add, first.alter) == ({"id": BIGINT, "new": INT}, {"new": INT}, {})
    assert [(each.column, each.action) for each in first.drift] == [
        ("id", Action.ALTERED),
        ("new", Action.ADDED),
    ]


def test_a_column_that_the_source_no_longer_has_is_added_for_old_events_only_if_columns_evolve() -> None:
    schemas = [{"id": INT, "past": INT, "new": INT}]
    added = drift.plan({"id": INT}, schemas, "evolve", past=["past"])
    assert set(added.add) == {"past", "new"}
    skipped = drift.plan({"id": INT}, schemas, "skip", past=["past"])
    assert [each.column for each in skipped.drift] == ["new"]


def test_a_column_that_comes_back_is_told_once() -> None:
    schemas = [{"id": INT, "v": INT}, {"id": INT, "v": INT}]
    found = drift.plan({"id": INT, "v": INT}, schemas, "evolve", returned=["v"])
    assert [(each.column, each.change, each.action) for each in found.drift] == [
        ("v", Change.ADDED, Action.ADDED)
    ]
    assert (found.add, found.refused) == ({}, [frozenset(), frozenset()])


def test_a_column_is_gone_if_a_later_change_lacks_it() -> None:
    assert not drift.ColumnMarks().is_gone
    assert drift.ColumnMarks(absent=b"2").is_gone
    assert drift.ColumnMarks(absent=b"2", present=b"1").is_gone
    assert not drift.ColumnMarks(absent=b"1", present=b"2").is_gone
    assert not drift.ColumnMarks(absent=b"1", present=b"1").is_gone
    assert not drift.ColumnMarks(present=b"1").is_gone


def test_members_that_only_case_tells_apart_are_one() -> None:
    one, other = Structs((("a", INT), ("B", STRING))), Structs((("A", INT), ("b", STRING), ("c", INT)))
    assert drift.grown(one, other) == Structs((("a", INT), ("B", STRING), ("c", INT)))
    assert drift.grown(INT, one) == INT


# -- types from values ------------------------------------------------------------------------------------


def nested(levels: int, kind: Kind) -> Kind:
    return Structs((("a", nested(levels - 1, kind)),)) if levels else kind


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["null"], None),
        (["1", "null"], BIGINT),
        (["1", "9223372036854775808"], Decimals(38, 0)),
        (["1", "1.5"], DOUBLE),
        (["1", '"NaN"'], DOUBLE),
        (['"NaN"'], STRING),
        (['"a"', '"NaN"'], STRING),
        (["true"], BOOLEAN),
        (["1", '"a"'], STRING),
        (["[]"], Arrays(STRING)),
        (["[1]", "[null, 2.5]"], Arrays(DOUBLE)),
        (["[1]", "5"], STRING),
        (['{"b": 1}', '{"a": "x", "c": null}'], Structs((("a", STRING), ("b", BIGINT)))),
        (['{"a": 1}', '{"a": "x"}'], STRING),
        (["{}"], STRING),
        (['{"scale": 2, "value": "AA=="}'], STRING),
        (
            ['{"scale": 2, "value": "AA==", "more": 1}'],
            Structs((("more", BIGINT), ("scale", BIGINT), ("value", STRING))),
        ),
        (['{"scale": 2, "other": "AA=="}'], Structs((("other", STRING), ("scale", BIGINT)))),
        (['{"scale": 2, "value": 5}'], Structs((("scale", BIGINT), ("value", BIGINT)))),
        (['{"scale": "2", "value": "AA=="}'], Structs((("scale", STRING), ("value", STRING)))),
        (["-9223372036854775808", "9223372036854775807"], BIGINT),
        (["-9223372036854775809"], Decimals(38, 0)),
        (["9223372036854775808", "1.5"], DOUBLE),
        (["9" * 38], Decimals(38, 0)),
        (["9" * 39], STRING),  # no type holds it exactly
        (["1" + "0" * 39], DOUBLE),
        (["1e400"], STRING),
        (["-1e-400", "1.5"], STRING),
        (["1e300"], DOUBLE),
        (["0.1234567890123456789"], DOUBLE),
        (["true", "1"], STRING),
        (["true", '"a"'], STRING),
        (['"Infinity"', '"-Infinity"', "1"], DOUBLE),
        (['{"a": 1}', '{"a": 1.5}', '{"a": 9223372036854775808}'], Structs((("a", DOUBLE),))),
        (['{"a": "NaN"}', '{"a": 1}'], Structs((("a", DOUBLE),))),
        (['{"a": "NaN"}', '{"a": "x"}'], Structs((("a", STRING),))),
        (['{"a": "NaN"}', '{"a": true}'], STRING),
        (['{"a": 1}', '{"a": true}'], STRING),
        (['{"a": [1]}', '{"a": {"b": 1}}'], STRING),
        (['{"a": null}'], STRING),
        (["[[[[1]]]]"], Arrays(Arrays(Arrays(Arrays(BIGINT))))),
        (["[[[[[1]]]]]"], Arrays(Arrays(Arrays(Arrays(STRING))))),
        (['[{"a": 1}]', "[null]"], Arrays(Structs((("a", BIGINT),)))),
        (["[1]", "[[1]]"], Arrays(STRING)),
        (['{"a":' * 19 + "1" + "}" * 19], nested(19, BIGINT)),
        (['{"a":' * 20 + '{"a":1}' + "}" * 20], nested(20, STRING)),
        (['{"a": 1, "a": 2}'], STRING),  # a text takes it as it stands
        (['[{"o": {"a": 1, "a": 2}}]', "[]"], STRING),
    ],
)
def test_values_show_their_type_in_any_order(values: list[str], kind: Kind | None) -> None:
    for order in permutations(values):
        assert kind_of(reduce(merge, [shape_of(loads(each)) for each in order], Shape())) == kind


@pytest.mark.parametrize(
    ("there", "values", "grown"),
    [
        (Structs((("a", BIGINT),)), ['{"b": 1}', '{"b": "x"}'], Structs((("a", BIGINT), ("b", STRING)))),
        (Structs((("a", BIGINT),)), ['{"b": 1.5, "a": "x"}', "5"], Structs((("a", BIGINT), ("b", DOUBLE)))),
        (Structs((("a", BIGINT),)), ['{"b": null}', "[1]", "null"], Structs((("a", BIGINT),))),
        (
            Structs((("p", Structs((("x", BIGINT),))),)),
            ['{"p": {"y": true}}', '{"p": 1}'],
            Structs((("p", Structs((("x", BIGINT), ("y", BOOLEAN)))),)),
        ),
        (
            Arrays(Structs((("a", BIGINT),))),
            ['[{"b": 1}]', '["x"]'],
            Arrays(Structs((("a", BIGINT), ("b", BIGINT)))),
        ),
        (
            Structs((("a", BIGINT),)),
            ['{"b": 1, "b": 1}', '{"c": 1}'],
            Structs((("a", BIGINT), ("c", BIGINT))),
        ),
        (Arrays(BIGINT), ["[1.5]"], Arrays(BIGINT)),
        (BIGINT, ['"x"', "1.5"], BIGINT),
    ],
)
def test_objects_of_a_column_get_new_members_and_nothing_else_changes(
    there: Kind, values: list[str], grown: Kind
) -> None:
    assert with_members(there, reduce(merge, [shape_of(loads(each)) for each in values], Shape())) == grown


# -- schemas ----------------------------------------------------------------------------------------------

AVRO: list[dict[str, Any]] = [
    {
        "type": "record",
        "name": "Envelope",
        "namespace": "a.b",
        "fields": [
            {
                "name": "after",
                "type": [
                    "null",
                    {
                        "type": "record",
                        "name": "Value",
                        "fields": [
                            {"name": "id", "type": {"type": "int", "connect.default": 5}},
                            {"name": "d", "type": {"type": "int", "logicalType": "date"}},
                            {
                                "name": "n",
                                "type": [
                                    "null",
                                    {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2},
                                ],
                            },
                            {
                                "name": "f",
                                "type": {
                                    "type": "fixed",
                                    "name": "F",
                                    "size": 8,
                                    "logicalType": "decimal",
                                    "precision": 18,
                                },
                            },
                            {
                                "name": "e",
                                "type": {"type": "enum", "name": "E", "symbols": ["A"]},
                                "default": "A",
                            },
                            {"name": "a", "type": {"type": "array", "items": ["null", "long"]}},
                            {"name": "m", "type": {"type": "map", "values": "string"}},
                            {"name": "b", "type": "bytes", "default": "\u00ff"},
                            {"name": "i16", "type": {"type": "int", "connect.type": "int16"}},
                            {
                                "name": "z",
                                "type": {"type": "string", "connect.name": "io.debezium.time.ZonedTimestamp"},
                            },
                        ],
                    },
                ],
            },
            {"name": "before", "type": ["null", "Value"]},
        ],
    }
]


@pytest.mark.parametrize("schema", AVRO)
def test_an_avro_schema_is_the_connect_schema_that_the_driver_reads(schema: dict[str, Any]) -> None:
    expected = json.loads(driver_avro.parse(json.dumps(schema)).document)
    assert connect_schema(schema) == expected
    assert [each.name for each in fields_of_envelope(expected)][:3] == ["id", "d", "n"]


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (["int", "string"], "a union of several types"),
        ("Unknown", "refers to the type Unknown"),
        (
            {"type": "record", "name": "R", "fields": [{"name": "r", "type": ["null", "R"]}]},
            "contains itself",
        ),
    ],
)
def test_what_no_connector_writes_is_refused(schema: Any, reason: str) -> None:
    whole = {"type": "record", "name": "Whole", "fields": [{"name": "v", "type": schema}]}
    with pytest.raises(SchemaError, match=reason):
        connect_schema(whole)


def test_a_schema_that_is_none_is_named() -> None:
    with pytest.raises(SchemaError, match="is not a type of Kafka Connect"):
        field_of({"field": "v", "type": "int128"})
    with pytest.raises(SchemaError, match="neither 'after' nor 'before'"):
        fields_of_envelope({"type": "struct", "fields": []})


# -- rows -------------------------------------------------------------------------------------------------

COLUMNS = {
    "id": Column.of(field_of({"type": "int32", "field": "id"})),
    "day": Column.of(field_of({"type": "int32", "name": "io.debezium.time.Date", "field": "day"})),
    "note": Column.of(field_of({"type": "string", "field": "note"})),
}
LATE = {"id": 1, "day": 2147483647, "note": "x"}


def test_a_value_that_no_type_holds_is_refused_null_or_text() -> None:
    assert RowReader(COLUMNS).read(LATE) == "column day: Spark cannot represent infinity"
    null, text = (RowReader(COLUMNS).read(LATE, unrepresentable=each) for each in ("null", "text"))  # type: ignore[arg-type]
    assert isinstance(null, Image)
    assert isinstance(text, Image)
    assert (null.values, null.texts) == ({"id": 1, "day": None, "note": "x"}, {})
    assert text.texts == {"day": "infinity"}


def test_a_value_that_no_text_spells_is_refused_unless_it_may_be_null() -> None:
    parts = [
        {"type": "bytes", "field": "b"},
        {"type": "int32", "name": "io.debezium.time.Date", "field": "d"},
    ]
    of_parts = Column.of(field_of({"type": "struct", "fields": parts, "field": "v"}))
    row = {"v": {"b": "/w==", "d": 2932897}}
    for policy in ("quarantine", "text"):
        found = RowReader({"v": of_parts}).read(row, unrepresentable=policy)  # type: ignore[arg-type]
        assert found == "column v: Spark cannot represent the value"
    assert RowReader({"v": of_parts}).read(row, unrepresentable="null") == Image({"v": None})


def test_a_value_that_does_not_fit_names_its_column() -> None:
    assert RowReader(COLUMNS).read({"id": "x", "day": 1.5}) == "the value does not fit id (int), day (date)"
    untyped = {"d": Column("d", Decimals(10, 2))}
    found = RowReader(untyped).read({"d": "1500"})
    assert isinstance(found, str)
    assert found.startswith("it is not known how the text is encoded in d: set tables[].columns.encodings")


def test_what_was_not_sent_is_a_gap() -> None:
    found = RowReader(COLUMNS).read({"id": 1, "day": 0, "note": UNAVAILABLE})
    assert isinstance(found, Image)
    assert (found.gaps, set(found.values)) == ({"note"}, {"id", "day"})
    partial = RowReader(COLUMNS).read({"day": 0}, partial=True, key=["id"])
    assert isinstance(partial, Image)
    assert (partial.gaps, partial.values["id"]) == ({"note"}, None)


def test_digits_below_the_microsecond_are_noted() -> None:
    column = {
        "t": Column.of(field_of({"type": "int64", "name": "io.debezium.time.NanoTimestamp", "field": "t"}))
    }
    found = RowReader(column).read({"t": 1001})
    assert isinstance(found, Image)
    assert (found.rounded, found.values) == ({"t"}, {"t": datetime(1970, 1, 1, 0, 0, 0, 1)})
