"""All writers make the same of the same changes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
from pyspark.sql.types import DataType, LongType, StringType, TimestampType

from lakemirror.driver.errors import CommittedBefore
from lakemirror.driver.read.base import Batch
from lakemirror.driver.reduce.events import ENDS, ROW_ORIGIN
from lakemirror.driver.reduce.scd1 import Scd1, changes
from lakemirror.driver.sequence import WIDTH
from lakemirror.driver.tables.mirror import CHANGE_FEED_PROPERTY, VECTORS, VECTORS_PROPERTY, Mirror
from lakemirror.driver.tables.names import Location
from lakemirror.driver.write import direct, rewrite
from lakemirror.driver.write.direct import DirectWriter
from lakemirror.driver.write.merge import MergeWriter
from lakemirror.driver.write.writer import Transaction, Writer, Written

pytestmark = pytest.mark.guarantee("The number of small files and dead rows stays low")

COLUMNS: dict[str, DataType] = {
    "id": LongType(),
    "a b": StringType(),
    "c": StringType(),
    "k": StringType(),
    "of": StringType(),
}
STATE = (
    "key STRUCT<id: BIGINT>, op STRING, seq BINARY, unanchored BOOLEAN, event_time TIMESTAMP, topic STRING, "
    "partition INT, offset BIGINT, row STRUCT<id: BIGINT, `a b`: STRING, c: STRING, k: STRING, of: STRING>, "
    "seqs MAP<STRING, BINARY>, texts MAP<STRING, STRING>, row_seq BINARY, "
    f"ends {ENDS}, row_origin {ROW_ORIGIN}, row_opened BIGINT, "
    "opened MAP<STRING, BIGINT>, number BIGINT"
)
State = dict[str, Any]


def seq(number: int) -> bytes:
    return number.to_bytes(WIDTH, "big")


def state(key: int, op: str, at: int, value: str | None, **more: Any) -> State:
    return {
        **{"key": {"id": key}, "op": op, "seq": seq(at), "unanchored": False, "topic": "t", "partition": 0},
        **{"offset": at, "row": {"id": key, "a b": value, "c": value}, "row_seq": seq(at)},
        "event_time": datetime.fromtimestamp(at, UTC),
        **more,
    }


def history(seed: int, tracked: bool, unanchored: bool) -> Iterator[list[State]]:
    """Batches of states: new, changed, deleted, late and repeated ones; the first is the largest."""
    chance = random.Random(seed)
    sent: list[State] = []
    for batch in range(4):
        keys = range(40) if batch == 0 else chance.sample(range(60), 12)
        found = []
        for key in keys:
            before = [each for each in sent if each["key"]["id"] == key]
            if before and chance.random() < 0.15:
                found.append(chance.choice(before))
                continue
            at = chance.randrange(1, 100) if chance.random() < 0.3 else batch * 100 + chance.randrange(100)
            op = chance.choice("cuuud")
            made = state(key, op, at, None if op == "d" else f"{key}.{at}")
            if tracked and op == "u" and chance.random() < 0.5:
                made["seqs"] = {"c": seq(max(at - 50, 0))[:-1]}
            if unanchored:
                made["unanchored"] = chance.random() < 0.3
            found.append(made)
        sent += found
        yield found


def nothing() -> None:
    """There is nothing that has to stand before the commit."""


def frame(spark: SparkSession, states: list[State]) -> DataFrame:
    rows = [{**each, "number": i * 7} for i, each in enumerate(states)]
    return spark.createDataFrame(rows, STATE).localCheckpoint()


def table(spark: SparkSession, folder: Path, name: str, soft: str | None) -> Mirror:
    mirror = Mirror(spark, Location(path=str(folder / f"{name} ü%20#")))
    mirror.create({**COLUMNS, **({soft: TimestampType()} if soft else {})}, {}, ["id"])
    return mirror


def apply(
    spark: SparkSession, writer: Writer, plan: Scd1, batches: list[list[State]], start: int = 0
) -> list[Written]:
    found = []
    for number, states in enumerate(batches, start):
        deletes = sum(each["op"] == "d" for each in states)
        wanted = changes(plan, len(states), deletes)
        transaction = Transaction("app", Batch("query", number))
        found.append(writer.write(frame(spark, states), wanted, transaction, nothing))
    return found


def rows(mirror: Mirror) -> list[str]:
    found = mirror.frame().withColumn("__column_seq", F.to_json("__column_seq")).toPandas()
    return sorted(str(row) for row in found.to_dict("records"))


def rewriting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are as small as they are."""


