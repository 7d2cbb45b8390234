"""Mirrors that somebody else has changed: rows by hand, and mirrors that are gone, restored or replaced."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

import deltalake
import pytest
import yaml
from click.testing import CliRunner
from delta.tables import DeltaTable
from pyspark.sql import SparkSession

from lakemirror.cli.main import main
from lakemirror.driver.batch import BatchApplier
from lakemirror.driver.engine.engine import Engine
from lakemirror.driver.plan.left import judge
from lakemirror.driver.read.base import Batch
from lakemirror.driver.runtime import runner
from lakemirror.driver.runtime.read_at import read_at
from lakemirror.driver.runtime.reload import SnapshotWanted, reload
from lakemirror.driver.runtime.replayer import replay
from lakemirror.driver.runtime.summary import RunSummary
from lakemirror.driver.tables.commits import Commit, parse
from lakemirror.driver.tables.mirror import MOST_COLUMNS
from lakemirror.driver.tables.names import TableName
from tests.conformance.test_consistent_reads import seq_of
from tests.support import engines
from tests.support.mirroring import Mirroring, at
from tests.support.records import Column, Record
from tests.support.shop import Shop, table

ByHand = Callable[[SparkSession, str], None]


def _sql(text: str) -> ByHand:
    return lambda spark, path: spark.sql(text.format(f"delta.`{path}`")) and None


def _removed(spark: SparkSession, path: str) -> None:
    shutil.rmtree(path)


def _older(spark: SparkSession, path: str) -> None:
    """A copy from before the last batch: its log lacks the last commit."""
    log = Path(path, "_delta_log")
    newest = max(int(each.stem) for each in log.glob("*.json"))
    for each in log.glob(f"*{newest:020d}*"):
        each.unlink()
    for each in log.glob(f".*{newest:020d}*"):
        each.unlink()


def _replaced(spark: SparkSession, path: str) -> None:
    rows = spark.read.format("delta").load(path).where("id = 1")
    rows.write.format("delta").mode("overwrite").save(path)


def _restored(spark: SparkSession, path: str) -> None:
    DeltaTable.forPath(spark, path).restoreToVersion(1)


def _column(spark: SparkSession, path: str) -> None:
    spark.sql(f"ALTER TABLE delta.`{path}` ADD COLUMNS (note STRING)")
    spark.sql(f"UPDATE delta.`{path}` SET note = 'mine' WHERE id IN (1, 3)")


@dataclass(frozen=True)
class Case:
    """What somebody does to a mirror with rows 1 to 3 (v 1 to 3; 4 of row 2 in the second batch).

    ``lost`` is a part of why the table is held then. ``hand`` are parts of what is reported about rows, and
    ``rows`` what the mirror shows once row 1 has v 10. ``quiet`` is a table that has no change after that.
    """

    name: str
    do: ByHand
    lost: str = ""
    hand: tuple[str, ...] = ()
    rows: Mapping[int, int | None] = field(default_factory=lambda: {1: 10, 2: 4, 3: 3})
    quiet: bool = False
    token: bool = False


SOURCE = {1: 10, 2: 4, 3: 3}
CASES = (
    Case("nothing", lambda spark, path: None),
    Case("removed", _removed, "is gone"),
    Case("removed_quietly", _removed, "is gone", quiet=True),
    Case("removed_with_a_token", _removed, token=True),
    Case("restored", _restored, "RESTORE"),
    Case("restored_quietly", _restored, "RESTORE", quiet=True),
    Case("replaced", _replaced, "WRITE"),
    Case("older", _older, "restored or replaced"),
    Case("erased", _sql("DELETE FROM {} WHERE id = 3"), hand=("DELETE of 1 row",), rows={1: 10, 2: 4}),
    Case("erased_quietly", _sql("DELETE FROM {} WHERE id = 3"), hand=("DELETE of 1 row",), quiet=True),
    Case(
        "updated",
        _sql("UPDATE {} SET v = 99 WHERE id >= 2"),
        hand=("UPDATE of 2 row",),
        rows={1: 10, 2: 99, 3: 99},
    ),
    Case(
        "merged",
        _sql("MERGE INTO {} t USING (SELECT 3 AS id) s ON t.id = s.id WHEN MATCHED THEN DELETE"),
        hand=("MERGE of 1 row",),
        rows={1: 10, 2: 4},
    ),
    Case(
        "inserted",
        _sql("INSERT INTO {} (id, v) VALUES (1, 77), (8, 8)"),
        hand=("WRITE of 2 row",),
        rows={1: 10, 2: 4, 3: 3, 8: 8},
    ),
    Case("column", _column, hand=("UPDATE of 2 row",)),
    Case("optimized", _sql("OPTIMIZE {}")),
    Case("ordered", _sql("OPTIMIZE {} ZORDER BY (v)")),
    Case("vacuumed", _sql("VACUUM {}")),
    Case("commented", _sql("ALTER TABLE {} SET TBLPROPERTIES ('user.owner' = 'ann')")),
)
LOST = [case for case in CASES if case.lost]
TABLES = {case.name: table(case.name, Column("v", "int32", optional=True)) for case in CASES}


@dataclass(frozen=True)
class Told:
    """A run over mirrors that were changed, and the next one over those that are read again."""

    second: RunSummary
    third: RunSummary
    fourth: RunSummary
    rows: Mapping[str, Mapping[int, int]]
    healed: Mapping[str, Mapping[int, int]]
    mirroring: Mirroring


@pytest.fixture(scope="module")
def told(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Told:
    folder = tmp_path_factory.mktemp("places")
    shop = Shop()
    first: list[Record] = []
    second: list[Record] = []
    third: list[Record] = []
    for case in CASES:
        of = TABLES[case.name]
        if case.name == "inserted":  # row 1 is not there before
            first += [each for id in (2, 3) for each in shop.create(of, id=id, v=id)]
        else:
            first += [each for id in (1, 2, 3) for each in shop.create(of, id=id, v=id)]
        second += shop.update(of, id=2, v=4)
        third += [] if case.quiet else shop.update(of, id=1, v=10)
    settings = {"schemaEvolution": "fail"}
    mirroring = Mirroring(folder, settings).deliver([first, second])
    mirroring.run(spark)
    for case in CASES:
        case.do(spark, _path(mirroring, case))
    mirroring.deliver([third])
    _listed(mirroring, [case for case in CASES if case.token])
    after = mirroring.run(spark)
    rows = {
        case.name: _rows(spark, mirroring, case) for case in CASES if Path(_path(mirroring, case)).exists()
    }
    again = mirroring.run(spark)
    _listed(mirroring, [case for case in CASES if case.token or case.lost])
    last = mirroring.run(spark)
    healed = {case.name: _rows(spark, mirroring, case) for case in LOST}
    return Told(after, again, last, rows, healed, mirroring)


def _listed(mirroring: Mirroring, cases: list[Case]) -> None:
    """Give tables a resync token."""
    document = yaml.safe_load(mirroring.manifest.read_text())
    document["spec"]["tables"] = [{"source": f"public.{case.name}", "resyncToken": "1"} for case in cases]
    mirroring.manifest.write_text(yaml.safe_dump(document))


def _path(mirroring: Mirroring, case: Case) -> str:
    return mirroring.path("demo", "public", case.name)


def _rows(spark: SparkSession, mirroring: Mirroring, case: Case) -> dict[int, int]:
    return {row["id"]: row["v"] for row in at(spark, _path(mirroring, case)).collect()}


@pytest.mark.long
@pytest.mark.guarantee(
    "A mirror that was removed, restored or replaced is held until it is read again or reloaded; rows "
    "changed by hand are reported, and the table goes on; a column of the user's stays"
)
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_a_mirror_that_was_changed(case: Case, told: Told) -> None:
    source = f"demo.public.{case.name}"
    error = told.second.held.get(source, "")
    assert case.lost in error
    assert bool(case.lost) == bool(error)
    if case.lost:
        assert "resyncToken" in error
        assert "lakemirror reload" in error
        assert told.healed[case.name] == ({1: 1, 2: 4, 3: 3} if case.quiet else SOURCE)
        assert source in told.third.held
        return
    drift = told.second.tables[source].drift if source in told.second.tables else ()
    said = [each.to_type or "" for each in drift if each.change == "changed-by-hand"]
    assert len(said) == len(case.hand) == len(drift)
    assert all(part in text for part, text in zip(case.hand, said, strict=True))
    warned = [each for each in told.second.warnings if f" {source} " in each]
    assert len(warned) == len(case.hand)
    assert told.rows[case.name] == (case.rows if not case.quiet else {1: 1, 2: 4})


@pytest.mark.long
@pytest.mark.guarantee(
    "A mirror that was removed, restored or replaced is held until it is read again or reloaded; rows "
    "changed by hand are reported, and the table goes on; a column of the user's stays"
)
def test_what_was_held_is_healed_and_said_once(told: Told) -> None:
    assert told.fourth.held == {}
    assert not [each for each in told.fourth.warnings if "by hand" in each]
    assert not [each for each in told.third.warnings if "rows of the mirror" in each]


@pytest.mark.long
@pytest.mark.guarantee(
    "A mirror that was removed, restored or replaced is held until it is read again or reloaded; rows "
    "changed by hand are reported, and the table goes on; a column of the user's stays"
)
def test_a_column_of_the_users_keeps_its_values(spark: SparkSession, told: Told) -> None:
    """Also in a row that changes."""
    rows = at(spark, told.mirroring.path("demo", "public", "column")).collect()
    assert {row["id"]: row["note"] for row in rows} == {1: "mine", 2: None, 3: "mine"}


@pytest.mark.long
@pytest.mark.guarantee(
    "A mirror that was removed, restored or replaced is held until it is read again or reloaded; rows "
    "changed by hand are reported, and the table goes on; a column of the user's stays"
)
@pytest.mark.parametrize("engine", [engines.in_columns, engines.by_spark])
def test_a_mirror_that_is_restored_while_a_batch_is_written_is_held_after_a_restart(
    engine: Callable[[SparkSession], AbstractContextManager[SparkSession]],
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spark's plans may commit to it, or have nothing to commit. The engine notices it at once.

    One of the tables has no changes any more.
    """
    shop, of = Shop(), {name: table(name, Column("v", "int32")) for name in ("changed", "quiet", "same")}
    first = {name: shop.create(one, id=1, v=1) + shop.create(one, id=2, v=2) for name, one in of.items()}
    second = [each for one in of.values() for each in shop.update(one, id=1, v=3)]
    third = shop.update(of["changed"], id=2, v=4) + shop.update(of["quiet"], id=2, v=4) + first["same"]
    fourth = shop.update(of["changed"], id=1, v=5) + shop.update(of["same"], id=1, v=5)
    mirroring = Mirroring(tmp_path).deliver([[*chain(*first.values())], second, third])
    restored = set[str]()
    by_spark, in_columns = BatchApplier._write, Engine.write

    def restore(batch: Batch, names: Iterable[TableName]) -> None:
        for name in {each.table for each in names if batch.batch_id == 2} - restored:
            restored.add(name)
            deltalake.DeltaTable(mirroring.path("demo", "public", name)).restore(1)

    def write_by_spark(self: BatchApplier, decisions: Any, given: Any, **more: Any) -> Any:
        restore(given.batch, [each.name for each in decisions])
        return by_spark(self, decisions, given, **more)

    def write_in_columns(self: Engine, read: Any, batch: Batch) -> Any:
        restore(batch, read.tables)
        return in_columns(self, read, batch)

    with engine(spark), monkeypatch.context() as patch:
        patch.setattr(BatchApplier, "_write", write_by_spark)
        patch.setattr(Engine, "write", write_in_columns)
        held = mirroring.run(spark).held
        assert len(restored) == len(of)
        assert len(held) == (len(of) if engine is engines.in_columns else 0)
        held = mirroring.deliver([fourth]).run(spark).held
    assert sorted(held) == [f"demo.public.{name}" for name in of]
    assert all("RESTORE" in error for error in held.values())


