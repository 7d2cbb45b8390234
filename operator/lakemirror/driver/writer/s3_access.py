"""What a client of S3 has to know of a bucket, from the settings of Hadoop's client of S3 (S3A).

Mirrors on S3 are read and written by Spark through S3A, and by the tasks of the engine through a client of
their own. It must reach the same bucket in the same way, or not be used at all: what cannot be said exactly
is `NotTranslated`. Nothing is asked here; `java_s3` does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final
from urllib.parse import quote, urlsplit

from lakemirror.driver.raised import LakemirrorError
from lakemirror.driver.writer.stores import Files

_TRUE: Final = "true"
_CENTRAL: Final = "s3.amazonaws.com"
"""S3A takes this endpoint for none."""
_OTHER_NETWORKS: Final = ("us-iso", "eu-iso", "eusc-")
"""Regions of AWS in networks of their own, whose endpoints have other names."""
_LABEL: Final = re.compile(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")
_DOTTED: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_EXPRESS: Final = "--x-s3"

_REFUSED: Final = (
    *("accesspoint.arn", "acl.default", "create.storage.class", "custom.signers", "signing-algorithm"),
    *("s3.signing-algorithm", "delegation.token.binding", "encryption.algorithm", "object.content.encoding"),
    *("server-side-encryption-algorithm", "user.agent.prefix", "proxy.domain", "proxy.workstation"),
)
"""Settings below ``fs.s3a.`` that change requests in ways that are not known here, if they have a value."""
_REFUSED_IF_TRUE: Final = (
    *("requester.pays.enabled", "endpoint.fips", "http.signer.enabled", "access.grants.enabled"),
    "accesspoint.required",
)
_DEFAULTS: Final = {
    "s3.client.factory.impl": "org.apache.hadoop.fs.s3a.DefaultS3ClientFactory",
    "impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
}
"""Classes in whose place others may do anything."""
_ENDPOINT, _PATH_STYLE, _ENCRYPTED = "endpoint", "path.style.access", "connection.ssl.enabled"
_ATTEMPTS: Final = {"attempts.maximum": 5, "retry.limit": 7}
"""How often requests are sent again: by the SDK, and by S3A around it."""
_PROXY: Final = ("proxy.host", "proxy.port", "proxy.ssl.enabled")
PREFIX: Final = "fs.s3a."
SCHEME: Final = "s3a://"
ASKED: Final = (
    *_REFUSED,
    *_REFUSED_IF_TRUE,
    *_DEFAULTS,
    *_ATTEMPTS,
    *_PROXY,
    *(_ENDPOINT, _PATH_STYLE, _ENCRYPTED),
)
"""The settings below ``fs.s3a.`` that `access_of` has to know. None of them is a secret."""
HEADERS: Final = ("create.header.", "client.s3.custom.headers")
"""What the settings of headers of the user's begin with: none may be there."""


class NotTranslated(LakemirrorError):
    """S3A reaches the bucket in a way that is not known here."""


@dataclass(frozen=True, repr=False)
class Secret:
    """A text that is not shown."""

    text: str

    def __repr__(self) -> str:
        return "Secret(...)"


@dataclass(frozen=True)
class Keys:
    """With what requests are signed. ``token`` belongs to temporary keys."""

    access_key: Secret
    secret_key: Secret
    token: Secret | None = None


@dataclass(frozen=True)
class Access:
    """How a bucket is reached.

    The bucket's name is in the host of ``endpoint`` if it is ``in_host``, and otherwise in the path. Without
    ``keys``, requests are not signed. ``attempts`` is how often a request is sent again.
    """

    bucket: str
    endpoint: str
    region: str
    in_host: bool
    attempts: int
    proxy: Secret | None = None
    keys: Keys | None = None


