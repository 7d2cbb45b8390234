"""Java is checked, jars are found once, and settings of the user win."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import lakemirror.driver
from lakemirror.api.object_stores import STORES, ObjectStore
from lakemirror.driver.runtime import jars, session
from lakemirror.driver.runtime.session import JavaMissing, check_java

pytestmark = pytest.mark.guarantee(
    "No setting of Spark, from the manifest or the image, changes what a mirror contains"
)


def program(path: Path, script: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_java_is_found() -> None:
    assert check_java() >= 17


def test_no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaMissing, match="apt-get install openjdk-17-jre-headless"):
        check_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    with pytest.raises(JavaMissing, match=r"JAVA_HOME=.*nowhere holds no bin/java"):
        check_java()


@pytest.mark.parametrize(
    ("said", "expected"), [("1.8.0_392", "Java 8"), ("11.0.2", "Java 11"), ("none", "version")]
)
def test_java_that_will_not_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: str, expected: str
) -> None:
    program(tmp_path / "bin" / "java", f"echo 'openjdk version \"{said}\"' >&2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaMissing, match=expected):
        check_java()


def test_the_session_writes_delta_and_has_our_defaults(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(3).write.format("delta").save(str(tmp_path / "t"))
    assert spark.read.format("delta").load(str(tmp_path / "t")).count() == 3
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
    assert spark.conf.get("spark.databricks.delta.snapshotPartitions") == "1"  # given by the tests: it wins
    assert spark.conf.get("spark.ui.enabled") == "false"
    assert spark.sparkContext.master == "local[2]"


_ASKS = """
from lakemirror.driver.runtime.session import create_session
from pyspark.sql import functions as F
session = create_session("asks", {"spark.master": "local[1]", "spark.sql.shuffle.partitions": "3"})
other = session.newSession()
names = "session.timeZone", "shuffle.partitions", "ansi.enabled", "decimalOperations.allowPrecisionLoss"
for each in (session, other):
    print("said", *[each.conf.get(f"spark.sql.{name}") for name in names])
"""


@pytest.mark.thorough
def test_python_workers_are_of_this_environment(spark: SparkSession) -> None:
    assert spark.sparkContext.pythonExec == sys.executable


def test_what_an_image_sets_does_not_change_results(tmp_path: Path) -> None:
    """Spark reads spark-defaults.conf; of what it sets only that counts which changes speed."""
    (tmp_path / "spark-defaults.conf").write_text(
        "spark.sql.session.timeZone Asia/Tokyo\nspark.sql.ansi.enabled false\n"
        "spark.sql.decimalOperations.allowPrecisionLoss false\nspark.sql.autoBroadcastJoinThreshold 7\n"
    )
    environment = {
        **os.environ,
        "SPARK_CONF_DIR": str(tmp_path),
        "PYTHONPATH": str(Path(lakemirror.driver.__file__).parents[2]),
    }
    done = subprocess.run(
        [sys.executable, "-c", _ASKS], env=environment, capture_output=True, text=True, check=True
    )
    said = [line for line in done.stdout.splitlines() if line.startswith("said")]
    assert said == ["said UTC 3 true true"] * 2
    assert "spark.sql.decimalOperations.allowPrecisionLoss=false, from a file of Spark's own" in done.stderr


def test_a_submitted_application_keeps_what_the_cluster_gave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert not {"spark.master", "spark.driver.memory", "spark.jars"} & set(session._defaults({}))
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT")
    assert session._defaults({})["spark.master"] == "local[*]"
    assert "spark.driver.memory" not in session._defaults({"spark.master": "k8s://https://x"})


@pytest.mark.parametrize(
    ("limit", "heap"),
    [("max", 4096), (str(64 << 30), 4096), (str(3 << 30), 2048), (str(1 << 30), 1024)],
)
def test_a_heap_leaves_room_in_the_memory_of_a_container(
    limit: str, heap: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory that a container sees is that of its node."""
    node = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": (64 << 30) // 4096}
    monkeypatch.setattr(os, "sysconf", node.__getitem__)
    (tmp_path / "memory.max").write_text(f"{limit}\n")
    monkeypatch.setattr(session, "_LIMITS", (tmp_path / "memory.max", tmp_path / "none"))
    assert session._driver_memory_mb() == heap


@pytest.mark.parametrize(
    ("conf", "ours"),
    [
        ({}, True),
        ({"spark.lakemirror.engine": "columns"}, True),
        ({"spark.lakemirror.engine": "spark"}, False),
        ({"spark.lakemirror.writer": "merge"}, False),
    ],
)
def test_python_workers_have_what_the_engine_needs_unless_it_is_off(conf: dict[str, str], ours: bool) -> None:
    daemon = session._defaults(conf).get("spark.python.daemon.module")
    assert daemon == ("lakemirror.driver.engine.daemon" if ours else None)


def test_properties_are_those_of_both_roles_and_a_users_own_come_after_them() -> None:
    conf = {"spark.executor.extraJavaOptions": "-Da=2"}
    driver, executor = sorted(session._java_options(conf, {"a": "1"}).items())
    assert driver[1].startswith("-Duser.timezone=UTC -XX:+UseParallelGC -Da=1 -Dlog4j2.")
    assert executor[1] == "-Duser.timezone=UTC -XX:+UseParallelGC -Da=1 -Da=2"


@pytest.mark.parametrize(("master", "cores"), [("local", 1), ("local[3]", 3), ("local[4, 2]", 4)])
def test_cores_of_a_local_master(master: str, cores: int) -> None:
    assert session._cores(master) == cores


def test_the_pom_names_each_jar_with_its_version() -> None:
    named = jars.declared()
    assert len({jar.artifact for jar in named}) == len(named) > 10
    assert "io.delta:delta-spark_4.2_2.13:4.4.0" in {jar.coordinates for jar in named}
    assert all(jar.group and jar.artifact and jar.version for jar in named)


