"""Several tables at once, of several logs and partitions, from records to rows, by the rules alone.

What a pipeline meets together: sources of several kinds, positions that start again (a failover, with its
epoch), columns that are added while records without them still come, transactions that were open during a
snapshot, rows that are read again, moves, gaps and truncates; delivered shuffled, cut and doubled. The judge
is `tests.support.reference`, for each table.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable

import pytest

from lakemirror.driver.rules.envelopes.records import Ordering, Settings
from lakemirror.driver.rules.positions import Epoch
from tests.driver.rules.test_histories import over_partitions
from tests.support.delivery import cut, doubled, interleaved, parts, restarted, shuffled, whole
from tests.support.histories import History, Key, Shape, Step, failed_over, many, play
from tests.support.records import Record, Row, payload
from tests.support.reference import Mirror
from tests.support.rule_engine import Engine

pytestmark = pytest.mark.guarantee(
    "What becomes of a row depends on what happened to it, not on the order in which its events "
    "arrive or how they are cut into batches"
)

NO_ROW_YET = ("the key is missing or does not fit (key columns: h, id)", "no row of ")
"""How reasons begin if a delete without a schema, or a truncate, comes before all rows of its table."""

IN_ORDER = ("whole", "cut", "doubled", "restarted", "shuffled in one batch")


def tables(number: int) -> list[tuple[History, int]]:
    """Two to four tables, each with the number of records before its positions start again."""
    rnd = random.Random(number)
    return [_table(f"t{n}", rnd) for n in range(rnd.randint(2, 4))]


def _table(name: str, rnd: random.Random) -> tuple[History, int]:
    source = rnd.choice(("postgres", "postgres", "mariadb"))
    full, seed = rnd.random() < 0.3, rnd.randrange(10**6)
    schemas = rnd.random() < 0.1
    shape = Shape(source, rnd.choice(("initial", "open", "none")), full, schemas, name, seed=seed)  # type: ignore[arg-type]
    former = play(_steps(rnd, shape), shape)
    if rnd.random() < 0.5 or not former.rows:
        return former, len(former.records)
    again = Shape(source, rnd.choice(("initial", "none")), full, schemas, name, seed=seed + 1)  # type: ignore[arg-type]
    return failed_over(former, play(_steps(rnd, again), again, former.rows)), len(former.records)


def _steps(rnd: random.Random, shape: Shape) -> list[Step]:
    steps = many(range(2), rnd, most=8, truncates=rnd.choice((0, 0, 1)))
    if shape.snapshot == "none" and rnd.random() < 0.5:
        steps.insert(rnd.randint(1, len(steps)), Step(0, "reread"))
    return steps


def without_note(records: Iterable[Record]) -> list[Record]:
    """The records as they were before a column was added. Deletes may show it."""
    return [_without_note(each) for each in records]


def _without_note(record: Record) -> Record:
    change = json.loads(record["value"]) if record["value"] else {}
    if not change.get("after"):
        return record
    after = {name: value for name, value in change["after"].items() if name != "note"}
    return {**record, "value": json.dumps({**change, "after": after})}


def check(number: int) -> None:
    rnd, name = random.Random(number), random.Random(-number).choice((*IN_ORDER, "partitions", "shuffled"))
    played = tables(number)
    records: list[Record] = []
    begins: dict[tuple[str, int], int] = {}
    expected: dict[str, dict[Key, Row]] = {}
    left_out: dict[str, frozenset[int]] = {}
    for history, count in played:
        mine = history.records
        if not history.shape.schemas:
            added = rnd.randint(0, len(mine))
            mine = [*without_note(mine[:added]), *mine[added:]]
        halves = [mine[:count], mine[count:]]
        if name == "restarted":
            back, every = rnd.randint(1, 9), rnd.randint(2, 9)
            halves = [restarted(half, back=back, every=every) for half in halves]
        sent = over_partitions([*halves[0], *halves[1]], rnd.randint(1, 3))
        for record in sent[len(halves[0]) :]:
            place = record["topic"], record["partition"]
            begins[place] = min(begins.get(place, record["offset"]), record["offset"])
        table = history.shape.table
        title = ".".join(each for each in (table.db, table.schema, table.name) if each)
        rows = Mirror().replay(mine).tables
        expected[title] = next(iter(rows.values()), {})
        left_out[title] = _left_out(history, name)
        records += sent
    engine = Engine(settings=Settings(Ordering(epochs=(Epoch(1, begins),))))
    batches = {
        "whole": lambda: whole(records),
        "cut": lambda: cut(records, rnd.randint(5, 40)),
        "doubled": lambda: cut(doubled(records), rnd.randint(5, 40)),
        "restarted": lambda: cut(records, rnd.randint(5, 40)),
        "shuffled in one batch": lambda: whole(shuffled(records, number)),
        "partitions": lambda: parts(interleaved(records, number), rnd.randint(1, 5)),
        "shuffled": lambda: parts(shuffled(doubled(records), number), rnd.randint(2, 6)),
    }[name]()
    for batch in batches:
        engine.deliver(batch)
    counted = sum(engine.unknown.values()) + sum(each.counts.total() for each in engine.tables.values())
    assert counted == sum(map(len, batches))
    for title, rows in expected.items():
        if title not in engine.tables:
            assert not rows  # the source has nothing of this table
            continue
        found = {key: dict(row.values) for key, row in engine.tables[title].rows.items()}
        assert _known(found, left_out[title]) == _known(rows, left_out[title]), title
        assert all(each.startswith(NO_ROW_YET) for each in engine.tables[title].reasons.values())


def _left_out(history: History, name: str) -> frozenset[int]:
    """Return the histories that nothing could tell from others that end otherwise."""
    if name == "restarted":
        return history.repeats_a_beginning()
    left_out = frozenset() if name in IN_ORDER else history.needs_a_reused_image()
    if name == "shuffled":
        left_out |= history.needs_the_place_of_a_value() | history.retakes_a_key_at_once()
    return left_out


def _known(rows: dict[Key, Row], left_out: frozenset[int]) -> dict[Key, Row]:
    """The rows without nulls: what a record of an older schema does not have is null in the mirror."""
    return {
        key: {name: value for name, value in row.items() if value is not None}
        for key, row in rows.items()
        if key[0] not in left_out
    }


def test_pipelines_end_in_the_rows_of_their_sources() -> None:
    for number in range(300):
        check(number)


@pytest.mark.thorough
@pytest.mark.parametrize("first", range(1000, 11_000, 1000))
def test_very_many_pipelines_end_in_the_rows_of_their_sources(first: int) -> None:
    for number in range(first, first + 1000):
        check(number)


def test_pipelines_have_what_they_are_made_for() -> None:
    """Histories that never fail over, or tables that share no run, would show nothing."""
    played = [each for number in range(50) for each in tables(number)]
    assert sum(count < len(history.records) for history, count in played) > 20
    assert {history.shape.source for history, _ in played} == {"postgres", "mariadb"}
    truncates = [
        r for history, _ in played for r in history.records if payload(r["value"] or "{}").get("op") == "t"
    ]
    assert len(truncates) > 20
