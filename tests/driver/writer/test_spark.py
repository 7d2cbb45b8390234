"""Spark reads tables that are written here, goes on with them, and is gone on with."""

from __future__ import annotations

import uuid
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lakemirror.driver.tables.delta import applied_at, snapshot
from lakemirror.driver.writer.actions import CommitInfo, Transaction
from lakemirror.driver.writer.entry import Committed, Conflict, Replaced, commit, known, name_of
from lakemirror.driver.writer.java_store import DeltaLogStore
from lakemirror.driver.writer.transaction import Change, prepare
from tests.driver.writer.delta_tables import TYPES, History, Step, Written, histories, live_rows, plain, twin
from tests.driver.writer.test_readers import require_valid, written

pytestmark = pytest.mark.long
_EPOCH = datetime(1970, 1, 1)
ONCE = settings(
    deadline=None,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.function_scoped_fixture,
    ],
)


def arrow(frame: DataFrame) -> pa.Table:
    return frame.toArrow()


def literal(value: Any, name: str) -> str | None:
    """A value in Spark's SQL; None if there is none."""
    kind = TYPES[name]
    if isinstance(value, float):
        return f"CAST('{value!r}' AS {kind})".replace("'inf'", "'Infinity'").replace("'-inf'", "'-Infinity'")
    if value is None or isinstance(value, (bool, bytes, dict, list)):
        return None
    if isinstance(value, str):
        return f"decode(unhex('{value.encode().hex()}'), 'UTF-8')"
    if kind == "date":
        return f"DATE '{(_EPOCH + timedelta(days=value)).date().isoformat()}'"
    if kind in ("timestamp", "timestamp_ntz"):
        moment = (_EPOCH + timedelta(microseconds=value)).isoformat(" ", "microseconds")
        return f"TIMESTAMP '{moment}Z'" if kind == "timestamp" else f"TIMESTAMP_NTZ '{moment}'"
    return f"CAST('{value:f}' AS {kind})" if kind.startswith("decimal") else f"CAST({value} AS BIGINT)"


def conditions(table: Written) -> list[str]:
    found = []
    for name in table.history.names:
        texts = sorted({text for row in table.rows.values() if (text := literal(row.get(name), name))})
        found += [f"`{name}` {sign} {text}" for sign in ("=", "<=", ">", "<=>") for text in texts]
        found += [f"`{name}` IS NULL", f"`{name}` IS NOT NULL"]
    return found


@settings(ONCE, max_examples=8)
@given(history=histories(), data=st.data())
def test_spark_reads_all_rows_with_and_without_statistics(
    spark: SparkSession, history: History, data: st.DataObject
) -> None:
    with written(history) as table:
        require_valid(table)
        names = history.names
        path = str(table.path)
        frame = spark.read.format("delta").load(path)
        assert plain(arrow(frame), names) == plain(table.table(table.rows.values()), names)
        assert frame.count() == len(table.rows)
        bare = table.path.with_name("bare")
        twin(table.path, bare)
        other = spark.read.format("delta").load(str(bare))
        for condition in data.draw(st.lists(st.sampled_from(conditions(table)), max_size=4, unique=True)):
            found, expected = (arrow(each.where(condition).select("id")) for each in (frame, other))
            assert plain(found, ["id"]) == plain(expected, ["id"]), condition
        ranged = [each for each in names if isinstance(TYPES[each], str) and each not in ("flag", "octets")]
        extremes = [
            f(F.col(each)).cast("string").alias(f"{f.__name__} {each}")
            for each in ranged
            for f in (F.min, F.max)
        ]
        found, expected = (arrow(each.agg(*extremes)).to_pylist() for each in (frame, other))
        assert [_unsigned(each) for each in found] == [_unsigned(each) for each in expected]
        newest = snapshot(spark, path)
        assert applied_at(newest, "lakemirror/q") == len(history.steps)
        require_checksum(newest, table)
        if history.fed:
            feed = (
                spark.read.format("delta")
                .option("readChangeFeed", "true")
                .option("startingVersion", 0)
                .load(path)
            )
            fed = Counter({row[0]: row[1] for row in feed.groupBy("_change_type").count().collect()})
            assert fed == +table.fed


def _unsigned(row: dict[str, Any]) -> dict[str, Any]:
    """Spark takes either zero for the least."""
    return {name: "0.0" if value == "-0.0" else value for name, value in row.items()}


