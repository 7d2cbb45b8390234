"""Custom records and files of AWS DMS: the parts that the manifest names, and what they lack."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lakemirror.driver.rules.envelopes.custom import DMS, Fields, classify
from lakemirror.driver.rules.envelopes.records import (
    LIMITS,
    Bad,
    Change,
    Classified,
    NoRowChange,
    Ordering,
    Record,
    Settings,
    TableName,
    Truncate,
)
from lakemirror.driver.rules.positions import NO_ORIGIN, Origin, is_snapshot
from lakemirror.driver.rules.schemas import SchemaError, field_of, fields_at

pytestmark = pytest.mark.guarantee(
    "Records of each envelope are read as its format specifies; what they lack is named"
)

HERE = Origin("p.s.t", 0, 7)
NESTED = Fields(op="m.op", after="new", before="old", key="new.id", table="m.table", timestamp="m.at")
TIME = 1_700_000_000


def told(
    fields: Fields,
    value: Any,
    key: Any = None,
    origin: Origin = HERE,
    by: str = "auto",
    *,
    nulls: bool = True,
) -> Classified:
    octets = [None if each is None else json.dumps(each).encode() for each in (value, key)]
    settings = Settings(Ordering(by), null_deletes=nulls)  # type: ignore[arg-type]
    return classify(Record(octets[0], octets[1], origin=origin), settings, fields)


def changed(*args: Any, **more: Any) -> Change:
    found = told(*args, **more)
    assert isinstance(found, Change), found
    return found


def reason(*args: Any, **more: Any) -> str:
    found = told(*args, **more)
    assert isinstance(found, Bad), found
    return found.reason


def nested(op: str = "u", **more: Any) -> dict[str, Any]:
    return {"m": {"op": op, "table": "s.t", "at": TIME}, "new": {"id": 1, "v": "a"}, **more}


# -- files of AWS DMS -------------------------------------------------------------------------------------


def test_rows_of_a_full_load_have_no_op_and_are_read_by_a_snapshot() -> None:
    for row in ({"id": 1}, {"Op": "", "id": 1}, {"Op": None, "id": 1}):
        found = changed(DMS, row)
        assert (found.op, found.row, found.before, is_snapshot(found.seq)) == ("r", row, None, True)
    changes = [changed(DMS, {"Op": op, "id": 1}) for op in "IUD"]
    assert {each.placeholder for each in changes} == {None}
    assert [(each.op, is_snapshot(each.seq)) for each in changes] == [
        ("c", False),
        ("u", False),
        ("d", False),
    ]


def test_a_change_of_dms_shows_one_image_of_its_row() -> None:
    row = {"Op": "D", "id": 1}
    deleted = changed(DMS, row)
    assert (deleted.row, deleted.before, deleted.old_key) == (None, row, None)
    updated = changed(DMS, {"Op": "U", "id": 1})
    assert (updated.row, updated.before) == ({"Op": "U", "id": 1},) * 2
    assert reason(DMS, {"Op": "X"}) == "unknown op 'X': it is not in envelope.opMap"


# -- records with paths -----------------------------------------------------------------------------------


def test_the_parts_of_a_record_are_where_the_paths_say() -> None:
    found = changed(NESTED, nested(old={"v": "before"}))
    assert (found.op, found.table, found.key) == ("u", TableName(None, "s", "t"), {"id": 1})
    assert (found.row, found.before) == ({"id": 1, "v": "a"}, {"id": 1, "v": "before"})
    assert (found.at, found.old_key) == (TIME * 1_000_000, None)
    created = changed(NESTED, nested("c", old={"v": "before"}))
    assert (created.before, created.old_key) == (None, None)


def test_a_former_key_is_told_by_the_row_before() -> None:
    two = Fields(op="op", after="new", before="old", key="key")
    record = {"op": "u", "new": {"a": 1, "b": 2}, "key": {"a": 1, "b": 2}}
    assert changed(two, {**record, "old": {"b": 9}}).old_key == {"a": 1, "b": 9}
    assert changed(two, {**record, "old": {"v": 9}}).old_key is None
    assert changed(two, {**record, "old": {"b": 2}}).old_key is None
    assert changed(two, record).old_key is None
    assert changed(two, {**record, "op": "d", "old": {"b": 9}}).old_key is None


def test_a_change_without_a_key_has_no_former_key() -> None:
    assert changed(Fields(before="old"), {"id": 1, "old": {"id": 2}}).old_key is None


def test_a_delete_shows_the_row_before_or_else_the_one_it_has() -> None:
    assert changed(NESTED, nested("d", old={"id": 1, "v": "old"})).before == {"id": 1, "v": "old"}
    assert changed(NESTED, nested("d")).before == {"id": 1, "v": "a"}
    bare = Fields(op="op", after="new", before="old")
    assert changed(bare, {"op": "d", "old": {"id": 1}}).before == {"id": 1}
    assert changed(bare, {"op": "d"}, key={"id": 1}).before is None
    assert reason(bare, {"op": "d"}) == "a delete with neither key nor row"
    assert changed(bare, {"op": "u", "new": {"id": 1}}).before == {"id": 1}


def test_words_for_ops_are_those_of_the_manifest_or_the_usual_ones() -> None:
    plain = Fields(op="op")
    usual = {"C": "c", "insert": "c", "Update": "u", "DELETE": "d", "load": "r", "read": "r", "i": "c"}
    assert {word: changed(plain, {"op": word, "id": 1}).op for word in usual} == usual
    assert isinstance(told(plain, {"op": "truncate"}), Truncate)
    assert reason(plain, {"op": "x"}) == "unknown op 'x': set envelope.opMap"
    assert reason(plain, {"op": 1}) == "unknown op '1': set envelope.opMap"
    assert reason(plain, {}) == "the record has no op: op is missing"
    mapped = Fields(op="op", op_map={"1": "c", "skip": "ignore"})
    assert changed(mapped, {"op": 1}).op == "c"
    assert told(mapped, {"op": "skip"}) == NoRowChange("opMap ignores it")
    assert reason(mapped, {"op": "C"}) == "unknown op 'C': it is not in envelope.opMap"
    assert changed(Fields(), {"op": "d"}).op == "u", "without a path to the op, each record is an update"


def test_a_key_is_an_object_or_a_value_with_the_name_of_its_path() -> None:
    assert changed(Fields(key="k.id"), {"k": {"id": "x"}}).key == {"id": "x"}
    assert changed(Fields(key="k"), {"k": {"a": 1, "b": 2}}).key == {"a": 1, "b": 2}
    assert changed(Fields(), {"id": 1}, key={"id": 1}).key == {"id": 1}
    assert changed(Fields(key="id"), {"id": 2}, key={"id": 1}).key == {"id": 2}
    assert reason(Fields(key="k"), {"k": [1]}) == "k is a list, which names no columns"
    assert reason(Fields(key="k"), {}) == "the record has no key: k is missing"
    assert isinstance(told(Fields(op="op", key="k"), {"op": "t"}), Truncate)
    assert isinstance(told(Fields(op="op", after="new"), {"op": "t"}), Truncate)


def test_a_table_is_named_by_the_record_or_by_its_topic() -> None:
    assert changed(Fields(), {}).table == TableName("p", "s", "t")
    assert changed(Fields(table="of"), {"of": "x"}).table == TableName(None, None, "x")
    assert changed(Fields(table="of"), {"of": 5}).table.table == "5"
    assert reason(Fields(table="of"), {}) == "no table: the record has no of"
    assert reason(Fields(), {}, origin=Origin(None, 0, 1)) == "no table: no topic"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (nested("u", new=None), "op u without new"),
        (nested("u", new=[1]), "new is not a JSON object"),
        (nested("u", old="x"), "old is not a JSON object"),
        ({"m": {"op": "u", "table": "t"}, "new": {"id": 1}}, "the record has no time: m.at is missing"),
        ({"m": {"op": "u", "table": "t", "at": "x"}, "new": {"id": 1}}, "m.at is not a time: 'x'"),
        ([1], f"the value is not a JSON object {LIMITS}"),
    ],
)
def test_a_record_that_lacks_a_part_is_named(value: Any, expected: str) -> None:
    assert reason(NESTED, value) == expected


def test_a_path_leads_through_objects_only() -> None:
    through = "a part that a path into the record leads through is not an object"
    assert reason(Fields(before="a.b"), {"a": 1}) == through
    assert reason(Fields(before="a.b.c"), {"a": {"b": [1]}}) == through
    assert changed(Fields(before="a.b"), {"a": {"b": None}}).op == "u"
    assert changed(Fields(before="a.b"), {"a": None}).op == "u"


def test_a_bad_record_tells_its_table() -> None:
    found = told(Fields(key="k"), {})
    assert isinstance(found, Bad)
    assert found.table == TableName("p", "s", "t")
    nowhere = told(Fields(key="k"), {}, origin=NO_ORIGIN)
    assert isinstance(nowhere, Bad)
    assert nowhere.table is None


# -- the wrapper of Connect -------------------------------------------------------------------------------


def test_a_record_with_a_schema_is_its_payload_unless_paths_lead_into_the_wrapper() -> None:
    schema = {"type": "struct", "fields": []}
    wrapped = {"schema": schema, "payload": {"id": 1}}
    found = changed(Fields(key="id"), wrapped)
    assert (found.row, found.schema) == ({"id": 1}, schema)
    for fields in (Fields(after="payload"), Fields(key="payload.id", after="payload")):
        into = changed(fields, wrapped)
        assert (into.row, into.schema) == ({"id": 1}, None)
    more = changed(Fields(), {**wrapped, "more": 1})
    assert (more.row, more.schema) == ({**wrapped, "more": 1}, None)


@pytest.mark.parametrize(
    ("name", "number", "micros"),
    [
        ("io.debezium.time.Date", 1, 86_400_000_000),
        ("org.apache.kafka.connect.data.Timestamp", 1, 1000),
        ("io.debezium.time.NanoTimestamp", 1999, 1),
        (7, 1, 1_000_000),
        (None, 1, 1_000_000),
    ],
)
def test_the_unit_of_a_time_is_what_its_schema_says(name: Any, number: int, micros: int) -> None:
    at = {"field": "at", "type": "int64", "name": name}
    schema = {"fields": [{"field": "other", "name": "x"}, {"field": "m", "fields": [{"field": "x"}, at]}]}
    record = {"schema": schema, "payload": {"m": {"at": number}}}
    assert changed(Fields(timestamp="m.at"), record).at == micros


@pytest.mark.parametrize("fields", [5, "x", {"at": 1}, [None, 5, "at", ["at"], {"field": ["at"]}]])
def test_a_schema_that_is_none_tells_no_unit(fields: Any) -> None:
    record = {"schema": {"fields": fields}, "payload": {"at": 1_700_000_000}}
    assert changed(Fields(timestamp="at"), record).at == 1_700_000_000_000_000


@pytest.mark.parametrize(
    ("time", "micros"),
    [
        (0, 0),
        (99_999_999_999, 99_999_999_999_000_000),  # the year 5138, in seconds
        (100_000_000_000, 100_000_000_000_000),  # March 1973, in milliseconds
        (" 1.5 ", 1_500_000),
        ("2024-02-29T12:00:00Z", 1_709_208_000_000_000),
        ("1e3", 1_000_000_000),
        ("9998-12-31", 253_370_678_400_000_000),
        ("9999-01-01", None),
        (-1, None),
        (9 * 10**18, 9 * 10**15),  # the year 2255, in nanoseconds
        ("9" * 29, None),
        ("9" * 39, None),
        (True, None),
        ("1.000000001", 1_000_000),
        ("1.0000000001", None),  # ten digits after the point
    ],
)
def test_a_time_is_a_text_or_a_number_of_a_unit_that_fits(time: Any, micros: int | None) -> None:
    found = told(Fields(timestamp="at"), {"at": time})
    assert (found.at if isinstance(found, Change) else None) == micros


def test_a_time_that_orders_nothing_may_be_missing() -> None:
    for by in ("offset", "columns"):
        assert changed(Fields(timestamp="at"), {}, by=by).at is None
    assert reason(Fields(timestamp="at"), {}, by="timestamp") == "the record has no time: at is missing"
    assert (
        reason(Fields(), {}, by="timestamp")
        == "ordering.by is timestamp, but the record has no the timestamp"
    )
    assert reason(Fields(), {}, origin=Origin("t", 0, None)).startswith(
        "nothing says when the change was made"
    )


# -- records without a value ------------------------------------------------------------------------------


def test_a_null_value_deletes_the_row_of_its_key_where_offsets_order_changes() -> None:
    for fields, by in ((Fields(), "auto"), (Fields(), "offset"), (Fields(timestamp="at"), "offset")):
        found = changed(fields, None, key={"id": 1}, by=by)
        assert (found.op, found.key, found.row, found.before) == ("d", {"id": 1}, None, None)
        assert found.seq[12:22] == (8).to_bytes(10, "big")


def test_a_null_value_is_a_tombstone_without_a_key_or_if_the_manifest_says_so() -> None:
    assert told(Fields(), None) == NoRowChange("tombstone")
    assert told(Fields(), None, key={"id": 1}, nulls=False) == NoRowChange("tombstone")


@pytest.mark.parametrize(
    ("fields", "by", "key", "origin", "expected", "names_table"),
    [
        (Fields(), "auto", "x", HERE, "a null value, and the key is not a JSON object", True),
        (Fields(table="of"), "auto", {"id": 1}, HERE, "a null value names no table (it stands in of)", False),
        (Fields(), "columns", {"id": 1}, HERE, "a null value deletes the row of its key, but nothing", True),
        (
            Fields(timestamp="at"),
            "auto",
            {"id": 1},
            HERE,
            "a null value deletes the row of its key, but",
            True,
        ),
        (Fields(), "auto", {"id": 1}, Origin(None, 0, 1), "no table: no topic", False),
        (Fields(), "auto", {"id": 1}, Origin("t", 0, None), "nothing says when the change was made", True),
    ],
)
def test_a_null_value_that_nothing_places_is_named(
    fields: Fields, by: str, key: Any, origin: Origin, expected: str, names_table: bool
) -> None:
    found = told(fields, None, key=key, origin=origin, by=by)
    assert isinstance(found, Bad)
    assert found.reason.startswith(expected)
    assert (found.table is not None) == names_table


def test_parts_of_a_record_that_is_its_row_are_no_columns() -> None:
    parts = {"op": "Op", "before": "was", "key": "id", "timestamp": "at", "table": "of"}
    flat = Fields(**parts)
    assert [name for name in ("Op", "was", "id", "at", "of", "v") if flat.is_metadata(name)] == [
        "Op",
        "was",
        "of",
    ]
    assert not any(map(Fields(**parts, after="row").is_metadata, parts.values()))


def test_the_columns_of_a_record_are_at_the_path_of_its_row() -> None:
    number = {"field": "id", "type": "int32"}
    row = {"field": "row", "type": "struct", "fields": [number]}
    schema = {"type": "struct", "fields": [{"field": "data", "type": "struct", "fields": [row, number]}]}
    assert [each.name for each in fields_at(schema, [])] == ["data"]
    assert [each.name for each in fields_at(schema, ["data"])] == ["row", "id"]
    assert fields_at(schema, ["data", "row"]) == [field_of(number)]
    assert fields_at(schema, ["data", "id"], "the key") == [field_of(number)]
    with pytest.raises(SchemaError, match=r"no data.x: the row image should stand there"):
        fields_at(schema, ["data", "x"])
    with pytest.raises(SchemaError, match="a struct is needed"):
        fields_at(schema, ["data", "id", "x"])