@pytest.mark.thorough
@pytest.mark.guarantee(
    "A mirror that was removed, restored or replaced is held until it is read again or reloaded; rows "
    "changed by hand are reported, and the table goes on; a column of the user's stays"
)
def test_a_reload_also_resolves_it(spark: SparkSession, tmp_path: Path) -> None:
    """Also where the mirror happens to be as the snapshot, so that there is nothing to change."""
    shop, of = Shop(), {name: table(name, Column("v", "int32")) for name in ("gone", "same", "other")}
    first = [each for one in of.values() for id in (1, 2) for each in shop.create(one, id=id, v=id)]
    second = [each for one in of.values() for each in shop.update(one, id=2, v=5)]
    third = [each for one in of.values() for each in shop.create(one, id=3, v=3)]
    # Nothing else tells the key of files for a mirror that is gone.
    settings = {"tables": [{"source": "public.gone", "primaryKey": ["id"]}]}
    mirroring = Mirroring(tmp_path, settings).deliver([first, second])
    mirroring.run(spark)
    shutil.rmtree(mirroring.path("demo", "public", "gone"))
    same, other = (mirroring.path("demo", "public", name) for name in ("same", "other"))
    DeltaTable.forPath(spark, other).restoreToVersion(1)
    newest = DeltaTable.forPath(spark, same).history(1).head()["version"]
    DeltaTable.forPath(spark, same).restoreToVersion(1)
    DeltaTable.forPath(spark, same).restoreToVersion(newest)
    assert set(mirroring.run(spark).held) == {f"demo.public.{name}" for name in of}
    for name in of:
        rows = spark.createDataFrame([(1, 1), (2, 5)], "id INT, v INT")
        rows.coalesce(1).write.parquet(f"{tmp_path}/snapshots/demo/{name}")
    wanted = SnapshotWanted(f"{tmp_path}/snapshots/{{db}}/{{table}}", "parquet")
    done = reload(mirroring.pipeline, wanted, at=datetime.fromtimestamp(1_800_000_000, UTC), spark=spark)
    assert [(each.source, each.error, each.done) for each in done] == [
        (f"demo.public.{name}", None, True) for name in sorted(of)
    ]
    mirroring.deliver([third])
    assert mirroring.run(spark).held == {}
    for name in of:
        rows = at(spark, mirroring.path("demo", "public", name)).collect()
        assert {row["id"]: row["v"] for row in rows} == {1: 1, 2: 5, 3: 3}


