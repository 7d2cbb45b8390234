"""Records of Avro: the rules read what Connect's JSON converter would have written of them, and the driver's
engine, which reads them with a schema registry, makes the same of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.conformance.captures import FOLDER, SCENARIOS, Capture
from tests.driver.rules.test_captures import DELIVERIES, differences
from tests.driver.rules.test_differential import SETTINGS, beside
from tests.support.agreement import assert_agreement
from tests.support.avro import AvroWriter, as_json
from tests.support.delivery import Batches, doubled, interleaved, parts, shuffled
from tests.support.histories import Shape, Step, many, play
from tests.support.mirroring import Mirroring
from tests.support.records import Record, read
from tests.support.registry import Registry, serving
from tests.support.rule_engine import Engine

pytestmark = pytest.mark.guarantee(
    "Avro is read with the schema that each record was written with, wherever the record names it; the "
    "driver waits for an unavailable registry"
)


def schemas_of(scenario: str) -> dict[int, str]:
    return {each["id"]: each["schema"] for each in read(FOLDER / scenario / "avro-schemas.jsonl.gz")}


@pytest.mark.parametrize("delivery", ["whole", "shuffled, 7 batches"])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_capture_ends_in_the_rows_of_its_database(scenario: str, delivery: str) -> None:
    capture, schemas = Capture(scenario, "avro"), schemas_of(scenario)
    engine = Engine()
    for batch in DELIVERIES[delivery](capture.records):
        engine.deliver([as_json(record, schemas) for record in batch])
    assert not [line for table in capture.tables for line in differences(capture, engine, table)]
    assert not any(table.reasons for table in engine.tables.values())


def generated(registry: Registry) -> Batches:
    """Histories in mirrors of each mode, some with a row that was read while a transaction was open."""
    rnd, writer = random.Random(5), AvroWriter()
    opening = [Step(h, "put", rnd.randrange(3), big=h % 4, joined=True) for h in range(0, 8, 3)]
    played = [
        play(many(range(8), rnd), Shape(source="mariadb", name="stock")),
        *(
            play([*opening, *many(range(8), rnd, truncates=1)], Shape(snapshot="open", name=name))
            for name in ("items", "versions", "soft", "listed")
        ),
    ]
    sent = beside([parts(shuffled(doubled(each.records), 5), 4) for each in played])
    found = [[writer.record(record) for record in batch] for batch in sent]
    registry.schemas |= {number: {"schema": schema} for number, schema in writer.schemas.items()}
    return found


def captured(scenario: str) -> Callable[[Registry], Batches]:
    def sent(registry: Registry) -> Batches:
        registry.take(FOLDER / scenario / "avro-schemas.jsonl.gz")
        return parts(interleaved(Capture(scenario, "avro").records, 1), 3)

    return sent


SENT: Sequence[tuple[str, Callable[[Registry], Batches]]] = (
    ("generated", generated),
    ("types", captured("types")),
    ("schema_change", captured("schema_change")),
)


@pytest.mark.thorough
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("name", "sent"), SENT, ids=[name for name, _ in SENT])
def test_the_engine_and_the_rules_agree(
    name: str, sent: Callable[[Registry], Batches], spark: SparkSession, tmp_path: Path
) -> None:
    with serving() as registry:
        batches = sent(registry)
        settings = {"envelope": registry.envelope, "tables": SETTINGS, "onUnrepresentable": "text"}
        mirroring = Mirroring(tmp_path, settings).deliver(batches)
        mirroring.run(spark)
    schemas = {number: str(each["schema"]) for number, each in registry.schemas.items()}
    assert_agreement(spark, mirroring, [_as_json(batch, schemas) for batch in batches])


def _as_json(batch: Sequence[Record], schemas: dict[int, str]) -> list[Record]:
    return [as_json(record, schemas) for record in batch]
