"""Addresses of IPv6 stand in brackets wherever a manifest has an address, and are taken for no login."""

from __future__ import annotations

import socket
import urllib.request
from typing import Any

import pytest

from lakemirror.api.errors import ManifestError
from lakemirror.api.logins import in_jdbc, in_setting, redacted
from lakemirror.api.supported import not_supported
from lakemirror.driver.runtime.metrics import Metrics
from tests.controller.builders import spec

pytestmark = pytest.mark.guarantee("Addresses of IPv6 work wherever there is an address")

KAFKA: dict[str, Any] = {"topics": ["a"], "topicPattern": None}
JDBC = "jdbc:postgresql://[fd00::1]:5432/shop"


@pytest.mark.parametrize(
    "change",
    [
        {"source": {"kafka": {**KAFKA, "bootstrapServers": "[fd00::1]:9092"}}},
        {"source": {"kafka": {**KAFKA, "bootstrapServers": "kafka:9092,[::ffff:10.0.0.1]:9092"}}},
        {
            "envelope": {
                "encoding": "avro",
                "schemaRegistry": {"url": "http://[fd00::1]:8081/apis"},
            }
        },
        {"verify": {"jdbc": {"url": JDBC}}},
        {
            "target": {
                "path": None,
                "table": "mirrors.{table}",
                "jdbc": {"url": "jdbc:mariadb://[::1]:3306/a"},
            }
        },
        {"checkpoint": "hdfs://[fd00::1]:8020/checkpoints/a@b"},
    ],
)
def test_ipv6_is_taken(change: dict[str, Any]) -> None:
    assert not_supported(spec(**change)) == []


@pytest.mark.parametrize("servers", ["fd00::1:9092", "[fd00::1]", "[kafka]:9092", "[fd00::1]9092", "[]:9092"])
def test_what_is_no_address_is_refused(servers: str) -> None:
    with pytest.raises(ManifestError, match="host:port"):
        spec(source={"kafka": {**KAFKA, "bootstrapServers": servers}})


def test_an_address_is_no_login() -> None:
    assert in_jdbc(JDBC) is None
    assert not in_setting("http://[fd00::1]:9000/a@b")
    assert redacted("http://[fd00::1]:9000/a@b") == "http://[fd00::1]:9000/a@b"
    assert in_setting("http://user:secret@[fd00::1]:9000")
    assert "secret" not in redacted("http://user:secret@[fd00::1]:9000/a")


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_metrics_are_served_on_all_addresses(host: str) -> None:
    if host == "[::1]" and not socket.has_dualstack_ipv6():
        pytest.skip("this host has no IPv6")
    with Metrics(0) as metrics, urllib.request.urlopen(f"http://{host}:{metrics.port}/metrics") as answer:
        assert answer.status == 200
