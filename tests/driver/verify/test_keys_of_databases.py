"""Tables of real databases by the types of their keys: loaded, compared, damaged, found and repaired."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakemirror.driver.runtime.reload import reload
from lakemirror.driver.runtime.verifier import DatabaseWanted, Login, verify
from tests.driver.verify.test_databases import SETTLED, findings
from tests.support.databases import PASSWORD, Server, start_mariadb, start_postgres
from tests.support.mirroring import Mirroring, at

pytestmark = [
    pytest.mark.sources,
    pytest.mark.guarantee(
        "A comparison finds the keys that differ and no others; a change that has not arrived yet is not a "
        "difference"
    ),
]

Keys = Mapping[str, tuple[str, Sequence[str]]]

POSTGRES: Keys = {
    "uuids": ("k uuid", ["'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'", "gen_random_uuid()", "gen_random_uuid()"]),
    "blobs": ("k bytea", ["'\\x'", "'\\x00ff'", "'\\xff'"]),
    "decimals": ("k numeric(20,4)", ["1.5", "-0.0001", "9999999999999999.9999"]),
    "numbers": ("k numeric(38)", ["-1", "0", "99999999999999999999999999999999999999"]),
    "moments": ("k timestamptz", ["'2026-03-01 12:00:00.000001+02'", "'0001-01-01 00:00:00Z'", "now()"]),
    "local": ("k timestamp", ["'2026-03-29 02:30:00'", "'1969-12-31 23:59:59.999999'", "'2026-01-01'"]),
    "days": ("k date", ["'2026-03-01'", "'0001-01-01'", "'9999-12-31'"]),
    "truths": ("k boolean", ["true", "false"]),
    "doubles": ("k double precision", ["1.5", "-0.1", "1e300"]),
    "words": (
        "k text",
        ["'a'", "'A'", "'ä'", "''", "'a '", "E'it''s\\n\\\\ \"'", "U&'\\+01F600'", "'Z'", "'z'"],
    ),
    "padded": ("k char(4)", ["'a'", "'ab'", "'ä'"]),
    "moods": ("k mood", ["'sad'", "'happy'", "'ok'"]),
}
MARIADB: Keys = {
    "words": (
        "k varchar(20) COLLATE utf8mb4_general_ci",
        ["'a'", "'B'", "'ö'", "''", "'it''s'", "'\U0001f600'"],
    ),
    "blobs": ("k binary(3)", ["x'00ff00'", "x'000000'", "x'ffffff'"]),
    "counts": ("k bigint unsigned", ["0", "9223372036854775807", "5"]),
    "decimals": ("k decimal(20,4)", ["1.5", "-0.0001", "9999999999999999.9999"]),
    "moments": ("k timestamp(6)", ["'2026-03-01 12:00:00.000001'", "'1971-01-01 00:00:00'"]),
    "local": (
        "k datetime(6)",
        ["'2026-03-29 02:30:00'", "'1000-01-01 00:00:00'", "'9999-12-31 23:59:59.999999'"],
    ),
    "days": ("k date", ["'2026-03-01'", "'1000-01-01'"]),
    "years": ("k year", ["1901", "2155"]),
    "moods": ("k enum('sad','ok','happy')", ["'sad'", "'happy'"]),
}


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with start_postgres(tmp_path_factory.mktemp("servers")) as server:
        server.sql("CREATE DATABASE keyed", "postgres")
        server.sql("CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy')", "keyed")
        yield server


@pytest.fixture(scope="module")
def mariadb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with start_mariadb(tmp_path_factory.mktemp("servers")) as server:
        server.sql("CREATE DATABASE keyed")
        yield server


@pytest.mark.thorough
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
def test_keys_of_every_type(
    kind: str, spark: SparkSession, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Alone and as the second column of a key; one row differs, one is extra and one is missing."""
    server: Server = request.getfixturevalue(kind)
    keys = POSTGRES if kind == "postgres" else MARIADB
    tables = {**keys}
    for name, (column, values) in keys.items():
        server.sql(f"CREATE TABLE {name} ({column} PRIMARY KEY, v int)", "keyed")
        server.sql(f"CREATE TABLE {name}_2 (a int, {column}, v int, PRIMARY KEY (a, k))", "keyed")
        tables[f"{name}_2"] = tables[name]
        for number, value in enumerate(values):
            server.sql(f"INSERT INTO {name} VALUES ({value}, {number})", "keyed")
            server.sql(f"INSERT INTO {name}_2 VALUES (1, {value}, {number})", "keyed")
    owner = "public" if kind == "postgres" else "keyed"
    names = [f"{owner}.{name}" for name in tables]
    wanted = DatabaseWanted(Login(f"{server.url}keyed", server.user, PASSWORD))
    mirroring = Mirroring(tmp_path)
    (tmp_path / "input").mkdir()
    loaded = reload(mirroring.pipeline, wanted, tables=names, spark=spark)
    assert {each.source: each.error or each.staged.unfit for each in loaded if not each.done} == {}

    def differing() -> dict[str, object]:
        done = verify(mirroring.pipeline, wanted, spark=spark, patience=SETTLED)
        assert len(done.tables) == len(tables)
        return findings(done)

    assert differing() == {}
    for name in tables:
        server.sql(f"DELETE FROM {name} WHERE v = 0; UPDATE {name} SET v = 9 WHERE v = 1", "keyed")
    found = differing()
    assert {len(each) if isinstance(each, list) else each for each in found.values()} == {2}
    assert len(found) == len(tables)
    for name, (_, values) in tables.items():
        column = "k" if not name.endswith("_2") else "a, k"
        value = values[0] if column == "k" else f"1, {values[0]}"
        server.sql(f"INSERT INTO {name} ({column}, v) VALUES ({value}, 7)", "keyed")
        server.sql(f"DELETE FROM {name} WHERE v = 9", "keyed")
    repaired = verify(mirroring.pipeline, wanted, spark=spark, patience=SETTLED, repair=True)
    assert {each.source: each.impossible for each in repaired.repairs if not each.done} == {}
    assert differing() == {}


