"""Plain changes that are applied in columns end as the rules say, beside tables that Spark applies."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, count, pairwise
from pathlib import Path
from typing import Any, Literal, cast, get_args

import pytest
from delta.tables import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from lakemirror.api.spark_settings import BY_SPARK, ENGINE
from lakemirror.driver import batch, faults
from lakemirror.driver.engine import engine, job
from lakemirror.driver.read.base import Batch, SavedLines
from tests.support import engines
from tests.support.agreement import DELETED_AT, by_rules, differences, targets_of
from tests.support.delivery import Batches, cut, interleaved, parts, restarted
from tests.support.histories import History, Shape, Step, many, play
from tests.support.mirroring import Mirroring, audited
from tests.support.records import Column, PostgresPosition, Record, Table, Topic

pytestmark = pytest.mark.long


@pytest.fixture
def columns(spark: SparkSession) -> Iterator[SparkSession]:
    with engines.in_columns(spark):
        yield spark


def history(seed: int, shape: Shape, size: int = 6, *, plain: bool = True) -> History:
    rnd = random.Random(seed)
    steps = many(range(size), rnd)
    if plain:
        steps = [each._replace(verb=rnd.choice(("put", "put", "drop"))) for each in steps]
    return play(steps, shape)


def in_columns(spark: SparkSession, mirroring: Mirroring, table: str, schema: str | None = "public") -> int:
    """How many batches of a table were applied in columns."""
    path = mirroring.path("demo", schema, table)
    return DeltaTable.forPath(spark, path).history().where("engineInfo = 'Lakemirror'").count()


@pytest.mark.parametrize(("conf", "applied"), [({}, True), ({ENGINE: BY_SPARK}, False)])
def test_plain_changes_are_applied_in_columns_unless_a_setting_says_otherwise(
    conf: dict[str, str], applied: bool, spark: SparkSession, tmp_path: Path
) -> None:
    session = spark.newSession()
    session.conf.unset(ENGINE)
    for name, value in conf.items():
        session.conf.set(name, value)
    played = history(1, Shape(full=True, schemas=False, name="items"))
    mirroring = Mirroring(tmp_path).deliver(parts(played.records, 6))
    mirroring.run(session)
    assert differences(session, mirroring, by_rules(mirroring)) == []
    assert (in_columns(session, mirroring, "items") > 0) == applied
    [counts] = audited(session, mirroring, ["records", "records_in_columns"]).values()
    assert (0 < counts["records_in_columns"] <= counts["records"]) == applied


def test_a_plain_history_in_order(columns: SparkSession, tmp_path: Path) -> None:
    played = history(1, Shape(full=True, schemas=False, name="items"))
    mirroring = Mirroring(tmp_path).deliver(parts(played.records, 6))
    mirroring.run(columns)
    assert differences(columns, mirroring, by_rules(mirroring)) == []
    assert in_columns(columns, mirroring, "items") >= 3


def test_the_first_tombstones_of_a_mirror(columns: SparkSession, tmp_path: Path) -> None:
    """Their table is made by a batch that is applied in columns, and the mirror's commit says that it is."""
    steps = [Step(0, "put", each) for each in (0, 1, 2, 0, 1, 2)]
    steps += [Step(0, "drop", each) for each in (0, 1)]
    played = play(steps, Shape(snapshot="initial", full=True, schemas=False, name="items"))
    mirroring = Mirroring(tmp_path).deliver(cut(played.records, 3))
    mirroring.run(columns)
    assert differences(columns, mirroring, by_rules(mirroring)) == []
    assert in_columns(columns, mirroring, "items") >= 1
    path = mirroring.path("demo", "public", "items")
    by = [DeltaTable.forPath(columns, place).history() for place in (path, f"{path}/_tombstones")]
    assert {row["engineInfo"] for row in by[1].collect()} == {"Lakemirror"}
    assert by[0].where("operation = 'SET TBLPROPERTIES'").count() == 0
    properties = DeltaTable.forPath(columns, path).detail().select("properties").first()
    assert properties is not None
    assert properties[0]["lakemirror.tombstones"] == "true"


