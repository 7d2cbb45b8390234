"""A login that is sent without encryption is reported with its field, and only such a one."""

from __future__ import annotations

from typing import Any

import pytest

from lakemirror.api import CdcPipeline
from lakemirror.api.unencrypted import ADVICE, unencrypted_logins
from tests.api.manifests import changed

TOKEN = "spec.source.kafka.security.oauth.tokenEndpointUrl"
PROTOCOL = "spec.source.kafka.security.protocol"
REGISTRY = "spec.envelope.schemaRegistry.url"


def kafka(protocol: str, mechanism: str = "PLAIN", token: str | None = None, servers: str = "k:9092") -> Any:
    oauth = {} if token is None else {"oauth": {"tokenEndpointUrl": token}}
    security = {"protocol": protocol, "mechanism": mechanism, "secret": "kafka", **oauth}
    return {"source": {"kafka": {"bootstrapServers": servers, "topics": ["a.b.c"], "security": security}}}


def registry(url: str, **more: Any) -> Any:
    return {"envelope": {"encoding": "avro", "schemaRegistry": {"url": url, **more}}}


@pytest.mark.guarantee("A login that is sent without encryption is reported, with the field that says so")
@pytest.mark.parametrize(
    ("spec", "fields"),
    [
        ({}, []),
        (kafka("SASL_SSL"), []),
        (kafka("SASL_PLAINTEXT"), [PROTOCOL]),
        (kafka("SASL_PLAINTEXT", "SCRAM-SHA-512"), [PROTOCOL]),
        (kafka("SASL_PLAINTEXT", servers="localhost:9092,127.0.0.1:9093,[::1]:9094"), []),
        (kafka("SASL_PLAINTEXT", servers="localhost:9092,kafka:9092"), [PROTOCOL]),
        (kafka("SASL_SSL", "OAUTHBEARER", "https://idp/token"), []),
        (kafka("SASL_SSL", "OAUTHBEARER", "http://idp/token"), [TOKEN]),
        (kafka("SASL_PLAINTEXT", "OAUTHBEARER", "http://idp/token"), [PROTOCOL, TOKEN]),
        (registry("http://registry:8081"), []),
        (registry("http://registry:8081", secret="login"), [REGISTRY]),
        (registry("https://registry:8081", secret="login"), []),
        (registry("http://localhost:8081", secret="login"), []),
        (registry("http://localhost.example.org:8081", secret="login"), [REGISTRY]),
    ],
)
def test_logins_without_encryption(spec: dict[str, Any], fields: list[str]) -> None:
    found = unencrypted_logins(CdcPipeline.from_dict(changed(**spec)).spec)
    assert [path for path, _ in found] == fields
    assert all(message.endswith(ADVICE) for _, message in found)
