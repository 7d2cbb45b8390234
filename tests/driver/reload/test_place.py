"""The place of a snapshot lies between all that it shows and all that came later."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from lakemirror.driver.reload.place import NOWHERE, Place, after, at_moment, at_position, right_after
from lakemirror.driver.reload.reading import RELOAD_TOPIC
from lakemirror.driver.sequence import WIDTH, in_epoch

PARTS = st.tuples(
    st.integers(0, 3), st.integers(0, 2**64), st.integers(0, 2**64), st.integers(0, 2**31)
)  # epoch, major, minor, tie


def seq(parts: tuple[int, int, int, int]) -> bytes:
    return b"".join(
        number.to_bytes(width, "big") for number, width in zip(parts, (2, 10, 10, 4), strict=True)
    )


@given(PARTS, PARTS)
def test_it_lies_above_what_it_shows_and_below_each_later_position(
    shown: tuple[int, int, int, int], other: tuple[int, int, int, int]
) -> None:
    place = after(seq(shown))
    assert len(place) == WIDTH
    assert place > seq(shown)
    changed = (*other[:3], other[3] + 1)  # a change of a source never has the tie of a snapshot row
    if other[:3] > shown[:3]:
        assert seq(changed) > place
    else:
        assert seq(changed) < place


def test_nothing_lies_below_a_snapshot_of_which_nothing_is_known() -> None:
    assert bytes(WIDTH) == NOWHERE


def test_a_column_of_sequences_has_the_same_places(spark: SparkSession) -> None:
    minors = (0, 1, 2**40 - 1, 2**40, 2**64 - 1, 2**64, 2**79 - 1)
    seqs = [seq((epoch, major, minor, 5)) for epoch in (0, 3) for major in (0, 2**79) for minor in minors]
    rows = spark.createDataFrame([(each,) for each in seqs], "seq BINARY")
    found = rows.select("seq", right_after(F.col("seq")).alias("place")).collect()
    assert {bytes(row["seq"]): bytes(row["place"]) for row in found} == {each: after(each) for each in seqs}


def places(spark: SparkSession, place: Place, *last: tuple[bytes | None, int, str | None]) -> list[bytes]:
    """The places of keys whose last change is at such a sequence, second and topic."""
    assert place.of_key is not None
    rows = [(key, seq, second, topic) for key, (seq, second, topic) in enumerate(last)]
    frame = spark.createDataFrame(rows, "key INT, seq BINARY, second LONG, topic STRING")
    frame = frame.withColumn("at", F.timestamp_seconds("second")).orderBy("key")
    return [bytes(row[0]) for row in frame.alias("last").select(place.of_key).collect()]


def test_a_position_of_a_database_is_the_same_in_each_epoch(spark: SparkSession) -> None:
    position = seq((3, 7, 8, 0))
    assert at_position(seq((0, 7, 8, 0)), 0) == Place(seq((0, 7, 8, 0)))
    assert at_position(position, 3, [1, 3]) == Place(position)
    place = at_position(position, 1, [1, 3])
    assert place.newest == position
    known: list[bytes | None] = [None, *(seq((epoch, 9, 9, 1)) for epoch in (0, 1, 2, 3))]
    found = places(spark, place, *[(each, 0, None) for each in known])
    assert found == [in_epoch(position, epoch) for epoch in (1, 1, 1, 1, 3)]


def test_where_partitions_do_not_compare_a_key_has_a_place_above_its_own_change(spark: SparkSession) -> None:
    moment = datetime.fromtimestamp(10, UTC)
    low, high = seq((0, 7, 8, 1)), seq((1, 7, 8, 1))
    last = [(None, 0, None), (low, 10, None), (high, 10, None), (low, 11, None), (low, 9, RELOAD_TOPIC)]
    found = places(spark, at_moment(after(high), moment, None), *last)
    assert found == [NOWHERE, after(low), after(high), NOWHERE, low]
    truncated = seq((0, 8, 8, 1))
    found = places(spark, at_moment(after(high), moment, truncated), *last)
    assert found == [after(truncated)] * 2 + [after(high)] + [after(truncated)] * 2