@pytest.mark.thorough
def test_a_null_in_a_key_is_told_and_tables_may_be_empty_or_gone(
    spark: SparkSession, postgres: Server, tmp_path: Path
) -> None:
    """A row without a whole key can be in no mirror: it is missing, however often it is read again."""
    for name, columns in (
        ("bare", "k int, v int"),
        ("pairs", "a int, k text, v int"),
        ("none", "k int, v int"),
    ):
        postgres.sql(f"CREATE TABLE {name} ({columns})", "keyed")
    postgres.sql("INSERT INTO bare SELECT n, n FROM generate_series(1, 5) n", "keyed")
    postgres.sql("INSERT INTO pairs SELECT n, 'x', n FROM generate_series(1, 5) n", "keyed")
    postgres.sql("INSERT INTO none VALUES (1, 1)", "keyed")
    tables = [
        {"source": "public.bare", "primaryKey": ["k"]},
        {"source": "public.pairs", "primaryKey": ["a", "k"]},
        {"source": "public.none", "primaryKey": ["k"]},
    ]
    mirroring = Mirroring(tmp_path, {"tables": tables})
    (tmp_path / "input").mkdir()
    wanted = DatabaseWanted(Login(f"{postgres.url}keyed", postgres.user, PASSWORD))
    names = [str(each["source"]) for each in tables]
    loaded = reload(mirroring.pipeline, wanted, tables=names, spark=spark)
    assert all(each.done for each in loaded)
    postgres.sql("INSERT INTO bare VALUES (NULL, 1); INSERT INTO pairs VALUES (2, NULL, 1)", "keyed")
    postgres.sql("DELETE FROM none", "keyed")
    done = verify(mirroring.pipeline, wanted, spark=spark, patience=SETTLED, repair=True)
    assert findings(done) == {
        "keyed.public.bare": [("missing", "[null]")],
        "keyed.public.pairs": [("missing", '["2",null]')],
        "keyed.public.none": [("extra", '["1"]')],
    }
    assert {each.source: each.done for each in done.repairs} == {
        "keyed.public.bare": False,
        "keyed.public.pairs": False,
        "keyed.public.none": True,
    }
    assert not done.equal
    again = reload(mirroring.pipeline, wanted, tables=names, spark=spark)
    assert [(each.staged.records, each.staged.unfitting) for each in again] == [
        (0, "k=NULL"),
        (0, "k=NULL"),
        (0, None),
    ]
    postgres.sql("DROP TABLE none; DELETE FROM bare; DELETE FROM pairs WHERE k IS NULL", "keyed")
    done = verify(mirroring.pipeline, wanted, spark=spark, patience=SETTLED, repair=True)
    told = findings(done)
    assert "no such table" in str(told.pop("keyed.public.none"))
    assert told == {"keyed.public.bare": [("extra", f'["{n}"]') for n in range(1, 6)]}
    assert [(each.rows, each.done) for each in done.repairs] == [(5, True)]


@pytest.mark.thorough
def test_a_key_that_the_mirror_cannot_hold_deletes_no_row(
    spark: SparkSession, mariadb: Server, tmp_path: Path
) -> None:
    """Nothing tells which row of the mirror it is."""
    mariadb.sql("CREATE TABLE large (k bigint unsigned PRIMARY KEY)", "keyed")
    mariadb.sql("INSERT INTO large VALUES (1), (2)", "keyed")
    wanted = DatabaseWanted(Login(f"{mariadb.url}keyed", mariadb.user, PASSWORD))
    (tmp_path / "input").mkdir()
    mirroring = Mirroring(tmp_path)
    [first] = reload(mirroring.pipeline, wanted, tables=["keyed.large"], spark=spark)
    assert first.done
    mariadb.sql("UPDATE large SET k = 18446744073709551615 WHERE k = 2", "keyed")
    mariadb.sql("INSERT INTO large VALUES (18446744073709551614)", "keyed")
    [second] = reload(mirroring.pipeline, wanted, tables=["keyed.large"], spark=spark)
    assert "cannot hold (k=1844674407370955161" in (second.error or "")
    assert at(spark, mirroring.path("keyed", None, "large")).count() == 2
    types = {"tables": [{"source": "keyed.large", "columns": {"types": {"k": "decimal(20,0)"}}}]}
    (tmp_path / "wide" / "input").mkdir(parents=True)
    wide = Mirroring(tmp_path / "wide", types)
    [third] = reload(wide.pipeline, wanted, tables=["keyed.large"], spark=spark)
    assert (third.error, third.staged.records) == (None, 3)
    done = verify(wide.pipeline, wanted, spark=spark, patience=SETTLED)
    assert findings(done) == {}
