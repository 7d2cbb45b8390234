"""What a mirror may be sent, and how it has to end: one line a case.

`RECORDS` are single records between good ones, all of one table and one batch. `TABLES` are tables of their
own, all of one pipeline; what is wrong with one must show in no other.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from tests.support.delivery import Batches
from tests.support.records import Column, Record, Row, Table
from tests.support.shop import Shop, table

Outcome = Literal[
    "applied", "superseded", "stale", "duplicates", "no_row_change", "quarantined", "refused", "other table"
]

# -- single records ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RecordCase:
    """A good create (id N, v N) that was changed, and the outcome that it must have.

    `reason` is a part of the quarantine's reason; `row` what the mirror shows of it, where not (N, N).
    """

    name: str
    change: Callable[[Record], Record]
    outcome: Outcome
    reason: str = ""
    row: Row | None = None


def field_of(path: str, value: Any, **more: Any) -> Callable[[Record], Record]:
    """The record with another value in its envelope: `source.lsn`, `after.v`, `op`; and ``more`` of them."""

    def change(record: Record) -> Record:
        document = json.loads(record["value"])
        *above, last = path.split(".")
        here = document["payload"]
        for name in above:
            here = here[name]
        here[last] = value
        document["payload"] |= more
        return {**record, "value": json.dumps(document)}

    return change


def value(text: str | None) -> Callable[[Record], Record]:
    return lambda record: {**record, "value": text}


def key(text: str | None) -> Callable[[Record], Record]:
    return lambda record: {**record, "key": text}


def nested(depth: int) -> str:
    return '{"a":' * depth + "1" + "}" * depth


def source(**fields: Any) -> Callable[[Record], Record]:
    """Other values in the source block."""

    def change(record: Record) -> Record:
        document = json.loads(record["value"])
        document["payload"]["source"].update(fields)
        return {**record, "value": json.dumps(document)}

    return change


def without(path: str) -> Callable[[Record], Record]:
    """A field of the envelope is missing."""

    def change(record: Record) -> Record:
        document = json.loads(record["value"])
        *above, last = path.split(".")
        here = document["payload"]
        for name in above:
            here = here[name]
        del here[last]
        return {**record, "value": json.dumps(document)}

    return change


def schema(document: Any) -> Callable[[Record], Record]:
    """Another schema document in the value."""
    return lambda record: {
        **record,
        "value": json.dumps({"schema": document, "payload": json.loads(record["value"])["payload"]}),
    }


HUGE = 2**63 - 1

RECORDS: Sequence[RecordCase] = (
    RecordCase("nothing wrong", lambda record: record, "applied"),
    # What is no record of a change
    RecordCase("a tombstone", value(None), "no_row_change"),
    RecordCase("empty text", value(""), "quarantined", "not a Debezium JSON object"),
    RecordCase("text", value("hello"), "quarantined", "not a Debezium JSON object"),
    RecordCase("a number", value("17"), "quarantined", "not a Debezium JSON object"),
    RecordCase("an array", value("[1, 2]"), "quarantined"),
    RecordCase("null as text", value("null"), "quarantined"),
    RecordCase("an empty object", value("{}"), "quarantined", "no op"),
    RecordCase("half an object", value('{"payload": {"op": "c", "after": {"id": '), "quarantined"),
    RecordCase("two objects", value('{"op":"c"} {"op":"c"}'), "quarantined"),
    RecordCase("nested 600 deep", value(nested(600)), "quarantined"),
    RecordCase("nested 3000 deep", value(nested(3000)), "quarantined"),
    # Operations
    RecordCase("an unknown op", field_of("op", "x"), "quarantined", "unknown op 'x'"),
    RecordCase("op as a number", field_of("op", 7), "quarantined", "unknown op '7'"),
    RecordCase("op null", field_of("op", None), "quarantined", "no op"),
    RecordCase("op of a message alone", field_of("op", "m"), "quarantined", "op m without a message"),
    RecordCase(
        "a message",
        field_of("message", {"prefix": "p", "content": ""}, op="m"),
        "no_row_change",
    ),
    RecordCase("members of a transaction", value('{"status":"END","id":"5"}'), "quarantined", "no op"),
    RecordCase("members of a schema change", value('{"databaseName":"d"}'), "quarantined", "no op"),
    RecordCase("a time alone", value('{"ts_ms":5}'), "quarantined", "no op"),
    # Images
    RecordCase("no after", field_of("after", None), "quarantined", "without an after image"),
    RecordCase("after as text", field_of("after", "text"), "quarantined"),
    RecordCase("after as an array", field_of("after", [1, 2]), "quarantined"),
    RecordCase("after as a number", field_of("after", 5), "quarantined"),
    RecordCase("after empty", field_of("after", {}), "quarantined", "key and row differ"),
    RecordCase("a value of another type", field_of("after.v", "seven"), "quarantined", "v (int)"),
    RecordCase("a value beyond its type", field_of("after.v", 2**40), "quarantined", "v (int)"),
    RecordCase("an object for a number", field_of("after.v", {"a": 1}), "quarantined", "v (int)"),
    RecordCase("an unknown column", field_of("after.unknown", 1), "applied"),
    RecordCase("a text with NUL", field_of("after.text", "a\0b"), "applied", row={"text": "a\0b"}),
    RecordCase(
        "a long text", field_of("after.text", "x" * 1_000_000), "applied", row={"text": "x" * 1_000_000}
    ),
    RecordCase(
        "an odd text", field_of("after.text", "\\\"'`{}\u2028🙂"), "applied", row={"text": "\\\"'`{}\u2028🙂"}
    ),
    RecordCase("half a surrogate pair", field_of("after.text", "\ud83d"), "quarantined", "surrogate pair"),
    RecordCase(
        "text nested 600 deep", field_of("after.text", nested(600)), "applied", row={"text": nested(600)}
    ),
    RecordCase(
        "a schema that is none",
        schema({"type": "struct", "fields": [{"type": "odd"}]}),
        "quarantined",
        "schema",
    ),
    RecordCase("an empty schema", schema({}), "quarantined", "schema"),
    # Keys
    RecordCase("no key", key(None), "quarantined", "the key is missing"),
    RecordCase("a key of another table", key('{"other": 1}'), "quarantined", "has the key (other)"),
    RecordCase("a key with null", key('{"id": null}'), "quarantined", "the key is missing"),
    RecordCase("a key of text", key('"abc"'), "quarantined", "key"),
    RecordCase("a key of a number", key("5"), "quarantined", "key"),
    RecordCase("a key of another row", key('{"id": 1000}'), "quarantined", "key and row differ"),
    RecordCase("a broken key", key('{"id": '), "quarantined", "the key is not a JSON object"),
    RecordCase("a key beyond its type", key('{"id": 99999999999999}'), "quarantined", "key"),
    # The source block
    RecordCase("no source", field_of("source", None), "quarantined", "source.table is missing"),
    RecordCase("source as text", field_of("source", "text"), "quarantined"),
    RecordCase("MongoDB", source(connector="mongodb"), "quarantined", "MongoDB are not supported"),
    RecordCase("no table", source(table=None), "quarantined", "source.table is missing"),
    RecordCase("an empty table", source(table=""), "quarantined", "source.table is missing"),
    RecordCase("a table of dots", source(table=".."), "other table"),
    RecordCase("a time that overflows", source(ts_ms=HUGE, ts_us=HUGE), "applied"),
    RecordCase("a time in microseconds", source(ts_ms=1_700_000_000_000_000, ts_us=None), "applied"),
    RecordCase("a negative time", source(ts_ms=-HUGE, ts_us=None), "applied"),
    RecordCase("no time", source(ts_ms=None, ts_us=None), "applied"),
    RecordCase("ts_ms of the envelope overflows", field_of("ts_ms", HUGE), "applied"),
    RecordCase("time as text", source(ts_ms="yesterday", ts_us=None), "quarantined"),
    RecordCase("no position at all", source(lsn=None, sequence="[null,null]"), "applied"),
    RecordCase("sequence is not an array", source(sequence="abc"), "quarantined", "source.sequence"),
    RecordCase("lsn as text", source(lsn="abc"), "quarantined"),
    RecordCase("a negative lsn", source(lsn=-5), "quarantined", "lsn"),
    RecordCase("snapshot of another kind", source(snapshot="whatever"), "applied"),
)


# -- whole tables -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TableCase:
    """What a table is sent in one or more batches, and its rows at the end: dicts without metadata columns.

    `error` is a part of why the table is refused; `settings` its entry in the manifest, without the source.
    `counts` are outcomes over all batches that are asked for, `rows` None where there must be no mirror.
    """

    name: str
    batches: Callable[[Shop, Table], Batches]
    rows: Sequence[Row] | None
    counts: Mapping[Outcome, int]
    error: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    columns: Sequence[Column] = (Column("v", "int32", optional=True),)
    key: Sequence[str] = ("id",)
    full: bool = False

    def table(self, number: int) -> Table:
        return replace(table(f"t{number}", *self.columns, key=self.key, full=self.full))


def truncate(shop: Shop, of: Table) -> list[Record]:
    return shop.send(of, of.truncate(shop.next()))


def at_one_position(shop: Shop, of: Table, *rows: Row, keyless: bool = True) -> list[Record]:
    """Rows of one COPY: all at one LSN."""
    here = shop.next()
    messages = [of.create(here, row) for row in rows]
    return shop.send(of, *[replace(m, key=None) if keyless else m for m in messages])


def update_of_key(shop: Shop, of: Table, before: Row, row: Row) -> list[Record]:
    """An update with a whole before image, whose own key stays."""
    return shop.send(of, of.update(shop.next(), row, before))


def resent(records: list[Record]) -> list[Record]:
    """The last records once more, with new offsets, as a connector that was restarted sends them."""
    last = records[-1]["offset"]
    return [*records, *[{**record, "offset": last + n} for n, record in enumerate(records, start=1)]]


@dataclass(frozen=True)
class MapColumn(Column):
    """A column of Kafka Connect's type map, as hstore has it with `hstore.handling.mode=map`."""

    def field(self) -> Row:
        text = {"type": "string", "optional": True}
        return {"type": "map", "optional": True, "keys": text, "values": text, "field": self.name}


