"""Changes of transactions that were open during a snapshot, in their place beside what is stored."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from lakemirror.driver.reduce import moves, scd2
from lakemirror.driver.rules.positions import moved, own
from lakemirror.driver.sequence import WIDTH

pytestmark = pytest.mark.guarantee(
    "What becomes of a row depends on what happened to it, not on the order in which its events "
    "arrive or how they are cut into batches"
)

KEY, ORIGIN = "key STRUCT<id: INT>", "topic STRING, partition INT, offset BIGINT"


def at(lsn: int, *, major: int | None = None) -> bytes:
    """The sequence of a change; ``major`` is the position of the snapshot row that it follows."""
    found = bytes(2) + (major or lsn).to_bytes(10, "big") + lsn.to_bytes(10, "big") + (1).to_bytes(4, "big")
    assert len(found) == WIDTH
    return found


def test_a_value_that_was_set_after_a_row_moved_there_and_back_is_newer_than_what_it_had(
    spark: SparkSession,
) -> None:
    had = own(bytes(2) + (90).to_bytes(10, "big") + bytes(14))
    state = spark.createDataFrame(
        [((1,), "u", at(97), None, ("set",), {"note": own(at(70))}, False, 2, 2, 0, {"note": 6}, "t", 0, 7)],
        f"{KEY}, op STRING, seq BINARY, row_seq BINARY, row STRUCT<note: STRING>, seqs MAP<STRING, BINARY>, "
        "unanchored BOOLEAN, records BIGINT, own BIGINT, duplicates BIGINT, opened MAP<STRING, BIGINT>, "
        f"{ORIGIN}",
    )
    brought = spark.createDataFrame(
        [((1,), at(60), ("read",), {"note": moved(at(60), had)})],
        f"{KEY}, seq BINARY, row STRUCT<note: STRING>, seqs MAP<STRING, BINARY>",
    )
    stored = spark.createDataFrame(
        [((1,), at(60, major=90), {"note": moved(at(60, major=90), had)}, "t", 0, 5)],
        f"{KEY}, seq BINARY, seqs MAP<STRING, BINARY>, {ORIGIN}",
    )
    [found] = moves.inherit(state, brought, ["note"], stored, opened=True).collect()
    assert found["row"]["note"] == "set"
    assert bytes(found["seqs"]["note"]) == own(at(70, major=90))


def test_the_end_of_a_version_takes_its_place_after_the_row_of_the_snapshot_with_the_delete(
    spark: SparkSession,
) -> None:
    read = bytes(2) + (90).to_bytes(10, "big") + bytes(14)
    facts = spark.createDataFrame(
        [
            ((1,), "event", "r", read, read, False, None, None, "t", 0, 1),
            ((1,), "end", "d", at(75), at(75), True, None, None, "t", 0, 3),
            ((1,), "end", "d", at(75), at(75), False, None, None, None, None, None),
            ((1,), "end", "d", at(60), at(60), False, None, None, None, None, None),
        ],
        f"{KEY}, kind STRING, op STRING, seq BINARY, base BINARY, unanchored BOOLEAN, "
        f"event_time TIMESTAMP, seqs MAP<STRING, BINARY>, {ORIGIN}",
    )
    found = sorted(bytes(row["seq"]) for row in scd2.placed(facts).where("kind = 'end'").collect())
    assert found == [at(60), at(75, major=90), at(75, major=90)]
