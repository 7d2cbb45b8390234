"""Clients of schema registries that speak Confluent's protocol or Apicurio's own.

Confluent's protocol is spoken by Confluent's registry, by Karapace, and by Apicurio under ``/apis/ccompat``.
Three requests of it are used: ``GET /schemas/ids/{id}``, ``GET /schemas/guids/{guid}`` and, for schemas that
refer to others, ``GET /subjects/{subject}/versions/{version}``.

Of Apicurio's own API, these requests are used, which are the same in versions 2 and 3: ``GET
/ids/globalIds/{id}`` and ``GET /ids/contentIds/{id}``, which return the schema itself; the same with
``/references`` appended; and, for the schemas listed there, ``GET
/groups/{group}/artifacts/{artifact}/versions/{version}``.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import requests

from lakemirror.api.logins import redacted
from lakemirror.api.source import SchemaRegistry
from lakemirror.driver.errors import LakemirrorError, NotAnswered
from lakemirror.driver.read.secrets import Secrets, read_secret
from lakemirror.driver.read.watch import SourceWatch

_SECONDS: Final = (5.0, 20.0)
"""Timeouts of a connection and of an answer."""
_MOST_REFERENCES: Final = 100
_MOST_BYTES: Final = 4 * 2**20
"""Of an answer, and of a schema with all that it refers to. Schemas have a few kilobytes."""
_OVERLOADED: Final = (429, 502, 503, 504)
"""Statuses that say nothing of what was asked for."""
_PART: Final = "schema registry"

IDS, GUIDS, GLOBAL_IDS, CONTENT_IDS = "ids", "guids", "globalIds", "contentIds"
"""The ways in which a record may name its schema: Confluent's ID or GUID, and Apicurio's two IDs.

They are also parts of the URLs that are requested.
"""
SCHEMA_HEADERS: Final = r"^(__(key|value)_schema_id|apicurio[.](key|value)[.](globalId|contentId))$"
"""Headers of a record that name a schema."""
_APICURIO: Final = re.compile(r"^(?P<apis>.*/apis)/(?P<api>ccompat|registry)/v\d+$")
_GUID_BYTES: Final = 16


class NotOfThisRegistry(LakemirrorError):
    """The registry's API does not know the kind of name by which a record refers to its schema."""


class NotAnsweredFor(LakemirrorError):
    """The registry answers, but has no usable answer about one name, which a record chose."""


class RegistryUnreachable(NotAnswered):
    """The registry does not answer, or not like a registry. Time or a person fixes this."""


@dataclass(frozen=True)
class Registered:
    """What a registry has under an ID.

    This is the texts of a schema and of those that it refers to, and its kind (AVRO, PROTOBUF or JSON).
    """

    text: str
    kind: str = "AVRO"
    referenced: tuple[str, ...] = ()


@dataclass(frozen=True, order=True)
class Reference:
    """How a record refers to its schema: the kind of name (`IDS` and the others), and its bytes."""

    kind: str
    raw: bytes

    @property
    def name(self) -> str:
        """The name as used in URLs: a number, or a GUID with hyphens."""
        if self.kind == GUIDS:
            return str(uuid.UUID(bytes=self.raw)) if len(self.raw) == _GUID_BYTES else self.raw.hex()
        return str(int.from_bytes(self.raw, "big"))

    def __str__(self) -> str:
        shown = {GLOBAL_IDS: "globalId ", CONTENT_IDS: "contentId "}.get(self.kind, "")
        return f"schema {shown}{self.name}"


