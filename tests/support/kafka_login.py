"""A Kafka broker that asks for a login: listeners with SASL and TLS, users, and an authorizer."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.support.kafka_broker import Broker, start_broker
from tests.support.ports import free_port
from tests.support.tokens import AUDIENCE, ISSUER, TokenEndpoint

SCRAM = {
    "SCRAM-SHA-256": ScramMechanism.SCRAM_SHA_256,
    "SCRAM-SHA-512": ScramMechanism.SCRAM_SHA_512,
}
PLAIN_USER, PLAIN_PASSWORD = "plain", "pl'ain$1"
RELOGIN_MILLIS = 3000
"""After which time the listeners ``scram`` and ``oauth`` ask connected clients to log in again."""
EXPIRED = ("-startdate", "20200101000000Z", "-enddate", "20200102000000Z")
"""Options of a certificate that has expired; see ``Certificates.sign``."""
_HOST = "127.0.0.1"
_LISTENERS = {
    "scram": "SASL_PLAINTEXT",
    "plain": "SASL_PLAINTEXT",
    "tls": "SASL_SSL",
    "expired": "SASL_SSL",
    "other": "SASL_SSL",
    "mutual": "SSL",
    "oauth": "SASL_SSL",
}
_JAAS = "org.apache.kafka.common.security"


@dataclass
class Certificates:
    """An authority, and PEM files below ``folder`` that it signed."""

    folder: Path

    def __post_init__(self) -> None:
        self.authority("ca")

    def authority(self, name: str) -> str:
        """Make an authority; gives its certificate."""
        self._openssl(
            *("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}"),
            *("-keyout", f"{name}.key", "-out", f"{name}.crt"),
        )
        return self.text(f"{name}.crt")

    def sign(self, name: str, names: str, *when: str) -> Path:
        """Make a key and its certificate for ``names`` (as of a subjectAltName); gives the keystore. ``when``
        has the options of ``openssl ca`` that say from when to when it is valid.
        """
        (self.folder / f"{name}.ext").write_text(f"subjectAltName={names}\n")
        (self.folder / "index.txt").touch()
        (self.folder / "ca.conf").write_text(
            "[ca]\ndefault_ca=own\n[own]\ndatabase=index.txt\nnew_certs_dir=.\nrand_serial=yes\n"
            "default_md=sha256\npolicy=any\nunique_subject=no\n[any]\ncommonName=supplied\n"
        )
        self._openssl(
            *("req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}"),
            *("-keyout", f"{name}.key", "-out", f"{name}.csr"),
        )
        self._openssl(
            *("ca", "-batch", "-notext", "-config", "ca.conf", "-cert", "ca.crt", "-keyfile", "ca.key"),
            *("-extfile", f"{name}.ext", "-in", f"{name}.csr", "-out", f"{name}.crt"),
            *(when or ("-days", "2")),
        )
        store = self.folder / f"{name}.pem"
        store.write_text(self.text(f"{name}.key") + self.text(f"{name}.crt"))
        return store

    def text(self, name: str) -> str:
        return (self.folder / name).read_text()

    def _openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self.folder, check=True, capture_output=True, timeout=60)


@dataclass
class GuardedBroker:
    """A broker with an authorizer. ``open`` is its listener without a login, whose user may do all."""

    open: Broker
    addresses: Mapping[str, str]
    certificates: Certificates
    tokens: TokenEndpoint
    """Which gives the tokens that the listener ``oauth`` takes."""
    _mechanisms: Mapping[str, ScramMechanism] = field(default_factory=lambda: SCRAM)

    def set_password(self, user: str, password: str, mechanism: str = "SCRAM-SHA-512") -> None:
        """Make a user, or give one another password."""
        info = ScramCredentialInfo(self._mechanisms[mechanism], 4096)
        change = UserScramCredentialUpsertion(user, info, password.encode())
        for done in self.open.admin.alter_user_scram_credentials([change]).values():
            done.result(30)

    def allow(self, user: str, right: str, topic: str, *, prefix: bool = False) -> None:
        """Give a right such as READ on a topic, or on all whose names begin so."""
        rule = AclBinding(*_rule(user, right, topic, prefix))
        for done in self.open.admin.create_acls([rule]).values():
            done.result(30)

    def withdraw(self, user: str, right: str, topic: str, *, prefix: bool = False) -> None:
        """Take back what was allowed."""
        rule = AclBindingFilter(*_rule(user, right, topic, prefix))
        for done in self.open.admin.delete_acls([rule]).values():
            assert done.result(30)


def _rule(user: str, right: str, topic: str, prefix: bool) -> tuple[Any, ...]:
    kind = ResourcePatternType.PREFIXED if prefix else ResourcePatternType.LITERAL
    given = ("*", AclOperation[right], AclPermissionType.ALLOW)
    return (ResourceType.TOPIC, topic, kind, f"User:{user}", *given)


@contextmanager
def start_guarded_broker(folder: Path) -> Iterator[GuardedBroker]:
    """Run a broker whose users have no rights, other than those of ``GuardedBroker.open``.

    Its listeners: ``plain`` (SASL PLAIN), ``scram`` (both SCRAM), ``tls`` (all three, with TLS), ``expired``
    and ``other`` (the same with a certificate that has expired, or is of another host), ``mutual`` (TLS on
    both sides), ``oauth`` (OAUTHBEARER with TLS).
    """
    own = folder / "certificates"
    own.mkdir()
    certificates = Certificates(own)
    stores = {
        "tls": certificates.sign("tls", f"IP:{_HOST},DNS:localhost"),
        "expired": certificates.sign("expired", f"IP:{_HOST}", *EXPIRED),
        "other": certificates.sign("other", "DNS:kafka.example.org"),
        "mutual": certificates.sign("mutual", f"IP:{_HOST}"),
        "oauth": certificates.sign("oauth", f"IP:{_HOST}"),
    }
    tokens = TokenEndpoint(own, stores["oauth"])
    addresses = {name: f"{_HOST}:{free_port()}" for name in _LISTENERS}
    keys = tokens.keys.as_uri()
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={keys}"
    more = partial(_guarded, addresses, stores, own / "ca.crt", keys)
    with start_broker(folder, more=more, java=[allowed]) as broker:
        tokens.start()
        try:
            yield GuardedBroker(broker, addresses, certificates, tokens)
        finally:
            tokens.stop()


def _guarded(
    addresses: Mapping[str, str], stores: Mapping[str, Path], authority: Path, keys: str, listeners: str
) -> dict[str, object]:
    ours = ",".join(f"{name.upper()}://{address}" for name, address in addresses.items())
    protocols = ",".join(f"{name.upper()}:{protocol}" for name, protocol in _LISTENERS.items())
    advertised = ",".join(each for each in listeners.split(",") if not each.startswith("CONTROLLER"))
    settings: dict[str, object] = {
        "listeners": f"{listeners},{ours}",
        "advertised.listeners": f"{advertised},{ours}",
        "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,{protocols}",
        "inter.broker.listener.name": "PLAINTEXT",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "listener.name.scram.connections.max.reauth.ms": RELOGIN_MILLIS,
        "listener.name.mutual.ssl.client.auth": "required",
    }
    plain = f'{_JAAS}.plain.PlainLoginModule required user_{PLAIN_USER}="{PLAIN_PASSWORD}";'
    scram = f"{_JAAS}.scram.ScramLoginModule required;"
    for name, protocol in _LISTENERS.items():
        at = f"listener.name.{name}"
        if name == "oauth":
            settings |= {f"{at}.sasl.enabled.mechanisms": "OAUTHBEARER", **_of_tokens(at, keys)}
        elif protocol.startswith("SASL"):
            own = {"scram": ["PLAIN"], "plain": SCRAM}.get(name, ())
            mechanisms = [each for each in ("PLAIN", *SCRAM) if each not in own]
            settings[f"{at}.sasl.enabled.mechanisms"] = ",".join(mechanisms)
            for each in mechanisms:
                settings[f"{at}.{each.lower()}.sasl.jaas.config"] = plain if each == "PLAIN" else scram
        if name in stores:
            settings |= {
                f"{at}.ssl.keystore.type": "PEM",
                f"{at}.ssl.keystore.location": stores[name],
                f"{at}.ssl.truststore.type": "PEM",
                f"{at}.ssl.truststore.location": authority,
            }
    return settings


def _of_tokens(at: str, keys: str) -> dict[str, object]:
    """Settings of a listener that takes tokens which are signed with one of ``keys``."""
    return {
        f"{at}.oauthbearer.sasl.jaas.config": f"{_JAAS}.oauthbearer.OAuthBearerLoginModule required;",
        f"{at}.oauthbearer.sasl.server.callback.handler.class": (
            f"{_JAAS}.oauthbearer.OAuthBearerValidatorCallbackHandler"
        ),
        f"{at}.oauthbearer.sasl.oauthbearer.jwks.endpoint.url": keys,
        f"{at}.oauthbearer.sasl.oauthbearer.expected.audience": AUDIENCE,
        f"{at}.oauthbearer.sasl.oauthbearer.expected.issuer": ISSUER,
        f"{at}.connections.max.reauth.ms": RELOGIN_MILLIS,
    }
