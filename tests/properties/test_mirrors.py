"""Hundreds of generated histories, delivered in every way there is, end in the rows of their source.

All histories of one kind of source share a table, all tables one run; each delivery is one run. After it

- every table equals the source's rows, and the model that replayed the same records in order agrees;
- no key, at any version of a table, shows a row older than one it showed before, or one the source never had.

To look into a failure: the report names histories; play their steps alone with `play([...], shape)`.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.delivery import Batches, cut, doubled, interleaved, parts, restarted, shuffled, whole
from tests.support.histories import History, Key, Shape, Step, key_of, many, play
from tests.support.mirroring import Mirroring, at, commits
from tests.support.records import Record, Row
from tests.support.reference import Mirror

METADATA = {"CREATE TABLE", "ADD COLUMNS", "CHANGE COLUMN", "SET TBLPROPERTIES"}
"""Operations that change no row."""


def _histories() -> list[History]:
    """About 300 histories in four tables."""
    rnd = random.Random(20_261)
    opening = [Step(h, "put", rnd.randrange(3), big=h % 4, joined=True) for h in range(0, 150, 3)]
    items = play([*opening, *many(range(150), rnd)], Shape(snapshot="open", name="items"))
    late = many(range(60), rnd)
    reread = [*late[: len(late) * 2 // 3], Step(0, "reread"), *late[len(late) * 2 // 3 :]]
    return [
        items,
        play(many(range(50), rnd), Shape(source="mariadb", name="stock", schemas=False)),
        play(reread, Shape(snapshot="none", name="unread")),
        play(many(range(40), rnd, truncates=4), Shape(name="wiped")),
    ]


HISTORIES = _histories()
IN_ORDER = [record for history in HISTORIES for record in history.records]
FEW = play(many(range(24), random.Random(3)), Shape(name="few"))


@dataclass(frozen=True)
class Delivery:
    """A way to deliver. `ordered`: each batch continues the source's order, so no commit waits for values."""

    name: str
    batches: Callable[[Sequence[Record]], Batches]
    ordered: bool = False
    complete: bool = True
    marks: tuple[pytest.MarkDecorator, ...] = (pytest.mark.timeout(900),)


LONG = (pytest.mark.long, pytest.mark.timeout(900))
THOROUGH = (pytest.mark.thorough, pytest.mark.timeout(900))
SOAK = (pytest.mark.soak, pytest.mark.timeout(1800))


def _side_by_side(size: int) -> Callable[[Sequence[Record]], Batches]:
    """Batches that take a part of each table."""

    def deliver(_: Sequence[Record]) -> Batches:
        tables = [parts(history.records, size) for history in HISTORIES]
        return [[r for table in tables for r in (table[n] if n < len(table) else [])] for n in range(size)]

    return deliver


DELIVERIES = (
    Delivery("as it is", whole, ordered=True, marks=SOAK),
    Delivery("each record twice", lambda records: whole(doubled(records)), marks=THOROUGH),
    Delivery("in three batches", _side_by_side(3), ordered=True, marks=THOROUGH),
    Delivery("in ten batches", _side_by_side(10), ordered=True, marks=SOAK),
    Delivery(
        "after restarts of the connector",
        lambda records: parts(
            [r for history in HISTORIES for r in restarted(history.records, back=90, every=300)], 3
        ),
        marks=THOROUGH,
    ),
    Delivery("partitions merged otherwise", lambda records: parts(interleaved(records, 1), 3), marks=SOAK),
    Delivery("shuffled", lambda records: whole(shuffled(records, 2)), marks=LONG),
    Delivery(
        "shuffled, in four batches",
        lambda records: parts(shuffled(records, 3), 4),
        complete=False,
        marks=SOAK,
    ),
    Delivery(
        "shuffled, in nine batches",
        lambda records: parts(shuffled(records, 4), 9),
        complete=False,
        marks=SOAK,
    ),
)


@pytest.mark.thorough
@pytest.mark.guarantee("A mirror equals its source after any delivery")
@pytest.mark.parametrize("delivery", [pytest.param(d, id=d.name, marks=d.marks) for d in DELIVERIES])
def test_histories_end_in_the_rows_of_their_source(
    delivery: Delivery, spark: SparkSession, tmp_path: Path
) -> None:
    """In `shuffled, in ... batches`, histories are left out in which a row moved to another key without its
    TOASTed value while its old key was used again: the image that it needs can be overwritten before the move
    is known."""
    _check(spark, Mirroring(tmp_path).deliver(delivery.batches(IN_ORDER)), delivery, HISTORIES)


