"""What a pipeline must have for itself alone: its checkpoint and its targets. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from lakemirror.api import PipelineSpec
from lakemirror.api.tables import Target

Claim = tuple[str, str]
"""What it is, and where."""


def claims(spec: PipelineSpec, namespace: str) -> frozenset[Claim]:
    """What the spec needs: two pipelines that share one would write over each other.

    Paths of local file systems and names without a scheme mean something else in each namespace. Whether two
    templates that differ lead to one table shows only in the data: there the driver refuses.
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
    path = path.rstrip("/").replace("s3://", "s3a://", 1)
    shared = "://" in path and not path.startswith("file:")
    return path if shared else f"{path} in namespace {namespace}"
