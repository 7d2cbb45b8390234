"""A real schema registry for tests: Apicurio's, in memory, from Maven Central, with Confluent's API."""

from __future__ import annotations

import subprocess
import tarfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import requests

from tests.support import maven
from tests.support.ports import free_port

VERSION = "2.6.13.Final"
_ARTIFACT = f"io.apicurio:apicurio-registry-app:{VERSION}:tar.gz:all"
_START_SECONDS = 120


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """The address of a registry that ends with the block; skips where none can be started."""
    jars = maven.jars(f"apicurio-{VERSION}", _fetch, _unpack)
    port = free_port()
    quarkus = {"http.host": "127.0.0.1", "http.port": port, "log.level": "WARN"}
    options = [f"-Dquarkus.{name}={value}" for name, value in quarkus.items()]
    classes = f"{jars}/*:{jars}/lib/*"
    command = ["java", "-Xmx384m", *options, "-cp", classes, "io.quarkus.runner.GeneratedMain"]
    with open(folder / "registry.log", "wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
    url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
    try:
        _wait_until_up(url, process, folder / "registry.log")
        yield url
    finally:
        process.kill()
        process.wait(30)


def register(url: str, subject: str, schema: Mapping[str, object]) -> int:
    """Register a schema; its id."""
    answer = requests.post(f"{url}/subjects/{subject}/versions", json=schema, timeout=30)
    answer.raise_for_status()
    return int(answer.json()["id"])


def _wait_until_up(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + _START_SECONDS
    while time.monotonic() < until and process.poll() is None:
        try:
            if requests.get(f"{url}/subjects", timeout=5).ok:
                return
        except requests.RequestException:
            time.sleep(0.5)
    raise AssertionError(f"the registry did not start: {log.read_text()[-2000:]}")


def _fetch(folder: Path) -> list[str]:
    return [f"{maven.COPY}:copy", f"-Dartifact={_ARTIFACT}", f"-DoutputDirectory={folder}"]


def _unpack(folder: Path) -> None:
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    archive.unlink()