def looking_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are small, but one task is not to have them all."""
    monkeypatch.setattr(rewrite, "ROWS", 0)


def hiding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewrite, "BYTES", 1)
    monkeypatch.setattr(direct, "_SMALL", 1)


def wearing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are hidden, and a second small file is one too many."""
    monkeypatch.setattr(rewrite, "BYTES", 1)
    monkeypatch.setattr(direct, "_FEW", 1)


def unobserved(frame: DataFrame, told: Observation) -> DataFrame:
    """The frame, whose query tells an observation nothing."""
    told._on(frame, F.count_if(F.lit(True)))
    return frame


PLANS = {
    "plain": {},
    "columns that wait for values": {"tracked": ("a b", "c")},
    "soft deletes": {"soft": "gone_at"},
    "open transactions and snapshots": {"unanchored": True, "snapshot": True},
}


@pytest.mark.thorough
@pytest.mark.parametrize("kind", PLANS)
def test_direct_writes_are_as_merge_is(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    plan = Scd1(COLUMNS, ["id"], **PLANS[kind])
    batches = list(history(7, bool(plan.tracked), plan.unanchored))
    merged = table(spark, tmp_path, "merged", plan.soft)
    expected = apply(spark, MergeWriter(merged), plan, batches)
    for files in (rewriting, looking_up, hiding, wearing):
        written = table(spark, tmp_path, files.__name__, plan.soft)
        with monkeypatch.context() as patch:
            files(patch)
            assert apply(spark, DirectWriter(written), plan, batches) == expected
        assert rows(written) == rows(merged)
        assert (VECTORS in written.features) == (files in (hiding, wearing))


def test_small_files_do_not_become_many(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wearing(monkeypatch)
    mirror = table(spark, tmp_path, "worn", None)
    batches = [[state(key, "c", key, f"{key}") for key in range(8)]]
    batches += [[state(n, "u", 10 + n, "new"), state(100 + n, "c", 20 + n, "x")] for n in range(5)]
    apply(spark, DirectWriter(mirror), Scd1(COLUMNS, ["id"]), batches)
    assert len(mirror.frame().inputFiles()) <= 3
    found = {row["id"]: row["c"] for row in mirror.frame().collect()}
    assert found == {**{n: "new" if n < 5 else f"{n}" for n in range(8)}, **{100 + n: "x" for n in range(5)}}


def test_a_batch_that_changes_no_row_of_small_files_leaves_them(spark: SparkSession, tmp_path: Path) -> None:
    mirror = table(spark, tmp_path, "unchanged", None)
    batches = [
        [state(key, "c", 5, "x") for key in range(3)],
        [state(key, "u", 1, "late") for key in range(2)],
    ]
    assert apply(spark, DirectWriter(mirror), Scd1(COLUMNS, ["id"]), batches)[1] == Written()
    files = mirror.frame().inputFiles()
    assert len(files) == len(list(Path(mirror.required_path).rglob("*.parquet"))) == 1
    assert mirror.applied("app") == 1


def test_counts_that_spark_does_not_tell_stop_a_write(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror = table(spark, tmp_path, "lost", None)
    batches = [[state(1, "c", 1, "x")], [state(1, "u", 2, "y")]]
    apply(spark, DirectWriter(mirror), Scd1(COLUMNS, ["id"]), batches[:1])
    monkeypatch.setattr(rewrite, "_PATIENCE", 0.05)
    monkeypatch.setattr(ClassicDataFrame, "observe", lambda frame, told, *exprs: unobserved(frame, told))
    with pytest.raises(rewrite.CountsLost):
        apply(spark, DirectWriter(mirror), Scd1(COLUMNS, ["id"]), batches[1:], start=1)
    monkeypatch.undo()
    assert [row["c"] for row in mirror.frame().collect()] == ["x"]
    again = apply(spark, DirectWriter(mirror), Scd1(COLUMNS, ["id"]), batches[1:], start=1)
    assert again == [Written(updated=1)]


def test_a_batch_that_is_there_is_not_written_again(spark: SparkSession, tmp_path: Path) -> None:
    mirror = table(spark, tmp_path, "again", None)
    plan = Scd1(COLUMNS, ["id"])
    batches = [[state(1, "c", 1, "x")], [state(1, "u", 2, "y")]]
    apply(spark, DirectWriter(mirror), plan, batches)
    before = mirror.version
    for number, batch in enumerate(batches):
        with pytest.raises(CommittedBefore, match=f"has batch {number} already"):
            apply(spark, DirectWriter(mirror), plan, [batch], start=number)
    assert mirror.version == before


@pytest.mark.long
@pytest.mark.parametrize(
    ("files", "module", "name"),
    [pytest.param(rewriting, rewrite, "rewritten", marks=pytest.mark.thorough), (hiding, direct, "_lookup")],
)
def test_whoever_changes_the_table_meanwhile_is_noticed(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    files: Callable[[pytest.MonkeyPatch], None],
    module: ModuleType,
    name: str,
) -> None:
    files(monkeypatch)
    mirror = table(spark, tmp_path, "shared", None)
    plan = Scd1(COLUMNS, ["id"])
    writer = DirectWriter(mirror)
    apply(spark, writer, plan, [[state(key, "c", 1, "x") for key in range(4)], [state(2, "u", 2, "y")]])
    read = getattr(module, name)

    def slow(*given: Any) -> Any:
        found = read(*given)
        mirror.delta().delete("id = 3")
        return found

    later = [state(3, "u", 2, "y")]
    wanted = changes(plan, 1, 0)
    with monkeypatch.context() as patch:
        patch.setattr(module, name, slow)
        with pytest.raises(Exception, match=r"(?i)concurrent"):
            writer.write(frame(spark, later), wanted, Transaction("app", Batch("query", 2)), nothing)
    again = writer.write(frame(spark, later), wanted, Transaction("app", Batch("query", 2)), nothing)
    assert again == Written(inserted=1)
    assert sorted(row["id"] for row in mirror.frame().collect()) == [0, 1, 2, 3]


def test_vectors_that_are_switched_off_meanwhile(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hiding(monkeypatch)
    mirror = table(spark, tmp_path, "switched", None)
    plan = Scd1(COLUMNS, ["id"])
    writer = DirectWriter(mirror)
    apply(spark, writer, plan, [[state(key, "c", 1, "x") for key in range(3)], [state(2, "u", 2, "y")]])
    spark.sql(f"ALTER TABLE {mirror.location.sql} SET TBLPROPERTIES ('{VECTORS_PROPERTY}' = 'false')")
    wanted = changes(plan, 1, 0)
    writer.write(
        frame(spark, [state(1, "u", 2, "y")]), wanted, Transaction("app", Batch("query", 2)), nothing
    )
    assert sorted((row["id"], row["c"]) for row in mirror.frame().collect()) == [(0, "x"), (1, "y"), (2, "y")]


def test_a_feature_that_is_to_be_avoided_is(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hiding(monkeypatch)
    mirror = table(spark, tmp_path, "avoided", None)
    plan = Scd1(COLUMNS, ["id"])
    apply(spark, DirectWriter(mirror, {VECTORS}), plan, [[state(1, "c", 1, "x")], [state(1, "u", 2, "y")]])
    assert VECTORS not in mirror.features
    assert [row["c"] for row in mirror.frame().collect()] == ["y"]


def test_tables_that_ask_for_more_are_merged(spark: SparkSession, tmp_path: Path) -> None:
    mirror = table(spark, tmp_path, "plain", None)
    assert direct.possible(mirror)
    mirror.alter({}, {}, {VECTORS_PROPERTY: "true"})
    assert direct.possible(mirror)
    mirror.alter({}, {}, {CHANGE_FEED_PROPERTY: "true"})
    assert not direct.possible(mirror)
