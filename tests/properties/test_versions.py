"""Mode scd2: generated histories, delivered in every way there is, end in the versions that a delivery in
order gives.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.delivery import Batches, doubled, parts, restarted, shuffled, whole
from tests.support.histories import History, Shape, Step, many, play
from tests.support.mirroring import Mirroring
from tests.support.records import Record
from tests.support.versions import History as Model
from tests.support.versions import mirrored, of_tracked

pytestmark = pytest.mark.guarantee(
    "A mirror of versions has the history of the source, in any order of delivery"
)


def _histories() -> list[History]:
    """About 50 histories in four tables."""
    rnd = random.Random(31)
    opening = [Step(h, "put", rnd.randrange(3), big=h % 4, joined=True) for h in range(0, 24, 3)]
    items = play([*opening, *many(range(24), rnd)], Shape(snapshot="open", name="items"))
    late = many(range(10), rnd)
    reread = [*late[: len(late) * 2 // 3], Step(0, "reread"), *late[len(late) * 2 // 3 :]]
    return [
        items,
        play(many(range(8), rnd), Shape(source="mariadb", name="stock", schemas=False)),
        play(reread, Shape(snapshot="none", name="unread")),
        play(many(range(10), rnd, truncates=4), Shape(name="wiped")),
    ]


HISTORIES = _histories()
IN_ORDER = [record for history in HISTORIES for record in history.records]
FEW = [play(many(range(8), random.Random(5), truncates=1), Shape(snapshot="open", name="few"))]


def _side_by_side(size: int, seed: int | None = None) -> Callable[[Sequence[Record]], Batches]:
    """Batches that take a part of each table."""

    def deliver(_: Sequence[Record]) -> Batches:
        given = [h.records if seed is None else shuffled(h.records, seed) for h in HISTORIES]
        tables = [parts(records, size) for records in given]
        return [[r for table in tables for r in (table[n] if n < len(table) else [])] for n in range(size)]

    return deliver


@dataclass(frozen=True)
class Delivery:
    name: str
    batches: Callable[[Sequence[Record]], Batches]
    marks: tuple[pytest.MarkDecorator, ...] = (pytest.mark.timeout(900),)


THOROUGH = (pytest.mark.thorough, pytest.mark.timeout(900))
SOAK = (pytest.mark.soak, pytest.mark.timeout(1800))

DELIVERIES = (
    Delivery("as it is", whole, THOROUGH),
    Delivery("in six batches", _side_by_side(6), THOROUGH),
    Delivery("each record twice, in two batches", lambda records: parts(doubled(records), 2), THOROUGH),
    Delivery("shuffled, in four batches", _side_by_side(4, 3), THOROUGH),
    Delivery("shuffled, in nine batches", _side_by_side(9, 4), SOAK),
    Delivery("backwards, in five batches", lambda records: parts(records[::-1], 5), SOAK),
    Delivery(
        "after restarts of the connector",
        lambda records: parts([r for h in HISTORIES for r in restarted(h.records, back=90, every=300)], 3),
        SOAK,
    ),
)


@pytest.mark.parametrize("delivery", [pytest.param(d, id=d.name, marks=d.marks) for d in DELIVERIES])
def test_any_delivery_ends_in_the_versions_of_one_in_order(
    delivery: Delivery, spark: SparkSession, tmp_path: Path
) -> None:
    _check(spark, Mirroring(tmp_path, {"defaults": {"mode": "scd2"}}), delivery.batches(IN_ORDER))


TRACKING = (
    Delivery("in six batches", _side_by_side(6), THOROUGH),
    Delivery("each record twice, in two batches", lambda records: parts(doubled(records), 2), THOROUGH),
    Delivery("shuffled, in four batches", _side_by_side(4, 5), THOROUGH),
    Delivery("backwards, in five batches", lambda records: parts(records[::-1], 5), SOAK),
)


@pytest.mark.parametrize("delivery", [pytest.param(d, id=d.name, marks=d.marks) for d in TRACKING])
def test_so_it_does_where_only_some_columns_begin_versions(
    delivery: Delivery, spark: SparkSession, tmp_path: Path
) -> None:
    tables = [{"source": h.shape.name, "mode": "scd2", "trackedColumns": ["note"]} for h in HISTORIES]
    _check(spark, Mirroring(tmp_path, {"tables": tables}), delivery.batches(IN_ORDER), tracked=["note"])


@pytest.mark.thorough
@pytest.mark.parametrize(
    "tracked",
    [
        pytest.param(None, id="all columns", marks=pytest.mark.thorough),
        pytest.param(["note"], id="one column", marks=pytest.mark.long),
    ],
)
def test_a_few_histories(tracked: list[str] | None, spark: SparkSession, tmp_path: Path) -> None:
    """What the thorough tests do with many, so that each run of the tests has seen it."""
    more = {} if tracked is None else {"trackedColumns": tracked}
    tables = [{"source": "few", "mode": "scd2", **more}]
    batches = parts(shuffled(FEW[0].records, 2), 2)
    _check(spark, Mirroring(tmp_path, {"tables": tables}), batches, FEW, tracked=tracked)


def _check(
    spark: SparkSession,
    mirroring: Mirroring,
    batches: Batches,
    histories: Sequence[History] = HISTORIES,
    tracked: Sequence[str] | None = None,
) -> None:
    """The mirrors have the versions of the model."""
    mirroring.deliver(batches).run(spark)
    for history in histories:
        table = history.shape.table
        found = mirrored(spark, mirroring.path(table.db, table.schema, table.name), ("h", "id"))
        expected = Model().replay(history.records).keys
        expected = {key: versions for key, versions in expected.items() if versions}
        if tracked is not None:
            expected = {key: of_tracked(versions, tracked) for key, versions in expected.items()}
        wrong = sorted(k for k in found.keys() | expected if found.get(k) != expected.get(k))
        report = "\n".join(
            f"{key}:\n  source {_lines(expected.get(key))}\n  mirror {_lines(found.get(key))}\n"
            f"  {[s for s in history.steps if s.h == key[0]]}"
            for key in wrong[:3]
        )
        assert not wrong, f"{table.name}: {len(wrong)} keys of {len(expected)} are wrong:\n{report}"
        now = {key: versions[-1].row for key, versions in found.items() if versions[-1].is_current}
        assert now == history.rows
        assert sum(map(len, found.values())) > len(found) > 10
        assert {each.begins for versions in expected.values() for each in versions} == {True, False}


def _lines(versions: object) -> str:
    return "\n         ".join(map(str, versions or []))  # type: ignore[call-overload]
