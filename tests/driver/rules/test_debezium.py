"""Debezium's envelope: what an event says, and what is not an event of a row."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lakemirror.driver.rules.envelopes import records
from lakemirror.driver.rules.envelopes.debezium import classify
from lakemirror.driver.rules.envelopes.records import (
    LEVELS,
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
    as_text,
    key_in_header,
    key_of,
    named,
    quoted,
    source_of,
    unwrapped,
)
from lakemirror.driver.rules.positions import Origin, Source
from lakemirror.driver.rules.types import Placeholder

pytestmark = pytest.mark.guarantee(
    "Records of each envelope are read as its format specifies; what they lack is named"
)

SOURCE = {
    "connector": "postgresql",
    "name": "shop",
    "db": "d",
    "schema": "s",
    "table": "t",
    "lsn": 5,
    "ts_ms": 7,
}
EVENT = {"op": "u", "before": {"id": 0}, "after": {"id": 1}, "source": SOURCE, "ts_ms": 9}
HERE = Origin("p.s.t", 0, 7)
OTHER_TYPE = "has another type than Debezium gives it"


def told(value: Any, key: Any = None, headers: Any = (), by: str = "auto") -> Classified:
    octets = [None if each is None else json.dumps(each).encode() for each in (value, key)]
    return classify(Record(octets[0], octets[1], headers, HERE), Settings(Ordering(by)))  # type: ignore[arg-type]


def event(**more: Any) -> dict[str, Any]:
    return {name: each for name, each in {**EVENT, **more}.items() if each != "none"}


def changed(value: Any, key: Any = None, headers: Any = ()) -> Change:
    found = told(value, key, headers)
    assert isinstance(found, Change), found
    return found


def reason(value: Any, key: Any = None, by: str = "auto") -> str:
    found = told(value, key, by=by)
    assert isinstance(found, Bad), found
    return found.reason


def test_an_event_has_two_images_a_key_and_a_time() -> None:
    found = changed(EVENT, {"id": 1})
    assert (found.op, found.key, found.row, found.before) == ("u", {"id": 1}, {"id": 1}, {"id": 0})
    assert (found.table, found.at) == (TableName("d", "s", "t"), 7000)
    assert (found.unanchored, found.full_before, found.is_snapshot) == (True, False, False)
    mysql = changed(event(source={"connector": "mysql", "table": "t", "file": "b.1", "pos": 4}, op="r"))
    assert (mysql.full_before, mysql.is_snapshot, mysql.unanchored) == (True, True, False)
    assert mysql.at == 9000, "the time of the connector, where its source tells none"
    assert changed(event(source={**SOURCE, "ts_ms": None}, ts_ms=None)).at is None
    assert isinstance(told(event(op="t", after=None, before=None)), Truncate)


def test_an_event_may_be_wrapped_with_a_schema_or_without() -> None:
    schema = {"type": "struct", "fields": []}
    wrapped = changed({"schema": schema, "payload": EVENT}, {"schema": schema, "payload": {"id": 1}})
    assert (wrapped.row, wrapped.schema, wrapped.key, wrapped.key_schema) == (
        {"id": 1},
        schema,
        {"id": 1},
        schema,
    )
    assert changed({"payload": EVENT}).row == {"id": 1}
    assert changed({"schema": None, "payload": EVENT}).schema is None
    beside = changed({**EVENT, "schema": schema})
    assert (beside.row, beside.schema) == ({"id": 1}, schema)
    assert changed({**EVENT, "payload": {"op": "d"}}).op == "u"
    assert reason({"schema": [1], "payload": EVENT}) == "the schema of the value is not a JSON object"
    assert reason({"payload": 5}) == "the value has no op: it is not a Debezium change event"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([], f"the value is not a Debezium JSON object {LIMITS}"),
        (event(op="none"), "the value has no op: it is not a Debezium change event"),
        (event(op="x"), "unknown op 'x'"),
        (event(op=5), "unknown op '5'"),
        (event(op="m"), "op m without a message of prefix and content, or without a source block"),
        (event(source="none"), "source.table is missing"),
        (event(source={**SOURCE, "table": ""}), "source.table is missing"),
        (event(source="text"), f"source {OTHER_TYPE}"),
        (event(source={**SOURCE, "lsn": "5"}), f"source.lsn {OTHER_TYPE}"),
        (event(source={**SOURCE, "ts_ms": True}), f"source.ts_ms {OTHER_TYPE}"),
        (event(ts_ms="9"), f"ts_ms {OTHER_TYPE}"),
        (event(ts_ms=2**63), f"ts_ms {OTHER_TYPE}"),
        (
            event(source={**SOURCE, "connector": "mongodb"}),
            "changes of MongoDB are not supported: its documents",
        ),
        (event(after=None), "op u without an after image"),
        (event(op="c", after="none"), "op c without an after image"),
        (event(op="r", after="none"), "op r without an after image"),
        (event(after=[1]), "the after image is not a JSON object"),
        (event(op="d", after=None, before="x"), "the before image is not a JSON object"),
        (event(op="d", before=None, after=None), "op d with neither key nor before image"),
        (event(source={**SOURCE, "lsn": -1}), "source.lsn is not valid: -1"),
    ],
)
def test_what_cannot_be_applied_is_named(value: Any, expected: str) -> None:
    assert reason(value).startswith(expected)


def test_a_delete_needs_a_key_or_an_image() -> None:
    assert changed(event(op="d", before=None, after=None), {"id": 1}).key == {"id": 1}
    assert changed(event(op="d", after=None)).before == {"id": 0}


def test_a_bad_record_tells_its_table_if_it_has_one() -> None:
    found = [told(event(op="x")), told(event(op="x", source={"db": "d"})), told([])]
    assert [each.table for each in found if isinstance(each, Bad)] == [TableName("d", "s", "t"), None, None]


def test_the_order_that_the_manifest_declares_is_the_one_that_is_asked_for() -> None:
    assert reason(EVENT, by="binlog") == "ordering.by is binlog, but the record has no source.file"


def test_halves_of_a_change_of_a_key_name_the_other_one() -> None:
    old, new = ("__debezium.oldkey", b'{"id":0}'), ("__debezium.newkey", b'{"id":2}')
    created = changed(event(op="c", before=None), {"id": 1}, [old])
    deleted = changed(event(op="d", after=None), {"id": 1}, [new])
    assert (created.old_key, created.new_key) == ({"id": 0}, None)
    assert (deleted.old_key, deleted.new_key) == (None, {"id": 2})
    assert changed(EVENT, {"id": 1}, [old]).old_key is None, "an update shows what it was itself"


def test_other_records_change_no_row() -> None:
    assert told(None) == NoRowChange("tombstone")
    assert told({"ts_ms": 5}, {"serverName": "p"}) == NoRowChange("one of Debezium's own records")
    assert reason({**EVENT, "op": "c", "after": None}, {"serverName": "p"}) == "op c without an after image"


# -- parts of records -------------------------------------------------------------------------------------


def test_a_source_block_has_numbers_and_texts() -> None:
    assert source_of({"lsn": 2**63 - 1, "pos": -(2**63)}) == Source(lsn=2**63 - 1, pos=-(2**63))
    assert source_of({"lsn": 2**63}) is None
    assert source_of({"row": -(2**63) - 1}) is None
    assert source_of({"event_serial_no": 1.0}) is None
    assert source_of({"server_id": True}) is None
    sent = {"scn": 5, "snapshot": True, "sequence": [None, "7"], "name": "shop"}
    assert source_of(sent) == Source(scn="5", snapshot="true", sequence='[null,"7"]', name="shop")
    assert [as_text(each) for each in (None, "a", 1, {"a": None})] == [None, "a", "1", '{"a":null}']


def test_a_document_is_unwrapped_if_a_schema_is_with_it() -> None:
    schema = {"fields": []}
    assert unwrapped({"schema": schema, "payload": 5}) == (5, schema)
    for document in ({"schema": {}, "payload": 5}, {"schema": "x", "payload": 5}, {"payload": 5}):
        assert unwrapped(document) == (document, None)
    nothing = {"schema": schema, "payload": None}
    assert unwrapped(nothing) == (nothing, None)
    assert unwrapped([1]) == ([1], None)


def test_a_key_is_an_object_or_none() -> None:
    assert key_of(Record(None, b'{"id":1}')) == ({"id": 1}, None)
    for key in (b"7", b"[1]", b"no JSON"):
        assert key_of(Record(None, key)) == (None, None)
    assert key_of(Record(None, b'{"schema":{"fields":[]},"payload":7}')) == (None, {"fields": []})
    for plain in (b'{"type":"int32"}', b'{"optional":false,"type":"string"}'):  # after ExtractField$Key
        assert key_of(Record(None, b'{"schema":' + plain + b',"payload":"x"}')) == (None, None)
    for columns in (
        {"schema": {"type": "x"}, "payload": 7},
        {"schema": {"type": "int32"}, "payload": 7, "x": 1},
    ):
        assert key_of(Record(None, json.dumps(columns).encode())) == (columns, None)


@pytest.mark.parametrize(
    ("header", "key"),
    [
        (b'{"id":2}', {"id": 2}),
        (b'{"d":2026-01-02,"n":1}', {"d": "2026-01-02", "n": 1}),
        (b'{"t":10:15:00.5Z}', {"t": "10:15:00.5Z"}),
        (
            b'{"at":2026-01-02T10:15:00Z,"l":[2026-01-02]}',
            {"at": "2026-01-02T10:15:00Z", "l": ["2026-01-02"]},
        ),
        (b"{2026-01-02", None),
        (b"7", None),
        (None, None),
    ],
)
def test_a_key_in_a_header_may_have_dates_without_quotes(header: bytes | None, key: Any) -> None:
    """Connect's SimpleHeaderConverter writes them so."""
    headers = (("other", b'{"id":9}'), ("key", header), ("key", b'{"id":8}'))
    assert key_in_header(Record(None, headers=headers), "key") == key


