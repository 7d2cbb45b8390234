"""What the contract has and this version does not do: refused by name before anything runs, never ignored.

There are two kinds: what is not built yet (``GAPS``, from which the rules of the CRD are made, too), and
fields that would have no effect beside others. `lakemirror validate` and `render`, the operator and the
driver all ask ``not_supported``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lakemirror.api.errors import Loc, path_of
from lakemirror.api.spec import Ordering, PipelineSpec, Restart

Found = tuple[Loc, str]
"""Where a field stands below spec, and why it is refused."""


@dataclass(frozen=True)
class Gap:
    """A field that is not supported: at all, or some of its ``values``; ``instead`` says what to do.

    ``path`` is dotted, below spec, with ``[]`` after a list.
    """

    path: str
    instead: str
    values: tuple[str, ...] = ()

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(self.path.replace("[]", ".[]").split("."))

    def message(self, value: Any) -> str:
        said = f"{value} is" if self.values else "is"
        return f"{said} not supported yet: {self.instead}"

    @property
    def rule(self) -> tuple[str, str]:
        """The same as an expression in CEL on the object that has the field, and its message."""
        field = self.parts[-1]
        others = " && ".join(f"self.{field} != '{value}'" for value in self.values)
        rule = f"!has(self.{field}) || ({others})" if self.values else f"!has(self.{field})"
        what = f"{field} {' and '.join(self.values)}" if self.values else field
        return rule, f"{what}: not supported yet: {self.instead}"


GAPS = (
    Gap("source.changeFeed", "read from kafka or files"),
    Gap("source.files.format", "use records", ("json", "avro", "parquet", "csv")),
    Gap("source.kafka.security.protocol", "use PLAINTEXT or SSL", ("SASL_PLAINTEXT", "SASL_SSL")),
    Gap("envelope.format", "use debezium", ("debezium-flat", "maxwell", "custom")),
    Gap("envelope.encoding", "use json", ("avro",)),
    Gap("defaults.mode", "use scd1 or append", ("scd2",)),
    Gap("tables[].mode", "use scd1 or append", ("scd2",)),
    Gap("tables[].filter", "leave it out, and filter when reading the mirror"),
    Gap("tables[].onConflict", "use replace", ("fail",)),
    Gap("ordering.by", "use auto, lsn, binlog, timestamp or offset", ("columns",)),
    Gap("maintenance", "leave it out, and run OPTIMIZE and VACUUM from another job"),
)


def not_supported(spec: PipelineSpec) -> list[tuple[str, str]]:
    """All that is refused, as pairs of a field's path (``spec.tables[public.a].mode``) and the reason."""
    document = {"spec": spec.model_dump(mode="json", by_alias=True, exclude_none=True)}
    found = [*_missing(document["spec"]), *_without_effect(spec)]
    return [(path_of(("spec", *loc), document), message) for loc, message in found]


def _missing(spec: Mapping[str, Any]) -> Iterator[Found]:
    for gap in GAPS:
        for loc, value in _values(spec, gap.parts):
            if not gap.values or value in gap.values:
                yield loc, gap.message(value)


def _values(node: Any, parts: Sequence[str], at: Loc = ()) -> Iterator[tuple[Loc, Any]]:
    """All values at a path, and where each stands."""
    if not parts:
        yield at, node
    elif parts[0] == "[]":
        for index, each in enumerate(node):
            yield from _values(each, parts[1:], (*at, index))
    elif parts[0] in node:
        yield from _values(node[parts[0]], parts[1:], (*at, parts[0]))


# -- fields without effect ----------------------------------------------------------------------------


def _without_effect(spec: PipelineSpec) -> Iterator[Found]:
    yield from _of_operator(spec)
    yield from _of_source(spec)
    yield from _of_tables(spec)
    envelope, ordering = spec.envelope, spec.ordering
    if envelope.encoding == "json" and envelope.schema_registry is not None:
        yield ("envelope", "schemaRegistry"), "has no effect with encoding json: leave it out"
    if ordering.by in ("timestamp", "offset") and ordering.tolerance_ms != Ordering().tolerance_ms:
        why = f"has no effect with by: {ordering.by}, which reads no positions: leave it out"
        yield ("ordering", "toleranceMs"), why


def _of_operator(spec: PipelineSpec) -> Iterator[Found]:
    backend = spec.spark.backend
    if backend != "native" and spec.trigger.schedule is not None:
        why = f"has no effect with spark.backend: {backend}: set spark.backend: native, which has schedules"
        yield ("trigger", "schedule"), why
    if backend == "kubeflow" and spec.restart.reset_after != Restart().reset_after:
        why = "has no effect with spark.backend: kubeflow, which forgives no failures: leave it out"
        yield ("restart", "resetAfter"), why


def _of_source(spec: PipelineSpec) -> Iterator[Found]:
    """Positions in topics that are not read."""
    kafka = spec.source.kafka
    if kafka is None or kafka.topics is None:
        return
    why = "is not one of source.kafka.topics: add it there, or leave it out here"
    if isinstance(kafka.starting_offsets, dict):
        for topic in sorted(kafka.starting_offsets.keys() - set(kafka.topics)):
            yield ("source", "kafka", "startingOffsets", topic), why
    for index, epoch in enumerate(spec.ordering.epochs):
        for topic in sorted(epoch.from_.keys() - set(kafka.topics)):
            yield ("ordering", "epochs", index, "from", topic), why


def _of_tables(spec: PipelineSpec) -> Iterator[Found]:
    """What means nothing for tables that are appended to."""
    defaults, why = spec.defaults, "has no effect with mode append, which keeps every event as a row"
    appended = [(table.mode or defaults.mode) == "append" for table in spec.tables]
    for index, table in enumerate(spec.tables):
        for field, name in ((table.delete, "delete"), (table.primary_key, "primaryKey")):
            if appended[index] and field is not None:
                yield ("tables", index, name), f"{why}: leave it out, or set mode: scd1"
    tables = zip(appended, spec.tables, strict=True)
    follows = any(not append and table.delete is None for append, table in tables)
    if defaults.mode == "append" and defaults.delete.type == "soft" and not follows:
        yield ("defaults", "delete"), f"{why}: leave it out, or set mode: scd1"
