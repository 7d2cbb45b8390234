"""Values that a type cannot hold exactly: each is kept as it is, waits, or is refused by name; none is lost.

`CASES` are tables of custom records without a schema, all of one pipeline.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
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
from tests.support.records import Column, Record, Row
from tests.support.shop import Shop, Special, decimal, table

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
    # Numbers that a double does not hold
    Case(
        "a number beyond doubles",
        [['{"id": 1, "v": 1e400}'], ['{"id": 2, "v": 1.5}', '{"id": 3, "v": -1e-400}']],
        [{"id": 1, "v": "1e400"}, {"id": 2, "v": "1.5"}, {"id": 3, "v": "-1e-400"}],
    ),
    Case(
        "numbers beside doubles",
        [
            ['{"id": 1, "v": 1.5}', '{"id": 2, "v": 9007199254740993}', '{"id": 3, "v": 9007199254740992}'],
            ['{"id": 4, "v": 1e400}', '{"id": 5, "v": 0.1234567890123456789}', '{"id": 6, "v": 5e-324}'],
            ['{"id": 7, "v": 0.1}', '{"id": 8, "v": 1.7976931348623157e308}', '{"id": 9, "v": 1e100}'],
            [
                f'{{"id": 10, "v": {"9" * 40}}}',
                '{"id": 11, "v": "5"}',
                '{"id": 12, "v": 0.30000000000000004}',
            ],
        ],
        [
            {"id": 1, "v": 1.5},
            {"id": 3, "v": 9007199254740992.0},
            {"id": 7, "v": 0.1},
            {"id": 8, "v": 1.7976931348623157e308},
            {"id": 9, "v": 1e100},
            {"id": 12, "v": 0.30000000000000004},
        ],
        ["does not fit v (double)"] * 6,
    ),
    Case(
        "whole numbers of 40 digits, and text that looks like them",
        [[f'{{"id": 1, "v": {"9" * 40}, "t": "x\\\\\\" :[{"8" * 40}, 1e400, \\\\"}}']],
        [{"id": 1, "v": "9" * 40, "t": f'x\\" :[{"8" * 40}, 1e400, \\'}],
    ),
    Case(
        "numbers in arrays and objects",
        [
            ['{"id": 1, "a": [1.5, 2], "o": {"x": 1.5}}'],
            ['{"id": 2, "a": [1e400]}', '{"id": 3, "o": {"x": 1e400}}'],
        ],
        [{"id": 1, "a": [1.5, 2.0], "o": {"x": 1.5}}],
        ["does not fit a", "does not fit o"],
    ),
    # Texts
    Case(
        "halves of surrogate pairs",
        [
            [
                r'{"id": "\ud83d", "v": 1}',
                r'{"id": "\ud83e", "v": 2}',
                r'{"id": "\ud83d\ude00", "v": 3}',
                r'{"id": "\\ud83d", "v": 4}',
                r'{"id": "x", "v": "\ude00\ud83d"}',
            ]
        ],
        [{"id": r"\ud83d", "v": 4}, {"id": "😀", "v": 3}],
        ["surrogate"] * 3,
    ),
    Case(
        "a text that looks like a decimal",
        [
            [
                r'{"id": 1, "v": "{\"scale\":2,\"value\":\"AQ==\"}"}',
                '{"id": 2, "v": {"scale":2,"value":"AQ=="}}',
            ]
        ],
        [{"id": 1, "v": '{"scale":2,"value":"AQ=="}'}, {"id": 2, "v": "0.01"}],
        types={"v": "string"},
    ),
    # Dates and times
    Case(
        "dates",
        [
            [
                '{"id": 1, "d": "2024-01-02"}',
                '{"id": 2, "d": "2024-01-02 junk"}',
                '{"id": 3, "d": "2024-01-02T10:15:00Z"}',
                '{"id": 5, "d": "0000-00-00"}',
                '{"id": 6, "d": "2024-00-15"}',
            ]
        ],
        [{"id": 1, "d": "2024-01-02"}],
        ["does not fit d"] * 2 + ["represent 0000-00-00", "represent 2024-00-15"],
        types={"d": "date"},
    ),
    Case(
        "times",
        [
            [
                '{"id": 1, "t": "2024-01-02 10:15"}',
                '{"id": 2, "t": "10:15"}',
                '{"id": 3, "t": "T10:15:00"}',
                '{"id": 8, "t": "2024-01-02 10:15:00"}',
                '{"id": 4, "t": "2024-01-02"}',
                '{"id": 5, "t": "2024-01-02T10:15:00+02:00"}',
                '{"id": 6, "t": "0000-00-00 00:00:00"}',
                '{"id": 7, "t": "2024-01-02T10:15:00.1234567Z"}',
            ]
        ],
        [
            {"id": 1, "t": "2024-01-02 10:15:00"},
            {"id": 4, "t": "2024-01-02 00:00:00"},
            {"id": 5, "t": "2024-01-02 08:15:00"},
            {"id": 7, "t": "2024-01-02 10:15:00.123456"},
            {"id": 8, "t": "2024-01-02 10:15:00"},
        ],
        ["does not fit t", "does not fit t", "represent 0000-00-00 00:00:00"],
        types={"t": "timestamp_ntz"},
    ),
    Case(
        "moments as numbers, and with offsets",
        [
            [
                '{"id": 1, "t": 1790000000, "u": 1790000000123}',
                '{"id": 2, "t": "2026-01-02T03:04:05+02:00", "u": "2026-01-02T03:04+02:00"}',
                '{"id": 3, "t": 1790000000.5, "u": "2026-01-02T03:04:05+02:00"}',
            ]
        ],
        [
            {"id": 1, "t": "2026-09-21 14:13:20", "u": "2026-09-21 14:13:20.123000"},
            {"id": 2, "t": "2026-01-02 01:04:05", "u": "2026-01-02 01:04:00"},
            {"id": 3, "t": "2026-09-21 14:13:20.500000", "u": "2026-01-02 01:04:05"},
        ],
        types={"t": "timestamp", "u": "timestamp_ntz"},
    ),
    # Texts that may be encoded in several ways
    Case(
        "decimals and bytes whose encoding nothing tells",
        [
            [
                '{"id": 1, "p": "15.00", "b": "AA=="}',
                '{"id": 2, "p": "1500"}',
                '{"id": 3, "p": "none"}',
                '{"id": 4, "b": "deadbeef"}',
                '{"id": 5, "p": "n/a"}',
                '{"id": 6, "p": 1500}',
            ]
        ],
        [
            {"id": 1, "p": "15.00", "b": "00"},
            {"id": 6, "p": "1500.00", "b": None},
        ],
        ["in p: set tables[].columns.encodings"] * 2 + ["in b: set tables[].columns.enc", "does not fit p"],
        types={"p": "decimal(10,2)", "b": "binary"},
    ),
    Case(
        "decimals and bytes whose encoding the manifest tells",
        [['{"id": 1, "p": "1500", "q": "1500", "b": "deadbeef"}', '{"id": 2, "p": "none", "q": "none"}']],
        [
            {"id": 1, "p": "1500.00", "q": "-26467.32", "b": "deadbeef"},
        ],
        ["does not fit p"],
        {
            "types": {"p": "decimal(10,2)", "q": "decimal(10,2)", "b": "binary"},
            "encodings": {"p": "text", "q": "base64", "b": "hex"},
        },
    ),
    Case(
        "a decimal key whose encoding nothing tells",
        [['{"id": "1500"}', '{"id": "150"}']],
        [{"id": "150"}],
        ["(key columns: id): it is not known how the text is encoded in id: set tables[].columns.encodings"],
        types={"id": "decimal(10,0)"},
    ),
    # Maps, and members that are there twice
    Case(
        "maps",
        [
            [
                '{"id": 1, "m": {"a": 1, "b": null}, "k": {"1": "x"}}',
                '{"id": 2, "m": {"a": 1099511627776}}',
                '{"id": 3, "k": {"x": "x"}}',
                '{"id": 4, "k": {"1": "x", "01": "y"}}',
                '{"id": 5, "m": {"a": 1, "a": 2}}',
            ]
        ],
        [{"id": 1, "m": {"a": 1, "b": None}, "k": {"1": "x"}}],
        ["does not fit m (map<string,int>)", "does not fit k", "does not fit k", "does not fit m"],
        types={"m": "map<string,int>", "k": "map<int,string>"},
    ),
    Case(
        "a member that is there twice",
        [
            ['{"id": 1, "a": 1}'],
            ['{"id": 2, "a": 1, "a": 2, "new": "5"}', '{"id": 3, "o": {"b": 1, "b": 2}, "other": 1.5}'],
        ],
        [
            {"id": 1, "a": 1, "new": None, "o": None, "other": None},
            {"id": 2, "a": 2, "new": "5", "o": None, "other": None},
            {"id": 3, "a": None, "new": None, "o": '{"b":1,"b":2}', "other": 1.5},
        ],
    ),
    Case(
        "digits below the microsecond in keys",
        [
            [
                '{"id": "2024-01-02T10:15:00.1234560Z"}',
                '{"id": "2024-01-02T10:15:00.1234561Z"}',
                '{"id": 1772284455123456789}',
                '{"id": "infinity"}',
                '{"id": null}',
            ]
        ],
        [{"id": "2024-01-02 10:15:00.123456"}],
        [
            "id has digits below",
            "id has digits below",
            "represent id, which is infinity",
            "id is missing",
        ],
        types={"id": "timestamp_ntz"},
    ),
    Case(
        "digits below the microsecond as text",
        [['{"id": "2024-01-02T10:15:00.1234567Z"}', '{"id": "2024-01-02T10:15:00.1234568Z"}']],
        [{"id": "2024-01-02T10:15:00.1234567Z"}, {"id": "2024-01-02T10:15:00.1234568Z"}],
        types={"id": "string"},
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


def shown(value: Any) -> str:
    return value.hex() if isinstance(value, (bytes, bytearray)) else str(value)


@pytest.mark.long
@pytest.mark.guarantee(
    "A value that a type cannot hold exactly is kept as text, refused by name or, below the microsecond and "
    "outside of keys, rounded and reported; it is never a key and never null"
)
@pytest.mark.guarantee(
    "A map has all of its entries, with the keys and values that were sent, or its record waits"
)
@pytest.mark.guarantee("A member that JSON has twice hides no column of its record")
@pytest.mark.guarantee("A value whose type the first batch does not show is kept")
@pytest.mark.parametrize("number", range(len(CASES)), ids=[case.name for case in CASES])
def test_a_value(number: int, outcome: Outcome) -> None:
    case, found = CASES[number], outcome.reasons.get(f"t{number}", [])
    assert json.loads(json.dumps(outcome.rows[f"t{number}"], default=shown)) == json.loads(
        json.dumps(case.rows)
    )
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


def of_debezium(number: int, **row: Any) -> Record:
    """A record without a schema, of `decimal.handling.mode=string` and `binary.handling.mode=hex`."""
    place = {"topic": "demo.public.items", "partition": 0, "offset": number, "timestamp": 0}
    source = {"connector": "postgresql", "db": "demo", "schema": "public", "table": "items", "lsn": number}
    value = {"before": None, "after": {"id": number, **row}, "op": "c", "ts_ms": 1, "source": source}
    return {**place, "key": json.dumps({"id": number}), "value": json.dumps(value), "headers": []}


@pytest.mark.thorough
@pytest.mark.guarantee(
    "A text is base64, hexadecimal or a number only where the manifest or the kind of source says so, or "
    "nothing else fits; otherwise its record waits, and the reason names the setting"
)
def test_what_waits_for_its_encoding_is_applied_once_the_manifest_tells_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Debezium without schemas: numbers of times are never seconds there."""
    types = {"price": "decimal(10,2)", "photo": "binary", "at": "timestamp", "prices": "array<decimal(10,2)>"}
    columns: dict[str, Any] = {"types": types}
    settings = {"tables": [{"source": "public.items", "columns": columns}]}
    batch = [
        of_debezium(1, price="1500", photo=None, at=86_400_000, prices=[]),
        of_debezium(2, price="15.00", photo="deadbeef", at=None, prices=None),
        of_debezium(3, price="AfQ=", photo="AA==", at="2026-01-02T03:04:05+02:00", prices=["1.5"]),
        of_debezium(4, price=None, photo=None, at=None, prices=["1500"]),
    ]
    mirroring = Mirroring(tmp_path, settings).deliver([batch])
    mirroring.run(spark)
    place = mirroring.path("demo", "public", "items")
    assert [row["id"] for row in at(spark, place).orderBy("id").collect()] == [3]
    aside = spark.read.format("delta").load(f"{mirroring.checkpoint}/quarantine").orderBy("offset").collect()
    assert [row["reason"].split(": ")[0].rpartition(" ")[2] for row in aside] == ["price", "photo", "prices"]
    assert all("columns.encodings" in row["reason"] for row in aside)
    columns["encodings"] = {"price": "text", "photo": "hex", "prices": "text"}
    replay(Mirroring(tmp_path, settings).pipeline, spark=spark)
    found = [
        tuple(row) for row in at(spark, place).orderBy("id").select("price", "photo", "prices").collect()
    ]
    assert found == [
        (Decimal("1500.00"), None, []),
        (Decimal("15.00"), bytearray.fromhex("deadbeef"), None),
        (Decimal("5.00"), bytearray(1), [Decimal("1.50")]),
        (None, None, [Decimal("1500.00")]),
    ]
    moments = (
        at(spark, place).where("at IS NOT NULL").orderBy("id").selectExpr("CAST(at AS STRING)").collect()
    )
    assert [row[0] for row in moments] == ["1970-01-02 00:00:00", "2026-01-02 01:04:05"]


