"""Debezium's flat records: what the transformation left of an event, and where it left it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lakemirror.api.source import Envelope
from lakemirror.driver.parse.envelopes.debezium_flat import DebeziumFlat
from lakemirror.driver.rules.envelopes.flat import classify, is_metadata
from lakemirror.driver.rules.envelopes.records import (
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
from lakemirror.driver.rules.positions import Origin, is_snapshot
from lakemirror.driver.rules.types import Placeholder

pytestmark = pytest.mark.guarantee(
    "Records of each envelope are read as its format specifies; what they lack is named"
)

HERE = Origin("p.s.t", 0, 7)
KEY = {"id": 1}
Headers = tuple[tuple[str, bytes | None], ...]


def told(
    value: Any,
    key: Any = KEY,
    headers: Headers = (),
    origin: Origin = HERE,
    by: str = "auto",
    *,
    nulls: bool = True,
) -> Classified:
    octets = [None if each is None else json.dumps(each).encode() for each in (value, key)]
    settings = Settings(Ordering(by), null_deletes=nulls)  # type: ignore[arg-type]
    return classify(Record(octets[0], octets[1], headers, origin), settings)


def changed(*args: Any, **more: Any) -> Change:
    found = told(*args, **more)
    assert isinstance(found, Change), found
    return found


def reason(*args: Any, **more: Any) -> str:
    found = told(*args, **more)
    assert isinstance(found, Bad), found
    return found.reason


def test_a_row_is_an_update_unless_it_says_otherwise() -> None:
    ops = {
        "u": {"id": 1},
        "c": {"id": 1, "__op": "c"},
        "d": {"id": 1, "__deleted": "TRUE", "__op": "u"},
        "r": {"id": 1, "__snapshot": "first", "__lsn": 5},
    }
    assert {changed(row).op: row for row in ops.values()} == ops
    for snapshot in ("false", "NULL", ""):
        assert changed({"id": 1, "__source_snapshot": snapshot}).op == "u"
    assert changed({"id": 1, "__op": "u", "__snapshot": "last"}).op == "u"
    assert isinstance(told({"__op": "t", "__lsn": 5}, None), Truncate)
    assert reason({"id": 1, "__op": "m"}) == "unknown __op 'm'"
    assert is_snapshot(changed(ops["r"]).seq)
    assert not is_snapshot(changed({"id": 1, "__lsn": 5}).seq)


def test_a_delete_shows_the_row_before_and_a_change_the_row_after() -> None:
    row = {"id": 1, "v": "a"}
    deleted, updated = changed({**row, "__deleted": "true"}), changed(row)
    assert (deleted.row, deleted.before) == (None, {**row, "__deleted": "true"})
    assert (updated.row, updated.before) == (row, None)
    assert changed(row, None).before == row, "without a key of its own, a record does not change one"
    assert changed({**row, "__op": "c"}, None).before is None


def test_a_header_says_what_a_null_in_the_row_does_not() -> None:
    assert changed({"id": 1, "__lsn": None}, headers=(("__lsn", b"5"),)).source.lsn == 5


def test_a_table_may_have_a_number_as_its_name() -> None:
    headers = (("__db", b"1.5"), ("__schema", b"true"), ("__table", b"2024"))
    assert changed({"id": 1, "__lsn": 5}, headers=headers).table == TableName("1.5", "true", "2024")


def test_a_header_that_is_nested_too_deeply_is_a_text() -> None:
    text = "[" * 100_000 + "]" * 100_000
    assert changed({"id": 1, "__lsn": 5}, headers=(("__query", text.encode()),)).source.lsn == 5


def test_rows_have_the_placeholder_of_their_connector() -> None:
    found = classify(
        Record(b'{"id":1,"__lsn":5}', None, (), HERE), Settings(placeholder=Placeholder("nothing"))
    )
    assert isinstance(found, Change)
    assert found.placeholder == Placeholder("nothing")


@pytest.mark.parametrize(
    ("row", "key", "is_full"),
    [
        ({"__lsn": 5}, KEY, False),  # PostgreSQL: the columns of the replica identity only
        ({"__connector": "postgresql"}, KEY, False),
        ({"__file": "b.1"}, KEY, True),
        ({"__commit_lsn": "5"}, KEY, True),
        ({"__source_change_lsn": "NULL"}, KEY, True),
        ({"__scn": "5"}, KEY, True),
        ({}, KEY, False),  # nobody knows
        ({"__lsn": 5}, None, True),
    ],
)
def test_a_row_before_may_be_incomplete(row: dict[str, Any], key: Any, is_full: bool) -> None:
    assert changed({"id": 1, "__deleted": "true", **row}, key).full_before == is_full


def test_the_names_of_positions_tell_the_connector() -> None:
    rows = {
        "postgresql": {"__source_lsn": None},
        "mysql": {"__file": "bin.000001"},
        "sqlserver": {"__change_lsn": "5"},
        "oracle": {"__source_scn": "5"},
        "db2": {"__connector": "db2", "__change_lsn": "5"},
    }
    assert {changed({"id": 1, **row}).source.connector: row for row in rows.values()} == rows
    assert changed({"id": 1, "__ts_ms": 5}).source.connector is None
    assert changed({"id": 1, "__name": "shop"}).source.name == "shop"
    assert changed({"id": 1}).source.name == "debezium"


def test_a_field_may_be_added_with_the_name_of_its_block() -> None:
    plain, of_source = changed({"id": 1, "__lsn": 5}), changed({"id": 1, "__source_lsn": 5})
    assert plain.seq == of_source.seq
    assert changed({"id": 1, "__lsn": 5, "__source_lsn": 6}).source.lsn == 5
    assert changed({"id": 1, "__lsn": None, "__source_lsn": 6}).source.lsn == 6


def test_a_time_outside_of_the_source_block_is_one_of_the_connectors_clock() -> None:
    """It tells when a change was made if nothing else does, but not its place."""
    found = changed({"id": 1, "__ts_ms": 1000})
    assert (found.at, found.source.ts_ms) == (1_000_000, None)
    assert found.seq[2:12] == bytes(10)
    source = changed({"id": 1, "__source_ts_ms": 2000, "__ts_ms": 1000})
    assert (source.at, source.seq[2:12]) == (2_000_000, (2_000_000).to_bytes(10, "big"))


def test_a_field_that_has_another_type_is_named() -> None:
    other = "has another type than Debezium gives it"
    assert reason({"id": 1, "__ts_ms": "x"}) == f"__ts_ms {other}"
    assert reason({"id": 1, "__pos": "x", "__source_lsn": 1.5}) == f"__pos {other}"
    assert reason({"id": 1, "__lsn": 5, "__source_lsn": "6"}) == f"__source_lsn {other}"
    assert reason({"id": 1}, headers=(("__lsn", b"x"),)) == f"the header __lsn {other}"
    assert reason(None, headers=(("__ts_ms", b"true"),)) == f"the header __ts_ms {other}"


@pytest.mark.parametrize(
    ("row", "topic", "table"),
    [
        ({}, "p.s.t", ("p", "s", "t")),
        ({}, "a.b.s.t", ("a.b", "s", "t")),
        ({"__table": "t"}, "p.s.t", ("p", "s", "t")),
        ({"__table": "other"}, "p.s.t", (None, None, "other")),
        ({"__db": "d"}, "p.s.t", ("d", None, "t")),
        ({"__schema": "x"}, "p.s.t", (None, "x", "t")),
        ({"__db": "d", "__schema": "x", "__table": "y"}, "p.s.t", ("d", "x", "y")),
        ({"__table": "t"}, None, (None, None, "t")),
    ],
)
def test_a_table_is_named_by_fields_and_topic(
    row: Any, topic: str | None, table: tuple[str | None, ...]
) -> None:
    found = changed({"id": 1, "__lsn": 5, **row}, origin=Origin(topic, 0, 7))
    assert found.table == TableName(*table)


def test_headers_say_what_fields_do() -> None:
    row = {"id": 1}
    added = changed(row, headers=(("__op", b"c"), ("__lsn", b"5"), ("__table", b"t"), ("__db", b"d")))
    assert (added.op, added.source.lsn, added.table) == ("c", 5, TableName("d", None, "t"))
    assert added.row == row
    wrapped = changed(row, headers=(("__lsn", b'{"schema":{"fields":[]},"payload":7}'),))
    assert wrapped.source.lsn == 7
    number = changed(row, headers=(("__lsn", b'{"schema":{"type":"int64"},"payload":7}'),))
    assert number.source.lsn == 7, "as JsonConverter writes a header with its schema"
    both = changed({"id": 1, "__op": "c"}, headers=(("__op", b"r"),))
    assert both.op == "c", "a field counts more than a header"
    null = changed({"id": 1, "__op": None}, headers=(("__op", b"r"),))
    assert null.op == "r"
    others = (("op", b"c"), ("x__op", b"c"), ("__op.x", b"c"), ("__op", None))
    assert changed(row, headers=others).op == "u"


def test_a_change_of_a_key_names_the_other_one_in_a_header() -> None:
    old, new = ("__debezium.oldkey", b'{"id":0}'), ("__debezium.newkey", b'{"id":2}')
    assert changed({"id": 1, "__op": "c"}, headers=(old,)).old_key == {"id": 0}
    assert changed({"id": 1, "__op": "u"}, headers=(old,)).old_key is None
    assert changed({"id": 1, "__op": "d"}, headers=(new,)).new_key == {"id": 2}


def test_a_null_value_is_a_delete_only_where_something_says_when() -> None:
    lsn, time, name = ("__lsn", b"5"), ("__source_ts_ms", b"5"), ("__connector", b"mysql")
    placed: list[tuple[str, Headers]] = [
        ("offset", ()),
        ("timestamp", (time,)),
        ("auto", (lsn,)),
        ("auto", (time,)),
        ("lsn", (lsn,)),
        ("binlog", (("__file", b"b.1"),)),
    ]
    for by, headers in placed:
        found = changed(None, headers=headers, by=by)
        assert (found.op, found.key, found.row, found.before) == ("d", KEY, None, None)
    nowhere: list[tuple[str, Headers]] = [
        ("columns", (lsn, time)),
        ("timestamp", (lsn,)),
        ("auto", ()),
        ("auto", (time, name)),
        ("lsn", (time,)),
    ]
    for by, headers in nowhere:
        assert reason(None, headers=headers, by=by).startswith(
            "a null value deletes its key's row, but nothing"
        )
    assert reason(None, headers=(("__lsn", b"-1"),)) == "__lsn is not valid: -1"
    assert reason(None, "x", by="offset") == "the key is not a JSON object"
    assert reason(None, by="offset", origin=Origin(None, 0, 7)) == "no table: neither __table nor a topic"
    assert told(None, None) == told(None, nulls=False) == NoRowChange("tombstone")


def test_a_row_may_have_members_that_look_like_a_wrapper() -> None:
    schema = {"type": "struct", "fields": []}
    assert changed({"schema": schema, "payload": {"id": 1}}).row == {"id": 1}
    assert changed({"schema": None, "payload": {"id": 1}}).row == {"id": 1}
    for row in (
        {"schema": "s", "payload": {"id": 1}},
        {"schema": {"a": 1}, "payload": {"id": 1}},
        {"schema": None, "payload": 5},
        {"schema": schema, "payload": {"id": 1}, "id": 1},
    ):
        assert changed(row).row == row


def test_what_is_no_flat_record_is_named() -> None:
    assert reason([]) == "the value is not a JSON object"
    assert reason({"id": 1}, origin=Origin(None, 0, 7)) == "no table: neither __table nor a topic"
    for image in ("after", "before"):
        event = {"op": "c", "source": {}, image: None}
        assert reason(event) == (
            "the value is a whole event of Debezium, not a flat one: set envelope.format: debezium"
        )


def test_a_row_that_looks_like_a_whole_event_is_one_if_its_key_is_a_column_of_it() -> None:
    row = {"op": "c", "source": "x", "after": 1}
    assert changed(row, {"op": "c"}).row == row
    assert changed(row, None).row == row
    assert reason({**row, "source": {"connector": "mysql"}}, None).startswith("the value is a whole event")
    assert changed({"op": "c", "source": {"connector": "mysql"}}, None).op == "u"
    assert changed({"source": {"connector": "mysql"}, "after": 1}, None).op == "u"
    assert changed({**row, "source": {"connector": "mysql"}, "__op": "c"}, None).op == "c"


def test_a_bad_record_tells_its_table_if_it_has_one() -> None:
    tables = [told({"id": 1, "__lsn": -1}), told({"id": 1, "__lsn": -1}, origin=Origin(None, 0, 7))]
    assert [each.table for each in tables if isinstance(each, Bad)] == [TableName("p", "s", "t"), None]


def test_members_that_the_transformation_added_are_no_columns() -> None:
    added = (
        "__op",
        "__deleted",
        "__source_anything",
        "__transaction_id",
        "__lsn",
        "__source_db",
        "__gtid",
        "__ts_ns",
    )
    assert all(map(is_metadata, added))
    assert not any(map(is_metadata, ("op", "lsn", "__mine", "source_db", "_op")))


BLOCKS = {
    "every connector": (
        "connector",
        "db",
        "name",
        "schema",
        "sequence",
        "snapshot",
        "table",
        "ts_ms",
        "version",
    ),
    "PostgreSQL": ("lsn", "txId", "xmin", "origin", "origin_lsn", "ts_usec", "last_snapshot_record"),
    "MySQL and MariaDB": ("server_id", "gtid", "file", "pos", "row", "thread", "query", "ts_sec"),
    "SQL Server": ("change_lsn", "commit_lsn", "event_serial_no"),
    "Oracle": (
        *(
            "txId",
            "scn",
            "commit_scn",
            "lcr_position",
            "rs_id",
            "ssn",
            "redo_thread",
            "user_name",
            "redo_sql",
        ),
        *("row_id", "commit_ts_ms", "start_scn", "start_ts_ms", "txSeq"),
    ),
    "Informix": ("begin_lsn", "commit_lsn", "change_lsn", "txId"),
}
"""The fields of the source blocks of Debezium's connectors, of all versions (``SourceInfoStructMaker``)."""


@pytest.mark.parametrize("connector", BLOCKS)
def test_the_fields_of_each_connector_are_no_columns(connector: str) -> None:
    for name in BLOCKS[connector]:
        for added in (f"__{name}", f"__source_{name}"):
            assert is_metadata(added), added
            assert DebeziumFlat.is_metadata(Envelope(format="debezium-flat"), added), added
    for name in ("__rowid", "__shard", "row_id", "redo_sql"):
        assert not is_metadata(name)
        assert not DebeziumFlat.is_metadata(Envelope(format="debezium-flat"), name)
