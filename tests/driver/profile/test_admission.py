"""What is set apart before any table sees it: changes by other topics, and names beyond a limit."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from lakemirror.api import CdcPipeline
from lakemirror.api.limits import Limit
from lakemirror.driver.parse.envelopes.chooser import classifier
from lakemirror.driver.profile import admission
from lakemirror.driver.profile.admission import within_limits, without_foreign
from lakemirror.driver.profile.overview import Overview, overview
from lakemirror.driver.profile.positions import Stream
from lakemirror.driver.read.base import RAW
from tests.api.manifests import changed
from tests.support.records import Column, Message, PostgresPosition, Table

pytestmark = [
    pytest.mark.guarantee("Only topics that may speak of a table change it, where the manifest says so"),
    pytest.mark.guarantee(
        "What records may name has limits, and what exceeds one is quarantined with its name"
    ),
]

GOOD, EVIL = "shop.public.orders", "evil.public.other"
MICROS = 1_700_000_000_000_000


def debezium(name: str = "orders", prefix: str = "shop", db: str = "shop") -> Table:
    columns = Column("id", "int32"), Column("v", "int32")
    return Table(db, "public", name, columns, ("id",), prefix)


def position(lsn: int) -> PostgresPosition:
    return PostgresPosition(lsn, lsn - 5, lsn, MICROS + lsn)


def events_of(
    spark: SparkSession, pipeline: CdcPipeline, sent: list[tuple[str, Message]]
) -> tuple[DataFrame, Overview]:
    rows = [
        (
            topic,
            0,
            offset,
            None,
            *(each and each.encode() for each in (m.key, m.value)),
            None,
            None,
            None,
            None,
        )
        for offset, (topic, m) in enumerate(sent)
    ]
    events = classifier(pipeline.spec).classify(spark.createDataFrame(rows, RAW)).persist()
    return events, overview(events)


def kinds(events: DataFrame) -> list[tuple[str, str | None]]:
    return [(row["kind"], row["reason"]) for row in events.orderBy("offset").collect()]


def of(document: dict[str, Any] | None, key: str | None = '{"id":1}') -> Message:
    return Message(key, None if document is None else json.dumps(document), (), 0)


FLAT = {"id": 1, "v": 1, "__op": "c", "__table": "orders", "__schema": "public", "__db": "shop", "__lsn": 9}
MAXWELL = {"database": "shop", "table": "orders", "ts": 1_700_000_000, "xid": 1, "commit": True}
CUSTOM = {"op": "c", "table": "shop.public.orders", "row": {"id": 1, "v": 1}}
ENVELOPES: dict[str, tuple[dict[str, Any], list[Message], str]] = {
    "debezium": (
        {"format": "debezium"},
        [
            debezium().create(position(10), {"id": 1, "v": 1}),
            debezium().update(position(20), {"id": 1, "v": 2}, {"id": 1, "v": 1}),
            debezium().delete(position(30), {"id": 1, "v": 2})[0],
            debezium().truncate(position(40)),
        ],
        "shop.public.orders",
    ),
    "debezium-flat": (
        {"format": "debezium-flat"},
        [of(FLAT), of({**FLAT, "__op": "u"}), of({**FLAT, "__op": "d", "__deleted": "true"})],
        "shop.public.orders",
    ),
    "maxwell": (
        {"format": "maxwell"},
        [
            of({**MAXWELL, "type": "insert", "data": {"id": 1}}),
            of({**MAXWELL, "type": "update", "data": {"id": 1}, "old": {}}),
            of({**MAXWELL, "type": "delete", "data": {"id": 1}}),
        ],
        "shop.orders",
    ),
    "custom": (
        {"format": "custom", "fields": {"op": "op", "table": "table", "after": "row"}},
        [of(CUSTOM), of({**CUSTOM, "op": "u"}), of({**CUSTOM, "op": "d"}), of({**CUSTOM, "op": "t"})],
        "shop.public.orders",
    ),
}


@pytest.mark.parametrize("name", ENVELOPES)
def test_changes_by_a_topic_that_may_not_change_their_table_are_set_apart(
    name: str, spark: SparkSession
) -> None:
    envelope, messages, table = ENVELOPES[name]
    tables = [{"source": "orders", "topics": [GOOD]}]
    pipeline = CdcPipeline.from_dict(changed(envelope=envelope, tables=tables))
    nothing = of(None)
    sent = [(topic, message) for message in messages for topic in (GOOD, EVIL)]
    events, seen = events_of(spark, pipeline, [*sent, (EVIL, nothing)] if name == "debezium" else sent)
    before = kinds(events)
    assert {kind for kind, _ in before} <= {"change", "truncate", "tombstone"}, before
    marked, after = without_foreign(events, seen, pipeline.spec)
    found = kinds(marked)[: len(sent)]
    assert found[::2] == before[: len(sent) : 2]
    reason = f"table {table} may not be changed by topic {EVIL}: "
    assert all(kind == "not admitted" and (why or "").startswith(reason) for kind, why in found[1::2]), found
    assert (after.bad, after.records) == (len(messages), seen.records)
    assert [each.topics for each in after.tables.values()] == [{GOOD}]
    assert {stream.topic for stream in after.streams} <= {GOOD}
    free = CdcPipeline.from_dict(changed(envelope=envelope)).spec
    assert without_foreign(events, seen, free) == (events, seen)
    events.unpersist()


def test_names_beyond_a_limit_are_set_apart_and_known_ones_go_on(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("TABLES", "CONNECTORS", "SCHEMAS"):
        monkeypatch.setattr(admission, limit, Limit(limit.lower(), 2, "of them"))
    pipeline = CdcPipeline.from_dict(changed())
    tables = [debezium("t1"), debezium("known"), debezium("t3"), debezium("t2")]
    shards = [debezium("t1", prefix) for prefix in ("p3", "p2", "p1")]
    kinds_of_row = [Column("a", "int32"), Column("b", "int32"), Column("c", "int32")]
    grown = [
        Table("shop", "public", "known", (Column("id", "int32"), each), ("id",), "shop", False, True)
        for each in kinds_of_row
    ]
    sent = [(GOOD, each.create(position(n + 10), {"id": 1, "v": 1})) for n, each in enumerate(tables)]
    sent += [(GOOD, each.create(position(n + 20), {"id": 1, "v": 1})) for n, each in enumerate(shards)]
    sent += [
        (GOOD, each.create(position(n + 30), {"id": n, each.columns[1].name: 1}))
        for n, each in enumerate([*grown, *grown[:2]])
    ]
    events, seen = events_of(spark, pipeline, sent)
    marked, after = within_limits(
        events, seen, {"shop.public.known"}, [Stream(GOOD, 0, "shop")], lambda name: name.table == "t3"
    )
    found = [(kind, (why or "").partition(":")[0]) for kind, why in kinds(marked)]
    too_many = "not admitted", "beyond the limit tables (2 of them)"
    schemas = "not admitted", "beyond the limit schemas (2 of them)"
    assert found[:4] == [("change", ""), schemas, ("change", ""), too_many]
    logs = "not admitted", "beyond the limit connectors (2 of them)"
    assert found[4:7] == [logs, logs, ("change", "")]
    # Of four schemas, the two that come twice have room; one of the others is that of records without one.
    assert Counter(found[7:]) == {("change", ""): 4, schemas: 1}
    assert (after.bad, after.records) == (5, len(sent))
    assert sorted(map(str, after.tables)) == ["shop.public.known", "shop.public.t1", "shop.public.t3"]
    events.unpersist()


def test_a_name_that_is_too_long_is_set_apart_and_kept_nowhere(spark: SparkSession) -> None:
    pipeline = CdcPipeline.from_dict(changed())
    long = "n" * 256
    tables = [
        debezium("n" * 255),
        debezium(long),
        debezium(prefix="p" * 512),
        debezium(prefix="p" * 513),
        debezium(db=long),
    ]
    sent = [(GOOD, each.create(position(10 + n), {"id": 1, "v": 1})) for n, each in enumerate(tables)]
    sent.append(("t" * 768, debezium().create(position(99), {"id": 1, "v": 1})))
    sent.append((GOOD, of({"payload": {"op": "x", "source": {"table": long}}})))
    events, seen = events_of(spark, pipeline, sent)
    found = kinds(events)
    assert [kind for kind, _ in found] == [
        *("change", "not admitted", "change", "not admitted", "not admitted", "not admitted", "bad")
    ]
    assert found[1][1] == (
        "the name of its table has 256 characters: beyond the limit nameLength "
        "(255 characters in each part of a table's name)"
    )
    assert "connectorLength" in (found[3][1] or "")
    assert "topicLength" in (found[5][1] or "")
    assert found[6][1] == "unknown op 'x'"
    assert sorted(map(str, seen.tables)) == [f"shop.public.{'n' * 255}", "shop.public.orders"]
    assert {str(name) for name in seen.apart} == {"shop.public.orders"}, "part of a name is another name"
    assert {stream.name for stream in seen.streams} == {"shop", "p" * 512}
    events.unpersist()
