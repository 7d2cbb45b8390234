"""Files of tables in a bucket, as tasks read and write them: few requests, whatever the store answers."""

from __future__ import annotations

import pickle
import uuid
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakemirror.driver.engine.bounds import file_may_have
from lakemirror.driver.engine.file_rows import FileRows
from lakemirror.driver.engine.key_search import KeySearch
from lakemirror.driver.rules import kinds
from lakemirror.driver.writer import s3_files
from lakemirror.driver.writer.actions import Add
from lakemirror.driver.writer.data_files import File, Layout, encoded
from lakemirror.driver.writer.s3_access import S3, Access, Keys, Secret
from lakemirror.driver.writer.schema import Column
from lakemirror.driver.writer.stores import Files, Recent, recent_footers
from tests.support.object_store import ACCESS_KEY, SECRET_KEY, Bucket, Store
from tests.support.s3_proxy import Fault, every, puts

pytestmark = pytest.mark.sources
NAMES = ["part-1.parquet", "a b/c=%20/ż \U0001f600?#&+=;:@.bin", "%41", "-", "a//b", "x" * 200]


@pytest.fixture
def bucket(store: Store) -> Bucket:
    return store.bucket(f"lake-{uuid.uuid4().hex[:8]}")


@pytest.fixture(autouse=True)
def nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    forget(monkeypatch)


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be a process that has read nothing."""
    monkeypatch.setattr(s3_files, "_CONTENTS", Recent(1 << 25))
    monkeypatch.setattr(s3_files, "_FOOTERS", recent_footers())


def access(bucket: Bucket, secret: str = SECRET_KEY, **given: Any) -> Access:
    keys = Keys(Secret(ACCESS_KEY), Secret(secret), **given)
    return Access(bucket.name, f"http://127.0.0.1:{bucket.proxy.port}", "us-east-1", False, 3, None, keys)


def files(bucket: Bucket, key: str = "lake/t") -> Files:
    system = pickle.loads(pickle.dumps(S3(access(bucket))))
    found: Files = system.files(f"{bucket.uri}/{key}")
    return found


class Asked:
    """The requests of a bucket, in words."""

    def __init__(self, bucket: Bucket) -> None:
        self.bucket, self.seen = bucket, list[str]()

    def __enter__(self) -> list[str]:
        def note(method: str, path: str) -> bool:
            self.seen.append(method)
            return False

        self._fault = self.bucket.proxy.fault(Fault("lost", note))
        self._fault.__enter__()
        return self.seen

    def __exit__(self, *_: Any) -> None:
        self._fault.__exit__(None, None, None)


@pytest.mark.parametrize("key", ["lake/t", "lake/Tab elle/%20/größe", ""])
def test_files_are_written_read_and_deleted(
    bucket: Bucket, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = files(bucket, key)
    for number, name in enumerate(NAMES):
        if "//" in name:
            continue
        content = f"content {number}".encode()
        with Asked(bucket) as asked:
            mine.write(File(name, pa.py_buffer(content)))
            assert asked == ["PUT"]
            forget(monkeypatch)
            assert (bucket.files / key / name).read_bytes() == content
            assert mine.read(name) == mine.read(name) == content
            assert asked == ["PUT", "GET"], "it is kept"
            stamp = mine.stamp(name)
            assert stamp is not None
            assert stamp.size == len(content)
            assert mine.exists(name)
            mine.delete(name)
            assert asked == ["PUT", "GET", "HEAD", "HEAD", "DELETE"]
        assert not mine.exists(name)
        assert mine.stamp(name) is None
        with pytest.raises(FileNotFoundError):
            mine.read(name)
        mine.delete(name)
        with pytest.raises(FileNotFoundError), mine.open(name, 10) as opened:
            opened.source.read()


ID, TEXT = Column("id", kinds.BIGINT), Column("text", kinds.STRING)
WIDE = [ID, TEXT, *(Column(f"c{i}", kinds.STRING) for i in range(6))]
LAYOUT = Layout(tuple(WIDE))


def rows(number: int) -> pa.Table:
    texts = [uuid.uuid4().hex * 8 for _ in range(number)]
    return pa.table({"id": range(number), **{each.name: texts for each in WIDE[1:]}})


def stored(mine: Files, number: int) -> FileRows:
    content = encoded(rows(number), WIDE)
    mine.write(File("part-1.parquet", content))
    return FileRows(mine, Add("part-1.parquet", {}, content.size, 1), LAYOUT)


def test_a_small_file_is_read_by_one_request(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = files(bucket)
    written = stored(mine, 100)
    assert written.add.size < s3_files._WHOLE
    with Asked(bucket) as asked:
        assert read(written, ["id"]) == list(range(100))
        assert asked == [], "this process has written it"
        forget(monkeypatch)
        found = FileRows(files(bucket), written.add, LAYOUT)
        assert read(found, ["id"]) == list(range(100))
        assert len(read(found, ["text", "c5"])) == 100
        assert read(FileRows(files(bucket), written.add, LAYOUT), ["id"]) == list(range(100))
        assert asked == ["GET"]


def test_a_large_file_is_read_in_few_parts(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_files, "_GAP", 1 << 14)
    mine = files(bucket)
    written = stored(mine, 20_000)
    assert written.add.size > 4 * s3_files._WHOLE
    assert mine.footer("part-1.parquet") is None
    with Asked(bucket) as asked:
        assert read(written, ["id"]) == list(range(20_000))
        assert asked == ["GET"] * 2, "the footer, and a column"
        assert len(read(written, ["text", "c0", "c5"])) == 20_000
        assert asked == ["GET"] * 4, "two columns beside each other, and one that is not"
        again = FileRows(files(bucket), written.add, LAYOUT)
        assert read(again, ["id"]) == list(range(20_000))
        assert asked == ["GET"] * 5, "the footer is known"
        with again.kept_open():
            assert again.footer.num_rows == 20_000
        assert asked == ["GET"] * 5
    search = KeySearch({"id": pa.array([7])})
    assert file_may_have(written.add, search, [ID])


def read(file: FileRows, names: list[str]) -> list[Any]:
    return [
        value
        for group in range(file.footer.num_row_groups)
        for _, block in file.read(names, group)
        for value in block.column(0).to_pylist()
    ]


def test_any_part_of_a_file_can_be_read(bucket: Bucket) -> None:
    mine, content = files(bucket), bytes(range(256)) * 8192
    mine.write(File("x.bin", content))
    with mine.open("x.bin", len(content)) as opened:
        opened.fetch([(1000, 2000), (100, 300), (1_500_000, 1_500_010)])
        for start, size in (
            (0, 10),
            (100, 200),
            (150, 20),
            (1990, 20),
            (1_500_000, 10),
            (len(content) - 5, 9),
        ):
            opened.source.seek(start)
            assert opened.source.read(size) == content[start : start + size]
            assert opened.source.tell() == min(start + size, len(content))
        assert opened.source.size() == len(content)


def test_a_file_of_another_size_is_damaged(bucket: Bucket) -> None:
    mine = files(bucket)
    written = stored(mine, 20_000)
    for size in (written.add.size - 1, written.add.size + 1):
        other = FileRows(mine, Add("part-1.parquet", {}, size, 1), LAYOUT)
        with pytest.raises((pa.ArrowInvalid, OSError)):
            read(other, ["id"])


@pytest.mark.parametrize("fault", [503, 500, "lost"])
def test_requests_are_sent_again(bucket: Bucket, fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A put that was carried out unheard puts the same once more."""
    mine = files(bucket)
    with bucket.proxy.fault(Fault(fault, every, times=2)) as met:
        mine.write(File("x.bin", b"content"))
    assert met.met == 2
    forget(monkeypatch)
    with bucket.proxy.fault(Fault(fault, every, times=2)):
        assert mine.read("x.bin") == b"content"
    with bucket.proxy.fault(Fault(fault, every, times=2)):
        mine.delete("x.bin")
    assert not mine.exists("x.bin")


