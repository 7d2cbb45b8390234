"""Mirrors in a bucket that are applied in columns end as the rules say, whatever the store answers."""

from __future__ import annotations

import logging
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, get_args
from unittest import mock

import pytest
from delta.tables import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql.classic.dataframe import DataFrame

from lakemirror.api.spark_settings import ENGINE
from lakemirror.driver import faults
from lakemirror.driver.batch import BatchApplier
from lakemirror.driver.engine import job
from lakemirror.driver.engine.file_systems import FileSystems
from lakemirror.driver.engine.mirror_files import NotForEngine
from lakemirror.driver.java import java_class
from lakemirror.driver.writer.s3_access import S3, Secret
from tests.driver.engine.test_engine import history, in_columns, several
from tests.driver.engine.test_quarantine_in_columns import BAD_IN_EACH, NARROW, kept, watched
from tests.driver.engine.test_quarantine_in_columns import batches as with_bad_records
from tests.support import engines
from tests.support.agreement import by_rules, differences
from tests.support.delivery import Batches, cut, parts
from tests.support.driver_process import driver
from tests.support.histories import Shape, Step, play
from tests.support.object_store import ACCESS_KEY, SECRET_KEY, Bucket
from tests.support.s3_proxy import Fault
from tests.support.store_mirroring import StoreMirroring

pytestmark = [pytest.mark.sources, pytest.mark.timeout(600)]
POINTS: tuple[faults.Point, ...] = get_args(faults.Point)
PLAIN = Shape(snapshot="initial", full=True, schemas=False, name="items")


@pytest.fixture
def columns(s3: SparkSession) -> Iterator[SparkSession]:
    with engines.in_columns(s3):
        yield s3


def delivered(folder: Path, bucket: Bucket, batches: Batches, **settings: Any) -> StoreMirroring:
    mirroring = StoreMirroring(folder, bucket, settings)
    mirroring.deliver(batches)
    return mirroring


def require_right(spark: SparkSession, mirroring: StoreMirroring, least: int = 1, *names: str) -> None:
    """The mirrors are as the rules say, and tables were applied in columns in so many batches."""
    assert differences(spark, mirroring, by_rules(mirroring)) == []
    assert sum(in_columns(spark, mirroring, name) for name in names or ("items",)) >= least
    assert not mirroring.told_twice(spark)


def orphans(spark: SparkSession, mirroring: StoreMirroring, table: str = "items") -> set[str]:
    """The files of a mirror that nothing names."""
    path = mirroring.path("demo", "public", table)
    there = mirroring.bucket.files / path.removeprefix(f"{mirroring.bucket.uri}/")
    named = {each.rpartition("/")[2] for each in spark.read.format("delta").load(path).inputFiles()}
    log = "".join(each.read_text() for each in (there / "_delta_log").glob("*.json"))
    return {each.name for each in there.glob("*.parquet") if each.name not in named and each.name not in log}


@pytest.mark.thorough
def test_tables_of_each_kind(columns: SparkSession, bucket: Bucket, tmp_path: Path) -> None:
    """With schemas and without, with gaps, deletes, truncates, of two databases, in a table of any name."""
    mirroring = delivered(tmp_path, bucket, several(10))
    mirroring.run(columns)
    require_right(columns, mirroring, 4, "items", "bare")
    assert not list(tmp_path.rglob("_delta_log"))


@pytest.mark.long
def test_deletes_and_late_changes(columns: SparkSession, bucket: Bucket, tmp_path: Path) -> None:
    """Tombstones are stored beside the mirror, and looked up again."""
    rnd = random.Random(3)
    steps = [Step(0, rnd.choice(("put", "put", "drop")), rnd.randrange(5)) for _ in range(40)]
    batches = cut(play(steps, PLAIN).records, 9)
    late = rnd.sample(batches[0], 2)
    batches = [[each for each in batch if each not in late] for batch in batches]
    batches[-1] += late
    mirroring = delivered(tmp_path, bucket, batches)
    mirroring.run(columns)
    require_right(columns, mirroring, 3)
    assert not orphans(columns, mirroring)


