"""Rows of files that come again: the driver's engine and the rules make the same of them.

The same content under another name, the same rows in other bytes, other content under a known name, and files
that grow. Which files are read is the driver's matter; the end that the documents promise is compared, too.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakemirror.driver.read.files import waiting
from tests.driver.rules.test_files_of_rows import DMS, MODES
from tests.support.agreement import assert_agreement, handed_over
from tests.support.histories import Shape, many, play
from tests.support.mirroring import Mirroring, at
from tests.support.records import Record, Row, payload

pytestmark = pytest.mark.guarantee("The rules and the driver's engine make the same of the same records")

Delivery = Callable[[Path], None]


def pipeline(folder: Path, form: str, settings: Mapping[str, Any], names: Iterable[str] = MODES) -> Mirroring:
    """One that reads all new files of all tables in one batch."""
    tables = [{"source": name, **MODES[name]} for name in names]
    spec = {
        "source": {"files": {"path": f"{folder}/input/*/*.{form}", "format": form, "maxFilesPerBatch": 1000}},
        "tables": tables,
        "target": {"path": f"{folder}/lake/{{table}}"},
        **settings,
    }
    for name in names:
        (folder / "input" / name).mkdir(parents=True)
    return Mirroring(folder, spec)


def compare(spark: SparkSession, mirroring: Mirroring, deliveries: Sequence[Delivery]) -> set[str]:
    """Run after each delivery, into the folder of each table. Returns the warnings of all runs."""
    batches: list[Any] = []
    warnings: set[str] = set()
    for deliver in deliveries:
        for table in mirroring.input.iterdir():
            deliver(table)
        with handed_over() as some:
            warnings |= set(mirroring.run(spark).warnings)
        batches += some
    assert_agreement(spark, mirroring, batches)
    return warnings


def rows_in(spark: SparkSession, mirroring: Mirroring, table: str, *names: str) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, at(spark, f"{mirroring.folder}/lake/{table}").select(*names).collect()))


# -- content that comes again -----------------------------------------------------------------------------


def flat(rnd: random.Random, first: int, keys: Sequence[int]) -> list[Row]:
    """Flat changes with a time that grows from one to the next."""
    return [
        {
            "Op": rnd.choice(("I", "U", "U", "D", "")),
            "id": rnd.choice(keys),
            "v": first + number,
            "at": f"2026-01-01T00:{(first + number) // 60:02}:{(first + number) % 60:02}Z",
        }
        for number in range(20)
    ]


def lines(rows: Iterable[Row]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def reversed_members(rows: Iterable[Row]) -> list[Row]:
    """The same rows, spelled otherwise."""
    return [dict(reversed(row.items())) for row in rows]


def last(rows: Iterable[Row]) -> list[tuple[int, int]]:
    newest = {row["id"]: row for row in rows}
    return sorted((key, row["v"]) for key, row in newest.items() if row["Op"] != "D")


TIMED = {"envelope": {**DMS, "fields": {"op": "Op", "timestamp": "at"}}}
COLUMNS = {"envelope": DMS, "ordering": {"by": "columns", "columns": ["v"]}}


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("settings", "dated"),
    [
        pytest.param({"envelope": DMS}, False, id="as new as their file"),
        pytest.param(TIMED, True, id="with a time"),
        pytest.param(COLUMNS, True, id="in the order of columns", marks=pytest.mark.thorough),
    ],
)
def test_content_that_comes_again(
    settings: Mapping[str, Any], dated: bool, spark: SparkSession, tmp_path: Path
) -> None:
    """Rows without a time of their own count again, if other content came in between. Others say nothing new.

    Other bytes are other content, whatever rows they hold: where rows have a time, these are as old as that.
    """
    rnd = random.Random(3)
    monday, tuesday = flat(rnd, 0, range(8)), flat(rnd, 20, range(4, 10))
    more = flat(rnd, 40, range(8, 14))
    mirroring = pipeline(tmp_path, "json", settings)

    def first(folder: Path) -> None:
        (folder / "0.json").write_text(lines(monday))
        (folder / "1.json").write_text(lines(tuesday))

    def second(folder: Path) -> None:
        (folder / "1.json").write_text(lines(more))  # other content under its name: it is not applied
        (folder / "2.json").write_text(lines(monday))
        (folder / "3.json").write_text(lines(reversed_members(tuesday)))

    def third(folder: Path) -> None:
        (folder / "0.json").write_text(lines([*monday, *more]))  # it has grown: its rows keep their place
        (folder / "4.json").write_text(lines(monday))
        (folder / "5.json").write_text(lines(monday))

    warnings = compare(spark, mirroring, [first, second, third])
    assert sum("1.json has changed since it was applied" in each for each in warnings) == len(MODES)
    assert sum("0.json has grown since" in each for each in warnings) == len(MODES)
    assert sum("is skipped" in each for each in warnings) == len(MODES) * (3 if dated else 1)
    if dated:
        told = [*monday, *tuesday, *more]
        listed = [*monday, *tuesday, *tuesday, *more]
    else:
        told = [*monday, *more, *tuesday, *monday, *tuesday, *monday]
        listed = told
    assert rows_in(spark, mirroring, "rows", "id", "v") == last(told)
    assert rows_in(spark, mirroring, "listed", "id", "v") == sorted((row["id"], row["v"]) for row in listed)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_lines_of_csv_that_are_corrected(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line that is cut in the middle of a number is a row. The whole line replaces what the driver made of
    it: the row, the version or the event. Another one was no row.
    """
    monkeypatch.setattr(waiting, "SETTLE_SECONDS", 0.2)
    mirroring = pipeline(tmp_path, "csv", {"envelope": DMS})
    cut = {"0.csv": "Op,id,v\nI,1,5\nU,1,12", "1.csv": "Op,id,v\nI,2,5\nU,2"}
    rest = {"0.csv": "34\nI,3,7\n", "1.csv": ",8\n"}

    def first(folder: Path) -> None:
        for name, text in cut.items():
            (folder / name).write_text(text)

    def second(folder: Path) -> None:
        (folder / "2.csv").write_text("Op,id,v\nU,3,9\n")
        for name, text in rest.items():
            (folder / name).write_text(cut[name] + text)

    compare(spark, mirroring, [first, second])
    assert rows_in(spark, mirroring, "rows", "id", "v") == [("1", "1234"), ("2", "8"), ("3", "9")]
    events = [("1", "1234"), ("1", "5"), ("2", "5"), ("2", "8"), ("3", "7"), ("3", "9")]
    assert rows_in(spark, mirroring, "listed", "id", "v") == events
    assert rows_in(spark, mirroring, "versions", "id", "v") == events


