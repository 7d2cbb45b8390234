"""The order of SQL Server's and Oracle's changes, by source blocks as Debezium documents them.

No capture of these databases stands behind this: their servers cannot be had freely. (Debezium, SQL Server
connector and Oracle connector, "change event values".)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from lakemirror.driver.rules import positions
from lakemirror.driver.sequence import SOURCE, as_bytes, misplaced, sequence

Block = dict[str, Any]
History = list[tuple[Block, bool]]
"""Source blocks in the order in which the connector sends them, and whether each is one of the snapshot."""

HISTORIES = 30
"""In one job of Spark."""


def lsn(number: int) -> str:
    """SQL Server's: virtual log file, log block and slot."""
    return f"{number >> 20 & 0xFFFFFFFF:08x}:{number >> 4 & 0xFFFF:08x}:{number & 0xF:04x}"


@st.composite
def sql_server(draw: st.DrawFn) -> History:
    """A snapshot, and transactions in the order of their commits. Their changes were written before that, and
    those of several transactions by turns. An update of a key is a delete and a create of one change LSN.
    """
    at = draw(st.integers(1, 2**40))
    block = {"connector": "sqlserver", "snapshot": "true", "change_lsn": "NULL"}
    history: History = [({**block, "commit_lsn": lsn(at)}, True) for _ in range(draw(st.integers(0, 2)))]
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    written = sorted(
        draw(st.sets(st.integers(at + 1, at + 10_000), min_size=sum(sizes), max_size=sum(sizes)))
    )
    turns = draw(st.permutations([tx for tx, size in enumerate(sizes) for _ in range(size)]))
    changes: list[list[int]] = [[] for _ in sizes]
    for tx, change in zip(turns, written, strict=True):
        changes[tx].append(change)
    for tx, each in enumerate(changes):
        commit = lsn(at + 20_000 * (tx + 1))
        for change in each:
            for serial in draw(st.sampled_from([(1,), (2,), (1, 2)])):
                stream = {"snapshot": "false", "change_lsn": lsn(change), "event_serial_no": serial}
                history.append(({**block, **stream, "commit_lsn": commit}, False))
    return history


@st.composite
def oracle(draw: st.DrawFn) -> History:
    """A snapshot, and transactions in the order of their commits. Several changes may have one SCN."""
    at = draw(st.integers(1, 2**53))
    block = {"connector": "oracle", "snapshot": "true", "commit_scn": None}
    history: History = [({**block, "scn": str(at)}, True) for _ in range(draw(st.integers(0, 2)))]
    commit = at
    for _ in range(draw(st.integers(1, 4))):
        commit += draw(st.integers(1, 50))
        scns = (
            sorted(draw(st.lists(st.integers(at + 1, commit), min_size=1, max_size=4))) if commit > at else []
        )
        for scn in scns:
            stream = {"snapshot": "false", "scn": str(scn), "commit_scn": str(commit)}
            history.append(({**block, **stream}, False))
    return history


def sequences(spark: SparkSession, histories: Sequence[History]) -> list[list[bytes]]:
    rows = [
        (number, offset, {"name": "server", **block}, snapshot)
        for number, history in enumerate(histories)
        for offset, (block, snapshot) in enumerate(history)
    ]
    frame = spark.createDataFrame(rows, f"number INT, offset BIGINT, source {SOURCE}, snapshot BOOLEAN")
    place = {"topic": F.lit("t"), "partition": F.lit(0), "offset": F.col("offset")}
    seq = sequence(F.col("source"), snapshot=F.col("snapshot"), **place, by="auto", epochs=())
    found: list[list[bytes]] = [[] for _ in histories]
    for row in frame.select("number", "offset", seq.alias("seq")).orderBy("number", "offset").collect():
        found[row["number"]].append(as_bytes(row["seq"]) or b"")
    return found


@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(sql_server(), min_size=HISTORIES, max_size=HISTORIES))
def test_changes_of_sql_server_are_in_the_order_of_their_commits(
    spark: SparkSession, histories: list[History]
) -> None:
    """Whatever the order is in which they come, for no two have one sequence."""
    for history, found in zip(histories, sequences(spark, histories), strict=True):
        streamed = [seq for seq, (_, snapshot) in zip(found, history, strict=True) if not snapshot]
        assert streamed == sorted(set(streamed))
        assert found == sorted(found), "rows of the snapshot come before all changes"


