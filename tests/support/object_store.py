"""An S3 server for tests: versitygw on a folder of this machine. `scripts/object-store` builds it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.ports import free_port
from tests.support.s3_proxy import Proxy

ACCESS_KEY, SECRET_KEY = "lake", "lake-secret"
_VARIABLE = "LAKEMIRROR_TESTS_SECRET_KEY"
os.environ[_VARIABLE] = SECRET_KEY  # for the JVMs of all drivers, to which manifests name it
_START_SECONDS = 120.0


@dataclass(frozen=True)
class Bucket:
    """A bucket with an endpoint of its own, behind a proxy.

    ``files`` is where its objects stand, and ``etags`` where their ETags do: each in OBJECT/meta/etag.
    """

    name: str
    files: Path
    etags: Path
    proxy: Proxy

    @property
    def uri(self) -> str:
        return f"s3a://{self.name}"

    def hadoop(self, secret_key: str = SECRET_KEY) -> dict[str, str]:
        """Hadoop's settings with which a client finds the bucket. It gives up sooner than by default."""
        return {
            f"fs.s3a.bucket.{self.name}.{name}": value
            for name, value in {
                "endpoint": f"http://127.0.0.1:{self.proxy.port}",
                "endpoint.region": "us-east-1",
                "path.style.access": "true",
                "connection.ssl.enabled": "false",
                "aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
                "access.key": ACCESS_KEY,
                "secret.key": secret_key,
                "attempts.maximum": "2",
                "retry.limit": "2",
                "retry.throttle.limit": "2",
                "retry.throttle.interval": "50ms",
            }.items()
        }

    def conf(self) -> dict[str, str]:
        """The same for ``spec.spark.conf``, which refers to the secret key."""
        return {f"spark.hadoop.{name}": value for name, value in self.hadoop(f"${{env.{_VARIABLE}}}").items()}

    def exists(self, key: str) -> bool:
        return (self.files / key).exists()


class Store:
    """A running server."""

    def __init__(self, folder: Path, port: int) -> None:
        self._folder, self._port = folder, port
        self._proxies: list[Proxy] = []

    def bucket(self, name: str) -> Bucket:
        """A new bucket, with a proxy of its own."""
        files = self._folder / name
        files.mkdir()
        proxy = Proxy(self._port)
        self._proxies.append(proxy)
        return Bucket(name, files, self._folder.parent / "sidecar" / name, proxy)

    def close(self) -> None:
        for proxy in self._proxies:
            proxy.close()


def found() -> str | None:
    """The server's program, if it is there."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    built = cache / "lakemirror" / "object-store" / "versitygw"
    named = os.environ.get("LAKEMIRROR_OBJECT_STORE") or shutil.which("versitygw")
    return named or (str(built) if built.is_file() else None)


def program() -> str:
    """The server's program; skips the test where it is not there."""
    there = found()
    if there is None:
        pytest.skip("versitygw is not there: scripts/object-store builds it")
    return there


@contextmanager
def start_store(folder: Path) -> Iterator[Store]:
    """A server on files in a folder, until the end of the context."""
    files, sidecar, log = folder / "files", folder / "sidecar", folder / "log"
    files.mkdir(parents=True)
    sidecar.mkdir()
    port = free_port()
    keys = ["--access", ACCESS_KEY, "--secret", SECRET_KEY]
    command = [program(), "--port", f"127.0.0.1:{port}", "--quiet", "--keep-alive", *keys]
    with open(log, "wb") as output:
        running = subprocess.Popen(
            [*command, "posix", "--sidecar", str(sidecar), str(files)], stdout=output, stderr=output
        )
    store = Store(files, port)
    try:
        _wait_for(port, running, log)
        yield store
    finally:
        store.close()
        running.terminate()
        running.wait(timeout=30)


def _wait_for(port: int, running: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + _START_SECONDS
    while running.poll() is None and time.monotonic() < until:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise AssertionError(f"the object store does not start: {log.read_text(errors='replace')[-2000:]}")