def test_an_error_says_what_failed_and_no_secret(bucket: Bucket) -> None:
    mine = files(bucket)
    with bucket.proxy.fault(Fault(503, every, times=100)), pytest.raises(OSError, match=r"x\.bin") as failed:
        mine.write(File("x.bin", b"content"))
    assert str(failed.value).endswith("SlowDown")
    assert "\n" not in str(failed.value)
    for given in ({}, {"token": Secret("a token")}):
        wrong = S3(access(bucket, "another secret", **given)).files(f"{bucket.uri}/lake/t")
        for do in (lambda: wrong.read("x.bin"), lambda: wrong.write(File("x.bin", b"c"))):  # noqa: B023
            with pytest.raises(OSError if given else PermissionError) as refused:
                do()
            assert "another secret" not in str(refused.value)
            assert "a token" not in str(refused.value)


def test_a_large_file_is_put_by_one_request(bucket: Bucket) -> None:
    """So nothing is left of a task that ends meanwhile."""
    mine, content = files(bucket), b"x" * (24 << 20)
    with Asked(bucket) as asked:
        mine.write(File("x.bin", content))
    assert asked == ["PUT"]
    assert (bucket.files / "lake/t/x.bin").stat().st_size == len(content)


def test_the_environment_does_not_count(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {
        **{"AWS_ACCESS_KEY_ID": "other", "AWS_SECRET_ACCESS_KEY": "other", "AWS_SESSION_TOKEN": "other"},
        **{"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_REGION": "other", "AWS_SKIP_SIGNATURE": "true"},
        **{
            "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true",
            "AWS_ALLOW_HTTP": "false",
            "AWS_REQUEST_PAYER": "true",
        },
    }
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    mine = files(bucket)
    mine.write(File("x.bin", b"content"))
    assert (bucket.files / "lake/t/x.bin").read_bytes() == b"content"


def test_what_is_kept_has_a_limit() -> None:
    kept: Recent[str] = Recent(10)
    for name, size in (("a", 4), ("b", 4), ("a", 3)):
        kept.keep(name, f"{name}{size}", size)
    assert kept.get("a") == "a3"
    kept.keep("c", "c", 4)  # the one that was used longest ago goes
    assert [kept.get(each) for each in "abc"] == ["a3", None, "c"]
    kept.forget("a")
    kept.forget("never")
    kept.keep("d", "d", 6)
    assert [kept.get(each) for each in "acd"] == [None, "c", "d"]
    kept.keep("e", "e", 11)
    assert [kept.get(each) for each in "cde"] == [None, None, None]


def test_footers_are_those_of_the_files(bucket: Bucket) -> None:
    mine = files(bucket)
    written = stored(mine, 10)
    footer = pq.ParquetFile(bucket.files / "lake/t/part-1.parquet").metadata
    assert written.footer.num_rows == footer.num_rows == 10
    assert files(bucket, "lake/u").footer("part-1.parquet") is None
    assert mine.footer("part-1.parquet") is not None


def test_puts_are_whole_or_absent(bucket: Bucket) -> None:
    """Of a put that never arrives, nothing is there."""
    mine = files(bucket)
    with bucket.proxy.fault(Fault(503, puts, times=100)), pytest.raises(OSError):  # noqa: PT011
        mine.write(File("x.bin", b"x" * (9 << 20)))
    assert not mine.exists("x.bin")
    assert not list(bucket.files.rglob("*.bin"))
