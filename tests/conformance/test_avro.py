"""Captures in Avro, read with a schema registry, end in tables that equal their databases."""

from __future__ import annotations

import base64
import io
import json
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

import fastavro
import pytest
from pyspark.sql import SparkSession

from lakemirror.cli.common import read_pipeline
from lakemirror.driver.runtime.runner import run
from tests.conformance.captures import FOLDER, SCENARIOS, Capture, wrong
from tests.support import apicurio, truth
from tests.support.delivery import interleaved, parts
from tests.support.kafka_broker import Broker
from tests.support.mirroring import Mirroring, at
from tests.support.records import Record, read
from tests.support.registry import Registry, serving

pytestmark = pytest.mark.guarantee(
    "Avro is read with the schema that each record was written with, wherever the record names it; the "
    "driver waits for an unavailable registry"
)

ALWAYS = ("schema_change",)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "scenario",
    [name if name in ALWAYS else pytest.param(name, marks=pytest.mark.thorough) for name in SCENARIOS],
)
def test_a_capture_ends_in_the_rows_of_its_database(
    scenario: str, spark: SparkSession, tmp_path: Path
) -> None:
    """Its schemas change in the middle of batches; each is asked for once."""
    capture = Capture(scenario, "avro")
    with serving() as registry:
        registry.take(FOLDER / scenario / "avro-schemas.jsonl.gz")
        mirroring = Mirroring(tmp_path, {"envelope": registry.envelope})
        summary = mirroring.deliver(parts(interleaved(capture.records, 1), 3)).run(spark)
    assert not wrong(capture.differences(spark, mirroring))
    assert summary.counts.quarantined == 0
    assert len(registry.asked) == len(set(registry.asked))


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_values_of_all_types(spark: SparkSession, tmp_path: Path) -> None:
    """Also decimals of unknown precision, with which Spark's own reader refuses the schema."""
    capture = Capture("types", "avro")
    types = FOLDER / "types"
    with serving() as registry:
        registry.take(types / "avro-schemas.jsonl.gz")
        settings = {"envelope": registry.envelope, "onUnrepresentable": "null"}
        mirroring = Mirroring(tmp_path, settings)
        mirroring.deliver([capture.records]).run(spark)
    for table in ("types_full", "types_default"):
        mirror = at(spark, mirroring.path(capture.database, "public", table))
        rows = truth.load_truth(types / "truth" / f"public.{table}.jsonl", ("id",))
        kinds = truth.source_types(types)[f"public.{table}"]
        found = truth.diff(truth.collect(mirror), rows, kinds, mirror.schema, ("id",))
        unrepresentable = [line for line in found if "infinity" in line or "BC" in line or "NaN" in line]
        assert found == unrepresentable


@pytest.mark.thorough
@pytest.mark.sources
@pytest.mark.timeout(900)
def test_a_real_registry(spark: SparkSession, kafka: Broker, tmp_path: Path) -> None:
    """The example, with topics of its own at a broker. Schemas are registered anew, and get other ids."""
    capture, mirroring = Capture("schema_change", "avro"), Mirroring(tmp_path / "pipeline")
    with apicurio.serving(tmp_path) as url:
        ids = {
            each["id"]: apicurio.register(url, subject, {"schema": each["schema"]})
            for each in read(FOLDER / capture.scenario / "avro-schemas.jsonl.gz")
            for subject, _ in each["subjects"][:1]
        }
        server = f"registry-{uuid.uuid4().hex[:8]}"  # other tests have topics at this broker, too
        _send(kafka, server, [_with_ids(record, ids) for record in capture.records])
        named = {
            "source.kafka.bootstrapServers": kafka.bootstrap,
            "source.kafka.topicPattern": rf"{server}\.public\..*",
            "envelope.schemaRegistry.url": url,
            "target.path": f"{mirroring.lake}/{{db}}/{{schema}}/{{table}}",
            "checkpoint": str(mirroring.checkpoint),
        }
        manifest = Path(__file__).parents[2] / "examples/avro/pipeline.yaml"
        pipeline = read_pipeline(str(manifest), [f"{name}={value}" for name, value in named.items()])
        login = tmp_path / "login"
        login.mkdir()
        for name in ("username", "password"):
            (login / name).write_text("nobody asks for it")
        summary = run(pipeline, once=True, spark=spark, secrets={"registry-auth": login})
    assert not wrong(capture.differences(spark, mirroring))
    assert (summary.counts.records, summary.counts.quarantined) == (len(capture.records), 0)


