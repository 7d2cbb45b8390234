"""Debezium's own records change no row, and rows that resemble them are rows."""

from __future__ import annotations

from typing import Any

import pytest

from lakemirror.driver.rules.envelopes.own_records import changes_no_row, is_envelope

pytestmark = pytest.mark.guarantee(
    "A record changes no row only if it is one of Debezium's own, not if it resembles one"
)

SOURCE = {"connector": "mysql", "db": "d"}
SERVER = {"serverName": "p"}
TRANSACTION = {"status": "BEGIN", "id": "5", "event_count": None, "data_collections": None}
DDL = {"source": SOURCE, "databaseName": "d", "ddl": "DROP TABLE t"}
MESSAGE = {"op": "m", "source": SOURCE, "message": {"prefix": "x", "content": "YQ=="}}
HEARTBEATS = "__debezium-heartbeat.p"


@pytest.mark.parametrize(
    ("value", "key", "topic"),
    [
        ({"ts_ms": 5}, SERVER, "t"),
        ({"ts_ms": 5}, None, HEARTBEATS),
        ({}, None, HEARTBEATS),
        ({}, {"other": 1}, HEARTBEATS),
        (TRANSACTION, {"id": "5"}, "t"),
        ({**TRANSACTION, "status": "END", "ts_ms": 5}, {"id": "5"}, "t"),
        (DDL, {"databaseName": "d"}, "t"),
        ({**DDL, "ts_ms": 5, "schemaName": None, "tableChanges": []}, {"databaseName": "d"}, "t"),
        (MESSAGE, None, "t"),
        (MESSAGE, {"prefix": "x"}, "t"),
        ({**MESSAGE, "ts_ms": 5}, None, "t"),
    ],
)
def test_one_of_debeziums_own(value: Any, key: Any, topic: str) -> None:
    assert changes_no_row(value, key, topic, None)


@pytest.mark.parametrize(
    ("value", "key", "topic"),
    [
        ({"ts_ms": 5}, None, "t"),
        ({"ts_ms": 5}, None, None),
        ({"ts_ms": 5}, {"serverName": 7}, "t"),
        ({"ts_ms": 5}, {**SERVER, "id": 1}, "t"),
        ({"ts_ms": 5, "v": 1}, SERVER, "t"),
        ({}, SERVER, "t"),
        ({"ts_ms": 5}, {"ts_ms": 5}, HEARTBEATS),
        ({"ts_ms": 5, "v": 1}, None, HEARTBEATS),
        ({"v": 1}, None, HEARTBEATS),
        (TRANSACTION, {"id": "6"}, "t"),
        (TRANSACTION, {"id": "5", "more": 1}, "t"),
        (TRANSACTION, None, "t"),
        ({**TRANSACTION, "id": 5}, {"id": 5}, "t"),
        ({**TRANSACTION, "status": "open"}, {"id": "5"}, "t"),
        ({**TRANSACTION, "v": 1}, {"id": "5"}, "t"),
        ({"status": "END", "id": "5", "event_count": 1}, {"id": "5"}, "t"),
        ({**DDL, "v": 1}, {"databaseName": "d"}, "t"),
        ({**DDL, "source": {}}, {"databaseName": "d"}, "t"),
        ({**DDL, "source": "mysql"}, {"databaseName": "d"}, "t"),
        (DDL, {"databaseName": "other"}, "t"),
        (DDL, None, "t"),
        ({**MESSAGE, "op": "c"}, None, "t"),
        ({**MESSAGE, "prefix": "x"}, {"prefix": "x"}, "t"),  # a row that holds its key
        ({**MESSAGE, "source": {}}, None, "t"),
        ({**MESSAGE, "message": {"prefix": "x"}}, None, "t"),
        ({**MESSAGE, "message": "x"}, None, "t"),
        ({"op": "m", "message": MESSAGE["message"]}, None, "t"),
    ],
)
def test_a_row_that_resembles_one(value: Any, key: Any, topic: str | None) -> None:
    assert not changes_no_row(value, key, topic, None)


@pytest.mark.parametrize(
    ("name", "is_own"),
    [
        ("io.debezium.connector.common.Heartbeat", True),
        ("io.debezium.connector.sqlserver.SchemaChangeValue", True),
        ("io.debezium.connector.common.TransactionMetadataValue", True),
        ("io.debezium.connector.postgresql.MessageValue", True),
        ("io.debezium.connector.common.Heartbeats", False),
        ("a.Heartbeat", False),
        (None, False),
    ],
)
def test_with_a_schema_its_name_tells(name: str | None, is_own: bool) -> None:
    assert changes_no_row({"any": 1}, None, "t", {"name": name}) == is_own
    if not is_own:
        assert not changes_no_row({"ts_ms": 5}, SERVER, HEARTBEATS, {"name": name})


def test_a_whole_event_is_no_row() -> None:
    event = {"op": "c", "source": {"connector": "mysql"}, "after": None}
    assert is_envelope(event, None)
    assert is_envelope({**event, "source": 5}, {"id": 1}), "no row lacks its key"
    assert is_envelope({"op": "d", "source": {"connector": "mysql"}, "before": {}}, None)
    assert not is_envelope({**event, "source": {}}, None)
    assert not is_envelope(event, {"op": "c"})
    assert not is_envelope({"op": "c", "source": {"connector": "mysql"}}, {"id": 1})
    assert not is_envelope({"op": "c", "after": None}, {"id": 1})
