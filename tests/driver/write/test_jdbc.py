"""Mirrors that are tables of PostgreSQL and MariaDB: the same promises as those of Delta tables."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, get_args

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lakemirror.driver import faults
from lakemirror.driver.errors import BatchMismatch
from lakemirror.driver.jdbc import Login
from lakemirror.driver.tables.jdbc import JdbcMirror, Mark, MirrorChanged
from lakemirror.driver.tables.jdbc_database import Database, DatabaseUnreachable
from lakemirror.driver.tables.names import Location
from lakemirror.driver.tables.tombstones import Tombstones
from tests.conformance.captures import Capture, wrong
from tests.driver.write.jdbc_mirroring import DATABASE, JdbcMirroring, differences
from tests.support.databases import PASSWORD, Server, start_mariadb, start_postgres
from tests.support.delivery import Batches, doubled, parts, shuffled
from tests.support.kafka_broker import free_port
from tests.support.mirroring import Mirroring
from tests.support.records import UNAVAILABLE, Column, Record
from tests.support.shop import Shop, table

ROOT = Path(__file__).parents[3]
V = Column("v", "int32")
pytestmark = pytest.mark.sources


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with start_postgres(tmp_path_factory.mktemp("servers")) as server:
        server.sql(f"CREATE DATABASE {DATABASE}", "postgres")
        yield server


@pytest.fixture(scope="module")
def mariadb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with start_mariadb(tmp_path_factory.mktemp("servers")) as server:
        server.sql(f"CREATE DATABASE {DATABASE}")
        yield server


DELIVERIES: dict[str, Callable[[Sequence[Record]], Batches]] = {
    "in order": lambda records: parts(records, 2),
    "shuffled and doubled": lambda records: parts(shuffled(doubled(records), 1), 3),
}
MORE = [
    pytest.param(server, capture, "shuffled and doubled", marks=pytest.mark.thorough)
    for server in ("postgres", "mariadb")
    for capture in ("inventory", "composite_pk", "schema_change", "mariadb_inventory", "pk_change")
    if (server, capture) not in (("postgres", "pk_change"), ("mariadb", "mariadb_inventory"))
]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("server", "scenario", "delivery"),
    [
        ("postgres", "schema_change", "in order"),
        ("postgres", "pk_change", "shuffled and doubled"),
        ("mariadb", "mariadb_inventory", "shuffled and doubled"),
        *MORE,
    ],
)
def test_captured_changes_end_in_the_rows_of_the_source(
    server: str, scenario: str, delivery: str, spark: SparkSession, tmp_path: Path, request: Any
) -> None:
    capture = Capture(scenario)
    schema = f"{scenario}_{delivery[:2]}"
    mirroring = JdbcMirroring(tmp_path, request.getfixturevalue(server), schema)
    mirroring.deliver(DELIVERIES[delivery](capture.records))
    summary = mirroring.run(spark)
    assert [each.error for each in summary.tables.values() if each.error] == []
    assert not wrong(differences(spark, capture, mirroring))
    assert summary.counts.unaccounted == 0
    before = mirroring.marks()
    mirroring.run(spark)
    assert mirroring.marks() == before != []
    assert mirroring.staging() == []


@pytest.mark.timeout(600)
@pytest.mark.parametrize("server", ["postgres", pytest.param("mariadb", marks=pytest.mark.thorough)])
def test_every_type_of_column_comes_back_as_it_was(
    server: str, spark: SparkSession, tmp_path: Path, request: Any
) -> None:
    capture = Capture("types")
    mirroring = JdbcMirroring(
        tmp_path, request.getfixturevalue(server), "types", {"onUnrepresentable": "text"}
    )
    summary = mirroring.deliver([doubled(capture.records)]).run(spark)
    errors = [each.error for each in summary.tables.values() if each.error]
    if server == "mariadb":  # it has no NaN and no infinity
        assert len(errors) == 2
        assert all("Out of range value" in str(each) for each in errors)
        return
    assert errors == []
    assert not wrong(differences(spark, capture, mirroring))


def story() -> Batches:
    """Every kind of change, some of them late, and columns with names that are used inside."""
    shop = Shop()
    items = table(
        "items", Column("number", "int32"), Column("what", "string", True), Column('n.`t`"', "string")
    )
    cut, soft = table("cut", V), table("soft", V)
    grown = table("grown", V)
    wider = table("grown", Column("v", "int64"), Column("added", "string", True))

    def row(id: int, number: int, what: str | None = "it's \\ ü") -> dict[str, Any]:
        return {"id": id, "number": number, "what": what, 'n.`t`"': str(id)}

    first = [record for id in (1, 2, 3) for record in shop.create(items, **row(id, 1))]
    first += [*shop.create(cut, id=1, v=1), *shop.create(cut, id=2, v=1), *shop.create(grown, id=1, v=1)]
    first += [*shop.create(soft, id=1, v=1), *shop.create(soft, id=2, v=1)]
    late_of_row, late_of_gone = shop.update(items, **row(1, 2)), shop.update(items, **row(2, 2))
    second = [*shop.update(items, **row(1, 3, UNAVAILABLE)), *shop.delete(items, **row(2, 2))]
    second += shop.send(items, *items.move(shop.next(), row(3, 1), row(4, 1)))
    second += [*shop.truncate(cut), *shop.create(cut, id=3, v=1), *shop.delete(soft, id=1, v=1)]
    second += [*shop.create(wider, id=2, v=2**40, added="x"), *shop.update(soft, id=2, v=2)]
    third = [*late_of_row, *late_of_gone, *first[:1], *shop.update(wider, id=1, v=5, added=None)]
    third += [*shop.create(soft, id=1, v=3), *shop.delete(soft, id=2, v=2), *shop.create(items, **row(5, 1))]
    return [first, second, third]


STORY = {
    "tables": [
        {"source": "public.soft", "delete": {"type": "soft", "column": "gone"}},
        {"source": "public.items", "columns": {"metadata": {"topic": "topic"}, "rowHash": "hash"}},
    ]
}
TABLES = ("cut", "grown", "items", "soft")
FACTS = "tombstones of items"
COUNTS = ("records", "inserted", "updated", "deleted", "stale", "duplicates", "superseded", "applied")


def totals(spark: SparkSession, mirroring: Mirroring) -> dict[str, list[int]]:
    """What became of the records of each table, by the audit."""
    audit = spark.read.format("delta").load(f"{mirroring.checkpoint}/audit").where("source IS NOT NULL")
    rows = audit.groupBy("source").sum(*COUNTS).collect()
    return {row["source"]: [row[f"sum({name})"] for name in COUNTS] for row in rows}


def content(frame: DataFrame) -> list[str]:
    """All values of a mirror, metadata included."""
    return sorted(str(sorted(row.asDict(recursive=True).items())) for row in frame.collect())


@pytest.fixture(scope="module")
def in_delta(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, list[str]], dict[str, list[int]]]:
    """The story in Delta tables, and what became of its records."""
    mirroring = Mirroring(tmp_path_factory.mktemp("delta"), STORY).deliver(story())
    mirroring.run(spark)
    paths = {name: mirroring.path("demo", "public", name) for name in TABLES}
    frames = {name: spark.read.format("delta").load(path) for name, path in paths.items()}
    frames |= {FACTS: spark.read.format("delta").load(f"{paths['items']}/_tombstones").drop("at")}
    return {name: content(frame) for name, frame in frames.items()}, totals(spark, mirroring)


def in_database(spark: SparkSession, mirroring: JdbcMirroring) -> dict[str, list[str]]:
    frames = {name: mirroring.mirror(spark, name).frame() for name in TABLES}
    frames |= {FACTS: mirroring.mirror(spark, "items").facts(None).frame().drop("at")}
    return {name: content(frame) for name, frame in frames.items()}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("server", ["postgres", "mariadb"])
def test_every_kind_of_change_does_what_it_does_in_delta(
    server: str, spark: SparkSession, tmp_path: Path, request: Any, in_delta: Any
) -> None:
    mirroring = JdbcMirroring(tmp_path, request.getfixturevalue(server), "story", STORY).deliver(story())
    summary = mirroring.run(spark)
    assert [each.error for each in summary.tables.values() if each.error] == []
    rows, counts = in_delta
    assert in_database(spark, mirroring) == rows
    assert totals(spark, mirroring) == counts
    assert counts["demo.public.items"][4] > 0, "something came late"
    assert mirroring.sql("SELECT id, number FROM story.items ORDER BY id") in (
        ["1|3", "4|1", "5|1"],
        ["1\t3", "4\t1", "5\t1"],
    )
    assert {name: each.rows for name, each in summary.tables.items()}["demo.public.items"] == 3
    assert mirroring.sql("SELECT v, added FROM story.grown WHERE id = 2") in (
        [f"{2**40}|x"],
        [f"{2**40}\tx"],
    )


@pytest.mark.timeout(300)
@pytest.mark.parametrize("server", ["postgres", "mariadb"])
def test_tombstones_are_collected_by_their_age_and_place(
    server: str, spark: SparkSession, tmp_path: Path, request: Any
) -> None:
    shop, items = Shop(), table("items", V)
    rows = [record for id in (1, 2) for record in shop.create(items, id=id, v=id)]
    mirroring = JdbcMirroring(tmp_path, request.getfixturevalue(server), "collected")
    mirroring.deliver([rows, [*shop.delete(items, id=1, v=1), *shop.delete(items, id=2, v=2)]]).run(spark)
    tombstones = Tombstones(spark, mirroring.mirror(spark, "items").facts(None))
    highest, later = tombstones.summary.newest, datetime.now(UTC) + timedelta(minutes=1)
    assert highest is not None
    assert tombstones.collect(later - timedelta(days=1), None) == 0
    assert tombstones.collect(later, highest) == 1
    assert tombstones.summary.retained == 1
    assert tombstones.collect(later, None) == 1
    kinds = [row["kind"] for row in tombstones.frame().collect()]
    assert kinds == ["collected", "collected"]
    assert tombstones.summary.collected == highest


@pytest.mark.timeout(900)
@pytest.mark.parametrize("server", ["postgres", pytest.param("mariadb", marks=pytest.mark.thorough)])
def test_crashes_lose_and_double_nothing(
    server: str, spark: SparkSession, tmp_path: Path, request: Any, in_delta: Any
) -> None:
    """A batch crashes at each point in turn, inside of a transaction, too."""
    first, *rest = story()
    mirroring = JdbcMirroring(tmp_path, request.getfixturevalue(server), "crashes", STORY).deliver([first])
    mirroring.run(spark)
    mirroring.deliver(rest)
    for point in ("in-transaction", *get_args(faults.Point)):
        faults.arm(point)
        with pytest.raises(faults.InjectedCrash):
            mirroring.run(spark)
        if point == "in-transaction":
            done = mirroring.sql("SELECT count(*) FROM crashes.lakemirror_batches WHERE batch = 1")
            assert done == ["3"], "of one table nothing, and of the others all"
    mirroring.run(spark)
    rows, counts = in_delta
    assert in_database(spark, mirroring) == rows
    assert totals(spark, mirroring) == counts
    assert mirroring.staging() == []


@pytest.mark.timeout(600)
def test_a_driver_that_is_killed_inside_of_a_transaction_leaves_nothing_of_it(
    spark: SparkSession, postgres: Server, tmp_path: Path, in_delta: Any
) -> None:
    """The process and its JVM, while the database writes the mark of a batch."""
    first, *rest = story()
    mirroring = JdbcMirroring(tmp_path, postgres, "killed", STORY).deliver([first])
    mirroring.run(spark)
    mirroring.sql(
        "CREATE FUNCTION killed.wait() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN PERFORM pg_sleep(120); RETURN NEW; END'; "
        "CREATE TRIGGER wait BEFORE INSERT ON killed.lakemirror_batches FOR EACH ROW "
        "EXECUTE FUNCTION killed.wait()"
    )
    before = mirroring.marks()
    mirroring.deliver(rest)
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
    kill(mirroring, lambda: int(mirroring.sql(waiting)[0]) > 0)
    assert mirroring.staging() != []
    mirroring.sql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'PgSleep'; "
        "DROP TRIGGER wait ON killed.lakemirror_batches"
    )
    assert mirroring.marks() == before
    mirroring.run(spark)
    rows, counts = in_delta
    assert in_database(spark, mirroring) == rows
    assert totals(spark, mirroring) == counts
    assert mirroring.staging() == []


def kill(mirroring: JdbcMirroring, when: Callable[[], bool]) -> None:
    """SIGKILL a real run at a moment."""
    command = [sys.executable, "-m", "lakemirror.cli.main", "run", "-f", str(mirroring.manifest), "--once"]
    running = subprocess.Popen(
        [*command, "--secret", f"mirrors={mirroring.secret}"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'operator'}"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        until = time.monotonic() + 300
        while not when():
            assert time.monotonic() < until, "did not happen in time"
            assert running.poll() is None, "the run ended"
            time.sleep(0.1)
    finally:
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)
        _, errors = running.communicate(timeout=30)
    assert running.returncode == -signal.SIGKILL, errors.decode(errors="replace")[-2000:]


@pytest.mark.timeout(600)
def test_what_is_not_this_drivers_is_refused(spark: SparkSession, postgres: Server, tmp_path: Path) -> None:
    """Another driver's commit, another batch of the same number, somebody's own table, tables without key,
    and a mirror of another pipeline.
    """
    shop, items, bare = Shop(), table("items", V), table("bare", V)
    mirroring = JdbcMirroring(tmp_path / "one", postgres, "refused")
    mirroring.sql("CREATE SCHEMA refused; CREATE TABLE refused.own (a int)")
    batch = [*shop.create(items, id=1, v=1), *shop.keyless(bare, id=1, v=1)]
    mirroring.deliver([[*batch, *shop.create(table("own", V), id=1, v=1)]])
    summary = mirroring.run(spark)
    assert "set tables[demo.public.bare].primaryKey" in str(summary.tables["demo.public.bare"].error)
    assert "Lakemirror did not make" in str(summary.tables["demo.public.own"].error)

    login = Login(mirroring.url, postgres.user, PASSWORD)
    one, other = (
        JdbcMirror(spark, Database(login, "test"), Location(name="refused.items")) for _ in range(2)
    )
    commit(one, "a", 1)
    with pytest.raises(MirrorChanged, match="another driver has written it"):
        commit(other, "a", 1)
    assert (one.applied("a"), one.version) == (1, 2)

    faults.arm("after-rows")
    with pytest.raises(faults.InjectedCrash):
        mirroring.deliver([shop.update(items, id=1, v=2)]).run(spark)
    mirroring.sql("UPDATE refused.lakemirror_batches SET note = replace(note, 'extent', 'other')")
    with pytest.raises(BatchMismatch, match="with another range of input"):
        mirroring.run(spark)

    second = JdbcMirroring(tmp_path / "two", postgres, "refused", name="second").deliver([batch])
    error = second.run(spark).tables["demo.public.items"].error
    assert "is the mirror of test/demo.public.items: choose another target" in str(error)


def commit(mirror: JdbcMirror, app_id: str, batch: int) -> None:
    """A batch without rows."""
    nothing = mirror.frame().where("false").select(F.lit("i").alias("what"), F.struct("*").alias("n"))
    assert mirror.version is not None
    with mirror.staged("test"):
        mirror.commit(mirror.version, ["id"], nothing, (0, 0, 0), Mark(app_id, batch, "{}"))


def test_a_database_that_cannot_be_reached_stops_the_run(spark: SparkSession, tmp_path: Path) -> None:
    server = Server(f"jdbc:postgresql://127.0.0.1:{free_port()}/", "tester", ())
    with pytest.raises(DatabaseUnreachable, match=r"spec\.target\.jdbc cannot be reached") as raised:
        JdbcMirroring(tmp_path, server, "m").run(spark)
    assert PASSWORD not in str(raised.value)