CODE = (Column("code", "string"), Column("v", "int32"))
BY_CODE = {"primaryKey": ["code"]}

TABLES: Sequence[TableCase] = (
    TableCase(
        "a column of maps",
        lambda s, t: [s.create(t, id=1, m={"a": "1"}), resent(s.update(t, id=1, m={"a": "2", "b": None}))],
        [{"id": 1, "m": {"a": "2", "b": None}}],
        {"applied": 2, "duplicates": 1},
        columns=(MapColumn("m", "string"),),
    ),
    TableCase(
        "maps in a table without key",
        lambda s, t: [at_one_position(s, t, {"id": 1, "m": {"a": "1"}}, {"id": 1, "m": {"a": "2"}})] * 2,
        [{"id": 1, "m": {"a": "1"}}, {"id": 1, "m": {"a": "2"}}],
        {"applied": 2, "duplicates": 2},
        columns=(MapColumn("m", "string"),),
    ),
    TableCase(
        "a plain table",
        lambda s, t: [s.create(t, id=1, v=1), s.update(t, id=1, v=2), s.create(t, id=2, v=1)],
        [{"id": 1, "v": 2}, {"id": 2, "v": 1}],
        {"applied": 3},
    ),
    TableCase(
        "older events of a key in their batch",
        lambda s, t: [[*s.create(t, id=1, v=1), *s.update(t, id=1, v=2), *s.update(t, id=1, v=3)]],
        [{"id": 1, "v": 3}],
        {"applied": 1, "superseded": 2},
    ),
    TableCase(
        "a tail that is sent again",
        lambda s, t: [resent([*s.create(t, id=1, v=1), *s.update(t, id=1, v=2)])],
        [{"id": 1, "v": 2}],
        {"applied": 1, "superseded": 1, "duplicates": 2},
    ),
    TableCase(
        "a late event",
        lambda s, t: [(later := [s.create(t, id=1, v=1), s.update(t, id=1, v=2)])[1], later[0]],
        [{"id": 1, "v": 2}],
        {"applied": 1, "stale": 1},
    ),
    TableCase(
        "a late event after a delete",
        lambda s, t: [(later := [s.create(t, id=1, v=1), s.delete(t, id=1, v=1)])[1], later[0]],
        [],
        {"applied": 1, "stale": 1, "no_row_change": 1},
    ),
    TableCase(
        "a truncate between rows",
        lambda s, t: [[*s.create(t, id=1, v=1), *truncate(s, t), *s.create(t, id=2, v=2)]],
        [{"id": 2, "v": 2}],
        {"applied": 2, "superseded": 1},
    ),
    TableCase(
        "a truncate that is sent twice",
        lambda s, t: [s.create(t, id=1, v=1), resent(truncate(s, t)), s.create(t, id=2, v=2)],
        [{"id": 2, "v": 2}],
        {"applied": 3, "duplicates": 1},
    ),
    TableCase(
        "an event older than a truncate of before",
        lambda s, t: [
            (parts := [s.create(t, id=1, v=1), truncate(s, t), s.create(t, id=2, v=2)])[2],
            parts[1],
            parts[0],
        ],
        [{"id": 2, "v": 2}],
        {"applied": 2, "stale": 1},
    ),
    TableCase(
        "a truncate alone comes first",
        lambda s, t: [truncate(s, t), s.create(t, id=1, v=1), s.update(t, id=1, v=2)],
        [{"id": 1, "v": 2}],
        {"applied": 2, "refused": 1},
    ),
    TableCase(
        "rows of one COPY in a table without key",
        lambda s, t: [at_one_position(s, t, *[{"id": 1, "v": n} for n in range(5)])],
        [{"id": 1, "v": n} for n in range(5)],
        {"applied": 5},
    ),
    TableCase(
        "rows of one COPY over two batches, and sent again",
        lambda s, t: [
            (rows := at_one_position(s, t, *[{"id": 1, "v": n} for n in range(4)]))[:2],
            rows[1:],
            [{**r, "offset": r["offset"] + 10} for r in rows],
        ],
        [{"id": 1, "v": n} for n in range(4)],
        {"applied": 4, "duplicates": 5},
    ),
    TableCase(
        "a truncate leaves a trace where rows are appended",
        lambda s, t: [s.create(t, id=1, v=1), truncate(s, t)],
        [{"id": 1, "v": 1}, {"id": None, "v": None}],
        {"applied": 2},
        settings={"mode": "append"},
    ),
    TableCase(
        "a declared key that an update changes",
        lambda s, t: [
            s.create(t, id=1, code="a", v=1),
            update_of_key(s, t, {"id": 1, "code": "a", "v": 1}, {"id": 1, "code": "b", "v": 2}),
        ],
        [{"id": 1, "code": "b", "v": 2}],
        {"applied": 2},
        settings=BY_CODE,
        columns=CODE,
        full=True,
    ),
    TableCase(
        "a declared key that an update changes in its batch",
        lambda s, t: [
            [
                *s.create(t, id=1, code="a", v=1),
                *update_of_key(s, t, {"id": 1, "code": "a", "v": 1}, {"id": 1, "code": "b", "v": 2}),
                *s.create(t, id=2, code="a", v=3),
            ]
        ],
        [{"id": 1, "code": "b", "v": 2}, {"id": 2, "code": "a", "v": 3}],
        {"applied": 2, "superseded": 1},
        settings=BY_CODE,
        columns=CODE,
        full=True,
    ),
    TableCase(
        "a delete by a declared key with the whole before image",
        lambda s, t: [
            [*s.create(t, id=1, code="a", v=1), *s.create(t, id=2, code="b", v=1)],
            s.delete(t, id=1, code="a", v=1),
        ],
        [{"id": 2, "code": "b", "v": 1}],
        {"applied": 3, "no_row_change": 1},
        settings=BY_CODE,
        columns=CODE,
        full=True,
    ),
    TableCase(
        "a delete by a declared key with a made-up before image",
        lambda s, t: [
            [*s.create(t, id=1, code="a", v=1), *s.create(t, id=2, code="", v=1)],
            s.delete(t, id=1, code="a", v=1),
        ],
        [{"id": 1, "code": "a", "v": 1}, {"id": 2, "code": "", "v": 1}],
        {"applied": 2, "quarantined": 1, "no_row_change": 1},
        settings=BY_CODE,
        columns=CODE,
    ),
    TableCase(
        "an update of a declared key without before image",
        lambda s, t: [s.create(t, id=1, code="a", v=1), s.update(t, id=1, code="b", v=2)],
        [{"id": 1, "code": "a", "v": 1}],
        {"applied": 1, "quarantined": 1},
        settings=BY_CODE,
        columns=CODE,
    ),
    TableCase(
        "a declared key that is part of the record's key",
        lambda s, t: [s.create(t, id=1, v=1), s.delete(t, id=1, v=1)],
        [],
        {"applied": 2, "no_row_change": 1},
        settings={"primaryKey": ["id"]},
    ),
    TableCase(
        "two tables with one target, the first",
        lambda s, t: [s.create(t, id=1, v=1)],
        [{"id": 1, "v": 1}],
        {"applied": 1},
    ),
    TableCase(
        "two tables with one target, the second",
        lambda s, t: [s.create(t, id=1, v=2)],
        None,
        {"refused": 1},
        error="is the mirror of demo.public.t",
        settings={"target": {"path": "LAKE/demo//PUBLIC/tBEFORE/"}},
    ),
    TableCase(
        "a target that is another table",
        lambda s, t: [s.create(t, id=1, v=1)],
        None,
        {"refused": 1},
        error="is a table that Lakemirror did not make",
        settings={"target": {"path": "FOREIGN"}},
    ),
    TableCase(
        "a target below a file",
        lambda s, t: [s.create(t, id=1, v=1)],
        None,
        {"refused": 1},
        error="could not be written",
        settings={"target": {"path": "FILE/below"}},
    ),
    TableCase(
        "a suspended table",
        lambda s, t: [s.create(t, id=1, v=1)],
        None,
        {"refused": 1},
        settings={"suspend": True},
    ),
    TableCase(
        "the key column is left out",
        lambda s, t: [s.create(t, id=1, v=1)],
        None,
        {"refused": 1},
        error="id",
        settings={"columns": {"exclude": ["id"]}},
    ),
    TableCase(
        "scd1 without a key",
        lambda s, t: [s.keyless(t, id=1, v=1)],
        None,
        {"refused": 1},
        error="primaryKey",
        settings={"mode": "scd1"},
    ),
    TableCase(
        "a key is added later",
        lambda s, t: [s.keyless(t, id=1, v=1), s.create(t, id=1, v=2)],
        [{"id": 1, "v": 1}],
        {"applied": 1, "refused": 1},
        error="key",
    ),
)
