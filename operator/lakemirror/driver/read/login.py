"""Settings for how a Kafka client logs in, from the manifest and the Secret that it names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial

from lakemirror.api.source import KafkaOAuth, KafkaSecurity, KafkaSource
from lakemirror.driver.errors import LakemirrorError

_FIELD = "spec.source.kafka.security"
_OAUTH = "org.apache.kafka.common.security.oauthbearer"
_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "OAUTHBEARER": f"{_OAUTH}.OAuthBearerLoginModule",
}
TOKEN_HANDLER = f"{_OAUTH}.OAuthBearerLoginCallbackHandler"
CERTIFICATE = "ssl.keystore.certificate.chain"
"""The client's setting with its own certificate, in PEM."""
_EXTENSION = "extension_"
_PATIENCE = {"retry.backoff.max": 5_000, "connect.timeout": 10_000, "read.timeout": 10_000}
"""How long Kafka's client waits for a token endpoint, in milliseconds.

By default, it waits forever for an endpoint that accepts connections and does not answer.
"""
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n", "\r": r"\r", "\x85": r"\205"})
"""Characters that have to be escaped between quotes.

Kafka's JaasConfig, a java.io.StreamTokenizer, does not take them as they are. One is a line end at which
Spark's redaction (KafkaRedactionUtil) would stop.
"""


class LoginIncomplete(LakemirrorError):
    """A Secret lacks something that the login needs."""


def client_options(source: KafkaSource, secrets: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a Kafka client for this source.

    ``secrets`` has the keys of the Secret that ``source.security`` names, as text: username and password, or
    clientId and clientSecret, and certificates and keys in PEM (ca.crt, tls.crt, tls.key, as in a Kubernetes
    TLS Secret, and token-ca.crt). Raises LoginIncomplete.
    """
    options: dict[str, str] = {"bootstrap.servers": source.bootstrap_servers}
    security = source.security
    if security is None:
        return options
    options["security.protocol"] = security.protocol
    if security.mechanism is not None:
        options |= {"sasl.mechanism": security.mechanism, "sasl.jaas.config": _jaas(security, secrets)}
    if security.oauth is not None:
        options |= {
            "sasl.login.callback.handler.class": TOKEN_HANDLER,
            "sasl.oauthbearer.token.endpoint.url": security.oauth.token_endpoint_url,
            **{f"sasl.login.{name}.ms": str(millis) for name, millis in _PATIENCE.items()},
        }
    if security.protocol in ("SSL", "SASL_SSL"):
        options |= _tls(security, secrets)
    return options


def _jaas(security: KafkaSecurity, secrets: Mapping[str, str]) -> str:
    """Return the value of sasl.jaas.config.

    Secret values come last, because Spark redacts everything from ``password="`` to the last quote.
    """
    line = partial(_line, security, secrets)
    if security.oauth is None:
        given = {"username": line("username"), "password": line("password")}
    else:
        given = {
            **_token_options(security.oauth, secrets),
            "password": "",  # means nothing to this login module, but triggers Spark's redaction
            "clientId": line("clientId"),
            "clientSecret": line("clientSecret"),
        }
    options = " ".join(f"{name}={_quoted(value)}" for name, value in given.items())
    return f"{_MODULES[security.mechanism or '']} required {options};"


def _token_options(oauth: KafkaOAuth, secrets: Mapping[str, str]) -> dict[str, str]:
    """Return the options of the token handler.

    They say what is sent to the token endpoint and, as SASL extensions, to the brokers, and whom to trust at
    the endpoint.
    """
    options = {"scope": oauth.scope} if oauth.scope is not None else {}
    if authority := secrets.get("token-ca.crt", "").strip():
        options |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": authority}
    return options | {
        name: value.strip() for name, value in secrets.items() if re.fullmatch(f"{_EXTENSION}[A-Za-z]+", name)
    }


def _line(security: KafkaSecurity, secrets: Mapping[str, str], key: str) -> str:
    """Return the value of a key without trailing line ends.

    Most editors and `echo` leave these in a file.
    """
    value = secrets.get(key, "").rstrip("\r\n")
    if not value:
        state = "is empty" if key in secrets else "is missing"
        keys = "username and password" if security.oauth is None else "clientId and clientSecret"
        raise LoginIncomplete(
            f"{_FIELD}: key {key} of secret {security.secret} {state}, and {security.mechanism} logs in with "
            f"{keys}: add it to the secret"
        )
    return value


def _quoted(text: str) -> str:
    return f'"{text.translate(_ESCAPES)}"'


def _tls(security: KafkaSecurity, secrets: Mapping[str, str]) -> dict[str, str]:
    """Return whom to trust and who the client is. What the Secret lacks is left to Java's defaults."""
    authority, certificate, key = (secrets.get(each, "").strip() for each in ("ca.crt", "tls.crt", "tls.key"))
    options: dict[str, str] = {}
    if authority:
        options |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": authority}
    if bool(certificate) != bool(key):
        there, missing = ("tls.crt", "tls.key") if certificate else ("tls.key", "tls.crt")
        raise LoginIncomplete(
            f"{_FIELD}: secret {security.secret} has {there} and no {missing}: the brokers are shown both or "
            f"none, so add {missing}, or take {there} out"
        )
    if certificate:
        options |= {
            "ssl.keystore.type": "PEM",
            CERTIFICATE: certificate,
            "ssl.keystore.key": key,
        }
    return options