# -- events with a position -------------------------------------------------------------------------------


def events(number: int) -> list[Record]:
    """The events of a history, whose snapshot rows share one position. Files have no keys of Kafka."""
    shape = Shape(full=True, schemas=False, name="t")
    sent = play(many(range(5), random.Random(number), truncates=1), shape).records
    return [each for each in sent if each["value"] is not None]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_events_that_come_again_in_another_file(spark: SparkSession, tmp_path: Path) -> None:
    """The connector sends them again. Their position says that they are the same ones, also in a list."""
    sent = events(11)
    streamed = [each for each in sent if payload(each["value"])["op"] != "r"]
    tables = [{"source": "rows.t", "primaryKey": ["h", "id"]}, {"source": "listed.t", **MODES["listed"]}]
    target = {"path": f"{tmp_path}/lake/{{schema}}/{{table}}"}
    mirroring = pipeline(tmp_path, "json", {"tables": tables, "target": target}, ("rows", "listed"))

    def of(table: str, records: Iterable[Record]) -> str:
        changes = [payload(each["value"]) for each in records]
        return lines({**each, "source": {**each["source"], "schema": table}} for each in changes)

    def first(folder: Path) -> None:
        (folder / "0.json").write_text(of(folder.name, sent[: len(sent) // 2]))
        (folder / "1.json").write_text(of(folder.name, sent[len(sent) // 2 :]))

    def again(folder: Path) -> None:
        (folder / "2.json").write_text(of(folder.name, streamed))

    compare(spark, mirroring, [first, again])
    assert at(spark, f"{tmp_path}/lake/listed/t").count() == len(sent)


# -- keys that change -------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_row_whose_key_changed_in_a_file_that_grows(spark: SparkSession, tmp_path: Path) -> None:
    """In a list, its record makes two rows: the update, and the end of the row of the former key."""
    fields = {"op": "op", "before": "old", "after": "new", "key": "new.id"}
    envelope = {"format": "custom", "fields": fields}
    mirroring = pipeline(tmp_path, "json", {"envelope": envelope}, ("rows", "listed"))
    changes: list[Row] = [
        {"op": "c", "old": None, "new": {"id": 1, "v": 1}},
        {"op": "u", "old": {"id": 1, "v": 1}, "new": {"id": 2, "v": 2}},
        {"op": "u", "old": {"id": 2}, "new": {"id": 3, "v": 3}},
    ]
    more: Row = {"op": "u", "old": {"id": 3, "v": 3}, "new": {"id": 3, "v": 4}}

    def first(folder: Path) -> None:
        (folder / "0.json").write_text(lines(changes))

    def second(folder: Path) -> None:
        (folder / "0.json").write_text(lines([*changes, more]))

    compare(spark, mirroring, [first, second])
    assert rows_in(spark, mirroring, "rows", "id", "v") == [(3, 4)]
    listed = at(spark, f"{tmp_path}/lake/listed").collect()
    assert sorted((row["id"], row["v"] or 0) for row in listed) == [
        (1, 0),
        (1, 1),
        (2, 0),
        (2, 2),
        (3, 3),
        (3, 4),
    ]
