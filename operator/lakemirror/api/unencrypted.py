"""Logins that a manifest sends over connections without encryption. They are allowed, and reported."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

from lakemirror.api.source import KafkaSecurity
from lakemirror.api.spec import PipelineSpec

ADVICE: Final = ": anyone on the way can read the login, and what is sent"
"""How all of the messages end."""
_HERE: Final = ("localhost", "127.0.0.1", "::1")


def unencrypted_logins(spec: PipelineSpec) -> list[tuple[str, str]]:
    """Return the fields of a manifest that send a login without encryption, each with a message.

    Connections to this machine do not count.
    """
    return list(_found(spec))


def _found(spec: PipelineSpec) -> Iterator[tuple[str, str]]:
    kafka, registry = spec.source.kafka, spec.envelope.schema_registry
    if kafka is not None and kafka.security is not None:
        yield from _of_kafka(kafka.bootstrap_servers, kafka.security)
    if registry is not None and registry.secret is not None and _is_plain(registry.url):
        yield (
            "spec.envelope.schemaRegistry.url",
            f"secret {registry.secret} is sent without encryption, use https{ADVICE}",
        )


def _of_kafka(servers: str, security: KafkaSecurity) -> Iterator[tuple[str, str]]:
    at = "spec.source.kafka.security"
    here = all(_is_here(f"//{server.strip()}") for server in servers.split(","))
    if security.protocol == "SASL_PLAINTEXT" and not here:
        yield f"{at}.protocol", f"SASL_PLAINTEXT logs in without encryption, use SASL_SSL{ADVICE}"
    if security.oauth is not None and _is_plain(security.oauth.token_endpoint_url):
        yield f"{at}.oauth.tokenEndpointUrl", f"the login is sent without encryption, use https{ADVICE}"


def _is_plain(url: str) -> bool:
    return url.lower().startswith("http://") and not _is_here(url)


def _is_here(url: str) -> bool:
    try:
        return urlsplit(url).hostname in _HERE
    except ValueError:
        return False
