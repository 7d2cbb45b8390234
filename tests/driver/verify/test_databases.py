"""Mirrors against real servers of PostgreSQL, MariaDB and MySQL, with what captured events came from."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakemirror.driver.errors import NotAnswered
from lakemirror.driver.runtime.runner import run
from lakemirror.driver.runtime.verifier import DatabaseWanted, Login, Patience, Verified, verify
from lakemirror.driver.verify.jdbc import Database
from tests.conformance.captures import FOLDER, Capture
from tests.support.databases import (
    PASSWORD,
    Server,
    binlog_position,
    start_mariadb,
    start_mysql,
    start_postgres,
    transaction,
)
from tests.support.mirroring import Mirroring, at

pytestmark = pytest.mark.sources
SETTLED = Patience(settled=True)


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with start_postgres(tmp_path_factory.mktemp("servers")) as server:
        yield server


@pytest.fixture(scope="module")
def mariadb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with start_mariadb(tmp_path_factory.mktemp("servers")) as server:
        yield server


@pytest.fixture(scope="module")
def mysql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with start_mysql(tmp_path_factory.mktemp("servers")) as server:
        yield server


def fill(server: Server, capture: Capture) -> None:
    """Make the tables of a capture, with the rows that they had at its end."""
    about = capture.about
    postgres = "postgresql" in server.url
    server.sql(f"CREATE DATABASE {capture.database}", "postgres" if postgres else "")
    if postgres:
        server.sql("CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy')", capture.database)
    for table, described in about["truth"].items():
        columns = ", ".join(f"{c['name']} {c['type']}" for c in described["columns"])
        text = (FOLDER / capture.scenario / described["file"]).read_text(encoding="utf-8")
        lines = [line for line in text.split("\n") if line]
        statements = [f"CREATE TABLE {table} ({columns});"]
        if postgres:
            row = f"INSERT INTO {table} SELECT * FROM json_populate_record(NULL::{table}, $row$%s$row$);"
            statements += [row % line for line in lines]
        else:
            names = [c["name"] for c in described["columns"]]
            for line in lines:
                parsed = json.loads(line)
                values = ", ".join(_literal(parsed[name]) for name in names)
                statements.append(f"INSERT INTO {table} ({', '.join(names)}) VALUES ({values});")
        server.sql("\n".join(statements), capture.database)


def _literal(value: Any) -> str:
    if value is None:
        return "NULL"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f"x'{text.encode().hex()}'" if isinstance(value, str | dict | list) else text


def compared(
    spark: SparkSession, server: Server, mirroring: Mirroring, database: str, **options: Any
) -> Verified:
    wanted = DatabaseWanted(Login(f"{server.url}{database}", server.user, PASSWORD))
    return verify(mirroring.pipeline, wanted, spark=spark, **options)


def findings(done: Verified) -> dict[str, Any]:
    return {
        each.source: each.error or [(d.what, d.key) for d in each.settled.wrong]
        for each in done.tables
        if not each.equal
    }


@pytest.mark.thorough
def test_every_type_of_postgres_is_compared_by_its_value(
    spark: SparkSession, postgres: Server, tmp_path: Path
) -> None:
    """With schemas in the records; what has no value in Spark is null in the mirror, and equal to that."""
    capture = Capture("types")
    fill(postgres, capture)
    mirroring = Mirroring(tmp_path, {"onUnrepresentable": "null"}).deliver([capture.records])
    mirroring.run(spark)
    done = compared(spark, postgres, mirroring, "types", patience=SETTLED)
    assert findings(done) == {}
    assert [(each.mirror_rows, each.source_rows) for each in done.tables] == [(7, 7), (7, 7)]
    point = "struct<x:double,y:double,wkb:binary,srid:int>"
    for each in done.tables:
        assert each.left_out == {"c_point": f"no exact way to compare point with {point} is known"}
    # Values that are compared in another form are compared all the same.
    postgres.sql(
        'UPDATE types_full SET c_json = \'{"a": 1,  "b": [2, 1]}\' WHERE id = 1;'
        "UPDATE types_full SET c_timetz = c_timetz + interval '1 us' WHERE id = 4;"
        "UPDATE types_full SET c_varbit = B'1' WHERE id = 2;"
        "UPDATE types_default SET c_json = '{\"a\":1,\"b\":[1,2]}', c_varbit = B'0001011' WHERE id = 1",
        "types",
    )
    done = compared(spark, postgres, mirroring, "types", patience=SETTLED)
    changed = [("differs", f'["{n}"]') for n in (1, 2, 4)]
    assert findings(done) == {"types.public.types_full": changed}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kind", "scenario"),
    [
        pytest.param("postgres", "inventory", marks=pytest.mark.thorough),
        ("mariadb", "mariadb_inventory"),
        ("mysql", "mariadb_inventory"),
    ],
)
def test_values_of_records_without_schemas_are_compared_as_they_were_sent(
    kind: str, scenario: str, spark: SparkSession, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Days, microseconds and truth values as numbers; and MariaDB, whose own time zone is another one.

    Decimals without schema are base64: they are compared all the same, and not repaired, for nothing says in
    which form the mirror has to have them.
    """
    server, capture = request.getfixturevalue(kind), Capture(scenario)
    fill(server, capture)
    for variant in ("json", "jsons"):
        mirroring = Mirroring(tmp_path / variant)
        mirroring.deliver([Capture(scenario, variant).records]).run(spark)
        done = compared(spark, server, mirroring, capture.database, patience=SETTLED)
        assert findings(done) == {}, variant
        assert len(done.tables) == 4
        assert {column for each in done.tables for column in each.left_out} == set()
    server.sql("UPDATE products SET price = -0.01 WHERE id = 101", capture.database)
    mirroring = Mirroring(tmp_path / "json")
    options = {"patience": SETTLED, "tables": ["products"], "repair": True}
    done = compared(spark, server, mirroring, capture.database, **options)
    assert findings(done) == {done.tables[0].source: [("differs", '["101"]')]}
    [repaired] = done.repairs
    assert "column price cannot be read exactly" in (repaired.impossible or "")


