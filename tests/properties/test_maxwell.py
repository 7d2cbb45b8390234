"""However Maxwell's records are delivered, the mirror ends in the rows of the database."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from tests.support import maxwell
from tests.support.delivery import doubled, interleaved, parts, restarted, shuffled
from tests.support.maxwell import History
from tests.support.mirroring import Mirroring, at
from tests.support.records import Record

pytestmark = pytest.mark.guarantee(
    "Records of each envelope are read as its format specifies; what they lack is named"
)

IDS, VALUES = st.integers(1, 6), st.sampled_from(["a", "b", "größer", "", None])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), IDS, VALUES),
        st.tuples(st.just("delete"), IDS, st.none()),
        st.tuples(st.just("move"), st.sets(IDS, min_size=1, max_size=3), st.sampled_from([-1, 1, 2])),
        st.tuples(st.just("bootstrap"), st.none(), st.none()),
    ),
    min_size=8,
    max_size=25,
)
SHUFFLES = st.tuples(STEPS, st.integers(0, 2**16), st.integers(1, 3))
_NUMBERS = itertools.count()


def replayed(database: str, steps: list[tuple[str, Any, Any]], *, places: bool = True) -> History:
    """A history of those steps that are possible."""
    history = History(database, places=places)
    for kind, what, how in steps:
        if kind == "put" and what in history.rows:
            history.update(what, how)
        elif kind == "put":
            history.insert(what, how)
        elif kind == "delete" and what in history.rows:
            history.delete(what)
        elif kind == "bootstrap":
            history.bootstrap()
        elif kind == "move":
            ids = [id for id in what if id in history.rows]
            if ids and not {id + how for id in ids} & (history.rows.keys() - set(ids)):
                history.move(ids, how)
    return history


MOVED = [
    *[("put", id, "a") for id in (1, 2, 3)],
    ("bootstrap", None, None),
    ("move", {1, 2, 3}, 1),
    ("put", 3, "b"),
    ("move", {2, 3}, -1),
    ("delete", 4, None),
    ("put", 3, None),
    ("move", {1}, 2),
    ("move", {2, 3}, 2),
    ("put", 1, "größer"),
]
"""Keys that are left and taken in one statement, and again."""


@pytest.mark.guarantee(
    "Of two changes of a row at one position, the later one of a partition counts, deletes included"
)
@pytest.mark.thorough
@pytest.mark.timeout(900)
@example([(MOVED, 1, 1), (MOVED, 2, 3), (MOVED[:8], 3, 2)])
@given(st.lists(SHUFFLES, min_size=3, max_size=3))
@settings(
    max_examples=2,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    derandomize=True,
)
def test_any_delivery_of_a_history_ends_in_the_rows_of_its_database(
    spark: SparkSession, tmp_path: Path, drawn: list[tuple[list[tuple[str, Any, Any]], int, int]]
) -> None:
    """Shuffled and doubled, or with its partitions merged otherwise, it ends as it does in order.

    If a statement's rows have one position, so does what one partition brings, cut anywhere and partly sent
    again.
    """
    batches: list[list[Record]] = [[] for _ in range(3)]
    histories = {}
    for index, (steps, seed, batched) in enumerate(drawn):
        for name, deliver in (("shuffled", shuffled), ("merged", interleaved)):
            history = replayed(f"{name}{index}", steps)
            records = doubled(maxwell.sent(history.lines, topic=history.database))
            for batch, some in zip(batches, parts(deliver(records, seed), batched), strict=False):
                batch.extend(some)
            histories[history.database] = history
        tied = replayed(f"tied{index}", steps, places=False)
        again = restarted(maxwell.sent(tied.lines, tied.database, 1), back=4 + seed % 5, every=7)
        for batch, some in zip(batches, parts(again, batched), strict=False):
            batch.extend(some)
        histories[tied.database] = tied
    mirroring = Mirroring(tmp_path / str(next(_NUMBERS)), {"envelope": {"format": "maxwell"}})
    summary = mirroring.deliver([batch for batch in batches if batch]).run(spark)

    tables = {name.partition(".")[0]: table for name, table in summary.tables.items()}
    for name, history in histories.items():
        if name not in tables:
            assert not any('"insert"' in line for line in history.lines)
            continue
        assert tables[name].counts.quarantined == 0 or name.startswith("tied"), name  # undecided for a time
        found = at(spark, mirroring.path(name, None, "items")).collect()
        assert {row["id"]: _row(row.asDict()) for row in found} == history.rows, name


def _row(row: dict[str, Any]) -> dict[str, Any]:
    """A row; a column in which nothing but null was seen is no column yet."""
    return {"v": None, **row}
