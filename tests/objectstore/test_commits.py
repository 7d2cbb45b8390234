"""The log store alone: one of several writers of a version succeeds, whatever the store answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

import lakemirror
from lakemirror.api.object_stores import CONDITIONAL_FILE_MANAGER, CONDITIONAL_LOG_STORE
from lakemirror.driver.checkpoint.storage import HadoopStorage
from lakemirror.driver.java import java_class
from tests.support.object_store import Bucket
from tests.support.s3_proxy import Fault, commits, every, puts

pytestmark = pytest.mark.sources
ROOT = Path(__file__).parents[2]
FIRST = "t/_delta_log/00000000000000000000.json"
Write = Callable[..., None]


def test_the_tests_are_of_this_tree() -> None:
    assert Path(lakemirror.__file__).is_relative_to(ROOT)


@pytest.fixture
def part_size(s3: SparkSession, bucket: Bucket) -> int:
    """The bytes from which on a file is put in parts; the least that S3 takes."""
    least = 5 * 2**20
    s3.conf.set(f"fs.s3a.bucket.{bucket.name}.multipart.size", str(least))
    return least


def log_store(s3: SparkSession) -> tuple[Any, Any]:
    """Hadoop's settings of the session, and the log store with these."""
    settings = s3._jsparkSession.sessionState().newHadoopConf()
    loader = java_class(s3, "java.lang.Thread").currentThread().getContextClassLoader()
    made = loader.loadClass(CONDITIONAL_LOG_STORE).getConstructors()[0]
    arguments: Any = s3.sparkContext._gateway.new_array(java_class(s3, "java.lang.Object"), 1)  # type: ignore[union-attr]
    arguments[0] = settings
    return settings, made.newInstance(arguments)


@pytest.mark.guarantee(
    "A batch costs what it brings, however many came before: logs have a limit unless a property of the "
    "table sets one, listings begin at the last checkpoint, and our own tables are compacted unasked"
)
def test_a_listing_asks_only_for_the_files_from_a_name_on(s3: SparkSession, bucket: Bucket) -> None:
    """However many older ones there are, and without what lies in folders below and beside the log."""
    log = bucket.files / "t/_delta_log"
    for number in range(2_100):
        file = log / f"{number:020}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("{}")
    for name in ("_sidecars/a.parquet", "_last_checkpoint", f"{2_090:020}.checkpoint.parquet"):
        (log / name).parent.mkdir(exist_ok=True)
        (log / name).write_text("{}")
    (bucket.files / "t/_delta_log_of_another").mkdir()
    (bucket.files / "t/_delta_log_of_another" / f"{2_095:020}.json").write_text("{}")
    settings, store = log_store(s3)
    asked: list[str] = []

    def listings(method: str, path: str) -> bool:
        asked.extend([path] if method == "GET" and "list-type=2" in path else [])
        return False

    def names(start: str) -> list[str]:
        path = java_class(s3, "org.apache.hadoop.fs.Path")(f"{bucket.uri}/t/_delta_log/{start}")
        found = store.listFrom(path, settings)
        listed = []
        while found.hasNext():
            listed.append(str(found.next().getPath().getName()))
        return listed

    with bucket.proxy.fault(Fault("lost", listings)):
        newest = names(f"{2_090:020}.")
    versions = [f"{number:020}.json" for number in range(2_090, 2_100)]
    assert newest == [f"{2_090:020}.checkpoint.parquet", *versions, "_last_checkpoint"]
    assert len(asked) == 1
    assert names(f"{2_100:020}.") == ["_last_checkpoint"]
    assert len(names(f"{0:020}.")) == 2_102
    every = java_class(s3, "org.apache.hadoop.fs.Path")(f"{bucket.uri}/t/_delta_log/{0:020}.")
    asked.clear()
    with bucket.proxy.fault(Fault("lost", listings)):  # Delta looks for expired files, and finds none
        assert str(store.listFrom(every, settings).next().getPath().getName()) == f"{0:020}.json"
    assert 1 <= len(asked) <= 2  # the client asks for the next page meanwhile
    with bucket.proxy.fault(Fault(503, lambda *of: "list-type=2" in of[1], times=1_000, skip=1)):
        begun = store.listFrom(every, settings)
        with pytest.raises(Py4JJavaError, match=r"AWSServiceThrottledException|IOException"):
            java_class(s3, "scala.jdk.javaapi.CollectionConverters").asScala(begun).toList()
    with pytest.raises(Py4JJavaError, match="FileNotFound"):
        store.listFrom(
            java_class(s3, "org.apache.hadoop.fs.Path")(f"{bucket.uri}/none/_delta_log/0"), settings
        )