def test_who_is_refused_is_told_why(spark: SparkSession, postgres: Server, tmp_path: Path) -> None:
    """A wrong password, which no message shows; another database; a table that is not there."""
    capture = Capture("pk_change")
    mirroring = Mirroring(tmp_path).deliver([capture.records[:40]])
    mirroring.run(spark)
    wrong = DatabaseWanted(Login(f"{postgres.url}postgres", postgres.user, "hunter2"))
    with pytest.raises(NotAnswered, match="password authentication failed") as refused:
        verify(mirroring.pipeline, wrong, spark=spark)
    assert "hunter2" not in str(refused.value)
    [first, *_] = compared(spark, postgres, mirroring, "postgres").tables
    assert first.error is not None
    assert "it is in the database pk_change, and the URL names postgres" in first.error
    postgres.sql("CREATE DATABASE pk_change", "postgres")
    errors = [each.error or "" for each in compared(spark, postgres, mirroring, "pk_change").tables]
    assert all("the source has no such table, or its user may not see it" in error for error in errors)


class Mirrored:
    """A table of a real database, and events of it as its connector would send them."""

    def __init__(
        self, spark: SparkSession, server: Server, database: str, folder: Path, **settings: Any
    ) -> None:
        self.spark, self.server, self.database = spark, server, database
        self.postgres = "postgresql" in server.url
        self.mirroring = Mirroring(folder, settings)
        self.offset = 0
        server.sql(f"CREATE DATABASE {database}", "postgres" if self.postgres else "")
        server.sql("CREATE TABLE items (id int PRIMARY KEY, v varchar(20))", database)

    def position(self) -> dict[str, Any]:
        if self.postgres:
            lsn = int(self.server.sql("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint", self.database))
            return {
                "connector": "postgresql",
                "lsn": lsn,
                "sequence": f'["{lsn - 1}","{lsn}"]',
                "schema": "public",
            }
        file, pos = binlog_position(self.server)
        connector = "mysql" if "jdbc:mysql:" in self.server.url else "mariadb"
        return {"connector": connector, "file": file, "pos": pos, "row": 0, "server_id": 1}

    def change(self, op: str, key: int, v: str | None = None, *, sent: bool = True) -> None:
        """A change in the database, and its event if that is ``sent``."""
        about = self.position()
        text = "NULL" if v is None else "'" + v.replace("'", "''") + "'"
        sql = {
            "c": f"INSERT INTO items VALUES ({key}, {text})",
            "u": f"UPDATE items SET v = {text} WHERE id = {key}",
            "d": f"DELETE FROM items WHERE id = {key}",
        }
        self.server.sql(sql[op], self.database)
        if sent:
            self.send(op, key, v, about)

    def send(
        self, op: str, key: int, v: str | None, about: dict[str, Any], ts_ms: int = 1_700_000_000_000
    ) -> None:
        """The event of a change."""
        row = None if op == "d" else {"id": key, "v": v}
        source = {**about, "name": "s", "db": self.database, "table": "items", "ts_ms": ts_ms}
        value = {"before": None, "after": row, "op": op, "source": source, "ts_ms": ts_ms}
        self.offset += 1
        record = {"topic": "s.items", "partition": 0, "offset": self.offset, "timestamp": 0, "headers": []}
        self.mirroring.deliver([[{**record, "key": json.dumps({"id": key}), "value": json.dumps(value)}]])

    @property
    def wanted(self) -> DatabaseWanted:
        return DatabaseWanted(Login(f"{self.server.url}{self.database}", self.server.user, PASSWORD))

    def verify(self, **options: Any) -> Verified:
        return verify(self.mirroring.pipeline, self.wanted, spark=self.spark, **options)

    def rows(self) -> dict[int, Any]:
        path = self.mirroring.path(self.database, "public" if self.postgres else None, "items")
        return {row["id"]: row["v"] for row in at(self.spark, path).collect()}


