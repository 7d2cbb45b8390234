"""At most one driver on a checkpoint: on local paths by a lock, elsewhere by a lease."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import lakemirror.driver
from lakemirror.driver.checkpoint.owner import LEASE_SECONDS, Owner
from lakemirror.driver.checkpoint.storage import Entry, LocalStorage
from lakemirror.driver.errors import CheckpointInUse

pytestmark = pytest.mark.guarantee("Only one driver runs")


class RemoteStorage:
    """A local folder seen as a store without locks, as S3 is."""

    def __init__(self, path: Path) -> None:
        self._local = LocalStorage(path)
        self.uri = "s3a://bucket/checkpoint"

    def exists(self, name: str) -> bool:
        return self._local.exists(name)

    def is_folder(self, name: str) -> bool:
        return self._local.is_folder(name)

    def read_text(self, name: str) -> str:
        return self._local.read_text(name)

    def write_text_new(self, name: str, text: str) -> bool:
        return self._local.write_text_new(name, text)

    def write_text(self, name: str, text: str) -> None:
        self._local.write_text(name, text)

    def list(self, prefix: str = "") -> list[Entry]:
        return self._local.list(prefix)

    def delete(self, name: str) -> None:
        self._local.delete(name)

    def sha256(self, name: str) -> str:
        return self._local.sha256(name)


HOLD = """
import sys, time
from lakemirror.driver.checkpoint.owner import Owner
from lakemirror.driver.checkpoint.storage import LocalStorage
owner = Owner(LocalStorage(sys.argv[1]), run_id="the-other").acquire()
print("owned", flush=True)
time.sleep(600)
"""


def hold_elsewhere(path: Path) -> subprocess.Popen[str]:
    """Another process that owns the checkpoint."""
    sources = str(Path(lakemirror.driver.__file__).parents[2])
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": sources},
    )
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "owned"
    return process


def newest(path: Path) -> dict[str, object]:
    record = max((path / "owner").glob("*.json"), key=lambda file: int(file.stem))
    return {"incarnation": int(record.stem), **json.loads(record.read_text())}


def test_a_live_driver_is_named_at_once(tmp_path: Path) -> None:
    other = hold_elsewhere(tmp_path)
    try:
        began = time.monotonic()
        with pytest.raises(CheckpointInUse) as refused:
            Owner(LocalStorage(tmp_path)).acquire()
        assert time.monotonic() - began < LEASE_SECONDS / 2, "its lease is not waited for"
        for part in (str(other.pid), os.uname().nodename, "the-other", "since 20", "Stop that driver"):
            assert part in str(refused.value)
    finally:
        other.kill()
        other.wait()


def test_after_a_kill_the_next_start_goes_on_at_once(tmp_path: Path) -> None:
    other = hold_elsewhere(tmp_path)
    other.send_signal(signal.SIGKILL)
    other.wait()
    began = time.monotonic()
    with Owner(LocalStorage(tmp_path)) as owner:
        assert owner.incarnation == 2
        owner.check()
    assert time.monotonic() - began < LEASE_SECONDS / 2, "its lease is not waited for"


def test_the_lock_does_not_depend_on_the_process(tmp_path: Path) -> None:
    with Owner(LocalStorage(tmp_path)), pytest.raises(CheckpointInUse):
        Owner(LocalStorage(tmp_path)).acquire()


def test_incarnations_grow_and_old_records_go(tmp_path: Path) -> None:
    for expected in range(1, 8):
        with Owner(LocalStorage(tmp_path)) as owner:
            assert owner.incarnation == expected
    assert sorted(file.stem for file in (tmp_path / "owner").glob("*.json")) == ["5", "6", "7"]
    assert newest(tmp_path)["releasedAt"] is not None


@pytest.mark.guarantee(
    "A target that cannot be opened holds its table, tombstones that cannot be read stay, and a checkpoint "
    "that cannot be marked as released is given back; nothing else is affected"
)
@pytest.mark.parametrize("fails", [OSError(errno.ENOSPC, "No space left on device"), RuntimeError("away")])
def test_a_release_that_fails_gives_the_lock_back(
    fails: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(storage: LocalStorage, name: str, text: str) -> None:
        raise fails

    with monkeypatch.context() as broken, Owner(LocalStorage(tmp_path)):
        broken.setattr(LocalStorage, "write_text", full)
    assert "could not be marked as released" in caplog.text
    with Owner(LocalStorage(tmp_path)) as again:
        assert again.incarnation == 2


@pytest.mark.parametrize("remote", [False, True])
def test_of_many_at_once_one_gets_it(tmp_path: Path, remote: bool) -> None:
    barrier = threading.Barrier(8)

    def start(_: int) -> Owner | None:
        owner = Owner(RemoteStorage(tmp_path) if remote else LocalStorage(tmp_path), lease_seconds=3)
        barrier.wait()
        try:
            return owner.acquire()
        except CheckpointInUse:
            return None

    with ThreadPoolExecutor(8) as pool:
        owners = [owner for owner in pool.map(start, range(8)) if owner is not None]
    assert len(owners) == 1
    owners[0].check()
    owners[0].release()


def test_remote_a_renewed_record_is_respected(tmp_path: Path) -> None:
    with Owner(RemoteStorage(tmp_path), lease_seconds=3) as owner:
        with pytest.raises(CheckpointInUse, match=r"s3a://bucket/checkpoint is in use by process"):
            Owner(RemoteStorage(tmp_path), lease_seconds=3).acquire()
        owner.check()
        assert newest(tmp_path)["renewedAt"] != newest(tmp_path)["acquiredAt"]


def test_remote_a_dead_one_is_followed_after_its_lease_and_told_so(tmp_path: Path) -> None:
    dead = Owner(RemoteStorage(tmp_path), lease_seconds=0.6).acquire()
    dead._stop.set()  # it lives on, but renews no more: paused, or cut off
    began = time.monotonic()
    with Owner(RemoteStorage(tmp_path), lease_seconds=0.6) as owner:
        assert 0.5 < time.monotonic() - began < LEASE_SECONDS / 2
        assert owner.incarnation == 2
        with pytest.raises(CheckpointInUse):
            dead.check()


def test_remote_a_released_checkpoint_is_free_at_once(tmp_path: Path) -> None:
    with Owner(RemoteStorage(tmp_path)):
        pass
    began = time.monotonic()
    with Owner(RemoteStorage(tmp_path)) as owner:
        assert owner.incarnation == 2
    assert time.monotonic() - began < LEASE_SECONDS / 2, "its lease is not waited for"


def test_local_path_of_another_host_is_watched_for_its_lease(tmp_path: Path) -> None:
    with Owner(LocalStorage(tmp_path), lease_seconds=0.5):
        record = newest(tmp_path)
    document = {**record, "host": "elsewhere", "releasedAt": None}
    (tmp_path / "owner" / "1.json").write_text(json.dumps(document))
    began = time.monotonic()
    with Owner(LocalStorage(tmp_path), lease_seconds=0.5) as owner:
        assert owner.incarnation == 2
    assert time.monotonic() - began >= 0.5


def test_a_half_written_record_counts_as_taken(tmp_path: Path) -> None:
    (tmp_path / "owner").mkdir()
    (tmp_path / "owner" / "3.json").write_text("{")
    with Owner(RemoteStorage(tmp_path), lease_seconds=0.3) as owner:
        assert owner.incarnation == 4


def test_a_jvm_that_still_holds_the_checkpoint_is_waited_for(spark: SparkSession, tmp_path: Path) -> None:
    # A JVM of its own kind: a Java process that keeps the lock for a while after its parent is gone.
    source = tmp_path / "Hold.java"
    source.write_text(
        "import java.io.*; public class Hold { public static void main(String[] a) throws Exception {"
        'new RandomAccessFile(a[0], "rw").getChannel().lock(); System.out.println("held");'
        "System.out.flush(); System.in.read(); } }"
    )
    (tmp_path / "owner").mkdir()
    lock = str(tmp_path / "owner" / ".jvm-lock")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(["java", str(source), lock], text=True, **pipes) as java:  # type: ignore[call-overload]
        if java.stdout.readline().strip() != "held":
            java.stdin.close()
            pytest.skip("this Java cannot run a source file: it is a runtime without compiler")
        over = threading.Event()

        def end() -> None:
            over.set()
            java.stdin.close()

        threading.Timer(1.0, end).start()
        with Owner(LocalStorage(tmp_path)) as owner:
            owner.hold_jvm(spark)
            assert over.is_set()