@pytest.mark.guarantee(
    "A one-time run with a table that is held does not end as if all were applied; a table that is too wide "
    "is refused before it is written"
)
@pytest.mark.parametrize(
    ("left", "newest", "commits", "lost", "by_hand"),
    [
        (None, None, [], "", []),
        (None, 5, [Commit(5, "DELETE", changes=True)], "", []),
        (3, 3, [], "", []),
        (3, None, [], "is gone", []),
        (3, 2, [], "restored or replaced", []),
        (3, 5, [Commit(4, "OPTIMIZE"), Commit(5, "MERGE", ours=True, changes=True)], "", []),
        (3, 4, [Commit(4, "RESTORE", changes=True, replaces=True)], "version 4, RESTORE", []),
        (3, 4, [Commit(4, "RESTORE", replaces=True)], "", []),
        (3, 4, [Commit(4, "WRITE", ours=True, changes=True, replaces=True)], "", []),
        (3, 6, [Commit(5, "DELETE", changes=True), Commit(6, "UPDATE", changes=True)], "", [5, 6]),
        (3, 9, [], "", []),  # the log is cleaned up: nothing is known
    ],
)
def test_a_verdict(
    left: int | None, newest: int | None, commits: list[Commit], lost: str, by_hand: list[int]
) -> None:
    found = judge(left, newest, commits)
    assert bool(found.lost) == bool(lost)
    assert lost in (found.lost or "")
    assert [each.version for each in found.by_hand] == by_hand


