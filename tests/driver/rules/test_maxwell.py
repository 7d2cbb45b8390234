"""Maxwell's records: what a change of a row shows, where it stands, and what cannot be applied."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lakemirror.driver.rules.envelopes.maxwell import classify
from lakemirror.driver.rules.envelopes.records import (
    Bad,
    Change,
    Classified,
    NoRowChange,
    Ordering,
    Record,
    Settings,
    TableName,
)
from lakemirror.driver.rules.positions import Origin, log_of, server_of

pytestmark = pytest.mark.guarantee(
    "Records of each envelope are read as its format specifies; what they lack is named"
)

AT = "bin.000006:800"
KEY = '{"database":"d","table":"t","pk.id":1}'


def told(by: str = "auto", key: str | None = KEY, offset: int | None = 7, **members: Any) -> Classified:
    value = {"database": "d", "table": "t", "type": "insert", "ts": 1477053217, "data": {"id": 1, "v": "a"}}
    octets = json.dumps(
        {name: each for name, each in {**value, **members}.items() if each != "none"}
    ).encode()
    record = Record(octets, None if key is None else key.encode(), origin=Origin("maxwell", 0, offset))
    return classify(record, Settings(Ordering(by)))  # type: ignore[arg-type]


def changed(by: str = "auto", key: str | None = KEY, **members: Any) -> Change:
    found = told(by, key, **members)
    assert isinstance(found, Change), found
    return found


def reason(by: str = "auto", key: str | None = KEY, **members: Any) -> str:
    found = told(by, key, **members)
    assert isinstance(found, Bad), found
    return found.reason


def test_an_update_shows_the_row_and_what_it_was() -> None:
    found = changed(
        type="update", data={"id": 1, "v": "new", "n": 5}, old={"v": "old", "gone": 7}, position=AT
    )
    assert found.row == {"id": 1, "v": "new", "n": 5, "gone": None}, (
        "with output_nulls=false, null is left out"
    )
    assert found.before == {"id": 1, "v": "old", "n": 5, "gone": 7}
    assert (found.key, found.old_key, found.partial) == ({"id": 1}, None, True)


def test_no_value_is_a_placeholder_of_debezium() -> None:
    assert changed(position=AT).placeholder is None


def test_an_insert_and_a_delete_show_one_image() -> None:
    inserted, deleted = changed(position=AT), changed(type="delete", position=AT)
    assert (inserted.op, inserted.row, inserted.before, inserted.partial) == (
        "c",
        {"id": 1, "v": "a"},
        None,
        False,
    )
    assert (deleted.op, deleted.row, deleted.before, deleted.partial) == (
        "d",
        None,
        {"id": 1, "v": "a"},
        False,
    )
    assert inserted.table == TableName("d", None, "t")
    assert inserted.at == 1477053217_000_000


def test_an_update_of_a_part_of_the_key_names_the_whole_former_key() -> None:
    found = changed(
        primary_key_columns=["A", "b"],
        type="update",
        data={"a": 1, "b": 2, "v": 3},
        old={"b": 9, "v": 0},
        position=AT,
    )
    assert (found.key, found.old_key) == ({"a": 1, "b": 2}, {"a": 1, "b": 9})
    inserted = changed(primary_key_columns=["a"], data={"a": 1}, old={"a": 2}, position=AT)
    assert inserted.old_key is None, "an insert has no former key"


@pytest.mark.parametrize(
    ("key", "names"),
    [
        ('{"database":"d","table":"t","pk.id":1}', {"id": 1}),
        ('{"database":"d","table":"t","pk.ID":1}', None),
        ('["d","t",[{"id":1},{"v":"a"}]]', {"id": 1, "v": "a"}),
        ('["d","t",[7,{"id":1}]]', {"id": 1}),
        ('["d","t"]', None),
        ('["d","t",{"id":1}]', None),
        ("7", None),
        ("no JSON", None),
        (None, None),
    ],
)
def test_the_key_of_the_record_names_the_columns_of_the_key(key: str | None, names: Any) -> None:
    if key is not None and "pk.ID" in key:
        assert reason(key=key, position=AT) == "data lacks the primary key's column ID"
    else:
        assert changed(key=key, position=AT).key == names


def test_the_order_is_that_of_the_binlog_and_of_the_rows_of_an_event() -> None:
    def seq(**members: Any) -> bytes:
        return changed(position=AT, **members).seq

    first, second, last = seq(xoffset=0), seq(xoffset=1), seq(commit=True)
    assert seq() == first < second < last, "the last row of a transaction has commit instead of xoffset"
    assert seq(commit=True, xoffset=1) == second
    assert seq(commit=False) == seq()
    assert first[12:22] == (800).to_bytes(10, "big")
    assert changed(position="bin.000006:" + "9" * 18).seq[12:22] == (10**18 - 1).to_bytes(10, "big")


def test_a_gtid_counts_transactions_where_there_is_no_position() -> None:
    mysql, mariadb = changed(gtid="3e11fa47-71ca:23"), changed(gtid="0-12-23")
    assert mysql.seq[2:12] == mariadb.seq[2:12] == (23).to_bytes(10, "big")
    many = changed(gtid=f"u:{'9' * 18}")
    assert many.seq[2:12] == (10**18 - 1).to_bytes(10, "big"), "a busy server soon has more than ten digits"
    assert (server_of(mysql.source), server_of(mariadb.source)) == ("3e11fa47-71ca", "0-12")
    assert log_of(mysql.source, "auto") == "maxwell"
    both = changed(gtid="u:23", position=AT, server_id=5)
    assert both.seq[2:12] == (6).to_bytes(10, "big")
    assert server_of(both.source) == "5", "positions are those of a server, whatever the GTID"


def test_without_any_position_times_and_offsets_order_changes() -> None:
    found = changed()
    assert found.seq[2:22] == (1477053217_000_000).to_bytes(10, "big") + (8).to_bytes(10, "big")
    assert found.source.connector is None
    for member in ({"position": AT}, {"gtid": "u:1"}, {"type": "bootstrap-insert"}):
        assert changed(**member).source.connector == "mysql"


def test_a_row_of_a_bootstrap_is_below_all_positions_whatever_orders_changes() -> None:
    for by in ("auto", "binlog"):
        found = changed(by, type="bootstrap-insert")
        assert (found.op, found.seq) == ("r", bytes(26))
    for by in ("auto", "offset"):
        assert isinstance(told(by, offset=None, type="bootstrap-insert", ts="none"), Change)
    assert reason("auto", offset=None, ts="none").startswith("nothing says when the change was made")


def test_positions_are_checked_where_they_order_changes() -> None:
    assert reason(position="bin.000006") == "position is not valid: 'bin.000006'"
    assert reason(position="bin.6:" + "9" * 19) == f"position is not valid: 'bin.6:{'9' * 19}'"
    assert reason("binlog", gtid=f"u:{'9' * 19}").startswith("gtid is not valid")
    assert reason("binlog", gtid="u") == "gtid is not valid: 'u'"
    assert reason("binlog") == "ordering.by is binlog, but the record has no position"
    for by in ("timestamp", "offset"):
        assert changed(by, position="odd", gtid="odd").op == "c"
    assert changed(gtid="odd", position=AT).op == "c", "the position orders it"


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({"type": "none"}, "the value has no type: it is not a record of Maxwell"),
        ({"type": "odd"}, "unknown type 'odd'"),
        ({"database": ""}, "database is missing"),
        ({"table": "none"}, "table is missing"),
        ({"data": None}, "type insert without data"),
        ({"data": []}, "data is not a JSON object"),
        ({"old": 1}, "old is not a JSON object"),
        ({"reason": "too large", "data": None}, "Maxwell could not send the row, only its key: 'too large'"),
        ({"primary_key_columns": ["a", "ID", "b"]}, "data lacks the primary key's column a, b"),
        ({"ts": True}, "ts has another type than Maxwell gives it"),
        ({"ts": 1.5}, "ts has another type than Maxwell gives it"),
        ({"gtid": 5}, "gtid is not valid: '5'"),
        ({"xoffset": "1"}, "xoffset has another type than Maxwell gives it"),
        ({"xoffset": 2**63}, "xoffset has another type than Maxwell gives it"),
        ({"commit": 1}, "commit has another type than Maxwell gives it"),
        ({"primary_key_columns": "id"}, "primary_key_columns has another type than Maxwell gives it"),
    ],
)
def test_what_cannot_be_applied_is_named(members: dict[str, Any], expected: str) -> None:
    assert reason(**members) == expected


def test_a_bad_record_tells_its_table_if_it_has_one() -> None:
    found = [told(data=None), told(table="none"), told(table="")]
    assert [each.table for each in found if isinstance(each, Bad)] == [TableName("d", None, "t"), None, None]


def test_records_of_other_kinds_change_no_row() -> None:
    for kind in ("bootstrap-start", "bootstrap-complete", "table-alter", "database-drop"):
        assert told(type=kind, data="none") == NoRowChange(kind)
    assert classify(Record(None, b"{}"), Settings()) == NoRowChange("tombstone")
