"""Kafka Connect with Debezium's PostgreSQL connector for tests: one standalone worker, from Maven Central."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import requests

from tests.support import apicurio, maven
from tests.support.kafka_broker import JVM, VERSION, Broker, quiet
from tests.support.ports import free_port

DEBEZIUM = "3.7.0.Final"
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>io.lakemirror</groupId><artifactId>test-{name}</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>{dependencies}</dependencies>
</project>
"""
_DEPENDENCY = "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"
_WORKER = [
    ("org.apache.kafka", "connect-runtime", VERSION),
    ("org.apache.kafka", "connect-json", VERSION),
    ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.4"),
]
_CONNECTOR = [("io.debezium", "debezium-connector-postgres", DEBEZIUM)]
_CONVERTER = [("io.apicurio", "apicurio-registry-utils-converter", apicurio.VERSION)]
_JSON = "org.apache.kafka.connect.json.JsonConverter"
_START_SECONDS = 120


class Connect:
    """A worker with one connector, ``name``, or without any. It may be killed and started again: then it
    sends once more what it had sent since it last wrote down how far it was, as Kafka Connect does. It has
    Apicurio's converter, which writes Avro, if that is wanted.
    """

    def __init__(
        self,
        folder: Path,
        broker: Broker,
        name: str,
        connector: Mapping[str, object],
        *,
        avro: bool = False,
    ) -> None:
        self._folder, self._name = folder, name
        worker = maven.jars(f"connect-{VERSION}", lambda target: _fetch(target, "connect", _WORKER))
        plugin = maven.jars(
            f"debezium-postgres-{DEBEZIUM}", lambda target: _fetch(target, "debezium", _CONNECTOR)
        )
        plugins = folder / "plugins"
        plugins.mkdir()
        (plugins / "debezium").symlink_to(plugin)
        if avro:
            converter = maven.jars(
                f"apicurio-converter-{apicurio.VERSION}",
                lambda target: _fetch(target, "converter", _CONVERTER),
            )
            (plugins / "apicurio").symlink_to(converter)
        self.url = f"http://127.0.0.1:{free_port()}"
        settings = {
            "bootstrap.servers": broker.bootstrap,
            "listeners": self.url,
            "plugin.path": plugins,
            # The connector tells its classes; the converter's have to be looked for, which takes longer.
            "plugin.discovery": "hybrid_warn" if avro else "service_load",
            "key.converter": _JSON,
            "value.converter": _JSON,
            "offset.storage.file.filename": folder / "offsets",
            "offset.flush.interval.ms": 1000,
        }
        files: dict[str, Mapping[str, object]] = {"worker.properties": settings}
        if connector:
            files["connector.properties"] = {"name": name, **connector}
        for file, values in files.items():
            (folder / file).write_text("".join(f"{key}={value}\n" for key, value in values.items()))
        log4j = f"-Dlog4j2.configurationFile={quiet(folder)}"
        main = "org.apache.kafka.connect.cli.ConnectStandalone"
        self._command = [*JVM, log4j, "-cp", f"{worker}/*", main, *(str(folder / file) for file in files)]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        """The end of what it has logged."""
        return (self._folder / "connect.log").read_text(errors="replace")[-4000:]

    def start(self) -> None:
        """Start the worker; `until_running` waits for its connector."""
        with open(self._folder / "connect.log", "ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, cwd=self._folder)

    def until_up(self) -> None:
        """Wait until the worker answers."""
        self._wait(self._answers, "Connect does not answer")

    def _answers(self) -> bool:
        try:
            return requests.get(f"{self.url}/connectors", timeout=5).ok
        except requests.RequestException:
            return False

    def until_running(self) -> None:
        """Wait until the connector has a task that runs."""
        self._wait(self._runs, "the connector does not run")

    def _wait(self, is_so: Callable[[], bool], otherwise: str) -> None:
        until = time.monotonic() + _START_SECONDS
        while not is_so():
            assert self._process is not None
            assert self._process.poll() is None, f"Connect ended:\n{self.log}"
            assert time.monotonic() < until, f"{otherwise}:\n{self.log}"
            time.sleep(0.5)

    def _runs(self) -> bool:
        try:
            said = requests.get(f"{self.url}/connectors/{self._name}/status", timeout=5)
        except requests.RequestException:
            return False
        tasks = said.json().get("tasks", []) if said.ok else []
        failed = [task["trace"] for task in tasks if task["state"] == "FAILED"]
        assert not failed, failed
        return [task["state"] for task in tasks] == ["RUNNING"]

    def restart_failed(self) -> bool:
        """Have a task that has failed started again; whether there was one."""
        try:
            said = requests.get(f"{self.url}/connectors/{self._name}/status", timeout=5)
            tasks = said.json().get("tasks", []) if said.ok else []
            if not any(task["state"] == "FAILED" for task in tasks):
                return False
            wanted = {"includeTasks": "true", "onlyFailed": "true"}
            return requests.post(f"{self.url}/connectors/{self._name}/restart", params=wanted, timeout=30).ok
        except requests.RequestException:
            return False

    def kill(self) -> None:
        """SIGKILL: nothing is flushed, and no goodbye said."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(30)
            self._process = None


@contextmanager
def start_connect(
    folder: Path, broker: Broker, name: str, connector: Mapping[str, object], *, avro: bool = False
) -> Iterator[Connect]:
    """A worker until the end of the block, which is being started; skips where none can be had."""
    connect = Connect(folder, broker, name, connector, avro=avro)
    try:
        connect.start()
        yield connect
    finally:
        connect.kill()


def _fetch(folder: Path, name: str, dependencies: list[tuple[str, str, str]]) -> list[str]:
    listed = "".join(_DEPENDENCY.format(*each) for each in dependencies)
    (folder / "pom.xml").write_text(_POM.format(name=name, dependencies=listed))
    copy = f"{maven.COPY}:copy-dependencies"
    return ["-f", str(folder / "pom.xml"), copy, "-DincludeScope=runtime", f"-DoutputDirectory={folder}"]