@pytest.mark.thorough
@pytest.mark.guarantee("A repair overwrites no newer change, and no older change overwrites it")
@pytest.mark.parametrize("kind", ["postgres", "mariadb", "mysql"])
def test_wrong_rows_are_repaired_and_neither_newer_nor_older_changes_are_lost(
    kind: str, spark: SparkSession, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Rows that were changed behind the mirror's back, and events that come late or again afterwards."""
    shop = Mirrored(spark, request.getfixturevalue(kind), "store", tmp_path)
    for n in range(6):
        shop.change("c", n, f"v{n}")
    shop.mirroring.run(spark)
    assert findings(shop.verify(patience=SETTLED)) == {}
    shop.change("u", 1, "changed", sent=False)
    shop.change("u", 2, None, sent=False)
    shop.change("d", 3, sent=False)
    shop.change("c", 9, "it's new", sent=False)
    # Without a driver nothing tells that these have not just not arrived.
    done = shop.verify(patience=Patience(wait=0, settle=0))
    [checked] = done.tables
    assert (checked.settled.wrong, len(checked.settled.arriving), done.driver) == ((), 4, False)
    done = shop.verify(patience=SETTLED, repair=True)
    [checked] = done.tables
    assert {each.key: each.what for each in checked.settled.wrong} == {
        '["1"]': "differs",
        '["2"]': "differs",
        '["3"]': "extra",
        '["9"]': "missing",
    }
    assert [(each.rows, each.done, each.impossible) for each in done.repairs] == [(4, True, None)]
    assert done.equal
    repaired = {0: "v0", 1: "changed", 2: None, 4: "v4", 5: "v5", 9: "it's new"}
    assert shop.rows() == repaired
    assert findings(shop.verify(patience=SETTLED)) == {}
    # The first events come again, with new offsets, as from a connector that was restarted: they are older.
    first = json.loads((tmp_path / "input").glob("*").__next__().read_text().splitlines()[0])
    shop.offset += 1
    shop.mirroring.deliver([[{**first, "offset": shop.offset}]])
    shop.change("u", 9, "newer")
    shop.mirroring.run(spark)
    assert shop.rows() == {**repaired, 9: "newer"}
    assert findings(shop.verify(patience=SETTLED)) == {}


@pytest.mark.thorough
@pytest.mark.guarantee("A repair overwrites no newer change, and no older change overwrites it")
def test_a_transaction_that_is_open_has_not_ended_though_it_is_the_newest(
    spark: SparkSession, postgres: Server
) -> None:
    """Also for one who may only read: first no transaction is open, then the newest, then two, then none."""
    quoted = PASSWORD.replace("'", "''")
    postgres.sql(
        f"CREATE DATABASE open_ones; CREATE ROLE reader LOGIN PASSWORD '{quoted}' NOSUPERUSER", "postgres"
    )
    postgres.sql("CREATE TABLE items (id int)", "open_ones")
    database = Database(spark, Login(f"{postgres.url}open_ones", "reader", PASSWORD))

    def mark() -> int:
        found = database.unfinished()
        assert found is not None
        return found

    try:
        before = mark()
        assert database.finished(before)
        with transaction(postgres, "open_ones", "INSERT INTO items VALUES (1)") as commit:
            with transaction(postgres, "open_ones", "INSERT INTO items VALUES (2)") as commit_second:
                marked = mark()
                assert (database.finished(before), database.finished(marked)) == (True, False)
                commit_second()
            assert not database.finished(marked)
            by_time = Database(spark, Login(f"{postgres.url}open_ones", "reader", PASSWORD), by="time")
            by_time_marked = by_time.unfinished()
            assert by_time_marked is not None
            assert not by_time.finished(by_time_marked)
            by_time.close()
            commit()
        assert database.finished(marked)
        # What begins after a mark is not waited for.
        with transaction(postgres, "open_ones", "INSERT INTO items VALUES (3)"):
            assert database.finished(marked)
    finally:
        database.close()


@pytest.mark.thorough
@pytest.mark.guarantee("A repair overwrites no newer change, and no older change overwrites it")
def test_in_the_order_of_time_a_repair_lies_below_what_is_open(
    spark: SparkSession, mariadb: Server, tmp_path: Path
) -> None:
    """A change has the second in which its statement began, however late it is committed."""
    shop = Mirrored(spark, mariadb, "timed", tmp_path, ordering={"by": "timestamp"})
    shop.change("c", 1, "first")
    shop.mirroring.run(spark)
    shop.change("u", 1, "lost", sent=False)
    with transaction(mariadb, "timed", "UPDATE items SET v = UNIX_TIMESTAMP() WHERE id = 1") as commit:
        quoted = PASSWORD.replace("'", "''")
        mariadb.sql(
            f"CREATE USER reader@'127.0.0.1' IDENTIFIED BY '{quoted}'; "
            "GRANT SELECT ON timed.* TO reader@'127.0.0.1'"
        )
        reader = DatabaseWanted(Login(f"{mariadb.url}timed", "reader", PASSWORD))
        refused = verify(shop.mirroring.pipeline, reader, spark=spark, patience=SETTLED, repair=True)
        assert "grant PROCESS" in (refused.tables[0].error or "")
        done = shop.verify(patience=SETTLED, repair=True)
        assert [(each.rows, each.done) for each in done.repairs] == [(1, True)]
        assert shop.rows() == {1: "lost"}
        commit()
    second = mariadb.sql("SELECT v FROM timed.items").strip()
    shop.send("u", 1, second, shop.position(), int(second) * 1000)
    shop.mirroring.run(spark)
    assert shop.rows() == {1: second}
    assert findings(shop.verify(patience=SETTLED)) == {}


@pytest.mark.guarantee(
    "A comparison finds the keys that differ and no others; a change that has not arrived yet is not a "
    "difference"
)
@pytest.mark.thorough
def test_while_both_sides_change_only_what_is_wrong_is_found_and_the_driver_repairs_it(
    spark: SparkSession, postgres: Server, tmp_path: Path
) -> None:
    source = {"files": {"path": str(tmp_path / "input"), "format": "records", "maxFilesPerBatch": 100}}
    shop = Mirrored(spark, postgres, "busy", tmp_path, source=source, trigger={"interval": "1s"})
    for n in range(20):
        shop.change("c", n, f"v{n}")
    over, failed = threading.Event(), []

    def changing() -> None:
        """Some rows change all the time, one of them without pause; others come and go."""
        number = 0
        while not over.wait(1):  # slower than the slowest driver applies, or nothing ever arrives
            number += 1
            shop.change("u", number % 5, f"w{number}")
            shop.change("u", 0, f"x{number}")
            shop.change(("c", "d")[number % 2 == 0], 50 + (number - 1) // 2 % 5)

    def driving() -> None:
        run(shop.mirroring.pipeline, spark=spark, stopping=over.is_set)

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)
            over.set()

    threads = [threading.Thread(target=guarded, args=(work,)) for work in (changing, driving)]
    for thread in threads:
        thread.start()
    try:
        while not list((tmp_path / "lake").glob("**/items/_delta_log/*1.json")) or len(shop.rows()) < 20:
            assert not over.wait(1), failed
        patience = Patience(wait=240, settle=5)
        assert findings(shop.verify(patience=patience)) == {}
        postgres.sql("UPDATE items SET v = 'lost' WHERE id = 10; DELETE FROM items WHERE id = 11", "busy")
        done = shop.verify(patience=patience, repair=True)
        [checked] = done.tables
        assert {each.key: each.what for each in checked.settled.wrong} == {
            '["10"]': "differs",
            '["11"]': "extra",
        }
        assert [(each.rows, each.done) for each in done.repairs] == [(2, True)]
        assert shop.rows()[10] == "lost"
        assert 11 not in shop.rows()
    finally:
        over.set()
        for thread in threads:
            thread.join(120)
    assert failed == []
