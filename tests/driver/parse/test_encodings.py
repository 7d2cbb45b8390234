"""Records in Avro: what is wrong with one is said of that one, and a registry that is away is waited for."""

from __future__ import annotations

import base64
import io
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import pytest
from pyspark.sql import SparkSession

from lakemirror.driver.checkpoint.storage import LocalStorage
from lakemirror.driver.parse import encodings
from lakemirror.driver.read.registry import IDS, Reference, Registered
from lakemirror.driver.runtime import retry
from lakemirror.driver.runtime.replay_requests import ReplayRequest, file_request
from lakemirror.driver.runtime.replayer import replay
from lakemirror.driver.runtime.runner import run
from tests.driver.parse.values.test_schema_forms import AVRO
from tests.support.mirroring import Mirroring, at
from tests.support.records import Record
from tests.support.registry import Registry, serving

pytestmark = pytest.mark.guarantee(
    "Avro is read with the schema that each record was written with, wherever the record names it; the "
    "driver waits for an unavailable registry"
)

ROW = {
    "type": "record",
    "name": "Value",
    "fields": [{"name": "id", "type": "long"}, {"name": "v", "type": ["null", "string"], "default": None}],
}
SOURCE = {
    "type": "record",
    "name": "Source",
    "fields": [
        *({"name": name, "type": "string"} for name in ("connector", "name", "db", "schema", "table")),
        *({"name": name, "type": "long"} for name in ("ts_ms", "lsn")),
    ],
}
ENVELOPE = {
    "type": "record",
    "name": "Envelope",
    "fields": [
        {"name": "before", "type": ["null", ROW], "default": None},
        {"name": "after", "type": ["null", "Value"], "default": None},
        {"name": "source", "type": SOURCE},
        {"name": "op", "type": "string"},
        {"name": "ts_ms", "type": "long"},
    ],
}
KEY = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "long"}]}


@pytest.fixture
def registry() -> Iterator[Registry]:
    with serving() as registry:
        registry.schemas = {1: {"schema": json.dumps(KEY)}, 2: {"schema": json.dumps(ENVELOPE)}}
        yield registry


def encoded(schema: dict[str, Any], identity: int, value: Any) -> bytes:
    body = io.BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(schema), value)
    return b"\x00" + identity.to_bytes(4, "big") + body.getvalue()


def record(number: int, value: bytes | None = None, *, of: int = 2, v: str | None = "a") -> Record:
    """A create of row ``number``, or a record with another value."""
    source = {"connector": "postgresql", "name": "shop", "db": "shop", "schema": "public", "table": "t"}
    change = {
        "after": {"id": number, "v": v},
        "source": {**source, "ts_ms": 1000 + number, "lsn": 100 + number},
        "op": "c",
        "ts_ms": 2000,
    }
    whole = encoded(ENVELOPE, of, change) if value is None else value
    return {
        "topic": "shop.public.t",
        "partition": 0,
        "offset": number,
        "timestamp": 1_700_000_000_000 + number,
        "key": base64.b64encode(encoded(KEY, 1, {"id": number})).decode(),
        "value": base64.b64encode(whole).decode(),
        "headers": [],
    }


def rows(spark: SparkSession, mirroring: Mirroring) -> list[tuple[int, str | None]]:
    return sorted((row["id"], row["v"]) for row in at(spark, mirroring.path("shop", "public", "t")).collect())


def reasons(spark: SparkSession, mirroring: Mirroring) -> dict[int, str]:
    stored = spark.read.format("delta").load(f"{mirroring.checkpoint}/quarantine")
    return {row["offset"]: row["reason"] for row in stored.where("state = 'open'").collect()}


