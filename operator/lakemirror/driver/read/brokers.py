"""Why Kafka brokers do not answer: their client says no more than that it waited in vain."""

from __future__ import annotations

import socket

from lakemirror.driver.errors import cause_of

_CONNECT_SECONDS = 5.0
_IN_VAIN = ("TimeoutException", "ConfigException", "KafkaException", "DisconnectException")
"""Errors of the client that do not say what is wrong with the connection."""


def why_away(bootstrap_servers: str, error: Exception) -> str:
    """What keeps the client from the brokers, in one line: its own ``error`` where that tells, such as a
    failed authentication, and else what connecting to each of the servers gives.
    """
    said = cause_of(error)
    if not said.startswith(_IN_VAIN):
        return f"{bootstrap_servers}: {said}"
    tried = {server.strip(): _connecting(server.strip()) for server in bootstrap_servers.split(",")}
    refused = [f"{server}: {problem}" for server, problem in tried.items() if problem is not None]
    if len(refused) == len(tried):
        return ", ".join(refused)
    open_ones = ", ".join(server for server, problem in tried.items() if problem is None)
    return (
        f"{open_ones} accepts connections, but no broker answers ({said}): check "
        "spec.source.kafka.security.protocol, and that the brokers' advertised listeners can be reached "
        "from the driver"
    )


def _connecting(server: str) -> str | None:
    """Why no connection to ``server`` (host:port) can be made; None if one can."""
    host, _, port = server.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS):
            return None
    except socket.gaierror as error:
        return f"unknown host ({error.strerror})"
    except TimeoutError:
        return f"no answer to a connection within {_CONNECT_SECONDS:g} s"
    except (OSError, ValueError, OverflowError) as error:
        return (getattr(error, "strerror", None) or str(error)).lower()
