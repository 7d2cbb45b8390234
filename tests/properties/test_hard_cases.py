"""Short histories that are easy to get wrong, each in the delivery that makes it hard; all in one run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import pytest
from pyspark.sql import Row as SparkRow
from pyspark.sql import SparkSession

from tests.support.delivery import Batches, parts, whole
from tests.support.histories import History, Shape, Step, key_of, play
from tests.support.mirroring import Mirroring, at, commits
from tests.support.records import Record, Row, payload
from tests.support.reference import Mirror


@dataclass(frozen=True)
class Case:
    """`deliver` takes the snapshot's records and those of the stream."""

    name: str
    what: str
    steps: Sequence[Step]
    deliver: Callable[[list[Record], list[Record]], Batches]
    snapshot: str = "initial"

    @property
    def history(self) -> History:
        return play(self.steps, Shape(snapshot=self.snapshot, name=self.name))  # type: ignore[arg-type]

    @property
    def batches(self) -> Batches:
        history = self.history
        reads = len(history.transactions[0].changes)
        return self.deliver(history.records[:reads], history.records[reads:])


def _create_half_first(reads: list[Record], stream: list[Record]) -> Batches:
    """Of a key change the create half, then the delete, then what came before both."""
    (create,) = (r for r in stream if any(name == "__debezium.oldkey" for name, _ in r["headers"]))
    (delete,) = (r for r in stream if r["value"] and any(n == "__debezium.newkey" for n, _ in r["headers"]))
    return [[*reads, create], [delete], [r for r in stream if r is not create and r is not delete]]


def _stream_apart(reads: list[Record], stream: list[Record]) -> Batches:
    return [reads, stream]


def _backwards(reads: list[Record], stream: list[Record]) -> Batches:
    return parts([*stream[::-1], *reads], 4)


def _from_truncate(reads: list[Record], stream: list[Record]) -> Batches:
    """All before the truncate's transaction, then the rest."""
    at_truncate = next(n for n, r in enumerate(stream) if r["value"] and payload(r["value"])["op"] == "t")
    return [[*reads, *stream[: at_truncate - 1]], stream[at_truncate - 1 :]]


def _other_partition_first(reads: list[Record], stream: list[Record]) -> Batches:
    """Of a move there and back what was sent about the other key, then the rest."""
    there = [r for r in stream if payload(r["key"])["id"] == 2]
    return [[*reads, *there], [r for r in stream if r not in there]]


CASES = (
    Case(
        "there_and_back",
        "what is known of the other key alone does not take the values of a row that has not moved yet",
        [Step(2, "return", 1, 2)],
        _other_partition_first,
    ),
    Case(
        "open_in_another_batch",
        "a transaction open at the snapshot, in the batch after its rows: all its columns are newer",
        [Step(0, "put", 0, big=2, note=2), Step(0, "put", 1, big=3, note=1, joined=True)],
        _stream_apart,
        "open",
    ),
    Case(
        "open_with_a_gap",
        "the same, its second change of the row leaving out what the first one wrote",
        [Step(2, "put", 1, big=1), Step(2, "put", 1, note=2, joined=True)],
        _stream_apart,
        "open",
    ),
    Case(
        "open_and_moved",
        "a row of such a transaction, moved later: the create half comes first, the row itself last",
        [Step(0, "put", 2), Step(0, "drop", 1), Step(0, "move", 2, 1)],
        _create_half_first,
        "open",
    ),
    Case(
        "a_key_used_twice_in_chains",
        "two rows pass through one key in a batch; each brings its own TOASTed value",
        [Step(2, "chain", 1, 3), Step(2, "put", 0, big=1), Step(2, "chain", 0, 2)],
        lambda reads, stream: whole([*reads, *stream]),
    ),
    Case(
        "moved_then_truncated",
        "a row that moved in an earlier batch is gone after a truncate in this one",
        [Step(2, "move", 1, 2), Step(2, "put", 0), Step(2, "truncate"), Step(2, "put", 3, big=1)],
        _from_truncate,
    ),
    Case(
        "moved_twice_backwards",
        "the TOASTed value reaches a row that moved twice, though its image comes last",
        [Step(2, "move", 1, 2), Step(2, "move", 2, 3), Step(2, "put", 3, note=2)],
        _backwards,
    ),
)


@pytest.fixture(scope="module")
def mirroring(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Mirroring:
    rounds = zip_longest(*(case.batches for case in CASES), fillvalue=[])
    batches = [[record for batch in round_ for record in batch] for round_ in rounds]
    mirroring = Mirroring(tmp_path_factory.mktemp("hard")).deliver(batches)
    mirroring.run(spark)
    return mirroring


@pytest.mark.thorough
@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_hard_case_ends_in_the_rows_of_its_source(
    case: Case, spark: SparkSession, mirroring: Mirroring
) -> None:
    found = {
        key_of(row): row
        for row in map(_as_dict, at(spark, mirroring.path("demo", "public", case.name)).collect())
    }
    assert found == case.history.rows, case.what


@pytest.mark.thorough
@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_hard_case_never_shows_a_row_that_its_source_never_had(
    case: Case, spark: SparkSession, mirroring: Mirroring
) -> None:
    """A TOASTed value may be missing while its row is on its way, but only where a key change left it out."""
    history = case.history
    had = next(iter(Mirror().replay(history.records).states.values()))
    moved = {key_of(c.row) for t in history.transactions for c in t.changes if c.verb == "move" and c.row}
    path = mirroring.path("demo", "public", case.name)
    for version, _, _ in commits(spark, path):
        for row in map(_as_dict, at(spark, path, version).collect()):
            waiting = [{**past, "big": None} for past in had[key_of(row)] if past["v"] > Shape().before]
            assert row in had[key_of(row)] or (key_of(row) in moved and row in waiting), case.what


def _as_dict(row: SparkRow) -> Row:
    return row.asDict()