@pytest.mark.thorough
def test_what_is_wrong_with_a_record_is_said_of_it_alone(
    spark: SparkSession, tmp_path: Path, registry: Registry
) -> None:
    registry.schemas[3] = {"schema": "syntax", "schemaType": "PROTOBUF"}
    registry.schemas[4] = {"schema": '{"type": "record"}'}
    whole = base64.b64decode(record(9)["value"])
    bad = {
        1: b'{"op": "c"}',
        2: b"\x00\x00",
        3: whole[:-6],
        4: b"\x00\x00\x00\x00\x63" + whole[5:],
        5: b"\x00\x00\x00\x00\x03" + whole[5:],
        6: b"\x00\x00\x00\x00\x04" + whole[5:],
        8: b"\x00\x00\x00\x00\x00\x00\x00\x00\x02" + whole[5:],
        9: b"\x00\x00\x00\x00\x05" + whole[5:],
    }
    registry.odd["/schemas/ids/5"] = 500, {"error_code": 50001}
    records = [record(0), *[record(number, value) for number, value in bad.items()], record(7, v=None)]
    mirroring = Mirroring(tmp_path, {"envelope": registry.envelope}).deliver([records])
    summary = mirroring.run(spark)
    assert rows(spark, mirroring) == [(0, "a"), (7, None)]
    assert (summary.counts.applied, summary.counts.quarantined) == (2, 8)
    head = (
        "the value names no schema: it does not begin with the byte 0 and a schema's id, as Confluent's wire "
        "format does, and no header has one"
    )
    assert reasons(spark, mirroring) == {
        1: head,
        2: head,
        3: "the value is not Avro of schema 2",
        4: "the value: schema 99 is not in the registry: register it there, and replay the record",
        5: "the value: schema 3 of the registry is of kind PROTOBUF, and not Avro: have the connector write "
        "with an Avro or a JSON converter",
        6: "the value: schema 4 of the registry is not a schema of Avro",
        8: "the value: schema globalId 2 cannot be asked for: it is named as Apicurio's registry has it, and "
        "the address in spec.envelope.schemaRegistry.url is not one of that (/apis/registry/v2 or "
        "/apis/ccompat/v7)",
        9: "the value: schema 5 cannot be fetched, while the registry answers otherwise: "
        f"{registry.url}/schemas/ids/5 answers 500 Internal Server Error and no schema: check "
        "spec.envelope.schemaRegistry.url (for Apicurio it ends in /apis/ccompat/v7 or /apis/registry/v2)",
    }


def test_a_batch_asks_for_a_bounded_number_of_unknown_schemas() -> None:
    """Each record may name another one. None of them keeps others from being asked for."""
    asked: list[Reference] = []

    def ask(reference: Reference) -> Registered | None:
        asked.append(reference)
        return Registered(json.dumps(ENVELOPE)) if reference.name == "1499" else None

    encoding = encodings.AvroEncoding(ask)
    named = {f"value {IDS}/{number.to_bytes(4, 'big').hex()}" for number in range(1500)}
    for batch in range(1, 200):
        encoding.ask_again(at_once=False)
        encoding.learn(named)
        assert len(asked) <= batch * encodings._MOST_ASKED
        assert len(encoding._missing) <= 2 * encodings._MOST_ASKED
        if encoding.documents.values:
            break
    assert encoding.documents.values


@pytest.mark.thorough
@pytest.mark.guarantee(
    "A schema, embedded or registered, is checked whole before anything uses it, and is read or refused"
)
def test_a_schema_harms_only_the_records_that_use_it(
    spark: SparkSession, tmp_path: Path, registry: Registry
) -> None:
    """In two batches: those that Avro or the driver refuses, and one whose names differ in case only."""
    twins = {**ROW, "fields": [{"name": name, "type": "long"} for name in ("id", "ID")]}
    whole = json.loads(json.dumps(ENVELOPE))
    whole["fields"][0]["type"][1] = twins
    registry.schemas[3] = {"schema": json.dumps(whole)}
    source = {"connector": "postgresql", "name": "shop", "db": "shop", "schema": "public", "table": "twins"}
    event = {"source": {**source, "ts_ms": 1000, "lsn": 100}, "op": "c", "ts_ms": 2000}
    value = encoded(whole, 3, {**event, "after": {"id": 1, "ID": 2}})
    odd = [{**record(50, value), "topic": "shop.public.twins"}]
    body = base64.b64decode(record(9)["value"])[5:]
    for number, (text, _) in enumerate(AVRO.values(), start=100):
        registry.schemas[number] = {"schema": text}
        odd.append(record(number, b"\x00" + number.to_bytes(4, "big") + body))
    batches = [[record(0), *odd, record(1)], [record(1000), *odd, record(1001)]]
    mirroring = Mirroring(tmp_path, {"envelope": registry.envelope}).deliver(batches)
    summary = mirroring.run(spark)
    assert rows(spark, mirroring) == [(number, "a") for number in (0, 1, 1000, 1001)]
    assert "columns 'id' and 'ID' differ in case only" in (summary.tables["shop.public.twins"].error or "")
    told = reasons(spark, mirroring)
    for number in range(100, 100 + len(AVRO)):
        assert told[number].startswith(f"the value: schema {number} "), told[number]