def _commit(info: dict[str, Any], *actions: dict[str, Any]) -> Commit:
    return parse(7, "\n".join(json.dumps(each) for each in ({"commitInfo": info}, *actions)))


def test_what_a_commit_says() -> None:
    moved, changed = (
        {"add": {"path": "a", "dataChange": False}},
        {"remove": {"path": "a", "dataChange": True}},
    )
    erased = _commit(
        {"operation": "DELETE", "operationMetrics": {"numDeletedRows": "3"}, "userName": "ann"}, changed
    )
    assert (erased.rows, erased.user, erased.changes, erased.ours) == (3, "ann", True, False)
    assert not _commit({"operation": "OPTIMIZE"}, moved).changes
    assert not _commit({"operation": "SET TBLPROPERTIES"}, {"metaData": {"schemaString": "{}"}}).changes
    assert _commit({}, changed, {"txn": {"appId": "lakemirror/shop/q", "version": 1}}).ours
    assert not _commit({}, changed, {"txn": {"appId": "lakemirrors", "version": 1}}).ours
    assert _commit({"userMetadata": '{"query": "q", "batch": 1}'}, changed).ours
    assert not _commit({"userMetadata": "mine"}, changed).ours
    assert _commit({"operation": "RESTORE"}, changed).replaces
    assert _commit({"operation": "CREATE OR REPLACE TABLE AS SELECT"}, changed).replaces
    whole = {"operation": "WRITE", "operationParameters": {"mode": "Overwrite", "partitionBy": "[]"}}
    part = {"operation": "WRITE", "operationParameters": {"mode": "Overwrite", "predicate": '["(id = 1)"]'}}
    assert _commit(whole, changed).replaces
    assert not _commit(part, changed).replaces
    assert parse(3, "not json\n[]\n").operation == "an unknown operation"


