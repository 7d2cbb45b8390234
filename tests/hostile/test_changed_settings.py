"""Settings that change after mirrors exist: carried out on stored rows, or refused by name."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakemirror.driver.runtime.summary import RunSummary
from lakemirror.driver.tables.mirror import DELETE_PROPERTY, SELECTION_PROPERTY
from tests.support.mirroring import Mirroring
from tests.support.records import Column, Record, Row
from tests.support.records import Table as SourceTable
from tests.support.shop import Shop, decimal, table

SOFT = {"type": "soft", "column": "gone"}


@dataclass(frozen=True)
class Case:
    """Settings of a table before and after, and how it ends.

    `refused` is a part of the error, `rows` what the mirror shows afterwards: row 1 is not
    changed after it, row 2 is, row 3 was deleted before, and row 4 is new.
    """

    name: str
    before: Mapping[str, Any] = field(default_factory=dict)
    after: Mapping[str, Any] = field(default_factory=dict)
    refused: str = ""
    rows: list[Row] = field(default_factory=list)
    lacking: dict[str, int] = field(default_factory=dict)
    """The columns in which rows have no values, and in how many, as the drift says."""
    by_hand: str = ""
    """A column that somebody adds to the mirror in between."""
    forgets: str = ""
    """A property that a mirror from before does not have."""


ROW_1, ROW_2, ROW_4 = (
    {"id": 1, "ssn": "one", "q": 10, "price": "1.50"},
    {"id": 2, "ssn": "two", "q": 22, "price": "2.50"},
    {"id": 4, "ssn": "four", "q": 40, "price": "4.50"},
)


def changed(**names: str) -> list[Row]:
    """The rows with other names of columns, each of which keeps its former name in the mirror."""
    found = []
    for row, stays in ((ROW_1, True), (ROW_2, False), (ROW_4, False)):
        new = {after: row[before] for before, after in names.items()}
        left = {before: row[before] if stays else None for before in names}
        found.append({**row, **left, **new})
    return found


def columns(**settings: Any) -> dict[str, Any]:
    return {"columns": settings}


def all_versions(*, with_delete: bool = False) -> list[Row]:
    """The rows of a mirror that keeps former states: that of row 2, and the deleted row 3."""
    old_2, gone_3 = {**ROW_2, "q": 2}, {"id": 3, "ssn": "three", "q": 30, "price": "3.50"}
    kept = [{**row, "total": row["q"]} for row in (ROW_1, old_2, gone_3)]
    new = [{**row, "total": row["q"], "q": None} for row in (ROW_2, ROW_4)]
    return [kept[0], kept[1], new[0], kept[2], *([kept[2]] if with_delete else []), new[1]]


CASES = [
    Case("nothing", rows=[ROW_1, ROW_2, ROW_4]),
    Case("hard_to_soft", after={"delete": SOFT}, refused="was made with the delete hard"),
    Case("soft_to_hard", before={"delete": SOFT}, refused="was made with the delete soft, column gone"),
    Case(
        "soft_elsewhere",
        before={"delete": SOFT},
        after={"delete": {"type": "soft", "column": "deleted_at"}},
        refused="was made with the delete soft, column gone",
    ),
    Case("old_hard_to_soft", after={"delete": SOFT}, forgets=DELETE_PROPERTY, refused="the delete hard"),
    Case("old_soft_to_hard", before={"delete": SOFT}, forgets=DELETE_PROPERTY, refused="the delete soft"),
    Case("old_hard", forgets=DELETE_PROPERTY, rows=[ROW_1, ROW_2, ROW_4]),
    Case("excluded", after=columns(exclude=["ssn"]), refused="has the column ssn, and"),
    Case("old_excluded", after=columns(exclude=["ssn"]), forgets=SELECTION_PROPERTY, refused="column ssn"),
    Case("included", after=columns(include=["id", "q", "price"]), refused="has the column ssn, and"),
    Case(
        "included_beside_one_by_hand",
        after=columns(include=["id", "ssn", "q", "price"]),
        by_hand="mine",
        rows=[{**row, "mine": None} for row in (ROW_1, ROW_2, ROW_4)],
    ),
    Case("excluded_in_vain", after=columns(exclude=["other"]), rows=[ROW_1, ROW_2, ROW_4]),
    Case(
        "included_again",
        before=columns(exclude=["ssn"]),
        rows=[{**ROW_1, "ssn": None}, ROW_2, ROW_4],
        lacking={"ssn": 2},
    ),
    Case(
        "renamed_to_another_type",
        after=columns(rename={"q": "total"}, types={"q": "smallint"}),
        rows=[{**row, "total": None if row["id"] == 1 else row["total"]} for row in changed(q="total")],
        lacking={"total": 2},
    ),
    Case("number_renamed", after=columns(rename={"q": "total"}), rows=changed(q="total")),
    Case(
        "renamed_in_versions",
        before={"mode": "scd2"},
        after={"mode": "scd2", **columns(rename={"q": "total"})},
        rows=all_versions(),
    ),
    Case(
        "renamed_in_events",
        before={"mode": "append"},
        after={"mode": "append", **columns(rename={"q": "total"})},
        rows=all_versions(with_delete=True),
    ),
    Case("text_renamed", after=columns(rename={"ssn": "word"}), rows=changed(ssn="word")),
    Case("two_renamed", after=columns(rename={"q": "a", "price": "b"}), rows=changed(q="a", price="b")),
    Case(
        "old_renamed",
        after=columns(rename={"q": "total"}),
        forgets=SELECTION_PROPERTY,
        rows=changed(q="total"),
    ),
    Case(
        "renamed_to_another",
        before=columns(rename={"q": "m"}),
        after=columns(rename={"q": "total"}),
        rows=[
            {("m" if name == "q" else name): value for name, value in r.items()} for r in changed(q="total")
        ],
    ),
    Case("renamed_to_a_column", after=columns(rename={"q": "ssn", "ssn": "s"}), refused="has a column ssn"),
]


def source(case: Case) -> SourceTable:
    columns_ = Column("ssn", "string", optional=True), Column("q", "int32"), decimal("price", 6, 2)
    return table(case.name, *columns_, full=True)


def mirroring(folder: Path, after: bool) -> Mirroring:
    settings = [{"source": c.name, **(c.after if after else c.before)} for c in CASES]
    return Mirroring(folder, {"tables": settings, "spark": {"resetToken": ""}})


def price(text: str) -> str:
    """The unscaled value of a decimal, as Connect's JSON converter sends it."""
    number = int(Decimal(text).scaleb(2))
    return base64.b64encode(number.to_bytes((number.bit_length() + 8) // 8, "big", signed=True)).decode()


def sent(row: Row) -> Row:
    return {**row, "price": price(row["price"])}


pytestmark = pytest.mark.long
"""Twenty tables, twice; what is decided without Spark is in driver/plan/test_selection."""


@pytest.fixture(scope="module")
def ended(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Mirroring, RunSummary]:
    folder = tmp_path_factory.mktemp("changed")
    first: list[Record] = []
    second: list[Record] = []
    for case in CASES:
        shop, of = Shop(), source(case)
        gone = {"id": 3, "ssn": "three", "q": 30, "price": "3.50"}
        first += [r for row in (ROW_1, {**ROW_2, "q": 2}, gone) for r in shop.create(of, **sent(row))]
        first += shop.delete(of, **sent(gone))
        second += shop.update(of, **sent(ROW_2))
        second += shop.create(of, **sent(ROW_4))
    assert mirroring(folder, after=False).deliver([first]).run(spark).counts.refused == 0
    for case in CASES:
        if case.by_hand:
            place = mirroring(folder, after=False).path("demo", "public", case.name)
            spark.sql(f"ALTER TABLE delta.`{place}` ADD COLUMNS ({case.by_hand} STRING)")
        if case.forgets:
            place = mirroring(folder, after=False).path("demo", "public", case.name)
            spark.sql(f"ALTER TABLE delta.`{place}` UNSET TBLPROPERTIES ('{case.forgets}')")
    now = mirroring(folder, after=True).deliver([second])
    return now, now.run(spark)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_setting_that_changes(spark: SparkSession, ended: tuple[Mirroring, RunSummary], case: Case) -> None:
    now, summary = ended
    result = summary.tables[f"demo.public.{case.name}"]
    if case.refused:
        assert case.refused in (result.error or "")
        assert result.counts.refused == 2
        return
    assert result.error is None
    lacking = {each.column: each.rows for each in result.drift if each.action == "added-without-values"}
    assert lacking == case.lacking
    place = now.path("demo", "public", case.name)
    stored = spark.read.format("delta").load(place).orderBy("id", "__seq").collect()
    rows = [{name: v for name, v in row.asDict().items() if not name.startswith("__")} for row in stored]
    shown = [
        {name: str(v) if name in ("price", "b") and v is not None else v for name, v in r.items()}
        for r in rows
    ]
    assert shown == case.rows
