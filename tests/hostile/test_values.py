"""Values that a type cannot hold exactly: each is kept as it is, waits, or is refused by name; none is lost.

`CASES` are tables of custom records without a schema, all of one pipeline.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakemirror.api.source import Envelope
from lakemirror.api.spec import Ordering
from lakemirror.driver.parse.envelopes.custom import Custom
from lakemirror.driver.read.base import RAW
from lakemirror.driver.runtime.replayer import replay
from tests.support.mirroring import Mirroring, at
from tests.support.records import Record, Row

Batch = Sequence[str]
"""Values of records, as JSON."""


@dataclass(frozen=True)
class Case:
    """What a table is sent in one or more batches, and its rows at the end, in the order of their ids.

    ``reasons`` are parts of the reasons in quarantine, in the order of the records.
    """

    name: str
    batches: Sequence[Batch]
    rows: Sequence[Row]
    reasons: Sequence[str] = ()
    columns: Mapping[str, Any] = field(default_factory=dict)
    types: Mapping[str, str] = field(default_factory=dict)


CASES: Sequence[Case] = (
    # Types that the first batch does not show
    Case(
        "an empty array, then texts",
        [['{"id": 1, "tags": []}'], ['{"id": 2, "tags": ["x"]}']],
        [{"id": 1, "tags": []}, {"id": 2, "tags": ["x"]}],
    ),
    Case(
        "an empty array, then numbers and objects",
        [['{"id": 1, "tags": []}'], ['{"id": 2, "tags": [1, {"a": 2}]}']],
        [{"id": 1, "tags": []}, {"id": 2, "tags": ["1", '{"a":2}']}],
    ),
    Case(
        "NaN, then a number",
        [['{"id": 1, "v": "NaN"}'], ['{"id": 2, "v": 2.5}']],
        [{"id": 1, "v": "NaN"}, {"id": 2, "v": "2.5"}],
    ),
    Case(
        "infinity, then a name",
        [['{"id": 1, "v": "Infinity"}'], ['{"id": 2, "v": "Bob"}']],
        [{"id": 1, "v": "Infinity"}, {"id": 2, "v": "Bob"}],
    ),
    Case(
        "infinity beside numbers",
        [['{"id": 1, "v": "-Infinity"}', '{"id": 2, "v": 5}']],
        [{"id": 1, "v": float("-inf")}, {"id": 2, "v": 5.0}],
    ),
    Case(
        "an object whose array is empty",
        [['{"id": 1, "o": {"a": 1}}'], ['{"id": 2, "o": {"a": 2, "tags": []}}']],
        [{"id": 1, "o": {"a": 1, "tags": None}}, {"id": 2, "o": {"a": 2, "tags": []}}],
    ),
    Case(
        "new members of two kinds",
        [
            ['{"id": 1, "o": {"a": 1}}'],
            ['{"id": 2, "o": {"a": 2, "b": 1}}', '{"id": 3, "o": {"a": 3, "b": "x"}}'],
        ],
        [
            {"id": 1, "o": {"a": 1, "b": None}},
            {"id": 2, "o": {"a": 2, "b": "1"}},
            {"id": 3, "o": {"a": 3, "b": "x"}},
        ],
    ),
    Case(
        "a new member beside a value that is no object",
        [
            ['{"id": 1, "o": {"a": 1, "p": {"x": 1}}, "l": [{"a": 1}]}'],
            [
                '{"id": 2, "o": {"a": 2, "b": 1, "p": {"x": 2, "y": 2}}, "l": [{"a": 2, "b": 2}]}',
                '{"id": 3, "o": 5}',
                '{"id": 4, "o": {"p": [1]}}',
                '{"id": 5, "l": ["x"]}',
            ],
        ],
        [
            {"id": 1, "o": {"a": 1, "p": {"x": 1, "y": None}, "b": None}, "l": [{"a": 1, "b": None}]},
            {"id": 2, "o": {"a": 2, "p": {"x": 2, "y": 2}, "b": 1}, "l": [{"a": 2, "b": 2}]},
        ],
        ["does not fit o", "does not fit o (", "does not fit l"],
    ),
)


@dataclass(frozen=True)
class Outcome:
    rows: Mapping[str, Sequence[Row]]
    reasons: Mapping[str, Sequence[str]]


def settings(cases: Sequence[Case]) -> dict[str, Any]:
    tables = [
        {"source": f"t{number}", "columns": {"types": dict(case.types)} if case.types else case.columns}
        for number, case in enumerate(cases)
        if case.types or case.columns
    ]
    envelope = {"format": "custom", "fields": {"key": "id"}}
    return {"envelope": envelope, "tables": tables, "target": {"path": "LAKE/{table}"}}


def batches(cases: Sequence[Case]) -> Iterator[list[Record]]:
    offsets = dict.fromkeys(range(len(cases)), 0)
    for at_batch in range(max(len(case.batches) for case in cases)):
        found: list[Record] = []
        for number, case in enumerate(cases):
            for value in case.batches[at_batch] if at_batch < len(case.batches) else ():
                place = {"topic": f"t{number}", "partition": 0, "offset": offsets[number], "timestamp": 0}
                found.append({**place, "key": None, "value": value, "headers": []})
                offsets[number] += 1
        yield found


@pytest.fixture(scope="module")
def outcome(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    folder = tmp_path_factory.mktemp("values")
    given = settings(CASES)
    given["target"] = {"path": f"{folder}/lake/{{table}}"}
    mirroring = Mirroring(folder, given).deliver(list(batches(CASES)))
    mirroring.run(spark)
    replay(mirroring.pipeline, spark=spark)
    rows = {}
    for number in range(len(CASES)):
        place = f"{folder}/lake/t{number}"
        there = Path(place, "_delta_log").exists()
        found = at(spark, place).orderBy("id").collect() if there else []
        rows[f"t{number}"] = [row.asDict(recursive=True) for row in found]
    aside = spark.read.format("delta").load(f"{mirroring.checkpoint}/quarantine").where("state = 'open'")
    reasons: dict[str, list[str]] = {}
    for row in aside.orderBy("topic", "offset").collect():
        reasons.setdefault(row["topic"], []).append(row["reason"])
    return Outcome(rows, reasons)


@pytest.mark.parametrize("number", range(len(CASES)), ids=[case.name for case in CASES])
def test_a_value(number: int, outcome: Outcome) -> None:
    case, found = CASES[number], outcome.reasons.get(f"t{number}", [])
    assert json.loads(json.dumps(outcome.rows[f"t{number}"])) == json.loads(json.dumps(case.rows))
    assert len(found) == len(case.reasons), found
    for reason, part in zip(found, case.reasons, strict=True):
        assert part in reason


def test_a_long_run_of_digits_takes_linear_time(spark: SparkSession) -> None:
    """A regular expression that is tried from each digit would take hours for a million of them."""
    digits = "9" * 1_000_000
    values = [
        {"id": 1, "at": 5, "t": digits},
        {"id": 1, "at": 5, "t": f"{digits}."},
        {"id": 1, "at": digits, "t": "1"},
        {"id": digits, "at": 5},
    ]
    envelope = Envelope.model_validate({"format": "custom", "fields": {"key": "id", "timestamp": "at"}})
    raw = [
        ("t", 0, offset, None, None, json.dumps(value).encode(), None, None, None, None)
        for offset, value in enumerate(values)
    ]
    began = time.monotonic()
    found = Custom(envelope, Ordering()).classify(spark.createDataFrame(raw, RAW)).collect()
    assert [row["kind"] for row in found] == ["change", "change", "bad", "change"]
    assert time.monotonic() - began < 120
