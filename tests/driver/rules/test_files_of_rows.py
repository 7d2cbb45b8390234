"""Rows of files, of each format: the driver's engine and the rules make the same of them.

The rules begin with the records that the driver reads from the files. A file that grew is read again as a
whole: a line that was incomplete is corrected.
"""

from __future__ import annotations

import csv
import datetime as dt
import json
import random
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from lakemirror.driver.read.files import waiting
from tests.support.agreement import DELETED_AT, assert_agreement, handed_over
from tests.support.custom_records import WORDS
from tests.support.mirroring import Mirroring
from tests.support.records import Row

pytestmark = pytest.mark.guarantee("The rules and the driver's engine make the same of the same records")

MODES: Mapping[str, Mapping[str, Any]] = {
    "rows": {"primaryKey": ["id"]},
    "soft": {"primaryKey": ["id"], "delete": {"type": "soft", "column": DELETED_AT}},
    "versions": {"primaryKey": ["id"], "mode": "scd2"},
    "listed": {"mode": "append"},
}
DMS = {"format": "custom", "fields": {"op": "Op"}, "opMap": {word: op for op, word in WORDS.items()}}
TYPES = {"id": "int", "v": "decimal(10,2)", "at": "timestamp_ntz", "yes": "boolean", "day": "date"}
NOW = dt.datetime(2026, 1, 1)


def changes(rnd: random.Random, count: int) -> list[Row]:
    """Flat rows, each with its op. Some are as they were before."""
    return [
        {
            "Op": rnd.choice(("I", "U", "U", "D", "")),
            "id": rnd.randrange(10),
            "v": rnd.choice((None, Decimal("0.00"), Decimal("-1.50"), Decimal("99999999.99"))),
            "at": rnd.choice((None, NOW, NOW + dt.timedelta(seconds=rnd.randrange(50), microseconds=1))),
            "note": rnd.choice((None, "", "a, b", 'said "hi"', "two\nlines", "żółw", "NULL")),
            "yes": rnd.choice((None, True, False)),
            "day": rnd.choice((None, dt.date(1969, 12, 31), dt.date(2024, 2, 29))),
        }
        for _ in range(count)
    ]


def files(number: int, odd: Sequence[Row]) -> dict[str, list[list[Row]]]:
    """The rows of two files of each table. The first table also has odd ones."""
    rnd = random.Random(number)
    made = {name: [changes(rnd, 30) for _ in range(2)] for name in MODES}
    made["rows"][1] += odd
    return made


def pipeline(folder: Path, form: str, envelope: Mapping[str, Any], more: Mapping[str, Any]) -> Mirroring:
    source = {"path": f"{folder}/input/*/*.{form}", "format": form, "maxFilesPerBatch": len(MODES)}
    source |= more.get("files", {})
    declared = {} if form in ("parquet", "avro") else {"columns": {"types": TYPES}}
    return Mirroring(
        folder,
        {
            "source": {"files": source},
            "envelope": envelope,
            "ordering": more.get("ordering", {"by": "auto"}),
            "tables": [{"source": name, **settings, **declared} for name, settings in MODES.items()],
            "target": {"path": f"{folder}/lake/{{table}}"},
        },
    )


def compare(spark: SparkSession, mirroring: Mirroring, runs: Iterable[None]) -> None:
    """Run a pipeline after each delivery, and compare what it made of all of them."""
    batches: list[Any] = []
    for _ in runs:
        with handed_over() as some:
            mirroring.run(spark)
        batches += some
    assert sum(map(len, batches)) > 0
    assert_agreement(spark, mirroring, batches)


def place(mirroring: Mirroring, table: str, file: str) -> Path:
    found = mirroring.folder / "input" / table / file
    found.parent.mkdir(parents=True, exist_ok=True)
    return found


def as_text(value: Any) -> Any:
    """A value as DMS writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    return value.isoformat(sep=" ") if isinstance(value, dt.datetime) else value


@pytest.mark.long
@pytest.mark.timeout(900)
def test_csv(spark: SparkSession, tmp_path: Path) -> None:
    mirroring = pipeline(tmp_path, "csv", DMS, {"files": {"csv": {"nullValue": "NULL"}}})
    odd: list[Row] = [{"Op": "I", "id": value, "v": "1"} for value in ("x", "1.5", "", "99999999999", None)]
    odd += [{"Op": "I", "id": 1, name: "x"} for name in ("v", "at", "yes", "day")]
    odd += [{"Op": "X", "id": 1}, {"id": 2}, {"Op": "I", "id": 3, "at": "0000-00-00"}]

    def deliver() -> Iterable[None]:
        made = files(1, odd)
        for file in range(2):
            for table, rows in made.items():
                with place(mirroring, table, f"{file}.csv").open("w", encoding="utf-8", newline="") as text:
                    names = ["Op", "id", *TYPES.keys() - {"id"}, "note"]
                    written = csv.DictWriter(text, sorted(names), restval="NULL")
                    written.writeheader()
                    written.writerows(
                        {name: "NULL" if each is None else as_text(each) for name, each in row.items()}
                        for row in rows[file]
                    )
                    text.write("1,2\n" if table == "rows" else "")
        yield

    compare(spark, mirroring, deliver())


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_json_that_grows(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last line of the first run is cut in the middle of a number. The whole line replaces it."""
    monkeypatch.setattr(waiting, "SETTLE_SECONDS", 0.2)
    mirroring = pipeline(tmp_path, "json", DMS, {})
    odd: list[Row] = [{"Op": "I", "id": value} for value in (None, "x", [1], 1.5, 2**40)]
    odd += [{"Op": "I", "id": 1, name: [1]} for name in ("v", "at", "yes", "day")]
    odd += [{"Op": None, "id": 4, "more": {"a": 1}}, {"Op": 5, "id": 4}, {"id": 4}]
    line = {"Op": "U", "id": 4, "v": 12}

    def written(rows: Iterable[Row]) -> str:
        return "".join(json.dumps(row, default=str, ensure_ascii=False) + "\n" for row in rows)

    def deliver() -> Iterable[None]:
        made = files(2, odd)
        for file in range(2):
            for table, rows in made.items():
                place(mirroring, table, f"{file}.json").write_text(written(rows[file]) + '{"id": \n[1]\n')
        for table in MODES:
            place(mirroring, table, "2.json").write_text(written([line]).removesuffix("2}\n"))
        yield
        for table in MODES:
            place(mirroring, table, "2.json").write_text(written([line, {**line, "id": 5}]))
        yield

    compare(spark, mirroring, deliver())


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_parquet_in_the_order_of_columns(spark: SparkSession, tmp_path: Path) -> None:
    ordering = {"by": "columns", "columns": ["at", "v"]}
    mirroring = pipeline(tmp_path, "parquet", DMS, {"ordering": ordering})
    schema = pa.schema(
        [
            *(
                ("Op", pa.string()),
                ("id", pa.int32()),
                ("v", pa.decimal128(10, 2)),
                ("at", pa.timestamp("us")),
            ),
            *(("note", pa.string()), ("yes", pa.bool_()), ("day", pa.date32())),
        ]
    )
    odd: list[Row] = [{"Op": "I", "id": None, "v": Decimal(1), "at": NOW}, {"Op": "X", "id": 1, "at": NOW}]

    def deliver() -> Iterable[None]:
        made = files(3, odd)
        for file in range(2):
            for table, rows in made.items():
                pq.write_table(
                    pa.Table.from_pylist(rows[file], schema), place(mirroring, table, f"{file}.parquet")
                )
        yield

    compare(spark, mirroring, deliver())