@pytest.mark.guarantee("A mirror equals its source after any delivery")
def test_a_few_histories(spark: SparkSession, tmp_path: Path) -> None:
    """What the longer tests do with hundreds, so that each run of the tests has seen it."""
    delivery = Delivery(
        "shuffled, in two batches", lambda records: parts(shuffled(records, 2), 2), complete=False
    )
    _check(spark, Mirroring(tmp_path).deliver(delivery.batches(FEW.records)), delivery, [FEW])


def _check(
    spark: SparkSession, mirroring: Mirroring, delivery: Delivery, histories: Sequence[History]
) -> None:
    mirroring.run(spark)
    for history in histories:
        left_out = frozenset() if delivery.complete else history.needs_a_reused_image()
        path = _path(mirroring, history)
        _compare(
            history, {key: row for key, row in _rows(spark, path).items() if key[0] not in left_out}, left_out
        )
        _never_backwards(history, spark, path, exactly=delivery.ordered, left_out=left_out)


@pytest.mark.guarantee("A row never goes backwards")
@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_every_commit_of_an_ordered_delivery_is_a_past_state_of_the_source(
    spark: SparkSession, tmp_path: Path
) -> None:
    history = HISTORIES[-1]
    assert any(t.truncates for t in history.transactions)
    batches = cut(history.records, 60)
    mirroring = Mirroring(tmp_path).deliver(batches)
    mirroring.run(spark)
    states, mirror = [], Mirror()
    for batch in batches:
        mirror.replay(batch)
        states.append(copy.deepcopy(mirror.tables.get(f"public.{history.shape.name}", {})))
    path = _path(mirroring, history)
    seen = 0
    for version, operation, note in commits(spark, path):
        if "batch" in note and operation not in METADATA:
            assert _rows(spark, path, version) == states[note["batch"]]
            seen += 1
    assert seen >= len(batches) - 1


def _path(mirroring: Mirroring, history: History) -> str:
    table = history.shape.table
    return mirroring.path(table.db, table.schema, table.name)


def _rows(spark: SparkSession, path: str, version: int | None = None) -> dict[Key, Row]:
    found = [row.asDict() for row in at(spark, path, version).collect()]
    keyed = {key_of(row): row for row in found}
    assert len(keyed) == len(found), "a key has two rows"
    return keyed


def _compare(history: History, mirrored: dict[Key, Row], left_out: frozenset[int]) -> None:
    expected = {key: row for key, row in history.rows.items() if key[0] not in left_out}
    wrong = sorted(key for key in mirrored.keys() | expected if mirrored.get(key) != expected.get(key))
    report = "\n".join(
        f"{key}: source {expected.get(key)}, mirror {mirrored.get(key)}\n  {_steps(history, key[0])}"
        for key in wrong[:3]
    )
    assert not wrong, f"{history.shape.name}: {len(wrong)} rows of {len(expected)} are wrong:\n{report}"
    assert len(expected) > 10


def _steps(history: History, h: int) -> list[Step]:
    return [step for step in history.steps if step.h == h]


def _never_backwards(
    history: History, spark: SparkSession, path: str, *, exactly: bool, left_out: frozenset[int]
) -> None:
    """Each version of the table shows newer rows than the one before, and only rows that the source once had.

    With `exactly` also the TOASTed column is the source's; else it may wait for its value.
    """
    had = Mirror().replay(history.records).states
    states = next(iter(had.values()))
    newest: dict[Key, int] = {}
    before: dict[Key, Row] = {}
    for version, operation, _ in commits(spark, path):
        if operation in METADATA:
            continue
        now = _rows(spark, path, version)
        for key, row in now.items():
            if key[0] in left_out:
                continue
            compared = row.keys() if exactly else row.keys() - {"big"}
            past = [{name: state[name] for name in compared} for state in states[key]]
            assert {name: row[name] for name in compared} in past, f"the source never had {row}"
            again = key not in before and key in newest
            assert row["v"] >= newest.get(key, 0) + again, f"{key} went back to {row}"
            newest[key] = row["v"]
        before = now
