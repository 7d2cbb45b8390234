"""What is in the Secrets that a manifest names is in no object, log line, report or message.

What a Kafka client logs and plans is in driver/read/test_kafka_login, which has a broker.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from lakemirror.api import CdcPipeline
from lakemirror.cli.main import main
from lakemirror.driver.read.base import Lag
from lakemirror.driver.read.login import client_options
from lakemirror.driver.read.registry import IDS, Reference, RegistryClient
from lakemirror.driver.read.secrets import login_at, read_secret
from lakemirror.driver.runtime.announcer import Announcer
from lakemirror.pod import __main__ as pod
from lakemirror.pod.settings import secret_folders
from tests.controller.builders import document
from tests.pod.test_main import ENVIRONMENT
from tests.support.ports import free_port
from tests.support.registry import serving

pytestmark = pytest.mark.guarantee(
    "No object, log line or report has a password or key from a Secret; a manifest that contains one is "
    "refused"
)

SECRETS: dict[str, dict[str, str]] = {
    "kafka-auth": {"username": "k-user", "password": "k-Kn0ck\n", "tls.crt": "k-crt", "tls.key": "k-Private"},
    "registry-auth": {"username": "r-user", "password": "r-Kn0ck\n"},
    "mirror-writer": {"username": "w-user", "password": "w-Kn0ck\n"},
    "shop-reader": {"username": "v-user", "password": "v-Kn0ck\n"},
    "s3-keys": {"AWS_ACCESS_KEY_ID": "s-user", "AWS_SECRET_ACCESS_KEY": "s-Kn0ck"},
}
NAMES_OF_USERS = ("username", "AWS_ACCESS_KEY_ID", "tls.crt")
"""Keys whose values a message may have."""


def all_values() -> Iterator[tuple[str, str]]:
    for keys in SECRETS.values():
        yield from ((key, value.strip()) for key, value in keys.items())


VALUES = [value for _, value in all_values()]
PRIVATE = [value for key, value in all_values() if key not in NAMES_OF_USERS]


def manifest(registry: str = "http://registry:8081", backend: str = "native") -> dict[str, Any]:
    """A pipeline that names a Secret in each way that there is."""
    database = "jdbc:postgresql://db:5432/shop"
    security = {"protocol": "SASL_SSL", "mechanism": "SCRAM-SHA-512", "secret": "kafka-auth"}
    keys = [{"secretRef": {"name": "s3-keys"}}]
    return document(
        source={"kafka": {"security": security}},
        envelope={"encoding": "avro", "schemaRegistry": {"url": registry, "secret": "registry-auth"}},
        target={"path": None, "table": "m.{table}", "jdbc": {"url": database, "secret": "mirror-writer"}},
        verify={"jdbc": {"url": database, "secret": "shop-reader"}, "schedule": "@daily"},
        spark={
            "backend": backend,
            "conf": {"spark.hadoop.fs.s3a.secret.key": "${env.AWS_SECRET_ACCESS_KEY}"},
            "podTemplate": {"spec": {"containers": [{"name": "driver", "envFrom": keys}]}},
        },
    )


@pytest.fixture(autouse=True)
def keys_of_s3(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SECRETS["s3-keys"].items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def mounted(tmp_path: Path) -> Path:
    """The Secrets as the pod has them."""
    for name, keys in SECRETS.items():
        (tmp_path / "secrets" / name).mkdir(parents=True)
        for key, value in keys.items():
            (tmp_path / "secrets" / name / key).write_text(value)
    return tmp_path / "secrets"


@pytest.mark.parametrize("backend", ["native", "kubeflow", "apache"])
def test_objects_have_names_of_secrets_and_none_of_their_values(backend: str, tmp_path: Path) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text(yaml.safe_dump(manifest(backend=backend)))
    for command in ("validate", "render"):
        done = CliRunner().invoke(main, [command, "-f", str(file)], catch_exceptions=False)
        assert done.exit_code == 0, done.stderr
        said = done.stdout + done.stderr
        assert [value for value in VALUES if value in said] == []
    assert [name for name in SECRETS if name not in done.stdout] == []


Attempt = Callable[[CdcPipeline, Mapping[str, Path], Announcer], object]


def asks_registry(of: CdcPipeline, secrets: Mapping[str, Path], announcer: Announcer) -> object:
    registry = of.spec.envelope.schema_registry
    assert registry is not None
    return RegistryClient(registry, secrets, announcer.source).schema(Reference(IDS, b"\0\0\0\1"))


def logs_in_to_kafka(of: CdcPipeline, secrets: Mapping[str, Path], announcer: Announcer) -> object:
    kafka = of.spec.source.kafka
    assert kafka is not None
    return client_options(kafka, read_secret("kafka-auth", secrets))


def logs_in_to_database(of: CdcPipeline, secrets: Mapping[str, Path], announcer: Announcer) -> object:
    jdbc = of.spec.target.jdbc
    assert jdbc is not None
    login = login_at("spec.target.jdbc", jdbc.url, jdbc.secret, secrets)
    announcer.warn(f"{login} {login!r}")
    raise ConnectionError(f"{[login]} has refused the login")


FAILURES: dict[str, tuple[Attempt, str, str]] = {
    "registry away": (asks_registry, "", "Connection refused"),
    "registry refuses": (asks_registry, "", "401 Unauthorized"),
    "Kafka without a user": (logs_in_to_kafka, "kafka-auth/username", "key username of secret kafka-auth"),
    "Kafka with half a certificate": (logs_in_to_kafka, "kafka-auth/tls.crt", "tls.key and no tls.crt"),
    "database without a user": (logs_in_to_database, "mirror-writer/username", "has no username"),
    "database refuses": (logs_in_to_database, "", "has refused the login"),
}
"""What a driver does with a Secret, the key that the Secret lacks, and what is said then."""


@pytest.mark.parametrize("name", FAILURES)
def test_what_a_driver_says_has_no_password_or_key(
    name: str,
    mounted: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    attempt, missing, expected = FAILURES[name]
    if missing:
        (mounted / missing).unlink()
    written: list[object] = []

    class Api:
        def request(self, method: str, path: str, body: object) -> None:
            written.append(body)

    def run(
        of: CdcPipeline, *, secrets: Mapping[str, Path], on_event: Any, sinks: Any, **_: object
    ) -> object:
        announcer = Announcer(of.name, lambda event: (written.append(repr(event)), on_event(event)))
        try:
            return attempt(of, secrets, announcer)
        except Exception as error:
            announcer.progress.failed(error)
            raise
        finally:
            report = announcer.progress.report("Failed", Lag(None, False), source=announcer.source.said)
            for sink in sinks:
                sink.publish(report)

    log = tmp_path / "termination-log"
    for variable, value in ENVIRONMENT.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setattr(pod, "TERMINATION_LOG", log)
    monkeypatch.setattr(pod, "Api", Api)
    monkeypatch.setattr(pod, "secret_folders", lambda of: secret_folders(of, mounted))
    monkeypatch.setattr(pod.runner, "run", run)
    with serving() as registry, caplog.at_level(logging.DEBUG):
        registry.login = ("somebody", "else")
        address = f"http://127.0.0.1:{free_port()}" if name == "registry away" else registry.url
        monkeypatch.setattr(pod, "pipeline", lambda _: CdcPipeline.from_dict(manifest(address)))
        assert pod.main([]) == 1
    reported = json.dumps(written)
    assert expected in log.read_text()
    assert expected in reported
    said = log.read_text() + reported + caplog.text
    assert [value for value in PRIVATE if value in said] == []


def test_the_pod_has_a_folder_for_each_secret_that_the_driver_reads() -> None:
    read = CdcPipeline.from_dict(manifest()).spec.secrets().values()
    assert {*read} == SECRETS.keys() - {"s3-keys"}, "which are variables of the environment"
