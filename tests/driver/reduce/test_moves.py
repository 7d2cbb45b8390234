"""What a row had just before its key changed, where several facts about it have one position."""

from __future__ import annotations

from itertools import permutations

import pytest
from pyspark.sql import DataFrame, SparkSession

from lakemirror.driver.reduce import moves
from tests.driver.reduce.test_open_transactions import KEY, ORIGIN, at

pytestmark = pytest.mark.guarantee(
    "What becomes of a row depends on what happened to it, not on the order in which its events "
    "arrive or how they are cut into batches"
)

EVENT = (
    f"{KEY}, op STRING, seq BINARY, unanchored BOOLEAN, {ORIGIN}, row STRUCT<note: STRING>, "
    "gaps ARRAY<STRING>, new_key STRUCT<id: INT>, old_key STRUCT<id: INT>"
)
CAME = ((1,), "c", at(50), False, "t", 0, 6, ("other",), [], None, (4,))
GONE = ((1,), "d", at(50), False, "t", 0, 5, None, [], (4,), None)
LEAVES = ((1,), "d", at(70), False, "t", 0, 7, None, [], (3,), None)


def note(events: DataFrame) -> str | None:
    """What the last move of the row brings."""
    found = moves.images(moves.told(events, None), events, None, None, [], tracked=["note"])
    [image] = [each for each in found.collect() if bytes(each["seq"]) == at(70)]
    value: str | None = image["row"]["note"]
    return value


def test_rows_that_exchange_their_keys_at_one_position_pass_on_what_the_last_of_them_has(
    spark: SparkSession,
) -> None:
    """A key then has a delete and a create at one position: the later one of the partition counts."""
    for sent in permutations([CAME, GONE, LEAVES]):
        assert note(spark.createDataFrame(sent, EVENT).coalesce(1)) == "other", sent


def test_a_row_that_is_created_and_deleted_at_one_position_passes_on_nothing(spark: SparkSession) -> None:
    later = (*GONE[:6], 8, *GONE[7:9], None, None)
    for sent in permutations([CAME, later, LEAVES]):
        assert note(spark.createDataFrame(sent, EVENT).coalesce(1)) is None, sent


def test_a_value_of_an_open_transaction_has_its_place_beside_what_an_image_has(spark: SparkSession) -> None:
    """A transaction that was open deleted the row that was read, created it again, and changed its key."""
    created = ((1,), "c", at(65), True, "t", 0, 4, ("set",), [], None, None)
    events = spark.createDataFrame([created], EVENT)
    gone = at(60, major=90) + b"\xff"
    stored = spark.createDataFrame(
        [((1,), at(75), (3,), True, None, None, None, (None,), {"note": gone})],
        f"{KEY}, seq BINARY, new_key STRUCT<id: INT>, opened BOOLEAN, {ORIGIN}, row STRUCT<note: STRING>, "
        "seqs MAP<STRING, BINARY>",
    )
    told = moves.told(events, stored, opened=True)
    [image] = moves.images(told, events, stored, None, [], tracked=["note"], opened=True).collect()
    assert image["row"]["note"] == "set"
    assert bytes(image["seqs"]["note"]) == at(65, major=90) + b"\xff"
