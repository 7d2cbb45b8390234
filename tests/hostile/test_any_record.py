"""Records with any value in any place, by format, in the midst of good ones.

The law is the oracle: whatever a record says, the others of its batch are applied, and each record has one
outcome. None makes Spark throw, so that nothing has to look for it. Many of these records would take minutes
or gigabytes if nothing looked at them first: the processor's time that a batch of them takes is limited, and
no row or reason becomes much longer than the longest record.

Each pipeline reads three batches. The first has good records only, which give the tables their types. The
other two bring the odd records twice, because a schema is learned in one batch and used in the next. Tables:
``good`` has good records only; ``odd`` also those with odd values; what ``strange`` is sent may hold it.
"""

from __future__ import annotations

import base64
import csv as csv_files
import io
import json
import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fastavro
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lakemirror.driver.batch import BatchApplier
from lakemirror.driver.parse import isolate
from lakemirror.driver.parse.values import semantics
from lakemirror.driver.read.base import Batch
from tests.driver.parse.values.test_schema_forms import AVRO, CONNECT, of_avro
from tests.support.mirroring import Mirroring, at
from tests.support.records import Record, Row
from tests.support.registry import serving

MOST = 200
"""Seconds of the processor's time that a batch may take beyond those of one of good records, at most.

One record that nothing looks at takes as many. What is left is the time of plans with many odd columns.
"""
GOOD = 1_000_000
"""Rows from here on are good."""
THERE = "@there@"
"""Stands in a record for the value of a case."""


def nested(begin: str, inner: str, end: str, times: int) -> str:
    return begin * times + inner + end * times


TEXTS = (
    *("1e-100000000", "1E+100000000", "-1e-99999999", "1e99999", "1e-9999", "0e-99999999", "1" * 5000),
    *("0." + "0" * 3000 + "1", "." * 50, "-", "+", "e", "1e", "0x1F", "1d", "1_0", " 1 ", "１２", "--1"),
    *("NaN", "nan", "Infinity", "-Infinity", "INF", "POSITIVE_INFINITY", "infinity", "null", "true", ""),
    *("2024-01-01" + " " * 30_000 + "x", "2024-01-01T00:00:00" + "0" * 30_000, "2024-02-30", "0000-00-00"),
    *("9999-12-31T23:59:59.9999999999Z", "-292278994-01-01", "+999999999-01-01", "10000-01-01", "24:00:00"),
    *("2024-01-01T00:00:00+99:99", "2024-01-01T00:00:00[" + "x" * 1000 + "]", "-99999999999999999999-01-01"),
    *("-838:59:59", "P1Y2M", '{"scale":3000000,"value":"AQ=="}', "\0", "\u202e😀", "AQ==", "////"),
    *("A" * 50_000, "{", "[]", nested("[", "", "]", 90), "'; DROP TABLE x; --", "${env:HOME}", "$.x", "a`b"),
)
LITERALS = (
    *("1e-100000000", "1E400", "-1e-400", "1e999999999999", "-0", "-0.0", "1.5", "0.1e1", "1" * 900),
    *("1" * 1001, "1." + "0" * 500, "9223372036854775807", "9223372036854775808", "-9223372036854775808"),
    *("2147483648", "-2147483648", "32768", "128", "200", "4294967296", "1e10", "0123", "1.", "NaN", "-"),
    *("true", "null", "[]", "{}", '[""]', "[null]", "[[1,2],[3]]", '[{"a":1},5]', '{"a":1,"a":2}'),
    *('{"0":1,"-0":2}', '{"0.0":1,"-0.0":2}', '{"NaN":1,"nan":2}', '{"1":1,"1.0":2,"01":3}'),
    *('{"a":1,"A":2}', '{"":1}', '{"scale":3000000,"value":"AQ=="}', '{"scale":-3000000,"value":"AQ=="}'),
    *('{"scale":-2147483648,"value":"AQ=="}', '{"scale":2147483648,"value":"AQ=="}', '{"scale":5}'),
    *('{"scale":-9223372036854775808,"value":"AQ=="}', '{"scale":"x","value":7}', '{"value":"AQ=="}'),
    *('{"scale":16383,"value":"AA=="}', '{"scale":2,"value":"' + "/" * 8000 + '"}'),
    *('{"scale":2,"value":"A"}', '{"scale":2,"value":"=A=="}', '{"scale":2,"value":"A==="}'),
    *(nested("[", "1", "]", 30), nested("[", "1", "]", 80), nested('{"a":', "1", "}", 30)),
    *(nested('{"a":[', "1", "]}", 40), nested('{"a":', "1", "}", 90), '"\\ud83d"', '{"\\u0000":1}'),
)
VALUES = (*LITERALS, *map(json.dumps, TEXTS))