class _Referenced:
    """The schemas that one refers to, itself or through others."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        """By name, the innermost first."""
        self._begun: set[str] = set()

    def is_new(self, address: str, name: str) -> bool:
        """Return whether a schema, which the one at an address refers to, is still to be asked for.

        Raises _WrongAnswer if it refers to itself, or if there are too many.
        """
        if name in self.texts:
            return False
        if name in self._begun:
            raise _WrongAnswer(f"{address} answers with a schema that is among those that it refers to")
        if len(self._begun) >= _MOST_REFERENCES:
            raise _WrongAnswer(f"{address} answers with a schema that refers to too many others")
        self._begun.add(name)
        return True

    def add(self, address: str, name: str, text: str) -> None:
        """Add a schema. Raises _WrongAnswer if all of them together are too long."""
        self.texts[name] = text
        if sum(map(len, self.texts.values())) > _MOST_BYTES:
            raise _WrongAnswer(
                f"{address} answers with a schema that refers to more than {_MOST_BYTES >> 20} MiB of others"
            )


class RegistryClient:
    """Fetches schemas from a registry. ``watch`` records whether it answers."""

    def __init__(self, registry: SchemaRegistry, secrets: Secrets, watch: SourceWatch) -> None:
        self._url, self._watch = registry.url.rstrip("/"), watch
        found = _APICURIO.match(self._url)
        self._has_confluents = found is None or found["api"] == "ccompat"
        self._own = (
            self._url if not self._has_confluents else f"{found['apis']}/registry/v2" if found else None
        )
        self._session = requests.Session()
        if registry.secret is not None:
            self._log_in(registry.secret, secrets)

    def schema(self, reference: Reference) -> Registered | None:
        """Return the schema with this name, or None if there is none.

        Raises RegistryUnreachable, NotOfThisRegistry and NotAnsweredFor. Anybody who may write to a topic
        chooses names. So the registry counts as unreachable only if it does not answer another question,
        either.
        """
        kind, name = reference.kind, reference.name
        if kind == IDS and not self._has_confluents:
            kind = CONTENT_IDS
        if kind == GUIDS and not self._has_confluents:
            raise NotOfThisRegistry(
                "it is named by a GUID, as Confluent's registry has them, and the address in "
                "spec.envelope.schemaRegistry.url is one of Apicurio's own API"
            )
        if kind in (GLOBAL_IDS, CONTENT_IDS) and self._own is None:
            raise NotOfThisRegistry(
                "it is named as Apicurio's registry has it, and the address in "
                "spec.envelope.schemaRegistry.url is not one of that (/apis/registry/v2 or /apis/ccompat/v7)"
            )
        with self._watch.asking(lambda error: f"the schema registry {error}", of=_PART):
            try:
                return self._found(kind, name)
            except _WrongAnswer as error:
                wrong = error
                self._check_answers(wrong)
        raise NotAnsweredFor(str(wrong)) from wrong

    def _found(self, kind: str, name: str) -> Registered | None:
        others = _Referenced()
        if kind in (GLOBAL_IDS, CONTENT_IDS):
            text = self._text(f"{self._own}/ids/{kind}/{name}")
            if text is None:
                return None
            self._follow_own(f"{self._own}/ids/{kind}/{name}", others)
            return Registered(text, referenced=tuple(others.texts.values()))
        address = f"{self._url}/schemas/{kind}/{name}"
        found = self._get(address)
        if found is None:
            return None
        self._follow(address, found, others)
        return Registered(found["schema"], found.get("schemaType") or "AVRO", tuple(others.texts.values()))

    def _check_answers(self, wrong: _WrongAnswer) -> None:
        """Raise RegistryUnreachable unless the registry answers a question that is not about a schema.

        Registries that do not know the question say so in JSON, which is an answer, too.
        """
        address = f"{self._url}/schemas/types" if self._has_confluents else f"{self._own}/system/info"
        try:
            answer = self._asked(address)
        except _WrongAnswer:
            raise RegistryUnreachable(str(wrong)) from wrong
        unknown = answer.status == requests.codes.not_found and isinstance(answer.json, dict)
        if not unknown and not (answer.ok and answer.json is not None):
            raise RegistryUnreachable(str(wrong)) from wrong

    # -- Apicurio's own API -----------------------------------------------------------------------

    def _follow_own(self, address: str, others: _Referenced) -> None:
        """Add the schemas that the one at an address refers to, the innermost first."""
        answer = self._asked(f"{address}/references")
        if not answer.ok or not isinstance(answer.json, list):
            raise self._no_answer(f"{address}/references", answer)
        for each in answer.json:
            name, artifact_name, its_version = _texts(address, each, "name", "artifactId", "version")
            if not others.is_new(address, name):
                continue
            group, artifact, version = (
                quote(part, safe="")
                for part in (str(each.get("groupId") or "default"), artifact_name, its_version)
            )
            inner = f"{self._own}/groups/{group}/artifacts/{artifact}/versions/{version}"
            text = self._text(f"{inner}/content" if str(self._own).endswith("/v3") else inner)
            if text is None:
                raise self._missing(artifact_name, its_version)
            self._follow_own(inner, others)
            others.add(address, name, text)

    def _text(self, address: str) -> str | None:
        """Return the text at an address, or None if there is none."""
        answer = self._asked(address)
        if answer.status == requests.codes.not_found and answer.json is not None:
            return None
        if not answer.ok or "html" in answer.content_type:
            raise self._no_answer(address, answer)
        return answer.content.decode("utf-8", "replace")

    # -- Confluent's API --------------------------------------------------------------------------

    def _follow(self, address: str, schema: Mapping[str, Any], others: _Referenced) -> None:
        """Add the schemas that the one at an address refers to, the innermost first."""
        references = schema.get("references") or []
        if not isinstance(references, list):
            raise _WrongAnswer(f"{address} answers with a schema whose references are no list")
        for each in references:
            name, subject, version = _texts(address, each, "name", "subject", "version")
            if not others.is_new(address, name):
                continue
            parts = quote(subject, safe=""), quote(version, safe="")
            inner = f"{self._url}/subjects/{parts[0]}/versions/{parts[1]}"
            found = self._get(inner)
            if found is None:
                raise self._missing(subject, version)
            self._follow(inner, found, others)
            others.add(address, name, found["schema"])

    def _get(self, address: str) -> dict[str, Any] | None:
        answer = self._asked(address)
        found = answer.json
        if answer.status == requests.codes.not_found and isinstance(found, dict):
            return None
        if not answer.ok or not isinstance(found, dict) or not isinstance(found.get("schema"), str):
            raise self._no_answer(address, answer)
        return found

    # -- both -------------------------------------------------------------------------------------

    def _log_in(self, name: str, secrets: Secrets) -> None:
        keys, folder = read_secret(name, secrets), Path(secrets[name])
        if "username" in keys:
            self._session.auth = (keys["username"].strip(), keys.get("password", "").strip())
        if "ca.crt" in keys:
            self._session.verify = str(folder / "ca.crt")
        if "tls.crt" in keys:
            self._session.cert = (str(folder / "tls.crt"), str(folder / "tls.key"))

    def _asked(self, address: str) -> _Answer:
        """Ask, and return the answer. Raises RegistryUnreachable and _WrongAnswer.

        Redirections are not followed: the login would go wherever an answer says.
        """
        try:
            with self._session.get(address, timeout=_SECONDS, allow_redirects=False, stream=True) as answer:
                content = _content(answer)
        except (requests.RequestException, OSError) as error:
            raise RegistryUnreachable(f"{self._url}: {_innermost(error)}") from error
        if content is None:
            raise _WrongAnswer(f"{address} answers with more than {_MOST_BYTES // 2**20} MiB")
        status, reason = answer.status_code, answer.reason
        if status == requests.codes.unauthorized:
            raise RegistryUnreachable(
                f"{self._url} answers {status} {reason}: check the username and password in the secret of "
                "spec.envelope.schemaRegistry"
            )
        if status in _OVERLOADED:
            raise RegistryUnreachable(f"{self._url} answers {status} {reason}")
        if answer.is_redirect:
            said = redacted(answer.headers.get("Location", ""))
            raise _WrongAnswer(f"{address} redirects to {said[:200]}, which the driver does not follow")
        return _Answer(status, reason, answer.headers.get("Content-Type", ""), content)

    def _no_answer(self, address: str, answer: _Answer) -> _WrongAnswer:
        right = " (the secret may lack a right)" if answer.status == requests.codes.forbidden else ""
        return _WrongAnswer(
            f"{address} answers {answer.status} {answer.reason} and no schema{right}: check "
            "spec.envelope.schemaRegistry.url (for Apicurio it ends in /apis/ccompat/v7 or /apis/registry/v2)"
        )

    def _missing(self, name: str, version: str) -> _WrongAnswer:
        return _WrongAnswer(
            f"{self._url}: a schema refers to {name}, version {version}, which is not in the registry: "
            "register it again"
        )


class _WrongAnswer(Exception):
    """An answer that is of no use, which may be the fault of what was asked for."""


@dataclass(frozen=True)
class _Answer:
    """What a registry answered."""

    status: int
    reason: str
    content_type: str
    content: bytes

    @property
    def ok(self) -> bool:
        return self.status == 200

    @property
    def json(self) -> Any:
        """The JSON document in the answer, or None if it is not JSON."""
        try:
            return json.loads(self.content)
        except (ValueError, RecursionError):
            return None


def _content(answer: requests.Response) -> bytes | None:
    """Return what an answer contains, or None if that is too long."""
    content = bytearray()
    for part in answer.iter_content(2**16):
        content += part
        if len(content) > _MOST_BYTES:
            return None
    return bytes(content)


def _texts(address: str, reference: Any, *names: str) -> list[str]:
    """Return fields of a reference to another schema."""
    if not isinstance(reference, dict) or not all(
        isinstance(reference.get(each), str | int) for each in names
    ):
        raise _WrongAnswer(f"{address} answers with a reference that lacks one of {', '.join(names)}")
    return [str(reference[each]) for each in names]


def _innermost(error: BaseException) -> str:
    """Return the innermost cause of a client error, which wraps other errors in its own."""
    each: BaseException = error
    while (cause := each.__cause__ or each.__context__) is not None:
        each = cause
    said = getattr(each, "strerror", None) or str(each) or type(each).__name__
    return " ".join(str(said).split())