def test_schemas_that_are_there_count_less_than_names_of_nothing() -> None:
    """A pipeline of many tables learns all of them in its first batch."""
    encoding = encodings.AvroEncoding(lambda _: Registered(json.dumps(ENVELOPE)))
    named = [f"value {IDS}/{number.to_bytes(4, 'big').hex()}" for number in range(3000)]
    encoding.ask_again(at_once=False)
    encoding.learn(named[:900])
    assert len(encoding.documents.values) == 900
    encoding.ask_again(at_once=False)
    encoding.learn(named)
    learned = len(encoding._schemas["value"])
    assert 900 < learned < 3000
    while learned <= encodings._MOST_IN_PLAN:
        encoding.ask_again(at_once=False)
        encoding.learn(named)
        learned = len(encoding._schemas["value"])
    encoding.ask_again(at_once=False)
    assert encoding._schemas["value"] == {}
    encoding.learn(named[:5])
    assert len(encoding._schemas["value"]) == 5
    assert len(encoding.documents.values) >= learned


GUID = "89791762-2336-4186-9674-299b90a802e2"


def headed(number: int, **headers: bytes) -> Record:
    """A create whose key and value name their schemas in headers alone."""
    plain = record(number)
    bare = {name: base64.b64encode(base64.b64decode(plain[name])[5:]).decode() for name in ("key", "value")}
    listed = [
        [name.replace("_dot_", "."), base64.b64encode(value).decode()] for name, value in headers.items()
    ]
    return {**plain, **bare, "headers": [["__debezium.context.task", "0"], *listed]}


def prefixed(number: int, key: bytes, value: bytes) -> Record:
    """A create whose key and value begin with other bytes than the byte 0 and a number in four."""
    plain = record(number)
    bodies = {name: base64.b64decode(plain[name])[5:] for name in ("key", "value")}
    heads = {"key": key, "value": value}
    return {
        **plain,
        **{name: base64.b64encode(heads[name] + body).decode() for name, body in bodies.items()},
    }


@pytest.mark.thorough
def test_ids_in_headers_and_in_other_forms(spark: SparkSession, tmp_path: Path, registry: Registry) -> None:
    """All in one batch. Apicurio's two kinds of numbers do not mean the same schemas."""
    key, envelope = (registry.schemas[number]["schema"] for number in (1, 2))
    guid = bytes.fromhex(GUID.replace("-", ""))
    registry.guids[GUID] = {"schema": envelope}
    registry.own = {
        f"ids/{kind}/{number}": text
        for kind, numbers in (("globalIds", (2, 1)), ("contentIds", (1, 2)))
        for number, text in zip(numbers, (key, envelope), strict=True)
    }
    eight = {number: number.to_bytes(8, "big") for number in (1, 2)}
    four = {number: b"\x00" + number.to_bytes(4, "big") for number in (1, 2)}
    begins_with_an_id = base64.b64encode(four[2] + b"and more").decode()
    as_json = headed(8, __key_schema_id=four[1], apicurio_dot_value_dot_globalId=eight[1])
    as_json["value"] = base64.b64encode(b'{"op": "c"}').decode()
    as_json["headers"].append(["apicurio.value.encoding", "JSON"])
    records = [
        headed(0, __key_schema_id=four[1], __value_schema_id=b"\x01" + guid),
        headed(1, apicurio_dot_key_dot_globalId=eight[2], apicurio_dot_value_dot_globalId=eight[1]),
        headed(2, apicurio_dot_key_dot_contentId=eight[1], apicurio_dot_value_dot_contentId=eight[2]),
        prefixed(3, b"\x00" + eight[2], b"\x00" + eight[1]),
        prefixed(4, four[1], b"\x01" + guid),
        record(5),
        headed(6, __key_schema_id=four[1], __value_schema_id=b"\x00"),
        {**headed(7, __key_schema_id=four[1], __value_schema_id=four[2]), "value": begins_with_an_id},
        as_json,
    ]
    settings = {"envelope": registry.envelope}
    settings["envelope"]["schemaRegistry"]["url"] += "/apis/ccompat/v7"
    mirroring = Mirroring(tmp_path, settings).deliver([records])
    summary = mirroring.run(spark)
    assert rows(spark, mirroring) == [(number, "a") for number in range(6)]
    assert summary.counts.quarantined == 3
    assert {number: reason[:40] for number, reason in reasons(spark, mirroring).items()} == {
        6: "the value names no schema: it does not b",
        7: "the value is not Avro of schema 2",
        8: "the value is Avro in its JSON form: have",
    }
    asked = [path for path in registry.asked if not path.endswith("/references")]
    assert len(asked) == len(set(asked)) == 7


