"""Mirrors in a catalog, as somebody who browses it sees them."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyspark
import pytest
from delta.tables import DeltaTable
from pyspark.sql import SparkSession

from lakemirror.api import CdcPipeline
from lakemirror.driver.runtime.runner import run
from lakemirror.driver.runtime.supported import NotSupported, require_catalog
from lakemirror.driver.tables.columns import COMMENTS
from tests.support.mirroring import Mirroring
from tests.support.ports import free_port
from tests.support.records import Column, Record
from tests.support.shop import Shop, table

TARGET = {"target": {"table": "browsed_{schema}.{table}"}}
ROOT = Path(__file__).parents[3]
_START_SECONDS = 120


def commented(records: list[Record], **comments: str) -> list[Record]:
    """Records whose schemas have comments of columns, as Debezium writes them on demand."""
    return [
        {**each, "value": each["value"] and _with(json.loads(each["value"]), comments)} for each in records
    ]


def _with(value: dict[str, Any], comments: dict[str, str]) -> str:
    for image in value["schema"]["fields"]:
        for column in image.get("fields") or ():
            if column["field"] in comments:
                column["doc"] = comments[column["field"]]
    return json.dumps(value)


def comment_of(spark: SparkSession, name: str) -> str:
    about = spark.sql(f"DESCRIBE EXTENDED {name}").where("col_name = 'Comment'").first()
    return str(about["data_type"]) if about is not None else ""


@pytest.mark.thorough
@pytest.mark.guarantee("A catalog has the schemas, comments and views of mirrors that its users expect")
def test_schema_and_comments_are_there_for_who_browses(spark: SparkSession, tmp_path: Path) -> None:
    shop, before, after = Shop(), table("items", Column("v", "int32")), table("items", *COLUMNS)
    mirroring = Mirroring(tmp_path, TARGET)
    try:
        mirroring.deliver([commented(shop.create(before, id=1, v=1), v="How many; don't count")]).run(spark)
        # A comment is the first one that was sent, so that one that a person has set stays.
        changed = commented(shop.create(after, id=2, v=2, w=3), v="How many?", w="It's new")
        mirroring.deliver([changed]).run(spark)
        fields = {
            each.name: each.metadata.get("comment") for each in spark.table("browsed_public.items").schema
        }
        assert fields == {
            **{"id": None, "v": "How many; don't count", "w": "It's new"},
            **{name: COMMENTS[name] for name in fields if name.startswith("__")},
        }
        told = "Mirror of demo.public.items, kept by Lakemirror's pipeline test: to be read only"
        assert comment_of(spark, "browsed_public.items") == told
    finally:
        spark.sql("DROP SCHEMA IF EXISTS browsed_public CASCADE")


@pytest.mark.guarantee("A catalog has the schemas, comments and views of mirrors that its users expect")
def test_the_example_runs_as_it_is(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = CdcPipeline.from_yaml((ROOT / "examples/catalog/pipeline.yaml").read_text("utf-8"))
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    try:
        run(pipeline, once=True, spark=spark)
        listed = spark.sql("SHOW TABLES IN mirrors_of_shop").collect()
        assert {each["tableName"] for each in listed} == {"customers", "orders"}
        assert "pipeline catalog" in comment_of(spark, "mirrors_of_shop.orders")
    finally:
        spark.sql("DROP SCHEMA IF EXISTS mirrors_of_shop CASCADE")


@pytest.mark.guarantee(
    "Mirrors in Spark's own catalog are found again by the next process; where they would be lost with a "
    "pod, they are refused"
)
@pytest.mark.parametrize(
    ("settings", "master", "refused"),
    [
        ({}, "k8s://https://kubernetes.default.svc", True),
        ({}, "local[2]", False),
        ({"spark.sql.catalogImplementation": "hive"}, "k8s://https://kubernetes.default.svc", False),
        ({"spark.sql.warehouse.dir": "s3a://lake/w"}, "k8s://https://kubernetes.default.svc", False),
        ({"spark.sql.warehouse.dir": "/mnt/lake"}, "k8s://https://kubernetes.default.svc", False),
    ],
)
def test_a_catalog_that_is_gone_with_its_pod_is_refused(
    settings: dict[str, str], master: str, refused: bool, tmp_path: Path
) -> None:
    conf = {"spark.sql.warehouse.dir": "file:/opt/spark/work-dir/spark-warehouse", **settings}
    session: Any = SimpleNamespace(
        conf=conf,
        catalog=SimpleNamespace(currentCatalog=lambda: "spark_catalog"),
        sparkContext=SimpleNamespace(master=master),
    )
    pipeline = Mirroring(tmp_path, {**TARGET, "spark": {"conf": settings}}).pipeline
    with pytest.raises(NotSupported, match="are gone with the pod") if refused else nullcontext():
        require_catalog(pipeline, session)
    require_catalog(Mirroring(tmp_path).pipeline, session)


def forget(spark: SparkSession, schema: str, aside: Path) -> None:
    """Make the catalog in memory forget a schema, as the end of its process does. The files stay."""
    place = Path(str(spark.conf.get("spark.sql.warehouse.dir")).removeprefix("file:"), f"{schema}.db")
    shutil.copytree(place, aside)
    spark.sql(f"DROP SCHEMA {schema} CASCADE")
    shutil.copytree(aside, place)


@pytest.mark.long
@pytest.mark.guarantee(
    "Mirrors in Spark's own catalog are found again by the next process; where they would be lost with a "
    "pod, they are refused"
)
@pytest.mark.parametrize("mode", ["scd1", pytest.param("scd2", marks=pytest.mark.thorough)])
def test_a_catalog_in_memory_has_the_mirrors_again_in_the_next_process(
    mode: str, spark: SparkSession, tmp_path: Path
) -> None:
    shop, items = Shop(), table("items", Column("v", "int32"))
    settings = {"target": {"table": "Forgotten_{schema}.Of_{table}"}, "defaults": {"mode": mode}}
    mirroring = Mirroring(tmp_path, settings).deliver([shop.create(items, id=1, v=1)])
    try:
        assert mirroring.run(spark).held == {}
        forget(spark, "forgotten_public", tmp_path / "aside")
        mirroring.deliver([[*shop.create(items, id=2, v=2), *shop.delete(items, id=1, v=1)]])
        again = mirroring.run(spark)
        assert (again.held, again.warnings) == ({}, ())
        rows = spark.table("forgotten_public.of_items")
        current = rows.where("__is_current") if mode == "scd2" else rows
        assert [row["id"] for row in current.collect()] == [2]
        history = DeltaTable.forName(spark, "forgotten_public.of_items").history().select("operation")
        assert [row[0] for row in history.collect()].count("CREATE TABLE") == 1
        # What another pipeline left there stays as it is.
        forget(spark, "forgotten_public", tmp_path / "once more")
        other = Mirroring(tmp_path / "other", settings, name="other")
        other.deliver([Shop().create(items, id=9, v=9)])
        [held] = other.run(spark).held.values()
        assert "test/demo.public.items" in held
        assert spark.table("forgotten_public.of_items").where("id = 9").isEmpty()
    finally:
        spark.sql("DROP SCHEMA IF EXISTS forgotten_public CASCADE")


COLUMNS = (Column("v", "int32"), Column("w", "int32", optional=True))


@pytest.fixture
def metastore(tmp_path: Path) -> Iterator[str]:
    """The address of a Hive metastore, which is part of Spark, with a database of its own."""
    port = free_port()
    settings = {
        "javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={tmp_path}/metastore_db;create=true",
        "datanucleus.schema.autoCreateAll": "true",
        "hive.metastore.schema.verification": "false",
        "hive.metastore.warehouse.dir": f"{tmp_path}/warehouse",
    }
    options = [word for name, value in settings.items() for word in ("--hiveconf", f"{name}={value}")]
    jars = f"{Path(pyspark.__file__).parent}/jars/*"
    service = ["org.apache.hadoop.hive.metastore.HiveMetaStore", "-p", str(port), *options]
    with (tmp_path / "metastore.log").open("wb") as log:
        process = subprocess.Popen(
            ["java", "-Xmx512m", "-Dhive.async.log.enabled=false", "-cp", jars, *service],
            stdout=log,
            stderr=log,
            cwd=tmp_path,
        )
    try:
        until = time.monotonic() + _START_SECONDS
        while not _answers(port):
            assert process.poll() is None, (tmp_path / "metastore.log").read_text()[-2000:]
            assert time.monotonic() < until, (tmp_path / "metastore.log").read_text()[-2000:]
            time.sleep(0.5)
        yield f"thrift://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait(30)


def _answers(port: int) -> bool:
    with socket.socket() as asked:
        return asked.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.thorough
@pytest.mark.guarantee("A catalog has the schemas, comments and views of mirrors that its users expect")
@pytest.mark.sources
@pytest.mark.timeout(600)
def test_a_hive_metastore_has_the_mirrors(metastore: str, tmp_path: Path) -> None:
    """Each run is a process of its own: which catalog a session has is decided once for a JVM."""
    shop, items = Shop(), table("items", Column("v", "int32"))
    conf = {
        "spark.sql.catalogImplementation": "hive",
        "spark.hadoop.hive.metastore.uris": metastore,
        "spark.sql.warehouse.dir": f"{tmp_path}/warehouse",
    }
    settings = {"target": {"table": "mirrors_{schema}.{table}"}, "defaults": {"mode": "scd2"}}
    mirroring = Mirroring(tmp_path / "run", {**settings, "spark": {"conf": conf}})
    for records in (shop.create(items, id=1, v=1), shop.update(items, id=1, v=2)):
        mirroring.deliver([records])
        _lakemirror("run", "--once", "-f", str(mirroring.manifest))
    found = _query(conf, "SELECT id, v FROM mirrors_public.items ORDER BY __valid_from")
    assert found == [[1, 1], [1, 2]]
    assert _query(conf, "SELECT id, v FROM mirrors_public.items__current") == [[1, 2]]
    described = _query(conf, "SHOW TABLES IN mirrors_public")
    assert sorted(row[1] for row in described) == ["items", "items__current"]
    odd = [replace(items, schema=schema) for schema in ("Shop", "2024", "select", "we-ird", "x" * 140)]
    mirroring = Mirroring(
        tmp_path / "odd", {"target": {"table": "{schema}.{table}"}, "spark": {"conf": conf}}
    )
    mirroring.deliver([[record for of in odd for record in shop.create(of, id=1, v=len(of.schema or ""))]])
    said = _lakemirror("run", "--once", "-f", str(mirroring.manifest), code=1)  # two tables are held
    assert "cannot be counted" not in said
    schemas = {row[0].strip("`") for row in _query(conf, "SHOW SCHEMAS")}
    assert {"shop", "2024", "select"} <= schemas
    rows = (
        "SELECT v FROM `2024`.items UNION ALL SELECT v FROM `select`.items UNION ALL SELECT v FROM sHOP.ITEMS"
    )
    assert sorted(_query(conf, rows)) == [[4], [4], [6]]
    assert "we-ird" in said
    assert "x" * 140 in said


def _lakemirror(*arguments: str, code: int = 0) -> str:
    """What it prints. ``code``: the exit code that is expected."""
    done = _python("-m", "lakemirror.cli.main", *arguments)
    assert done.returncode == code, done.stderr[-3000:]
    return done.stdout + done.stderr


def _query(conf: dict[str, str], sql: str) -> list[list[Any]]:
    code = (
        "import json, sys\n"
        "from lakemirror.driver.runtime.session import create_session\n"
        "session = create_session('query', json.loads(sys.argv[1]))\n"
        "print('rows', json.dumps([list(row) for row in session.sql(sys.argv[2]).collect()]))\n"
    )
    done = _python("-c", code, json.dumps(conf), sql)
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = (each for each in done.stdout.splitlines() if each.startswith("rows "))
    rows: list[list[Any]] = json.loads(line.removeprefix("rows "))
    return rows


def _python(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        timeout=300,
    )
