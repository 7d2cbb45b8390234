"""Mirrors that are tables of a database, against the database that they are mirrors of."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakemirror.driver.runtime.reload import reload
from lakemirror.driver.runtime.verifier import Verified, verify
from tests.driver.verify.test_databases import SETTLED, Mirrored, findings
from tests.driver.write.jdbc_mirroring import DATABASE, JdbcMirroring
from tests.support.databases import Server, start_postgres
from tests.support.records import Column
from tests.support.shop import Shop, table

pytestmark = [
    pytest.mark.sources,
    pytest.mark.thorough,
    pytest.mark.guarantee(
        "A mirror in a database keeps the same guarantees as one in Delta, with one transaction per batch"
    ),
]


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The database of the mirrors orders texts as people do, and not by their bytes."""
    with start_postgres(tmp_path_factory.mktemp("servers")) as server:
        order = "TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'en-US'"
        server.sql(f"CREATE DATABASE {DATABASE} {order}", "postgres")
        yield server


class InDatabase(Mirrored):
    """A table of a real database whose mirror is in another one, in a schema of its own."""

    mirroring: JdbcMirroring

    def __init__(
        self, spark: SparkSession, server: Server, database: str, folder: Path, **settings: Any
    ) -> None:
        super().__init__(spark, server, database, folder / "unused")
        self.mirroring = JdbcMirroring(folder, server, database, settings)
        self.secrets = {"mirrors": self.mirroring.secret}

    def verify(self, **options: Any) -> Verified:
        pipeline = self.mirroring.pipeline
        return verify(pipeline, self.wanted, spark=self.spark, secrets=self.secrets, **options)

    def rows(self) -> dict[int, Any]:
        found = self.mirroring.sql(f"SELECT json_build_array(id, v) FROM {self.database}.items")
        return dict(json.loads(each) for each in found)


@pytest.mark.timeout(600)
def test_damaged_rows_are_found_by_their_keys_and_repaired(
    spark: SparkSession, postgres: Server, tmp_path: Path
) -> None:
    """A row that differs, one that is missing and one that is extra; one that is softly deleted is not."""
    soft = {"delete": {"type": "soft", "column": "gone"}}
    shop = InDatabase(spark, postgres, "damaged", tmp_path, defaults=soft)
    for n in range(6):
        shop.change("c", n, f"v{n}")
    shop.change("d", 5)
    shop.mirroring.run(spark)
    done = shop.verify(patience=SETTLED)
    assert findings(done) == {}
    assert [(each.mirror_rows, each.source_rows) for each in done.tables] == [(5, 5)]
    assert done.tables[0].target == "damaged.items"
    shop.mirroring.sql(
        "UPDATE damaged.items SET v = 'damaged' WHERE id = 1; DELETE FROM damaged.items WHERE id = 2; "
        "INSERT INTO damaged.items SELECT (jsonb_populate_record(t, '{\"id\": 77}')).* "
        "FROM damaged.items t WHERE id = 4"
    )
    wrong = [("differs", '["1"]'), ("missing", '["2"]'), ("extra", '["77"]')]
    assert findings(shop.verify(patience=SETTLED)) == {"damaged.public.items": wrong}
    done = shop.verify(patience=SETTLED, repair=True)
    assert findings(done) == {"damaged.public.items": wrong}
    assert [(each.rows, each.done, each.impossible) for each in done.repairs] == [(3, True, None)]
    assert done.equal
    assert findings(shop.verify(patience=SETTLED)) == {}
    assert shop.rows() == {**{n: f"v{n}" for n in range(5)}, 5: "v5", 77: "v4"}
    assert shop.mirroring.sql("SELECT id FROM damaged.items WHERE gone IS NOT NULL ORDER BY id") == [
        "5",
        "77",
    ]
    assert shop.mirroring.staging() == []


@pytest.mark.timeout(600)
def test_a_mirror_is_loaded_from_its_source_compared_by_schedule_and_reloaded(
    spark: SparkSession, postgres: Server, tmp_path: Path
) -> None:
    login = {"url": f"{postgres.url}loaded", "secret": "mirrors"}
    tables = [{"source": "loaded.public.items", "snapshot": "jdbc"}]
    asked = {"jdbc": login, "schedule": "@daily"}
    shop = InDatabase(spark, postgres, "loaded", tmp_path, tables=tables, verify=asked)
    shop.change("c", 1, "not sent", sent=False)
    shop.change("c", 2, "sent")
    shop.mirroring.run(spark)
    assert shop.rows() == {1: "not sent", 2: "sent"}
    told = json.loads((tmp_path / "checkpoint/verified.json").read_text())
    assert (told["equal"], told["tables"], told["rows"]) == (True, 1, 2)
    shop.change("u", 1, "changed", sent=False)
    shop.change("d", 2, sent=False)
    [done] = reload(shop.mirroring.pipeline, shop.wanted, spark=spark, secrets=shop.secrets)
    assert (done.error, done.done) == (None, True)
    assert shop.rows() == {1: "changed"}
    assert findings(shop.verify(patience=SETTLED)) == {}


@pytest.mark.timeout(300)
def test_ranges_of_texts_are_those_of_spark(spark: SparkSession, postgres: Server, tmp_path: Path) -> None:
    """Whatever the order of the database is; for conditions are handed down to it."""
    names = ["B", "_", "a", "b", "é", "Z", "😀", "\ufffd"]
    shop, items = Shop(), table("named", Column("name", "string"), key=("name",))
    mirroring = JdbcMirroring(tmp_path, postgres, "ranges")
    records = [record for n, name in enumerate(names) for record in shop.create(items, id=n, name=name)]
    mirroring.deliver([records]).run(spark)
    assert mirroring.sql("SELECT 'a' < 'B'") == ["t"]
    rows = mirroring.mirror(spark, "named").frame()
    for bound in names:
        found = {row["name"] for row in rows.where(rows["name"] >= bound).collect()}
        assert found == {name for name in names if name.encode() >= bound.encode()}, bound