@pytest.fixture
def write(s3: SparkSession, bucket: Bucket, part_size: int) -> Write:
    """Writes a file of lines with the log store."""
    settings, log = log_store(s3)

    def carry_out(line: str, key: str = FIRST, *, overwrite: bool = False) -> None:
        lines = java_class(s3, "java.util.ArrayList")()
        lines.add(line)
        path = java_class(s3, "org.apache.hadoop.fs.Path")(f"{bucket.uri}/{key}")
        log.write(path, lines.iterator(), overwrite, settings)

    return carry_out


def failure(attempt: Callable[[], None]) -> str | None:
    """The class of the Java exception that an attempt ends with."""
    try:
        attempt()
    except Py4JJavaError as error:
        return str(error.java_exception.getClass().getSimpleName())
    return None


def test_a_version_is_written_once(write: Write, bucket: Bucket) -> None:
    write("ours")
    assert failure(lambda: write("theirs")) == "FileAlreadyExistsException"
    assert (bucket.files / FIRST).read_text() == "ours\n"
    write("checkpoint", "t/_delta_log/_last_checkpoint", overwrite=True)
    write("newer", "t/_delta_log/_last_checkpoint", overwrite=True)
    assert (bucket.files / "t/_delta_log/_last_checkpoint").read_text() == "newer\n"


@pytest.mark.guarantee(
    "On an object store, one of several writers of a version succeeds, whatever the store answers; a driver "
    "that sleeps while another takes over makes no further commits"
)
def test_of_eight_writers_at_once_one_succeeds(write: Write, bucket: Bucket) -> None:
    versions = [f"t/_delta_log/{number:020}.json" for number in range(10)]
    barrier = Barrier(8)

    def writer(number: int) -> Iterator[str | None]:
        for version in versions:
            barrier.wait()
            yield failure(lambda version=version: write(f"writer {number}", version))  # type: ignore[misc]

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda number: list(writer(number)), range(8)))
    for index, version in enumerate(versions):
        ended = [result[index] for result in results]
        assert ended.count(None) == 1
        assert ended.count("FileAlreadyExistsException") == 7
        assert (bucket.files / version).read_text() == f"writer {ended.index(None)}\n"


def test_a_version_that_is_put_in_parts_is_written_once(write: Write, bucket: Bucket, part_size: int) -> None:
    ours, theirs = "o" * (2 * part_size), "t" * (2 * part_size)
    before = bucket.proxy.puts
    write(ours)
    assert bucket.proxy.puts - before > 1
    assert failure(lambda: write(theirs)) == "FileAlreadyExistsException"
    assert failure(lambda: write("small")) == "FileAlreadyExistsException"
    assert (bucket.files / FIRST).read_text() == f"{ours}\n"


@pytest.mark.guarantee(
    "On an object store, one of several writers of a version succeeds, whatever the store answers; a driver "
    "that sleeps while another takes over makes no further commits"
)
def test_of_two_writers_that_put_parts_at_once_one_succeeds(
    write: Write, bucket: Bucket, part_size: int
) -> None:
    """Each has begun before the other one has completed."""
    barrier = Barrier(2)

    def writer(letter: str) -> str | None:
        barrier.wait()
        return failure(lambda: write(letter * (2 * part_size)))

    with ThreadPoolExecutor(2) as pool:
        ended = dict(zip("ab", pool.map(writer, "ab"), strict=True))
    assert sorted(map(str, ended.values())) == ["FileAlreadyExistsException", "None"]
    [winner] = [letter for letter, how in ended.items() if how is None]
    assert (bucket.files / FIRST).read_text() == winner * (2 * part_size) + "\n"


@pytest.mark.guarantee(
    "On an object store, one of several writers of a version succeeds, whatever the store answers; a driver "
    "that sleeps while another takes over makes no further commits"
)
def test_a_commit_whose_answer_is_lost_is_known_as_ours(write: Write, bucket: Bucket) -> None:
    """The client puts again and is refused because of itself."""
    with bucket.proxy.fault(Fault("lost", commits)) as fault:
        write("ours")
    assert fault.met == 1
    assert failure(lambda: write("theirs")) == "FileAlreadyExistsException"
    assert (bucket.files / FIRST).read_text() == "ours\n"