@dataclass
class Case:
    """A pipeline: its settings, what its three batches bring, and the rows that have to be there by table."""

    settings: dict[str, Any]
    batches: list[list[Record]] = field(default_factory=lambda: [[], [], []])
    good: dict[str, set[int]] = field(default_factory=lambda: {"good": set(), "odd": set()})
    header: str = ""
    offset: int = 0

    def send(self, batch: int, topic: str, key: Any, value: Any, headers: Sequence[Any] = ()) -> None:
        place = {"topic": topic, "partition": 0, "offset": self.offset, "timestamp": 1_700_000_000_000}
        self.offset += 1
        self.batches[batch].append({**place, "key": key, "value": value, "headers": list(headers)})


def filled(document: Any, value: str) -> str:
    """A document with a value of JSON in its place."""
    return json.dumps(document).replace(f'"{THERE}"', value)


def chosen(seed: str, pairs: Sequence[Any], number: int) -> list[Any]:
    """Some of the pairs: always the same ones."""
    return random.Random(seed).sample(list(pairs), min(number, len(pairs)))


def deliver(case: Case, send: Callable[[int, str, int], None], odd: Callable[[int], None]) -> Case:
    """Put good records at the beginning and the end of each batch, and odd ones into all but the first."""
    for batch in range(3):
        for part in range(2):
            for table, ids in case.good.items():
                ids.add(GOOD + 10 * batch + part)
                send(batch, table, GOOD + 10 * batch + part)
            if batch and not part:
                odd(batch)
    return case


# -- the formats --------------------------------------------------------------------------------------------

_TYPES = [
    *({"type": kind} for kind in ("int8", "int16", "int32", "int64", "float", "double", "boolean")),
    *({"type": kind} for kind in ("string", "bytes")),
    *({"type": kind, "name": name} for kind, name in semantics._SEMANTIC if kind != "struct"),
    {"type": "array", "items": {"type": "int64", "name": "io.debezium.time.MicroTimestamp"}},
    {"type": "array", "items": {"type": "array", "items": {"type": "string"}}},
    {"type": "map", "keys": {"type": "string"}, "values": {"type": "int32"}},
    {"type": "map", "keys": {"type": "int32"}, "values": {"type": "string"}},
]
_PAIR = [{"type": "int32", "field": "scale"}, {"type": "bytes", "field": "value"}]
_TYPES.append({"type": "struct", "name": "io.debezium.data.VariableScaleDecimal", "fields": _PAIR})
_TYPES = [
    {**each, "optional": True, "field": f"c{number}", "parameters": {"scale": "2", "length": "9"}}
    for number, each in enumerate(_TYPES)
]
_ID = {"type": "int64", "optional": False, "field": "id"}


