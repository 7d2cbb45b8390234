"""Which file system a mirror is on, by its path and the session, and whether tasks reach it."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from lakemirror.driver.engine.file_systems import FileSystems
from lakemirror.driver.engine.mirror_files import NotForEngine
from lakemirror.driver.writer.s3_access import Access
from lakemirror.driver.writer.stores import LocalDisk


def test_a_path_without_a_scheme_is_on_the_default_file_system(spark: SparkSession) -> None:
    """A copy of the mirror may be on the local disk at this path, and must not be taken for it."""
    session = spark.newSession()
    session.conf.set("fs.defaultFS", "viewfs://cluster/")
    systems = FileSystems(session)
    assert systems.folder("/lake/t") == "viewfs://cluster/lake/t"
    with pytest.raises(NotForEngine, match="neither on a local disk nor on S3"):
        systems.of(systems.folder("/lake/t"))
    assert systems.folder("file:///lake/t") == "/lake/t"
    assert systems.folder("s3a://lake/t") == "s3a://lake/t"


def test_a_path_without_a_scheme_is_on_the_local_disk_by_default(spark: SparkSession) -> None:
    systems = FileSystems(spark)
    for path in ("/lake/a b%20", "file:/lake/a b%20", "file:///lake/a b%20"):
        assert systems.folder(path) == "/lake/a b%20"
        assert systems.of(systems.folder(path)) == LocalDisk()
    assert systems.folder("") == ""


def test_files_have_the_permissions_that_hadoop_gives_them(spark: SparkSession) -> None:
    """A mirror has files of both, and must not become unreadable for some, or readable for others."""
    assert FileSystems(spark).of("/lake/t") == LocalDisk(0o644)
    session = spark.newSession()
    session.conf.set("fs.permissions.umask-mode", "027")
    assert FileSystems(session).of("/lake/t") == LocalDisk(0o640)


class Store(ThreadingHTTPServer):
    """A bucket in which nothing is, if it answers at all."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.answer: int | None = 404
        self.asked = 0

    def systems(self) -> tuple[FileSystems, list[float]]:
        """The file systems of a session that reaches the bucket, and its clock."""
        clock = [0.0]
        systems = FileSystems(cast(Any, None), lambda: clock[0])
        place = f"http://127.0.0.1:{self.server_port}"
        access = Access("lake", place, "us-east-1", in_host=False, attempts=9)
        systems._clients["lake"] = cast(Any, SimpleNamespace(access=lambda: access))
        return systems, clock


class Answers(BaseHTTPRequestHandler):
    def do_HEAD(self) -> None:
        store = cast(Store, self.server)
        store.asked += 1
        if store.answer is not None:
            self.send_error(store.answer)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def store() -> Iterator[Store]:
    with Store() as made:
        Thread(target=made.serve_forever, args=(0.01,)).start()
        yield made
        made.shutdown()


def reach(systems: FileSystems) -> bool:
    systems.renew()
    try:
        return bool(systems.of("s3a://lake/t"))
    except NotForEngine:
        return False


@pytest.mark.parametrize("answer", [None, 403])
def test_a_bucket_that_tasks_do_not_reach_is_left_to_spark_for_a_while(
    store: Store, caplog: pytest.LogCaptureFixture, answer: int | None
) -> None:
    """Each table would take as long as a request is sent again, in each batch."""
    systems, clock = store.systems()
    store.answer = answer
    assert not reach(systems)
    few = store.asked
    assert 0 < few <= 3
    for clock[0] in (1, 59):
        assert not reach(systems)
    assert store.asked == few
    clock[0] = 61
    assert not reach(systems)
    assert store.asked == 2 * few
    assert len(caplog.records) == 2
    store.answer, clock[0] = 404, 180
    assert not reach(systems)
    clock[0] = 182
    assert reach(systems)
    assert store.asked == 2 * few + 1


def test_a_bucket_is_asked_once_until_a_request_fails(store: Store) -> None:
    systems, _ = store.systems()
    assert [reach(systems) for _ in range(3)] == [True] * 3
    assert store.asked == 1
    store.answer = None
    assert reach(systems)
    systems.doubt("s3a://lake/t")
    assert not reach(systems)