@pytest.mark.long
def test_bad_records_are_kept_in_the_bucket(
    columns: SparkSession, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark makes the quarantine, and is not needed for it from then on."""
    mirroring = delivered(tmp_path, bucket, with_bad_records(), **NARROW)
    with watched(monkeypatch) as done:
        mirroring.run(columns)
    assert {name for name, number in done if number == 0} >= {"store"}
    assert [(name, number) for name, number in done if number > 0] == []
    rows = kept(columns, mirroring)
    assert len({row["id"] for row in rows}) == len(rows) == 6 * BAD_IN_EACH
    assert not list(tmp_path.rglob("quarantine"))


@pytest.mark.thorough
def test_names_that_need_care(columns: SparkSession, bucket: Bucket, tmp_path: Path) -> None:
    shape = Shape(snapshot="initial", full=True, schemas=False, name="Tab elle, größe 100%")
    mirroring = delivered(tmp_path, bucket, parts(history(1, shape).records, 5))
    mirroring.run(columns)
    assert differences(columns, mirroring, by_rules(mirroring)) == []
    logs = [path for path in mirroring.logs() if "Tab" in path and "_tombstones" not in path]
    path = f"{bucket.uri}/{logs[0]}"
    by_engine = DeltaTable.forPath(columns, path).history().where("engineInfo = 'Lakemirror'")
    assert by_engine.count() >= 2


@pytest.mark.thorough
@pytest.mark.parametrize("point", POINTS)
def test_a_crash_at_any_point_changes_nothing(
    columns: SparkSession, bucket: Bucket, tmp_path: Path, point: faults.Point
) -> None:
    mirroring = delivered(tmp_path, bucket, parts(history(5, PLAIN).records, 6))
    for after in (3, 1):
        faults.arm(point, after=after)
        with pytest.raises(faults.InjectedCrash):
            mirroring.run(columns)
    mirroring.run(columns)
    require_right(columns, mirroring)


def of_data(method: str, path: str) -> bool:
    """Puts of the data files of the mirror, and not of its tombstones."""
    return method == "PUT" and "/lake/" in path and "/part-" in path and "_tombstones" not in path


@pytest.mark.thorough
def test_answers_that_fail_or_never_come_cost_time_only(
    columns: SparkSession, bucket: Bucket, tmp_path: Path
) -> None:
    mirroring = delivered(tmp_path, bucket, parts(history(5, PLAIN).records, 6))
    with bucket.proxy.answers_that_fail_or_never_come():
        mirroring.run(columns)
    require_right(columns, mirroring)


@pytest.mark.long
def test_a_table_whose_files_cannot_be_written_is_applied_by_spark(
    columns: SparkSession, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store refuses what tasks put during the job."""
    run, refused = job.run, Fault(503, of_data, times=100)

    def run_refused(*given: Any, **more: Any) -> job.JobResult:
        with bucket.proxy.fault(refused):
            return run(*given, **more)

    monkeypatch.setattr(job, "run", run_refused)
    mirroring = delivered(tmp_path, bucket, parts(history(5, PLAIN).records, 3))
    mirroring.run(columns)
    assert refused.met
    require_right(columns, mirroring, 0)
    assert in_columns(columns, mirroring, "items") == 0
    assert not orphans(columns, mirroring)


@pytest.mark.thorough
def test_a_worker_that_is_killed_while_it_puts_a_file(
    columns: SparkSession, bucket: Bucket, tmp_path: Path
) -> None:
    """Nothing is left of the file, and the batch is applied."""
    mirroring = delivered(tmp_path, bucket, parts(history(5, PLAIN).records, 2))
    held, killed = Fault("held", of_data), list[int]()

    def kill() -> None:
        held.held.wait(300)
        killed.extend(workers())
        for each in killed:
            os.kill(each, signal.SIGKILL)
        held.go_on.set()

    with bucket.proxy.fault(held):
        killer = threading.Thread(target=kill)
        killer.start()
        mirroring.run(columns)
        held.held.set()
        killer.join()
    assert killed
    require_right(columns, mirroring, 0)
    assert not orphans(columns, mirroring)


def workers() -> list[int]:
    """The Python workers of Spark: children of its daemons."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_text().split("\0")
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
        if any(each.endswith("daemon") for each in words[1:3]):
            found[int(folder.name)] = parent
    return [each for each, parent in found.items() if parent in found]


# -- credentials ------------------------------------------------------------------------------------------


@pytest.mark.long
def test_keys_are_in_no_plan_and_in_no_log(
    columns: SparkSession,
    bucket: Bucket,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A job is described by Spark in many ways, and by Python."""
    caplog.set_level(logging.DEBUG)  # at which Py4J logs what the JVM answers
    texts, collect = list[str](), DataFrame.collect

    def collect_described(frame: DataFrame) -> Any:
        execution = frame._jdf.queryExecution()
        if "MapInArrow" in execution.toString():
            texts.extend(str(each) for each in (execution, execution.logical(), execution.executedPlan()))
            texts.extend((execution.executedPlan().treeString(), execution.explainString(_mode(columns))))
            texts.append(execution.analyzed().toJSON())
        return collect(frame)

    run = job.run

    def run_described(raw: Any, tables: Any, places: Any, dividing: Any, **more: Any) -> job.JobResult:
        texts.extend(map(repr, (tables, places, dividing, job._Second(tables, places, dividing))))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(DataFrame, "collect", collect_described)
            return run(raw, tables, places, dividing, **more)

    monkeypatch.setattr(job, "run", run_described)
    mirroring = delivered(tmp_path, bucket, parts(history(5, PLAIN).records, 3))
    mirroring.run(columns)
    require_right(columns, mirroring)
    shown = "\n".join((*texts, caplog.text, *map(str, (record.args for record in caplog.records))))
    assert "MapInArrow" in shown
    assert "Secret(...)" in shown
    assert SECRET_KEY not in shown


def _mode(spark: SparkSession) -> Any:
    return java_class(spark, "org.apache.spark.sql.execution.ExplainMode").fromString("extended")


@pytest.mark.thorough
def test_keys_are_in_no_event_log_and_in_nothing_that_a_driver_says(
    s3: SparkSession, bucket: Bucket, tmp_path: Path
) -> None:
    """Spark's pages in the browser show what event logs have."""
    events = tmp_path / "events"
    events.mkdir()
    mirroring = delivered(tmp_path / "p", bucket, parts(history(5, PLAIN).records, 4))
    text = mirroring.manifest.read_text()
    logged = {"enabled": "true", "dir": f"file://{events}", "compress": "false"}
    logged = {**{f"spark.eventLog.{name}": value for name, value in logged.items()}, ENGINE: "columns"}
    lines = "".join(f"      {name}: '{value}'\n" for name, value in logged.items())
    mirroring.manifest.write_text(text.replace("    conf:\n", f"    conf:\n{lines}", 1))
    with driver(mirroring, "--once") as running:
        said, _ = running.communicate(timeout=400)
    assert running.returncode == 0, said[-3000:]
    found = [each for each in events.rglob("*") if each.is_file()]
    content = b"".join(each.read_bytes() for each in found)
    assert b"MapInArrow" in content
    assert SECRET_KEY.encode() not in content
    assert SECRET_KEY not in said
    require_right(s3, mirroring)


@pytest.mark.long
def test_keys_are_asked_for_in_each_batch(s3: SparkSession, bucket: Bucket) -> None:
    """Whatever gives them to Hadoop's client: here it is the JVM, whose properties change."""
    system = java_class(s3, "java.lang.System")
    named = {"aws.accessKeyId": ACCESS_KEY, "aws.secretAccessKey": SECRET_KEY}
    provider = "software.amazon.awssdk.auth.credentials.SystemPropertyCredentialsProvider"
    for name, value in {**bucket.hadoop(), _of(bucket, "aws.credentials.provider"): provider}.items():
        s3.conf.set(name, value)
    systems, path = FileSystems(s3), f"{bucket.uri}/lake/t"
    try:
        for name, value in named.items():
            system.setProperty(name, value)
        first = systems.of(path)
        system.setProperty("aws.sessionToken", "a token")
        assert systems.of(path) is first
        systems.renew()
        second = systems.of(path)
    finally:
        for name in (*named, "aws.sessionToken"):
            system.clearProperty(name)
    assert isinstance(first, S3)
    assert isinstance(second, S3)
    assert first.access.keys is not None
    assert second.access.keys is not None
    assert first.access.keys.access_key == second.access.keys.access_key == Secret(ACCESS_KEY)
    assert (first.access.keys.token, second.access.keys.token) == (None, Secret("a token"))
    assert first.access.endpoint == f"http://127.0.0.1:{bucket.proxy.port}"
    assert (first.access.region, first.access.in_host, first.access.attempts) == ("us-east-1", False, 4)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("encryption.algorithm", "AES256", "encryption.algorithm is set"),
        ("requester.pays.enabled", "true", "requester.pays.enabled is true"),
        ("create.header.x-amz-tagging", "a=b", "create.header. is set"),
        ("acl.default", "PublicRead", "acl.default is set"),
    ],
)
def test_a_bucket_that_tasks_cannot_reach_as_hadoops_client_does(
    s3: SparkSession, bucket: Bucket, name: str, value: str, reason: str
) -> None:
    s3.conf.set(_of(bucket, name), value)
    with pytest.raises(NotForEngine, match=reason):
        FileSystems(s3).of(f"{bucket.uri}/lake/t")