def several(seed: int) -> Batches:
    """Tables with schemas and without, with gaps, of PostgreSQL and MariaDB, and one with truncates."""
    rnd = random.Random(seed)
    played = [
        history(seed, Shape(name="items")),
        history(seed + 1, Shape(name="bare", schemas=False, full=True)),
        history(seed + 2, Shape(source="mariadb", name="stock", schemas=False)),
        history(seed + 3, Shape(name="odd", schemas=False), plain=False),
    ]
    records = [each for one in played for each in one.records]
    return parts(interleaved(records, rnd.randrange(1000)), 7)


@pytest.mark.parametrize("seed", [10, pytest.param(20, marks=pytest.mark.thorough)])
def test_tables_of_each_kind_beside_each_other(
    columns: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Every second batch is taken for a small one, which a single task applies."""
    numbers = count()
    monkeypatch.setattr(Batch, "offsets", property(lambda batch: next(numbers) % 4 // 2 * 10_000))
    mirroring = Mirroring(tmp_path).deliver(several(seed))
    mirroring.run(columns)
    assert differences(columns, mirroring, by_rules(mirroring)) == []
    names = (("items", "public"), ("bare", "public"), ("stock", None))
    assert sum(in_columns(columns, mirroring, *each) for each in names) >= 4


def test_first_batches_are_applied_in_columns_as_they_are_planned(
    columns: SparkSession, tmp_path: Path
) -> None:
    """Of new tables, and of known ones after a start. A bad record is kept aside, and the others applied."""
    played = [
        history(31, Shape(snapshot="initial", name="items")),
        history(32, Shape(snapshot="initial", name="bare", schemas=False, full=True)),
        history(33, Shape(source="mariadb", snapshot="initial", name="stock", schemas=False)),
        history(34, Shape(name="spoilt", schemas=False, full=True)),
    ]
    records = played[3].records
    last = max((each for each in records if each["value"]), key=lambda each: each["offset"])
    bad = {**last, "value": '{"before": 1}', "offset": last["offset"] + len(records)}
    reads = [[each for each in one.records if '"op":"r"' in (each["value"] or "")] for one in played]
    rest = [
        [each for each in one.records if each not in read] for one, read in zip(played, reads, strict=True)
    ]
    names = {"items": "public", "bare": "public", "stock": None, "spoilt": "public"}

    def after(batch: Sequence[Record]) -> list[int]:
        mirroring.deliver([batch]).run(columns)
        return [in_columns(columns, mirroring, name, schema) for name, schema in names.items()]

    mirroring = Mirroring(tmp_path)
    assert after([*chain(*reads), bad]) == [1, 1, 1, 1]
    for counts in audited(columns, mirroring, ["records", "records_in_columns"]).values():
        assert counts["records_in_columns"] == counts["records"] > 0
    first, second = zip(*(parts(each, 2) for each in rest), strict=True)
    # The first transaction after a snapshot, which may have been open then, has no known last commit.
    assert after(list(chain(*first))) == [2, 2, 2, 2]
    assert after(list(chain(*second))) == [3, 3, 3, 3]
    assert differences(columns, mirroring, by_rules(mirroring)) == []


@pytest.mark.thorough
def test_soft_deletes(columns: SparkSession, tmp_path: Path) -> None:
    """Rows stay when they are deleted, with gaps and without, late changes among them."""
    played = [
        history(41, Shape(name="items", schemas=False, full=True)),
        history(42, Shape(name="gaps", schemas=False)),
    ]
    records = [each for one in played for each in one.records]
    rnd = random.Random(4)
    batches = parts(interleaved(records, 7), 6)
    for early, late in zip(batches[:3], batches[3:], strict=True):
        moved = rnd.sample(early, 3)
        early[:] = [each for each in early if each not in moved]
        late += moved
    soft = {"source": "demo.public.*", "delete": {"type": "soft", "column": DELETED_AT}}
    mirroring = Mirroring(tmp_path / "columns", {"tables": [soft]}).deliver(batches)
    mirroring.run(columns)
    assert differences(columns, mirroring, by_rules(mirroring)) == []
    assert sum(in_columns(columns, mirroring, name) for name in ("items", "gaps")) >= 4
    other = Mirroring(tmp_path / "spark", {"tables": [soft]}).deliver(batches)
    with engines.by_spark(columns):
        other.run(columns)
    counts = ("inserted", "updated", "deleted", "absent_rows", "late_after_collection", "out_of_order")
    assert audited(columns, mirroring, counts) == audited(columns, other, counts)


@pytest.mark.thorough
@pytest.mark.parametrize("soft", [False, True])
def test_tables_that_were_truncated(columns: SparkSession, tmp_path: Path, soft: bool) -> None:
    """The truncate itself is left for Spark. Changes from before it come late."""
    rnd = random.Random(8)
    steps = [Step(0, rnd.choice(("put", "put", "drop")), rnd.randrange(5)) for _ in range(36)]
    steps[9] = Step(0, "truncate", 0)
    shape = Shape(snapshot="initial", full=True, schemas=False, name="items")
    batches = cut(play(steps, shape).records, 6)
    late = rnd.sample(batches[0], 2) + rnd.sample(batches[1], 2)
    batches = [[each for each in batch if each not in late] for batch in batches]
    for number, each in enumerate(late):
        batches[-1 - number % 2].append(each)
    gone = {"delete": {"type": "soft", "column": DELETED_AT}} if soft else {}
    mirroring = Mirroring(tmp_path, {"tables": [{"source": "demo.public.items", **gone}]}).deliver(batches)
    mirroring.run(columns)
    assert differences(columns, mirroring, by_rules(mirroring)) == []
    assert in_columns(columns, mirroring, "items") >= 4


@pytest.mark.parametrize(
    ("source", "soft"),
    [("postgres", False), pytest.param("mariadb", True, marks=pytest.mark.thorough)],
)
def test_rows_that_change_their_keys(
    columns: SparkSession, tmp_path: Path, source: Literal["postgres", "mariadb"], soft: bool
) -> None:
    """Engine and Spark take turns on a mirror. What they leave and report is what Spark alone does."""
    rnd = random.Random(9)
    steps = [each._replace(joined=False) for each in many(range(8), rnd, least=4, most=7)]
    played = play(steps, Shape(source, "initial", schemas=False, name="items"))
    batches = parts(played.records, 6)
    for early, late in pairwise(batches[1:5]):
        held = rnd.sample(early, 3)
        early[:] = [each for each in early if each not in held]
        late += held
    gone = {"delete": {"type": "soft", "column": DELETED_AT}} if soft else {}
    tables = {"tables": [{"source": "*.items", **gone}]}
    mirroring, other = (Mirroring(tmp_path / name, tables) for name in ("columns", "spark"))
    for first, end in ((0, 3), (3, 4), (4, 6)):
        with engines.by_spark(columns) if first == 3 else engines.in_columns(columns):
            mirroring.deliver(batches[first:end]).run(columns)
        with engines.by_spark(columns):
            other.deliver(batches[first:end]).run(columns)
    assert differences(columns, mirroring, by_rules(mirroring)) == []
    schema = "public" if source == "postgres" else None
    assert in_columns(columns, mirroring, "items", schema) >= 3
    path, alone = (each.path("demo", schema, "items") for each in (mirroring, other))
    facts = facts_of(columns, path)
    assert facts == facts_of(columns, alone)
    assert sum(each.startswith("moved") for each in facts) >= 10
    assert reported(columns, mirroring) == reported(columns, other)


def facts_of(spark: SparkSession, path: str) -> list[str]:
    """All tombstones and images of a mirror, without when they were recorded."""
    rows = spark.read.format("delta").load(f"{path}/_tombstones").drop("at").collect()
    return sorted(f"{each['kind']} {each}" for each in rows)


def reported(spark: SparkSession, mirroring: Mirroring) -> list[dict[str, Any]]:
    """The counts of each batch."""
    counts = ("applied", "superseded", "stale", "duplicates", "inserted", "updated", "deleted")
    more = ("absent_rows", "late_after_collection", "out_of_order", "tombstones_retained")
    audit = spark.read.format("delta").load(f"{mirroring.checkpoint}/audit").where("source IS NOT NULL")
    return [each.asDict() for each in audit.orderBy("batch_id").select("batch_id", *counts, *more).collect()]


def test_bad_records_are_kept_aside_and_the_others_applied(columns: SparkSession, tmp_path: Path) -> None:
    """Records that are no changes, and changes with values that their mirror cannot hold."""
    table = Table("demo", "public", "items", ODD_COLUMNS, (ODD_KEY,), "demo", full=True, schemas=True)
    topic, records = Topic(table.topic, 1), list[Record]()
    no_changes = {12: "{", 25: '{"payload": null}', 26: "", 39: '{"op": "u", "before": 1, "source": {}}'}
    no_numbers = (14, 33, 34)
    for number in range(1, 61):
        at = PostgresPosition(1000 + number, 999 + number, number, 10**15 + number)
        shown = "no number" if number in no_numbers else number
        row = {ODD_KEY: f"k{number % 7}", "a b": shown, "größe": 0.5}
        message = table.update(at, row, row)
        records += topic.append([replace(message, value=no_changes.get(number, message.value))])
    mirroring = Mirroring(tmp_path).deliver(parts(records, 6))
    mirroring.run(columns)
    assert differences(columns, mirroring, by_rules(mirroring)) == []
    assert in_columns(columns, mirroring, "items") == 6
    kept = columns.read.format("delta").load(f"{mirroring.checkpoint}/quarantine").collect()
    values = {row["offset"]: bytes(row["value"]).decode() for row in kept}
    assert sorted(values) == sorted(each - 1 for each in (*no_changes, *no_numbers))
    assert values == {each["offset"]: each["value"] for each in records if each["offset"] in values}


@pytest.mark.thorough
def test_what_is_sent_again_ends_as_without_the_engine(columns: SparkSession, tmp_path: Path) -> None:
    """Changes that are undecided for a while are compared with what Spark makes of them."""
    played = history(3, Shape(full=True, schemas=False, name="items"))
    batches = cut(restarted(played.records, back=6, every=10), 9)
    mirroring = Mirroring(tmp_path / "columns").deliver(batches)
    mirroring.run(columns)
    other = Mirroring(tmp_path / "spark").deliver(batches)
    with engines.by_spark(columns):
        other.run(columns)
    assert left_by(columns, mirroring) == left_by(columns, other)
    assert in_columns(columns, mirroring, "items") >= 1
    assert in_columns(columns, other, "items") == 0


def left_by(spark: SparkSession, mirroring: Mirroring) -> dict[str, Any]:
    """The rows of the mirror, and the newest tombstone of each key.

    What waits is tried again from time to time, so that batches and their counts differ.
    """
    path = mirroring.path("demo", "public", "items")
    rows, ends = (spark.read.format("delta").load(each) for each in (path, f"{path}/_tombstones"))
    newest = ends.groupBy("key").agg(F.max("seq"))
    return {"rows": sorted(map(str, rows.collect())), "tombstones": dict(map(tuple, newest.collect()))}


ODD_COLUMNS = (
    Column("Ort, (Straße) = nr.", "string"),
    Column("a b", "int64", optional=True),
    Column("größe", "double", optional=True),
)
ODD_KEY = ODD_COLUMNS[0].name


def test_a_batch_with_an_unusual_line_is_parsed_by_spark_and_applied_in_columns(
    columns: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member that no record has is passed over, and the batches after it are not read twice."""
    played = history(1, Shape(full=True, schemas=False, name="items"))
    batches = parts(played.records, 6)
    unusual = [{**each, "tstype": "create"} for each in batches[3]]
    mirroring = Mirroring(tmp_path).deliver([*batches[:3], cast(Any, unusual), *batches[4:]])
    jobs, run = list[bool](), job.run

    def run_noted(*given: Any) -> job.JobResult:
        jobs.append(isinstance(given[-1], SavedLines))
        return run(*given)

    monkeypatch.setattr(job, "run", run_noted)
    mirroring.run(columns)
    assert differences(columns, mirroring, by_rules(mirroring)) == []
    assert in_columns(columns, mirroring, "items") >= 3
    assert jobs[-4:] == [True, False, False, False]


def test_rows_of_large_files_are_hidden_without_a_plan(columns: SparkSession, tmp_path: Path) -> None:
    """The batch that first needs deletion vectors turns them on, and is applied in columns like others."""
    named = (*ODD_COLUMNS, Column("text", "string"))
    table = Table("demo", "public", "items", named, (ODD_KEY,), "demo", full=True, schemas=False)
    topic, records, rnd = Topic(table.topic, 1), list[Record](), random.Random(7)
    for number in range(1, 161):
        at = PostgresPosition(1000 + number, 999 + number, number, 10**15 + number)
        large = rnd.randbytes(60_000).hex()  # which no codec makes small
        is_new = number <= 120
        row = {
            ODD_KEY: f"k{number if is_new else number % 7 + 1}",
            "a b": number,
            "größe": 0.5,
            "text": large,
        }
        records += topic.append([table.create(at, row) if is_new else table.update(at, row, row)])
    mirroring = Mirroring(tmp_path).deliver([records[:120], records[120:140], records[140:]])
    mirroring.run(columns)
    assert differences(columns, mirroring, by_rules(mirroring)) == []
    assert in_columns(columns, mirroring, "items") == 3
    path = mirroring.path("demo", "public", "items")
    properties = DeltaTable.forPath(columns, path).detail().select("properties").first()
    assert properties is not None
    assert properties[0]["delta.enableDeletionVectors"] == "true"


@pytest.mark.parametrize("schemas", [False, True])
def test_names_and_keys_that_need_care(columns: SparkSession, tmp_path: Path, schemas: bool) -> None:
    """Columns that Parquet has under other names, keys of text, several tasks, and rows that are hidden."""
    table = Table("demo", "public", "Tab elle", ODD_COLUMNS, (ODD_KEY,), "demo", full=True, schemas=schemas)
    topic, rnd, rows = Topic(table.topic, 1), random.Random(3), dict[str, dict[str, Any]]()
    keys = ["", "a", "A", "ż", "\U0001f600", 'q"uote', "back\\slash", "%20", "x" * 300, "\uffff"]
    records: list[Any] = []
    for number in range(1, 90):
        at = PostgresPosition(1000 + number, 999 + number, number, 10**15 + number)
        key = rnd.choice(keys)
        row = {
            ODD_KEY: key,
            "a b": rnd.choice([None, number]),
            "größe": rnd.choice([None, -0.0, 0.1 * number]),
        }
        if key not in rows:
            messages = [table.create(at, row)]
        elif rnd.random() < 0.3:
            messages = [*table.delete(at, rows.pop(key))]
            row = {}
        else:
            messages = [table.update(at, row, rows[key])]
        if row:
            rows[key] = row
        records += topic.append(messages)
    mirroring = Mirroring(tmp_path).deliver(parts(records[:20], 1))
    mirroring.run(columns)
    [path] = targets_of(columns, mirroring).values()
    columns.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES (delta.enableDeletionVectors = true)")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "_KEYS_A_BUCKET", 4)
        mirroring.deliver(parts(records[20:], 6)).run(columns)
    assert differences(columns, mirroring, by_rules(mirroring)) == []
    by_engine = DeltaTable.forPath(columns, path).history().where("engineInfo = 'Lakemirror'")
    assert by_engine.count() >= 3
    found = columns.read.format("delta").load(path).select(F.col(f"`{ODD_KEY}`")).collect()
    assert sorted(row[0] for row in found) == sorted(rows)


POINTS: tuple[faults.Point, ...] = get_args(faults.Point)


@pytest.mark.parametrize(
    "point", [*POINTS[:2], *(pytest.param(each, marks=pytest.mark.thorough) for each in POINTS[2:])]
)
def test_a_crash_at_any_point_changes_nothing(
    columns: SparkSession, tmp_path: Path, point: faults.Point
) -> None:
    played = history(5, Shape(full=True, schemas=False, name="items"))
    mirroring = Mirroring(tmp_path).deliver(parts(played.records, 7))
    for after in (3, 1):
        faults.arm(point, after=after)
        with pytest.raises(faults.InjectedCrash):
            mirroring.run(columns)
    mirroring.run(columns)
    assert differences(columns, mirroring, by_rules(mirroring)) == []
    assert in_columns(columns, mirroring, "items") >= 1


def test_a_mirror_that_others_change_between_batches(
    columns: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody compacts the mirror after the job has read it, in each batch; nothing is lost or doubled."""
    played = history(6, Shape(full=True, schemas=False, name="items"))
    mirroring = Mirroring(tmp_path).deliver(parts(played.records, 7))
    path, jobs = mirroring.path("demo", "public", "items"), 0
    run = job.run

    def run_beside_others(*given: Any, **more: Any) -> job.JobResult:
        nonlocal jobs
        found = run(*given, **more)
        jobs += 1
        DeltaTable.forPath(columns, path).optimize().executeCompaction()
        return found

    monkeypatch.setattr(job, "run", run_beside_others)
    mirroring.run(columns)
    assert jobs >= 2
    assert differences(columns, mirroring, by_rules(mirroring)) == []


def test_an_error_after_the_commit_counts_nothing_twice(
    columns: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = history(1, Shape(full=True, schemas=False, name="items"))
    mirroring = Mirroring(tmp_path).deliver(parts(played.records, 6))
    result, failed = engine._result, False

    def fails_once(*given: Any) -> Any:
        nonlocal failed
        if not failed:
            failed = True
            raise RuntimeError("there was no answer")
        return result(*given)

    monkeypatch.setattr(engine, "_result", fails_once)
    mirroring.run(columns)
    assert failed
    assert differences(columns, mirroring, by_rules(mirroring)) == []
    assert audited(columns, mirroring, ["duplicates"]) == {"demo.public.items": {"duplicates": 0}}


def test_a_first_batch_that_fails_leaves_no_files(
    columns: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that the engine has stored before an error are deleted, and the batch is tried again."""
    played = history(1, Shape(full=True, schemas=False, name="items"))
    mirroring = Mirroring(tmp_path).deliver(parts(played.records, 6)[:1])
    keep, failed = batch.keep_bad, False

    def fails_once(*given: Any) -> bool:
        nonlocal failed
        if not failed:
            failed = True
            raise RuntimeError("the store is away")
        return keep(*given)

    monkeypatch.setattr(batch, "keep_bad", fails_once)
    mirroring.run(columns)
    assert failed
    assert differences(columns, mirroring, by_rules(mirroring)) == []
    [path] = targets_of(columns, mirroring).values()
    live = {Path(each).name for each in columns.read.format("delta").load(path).inputFiles()}
    assert {each.name for each in Path(path).glob("*.parquet")} == live


def test_a_job_that_fails_is_done_by_spark(
    columns: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = history(7, Shape(full=True, schemas=False, name="items"))
    mirroring = Mirroring(tmp_path).deliver(parts(played.records, 4))

    def fails(*_: Any, **more: Any) -> job.JobResult:
        raise RuntimeError("a worker has died")

    monkeypatch.setattr(job, "run", fails)
    mirroring.run(columns)
    assert differences(columns, mirroring, by_rules(mirroring)) == []
    assert in_columns(columns, mirroring, "items") == 0


def test_a_file_system_without_hard_links_is_left_to_spark(
    columns: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The engine could not commit, and would store its files in vain in each batch."""
    played = history(7, Shape(full=True, schemas=False, name="items"))
    mirroring = Mirroring(tmp_path).deliver(parts(played.records, 4))

    def link(*_: Any) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "link", link)
    mirroring.run(columns)
    assert differences(columns, mirroring, by_rules(mirroring)) == []
    assert in_columns(columns, mirroring, "items") == 0
    assert "is applied by Spark" not in caplog.text