@pytest.mark.long
@pytest.mark.guarantee(
    "A version answers for the positions whose changes it has, not for those that are in quarantine"
)
def test_a_version_is_as_good_as_what_it_has(spark: SparkSession, tmp_path: Path) -> None:
    """A batch that brought only a record for the quarantine changes nothing about the version before it."""
    shop, of = Shop(), table("rows", Column("v", "int32"))
    expectation = {"name": "small", "condition": "v < 100", "onViolation": "quarantine"}
    strict = {"tables": [{"source": "public.rows", "expectations": [expectation]}]}
    first, second = shop.create(of, id=1, v=1), shop.update(of, id=1, v=500)
    mirroring = Mirroring(tmp_path, strict).deliver([first, second])
    assert mirroring.run(spark).counts.quarantined == 1
    seqs = [str(seq_of(*each)) for each in (first, second)]
    between, there = f"{seqs[1][:-2]}00", seqs[1]
    assert seqs[0] < between < there

    def versions() -> list[int | None]:
        answers = [read_at(mirroring.pipeline, each, settled=True, spark=spark) for each in (between, there)]
        return [each.tables[0].version for each in answers]

    before, unknown = versions()
    assert before is not None
    assert unknown is None
    free = Mirroring(tmp_path)
    assert replay(free.pipeline, spark=spark).still_bad == 0
    below, newest = versions()
    assert below == before
    assert newest is not None
    assert newest > before