def require_checksum(newest: Any, table: Written) -> None:
    """Delta's own sums over the log agree with the checksum file."""
    assert int(newest.checksumOpt().get().numFiles()) == len(table.snapshot.files)
    assert newest.validateChecksum(getattr(newest, "validateChecksum$default$1")())


PLAIN = History(("id", "text", "double"), (), False, True, False, None, ())
ROWS = ({"text": "a", "double": float("nan")}, {"text": "b", "double": 1.0}, {"text": "c", "double": None})


def test_spark_and_this_writer_take_turns(spark: SparkSession, tmp_path: Path) -> None:
    """DELETE with vectors and OPTIMIZE by Spark between commits of ours."""
    table = Written.of(tmp_path / "t", PLAIN)
    path, name = str(table.path), f"delta.`{table.path}`"
    log = DeltaLogStore(spark, path)
    table.last = known(log, 0) or table.last
    table.apply(Step(ROWS, (0.0,), True), log=log)
    table.apply(Step(ROWS, (0.4,), True), log=log)
    assert spark.read.format("delta").load(path).where("double > 5").count() == 1
    spark.sql(f"DELETE FROM {name} WHERE text = 'b'")
    found = commit(log, table.last, CommitInfo("x", "q", 9, 2, 1), [Transaction("q", 9)])
    assert isinstance(found, Conflict)
    state = live_rows(table.path)
    assert found.version == state.version == 3
    hidden = [each for each in state.files.values() if each.vector is not None]
    assert hidden
    gone = prepare(state, Change(removed=[hidden[0].path], transactions=[Transaction("q", 9)]), 2000)
    before = known(log, 3)
    assert before is not None
    done = commit(log, before, CommitInfo("y", "q", 9, 3, 2000), gone.actions)
    assert isinstance(done, Committed)
    spark.sql(f"OPTIMIZE {name}")
    newest = snapshot(spark, path)
    assert applied_at(newest, "q") == 9
    assert applied_at(newest, "lakemirror/q") == 2
    rows = [row.id for row in spark.read.format("delta").load(path).select("id").collect()]
    left = live_rows(table.path)
    shown = [(each.rows or 0) - (each.vector.rows if each.vector else 0) for each in left.files.values()]
    assert 0 < len(rows) == sum(shown)
    assert left.version == int(newest.version())


def test_deltas_log_store(spark: SparkSession, tmp_path: Path) -> None:
    """It says what the local one says."""
    table = Written.of(tmp_path / "t", PLAIN)
    log = DeltaLogStore(spark, str(table.path))
    first = known(log, 0)
    assert first is not None
    assert known(log, 1) is None
    assert log.read(name_of(0)) == (table.path / "_delta_log" / name_of(0)).read_bytes()
    assert log.read(name_of(1)) is None
    mine = CommitInfo(str(uuid.uuid4()), "q", 1, 0, 1000, {"text": "\u2028\u0085\n"})
    done = commit(log, first, mine, [Transaction("q", 1)])
    assert isinstance(done, Committed)
    assert done.known is not None
    assert log.create(name_of(1), b"other\n") is False
    again = commit(log, first, mine, [Transaction("q", 1)])
    assert again == done
    assert isinstance(commit(log, first, CommitInfo("x", "q", 2, 0, 1), []), Conflict)
    (table.path / "_delta_log" / name_of(1)).unlink()
    assert commit(log, done.known, CommitInfo("x", "q", 2, 1, 1), []) == Replaced(1)


def test_old_days_in_every_calendar_setting(spark: SparkSession, tmp_path: Path) -> None:
    """Files say that their days are Gregorian, so that Spark neither shifts nor refuses them."""
    history = History(("id", "day", "instant", "local"), (), False, False, False, None, ())
    table = Written.of(tmp_path / "t", history)
    old = {"day": -719_162, "instant": -62_135_596_800_000_000, "local": -30_610_224_000_000_001}
    table.apply(Step((old,), (0.0,), False))
    expected = plain(table.table(table.rows.values()), history.names)
    for mode in ("EXCEPTION", "LEGACY", "CORRECTED"):
        spark.conf.set("spark.sql.parquet.datetimeRebaseModeInRead", mode)
        try:
            found = arrow(spark.read.format("delta").load(str(table.path)))
        finally:
            spark.conf.unset("spark.sql.parquet.datetimeRebaseModeInRead")
        assert plain(found, history.names) == expected, mode