@pytest.mark.guarantee(
    "On an object store, one of several writers of a version succeeds, whatever the store answers; a driver "
    "that sleeps while another takes over makes no further commits"
)
def test_a_commit_of_which_no_answer_ever_comes_is_looked_up(write: Write, bucket: Bucket) -> None:
    with bucket.proxy.fault(Fault("lost", commits, times=1)), bucket.proxy.fault(Fault(503, commits, 99)):
        write("ours")
    assert (bucket.files / FIRST).read_text() == "ours\n"


@pytest.mark.guarantee(
    "On an object store, one of several writers of a version succeeds, whatever the store answers; a driver "
    "that sleeps while another takes over makes no further commits"
)
def test_another_writers_commit_is_not_taken_for_ours(write: Write, bucket: Bucket) -> None:
    write("theirs")
    with bucket.proxy.fault(Fault(503, commits, 99)):
        assert failure(lambda: write("ours")) == "FileAlreadyExistsException"
    assert (bucket.files / FIRST).read_text() == "theirs\n"


def test_a_refusal_where_nothing_stands_is_no_conflict(write: Write, bucket: Bucket) -> None:
    """Delta would look for the commit that was faster, and there is none."""
    with bucket.proxy.fault(Fault(412, commits, 99)):
        assert failure(lambda: write("ours")) == "IOException"
    assert not bucket.exists(FIRST)
    write("ours")


@pytest.mark.parametrize("status", [409, 412])
def test_a_put_that_was_refused_where_nothing_stands_is_sent_again(
    status: int, write: Write, bucket: Bucket
) -> None:
    with bucket.proxy.fault(Fault(status, commits, 2)) as fault:
        write("ours")
    assert fault.met == 2
    assert (bucket.files / FIRST).read_text() == "ours\n"


def test_a_store_that_is_away_leaves_the_commit_open(write: Write, bucket: Bucket) -> None:
    with bucket.proxy.away():
        assert failure(lambda: write("ours")) not in (None, "FileAlreadyExistsException")
    write("ours")


def test_a_record_of_the_checkpoint_is_created_once(s3: SparkSession, bucket: Bucket) -> None:
    storage = HadoopStorage(f"{bucket.uri}/checkpoint", s3)
    with bucket.proxy.fault(Fault("lost", puts)) as fault:
        assert storage.write_text_new("owner/1.json", "ours\n")
    assert fault.met == 1
    assert not storage.write_text_new("owner/1.json", "theirs\n")
    assert storage.read_text("owner/1.json") == "ours\n"
    with bucket.proxy.fault(Fault(412, puts, 99)), pytest.raises(Py4JJavaError):
        storage.write_text_new("owner/2.json", "ours\n")


def test_files_of_a_streaming_checkpoint_are_created_once(s3: SparkSession, bucket: Bucket) -> None:
    settings = s3._jsparkSession.sessionState().newHadoopConf()
    settings.set("spark.sql.streaming.checkpointFileManagerClass", CONDITIONAL_FILE_MANAGER)
    path = java_class(s3, "org.apache.hadoop.fs.Path")
    managers = java_class(s3, "org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager")
    manager = managers.create(path(f"{bucket.uri}/spark"), settings)

    def create(text: str, overwrite: bool = False) -> None:
        stream = manager.createAtomic(path(f"{bucket.uri}/spark/commits/0"), overwrite)
        stream.write(bytearray(text.encode()))
        stream.close()

    cancelled = manager.createAtomic(path(f"{bucket.uri}/spark/commits/0"), False)
    cancelled.write(bytearray(b"half"))
    cancelled.cancel()
    assert not bucket.exists("spark/commits/0")
    create("ours")
    assert failure(lambda: create("ours")) == "FileAlreadyExistsException"
    create("newer", overwrite=True)
    assert (bucket.files / "spark/commits/0").read_text() == "newer"
    assert [each.getPath().getName() for each in manager.list(path(f"{bucket.uri}/spark/commits"))] == ["0"]


def test_a_slow_store_is_only_slow(write: Write, bucket: Bucket) -> None:
    bucket.proxy.slow_seconds = 0.5
    write("ours")
    assert failure(lambda: write("theirs")) == "FileAlreadyExistsException"


def test_a_store_that_fails_now_and_then_is_asked_again(write: Write, bucket: Bucket) -> None:
    with bucket.proxy.fault(Fault(503, every, times=99, share=3)) as fault:
        for number in range(6):
            write("ours", f"t/_delta_log/{number:020}.json")
    assert fault.met > 1
    assert len(list((bucket.files / "t/_delta_log").iterdir())) == 6
