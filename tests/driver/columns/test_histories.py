"""Generated histories, shuffled, cut and doubled: columns make of each record what the rules make of it."""

from __future__ import annotations

import random

import pytest

from lakemirror.driver.columns.facts import Facts
from lakemirror.driver.rules.envelopes.records import TableName
from lakemirror.driver.rules.kinds import INT, STRING
from lakemirror.driver.rules.row_keys import KeyOfTable
from lakemirror.driver.rules.rows import Column
from lakemirror.driver.rules.schemas import fields_of_envelope
from lakemirror.driver.rules.untyped import loads
from tests.driver.rules.test_histories import ANYHOW, COMPLETE, over_partitions
from tests.support.columnar import Beside, records_of
from tests.support.histories import COLUMNS, History, Shape, Step, many, play
from tests.support.records import BinlogPosition, PostgresPosition

pytestmark = pytest.mark.guarantee(
    "What becomes of a row depends on what happened to it, not on the order in which its events "
    "arrive or how they are cut into batches"
)

KINDS = {each.name: INT if each.type == "int32" else STRING for each in COLUMNS}


def history(number: int, *, plain: bool = False) -> History:
    """One or two histories of one table, by number; ``plain`` ones have nothing but changes of whole rows."""
    rnd = random.Random(number)
    source = rnd.choice(("postgres", "postgres", "mariadb"))
    snapshot = "initial" if plain else rnd.choice(("initial", "open", "none"))
    full = plain or rnd.random() < 0.5
    shape = Shape(source, snapshot, full=full, schemas=rnd.random() < 0.5, seed=number)
    steps = many(range(rnd.choice((1, 2))), rnd, truncates=0 if plain else rnd.choice((0, 0, 0, 1)))
    if plain:
        steps = [each._replace(verb=rnd.choice(("put", "put", "drop", "again"))) for each in steps]
    elif snapshot == "none" and source == "postgres" and rnd.random() < 0.7:
        steps.insert(rnd.randint(1, len(steps)), Step(0, "reread"))
    return play(steps, shape)


def facts_of(played: History) -> Facts:
    """What is known of the table of a history."""
    table = TableName("demo", "public" if played.shape.source == "postgres" else None, "items")
    connector = "postgresql" if played.shape.source == "postgres" else "mariadb"
    columns = {name: Column(name, kind) for name, kind in KINDS.items()}
    schema = key_schema = None
    if played.shape.schemas:
        place = PostgresPosition(1, 1, 1, 1)
        if played.shape.source == "mariadb":
            place = BinlogPosition("binlog.000001", 1, 0, None, 1)
        line = played.shape.table.create(place, dict.fromkeys(KINDS, 0))
        schema, key_schema = (loads(each or "")["schema"] for each in (line.value, line.key))
        columns = {each.name: Column.of(each) for each in fields_of_envelope(schema)}
    key = KeyOfTable(["h", "id"], {name: columns[name] for name in ("h", "id")})
    return Facts(table, columns, key, connector, schema=schema, key_schema=key_schema)


def check(number: int, *, soft: bool = False, plain: bool = False) -> Beside:
    played, rnd = history(number, plain=plain), random.Random(-number - 1)
    deliver = {**COMPLETE, **ANYHOW}[rnd.choice(sorted({**COMPLETE, **ANYHOW}))]
    tracked = () if played.shape.table.full else ("v", "note", "big")
    beside = Beside(facts_of(played), soft, tracked)
    for batch in deliver(over_partitions(played.records, rnd.choice((1, 1, 2, 3))), rnd):
        beside.deliver(records_of(batch), rnd)
    return beside


BLOCK = 125


@pytest.mark.parametrize("soft", [False, True])
def test_columns_make_of_a_history_what_the_rules_make_of_it(soft: bool) -> None:
    for number in range(BLOCK):
        check(number, soft=soft)


@pytest.mark.long
@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize(
    "first",
    [BLOCK, *(pytest.param(n, marks=pytest.mark.thorough) for n in range(2 * BLOCK, 2000, BLOCK))],
)
def test_columns_make_of_many_histories_what_the_rules_make_of_them(first: int, soft: bool) -> None:
    for number in range(first, first + BLOCK):
        check(number, soft=soft)


def test_a_plain_history_stays_in_columns() -> None:
    kept = [check(number, plain=True) for number in range(BLOCK)]
    assert sum(each.records for each in kept) > BLOCK
    assert [each.odd for each in kept] == [each.unanchored for each in kept]
    assert all(each.by_rules == 0 for each in kept if each.unanchored == 0)
