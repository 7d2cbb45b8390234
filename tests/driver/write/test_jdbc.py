"""Mirrors that are tables of PostgreSQL, MariaDB and MySQL: the same promises as those of Delta tables."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, get_args

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType

from lakemirror.driver import faults
from lakemirror.driver.checkpoint.owner import Owner
from lakemirror.driver.checkpoint.storage import open_storage
from lakemirror.driver.errors import BatchMismatch, LakemirrorError
from lakemirror.driver.jdbc import Login
from lakemirror.driver.runtime import retry
from lakemirror.driver.runtime.cleanup import delete_data
from lakemirror.driver.runtime.events import BatchDone, Warned
from lakemirror.driver.runtime.replayer import replay
from lakemirror.driver.runtime.runner import run
from lakemirror.driver.tables.jdbc import JdbcMirror, MirrorChanged
from lakemirror.driver.tables.jdbc_database import Database, DatabaseUnreachable
from lakemirror.driver.tables.jdbc_marks import Mark
from lakemirror.driver.tables.names import Location
from lakemirror.driver.tables.tombstones import Tombstones
from tests.conformance.captures import Capture, wrong
from tests.driver.write.jdbc_mirroring import DATABASE, JdbcMirroring, differences
from tests.support.databases import PASSWORD, Server, start_mariadb, start_mysql, start_postgres
from tests.support.delivery import Batches, doubled, parts, shuffled
from tests.support.mirroring import Mirroring
from tests.support.ports import free_port
from tests.support.records import UNAVAILABLE, Column, Record
from tests.support.shop import Shop, table

ROOT = Path(__file__).parents[3]
V = Column("v", "int32")
pytestmark = [
    pytest.mark.sources,
    pytest.mark.guarantee(
        "A mirror in a database keeps the same guarantees as one in Delta, with one transaction per batch"
    ),
]


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


@pytest.fixture(scope="module")
def mysql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with start_mysql(tmp_path_factory.mktemp("servers")) as server:
        server.sql(f"CREATE DATABASE {DATABASE}")
        yield server


ALL = ("postgres", "mariadb", "mysql")
THOROUGH_MYSQL = pytest.param("mysql", marks=pytest.mark.thorough)
ONE = ["postgres", pytest.param("mariadb", marks=pytest.mark.thorough), THOROUGH_MYSQL]
DELIVERIES: dict[str, Callable[[Sequence[Record]], Batches]] = {
    "in order": lambda records: parts(records, 2),
    "shuffled and doubled": lambda records: parts(shuffled(doubled(records), 1), 3),
}
MORE = [
    pytest.param(server, capture, "shuffled and doubled", marks=pytest.mark.thorough)
    for server in ALL
    for capture in ("inventory", "composite_pk", "schema_change", "mariadb_inventory", "pk_change")
    if (server, capture)
    not in (("postgres", "pk_change"), ("mariadb", "mariadb_inventory"), ("mysql", "schema_change"))
]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("server", "scenario", "delivery"),
    [
        pytest.param("postgres", "schema_change", "in order", marks=pytest.mark.thorough),
        ("postgres", "pk_change", "shuffled and doubled"),
        ("mariadb", "mariadb_inventory", "shuffled and doubled"),
        pytest.param("mysql", "schema_change", "shuffled and doubled", marks=pytest.mark.thorough),
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


@pytest.mark.thorough
@pytest.mark.timeout(600)
@pytest.mark.parametrize("server", ONE)
def test_every_type_of_column_comes_back_as_it_was(
    server: str, spark: SparkSession, tmp_path: Path, request: Any
) -> None:
    capture = Capture("types")
    mirroring = JdbcMirroring(
        tmp_path, request.getfixturevalue(server), "types", {"onUnrepresentable": "text"}
    )
    summary = mirroring.deliver([doubled(capture.records)]).run(spark)
    errors = [str(each.error) for each in summary.tables.values() if each.error]
    assert errors == []
    if server == "postgres":
        assert not wrong(differences(spark, capture, mirroring))
        return
    assert {re.sub("(real|double)", "number", each) for _, each in quarantined(spark, mirroring)} == {
        "column c_number is NaN or infinity, which MySQL or MariaDB cannot hold"
    }
    # Without these columns the rows are what they are in Delta.
    names = ("types_full", "types_default")
    left_out = {"columns": {"exclude": ["c_real", "c_double"]}}
    finite = {
        "onUnrepresentable": "text",
        "tables": [{"source": f"public.{name}", **left_out} for name in names],
    }
    mirroring = JdbcMirroring(tmp_path / "finite", mirroring.server, "finite", finite)
    in_delta = Mirroring(tmp_path / "delta", finite)
    for each in (mirroring, in_delta):
        summary = each.deliver([doubled(capture.records)]).run(spark)
        assert [table.error for table in summary.tables.values() if table.error] == []
    for name in names:
        delta = spark.read.format("delta").load(in_delta.path(capture.db, "public", name))
        assert content(mirroring.mirror(spark, name).frame()) == content(delta) != []


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


@pytest.mark.thorough
@pytest.mark.timeout(600)
@pytest.mark.parametrize("server", ["postgres", "mariadb", "mysql"])
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


@pytest.mark.thorough
@pytest.mark.timeout(300)
@pytest.mark.parametrize("server", ["postgres", "mariadb", THOROUGH_MYSQL])
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


@pytest.mark.thorough
@pytest.mark.timeout(900)
@pytest.mark.parametrize("server", ONE)
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


class Pause:
    """A trigger that has each transaction wait before it writes the mark of its batch."""

    def __init__(self, mirroring: JdbcMirroring) -> None:
        self._mirroring, self._postgres = mirroring, "postgresql" in mirroring.url
        marks, schema = f"{mirroring.schema}.lakemirror_batches", mirroring.schema
        if self._postgres:
            mirroring.sql(
                f"CREATE FUNCTION {schema}.wait() RETURNS trigger LANGUAGE plpgsql AS "
                "'BEGIN PERFORM pg_sleep(120); RETURN NEW; END'; "
                f"CREATE TRIGGER wait BEFORE INSERT ON {marks} FOR EACH ROW EXECUTE FUNCTION {schema}.wait()"
            )
        else:
            mirroring.sql(
                f"CREATE TRIGGER {schema}.wait BEFORE INSERT ON {marks} FOR EACH ROW "
                "SET NEW.batch = NEW.batch + SLEEP(120)"
            )

    def waiting(self) -> list[str]:
        """The connections that wait."""
        return self._mirroring.sql(
            "SELECT pid FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
            if self._postgres
            else "SELECT id FROM information_schema.processlist WHERE state = 'User sleep'"
        )

    def end(self) -> None:
        """End those connections, and the waiting."""
        for each in self.waiting():
            self._mirroring.sql(f"SELECT pg_terminate_backend({each})" if self._postgres else f"KILL {each}")
        while self.waiting():
            time.sleep(0.1)
        schema = self._mirroring.schema
        table = f" ON {schema}.lakemirror_batches"
        self._mirroring.sql(f"DROP TRIGGER wait{table}" if self._postgres else f"DROP TRIGGER {schema}.wait")


@pytest.mark.thorough
@pytest.mark.timeout(600)
@pytest.mark.parametrize("server", ONE)
def test_a_driver_that_is_killed_inside_of_a_transaction_leaves_nothing_of_it(
    server: str, spark: SparkSession, tmp_path: Path, request: Any, in_delta: Any
) -> None:
    """The process and its JVM, while the database writes the mark of a batch."""
    first, *rest = story()
    mirroring = JdbcMirroring(tmp_path, request.getfixturevalue(server), "killed", STORY).deliver([first])
    mirroring.run(spark)
    pause = Pause(mirroring)
    before = mirroring.marks()
    mirroring.deliver(rest)
    kill(mirroring, lambda: bool(pause.waiting()))
    assert mirroring.staging() != []
    pause.end()
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
        _, errors = running.communicate(timeout=120)
    assert running.returncode == -signal.SIGKILL, errors.decode(errors="replace")[-2000:]


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_a_database_that_is_away_in_the_middle_of_a_batch_is_waited_for(
    spark: SparkSession, postgres: Server, tmp_path: Path, in_delta: Any
) -> None:
    """All connections break and no new ones are taken, while the database writes the mark of a batch."""
    first, *rest = story()
    mirroring = JdbcMirroring(tmp_path, postgres, "away", STORY).deliver([first])
    mirroring.run(spark)
    pause = Pause(mirroring)
    warned: list[str] = []

    def on_event(event: object) -> None:
        if isinstance(event, Warned) and "is tried again" in event.message and not warned:
            postgres.sql(f"ALTER DATABASE {DATABASE} ALLOW_CONNECTIONS true", "postgres")
            pause.end()
            warned.append(event.message)

    def break_connections() -> None:
        while not pause.waiting():
            time.sleep(0.1)
        postgres.sql(
            f"ALTER DATABASE {DATABASE} ALLOW_CONNECTIONS false; SELECT pg_terminate_backend(pid) "
            f"FROM pg_stat_activity WHERE datname = '{DATABASE}'",
            "postgres",
        )

    breaking = threading.Thread(target=break_connections)
    mirroring.deliver(rest)
    breaking.start()
    try:
        summary = mirroring.run(spark, on_event)
    finally:
        breaking.join(120)
    assert "the database of spec.target.jdbc" in warned[0]
    assert [each.error for each in summary.tables.values() if each.error] == []
    assert summary.counts.quarantined == summary.counts.refused == 0
    assert mirroring.staging() == []
    rows, counts = in_delta
    assert in_database(spark, mirroring) == rows
    assert totals(spark, mirroring) == counts


def quarantined(spark: SparkSession, mirroring: Mirroring) -> list[tuple[str, str]]:
    """Source and reason of each record in quarantine."""
    rows = spark.read.format("delta").load(f"{mirroring.checkpoint}/quarantine").select("source", "reason")
    return sorted((row[0], row[1]) for row in rows.collect())


@pytest.mark.thorough
@pytest.mark.timeout(600)
@pytest.mark.parametrize("server", ["postgres", "mariadb", THOROUGH_MYSQL])
def test_a_record_with_a_value_that_the_database_cannot_hold_goes_to_quarantine(
    server: str, spark: SparkSession, tmp_path: Path, request: Any
) -> None:
    """It alone: what came before it of its row is applied, and so is what comes later."""
    settings = {"tables": [{"source": "public.items", "columns": {"rename": {"ratio": "share"}}}]}
    shop = Shop()
    items = table("items", Column("ratio", "double"), Column("what", "string"))
    named = table("named", V, Column("name", "string"), key=("name",))
    of_postgres = server == "postgres"
    bad = {"ratio": 1.5, "what": "a\0b"} if of_postgres else {"ratio": float("nan"), "what": "a"}
    first = [*shop.create(items, id=1, ratio=1.5, what="a"), *shop.create(items, id=2, ratio=1.5, what="old")]
    first += [*shop.update(items, id=2, **bad), *shop.create(items, id=3, **bad)]
    name = "a\0b" if of_postgres else "x" * 701
    first += [*shop.create(named, id=1, v=1, name="short"), *shop.create(named, id=2, v=1, name=name)]
    mirroring = JdbcMirroring(tmp_path, request.getfixturevalue(server), "unheld", settings).deliver([first])

    def rows() -> list[str]:
        found = mirroring.sql("SELECT id, share, what FROM unheld.items ORDER BY id")
        return [each.replace("\t", "|") for each in found]

    summary = mirroring.run(spark)
    assert [each.error for each in summary.tables.values() if each.error] == []
    title = "PostgreSQL" if of_postgres else "MySQL or MariaDB"
    nul = "has a text with the character NUL"
    why = (f"what {nul}", f"name {nul}")
    if not of_postgres:
        why = ("ratio is NaN or infinity", "name has a key of more than 700 characters")
    reasons = [f"column {each}, which {title} cannot hold" for each in why]
    kept = [("demo.public.items", reasons[0])] * 2 + [("demo.public.named", reasons[1])]
    assert quarantined(spark, mirroring) == kept
    assert (summary.counts.quarantined, summary.counts.refused, summary.counts.unaccounted) == (3, 0, 0)
    assert rows() == ["1|1.5|a", "2|1.5|old"]
    outcome = replay(mirroring.pipeline, spark=spark, secrets={"mirrors": mirroring.secret})
    assert (outcome.records, outcome.still_bad) == (3, 3)
    late = [*shop.update(items, id=3, ratio=2.5, what="c"), *shop.delete(named, id=2, v=1, name=name)]
    summary = mirroring.deliver([[*shop.update(items, id=2, ratio=2.5, what="b"), *late]]).run(spark)
    assert [each.error for each in summary.tables.values() if each.error] == []
    assert rows() == ["1|1.5|a", "2|2.5|b", "3|2.5|c"]
    assert mirroring.sql("SELECT name FROM unheld.named") == ["short"]
    assert mirroring.staging() == []


@pytest.mark.thorough
@pytest.mark.timeout(600)
@pytest.mark.parametrize("server", ["postgres", "mariadb", THOROUGH_MYSQL])
def test_a_column_with_another_name_takes_its_values_along(
    server: str, spark: SparkSession, tmp_path: Path, request: Any
) -> None:
    """Whatever its type, in all rows, also if the driver dies between the column and the batch."""
    started = request.getfixturevalue(server)
    shop, items = Shop(), table("items", V, Column("note", "string", optional=True))
    records = [r for id in (1, 2) for r in shop.create(items, id=id, v=id, note=f"n{id}")]
    JdbcMirroring(tmp_path, started, "renamed").deliver([records]).run(spark)
    settings = {"tables": [{"source": "public.items", "columns": {"rename": {"v": "w", "note": "text"}}}]}
    mirroring = JdbcMirroring(tmp_path, started, "renamed", settings)
    faults.arm("in-transaction")
    with pytest.raises(faults.InjectedCrash):
        mirroring.deliver([shop.update(items, id=1, v=10, note="new")]).run(spark)
    summary = mirroring.run(spark)
    assert [each.error for each in summary.tables.values() if each.error] == []
    found = mirroring.sql("SELECT id, w, text FROM renamed.items ORDER BY id")
    assert [each.replace("\t", "|") for each in found] == ["1|10|new", "2|2|n2"]


@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_a_key_that_an_index_cannot_hold_is_named_and_the_row_heals_in_the_source(
    spark: SparkSession, postgres: Server, tmp_path: Path
) -> None:
    """Only the database knows which key that is: it depends on how the key can be compressed."""
    shop = Shop()
    named = table("named", V, Column("name", "string"), key=("name",))
    long = "".join(hashlib.sha256(str(n).encode()).hexdigest() for n in range(140))
    first = [*shop.create(named, id=1, v=1, name="short"), *shop.create(named, id=2, v=1, name=long)]
    mirroring = JdbcMirroring(tmp_path, postgres, "held").deliver([first])
    error = str(mirroring.run(spark).tables["demo.public.named"].error)
    assert "the column name has a key of more than 2600 bytes in the row" in error
    assert "which PostgreSQL cannot hold in held.named (" in error
    place = "tables[demo.public.named]"
    assert f"set {place}.primaryKey to other columns, and {place}.target to a new place with a new" in error
    summary = mirroring.deliver([shop.delete(named, id=2, v=1, name=long)]).run(spark)
    assert [each.error for each in summary.tables.values() if each.error] == []
    assert mirroring.sql("SELECT name FROM held.named") == ["short"]
    assert mirroring.staging() == []


@pytest.mark.thorough
@pytest.mark.timeout(300)
@pytest.mark.parametrize("server", ONE)
def test_with_the_pipeline_its_mirrors_are_deleted_and_no_other(
    server: str, spark: SparkSession, tmp_path: Path, request: Any
) -> None:
    started, shop = request.getfixturevalue(server), Shop()
    settings = {"deletionPolicy": "DeleteAll"}
    mirroring = JdbcMirroring(tmp_path / "one", started, "deleted", settings).deliver(
        [shop.create(table("items", V), id=1, v=1)]
    )
    mirroring.run(spark)
    other = JdbcMirroring(tmp_path / "two", started, "deleted", name="other")
    other.deliver([shop.create(table("kept", V), id=1, v=1)]).run(spark)
    secrets = {"mirrors": mirroring.secret}
    assert delete_data(mirroring.pipeline, spark, secrets) == ["deleted.items", str(mirroring.checkpoint)]
    there = mirroring.sql(
        "SELECT table_name FROM information_schema.tables WHERE table_schema = 'deleted' ORDER BY table_name"
    )
    assert not [name for name in there if "items" in name]
    assert {"kept", "kept__tombstones"} <= set(there)
    assert not [mark for mark in mirroring.marks() if "items" in mark]
    assert [mark for mark in mirroring.marks() if "kept" in mark]
    assert not mirroring.checkpoint.exists()


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_a_mirror_belongs_to_one_checkpoint(spark: SparkSession, postgres: Server, tmp_path: Path) -> None:
    """Two pipelines of one name, with a checkpoint each and one schema."""
    shop, items = Shop(), table("items", V)
    one, two = (
        JdbcMirroring(tmp_path / name, postgres, "owned", {"deletionPolicy": "DeleteAll"})
        for name in ("one", "two")
    )
    one.deliver([shop.create(items, id=1, v=1)]).run(spark)
    two.deliver([shop.create(items, id=2, v=2)])
    with Owner(open_storage(str(one.checkpoint))):
        refused = two.run(spark)
    error = str(refused.tables["demo.public.items"].error)
    assert "owned.items belongs to another checkpoint of a pipeline of this name" in error
    assert one.sql("SELECT id FROM owned.items ORDER BY id") == ["1"]
    assert [each for each in two.run(spark).warnings if "takes over the mirror owned.items" in each]
    assert delete_data(one.pipeline, spark, {"mirrors": one.secret}) == [str(one.checkpoint)]
    assert two.sql("SELECT id FROM owned.items ORDER BY id") == ["1", "2"]
    assert delete_data(two.pipeline, spark, {"mirrors": two.secret})[0] == "owned.items"


@pytest.mark.thorough
@pytest.mark.guarantee(
    "Nothing that is kept on disk is taken for something else if it is missing, older, newer or another "
    "pipeline's"
)
@pytest.mark.timeout(600)
def test_a_database_that_was_restored_from_its_backup_is_seen(
    spark: SparkSession, postgres: Server, tmp_path: Path
) -> None:
    """Its changes since then are not read again. The table is held, also if it has no change."""
    shop, (changed, quiet) = Shop(), (table(name, V) for name in ("changed", "quiet"))
    source = {name: f"demo.public.{name}" for name in ("changed", "quiet")}
    mirroring = JdbcMirroring(tmp_path, postgres, "restored")
    mirroring.deliver([[*shop.create(changed, id=1, v=1), *shop.create(quiet, id=1, v=1)]]).run(spark)
    tables = mirroring.sql("SELECT table_name FROM information_schema.tables WHERE table_schema = 'restored'")
    for name in tables:
        mirroring.sql(f'CREATE TABLE public."kept_{name}" AS SELECT * FROM restored."{name}"')
    second = [each for of in (changed, quiet) for each in shop.update(of, id=1, v=2)]
    mirroring.deliver([second]).run(spark)
    for name in tables:
        mirroring.sql(f'DELETE FROM restored."{name}"')
        mirroring.sql(f'INSERT INTO restored."{name}" SELECT * FROM public."kept_{name}"')
    mirroring.deliver([shop.create(changed, id=2, v=2)])
    summary = mirroring.run(spark)
    for name in source.values():
        error = str(summary.tables[name].error)
        assert "it was restored or replaced" in error
        assert "resyncToken" in error
    assert mirroring.sql("SELECT v FROM restored.changed ORDER BY id") == ["1"]
    entries = [{"source": f"public.{name}", "resyncToken": "1"} for name in source]
    again = JdbcMirroring(tmp_path, postgres, "restored", {"tables": entries})
    assert again.run(spark).held == {}
    assert mirroring.sql("SELECT v FROM restored.changed ORDER BY id") == ["2", "2"]
    assert mirroring.sql("SELECT v FROM restored.quiet ORDER BY id") == ["2"]


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_what_is_not_this_drivers_is_refused(spark: SparkSession, postgres: Server, tmp_path: Path) -> None:
    """Another driver's commit, another batch of the same number, somebody's own table, tables without key,
    and a mirror of another pipeline.
    """
    shop, items, bare = Shop(), table("items", V), table("bare", V)
    mirroring = JdbcMirroring(tmp_path / "one", postgres, "refused")
    mirroring.sql("CREATE SCHEMA refused; CREATE TABLE refused.own (a int)")
    batch = [*shop.create(items, id=1, v=1), *shop.keyless(bare, id=1, v=1)]
    for taken in ("lakemirror_batches", "items__tombstones"):
        batch += shop.create(table(taken, V), id=1, v=1)
    mirroring.deliver([[*batch, *shop.create(table("own", V), id=1, v=1)]])
    summary = mirroring.run(spark)
    assert "set tables[demo.public.bare].primaryKey" in str(summary.tables["demo.public.bare"].error)
    assert "Lakemirror did not make" in str(summary.tables["demo.public.own"].error)
    for taken in ("lakemirror_batches", "items__tombstones"):
        error = str(summary.tables[f"demo.public.{taken}"].error)
        assert "a name that Lakemirror gives to tables of its own" in error

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

    mirroring.sql("UPDATE refused.lakemirror_batches SET note = replace(note, 'other', 'extent')")
    mirroring.sql("ALTER TABLE refused.items DROP COLUMN v")
    error = mirroring.deliver([shop.update(items, id=1, v=3)]).run(spark).tables["demo.public.items"].error
    assert "the table refused.items has no column 'v' any more" in str(error)
    mirroring.sql("ALTER TABLE refused.items ADD COLUMN v int")
    mirroring.run(spark)
    assert mirroring.sql("SELECT id, v FROM refused.items") == ["1|3"]

    second = JdbcMirroring(tmp_path / "two", postgres, "refused", name="second").deliver([batch])
    error = second.run(spark).tables["demo.public.items"].error
    assert "is the mirror of test/demo.public.items: choose another target" in str(error)


@pytest.mark.thorough
@pytest.mark.parametrize("server", ["postgres", "mariadb", THOROUGH_MYSQL])
def test_a_mirror_is_made_by_one_of_two_that_want_it(server: str, spark: SparkSession, request: Any) -> None:
    """Two tables whose targets are one, by names that differ; and names that the database cannot have."""
    started = request.getfixturevalue(server)
    schema = "public" if server == "postgres" else DATABASE
    database = Database(Login(f"{started.url}{DATABASE}", started.user, PASSWORD), "test")
    one, other = (JdbcMirror(spark, database, Location(name=name)) for name in ("mine", f"{schema}.mine"))
    columns = {"id": IntegerType()}
    one.create(columns, {"lakemirror.source": "a"}, ["id"])
    other.create({**columns, "v": IntegerType()}, {"lakemirror.source": "b"}, ["id"])
    assert (list(other.columns or {}), other.properties) == (["id"], {"lakemirror.source": "a"})
    started.sql(f"UPDATE {schema}.lakemirror_mirrors SET properties = '{{}}'", DATABASE)
    with pytest.raises(MirrorChanged, match="another driver has made or altered"):
        one.alter({"v": IntegerType()}, {}, {})
    with database.session(spark) as session:
        if server != "postgres":  # who reads a mirror for long would else hold up an ALTER TABLE for ever
            assert session.query("SELECT @@lock_wait_timeout") == [("60",)]
    if server != "postgres":
        nowhere = Database(Login(started.url, started.user, PASSWORD), "test")
        with pytest.raises(LakemirrorError, match=r"write the target as SCHEMA\.TABLE"):
            JdbcMirror(spark, nowhere, Location(name="mine"))
    long = "x" * 65
    for name in (f"{long}.items", f"items.{long}", f"items.{long[:60]}"):
        unfit = JdbcMirror(spark, database, Location(name=name)).unfit(columns, ["id"])
        assert unfit is not None
        assert unfit.what.endswith("characters at most")
        assert unfit.change == "target"


def commit(mirror: JdbcMirror, app_id: str, batch: int) -> None:
    """A batch without rows."""
    nothing = mirror.frame().where("false").select(F.lit("i").alias("what"), F.struct("*").alias("n"))
    assert mirror.version is not None
    with mirror.staged("test"):
        mirror.commit(mirror.version, ["id"], nothing, (0, 0, 0), Mark(app_id, batch, "{}"))


@pytest.mark.thorough
def test_a_database_that_cannot_be_reached_stops_a_run_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "RETRY_SECONDS", (0.1,))
    server = Server(f"jdbc:postgresql://127.0.0.1:{free_port()}/", "tester", ())
    mirroring = JdbcMirroring(tmp_path, server, "m").deliver([Shop().create(table("items", V), id=1, v=1)])
    with pytest.raises(DatabaseUnreachable, match=r"spec\.target\.jdbc cannot be reached") as raised:
        mirroring.run(spark)
    assert PASSWORD not in str(raised.value)


@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_a_database_that_is_away_at_the_start_is_waited_for(
    spark: SparkSession, postgres: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the middle of a batch, and longer than a failure of any other kind would be tried again."""
    monkeypatch.setattr(retry, "RETRY_SECONDS", (0.1,))
    monkeypatch.setattr(retry, "AWAY_RETRY_SECONDS", 0.2)
    mirroring = JdbcMirroring(tmp_path, postgres, "late", {"trigger": {"interval": "1s"}})
    mirroring.deliver([Shop().create(table("items", V), id=1, v=1)])
    warned: list[str] = []
    done = threading.Event()

    def on_event(event: object) -> None:
        if isinstance(event, Warned) and "is tried again" in event.message:
            warned.append(event.message)
            if len(warned) == 3:
                postgres.sql(f"ALTER DATABASE {DATABASE} ALLOW_CONNECTIONS true", "postgres")
        if isinstance(event, BatchDone):
            done.set()

    postgres.sql(f"ALTER DATABASE {DATABASE} ALLOW_CONNECTIONS false", "postgres")
    try:
        secrets = {"mirrors": mirroring.secret}
        run(mirroring.pipeline, spark=spark, secrets=secrets, on_event=on_event, stopping=done.is_set)
    finally:
        postgres.sql(f"ALTER DATABASE {DATABASE} ALLOW_CONNECTIONS true", "postgres")
    assert "the database of spec.target.jdbc cannot be reached or refuses the login" in warned[0]
    assert mirroring.sql("SELECT id, v FROM late.items") == ["1|1"]