def _send(kafka: Broker, server: str, records: Sequence[Record]) -> None:
    """The records in the topics that a connector would name so for this server."""
    topics = {each["topic"]: f"{server}.public.{each['topic'].rpartition('.')[2]}" for each in records}
    partitions = max(record["partition"] for record in records) + 1
    for topic in sorted(topics.values()):
        kafka.create_named(topic, partitions)
    for record in records:
        key, value = (
            None if record[name] is None else base64.b64decode(record[name]) for name in ("key", "value")
        )
        kafka.send(topics[record["topic"]], value, key=key, partition=record["partition"])
    kafka.flush()


def _with_ids(record: Record, ids: Mapping[int, int]) -> Record:
    """A record that names its schemas by other ids."""

    def renamed(text: str | None) -> str | None:
        if text is None:
            return None
        whole = base64.b64decode(text)
        identity = ids[int.from_bytes(whole[1:5], "big")]
        return base64.b64encode(whole[:1] + identity.to_bytes(4, "big") + whole[5:]).decode()

    return {**record, "key": renamed(record["key"]), "value": renamed(record["value"])}


ADDED = {"__deleted": "string", "__op": "string", "__db": "string", "__schema": "string", "__table": "string"}
POSITIONS = {"__lsn": "long", "__source_ts_ms": "long", "__sequence": "string", "__snapshot": "string"}


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_flat_records_end_in_the_rows_of_their_database(spark: SparkSession, tmp_path: Path) -> None:
    """What ExtractNewRecordState leaves of a capture, with the schemas of its rows: no type is declared."""
    capture = Capture("inventory", "avro")
    with serving() as registry:
        registry.take(FOLDER / capture.scenario / "avro-schemas.jsonl.gz")
        flat = [_flattened(record, registry) for record in capture.records]
        envelope = {**registry.envelope, "format": "debezium-flat", "nullValue": "ignore"}
        mirroring = Mirroring(tmp_path, {"envelope": envelope})
        summary = mirroring.deliver(parts(interleaved(flat, 1), 2)).run(spark)
    assert not wrong(capture.differences(spark, mirroring))
    assert summary.counts.quarantined == 0


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_a_custom_envelope_reads_the_same_records(spark: SparkSession, tmp_path: Path) -> None:
    """Its types and its key are those of the schemas, too."""
    capture = Capture("inventory", "avro")
    fields = {"op": "op", "before": "before", "after": "after", "table": "source.table"}
    rows = [record for record in capture.records if record["topic"].startswith("avro.inventory.public.")]
    with serving() as registry:
        registry.take(FOLDER / capture.scenario / "avro-schemas.jsonl.gz")
        envelope = {**registry.envelope, "format": "custom", "fields": fields, "nullValue": "ignore"}
        target = {"path": f"{tmp_path}/lake/{capture.database}/public/{{table}}"}
        settings = {"envelope": envelope, "ordering": {"by": "offset"}, "target": target}
        mirroring = Mirroring(tmp_path, settings)
        summary = mirroring.deliver(parts(rows, 2)).run(spark)
    assert not wrong(capture.differences(spark, mirroring))
    assert summary.counts.quarantined == 0


def _flattened(record: Record, registry: Registry) -> Record:
    """A change event as its row, with what ``add.fields`` may add; other records as they are."""
    if record["value"] is None:
        return record
    whole = base64.b64decode(record["value"])
    identity = int.from_bytes(whole[1:5], "big")
    schema = json.loads(registry.schemas[identity]["schema"])
    if "after" not in {each["name"] for each in schema["fields"]}:
        return record
    event = fastavro.schemaless_reader(io.BytesIO(whole[5:]), fastavro.parse_schema(schema), None)
    row = next(part for part in schema["fields"][0]["type"] if part != "null")
    added = [{"name": name, "type": kind} for name, kind in ADDED.items()]
    added += [{"name": name, "type": ["null", kind]} for name, kind in POSITIONS.items()]
    flat = {**row, "fields": [*row["fields"], *added]}
    registry.schemas[1000 + identity] = {"schema": json.dumps(flat)}
    source, gone = event["source"], event["op"] == "d"
    named = {f"__{name}": source[name] for name in ("db", "schema", "table", "lsn", "sequence", "snapshot")}
    told = {**named, "__deleted": str(gone).lower(), "__op": event["op"], "__source_ts_ms": source["ts_ms"]}
    body = io.BytesIO()
    image = event["before"] if gone else event["after"]
    fastavro.schemaless_writer(body, fastavro.parse_schema(flat), {**image, **told})
    value = b"\x00" + (1000 + identity).to_bytes(4, "big") + body.getvalue()
    return {**record, "value": base64.b64encode(value).decode()}
