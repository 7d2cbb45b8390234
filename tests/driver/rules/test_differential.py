"""The driver's engine and the rules make the same of the same records.

Rows with their metadata, versions, tombstones, counts, reasons and drift are compared, after generated
histories of several tables, in mirrors of each mode, in a delivery that is shuffled, cut and doubled. Each
difference is a mistake in one of them.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.agreement import DELETED_AT, assert_agreement
from tests.support.delivery import Batches, cut, doubled, parts, restarted, shuffled
from tests.support.histories import History, Shape, Step, many, play
from tests.support.mirroring import Mirroring
from tests.support.records import UNAVAILABLE, PostgresPosition, Topic

pytestmark = pytest.mark.guarantee("The rules and the driver's engine make the same of the same records")


def histories(number: int, size: int, *, modes: bool) -> list[History]:
    """Tables with open transactions beside a snapshot, a binlog, incremental snapshots, and truncates.

    With ``modes``, some of them end in versions, in rows of soft deletes, and in a list of events.
    """
    rnd = random.Random(number)
    opening = [Step(h, "put", rnd.randrange(3), big=h % 4, joined=True) for h in range(0, size, 3)]
    late = many(range(size), rnd)
    reread = [*late[: len(late) * 2 // 3], Step(0, "reread"), *late[len(late) * 2 // 3 :]]
    plain = size > 10  # many records: schemas in each would take most of the time
    played = [
        play([*opening, *many(range(size), rnd)], Shape(snapshot="open", schemas=not plain, name="items")),
        play(many(range(size), rnd), Shape(source="mariadb", name="stock", schemas=False)),
        play(reread, Shape(snapshot="none", schemas=not plain, name="unread")),
        play(many(range(size), rnd, truncates=3), Shape(schemas=not plain, name="wiped")),
        play(many(range(size), rnd), Shape(full=True, schemas=False, name="whole")),
    ]
    if not modes:
        return played
    return [
        *played,
        play(
            [*opening, *many(range(size), rnd, truncates=1)],
            Shape(snapshot="open", schemas=not plain, name="versions"),
        ),
        play(
            [*opening, *many(range(size), rnd, truncates=1)],
            Shape(snapshot="open", schemas=not plain, name="soft"),
        ),
        play(many(range(size), rnd, truncates=1), Shape(schemas=not plain, name="listed")),
    ]


SETTINGS = [
    {"source": "public.versions", "mode": "scd2"},
    {"source": "public.soft", "mode": "scd1", "delete": {"type": "soft", "column": DELETED_AT}},
    {"source": "public.listed", "mode": "append"},
]


ODD = replace(Shape(name="odd").table, name="odd")


def odd() -> Batches:
    """Rare things: changes at one position in two batches, and rows of an open transaction that come back."""
    taken, first = 9_000, PostgresPosition(9_000, None, 1, 10**15, "last")
    topic = Topic(ODD.topic)

    def row(i: int, v: int, big: str | None = "large") -> dict[str, Any]:
        return {"h": 0, "id": i, "v": v, "note": None, "big": big}

    def opened(lsn: int, last: int | None = None) -> PostgresPosition:
        return PostgresPosition(lsn, last, 2, 10**15 + lsn)

    gap = UNAVAILABLE
    late = opened(taken + 500, taken + 400)
    batches = [
        [ODD.read(first, row(i, 0)) for i in range(3)] + [*ODD.delete(opened(8_000), row(0, 0))],
        [
            ODD.create(opened(8_100), row(0, 1, "came back")),
            ODD.update(opened(8_200), row(1, 1, gap), row(1, 0)),
        ],
        [
            ODD.update(late, row(1, 2, "one"), row(1, 1)),
            ODD.update(opened(taken + 600, taken + 550), row(0, 2, gap), row(0, 1)),
        ],
        [
            ODD.update(late, row(1, 3, "two"), row(1, 2)),
            *ODD.delete(opened(taken + 700, taken + 650), row(0, 2)),
        ],
        [
            ODD.create(opened(taken + 690, taken + 650), row(0, 9)),
            *ODD.delete(opened(taken + 700, taken + 650), row(0, 9)),
        ],
    ]
    return [list(topic.append(batch)) for batch in batches]


def beside(tables: list[Batches]) -> Batches:
    """Batches that have a part of each table."""
    most = max(map(len, tables))
    return [[r for table in tables if n < len(table) for r in table[n]] for n in range(most)]


def deliveries(played: list[History], number: int, batches: int) -> Batches:
    rnd = random.Random(-number)
    ways = [
        lambda records: parts(shuffled(records, number), batches),
        lambda records: cut(doubled(records), 2 * len(records) // batches + 1),
        lambda records: parts(restarted(records, back=20, every=60), batches),
        lambda records: parts(records, batches),
    ]
    return beside([rnd.choice(ways)(each.records) for each in played])


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_engine_and_the_rules_agree(spark: SparkSession, tmp_path: Path) -> None:
    compare(spark, tmp_path, number=7, size=10)


@pytest.mark.thorough
@pytest.mark.timeout(3000)
def test_the_engine_and_the_rules_agree_in_each_mode(spark: SparkSession, tmp_path: Path) -> None:
    compare(spark, tmp_path, number=7, size=10, modes=True)


@pytest.mark.thorough
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("number", range(13))
def test_the_engine_and_the_rules_agree_on_many_histories(
    number: int, spark: SparkSession, tmp_path: Path
) -> None:
    """Together, these are more than 10,000 histories: a hundred in each of eight tables."""
    compare(spark, tmp_path, number=number, size=100, modes=True, batches=3)


SELECTED = [
    {"source": "public.items", "columns": {"rename": {"big": "large", "id": "number"}, "exclude": ["note"]}},
    {"source": "public.soft", "columns": {"include": ["h", "id", "big"], "rename": {"big": "v"}}},
    {"source": "public.versions", "columns": {"rename": {"v": "value", "h": "house"}}},
    {"source": "public.listed", "columns": {"include": ["id", "v"], "rename": {"v": "id2"}}},
]


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_the_engine_and_the_rules_agree_on_columns_that_are_chosen_and_renamed(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A new name may be that of a column that is left out. Values come late, and tables are truncated."""
    modes = {each["source"]: each for each in SETTINGS}
    asked = [{**modes.get(each["source"], {}), **each} for each in SELECTED]
    named = {each["source"].partition(".")[2] for each in asked}
    played = [each for each in histories(3, 10, modes=True) if each.shape.name in named]
    mirroring = Mirroring(tmp_path, {"tables": asked})
    mirroring.deliver(beside([parts(shuffled(doubled(each.records), 3), 3) for each in played]))
    mirroring.run(spark)
    assert_agreement(spark, mirroring)


def compare(
    spark: SparkSession, folder: Path, number: int, size: int, *, modes: bool = False, batches: int = 5
) -> None:
    played = histories(number, size, modes=modes)
    sent = beside([deliveries(played, number, batches), odd()])
    mirroring = Mirroring(folder, {"tables": SETTINGS if modes else []}).deliver(sent)
    mirroring.run(spark)
    assert_agreement(spark, mirroring)