@pytest.mark.long
@pytest.mark.parametrize("path", ["s3://lake/t", "abfss://lake@x/t", "gs://lake/t", "hdfs://x/t", "t", ""])
def test_places_that_are_left_to_spark(s3: SparkSession, path: str) -> None:
    with pytest.raises(NotForEngine, match="neither on a local disk nor on S3"):
        FileSystems(s3).of(path)


def _of(bucket: Bucket, name: str) -> str:
    return f"fs.s3a.bucket.{bucket.name}.{name}"


# -- how often the store is asked -------------------------------------------------------------------------


@contextmanager
def measured(bucket: Bucket) -> Iterator[list[tuple[int, float]]]:
    """The requests and the seconds of each batch, without what the stream itself stores."""
    found: list[tuple[int, float]] = []
    apply = BatchApplier.apply

    def apply_measured(self: BatchApplier, *given: Any) -> Any:
        before, began = bucket.proxy.requests, time.monotonic()
        result = apply(self, *given)
        found.append((bucket.proxy.requests - before, time.monotonic() - began))
        return result

    with mock.patch.object(BatchApplier, "apply", apply_measured):
        yield found


def of_several(tables: int, batches: int, changes: int) -> Batches:
    """Tables with rows, of which each batch changes some."""
    steps = [Step(0, "put", number) for number in range(changes)] * batches
    shapes = [Shape(snapshot="initial", full=True, schemas=False, name=f"t{i}") for i in range(tables)]
    played = [parts(play(steps, shape).records, batches) for shape in shapes]
    return [[record for one in played for record in one[number]] for number in range(batches)]