def debezium(number: int) -> Case:
    """With the schema embedded: each semantic type. Without one: each field of the envelope."""
    case = Case({"envelope": {"format": "debezium"}})
    image = {"type": "struct", "fields": [_ID, *_TYPES], "optional": True}
    schema = {"type": "struct", "fields": [{**image, "field": "before"}, {**image, "field": "after"}]}
    key_schema = {"type": "struct", "fields": [_ID], "optional": False}

    def change(table: str, id: int, /, **row: Any) -> Row:
        source = {"connector": "postgresql", "name": "shop", "db": "shop", "schema": "s", "table": table}
        place = {"lsn": 1000 + case.offset, "ts_ms": 1_700_000_000_000 + case.offset}
        return {"before": None, "after": {"id": id, **row}, "source": {**source, **place}, "op": "c"}

    def send(
        batch: int, table: str, id: int, value: str = "null", /, schemas: Any = schema, **row: Any
    ) -> None:
        payload = change(table, id, **row)
        key = {"schema": key_schema, "payload": {"id": id}}
        document = {"schema": schemas, "payload": payload}
        case.send(batch, f"shop.s.{table}", json.dumps(key), filled(document, value))

    def plain(batch: int, id: int, change: Row, value: str, key: str | None = None) -> None:
        text = json.dumps({"id": id}) if key is None else key
        case.send(batch, "shop.s.strange", text, filled(change, value))

    pairs = [(column["field"], value) for column in _TYPES for value in VALUES]

    def odd(batch: int) -> None:
        for id, (column, value) in enumerate(chosen("debezium", pairs, number)):
            send(batch, "odd", id, value, **{column: THERE})
        for id, (document, _) in enumerate(CONNECT.values()):
            inside = {"type": "struct", "fields": [{**schema["fields"][0]}, document]}
            send(batch, "strange", id, schemas=document)
            send(batch, "stranger", id, schemas=inside)
        places = ("before", "after", "op", "source", "name", "connector", "snapshot", "lsn", "ts_ms")
        for id, (place, value) in enumerate(
            chosen("envelope", [(place, value) for place in places for value in VALUES], number // 4)
        ):
            whole = change("strange", id)
            (whole if place in whole else whole["source"])[place] = THERE
            plain(batch, id, whole, value)
        for id, value in enumerate(('{"v": 1, "v": 2}', "{}", '{"a`b": 1}')):
            plain(batch, id, {**change("strange", id), "op": "d", "after": None, "before": THERE}, value)
        for id, value in enumerate(chosen("key", VALUES, number // 8)):
            plain(batch, id, change("strange", id), "null", value)
            plain(batch, id, change("strange", id), "null", filled({"id": THERE}, value))

    return deliver(case, send, odd)


_DECLARED = {
    "tiny": "TINYINT",
    "whole": "BIGINT",
    "price": "DECIMAL(10,2)",
    "large": "DECIMAL(38,30)",
    "real": "FLOAT",
    "ratio": "DOUBLE",
    "yes": "BOOLEAN",
    "octets": "BINARY",
    "day": "DATE",
    "moment": "TIMESTAMP",
    "local": "TIMESTAMP_NTZ",
    "words": "STRING",
    "any": "VARIANT",
    "prices": "ARRAY<DECIMAL(10,2)>",
    "lists": "ARRAY<ARRAY<DOUBLE>>",
    "counts": "MAP<STRING, INT>",
    "costs": "MAP<DECIMAL(5,1), TIMESTAMP>",
    "shares": "MAP<DOUBLE, INT>",
    "parts": "STRUCT<a: DECIMAL(10,2), b: ARRAY<DATE>>",
}
_TABLES = [{"source": f"s.{table}", "columns": {"types": _DECLARED}} for table in ("good", "odd")]


def custom(number: int, **ordering: Any) -> Case:
    """Without a schema: each declared type, each part that the manifest names, and columns of any shape."""
    fields = {"op": "op", "after": "row", "before": "was", "key": "row.id", "timestamp": "at", "table": "of"}
    if ordering:
        del fields["timestamp"]
    case = Case({"envelope": {"format": "custom", "fields": fields}, "tables": _TABLES, **ordering})
    case.settings["target"] = {"path": "LAKE/shop/s/{table}"}

    def change(table: str, id: int, /, **row: Any) -> Row:
        moment = 1_700_000_000_000 + case.offset
        return {"op": "c", "row": {"id": id, "n": moment, **row}, "at": moment, "of": f"s.{table}"}

    def send(batch: int, table: str, id: int, value: str = "null", /, **row: Any) -> None:
        case.send(batch, "topic", None, filled(change(table, id, **row), value))

    pairs = [(column, value) for column in _DECLARED for value in VALUES]

    def odd(batch: int) -> None:
        for id, (column, value) in enumerate(chosen("custom", pairs, number)):
            send(batch, "odd", id, value, **{column: THERE})
        for id, value in enumerate(VALUES):
            send(batch, "strange", id, value, **{f"c{id % 7}": THERE})
        places = ("op", "row", "was", "at", "n", "id")  # each name in "of" would be a table of its own
        for id, (place, value) in enumerate(
            chosen("parts", [(place, value) for place in places for value in VALUES], number // 2)
        ):
            whole = change("strange", id)
            (whole["row"] if place in ("n", "id") else whole)[place] = THERE
            case.send(batch, "topic", None, filled(whole, value))

    return deliver(case, send, odd)


def columns(number: int) -> Case:
    """Ordered by a column."""
    return custom(number // 4, ordering={"by": "columns", "columns": ["row.n"]})


def flat(number: int) -> Case:
    case = Case({"envelope": {"format": "debezium-flat"}})

    def row(table: str, id: int, /, **more: Any) -> Row:
        added = {"__op": "c", "__db": "shop", "__schema": "s", "__table": table, "__lsn": 1000 + case.offset}
        return {"id": id, **added, "__ts_ms": 1_700_000_000_000, **more}

    def send(batch: int, table: str, id: int, value: str = "null", /, **more: Any) -> None:
        document = filled(row(table, id, **more), value)
        case.send(batch, f"shop.s.{table}", json.dumps({"id": id}), document)

    names = ("__op", "__deleted", "__ts_ms", "__source_ts_us", "__connector", "__sequence", "v", "w")
    pairs = [(name, value) for name in (*names, "__source_snapshot") for value in VALUES]

    def odd(batch: int) -> None:
        for id, (name, value) in enumerate(chosen("flat", pairs, number)):
            send(batch, "strange", id, value, **{name: THERE})
        for id, value in enumerate(chosen("headers", VALUES, number // 4)):
            headers = [["__lsn", value], ["__op", value], ["__debezium.oldkey", value]]
            case.send(batch, "shop.s.strange", json.dumps({"id": id}), None, headers)
            case.send(batch, "shop.s.strange", value, filled(row("strange", id), "null"))

    return deliver(case, send, odd)


def maxwell(number: int) -> Case:
    case = Case({"envelope": {"format": "maxwell"}, "target": {"path": "LAKE/shop/s/{table}"}})

    def change(table: str, id: int, /, **more: Any) -> Row:
        place = {"position": f"binlog.000001:{1000 + case.offset}", "xoffset": 0, "xid": case.offset}
        row = {"id": id, "v": "a"}
        head = {"database": "shop", "table": table, "type": "insert", "ts": 1_700_000_000 + case.offset}
        return {**head, **place, "primary_key_columns": ["id"], "data": row, **more}

    def send(batch: int, table: str, id: int, value: str = "null", /, **more: Any) -> None:
        key = {"database": "shop", "table": table, "pk.id": id}
        case.send(batch, "maxwell", json.dumps(key), filled(change(table, id, **more), value))

    names = ("type", "ts", "xoffset", "commit", "position", "gtid", "server_id", "data", "old")
    names += ("primary_key_columns", "reason")  # "database" and "table" would make a table of each value
    pairs = [(name, value) for name in names for value in VALUES]

    def odd(batch: int) -> None:
        for id, (name, value) in enumerate(chosen("maxwell", pairs, number)):
            send(batch, "strange", id, value, **{name: THERE})
        for id, value in enumerate(("5", "null", "{}", '""', '["a"]', '"' + "a" * 5000 + '"')):
            send(batch, "strange", id, value, table=THERE)
            send(batch, "strange", id, value, database=THERE)
        for id, value in enumerate(VALUES):
            send(batch, "strange", id, value, data={"id": id, "v": THERE})
            send(batch, "strange", id, value, type="update", old={"v": THERE})
            send(batch, "strange", id, value, type="update", data={"id": id, "w": THERE}, old={"u": 2})
        update = json.dumps(change("strange", 1, type="update", old={"u": 2}))
        case.send(batch, "maxwell", None, update.replace('"v": "a"', '"v": 1, "v": 2'))

    return deliver(case, send, odd)


_ROW = {
    "type": "record",
    "name": "Value",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "v", "type": ["null", "string"], "default": None},
        {"name": "octets", "type": ["null", "bytes"], "default": None},
        {"name": "items", "type": ["null", {"type": "array", "items": "long"}], "default": None},
        {"name": "pairs", "type": ["null", {"type": "map", "values": "double"}], "default": None},
    ],
}
_SOURCE = {
    "type": "record",
    "name": "Source",
    "fields": [
        *({"name": name, "type": "string"} for name in ("connector", "name", "db", "schema", "table")),
        *({"name": name, "type": "long"} for name in ("ts_ms", "lsn")),
    ],
}


def envelope(row: Any) -> dict[str, Any]:
    """The schema of an envelope whose rows have this schema."""
    parts = {"after": row, "source": _SOURCE, "op": "string"}
    fields = [{"name": name, "type": kind} for name, kind in parts.items()]
    return {"type": "record", "name": "Envelope", "fields": fields}


def encoded(schema: Any, identity: int, value: Any) -> bytes:
    body = io.BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(schema), value)
    return b"\x00" + identity.to_bytes(4, "big") + body.getvalue()


def avro(number: int) -> Case:
    """Bytes that are cut, flipped, or claim to be gigabytes, and schemas that nobody should register."""
    case = Case({"envelope": {"format": "debezium", "encoding": "avro"}, "ordering": {"by": "offset"}})
    whole, key = envelope(_ROW), {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "long"}]}
    twins = {"type": "record", "name": "Value", "fields": []}
    twins["fields"] = [{"name": name, "type": "long"} for name in ("id", "ID")]
    schemas = {1: json.dumps(key), 2: json.dumps(whole), 3: json.dumps(envelope(twins))}
    for id, (text, _) in enumerate(AVRO.values(), start=10):
        schemas[id] = text
        try:
            document = json.loads(text)
        except (ValueError, RecursionError):
            continue
        schemas[id + 500] = json.dumps(envelope(document))
    case.settings["schemas"] = schemas

    def change(table: str, id: int, /, **row: Any) -> Row:
        source = {"connector": "postgresql", "name": "shop", "db": "shop", "schema": "s", "table": table}
        place = {"lsn": 1000 + case.offset, "ts_ms": 1_700_000_000_000 + case.offset}
        return {"after": {"id": id, **row}, "source": {**source, **place}, "op": "c"}

    def put(batch: int, table: str, id: int, value: bytes) -> None:
        texts = [base64.b64encode(each).decode() for each in (encoded(key, 1, {"id": id}), value)]
        case.send(batch, f"shop.s.{table}", *texts)

    def send(batch: int, table: str, id: int) -> None:
        row = {"v": "a", "octets": b"b", "items": [1, 2], "pairs": {"a": 0.5}}
        put(batch, table, id, encoded(whole, 2, change(table, id, **row)))

    drawn = random.Random("avro")
    claims = [encoded("long", 0, size)[5:] for size in (2**31 - 10, 2**31, 2**40, -(2**31), 2**63 - 1, 10**7)]

    def odd(batch: int) -> None:
        row = {"v": "text", "octets": b"octets", "items": [1, 2, 3], "pairs": {"a": 1}}
        value = encoded(whole, 2, change("odd", 7, **row))
        for id in range(number):
            place = drawn.randrange(5, len(value))
            claim = claims[id % len(claims)]
            changed = (
                value[:place],
                value[:place] + bytes([value[place] ^ (1 << drawn.randrange(8))]) + value[place + 1 :],
                value[:place] + claim,
                value[:place] + claim + value[place + 1 :],
            )[id % 4]
            put(batch, "strange", id, changed)
        for claim in claims:
            for branch in range(4):  # of the nullable fields after id
                put(batch, "odd", 5, value[:5] + b"\x0e" + b"\x00" * branch + b"\x02" + claim + b"\x01" * 4)
        for id in schemas:
            put(batch, "strange", id, b"\x00" + id.to_bytes(4, "big") + value[5:])
        put(batch, "twins", 1, encoded(envelope(twins), 3, change("twins", 1, ID=2)))

    return deliver(case, send, odd)


def rows(number: int) -> Case:
    """Rows in files of JSON, which are records of a custom envelope."""
    case = custom(number)
    case.settings["source"] = {"format": "json", "table": "s.strange"}
    return case


def csv(number: int) -> Case:
    """Rows in files of CSV: any text in a field of each type, and lines with more or fewer fields."""
    names = ["id", "of", *_DECLARED]
    case = Case({"envelope": {"format": "custom", "fields": {"key": "id", "table": "of"}}, "tables": _TABLES})
    case.settings["target"] = {"path": "LAKE/shop/s/{table}"}
    case.settings["source"] = {"format": "csv"}
    case.header = ",".join(names) + "\n"

    def line(table: str, id: int, /, *more: str, **values: str) -> str:
        text = io.StringIO()
        row = {"id": id, "of": f"s.{table}", **values}
        csv_files.writer(text).writerow([*(row.get(name, "") for name in names), *more])
        return text.getvalue().removesuffix("\r\n")  # without it, the module quotes no line breaks

    def send(batch: int, table: str, id: int) -> None:
        case.send(batch, "", None, line(table, id))

    texts = [*TEXTS, *LITERALS, '"', 'a"b', "a\nb", "a\r\nb", "\ufeff", ","]
    pairs = [(name, text) for name in _DECLARED for text in texts]

    def odd(batch: int) -> None:
        for id, (name, text) in enumerate(chosen("csv", pairs, number)):
            case.send(batch, "", None, line("odd", id, **{name: text}))
        for id, text in enumerate(chosen("key", texts, number // 4)):
            case.send(batch, "", None, line("strange", id, text))
            case.send(batch, "", None, line("strange", id, id=text))
            case.send(batch, "", None, f"{id},s.odd" + ",x" * (id % 9))

    return deliver(case, send, odd)


FORMATS: dict[str, Callable[[int], Case]] = {
    each.__name__: each for each in (debezium, custom, columns, flat, maxwell, avro, rows, csv)
}


@pytest.fixture
def mirroring(tmp_path: Path) -> Iterator[Callable[[Case], Mirroring]]:
    """Makes a pipeline and delivers its batches; records of Avro have a registry."""
    with serving() as registry:

        def make(case: Case) -> Mirroring:
            settings = {name: value for name, value in case.settings.items() if name != "schemas"}
            for identity, text in case.settings.get("schemas", {}).items():
                registry.schemas[identity] = {"schema": text}
                settings["envelope"] = registry.envelope
            path = settings.get("target", {}).get("path")
            if path:
                settings["target"] = {"path": path.replace("LAKE", str(tmp_path / "lake"))}
            source = settings.pop("source", None)
            if source is None:
                return Mirroring(tmp_path, settings).deliver(case.batches)
            files = {"path": str(tmp_path / "input"), "maxFilesPerBatch": 1, **source}
            made = Mirroring(tmp_path, {**settings, "source": {"files": files}})
            made.input.mkdir()
            for batch, records in enumerate(case.batches):
                lines = [record["value"] for record in records]
                text = case.header + "\n".join(lines) + "\n"
                (made.input / f"{batch}.{source['format']}").write_text(text, encoding="utf-8", newline="")
            return made

        yield make


@dataclass
class Watched:
    """What the batches of the source took of the processor, in seconds, and what made Spark throw."""

    spent: list[float] = field(default_factory=list)
    thrown: list[str] = field(default_factory=list)


@pytest.fixture
def watched(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Watched:
    found = Watched()
    jvm: Any = spark.sparkContext._jvm
    stat = Path(f"/proc/{jvm.java.lang.ProcessHandle.current().pid()}/stat")
    apply, poisoned = BatchApplier.apply, isolate.poisoned

    def busy() -> float:
        mine = stat.read_text().rpartition(")")[2].split()
        return (int(mine[11]) + int(mine[12])) / os.sysconf("SC_CLK_TCK")

    def timed(self: BatchApplier, raw: DataFrame, batch: Batch) -> Any:
        before = busy()
        try:
            return apply(self, raw, batch)
        finally:
            if not batch.query_id.startswith("replay-"):
                found.spent.append(busy() - before)

    def told(frame: DataFrame, probe: Any, error: Exception, **options: Any) -> isolate.Poison:
        poison = poisoned(frame, probe, error, **options)
        found.thrown += poison.records.values() or [str(error)[:1000]]
        return poison

    monkeypatch.setattr(BatchApplier, "apply", timed)
    monkeypatch.setattr(isolate, "poisoned", told)
    return found


def longest(spark: SparkSession, made: Mirroring) -> int:
    """The characters of the longest row or reason of all that a pipeline has written."""
    tables = [str(log.parent) for log in made.folder.glob("lake/*/*/*/_delta_log")]
    lengths = [
        at(spark, table).agg(F.max(F.length(F.to_json(F.struct("*"))))).collect()[0][0] for table in tables
    ]
    aside = spark.read.format("delta").load(f"{made.checkpoint}/quarantine")
    return max(*[length or 0 for length in lengths], aside.agg(F.max(F.length("reason"))).collect()[0][0])


@pytest.mark.guarantee("No record makes a batch fail")
@pytest.mark.guarantee("A record takes limited time and memory, whatever it says")
@pytest.mark.parametrize(
    ("form", "number"),
    [
        pytest.param("maxwell", 60, marks=pytest.mark.long),
        *(pytest.param(form, 60, marks=pytest.mark.thorough) for form in FORMATS if form != "maxwell"),
    ],
)
def test_an_odd_record_harms_no_other(
    form: str, number: int, spark: SparkSession, mirroring: Callable[[Case], Mirroring], watched: Watched
) -> None:
    case = FORMATS[form](number)
    made = mirroring(case)
    summary = made.run(spark)
    for table, ids in case.good.items():
        found = at(spark, made.path("shop", "s", table)).where(f"id >= {GOOD}").select("id").collect()
        assert {int(row["id"]) for row in found} == ids, table
    records = spark.read.format("delta").load(f"{made.checkpoint}/audit").where("source IS NULL")
    sent = sum(map(len, case.batches))
    assert records.agg({"records": "sum"}).collect()[0][0] == sent
    assert 0 < summary.counts.quarantined < sent
    assert watched.thrown == []
    assert max(watched.spent[1:]) <= watched.spent[0] + MOST
    sizes = [len(record["value"] or "") for batch in case.batches for record in batch]
    assert longest(spark, made) <= 2 * max(sizes)


def test_what_is_sent() -> None:
    """The cases are what they are called."""
    for form, make in FORMATS.items():
        case = make(20)
        assert all(len(ids) == 6 for ids in case.good.values()), form
        assert len(case.batches[1]) > 20, form
    assert filled({"a": THERE}, "1e5") == '{"a": 1e5}'
    assert of_avro("x")