PRICES = table("prices", decimal("price", 8, 2), Column("note", "string", optional=True), key=("price",))
MOMENTS = table(
    "moments", Special("at", "int64", optional=True, name_of_type="io.debezium.time.NanoTimestamp")
)
KEYS = table("keys", Special("at", "int64", name_of_type="io.debezium.time.MicroTimestamp"), key=("at",))


@pytest.mark.long
@pytest.mark.guarantee(
    "A value that a type cannot hold exactly is kept as text, refused by name or, below the microsecond and "
    "outside of keys, rounded and reported; it is never a key and never null"
)
def test_values_that_debezium_sends_in_another_form(spark: SparkSession, tmp_path: Path) -> None:
    """Numbers in the header of a key change, another placeholder, seven digits, and keys without a value."""
    shop = Shop()
    before, after = (
        {"id": 1, "price": "bg==", "note": "kept"},
        {"id": 1, "price": "bw==", "note": "__left_out"},
    )
    first = [
        *shop.create(PRICES, **before),
        *shop.create(MOMENTS, id=1, at=1_772_284_455_123_456_000),
        *shop.create(KEYS, id=1, at=2**63 - 1),
        *[{**each, "key": '{"at": null}'} for each in shop.create(KEYS, id=2, at=5)],
        *shop.create(KEYS, id=3, at=5),
    ]
    gone, tombstone, made = PRICES.move(shop.next(), before, after)
    gone = replace(gone, headers=(("__debezium.newkey", '{"price":1.11}'),))
    made = replace(made, headers=(("__debezium.oldkey", '{"price":1.10}'),))
    second = [
        *shop.send(PRICES, gone, tombstone, made),
        *shop.create(MOMENTS, id=2, at=1_772_284_455_123_456_789),
    ]
    third = shop.create(MOMENTS, id=3, at=1_772_284_455_123_456_789)
    settings = {"envelope": {"format": "debezium", "unavailableValuePlaceholder": "__left_out"}}
    mirroring = Mirroring(tmp_path, settings).deliver([first, second, third])
    mirroring.run(spark)
    prices = at(spark, mirroring.path("demo", "public", "prices")).select("price", "note").collect()
    assert [tuple(row) for row in prices] == [(Decimal("1.11"), "kept")]
    moments = at(spark, mirroring.path("demo", "public", "moments")).orderBy("id").collect()
    assert [row["at"].microsecond for row in moments] == [123456] * 3
    assert at(spark, mirroring.path("demo", "public", "keys")).count() == 1
    aside = spark.read.format("delta").load(f"{mirroring.checkpoint}/quarantine").orderBy("offset").collect()
    assert ["at, which is infinity" in aside[0]["reason"], "at is null" in aside[1]["reason"]] == [True, True]
    audit = spark.read.format("delta").load(f"{mirroring.checkpoint}/audit").where("source LIKE '%moments'")
    drift = [each for row in audit.where("drift IS NOT NULL").collect() for each in json.loads(row["drift"])]
    assert [(each["column"], each["change"], each["action"]) for each in drift] == [
        ("at", "finer", "rounded")
    ]