@pytest.mark.parametrize(
    ("dotted", "table"),
    [
        ("t", (None, None, "t")),
        ("s.t", (None, "s", "t")),
        ("a.b.s.t", ("a.b", "s", "t")),
        (".t", (None, None, "t")),
        ("s.", (None, "s", None)),
        ("", (None, None, None)),
        (None, (None, None, None)),
    ],
)
def test_a_dotted_name_is_that_of_a_table_in_its_schema(
    dotted: str | None, table: tuple[str | None, ...]
) -> None:
    assert named(dotted) == TableName(*table)


def test_words_of_records_are_cut_in_messages() -> None:
    assert quoted("x" * 51) == f"'{'x' * 50}'"


def test_records_have_the_placeholder_of_their_connector() -> None:
    octets = json.dumps(event()).encode()
    found = classify(Record(octets, None, (), HERE), Settings(placeholder=Placeholder("nothing")))
    assert isinstance(found, Change)
    assert found.placeholder == Placeholder("nothing")


def test_a_header_that_is_nested_too_deeply_is_no_key() -> None:
    for levels in (LEVELS, 100_000):
        text = '{"id":' + "[" * levels + "]" * levels + "}"
        headers = (("__debezium.newkey", text.encode()),)
        found = classify(
            Record(json.dumps(event(op="d", before={"id": 1})).encode(), None, headers, HERE), Settings()
        )
        assert isinstance(found, Change)
        assert found.new_key is None


@pytest.mark.parametrize(("begin", "end"), [('{"a":', "}"), ("[", "]")])
def test_a_document_has_no_more_levels_than_are_read(begin: str, end: str) -> None:
    for levels, is_read in ((LEVELS - 1, True), (LEVELS, False)):
        value = f'{{"v":{begin * levels}1{end * levels}}}'
        found = classify(Record(value.encode(), None, (), HERE), Settings())
        assert isinstance(found, Bad)
        assert (found.reason == "the value has no op: it is not a Debezium change event") == is_read
    beside = f'{{"v":{begin * (LEVELS - 1)}1{end * (LEVELS - 1)},"w":[],"x":{{}}}}'
    found = classify(Record(beside.encode(), None, (), HERE), Settings())
    assert found == Bad("the value has no op: it is not a Debezium change event"), (
        "what is beside is not deeper"
    )


@pytest.mark.parametrize(("length", "is_read"), [(30, True), (31, False)])
def test_a_text_has_no_more_characters_than_are_read(
    length: int, is_read: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "CHARACTERS", 30)
    found = told({"a": ["x" * length], "b": "y" * 30})
    assert isinstance(found, Bad)
    assert (found.reason == "the value has no op: it is not a Debezium change event") == is_read
