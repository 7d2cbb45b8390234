"""How a Kafka client logs in: its settings, from the manifest and the Secret that it names."""

from __future__ import annotations

from collections.abc import Mapping

from lakemirror.api.source import KafkaSecurity, KafkaSource
from lakemirror.driver.errors import LakemirrorError

_FIELD = "spec.source.kafka.security"
_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n", "\r": r"\r", "\x85": r"\205"})
"""What Kafka's JaasConfig, a java.io.StreamTokenizer, does not take as it is between quotes; and a line end
that Spark's redaction (KafkaRedactionUtil) would stop at.
"""


class LoginIncomplete(LakemirrorError):
    """A Secret does not have what the login needs."""


def client_options(source: KafkaSource, secrets: Mapping[str, str]) -> dict[str, str]:
    """Settings of a Kafka client for this source; ``secrets`` has the keys of the Secret that
    ``source.security`` names, as text: username and password, and certificates and keys in PEM (ca.crt,
    tls.crt, tls.key, as in a Kubernetes TLS Secret). Raises LoginIncomplete.
    """
    options: dict[str, str] = {"bootstrap.servers": source.bootstrap_servers}
    security = source.security
    if security is None:
        return options
    options["security.protocol"] = security.protocol
    if security.mechanism is not None:
        options |= {"sasl.mechanism": security.mechanism, "sasl.jaas.config": _jaas(security, secrets)}
    if security.protocol in ("SSL", "SASL_SSL"):
        options |= _tls(security, secrets)
    return options


def _jaas(security: KafkaSecurity, secrets: Mapping[str, str]) -> str:
    """The value of sasl.jaas.config. The password stands last, for Spark hides all up to the last quote."""
    user, password = _line(security, secrets, "username"), _line(security, secrets, "password")
    module = _MODULES[security.mechanism or ""]
    return f"{module} required username={_quoted(user)} password={_quoted(password)};"


def _line(security: KafkaSecurity, secrets: Mapping[str, str], key: str) -> str:
    """The value of a key without line ends after it, which most editors and `echo` leave in a file."""
    value = secrets.get(key, "").rstrip("\r\n")
    if not value:
        state = "is empty" if key in secrets else "is missing"
        raise LoginIncomplete(
            f"{_FIELD}: key {key} of secret {security.secret} {state}, and {security.protocol} logs in with "
            "username and password: add it to the secret"
        )
    return value


def _quoted(text: str) -> str:
    return f'"{text.translate(_ESCAPES)}"'


def _tls(security: KafkaSecurity, secrets: Mapping[str, str]) -> dict[str, str]:
    """Whom to trust, and who we are; what the Secret does not have is left to Java's defaults."""
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
            "ssl.keystore.certificate.chain": certificate,
            "ssl.keystore.key": key,
        }
    return options