@pytest.mark.long
@pytest.mark.guarantee(
    "A one-time run with a table that is held does not end as if all were applied; a table that is too wide "
    "is refused before it is written"
)
def test_a_table_is_too_wide_before_it_is_written(spark: SparkSession, tmp_path: Path) -> None:
    """The run says so, and so does the exit code."""
    shop = Shop()
    wide = table("wide", *[Column(f"c{n}", "int32", optional=True) for n in range(MOST_COLUMNS)])
    fine = table("fine", Column("v", "int32"))
    mirroring = Mirroring(tmp_path).deliver([shop.create(wide, id=1) + shop.create(fine, id=1, v=1)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "create_session", lambda *_: spark)
        patch.setattr(SparkSession, "stop", lambda self: None)
        done = CliRunner().invoke(main, ["run", "--once", "-f", str(mirroring.manifest)])
    assert done.exit_code == 1, done.output
    assert "more than 1,600 columns (there would be 1,601)" in done.output
    assert "tables[demo.public.wide].columns.exclude" in done.output
    assert "not all applied, held: demo.public.wide" in done.output
    assert not Path(mirroring.path("demo", "public", "wide")).exists()
    assert at(spark, mirroring.path("demo", "public", "fine")).count() == 1


@pytest.mark.long
@pytest.mark.guarantee("Updates of rows that the mirror never had are counted and reported")
def test_rows_that_the_mirror_never_had_are_told(spark: SparkSession, tmp_path: Path) -> None:
    """An update of a row that was never created; one beside creates; and none where all is in order."""
    shop = Shop()
    of = {name: table(name, Column("v", "int32")) for name in ("late", "mixed", "whole", "filtered", "soft")}
    tables = [
        {"source": "public.filtered", "filter": "v > 0"},
        {"source": "public.soft", "delete": {"type": "soft", "column": "gone"}},
    ]
    first = [
        *shop.update(of["late"], id=1, v=1),
        *(record for id in (1, 2) for record in shop.create(of["mixed"], id=id, v=id)),
        *shop.update(of["mixed"], id=2, v=9),
        *shop.update(of["mixed"], id=3, v=3),
        *shop.create(of["whole"], id=1, v=1),
        *shop.update(of["whole"], id=1, v=2),
        *shop.update(of["filtered"], id=1, v=1),
        *shop.delete(of["soft"], id=1, v=1),
        *shop.update(of["soft"], id=2, v=1),
    ]
    second = [record for name in of for record in shop.update(of[name], id=1, v=5)]
    done = Mirroring(tmp_path, {"tables": tables}).deliver([first, second]).run(spark)
    counts = {name: done.tables[f"demo.public.{name}"].counts.absent_rows for name in of}
    assert counts == {"late": 1, "mixed": 1, "whole": 0, "filtered": 0, "soft": 1}
    warned = [each for each in done.warnings if "lakemirror reload" in each]
    assert sorted(each.partition(":")[0] for each in warned) == [
        f"demo.public.{name}" for name in ("late", "mixed", "soft")
    ]


@pytest.mark.long
@pytest.mark.guarantee(
    "A mirror that was removed, restored or replaced is held until it is read again or reloaded; rows "
    "changed by hand are reported, and the table goes on; a column of the user's stays"
)
def test_a_row_that_was_added_by_hand_yields_where_values_have_places(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Values have places of their own once a record lacks one; such a row has the lowest place."""
    shop, of = Shop(), table("rows", Column("v", "int32"), Column("w", "string", optional=True))
    first = shop.create(of, id=1, v=1, w="a") + shop.update(of, id=1, v=2, w="__debezium_unavailable_value")
    second = shop.update(of, id=2, v=3, w="__debezium_unavailable_value")
    third = shop.update(of, id=2, v=4, w="b") + shop.update(of, id=3, v=5, w="c")
    mirroring = Mirroring(tmp_path).deliver([first])
    mirroring.run(spark)
    path = mirroring.path("demo", "public", "rows")
    spark.sql(f"INSERT INTO delta.`{path}` (id, v, w) VALUES (2, 77, 'mine'), (3, 77, 'mine')")
    mirroring.deliver([second]).run(spark)
    rows = {row["id"]: (row["v"], row["w"]) for row in at(spark, path).collect()}
    assert rows == {1: (2, "a"), 2: (3, "mine"), 3: (77, "mine")}
    mirroring.deliver([third]).run(spark)
    rows = {row["id"]: (row["v"], row["w"]) for row in at(spark, path).collect()}
    assert rows == {1: (2, "a"), 2: (4, "b"), 3: (5, "c")}
