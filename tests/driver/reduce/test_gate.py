"""What a tombstone forbids, and what at its own position it does not."""

from __future__ import annotations

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from lakemirror.driver.reduce.gate import gate
from lakemirror.driver.tables.tombstones import encoded_key

pytestmark = pytest.mark.guarantee(
    "Of two changes of a row at one position, the later one of a partition counts, deletes included"
)

AT, BELOW, ABOVE = b"\x00" * 25 + b"\x05", b"\x00" * 25 + b"\x04", b"\x00" * 25 + b"\x06"
OWN, MOVED = AT + b"\xff", AT + BELOW
STATE = (
    "key STRUCT<id: INT>, op STRING, seq BINARY, unanchored BOOLEAN, topic STRING, partition INT, "
    "offset BIGINT, row STRUCT<big: STRING>, seqs MAP<STRING, BINARY>"
)
HERE = ("t", 0, 10)
"""Where the delete came from."""


def gated(
    spark: SparkSession,
    *states: tuple[str, bytes, tuple[object, ...], dict[str, bytes] | None],
    gone: tuple[object, ...] = HERE,
    unanchored: bool = False,
    by_delete: bool = True,
    before: bytes | None = AT,
    at: bytes = AT,
) -> list[Row]:
    """The states of keys that were all deleted at one position: op, sequence, origin, sequences of values."""
    rows = [
        ((number,), op, seq, unanchored, *origin, ("x",), seqs)
        for number, (op, seq, origin, seqs) in enumerate(states)
    ]
    frame: DataFrame = spark.createDataFrame(rows, STATE)
    origin = zip(("topic", "partition", "offset"), ("string", "int", "bigint"), gone, strict=True)
    deleted = frame.select(
        encoded_key(frame).alias("key"),
        F.lit(at).alias("seq"),
        *[F.lit(each).cast(kind).alias(name) for name, kind, each in origin],
        F.lit(by_delete).alias("by_delete"),
        F.lit(before).cast("binary").alias("delete_before"),
    )
    return sorted(gate(frame, deleted, tracked=["big"]).collect(), key=lambda row: row["key"]["id"])


def test_at_one_position_the_later_change_of_a_partition_follows_the_delete(spark: SparkSession) -> None:
    found = gated(
        spark,
        ("c", AT, ("t", 0, 11), None),
        ("c", AT, ("t", 0, 10), None),
        ("c", AT, ("t", 0, 9), None),
        ("c", AT, ("t", 1, 11), None),
        ("c", AT, ("u", 0, 11), None),
        ("c", BELOW, ("t", 0, 11), None),
        ("c", ABOVE, ("t", 1, 1), None),
    )
    assert [row["stale"] for row in found] == [False, True, True, True, True, True, False]
    assert [row["op"] for row in found] == ["c", "p", "p", "p", "p", "p", "c"]


def test_a_delete_that_follows_has_its_tombstone_but_renews_it(spark: SparkSession) -> None:
    found = gated(
        spark,
        ("d", AT, ("t", 0, 11), None),
        ("d", AT, ("t", 0, 10), None),
        ("d", AT, ("t", 1, 11), None),
        ("d", BELOW, ("t", 0, 11), None),
        ("d", ABOVE, ("t", 0, 11), None),
    )
    assert [row["known"] for row in found] == [True, True, True, True, False]
    assert [row["renewed"] for row in found] == [True, False, False, False, False]
    assert not any(row["stale"] for row in found)


def test_a_delete_that_is_placed_after_a_row_that_was_read_renews_the_tombstone_of_its_move(
    spark: SparkSession,
) -> None:
    """The transaction was open during the snapshot; the create half, with its own position, came before."""
    commit, read = bytes(11) + b"\x07", bytes(11) + b"\x09"
    first, second = (bytes(9) + lsn + bytes(4) for lsn in (b"\x07", b"\x08"))
    lifted, gone = ("d", read + first, ("t", 0, 12), None), commit + first[:-1] + b"\x01"
    found = gated(
        spark,
        lifted,
        ("d", read + second, ("t", 0, 12), None),
        unanchored=True,
        by_delete=False,
        before=None,
        at=gone,
    )
    assert [row["known"] for row in found] == [True, False]
    assert [row["renewed"] for row in found] == [True, False]
    assert not any(row["repeated"] for row in found)
    sent_again = gated(spark, lifted, unanchored=True, at=gone)
    assert [(row["known"], row["renewed"], row["repeated"]) for row in sent_again] == [(True, False, True)]