def test_what_apicurio_wrote_before_values_is_what_the_manifest_says(
    spark: SparkSession, tmp_path: Path, registry: Registry
) -> None:
    key, envelope = (registry.schemas[number]["schema"] for number in (1, 2))
    registry.schemas.clear()
    registry.own = {"ids/globalIds/1": key, "ids/globalIds/2": envelope}
    settings = {"envelope": registry.envelope}
    settings["envelope"]["schemaRegistry"] |= {"url": f"{registry.url}/apis/ccompat/v7", "useId": "globalId"}
    mirroring = Mirroring(tmp_path / "one", settings).deliver([[record(0)]])
    mirroring.run(spark)
    assert rows(spark, mirroring) == [(0, "a")]


def change(number: int, offset: int, op: str, key: bytes, table: str = "t", v: str = "a") -> Record:
    """A change of row ``number`` with all of its images, and with a key of bytes."""
    source = {"connector": "postgresql", "name": "shop", "db": "shop", "schema": "public", "table": table}
    image = {"id": number, "v": v}
    event = {
        "before": None if op == "c" else image,
        "after": None if op == "d" else image,
        "source": {**source, "ts_ms": 1000 + offset, "lsn": 100 + offset},
        "op": op,
        "ts_ms": 2000,
    }
    value = base64.b64encode(encoded(ENVELOPE, 2, event)).decode()
    place = {
        "topic": f"shop.public.{table}",
        "partition": 0,
        "offset": offset,
        "timestamp": 1_700_000_000_000,
    }
    return {**place, "key": base64.b64encode(key).decode(), "value": value, "headers": []}


@pytest.mark.thorough
def test_keys_that_are_no_records(spark: SparkSession, tmp_path: Path, registry: Registry) -> None:
    """Text, JSON, and plain values of Avro: the rows have the columns of a declared key. Without one, nobody
    knows which column they are, and the table waits for it.
    """
    registry.schemas |= {3: {"schema": '"string"'}, 4: {"schema": '{"type": "long"}'}}
    text, number = b"\x00\x00\x00\x00\x03\x0arow-3", b"\x00\x00\x00\x00\x04\x08"
    records = [
        change(1, 0, "c", b"row-1"),
        change(3, 2, "c", text),
        change(4, 3, "c", number),
        change(1, 4, "u", b"row-1", v="b"),
        change(3, 5, "d", text),
        {**change(5, 6, "c", text), "value": change(5, 6, "c", text)["key"]},
        change(1, 0, "c", number, "u"),
        change(1, 0, "c", b'{"id":1}', "w"),
    ]
    settings = {"envelope": registry.envelope, "tables": [{"source": "public.t", "primaryKey": ["id"]}]}
    mirroring = Mirroring(tmp_path, settings).deliver([records])
    summary = mirroring.run(spark)
    assert rows(spark, mirroring) == [(1, "b"), (4, "a")]
    assert [tuple(row) for row in at(spark, mirroring.path("shop", "public", "w")).collect()] == [(1, "a")]
    error = summary.tables["shop.public.u"].error or ""
    assert "are not JSON objects, so that they name no columns: set tables[" in error
    assert reasons(spark, mirroring)[6] == "the value: schema 3 of the registry is not one of a record"

    both = [*settings["tables"], {"source": "public.u", "primaryKey": ["id"]}]
    Mirroring(tmp_path, {**settings, "tables": both}).run(spark)
    found = at(spark, mirroring.path("shop", "public", "u")).collect()
    assert [tuple(row) for row in found] == [(1, "a")]


