"""Debezium's envelope says the same whether its schema has to be read or is known already."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from lakemirror.api.source import Envelope
from lakemirror.api.spec import Ordering
from lakemirror.driver.parse.envelopes.debezium import Debezium
from lakemirror.driver.read.files.records import read_records
from tests.support import records
from tests.support.records import Column
from tests.support.shop import Shop, table

ITEMS = table("items", Column("v", "int32"), Column("note", "string"))
DOCUMENTS = {"schema_id": "schema_text", "key_schema_id": "key_schema_text"}


def raw(spark: SparkSession, folder: Path) -> DataFrame:
    """An insert, an update, a delete with its tombstone, and a record that is no change event."""
    shop = Shop(lsn=1_000_000)
    saved = [
        *shop.create(ITEMS, id=1, v=1, note='a "}," of text'),
        *shop.update(ITEMS, id=1, v=2, note="größer"),
        *shop.delete(ITEMS, id=1, v=2, note="größer"),
    ]
    saved.append({**saved[0], "offset": 99, "value": '{"schema":null,"payload":{"op":"x"}}'})
    path = folder / "records.jsonl"
    records.write(path, saved)
    return read_records(spark, [str(path)])


def collected(events: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict() for row in events.orderBy("offset").collect()]


def test_events_with_a_known_schema_are_those_whose_schema_was_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    source, classifier = raw(spark, tmp_path), Debezium(Envelope(), Ordering())
    first = collected(classifier.classify(source))
    known = {
        event[i]: event[text] for event in first for i, text in DOCUMENTS.items() if event[i] is not None
    }
    again = collected(classifier.classify(source, known))

    assert [event["kind"] for event in first] == ["change", "change", "change", "tombstone", "bad"]
    assert len(known) == 2
    assert all(event[text] is None for event in again for text in DOCUMENTS.values())
    for text in DOCUMENTS.values():
        for event in (*first, *again):
            del event[text]
    assert again == first


def test_what_is_known_may_grow(spark: SparkSession, tmp_path: Path) -> None:
    source, classifier = raw(spark, tmp_path), Debezium(Envelope(), Ordering())
    first = classifier.classify(source).where("kind = 'change'").first()
    assert first is not None
    known = {first["schema_id"]: first["schema_text"]}
    for _ in range(2):
        event = classifier.classify(source, known).where("kind = 'change'").first()
        assert event is not None
        assert (event["schema_text"], event["key_schema_text"]) == (None, first["key_schema_text"])
    known[first["key_schema_id"]] = first["key_schema_text"]
    event = classifier.classify(source, known).where("kind = 'change'").first()
    assert event is not None
    assert event["key_schema_text"] is None