@pytest.mark.parametrize("gone", [(None, None, None), ("t", 0, None), (None, 0, 10)])
def test_a_tombstone_without_an_origin_forbids_all_at_its_position(
    gone: tuple[object, ...], spark: SparkSession
) -> None:
    create, delete = gated(spark, ("c", AT, ("t", 0, 11), None), ("d", AT, ("t", 0, 11), None), gone=gone)
    assert (create["stale"], create["op"]) == (True, "p")
    assert (delete["known"], delete["renewed"]) == (True, False)


def test_what_follows_keeps_the_values_of_its_own_position(spark: SparkSession) -> None:
    """A value from before the delete is forgotten, but not one that its row had under another key."""
    later = ("t", 0, 11)
    found = gated(
        spark,
        ("c", AT, later, {"big": AT}),
        ("u", AT, later, {"big": MOVED}),
        ("u", AT, later, {"big": BELOW + b"\xff"}),
        ("u", AT, later, None),
        ("c", AT, ("t", 1, 11), {"big": AT}),
    )
    assert [row["row"]["big"] for row in found] == ["x", "x", None, "x", None]
    assert [row["seqs"] and bytes(row["seqs"]["big"]) for row in found] == [AT, MOVED, OWN, None, OWN]


def test_what_an_open_transaction_creates_again_keeps_its_values(spark: SparkSession) -> None:
    """The delete was placed after the row of the snapshot, whose position is above the transaction."""

    def at(lsn: int, major: int) -> bytes:
        return bytes(2) + major.to_bytes(10, "big") + lsn.to_bytes(10, "big") + (1).to_bytes(4, "big")

    rows = [
        ((1,), "c", at(80, 80), True, "t", 0, 11, ("x",), {"big": at(80, 80) + b"\xff"}),
        ((2,), "c", at(60, 60), True, "t", 0, 11, ("x",), None),
        ((3,), "c", at(80, 80), True, "t", 0, 9, ("x",), None),  # the delete was sent again after it
    ]
    frame: DataFrame = spark.createDataFrame(rows, STATE)
    place = (F.lit("t").alias("topic"), F.lit(0).alias("partition"), F.lit(10).cast("bigint").alias("offset"))
    known = (F.lit(True).alias("by_delete"), F.lit(at(70, 90)).alias("delete_before"))
    deleted = frame.select(encoded_key(frame).alias("key"), F.lit(at(70, 90)).alias("seq"), *place, *known)
    after, before, again = sorted(gate(frame, deleted, tracked=["big"]).collect(), key=lambda row: row["key"])
    assert (after["op"], after["row"]["big"], bytes(after["seq"])) == ("c", "x", at(80, 90))
    assert bytes(after["seqs"]["big"]) == at(80, 90) + b"\xff"
    assert before["op"] == "p"
    assert (again["op"], bytes(again["seq"])) == ("c", at(80, 90))


@pytest.mark.parametrize(
    ("by_delete", "before", "renewed", "repeated"),
    [
        pytest.param(True, AT, [False, True, False, False], [True, True, True, False], id="earlier batch"),
        pytest.param(True, None, [False, True, False, False], [False, False, True, False], id="this batch"),
        pytest.param(False, None, [True, True, False, False], [False, False, True, False], id="key change"),
        pytest.param(False, BELOW, [True, True, False, False], [False, False, True, False], id="two lives"),
    ],
)
def test_a_delete_is_repeated_if_it_came_in_an_earlier_batch(
    spark: SparkSession, by_delete: bool, before: bytes | None, renewed: list[bool], repeated: list[bool]
) -> None:
    """The tombstone may be of a batch that failed after it was written, or of half of a change of the key."""
    states = [("d", AT, ("t", 0, 10), None), ("d", AT, ("t", 0, 11), None)]
    states += [("d", BELOW, ("t", 0, 9), None), ("d", ABOVE, ("t", 0, 11), None)]
    gone = HERE if by_delete else (None, None, None)
    found = gated(spark, *states, gone=gone, by_delete=by_delete, before=before)
    assert [row["known"] for row in found] == [True, True, True, False]
    assert [row["renewed"] for row in found] == renewed
    assert [row["repeated"] for row in found] == repeated
