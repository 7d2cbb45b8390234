"""What a pipeline must not share with any other: its checkpoint and its targets. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from lakemirror.api import PipelineSpec
from lakemirror.api.object_stores import one_spelling
from lakemirror.api.tables import Target

Claim = tuple[str, str]
"""What is claimed, and where it is."""


def claims(spec: PipelineSpec, namespace: str) -> frozenset[Claim]:
    """Return what the spec claims. Two pipelines with the same claim would overwrite each other's data.

    Paths of local file systems and paths without a scheme mean something different in each namespace. Only
    the data shows whether two different templates lead to the same table; in that case the driver refuses.
    """
    return frozenset(_claims(spec, namespace))


def _claims(spec: PipelineSpec, namespace: str) -> Iterator[Claim]:
    yield "checkpoint", _place(spec.checkpoint, namespace)
    if spec.unlisted == "mirror":
        yield _target(spec, spec.target, namespace)
    for table in spec.tables:
        if table.target is not None:
            yield _target(spec, table.target, namespace, table.source)
        elif spec.unlisted == "ignore":
            yield _target(spec, spec.target, namespace, table.source)


def _target(spec: PipelineSpec, target: Target, namespace: str, source: str = "") -> Claim:
    where = f"table {target.table}" if target.table is not None else _place(target.path or "", namespace)
    if spec.target.jdbc is not None:
        where = f"{where} of {spec.target.jdbc.url.partition('?')[0]}"
    return "target", f"{where} of {source}" if "{" in where and source else where


def _place(path: str, namespace: str) -> str:
    """Return a place that is spelled as all its other spellings are."""
    spelled = one_spelling(path)
    return spelled if "://" in spelled else f"{spelled} in namespace {namespace}"