def test_keys_of_records_that_name_their_own_are_not_looked_at(
    spark: SparkSession, tmp_path: Path, registry: Registry
) -> None:
    """Numbers as LongSerializer writes them, which begin like the id of a schema."""
    fields = {"op": "op", "after": "after", "before": "before", "key": "after.id", "table": "source.table"}
    keys = [(number).to_bytes(8, "big") for number in (1, 2**63 + 255)]
    settings = {
        "envelope": {**registry.envelope, "format": "custom", "fields": fields},
        "ordering": {"by": "offset"},
        "target": {"path": f"{tmp_path}/lake/shop/public/{{table}}"},
    }
    records = [change(number, number, "c", key) for number, key in enumerate(keys)]
    mirroring = Mirroring(tmp_path, settings).deliver([records])
    mirroring.run(spark)
    assert rows(spark, mirroring) == [(0, "a"), (1, "a")]
    assert registry.asked == ["/schemas/ids/2"]


@pytest.mark.thorough
def test_a_record_is_replayed_when_its_schema_is_registered(
    spark: SparkSession, tmp_path: Path, registry: Registry
) -> None:
    mirroring = Mirroring(tmp_path, {"envelope": registry.envelope}).deliver([[record(0), record(1, of=5)]])
    assert mirroring.run(spark).counts.quarantined == 1
    registry.schemas[5] = registry.schemas[2]
    assert replay(mirroring.pipeline, spark=spark).done
    assert rows(spark, mirroring) == [(0, "a"), (1, "a")]
    (stored,) = spark.read.format("delta").load(f"{mirroring.checkpoint}/quarantine").collect()
    assert bytes(stored["value"])[:5] == b"\x00\x00\x00\x00\x05"


@pytest.mark.thorough
def test_a_schema_that_is_registered_late_is_found_by_the_driver_that_runs(
    spark: SparkSession, tmp_path: Path, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New records at the latest after a minute, and those in quarantine with the next replay."""
    monkeypatch.setattr(encodings, "_ASK_AGAIN_SECONDS", 0.0)
    mirroring = Mirroring(tmp_path, {"envelope": registry.envelope})
    mirroring.deliver([[record(0)], [record(1, of=5)], [record(2, of=5)]])

    def follow(event: Any) -> None:
        if type(event).__name__ == "BatchDone" and event.result.counts.quarantined:
            registry.schemas[5] = registry.schemas[2]
            file_request(LocalStorage(mirroring.checkpoint), ReplayRequest("late"))

    summary = run(mirroring.pipeline, once=True, spark=spark, on_event=follow)
    assert summary.counts.quarantined == 1
    assert rows(spark, mirroring) == [(0, "a"), (1, "a"), (2, "a")]
    assert registry.asked.count("/schemas/ids/5") == 2


@pytest.mark.long
def test_a_registry_that_is_away_is_waited_for(
    spark: SparkSession, tmp_path: Path, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Longer than a batch is tried again: no restart is used up, and nothing goes to quarantine."""
    monkeypatch.setattr(retry, "RETRY_SECONDS", (0.05,))
    monkeypatch.setattr(retry, "AWAY_RETRY_SECONDS", 0.05)
    registry.fails = 503
    mirroring = Mirroring(tmp_path, {"envelope": registry.envelope, "trigger": {"interval": "1s"}})
    mirroring.deliver([[record(0)]])
    warned: list[str] = []
    done = threading.Event()

    def follow(event: Any) -> None:
        if type(event).__name__ == "Warned":
            warned.append(event.message)
            if len(registry.asked) > 3:
                registry.fails = None
        if type(event).__name__ == "BatchDone":
            done.set()

    until = time.monotonic() + 120
    summary = run(
        mirroring.pipeline,
        spark=spark,
        on_event=follow,
        stopping=lambda: done.is_set() or time.monotonic() > until,
    )
    assert summary.counts.applied == 1
    assert any("the source cannot be reached: the schema registry" in each for each in warned)


@pytest.mark.long
def test_a_run_once_gives_up(
    spark: SparkSession, tmp_path: Path, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "RETRY_SECONDS", (0.05,))
    registry.fails = 503
    mirroring = Mirroring(tmp_path, {"envelope": registry.envelope}).deliver([[record(0)]])
    with pytest.raises(Exception, match="503"):
        mirroring.run(spark)
    registry.fails = None
    assert mirroring.run(spark).counts.applied == 1
