"""Hostile records: real ones, mutated, in the midst of those that were left alone.

Two copies of a capture go through one pipeline; some records of one are mutated. All that is in no mutated
record has to be the same in both, and each record has to have one outcome.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from tests.conformance.captures import Capture
from tests.support.delivery import parts
from tests.support.mirroring import Mirroring, at
from tests.support.records import Record

pytestmark = pytest.mark.guarantee("Each record that was read has exactly one outcome (conservation)")

CLEAN, HOSTILE = Capture("inventory", as_db="clean"), Capture("inventory", as_db="hostile")
LIMITS = (2**63 - 1, 2**63, -(2**63), -1, 10**30, 1e308)
ODD: tuple[Any, ...] = (None, True, "", "x", "\0", "ä" * 300, [], {}, [1], {"a": {"b": [None]}}, 1.5, *LIMITS)
POSITIONS = ("lsn", "sequence", "ts_ms", "ts_us", "snapshot")
"""Fields that place a change: as other numbers that can be, they would say what a restored source says."""

KEYS = ("id", "order_number")
"""Key columns of the capture's tables."""

Mutation = tuple[str, Any, Any]

ANYWHERE = st.integers(0, 10_000)


def _of(kind: str, one: Any, two: Any = (None,)) -> st.SearchStrategy[Mutation]:
    """Mutations of a kind; each argument is a strategy or some values."""
    drawn = [
        each if isinstance(each, st.SearchStrategy) else st.sampled_from(list(each)) for each in (one, two)
    ]
    return st.tuples(st.just(kind), *drawn)


MUTATIONS: st.SearchStrategy[Mutation] = st.one_of(
    _of("delete bytes", ANYWHERE, st.integers(1, 40)),
    _of("insert", ANYWHERE, ['"', "{", "}", "\\", ",", "\0", "7"]),
    _of("cut off", ANYWHERE),
    _of("envelope", ["after", "before", "source", "op", "ts_ms"], ODD),
    _of("source", ["db", "name", "connector", "txId", "extra"], ODD),
    _of("source", POSITIONS[:4], [*LIMITS, "x", [], {}, True]),
    _of("row", ANYWHERE, ODD),
    _of("missing", ["after", "before", "source", "op", "row", "table"], ANYWHERE),
    _of("schema", [None, "x", 5, [], {}, {"type": "struct", "fields": 5}]),
    _of("key", ["", "x", "{", "5", "null", "[]", "{}", '{"id":null}', '{"id":"x"}']),
    _of("value", ["", "x", "{}", "[]", "null", "5", "[" * 700, '{"a":' * 700]),
    _of("swap", [None]),
    _of("place", ["partition", "offset", "timestamp"], [-1, 2**31 - 1, 2**63 - 1]),
    _of("headers", [[["__debezium.newkey", "{"]], [["__debezium.oldkey", None]], [["", ""]]]),
)


def mutated(record: Record, mutation: Mutation) -> Record:
    """The record after a mutation; as it was where the mutation does not apply."""
    kind, one, two = mutation
    text = record["value"] or ""
    if kind == "delete bytes":
        start = one % (len(text) or 1)
        return {**record, "value": text[:start] + text[start + two :]}
    if kind == "insert":
        start = one % (len(text) or 1)
        return {**record, "value": text[:start] + two + text[start:]}
    if kind == "cut off":
        return {**record, "value": text[: one % (len(text) or 1)]}
    if kind in ("key", "value", "headers"):
        return {**record, kind: one}
    if kind == "swap":
        return {**record, "key": record["value"], "value": record["key"]}
    if kind == "place":
        return {**record, one: two}
    document = json.loads(text or "{}")
    _change(document, kind, one, two)
    return {**record, "value": json.dumps(document, ensure_ascii=False)}


def _change(document: dict[str, Any], kind: str, one: Any, two: Any) -> None:
    payload = document.get("payload") or {}
    row = payload.get("after") or {}
    if kind == "schema":
        document["schema"] = one
    elif kind == "envelope":
        payload[one] = two
    elif kind == "source" and payload.get("source"):
        payload["source"][one] = two
    elif kind == "row" and row:
        row[sorted(row)[one % len(row)]] = two
    elif kind == "missing" and one == "row" and row:
        del row[sorted(row)[two % len(row)]]
    elif kind == "missing":
        (payload.get("source") or {} if one == "table" else payload).pop(one, None)