@pytest.mark.thorough
def test_a_table_asks_the_store_less_often_than_by_spark(
    s3: SparkSession, bucket: Bucket, tmp_path: Path
) -> None:
    """In a batch that is like those before it, and without what a batch asks for by itself."""
    asked: dict[tuple[str, int], float] = {}
    for engine, chosen in (("columns", engines.in_columns), ("spark", engines.by_spark)):
        for tables in (1, 4):
            here = store_below(bucket, f"{engine}{tables}")
            mirroring = delivered(tmp_path / f"{engine}{tables}", bucket, of_several(tables, 8, 10), **here)
            with chosen(s3), measured(bucket) as found:
                mirroring.run(s3)
            asked[engine, tables] = median(requests for requests, _ in found[-4:])
    one = {engine: (asked[engine, 4] - asked[engine, 1]) / 3 for engine in ("columns", "spark")}
    assert one["columns"] * 1.5 <= one["spark"], (one, asked)
    assert one["columns"] <= MOST_REQUESTS, (one, asked)


MOST_REQUESTS = 9
"""Of a table without deletes in a batch: five looks at the log, its entry, and a file; sometimes files are
read."""


def store_below(bucket: Bucket, name: str) -> dict[str, Any]:
    """Settings with which a pipeline has folders of its own in the bucket."""
    target = f"{bucket.uri}/{name}/lake/{{db}}/{{schema}}/{{table}}"
    return {"target": {"path": target}, "checkpoint": f"{bucket.uri}/{name}/checkpoint"}
