"""Explains why Kafka brokers do not answer, and what to do about it. Their client says very little."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from lakemirror.api.source import KafkaSecurity
from lakemirror.driver.errors import cause_of

_CONNECT_SECONDS = 5.0
_IN_VAIN = ("TimeoutException", "ConfigException", "KafkaException", "DisconnectException")
"""Client errors that do not say what is wrong with the connection."""
_FIELD = "spec.source.kafka.security"
_NO_TOKEN = re.compile(r"\bLoginException\b|No OAuth Bearer tokens")
_BAD_TOKEN = re.compile(r"^SaslAuthentication|PEM truststore|CERTIFICATE entries|Could not parse certificate")
"""Errors that a missing token may cause, too.

The last token has expired, or the certificate is the endpoint's.
"""
_REFUSED = re.compile(
    r"\b(\w+(Authentication|Authorization)|Login|UnsupportedSaslMechanism|IllegalSaslState)Exception\b"
)
_BAD_CERTIFICATE = r"fatal alert|post-handshake"
_EXPIRED = "tls.crt in {secret} expired at {at}: renew tls.crt and tls.key"
_Remedies = Sequence[tuple[str, str]]
_REMEDIES: _Remedies = (
    (
        r"^SaslAuthenticationException.*invalid_token",
        "the brokers refuse the token: check that {field}.oauth names the endpoint and the scope whose "
        "tokens they take, and that their expected audience and issuer are those of the token",
    ),
    (
        r"^SaslAuthenticationException",
        "the brokers refuse the login: check username and password in {secret}, and that the brokers know "
        "this user for mechanism {mechanism}",
    ),
    (r"^UnsupportedSaslMechanism", "set {field}.mechanism to one that the brokers have enabled"),
    (
        r"^IllegalSaslState",
        "this listener asks for no login: check the port in bootstrapServers and {field}.protocol",
    ),
    (
        r"unable to find valid certification path|PKIX path building failed",
        "the brokers' certificate is not of an authority that is trusted: put the authority's certificate "
        "into key ca.crt of {secret}",
    ),
    (r"^CertificateExpired", "a certificate of the brokers has expired: renew it"),
    (r"^CertificateNotYetValid", "a certificate of the brokers is not valid yet: compare the clocks"),
    (
        r"No subject alternative|No name matching",
        "the brokers' certificate is not of this host: use names that it has in bootstrapServers and in the "
        "brokers' advertised.listeners, or have it issued for this one",
    ),
    (
        _BAD_CERTIFICATE,
        "the brokers refuse the driver's certificate: check tls.crt and tls.key in {secret}",
    ),
    (
        r"PEM truststore|CERTIFICATE entries|Could not parse certificate",
        "a certificate in {secret} is damaged: ca.crt and tls.crt have to be certificates in PEM",
    ),
    (
        r"InvalidKeySpec|rivate key|PRIVATE KEY|InvalidKeyException",
        "the key in {secret} cannot be read: tls.key has to be in PKCS #8 without a password, as `openssl "
        "pkcs8 -topk8 -nocrypt` makes it",
    ),
    (r"^TopicAuthorization", "give the driver's user the right Read on its topics"),
)
"""What the client says, and what it means or what to do."""

_TOKEN_REMEDIES: _Remedies = (
    (r"invalid_scope", "set {field}.oauth.scope to one that this client may ask for"),
    (
        r"invalid_client|unauthorized_client|response code (400|401|403) ",
        "the token endpoint refuses the client: check clientId and clientSecret in {secret}",
    ),
    (r"response code 40[45] ", "this is not a token endpoint: check {field}.oauth.tokenEndpointUrl"),
    (
        r"unable to find valid certification path|PKIX path building failed",
        "the token endpoint's certificate is not of an authority that is trusted: put the authority's "
        "certificate into key token-ca.crt of {secret}",
    ),
    (r"^CertificateExpired", "the token endpoint's certificate has expired: renew it"),
    (r"^CertificateNotYetValid", "the token endpoint's certificate is not valid yet: compare the clocks"),
    (
        r"No subject alternative|No name matching",
        "the token endpoint's certificate is not of this host: check {field}.oauth.tokenEndpointUrl",
    ),
    (
        r"PEM truststore|CERTIFICATE entries|Could not parse certificate",
        "a certificate in {secret} is damaged: token-ca.crt has to be certificates in PEM",
    ),
    (
        r"^(Connect|UnknownHost|NoRouteToHost|SocketTimeout|Socket|SSL)\w*Exception",
        "the token endpoint cannot be reached: check {field}.oauth.tokenEndpointUrl, and that it runs",
    ),
)
"""The same for a token endpoint."""


def why_away(
    bootstrap_servers: str,
    error: Exception,
    security: KafkaSecurity | None = None,
    get_token: Callable[[], None] = lambda: None,
    certificate_ends: Callable[[], datetime | None] = lambda: None,
) -> str:
    """Explain in one line why the client cannot reach the brokers.

    The client's own ``error`` is used if it is informative, such as a failed authentication. Otherwise, the
    result of connecting to each server is used. ``get_token`` raises the error that prevents the client from
    getting the token that it would log in with. ``certificate_ends`` returns when the client's own
    certificate expires, if it has one: brokers do not say what is wrong with it.
    """
    said = cause_of(error)
    if security is not None and security.oauth is not None:
        endpoint, none = security.oauth.token_endpoint_url, _NO_TOKEN.search(said)
        if (none or _BAD_TOKEN.search(said)) and (why := _why_no_token(get_token, security)) is not None:
            return f"{endpoint}: {why}"
        if none:
            return f"{endpoint}: it gave no token, and gives one now ({said})"
    remedies = _REMEDIES
    if re.search(_BAD_CERTIFICATE, said) and (ends := certificate_ends()) and ends <= datetime.now(UTC):
        remedies = [(_BAD_CERTIFICATE, _EXPIRED.format(at=f"{ends:%Y-%m-%dT%H:%M:%SZ}", secret="{secret}"))]
    if (remedy := _remedy(said, security, remedies)) is not None:
        return f"{bootstrap_servers}: {said}: {remedy}"
    if not said.startswith(_IN_VAIN):
        return f"{bootstrap_servers}: {said}"
    tried = {server.strip(): _connecting(server.strip()) for server in bootstrap_servers.split(",")}
    refused = [f"{server}: {problem}" for server, problem in tried.items() if problem is not None]
    if len(refused) == len(tried):
        return ", ".join(refused)
    open_ones = ", ".join(server for server, problem in tried.items() if problem is None)
    return (
        f"{open_ones} accepts connections, but no broker answers ({said}): check "
        f"{_FIELD}.protocol, and that the brokers' advertised listeners can be reached from the driver"
    )


def refuse(error: Exception) -> bool:
    """Return whether ``error`` says that the brokers refuse the client, or refuse it access to a topic."""
    return _REFUSED.search(str(error)) is not None


def _why_no_token(get_token: Callable[[], None], security: KafkaSecurity) -> str | None:
    """Return why the client cannot get a token, or None if it can."""
    try:
        get_token()
    except Exception as error:
        said = cause_of(error)
        remedy = _remedy(said, security, _TOKEN_REMEDIES)
        return said if remedy is None else f"{said}: {remedy}"
    return None


def _remedy(said: str, security: KafkaSecurity | None, remedies: _Remedies) -> str | None:
    secret = f"secret {security.secret}" if security is not None and security.secret else "a secret"
    mechanism = security.mechanism if security is not None else None
    for pattern, remedy in remedies:
        if re.search(pattern, said):
            return remedy.format(secret=secret, mechanism=mechanism, field=_FIELD)
    return None


def _connecting(server: str) -> str | None:
    """Return why no connection to ``server`` (host:port) can be made, or None if one can."""
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
