"""Tables that are loaded from real databases while these change, and streamed after that."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from lakemirror.cli.main import main
from lakemirror.driver.errors import NotAnswered
from lakemirror.driver.runtime import reload as reloading
from lakemirror.driver.runtime.reload import Login
from lakemirror.driver.runtime.runner import run
from lakemirror.driver.verify import dialects
from lakemirror.driver.verify.jdbc import Database
from lakemirror.driver.verify.sources import SourceUnfit
from lakemirror.driver.verify.table import named, opened
from tests.conformance.captures import Capture
from tests.driver.verify.test_databases import SETTLED, Mirrored, fill, findings
from tests.support.databases import PASSWORD, Server, start_mariadb, start_mysql, start_postgres, transaction
from tests.support.mirroring import Mirroring

pytestmark = [
    pytest.mark.sources,
    pytest.mark.guarantee(
        "Loading a table from its database while it changes loses and duplicates no change"
    ),
]


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


def load(shop: Mirrored, token: str, folder: Path) -> None:
    """Run the pipeline once, with the table loaded from its database."""
    name = "public.items" if shop.postgres else f"{shop.database}.items"
    document = json.loads(json.dumps(shop.mirroring.pipeline.to_dict()))
    document["spec"] |= {
        "tables": [{"source": name, "snapshot": "jdbc", "resyncToken": token}],
        "verify": {"jdbc": {"url": f"{shop.server.url}{shop.database}", "secret": "reader"}},
    }
    secret = folder / "reader"
    secret.mkdir(exist_ok=True)
    (secret / "username").write_text(shop.server.user)
    (secret / "password").write_text(PASSWORD)
    (secret / "password").chmod(0o600)
    run(
        type(shop.mirroring.pipeline).from_dict(document),
        once=True,
        spark=shop.spark,
        secrets={"reader": secret},
    )


@pytest.mark.parametrize("kind", ["postgres", "mariadb", "mysql"])
def test_a_table_is_loaded_while_it_changes_and_no_change_is_lost_or_doubled(
    kind: str,
    spark: SparkSession,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dialects, "BLOCKS_A_PART", 2)
    source = {"files": {"path": str(tmp_path / "input"), "format": "records"}}
    shop = Mirrored(spark, request.getfixturevalue(kind), "loaded", tmp_path, source=source)
    rows = ", ".join(f"({n}, 'v{n}')" for n in range(3000))
    shop.server.sql(f"INSERT INTO items VALUES {rows}", "loaded")
    over, begun = threading.Event(), threading.Event()

    def changing() -> None:
        """Rows change, go and come, all over the table."""
        for number in range(1400):  # slowly, for each change is a file
            over.wait(0.3)
            key = number * 74 % 3000
            if over.is_set():
                return
            shop.change("u", key, f"w{number}")
            shop.change("d", (key + 1) % 3000)
            shop.change("c", 3000 + number, f"x{number}")
            begun.set()

    thread = threading.Thread(target=changing)
    thread.start()
    begun.wait(30)
    try:
        load(shop, "", tmp_path)
    finally:
        over.set()
        thread.join(60)
    assert len(shop.rows()) > 2900
    load(shop, "", tmp_path)  # what was streamed meanwhile; the table is loaded only once
    assert findings(shop.verify(patience=SETTLED)) == {}
    requests = tmp_path / "checkpoint/reload"
    assert len(list(requests.glob("outcomes/*.json"))) == 1
    # Kafka has lost some changes; a new token brings them back, and newer ones stay.
    shop.change("u", 5, "changed", sent=False)
    shop.change("d", 6, sent=False)
    shop.change("c", 9999, "it's new", sent=False)
    load(shop, "", tmp_path)
    missed = findings(shop.verify(patience=SETTLED))
    assert [what for each in missed.values() for what, _ in each] == ["differs", "extra", "missing"]
    shop.change("u", 7, "newer")
    load(shop, "again", tmp_path)
    assert findings(shop.verify(patience=SETTLED)) == {}
    [outcome] = [json.loads(each.read_text()) for each in requests.glob("outcomes/*.json")][-1:]
    assert outcome["still_bad"] == 0
    assert len(list(requests.glob("outcomes/*.json"))) == 2
    # By hand, too.
    monkeypatch.setattr(reloading, "create_session", lambda *_: spark.newSession())
    monkeypatch.setattr(SparkSession, "stop", lambda self: None)
    shop.change("u", 8, "by hand", sent=False)
    command = ["reload", "-f", str(shop.mirroring.manifest), "--from", f"{shop.server.url}loaded"]
    command += ["--user", shop.server.user, "--password-file", str(tmp_path / "reader/password")]
    told = [CliRunner().invoke(main, command) for _ in range(2)]
    assert [each.exit_code for each in told] == [0, 0], told[0].output
    changes = [each.stdout.partition(".items: ")[2].partition(" (")[0] for each in told]
    assert changes == ["1 replaced", "nothing to change"]
    assert shop.rows()[8] == "by hand"


@pytest.mark.thorough
def test_a_transaction_that_is_open_is_waited_for(spark: SparkSession, postgres: Server) -> None:
    """Its changes stand in the log already, before the position, and cannot be seen yet."""
    postgres.sql("CREATE DATABASE waiting", "postgres")
    postgres.sql(
        "CREATE TABLE items (id int PRIMARY KEY, v text); INSERT INTO items VALUES (1, 'a')", "waiting"
    )
    database = Database(spark, Login(f"{postgres.url}waiting", postgres.user, PASSWORD), epoch=3)
    try:
        with transaction(postgres, "waiting", "UPDATE items SET v = 'b' WHERE id = 1") as commit:
            too_long = "transactions have been open for more than 0 s"
            with pytest.raises(SourceUnfit, match=too_long), database.snapshot(0.1):
                pass
            before = database.position()
            later = threading.Timer(1, commit)
            later.start()
            with database.snapshot(30) as place:
                later.join()
                assert bytes(place[:2]) == b"\0\3"
                assert place >= before
                seen = database.frame("SELECT v AS c0 FROM items", ["1 = 1"]).collect()
                assert [row[0] for row in seen] == ["b"]
                postgres.sql("UPDATE items SET v = 'c'", "waiting")
                # The snapshot is the one that was taken.
                again = database.frame("SELECT v AS c0 FROM items", ["1 = 1"]).collect()
                assert [row[0] for row in again] == ["b"]
    finally:
        database.close()


def make_placed(server: Server) -> None:
    """A database with one table and one row, and a user ``reader`` who may only read it."""
    quoted = PASSWORD.replace("'", "''")
    server.sql(
        "CREATE DATABASE placed; CREATE TABLE placed.items (id int PRIMARY KEY); "
        f"CREATE USER reader@'127.0.0.1' IDENTIFIED BY '{quoted}'; "
        "GRANT SELECT ON placed.* TO reader@'127.0.0.1'; INSERT INTO placed.items VALUES (1)"
    )


@pytest.mark.thorough
def test_a_snapshot_of_mariadb_stands_where_its_binary_log_ends(spark: SparkSession, mariadb: Server) -> None:
    """For one who may only read; and as MySQL tells it, which has to hold up commits for a moment."""
    make_placed(mariadb)
    url = f"{mariadb.url}placed"
    reader, other = (Database(spark, Login(url, user, PASSWORD), epoch=3) for user in ("reader", "tester"))

    def as_mysql(database: Database) -> dialects.Query:
        return lambda sql: [] if sql.startswith("SHOW STATUS") else database.query(sql)

    try:
        with reader.snapshot(30) as place:
            assert place == other.position()
            mariadb.sql("INSERT INTO placed.items VALUES (2)")
            assert place < other.position()
        as_other = as_mysql(other)
        assert dialects.MySql().snapshot(as_other, as_other, 30) == (bytes(2) + other.position()[2:], None)
        mariadb.sql("INSERT INTO placed.items VALUES (3)")  # nothing is locked any more
        as_reader = as_mysql(reader)
        with pytest.raises(SourceUnfit, match="grant RELOAD"):
            dialects.MySql().snapshot(as_reader, as_reader, 30)
    finally:
        reader.close()
        other.close()


@pytest.mark.thorough
def test_a_snapshot_of_mysql_holds_up_commits_for_a_moment(spark: SparkSession, mysql: Server) -> None:
    """For it does not tell where a snapshot stands in its binary log; who may not is told the right."""
    make_placed(mysql)
    first = Database(spark, Login(f"{mysql.url}placed", "reader", PASSWORD))
    with pytest.raises(NotAnswered, match="Add sslMode=verify-full to the parameters of the URL"):
        first.position()
    url = f"{mysql.url}placed?allowPublicKeyRetrieval=true"
    reader, other = (Database(spark, Login(url, user, PASSWORD), epoch=3) for user in ("reader", "tester"))
    try:
        with pytest.raises(SourceUnfit, match="grant RELOAD"), reader.snapshot(30):
            pass
        with other.snapshot(30) as place:
            assert place == other.position()
            mysql.sql("INSERT INTO placed.items VALUES (2)")  # nothing is locked any more
            assert place < other.position()
        mysql.sql("GRANT RELOAD, REPLICATION CLIENT ON *.* TO reader@'127.0.0.1'")
        with reader.snapshot(30) as place:
            assert place == other.position()
    finally:
        reader.close()
        other.close()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kind", "scenario"),
    [
        pytest.param("postgres", "types", marks=pytest.mark.thorough),
        ("mariadb", "mariadb_inventory"),
        ("mysql", "mariadb_inventory"),
    ],
)
def test_a_table_that_is_loaded_gets_the_types_that_its_stream_has(
    kind: str, scenario: str, spark: SparkSession, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Columns, key and names, as the mirror of captured events with schemas has them."""
    server, capture = request.getfixturevalue(kind), Capture(scenario, "jsons")
    fill(server, capture)
    mirroring = Mirroring(tmp_path, {"onUnrepresentable": "null"}).deliver([capture.records])
    summary = mirroring.run(spark)
    database = Database(spark, Login(f"{server.url}{capture.database}", server.user, PASSWORD))
    assert len(summary.tables) > 1
    for source in summary.tables:
        mirror = opened(spark, mirroring.pipeline, source)
        key = json.loads(mirror.properties["lakemirror.key"])
        relation = database.dialect.relation(named(source))
        server.sql(f"ALTER TABLE {relation} ADD PRIMARY KEY ({', '.join(key)})", capture.database)
        described = database.described(named(source))
        natural = {column: kind for column, (kind, _) in described.columns.items()}
        assert natural == {
            column: kind if natural[column] is not None else None
            for column, kind in (mirror.fed or {}).items()
        }, source
        lacking = {name for name, kind in natural.items() if kind is None}
        assert lacking <= {"c_point"}
        assert list(described.key) == key, source
    # A key has an order of its own.
    server.sql("CREATE TABLE pairs (a int, b int, c int, PRIMARY KEY (c, a))", capture.database)
    pairs = database.full_name(
        ["public" if database.dialect.prefixes[0] == "jdbc:postgresql:" else capture.database, "pairs"]
    )
    assert list(database.described(pairs).key) == ["c", "a"]
    database.close()