def access_of(
    bucket: str,
    settings: Mapping[str, str],
    region: str,
    login: tuple[Secret, Secret] | None = None,
) -> Access:
    """Return how S3A reaches a bucket, but for the keys.

    ``settings`` are those that are `ASKED` for, and all `HEADERS`, as they hold for the bucket. ``region`` is
    the one that requests are signed for, ``login`` the user and the password of the proxy. Raises
    NotTranslated.
    """
    given = {name: value.strip() for name, value in settings.items() if value.strip()}
    reason = next(_reasons(bucket, given), None)
    if reason is not None:
        raise NotTranslated(reason)
    path_style = given.get(_PATH_STYLE, "").lower() == _TRUE
    scheme, host = _endpoint(given, region)
    in_host = not path_style and _may_be_in_host(bucket, host, scheme)
    attempts = sum(_number(given, name, default) for name, default in _ATTEMPTS.items())
    endpoint = f"{scheme}://{bucket}.{host}" if in_host else f"{scheme}://{host}"
    return Access(bucket, endpoint, region, in_host, attempts, _proxy(given, login))


def has_own_endpoint(settings: Mapping[str, str]) -> bool:
    """Return whether an endpoint is set. Otherwise the bucket is in a region of AWS."""
    return _named(settings) is not None


def _named(settings: Mapping[str, str]) -> str | None:
    named = settings.get(_ENDPOINT, "").strip().rstrip("/")
    return None if named.rpartition("://")[2] in ("", _CENTRAL) else named


def _reasons(bucket: str, given: Mapping[str, str]) -> Iterator[str]:
    if bucket.endswith(_EXPRESS):
        yield "its bucket is one of S3 Express"
    for name, value in sorted(given.items()):
        if name in _REFUSED or name.startswith(HEADERS):
            yield f"{PREFIX}{name} is set"
        elif name in _REFUSED_IF_TRUE and value.lower() == _TRUE:
            yield f"{PREFIX}{name} is true"
        elif name in _DEFAULTS and value != _DEFAULTS[name]:
            yield f"{PREFIX}{name} is {value}"


def _endpoint(given: Mapping[str, str], region: str) -> tuple[str, str]:
    """Return the scheme and the host of the endpoint, perhaps with a port."""
    named = _named(given)
    if named is None:
        if region.startswith(_OTHER_NETWORKS):
            raise NotTranslated(f"its bucket is in the region {region}")
        return "https", f"s3.{region}.amazonaws.com" + (".cn" if region.startswith("cn-") else "")
    encrypted = given.get(_ENCRYPTED, _TRUE).lower() == _TRUE
    found = urlsplit(named if "://" in named else f"{'https' if encrypted else 'http'}://{named}")
    if (
        found.scheme not in ("http", "https")
        or found.path
        or found.query
        or found.username
        or not found.netloc
    ):
        raise NotTranslated(f"{PREFIX}{_ENDPOINT} is more than a host and a port")
    return found.scheme, found.netloc


def _may_be_in_host(bucket: str, host: str, scheme: str) -> bool:
    """Return whether the SDK puts a bucket into the host if it may: as its rules for endpoints say."""
    try:
        ip_address(urlsplit(f"//{host}").hostname or "")
    except ValueError:
        names = _DOTTED if scheme == "http" else _LABEL
        return names.fullmatch(bucket) is not None
    return False


def _proxy(given: Mapping[str, str], login: tuple[Secret, Secret] | None) -> Secret | None:
    host, port, encrypted = (given.get(name, "") for name in _PROXY)
    if not host:
        return None
    scheme = "https" if encrypted.lower() == _TRUE else "http"
    number = port or ("443" if scheme == "https" else "80")
    user = "" if login is None else ":".join(quote(each.text, safe="") for each in login) + "@"
    return Secret(f"{scheme}://{user}{host}:{number}")


def _number(given: Mapping[str, str], name: str, default: int) -> int:
    try:
        return int(given.get(name, default))
    except ValueError:
        return default


@dataclass(frozen=True)
class S3:
    """A bucket, as a file system."""

    access: Access

    def files(self, table: str) -> Files:
        """Return the files of the table with this URI, whose key is not encoded."""
        from lakemirror.driver.writer.s3_files import S3Files  # a client that is large, for those who use it

        _, _, key = table.removeprefix(SCHEME).partition("/")
        return S3Files(self.access, key)