def parsed(text: str | None) -> dict[str, Any]:
    try:
        document = json.loads(text or "{}")
        return dict(document.get("payload") or {})
    except (ValueError, AttributeError, TypeError, RecursionError):
        return {}


def misleads(before: Record, after: Record) -> bool:
    """Whether the record is another valid one now: at another position, of a truncate, for another key."""
    old, new = parsed(before["value"]), parsed(after["value"])
    was, now = old.get("source") or {}, new.get("source") or {}
    if not isinstance(now, dict) or not now:
        return False
    moved = any(
        was.get(name) != now.get(name) and _is_plausible(now.get(name))
        for name in (*POSITIONS, "table", "schema")
    )
    return moved or new.get("op") == "t"


def _is_plausible(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and 0 <= value < 10**18) or isinstance(value, str)


def keys(records: Iterable[Record]) -> set[Any]:
    """All keys that the records speak of."""
    found: set[Any] = set()
    for record in records:
        for image in (parsed(record["key"]), *(parsed(record["value"]).get(i) for i in ("before", "after"))):
            values = [image.get(name) for name in KEYS] if isinstance(image, dict) else []
            found.update(value for value in values if isinstance(value, int | str))
    return found


def rows(spark: SparkSession, mirroring: Mirroring, capture: Capture, left_out: set[Any]) -> dict[str, Any]:
    found = {}
    for table in capture.tables:
        schema, _, name = table.partition(".")
        frame = at(spark, mirroring.path(capture.db, schema, name))
        [key] = [name for name in KEYS if name in frame.columns]
        for row in frame.collect():
            if row[key] not in left_out:
                found[f"{table}/{row[key]}"] = {k: v for k, v in row.asDict().items() if v is not None}
    return found


@pytest.mark.thorough
@pytest.mark.timeout(900)
@settings(
    max_examples=1,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(st.lists(st.tuples(st.integers(0, 10_000), MUTATIONS), min_size=150, max_size=250))
def test_mutated_records_harm_no_other(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, mutations: list[tuple[int, Mutation]]
) -> None:
    records = [record for record in HOSTILE.records if ".public." in record["topic"]]
    changed: dict[int, Record] = {}
    for number, mutation in mutations:
        index = number % len(records)
        record = mutated(records[index], mutation)
        if record != records[index] and not misleads(records[index], record):
            changed[index] = record
    assume(len(changed) > 50)
    hostile = [changed.get(i, record) for i, record in enumerate(records)]
    twins = [record for record in CLEAN.records if ".public." in record["topic"]]
    mirroring = _run(spark, tmp_path_factory.mktemp("records"), [*twins, *hostile])
    left_out = keys([*changed.values(), *(records[i] for i in changed)])
    assert rows(spark, mirroring, HOSTILE, left_out) == rows(spark, mirroring, CLEAN, left_out)
    counts = spark.read.format("delta").load(f"{mirroring.checkpoint}/audit").where("source IS NULL")
    assert counts.agg({"records": "sum"}).collect()[0][0] == len(twins) + len(hostile)


def _run(spark: SparkSession, folder: Path, records: list[Record]) -> Mirroring:
    mirroring = Mirroring(folder).deliver(parts(records, 1))
    mirroring.run(spark)
    return mirroring


def test_what_is_mutated() -> None:
    """The mutations do what they are called."""
    [record] = [r for r in HOSTILE.records if ".public." in r["topic"]][:1]
    kinds: Mapping[str, Mutation] = {
        "after": ("envelope", "after", "x"),
        "source": ("source", "lsn", 2**63),
        "row": ("row", 0, None),
    }
    for name, mutation in kinds.items():
        assert mutated(record, mutation) != record, name
    assert misleads(record, mutated(record, ("envelope", "op", "t")))
    assert misleads(record, mutated(record, ("source", "lsn", 5)))
    assert not misleads(record, mutated(record, ("source", "lsn", -1)))
