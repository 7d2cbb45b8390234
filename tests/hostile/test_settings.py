"""Settings of tables side by side: each table mirrors one small capture as its settings say."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakemirror.api.supported import not_supported
from tests.support.mirroring import Mirroring, at
from tests.support.records import Column, Record
from tests.support.records import Table as SourceTable
from tests.support.shop import Shop, table

MODES = ("scd1", "append")
DELETED = (None, {"type": "hard"}, {"type": "soft", "column": "gone"})
PICKED: tuple[dict[str, Any] | None, ...] = (
    None,
    {"include": ["id", "v"]},
    {"exclude": ["number"]},
    {"rename": {"v": "value_of_it", "id": "key"}},
    {"types": {"number": "bigint"}, "rename": {"number": "a_number"}},
)
KEYS = (None, ["id"])
PLACES = ("template", "own")
ROWS = {1: ("one", 10), 2: ("zwei", 22), 3: ("three", 30)}


def pairwise(*choices: Sequence[Any]) -> list[tuple[int, ...]]:
    """Few combinations (as indexes) in which each pair of choices of two settings occurs, where allowed."""
    every = [each for each in itertools.product(*[range(len(c)) for c in choices]) if _allowed(each)]
    pairs = {pair for each in every for pair in _pairs(each)}
    found = []
    while pairs:
        best = max(every, key=lambda each: len(pairs & _pairs(each)))
        found.append(best)
        pairs -= _pairs(best)
    return found


def _pairs(combination: tuple[int, ...]) -> set[tuple[int, int, int, int]]:
    numbered = list(enumerate(combination))
    return {(i, a, j, b) for (i, a), (j, b) in itertools.combinations(numbered, 2)}


def _allowed(combination: tuple[int, ...]) -> bool:
    """Without fields that have no effect beside mode append."""
    mode, delete, _, key, _ = combination
    return MODES[mode] != "append" or (DELETED[delete] is None and KEYS[key] is None)


COMBINATIONS = pairwise(MODES, DELETED, PICKED, KEYS, PLACES)


def source(number: int) -> SourceTable:
    return table(f"t{number}", Column("v", "string", optional=True), Column("number", "int32", optional=True))


def life(shop: Shop, of: SourceTable) -> list[Record]:
    """Three rows, of which one changes and one is deleted."""
    rows = {id: {"id": id, "v": v, "number": number} for id, (v, number) in ROWS.items()}
    records = [record for row in rows.values() for record in shop.create(of, **{**row, "v": "was"})]
    records += [record for row in rows.values() for record in shop.update(of, **row)]
    return [*records, *shop.delete(of, **rows[3])]


def listed(number: int, combination: tuple[int, ...], folder: Path) -> dict[str, Any]:
    mode, delete, picked, key, place = combination
    given = {
        "source": f"public.t{number}",
        "mode": MODES[mode],
        "delete": DELETED[delete],
        "columns": PICKED[picked],
        "primaryKey": KEYS[key],
        "target": {"path": f"{folder}/own/{number}"} if PLACES[place] == "own" else None,
    }
    return {name: value for name, value in given.items() if value is not None}


def expected_columns(settings: dict[str, Any]) -> list[str]:
    """The mirror's columns, without metadata."""
    columns = settings.get("columns", {})
    kept = [
        name
        for name in ("id", "v", "number")
        if name in columns.get("include", [name]) and name not in columns.get("exclude", [])
    ]
    return [columns.get("rename", {}).get(name, name) for name in kept]


SETTINGS: dict[str, Any] = {
    "onUnrepresentable": "null",
    "ordering": {"by": "lsn", "epochs": [{"epoch": 1, "from": {"demo.public.another": {"0": 5}}}]},
    "tombstones": {"retention": "1h"},
}


@pytest.mark.long
def test_tables_are_as_their_settings_say(spark: SparkSession, tmp_path: Path) -> None:
    """Every other combination, all in one run."""
    mine = {n: c for n, c in enumerate(COMBINATIONS) if n % 2 == 0}
    tables = [listed(number, combination, tmp_path) for number, combination in mine.items()]
    parked = {"source": "public.parked", "suspend": True, "resyncToken": "1"}
    mirroring = Mirroring(tmp_path, {**SETTINGS, "tables": [*tables, parked]})
    assert not_supported(mirroring.pipeline.spec) == []
    shop = Shop()
    mirroring.deliver([[record for number in mine for record in life(shop, source(number))]])
    mirroring.run(spark)
    for number, settings_ in zip(mine, tables, strict=True):
        where = settings_.get("target", {}).get("path") or mirroring.path("demo", "public", f"t{number}")
        _check(spark, where, settings_)


def _check(spark: SparkSession, where: str, given: dict[str, Any]) -> None:
    names = expected_columns(given)
    stored = at(spark, where)
    if given["mode"] == "append":
        assert stored.columns == names, given
        assert stored.count() == 7, given
        return
    deleted = given.get("delete", {"type": "hard"})
    soft = deleted["type"] == "soft"
    assert stored.columns == [*names, *(["gone"] if soft else [])], given
    rows = {row[0]: tuple(row)[1:] for row in stored.collect()}
    assert sorted(rows) == ([1, 2, 3] if soft else [1, 2]), given
    for id, (v, n) in ROWS.items():
        wanted = (v, n) if len(names) == 3 else (v,)
        if id in rows:
            assert rows[id][: len(names) - 1] == wanted, given
            assert not soft or (rows[id][-1] is not None) == (id == 3), given
