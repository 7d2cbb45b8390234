"""The builders make what Debezium made: each real record of a plain table is rebuilt from its parts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.records import (
    BinlogPosition,
    Column,
    Message,
    PostgresPosition,
    Record,
    Row,
    Table,
    Topic,
    payload,
    read,
    write,
)

CAPTURES = Path(__file__).parents[1] / "fixtures" / "debezium"
ITEMS = (Column("id", "int32"), Column("sku", "string"), Column("qty", "int32", default=0))
USERS = (Column("id", "int32"), Column("name", "string"), Column("email", "string", optional=True))
ORDERS = ("order_number", "order_date", "purchaser", "quantity", "product_id", "status")


def pg_table(name: str, variant: str) -> Table:
    columns = ITEMS if name == "items" else USERS
    prefix = f"{variant}.pk_change"
    return Table("pk_change", "public", name, columns, ("id",), prefix, name == "users", variant == "jsons")


def pg_position(source: Row) -> PostgresPosition:
    last = json.loads(source["sequence"])[0]
    return PostgresPosition(
        source["lsn"], last and int(last), source["txId"], source["ts_us"], source["snapshot"]
    )


def header(record: Record, name: str) -> Row | None:
    return next((json.loads(text) for key, text in record["headers"] if key == name), None)


def rebuilt(table: Table, at: PostgresPosition | BinlogPosition, record: Record, change: Row) -> Message:
    match change["op"]:
        case "c":
            return table.create(at, change["after"], old_key=header(record, "__debezium.oldkey"))
        case "u":
            return table.update(at, change["after"], change["before"])
        case "r":
            return table.read(at, change["after"])
        case _:
            return table.delete(at, change["before"], new_key=header(record, "__debezium.newkey"))[0]


def without_clock(text: str) -> Any:
    """A value without the connector's own clock and transaction block, which no builder knows."""
    parsed = json.loads(text)
    change = parsed.get("payload", parsed)
    for name in ("ts_ms", "ts_us", "ts_ns", "transaction"):
        change.pop(name)
    change["source"].pop("ts_ns")
    return parsed


def same_record(message: Message, record: Record) -> None:
    assert json.loads(message.key or "") == json.loads(record["key"])
    assert json.dumps(without_clock(message.value or "")) == json.dumps(without_clock(record["value"]))
    moved = [[name, text] for name, text in record["headers"] if name.endswith(("newkey", "oldkey"))]
    assert [list(h) for h in message.headers] == moved


@pytest.mark.parametrize("variant", ["json", "jsons"])
@pytest.mark.parametrize("name", ["items", "users"])
def test_postgres_records_are_rebuilt_field_by_field(name: str, variant: str) -> None:
    table = pg_table(name, variant)
    captured = [r for r in read(CAPTURES / "pk_change" / f"{variant}.jsonl.gz") if r["topic"] == table.topic]
    seen = set()
    for record in captured:
        if record["value"] is not None:
            change = payload(record["value"])
            same_record(rebuilt(table, pg_position(change["source"]), record, change), record)
            seen.add(change["op"])
    assert seen == {"r", "c", "u", "d"}


def test_mariadb_records_are_rebuilt_field_by_field() -> None:
    columns = tuple(Column(name, "string" if name == "status" else "int32") for name in ORDERS)
    table = Table("shop", None, "orders", columns, ("order_number",), "json.shop", full=True)
    seen = set()
    for record in read(CAPTURES / "mariadb_inventory" / "json.jsonl.gz"):
        if record["topic"] == table.topic and record["value"] is not None:
            change = payload(record["value"])
            source = change["source"]
            names = ("file", "pos", "row", "gtid", "ts_us", "snapshot")
            same_record(rebuilt(table, BinlogPosition(*(source[n] for n in names)), record, change), record)
            seen.add(change["op"])
    assert seen == {"r", "c", "u", "d"}


def test_a_delete_is_followed_by_a_tombstone_with_the_same_key_and_headers() -> None:
    table = pg_table("items", "json")
    at = PostgresPosition(10, 9, 1, 1)
    gone, tombstone, created = table.move(
        at, {"id": 1, "sku": "a", "qty": 2}, {"id": 3, "sku": "a", "qty": 2}
    )
    assert tombstone.value is None
    assert (gone.key, gone.headers) == (tombstone.key, tombstone.headers)
    assert payload(gone.value or "")["before"] == {"id": 1, "sku": "", "qty": 0}
    assert created.headers == (("__debezium.oldkey", '{"id":1}'),)


def test_a_truncate_has_no_key_and_no_images() -> None:
    message = pg_table("items", "jsons").truncate(PostgresPosition(10, 9, 1, 1))
    change = payload(message.value or "")
    assert message.key is None
    assert (change["op"], change["before"], change["after"]) == ("t", None, None)


def test_a_topic_keeps_a_key_in_one_partition_and_counts_offsets() -> None:
    table = pg_table("items", "json")
    at = PostgresPosition(10, 9, 1, 1)
    messages = [table.create(at, {"id": n % 5, "sku": "", "qty": n}) for n in range(50)]
    records = list(Topic(table.topic).append(messages))
    places: dict[str, set[int]] = {}
    for record in records:
        places.setdefault(record["key"], set()).add(record["partition"])
    assert all(len(partitions) == 1 for partitions in places.values())
    for partition in range(3):
        offsets = [r["offset"] for r in records if r["partition"] == partition]
        assert offsets == list(range(len(offsets)))


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_record_lines_are_read_as_they_were_written(tmp_path: Path, name: str) -> None:
    table = pg_table("users", "json")
    message = table.create(PostgresPosition(10, 9, 1, 1), {"id": 1, "name": "Żółw 🐢\u2028", "email": None})
    records = list(Topic(table.topic).append([message]))
    write(tmp_path / name, records)
    assert read(tmp_path / name) == records
