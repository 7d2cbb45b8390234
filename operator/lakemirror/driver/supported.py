"""What the contract has and this driver does not do yet: refused by name, never ignored."""

from __future__ import annotations

from collections.abc import Iterator

from lakemirror.api import CdcPipeline
from lakemirror.api.source import Envelope, Source
from lakemirror.api.spec import PipelineSpec
from lakemirror.driver.errors import LakemirrorError


class NotSupportedYet(LakemirrorError):
    """A field asks for something that is not built yet."""

    def __init__(self, field: str, value: object) -> None:
        super().__init__(f"{field}: {value} is not supported yet")


def require_supported(pipeline: CdcPipeline) -> None:
    """Raises NotSupportedYet for the first field that asks for what is not built yet."""
    for field, value in _not_supported(pipeline.spec):
        raise NotSupportedYet(f"spec.{field}", value)


def _not_supported(spec: PipelineSpec) -> Iterator[tuple[str, object]]:
    yield from _of_source(spec.source)
    yield from _of_envelope(spec.envelope)
    yield from _of_tables(spec)
    if spec.ordering.by == "columns":
        yield "ordering.by", spec.ordering.by
    if spec.maintenance is not None:
        yield "maintenance", "compaction between batches"


def _of_source(source: Source) -> Iterator[tuple[str, object]]:
    if source.change_feed is not None:
        yield "source.changeFeed", "reading a change data feed"
    if source.files is not None and source.files.format != "records":
        yield "source.files.format", source.files.format
    security = source.kafka.security if source.kafka is not None else None
    if security is not None and security.mechanism is not None:
        yield "source.kafka.security.protocol", security.protocol


def _of_envelope(envelope: Envelope) -> Iterator[tuple[str, object]]:
    if envelope.format != "debezium":
        yield "envelope.format", envelope.format
    if envelope.encoding != "json":
        yield "envelope.encoding", envelope.encoding


def _of_tables(spec: PipelineSpec) -> Iterator[tuple[str, object]]:
    if spec.defaults.mode == "scd2":
        yield "defaults.mode", spec.defaults.mode
    for table in spec.tables:
        at = f"tables[{table.source}]"
        if table.mode == "scd2":
            yield f"{at}.mode", table.mode
        if table.filter is not None:
            yield f"{at}.filter", "a row filter"
        if table.on_conflict != "replace":
            yield f"{at}.onConflict", table.on_conflict