def fake_maven(folder: Path, bring: str) -> None:
    """A mvn that makes the files that it is asked for, slowly, and counts its calls.

    ``bring`` is the command for a file ``$n`` in the folder ``$out``.
    """
    names = " ".join(jar.file for jar in jars.declared())
    program(
        folder / "mvn",
        'for a in "$@"; do case "$a" in -DoutputDirectory=*) out="${a#*=}";; esac; done\n'
        f'echo called >> "{folder}/calls"; sleep 1; for n in {names}; do {bring}; done',
    )


def test_jars_are_resolved_once_by_processes_at_once(tmp_path: Path) -> None:
    real = jars.ensure()[0].parent
    fake_maven(tmp_path, f'ln -s "{real}/$n" "$out/$n"')
    target = tmp_path / "jars"
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "LAKEMIRROR_JARS": str(target),
        "PYTHONPATH": str(Path(lakemirror.driver.__file__).parents[2]),
    }
    command = [sys.executable, "-m", "lakemirror.driver.runtime.jars"]
    running = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    assert [process.communicate()[0].strip() for process in running] == [str(target)] * 3
    assert [process.returncode for process in running] == [0, 0, 0]
    assert (tmp_path / "calls").read_text().count("called") == 1
    assert {file.name for file in target.glob("*.jar")} == {jar.file for jar in jars.declared()}
    assert not list(target.glob(".partial*"))


@pytest.fixture
def empty(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No jars anywhere, no programs on the PATH."""
    monkeypatch.setenv("LAKEMIRROR_JARS", str(tmp_path / "jars"))
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path


def test_with_the_jars_there_no_maven_is_needed(empty: Path) -> None:
    (empty / "jars").mkdir()
    for jar in jars.declared():
        (empty / "jars" / jar.file).touch()
    assert jars.spark_conf()["spark.jars"].split(",")[0] == str(empty / "jars" / jars.declared()[0].file)


def test_a_jar_that_is_another_file_than_the_named_one_gets_nowhere(
    empty: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As from a repository that somebody has changed."""
    fake_maven(empty, 'echo jar > "$out/$n"')
    monkeypatch.setenv("PATH", f"{empty}:/bin:/usr/bin")
    with pytest.raises(
        jars.JarsUnavailable, match=r"has the SHA-256 .* and .*jars\.sha256 names [0-9a-f]{64}:"
    ):
        jars.ensure()
    assert list((empty / "jars").glob("*.jar")) == []


def test_an_image_without_hive_says_so(empty: Path) -> None:
    (empty / "spark" / "jars").mkdir(parents=True)
    conf = {"spark.sql.catalogImplementation": "hive"}
    with pytest.raises(session.HiveMissing, match="METASTORES=hive scripts/images"):
        session._require_hive(conf)
    session._require_hive({})
    (empty / "spark" / "jars" / "spark-hive_2.13-4.2.0.jar").touch()
    session._require_hive(conf)


def test_jars_in_sparks_own_folder_are_left_to_it(empty: Path) -> None:
    (empty / "spark" / "jars").mkdir(parents=True)
    for jar in jars.declared():
        (empty / "spark" / "jars" / jar.file).touch()
    assert jars.spark_conf() == {}


def test_without_maven_spark_downloads_the_same_jars(empty: Path) -> None:
    packages = jars.spark_conf()["spark.jars.packages"].split(",")
    assert packages == [jar.coordinates for jar in jars.declared()]
    with pytest.raises(jars.JarsUnavailable, match="apt-get install maven"):
        jars.ensure()


def test_what_maven_says_is_told(empty: Path) -> None:
    program(empty / "bin" / "mvn", "echo '[ERROR] no route to the repository'; exit 1")
    with pytest.raises(jars.JarsUnavailable, match="no route to the repository"):
        jars.ensure()
    assert list((empty / "jars").glob("*.jar")) == []


def test_jars_of_object_stores_come_where_they_are_asked_for(
    empty: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a folder beside the others; in an image that has them, nothing is brought."""
    (empty / "jars" / "s3").mkdir(parents=True)
    for name in [*(jar.file for jar in jars.declared()), "s3/hadoop-aws-3.5.0.jar", "s3/.done"]:
        (empty / "jars" / name).touch()
    assert "hadoop-aws" not in jars.spark_conf()["spark.jars"]
    monkeypatch.setenv(jars.OBJECT_STORES, "s3, s3")
    brought = jars.spark_conf()["spark.jars"].split(",")
    assert brought[-1] == str(empty / "jars" / "s3" / "hadoop-aws-3.5.0.jar")
    assert len(brought) == len(jars.declared()) + 1
    (empty / "spark" / "jars").mkdir(parents=True)
    (empty / "spark" / "jars" / "hadoop-aws-3.5.0.jar").touch()
    assert "hadoop-aws" not in jars.spark_conf()["spark.jars"]


def test_jars_of_a_store_that_is_not_known_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(jars.OBJECT_STORES, "s3,swift")
    with pytest.raises(jars.JarsUnavailable, match="swift is not an object store: give s3, azure, gcs"):
        jars.spark_conf()


def test_jars_of_an_object_store_need_maven(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(jars.OBJECT_STORES, "gcs")
    with pytest.raises(jars.JarsUnavailable, match="Maven"):
        jars.spark_conf()


@pytest.mark.parametrize("store", STORES, ids=lambda store: store.name)
def test_each_object_store_has_a_pom(store: ObjectStore) -> None:
    named = jars.declared(jars.store_pom(store))
    assert all(jar.group and jar.artifact and jar.version for jar in named)
