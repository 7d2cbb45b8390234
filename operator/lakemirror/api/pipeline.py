"""The resource ``CdcPipeline``: the one definition of the manifest, the Python API and the CRD."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Annotated, Any, Literal, Self

from pydantic import Field, ValidationError

from lakemirror.api.base import Matching, Model
from lakemirror.api.documents import MOST_NODES, dump_document, load_documents
from lakemirror.api.errors import ManifestError, from_validation, path_of
from lakemirror.api.spec import PipelineSpec
from lakemirror.api.status import PipelineStatus

GROUP, VERSION, KIND = "lakemirror.io", "v1alpha1", "CdcPipeline"
API_VERSION = f"{GROUP}/{VERSION}"
NAME_PATTERN = r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$"


class Metadata(Model):
    """Kubernetes' metadata. Lakemirror reads name and namespace; the server's own fields are let through."""

    name: Annotated[
        str,
        Matching(
            NAME_PATTERN,
            "is not a valid name: use at most 40 lower-case letters, digits and '-', with no '-' at the ends",
        ),
    ]
    namespace: Annotated[str, Field(max_length=63)] | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    finalizers: list[str] | None = None
    owner_references: list[dict[str, Any]] | None = None
    generate_name: str | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    generation: int | None = None
    resource_version: str | None = None
    self_link: str | None = None
    uid: str | None = None
    managed_fields: list[dict[str, Any]] | None = None


class CdcPipeline(Model):
    """Mirrors the tables of a database into Delta Lake from its change events."""

    api_version: Literal["lakemirror.io/v1alpha1"]
    kind: Literal["CdcPipeline"]
    metadata: Metadata
    spec: PipelineSpec
    status: PipelineStatus | None = None

    @property
    def name(self) -> str:
        return self.metadata.name

    @classmethod
    def from_dict(cls, document: Any) -> Self:
        """Return the pipeline of a document as parsed from YAML or JSON.

        Raises ManifestError with everything that is wrong.
        """
        return cls._validated(document, by_name=False)

    @classmethod
    def from_yaml(cls, text: str, *, most: int = MOST_NODES, aliases: bool = True) -> Self:
        """Return the pipeline of a YAML text with one document, of at most ``most`` values.

        Raises ManifestError with everything that is wrong.
        """
        documents = load_documents(text, most, aliases=aliases)
        if len(documents) != 1:
            raise ManifestError([("", f"one document is expected, found {len(documents)}")])
        return cls.from_dict(documents[0])

    @classmethod
    def load(cls, source: str | Path | IO[str]) -> Self:
        """Return the pipeline of a file, given by its path or open.

        Raises ManifestError with everything that is wrong, or if the file cannot be read.
        """
        return cls.from_yaml(read_text(source))

    def to_dict(self) -> dict[str, Any]:
        """Return the document, with what was set and no defaults."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)

    def to_yaml(self) -> str:
        """Return the YAML text, with what was set and no defaults."""
        return dump_document(self.to_dict())

    def run(self, *, once: bool = False, **options: Any) -> Any:
        """Mirror in this process and return a summary; see ``lakemirror.driver.runtime.runner.run``.

        With ``once``, it ends when everything that was there at the start is applied. Needs
        ``lakemirror[spark]``.
        """
        # By name: the contract must not depend on the driver.
        return importlib.import_module("lakemirror.driver.runtime.runner").run(self, once=once, **options)

    def read_at(self, position: str, **options: Any) -> Any:
        """Return what to read of each mirror to see the source as it was at ``position``.

        See ``lakemirror.driver.runtime.read_at.read_at``. Needs ``lakemirror[spark]``.
        """
        return importlib.import_module("lakemirror.driver.runtime.read_at").read_at(self, position, **options)

    @classmethod
    def _validated(cls, document: Any, *, by_name: bool) -> Self:
        deep = _too_deep(document)
        if deep is not None:
            raise ManifestError([(deep, f"is nested more than {_DEEPEST} levels deep")])
        errors = [] if by_name else list(_empty_fields(document))
        try:
            pipeline = cls.model_validate(document, by_alias=True, by_name=by_name)
        except ValidationError as e:
            known = {path for path, _ in errors}
            errors += [error for error in from_validation(e, document, cls).errors if error[0] not in known]
        if errors:
            raise ManifestError(errors)
        return pipeline


def Pipeline(  # noqa: N802 - it reads as the class it makes
    name: str,
    *,
    namespace: str | None = None,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    **spec: Any,
) -> CdcPipeline:
    """Return a pipeline from keyword arguments: the fields of ``spec``, in snake_case or as in YAML.

    >>> Pipeline("shop", source={"files": {"path": "in"}}, target={"path": "out/{table}"}, checkpoint="state")

    It equals the pipeline of a manifest that says the same. Raises ManifestError with everything that is
    wrong.
    """
    given = {"name": name, "namespace": namespace, "labels": labels, "annotations": annotations}
    document = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {field: value for field, value in given.items() if value is not None},
        "spec": spec,
    }
    return CdcPipeline._validated(document, by_name=True)


def read_text(source: str | Path | IO[str]) -> str:
    """Return the text of a file, given by its path or open. Raises ManifestError if it cannot be read."""
    try:
        return Path(source).read_text("utf-8") if isinstance(source, str | Path) else source.read()
    except (OSError, UnicodeDecodeError) as e:
        reason = e.strerror if isinstance(e, OSError) and e.strerror else str(e)
        raise ManifestError([("", f"cannot be read: {reason}")]) from None


_DEEPEST = 100
"""How deep a manifest may be nested. What reads it does so with recursion, and no pod is half as deep."""


def _too_deep(document: Any) -> str | None:
    """Return the field of ``spec`` that is nested too deep, if there is one."""
    level: list[tuple[tuple[str | int, ...], Any]] = [((), document)]
    for _ in range(_DEEPEST):
        level = [
            ((*loc, key) if len(loc) < 3 else loc, value)
            for loc, here in level
            for key, value in _entries(here)
        ]
    return path_of(level[0][0], document) if level else None


def _entries(here: Any) -> Iterable[tuple[str | int, Any]]:
    if isinstance(here, dict):
        return ((str(key), value) for key, value in here.items())
    return enumerate(here) if isinstance(here, list) else ()


def _empty_fields(document: Any) -> Iterator[tuple[str, str]]:
    """Yield the errors of fields without a value. What no API server checks is skipped."""

    def walk(here: Any, loc: tuple[str | int, ...]) -> Iterator[tuple[str, str]]:
        if here is None:
            quoted = loc[-1] == "onUnrepresentable"
            yield path_of(loc, document), 'write "null" in quotes' if quoted else _EMPTY
        elif isinstance(here, dict) and loc[-1:] != ("podTemplate",):
            for key, value in here.items():
                yield from walk(value, (*loc, str(key)))
        elif isinstance(here, list):
            for i, value in enumerate(here):
                yield from walk(value, (*loc, i))

    looked_at = ("apiVersion", "kind", "spec", "status")
    for name in looked_at if isinstance(document, dict) else ():
        if name in document:
            yield from walk(document[name], (name,))


_EMPTY = "is empty: give a value or leave the field out"