@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(oracle(), min_size=HISTORIES, max_size=HISTORIES))
def test_changes_of_oracle_are_in_the_order_of_their_commits(
    spark: SparkSession, histories: list[History]
) -> None:
    """Changes of one SCN and commit have one sequence: the later one in the topic wins."""
    for history, found in zip(histories, sequences(spark, histories), strict=True):
        assert found == sorted(found)
        places = [(block["commit_scn"] or "0", block["scn"]) for block, _ in history]
        assert len(set(found)) == len(set(places))


LSNS = (
    *("0000002a:00000d40:0002", "0000002A:00000D40:0002", "0000002a:00000d40:0002\n", "12", "12\n", "12 "),
    *("1" * 20, "1" * 21, "0000002a:00000d40", "0000002a:00000d40:0002:0", "g000002a:00000d40:0002", "0x12"),
    *("00000000:000102b5:000000000007bf55", "00000000:000102B5:0000FFFFFFFFFFFF"),  # Db2's
    *("00000001:00000000:0000000000000000", "00000000:00000000:0001000000000000"),
    *("NULL", "null", "", "\n", "-1", "1e5", "１２", "12\u2028", "12\r\n", "1_0", "9" * 50_000),
)
FILES = (
    "bin.1",
    "bin.1\n",
    "a\nb.2",
    ".3",
    "4",
    "b.1234567890123456789",
    "b.123456789012345678",
    "b.12345678901",
    "b.1.",
    "b.-1",
    "b.１",
    "\n",
)
COUNTS = (0, -1, 2**31 - 2, 2**31 - 1, 10**18 - 1, 10**18, 2**63 - 1, -(2**63))
PAIRS = ('["1","2"]', '[null,"2"]', ' [ "1" , null ] \n', '["1","2"]x', '["1"]', "[1,2]", '["1e9","2"]')
LISTED = (
    "00" * 26,
    "FF" * 331,
    "00",
    "00" * 25,
    "FF" * 332,
    "00" * 26 + "\n",
    "zz" * 26,
    "ab" * 26,
    "",
    "0" * 53,
)
MADE_UP: list[Block] = [
    *({"connector": "sqlserver", name: each} for each in LSNS for name in ("commit_lsn", "change_lsn")),
    *({"connector": "oracle", "scn": "5", name: each} for each in LSNS for name in ("scn", "commit_scn")),
    *({"connector": "oracle", "scn": each, "commit_scn": "90"} for each in ("89", "90", "91")),
    *({"connector": "mysql", "file": each, "pos": 4} for each in FILES),
    *({"connector": "mysql", "file": "b.1", name: each} for each in COUNTS for name in ("pos", "row")),
    *({"connector": "sqlserver", "commit_lsn": "12", "event_serial_no": each} for each in COUNTS),
    *({"connector": "postgresql", "sequence": each} for each in (*PAIRS, *LSNS[:6])),
    *({"connector": "postgresql", "sequence": '["1","2"]', "lsn": each} for each in COUNTS),
    *({"connector": each, "ts_ms": 5} for each in ("mongodb", "vitess", "db2", "x", "", None)),
    *({"connector": "mongodb", name: each} for each in COUNTS for name in ("ts_ms", "ts_us")),
    *({"connector": "delta", "sequence": each, "ts_ms": 5} for each in LISTED),
]


@pytest.mark.guarantee("No record makes a batch fail")
@pytest.mark.parametrize("by", ["auto", "lsn", "binlog", "timestamp", "offset"])
def test_what_a_producer_made_up_is_a_position_or_not_valid(spark: SparkSession, by: Any) -> None:
    """Whatever is not valid is named. All else has a sequence of the length of the others of its kind."""
    frame = spark.createDataFrame([(n, each) for n, each in enumerate(MADE_UP)], f"n INT, source {SOURCE}")
    topic, partition, offset, snapshot = F.lit("t"), F.lit(0), F.lit(7), F.lit(False)
    place = {"partition": partition, "offset": offset, "by": by}
    seq = sequence(F.col("source"), snapshot=snapshot, topic=topic, epochs=[], **place)
    wrong = misplaced(F.col("source"), **place)
    for n, found, reason in frame.select("n", seq, wrong).collect():
        source, origin = positions.Source(**MADE_UP[n]), positions.Origin("t", 0, 7)
        assert reason == positions.misplaced(source, origin, by=by), str(MADE_UP[n])[:200]
        if reason is None:
            assert as_bytes(found) == positions.sequence(source, origin, snapshot=False, by=by), MADE_UP[n]
            assert found is not None
            assert len(found) in (26, 331)
