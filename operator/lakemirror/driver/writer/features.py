"""Which tables may be written without Delta's own transaction: those of which everything is known.

`what_may_be_written` refuses all else. Delta enforces constraints, fills generated and identity columns and
numbers rows when it writes rows; rows of such tables have to be written by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from lakemirror.driver.writer.actions import Metadata, Protocol
from lakemirror.driver.writer.partitions import may_divide
from lakemirror.driver.writer.schema import Column, Group, ListOf, MapOf, Unknown, parse, types_within, within
from lakemirror.driver.writer.snapshot import Snapshot

VECTORS_PROPERTY: Final = "delta.enableDeletionVectors"
CHANGE_FEED_PROPERTY: Final = "delta.enableChangeDataFeed"

FEATURES: Final = frozenset(
    {
        # Demand something only where they are in use, which is looked for:
        *("appendOnly", "invariants", "checkConstraints", "generatedColumns", "identityColumns"),
        # Are carried out here:
        *("columnMapping", "deletionVectors", "timestampNtz", "changeDataFeed", "clustering"),
        # Demand nothing of a commit that only adds and removes files:
        *("typeWidening", "typeWidening-preview", "domainMetadata", "v2Checkpoint", "vacuumProtocolCheck"),
        # Demands something of who deletes from the log. A table gets it when another feature is dropped:
        "checkpointProtection",
    }
)
"""The writer features of tables that may be written here."""

_READER, _WRITER = 3, 7
"""The highest versions of the protocol that are known."""

_PROPERTIES: Final = frozenset(
    "delta." + name
    for name in (
        *("appendOnly", "checkpointInterval", "checkpointPolicy", "columnMapping.maxColumnId"),
        *("checkpoint.writeStatsAsJson", "checkpoint.writeStatsAsStruct", "columnMapping.mode"),
        *("dataSkippingNumIndexedCols", "dataSkippingStatsColumns", "deletedFileRetentionDuration"),
        *("enableChangeDataFeed", "enableDeletionVectors", "enableExpiredLogCleanup", "enableTypeWidening"),
        *("isolationLevel", "logRetentionDuration", "minReaderVersion", "minWriterVersion"),
        *("randomPrefixLength", "randomizeFilePrefixes", "requireCheckpointProtectionBeforeVersion"),
        *("sampleRetentionDuration", "targetFileSize"),
        *("setTransactionRetentionDuration", "tuneFileSizesForRewrites"),
        *("autoOptimize", "autoOptimize.autoCompact", "autoOptimize.optimizeWrite"),
    )
)
"""Properties that demand nothing of a writer but what is done here."""
_FEATURE: Final = "delta.feature."
_MAPPINGS: Final = ("none", "name", "id")

_METADATA: Final = frozenset(
    f"delta.columnMapping.{name}" for name in ("id", "physicalName", "nested.ids")
) | {"delta.typeChanges"}
_OF_SPARK: Final = ("CURRENT_DEFAULT", "EXISTS_DEFAULT")


def what_may_be_read(protocol: Protocol) -> str | None:
    """Return None if what a table's log means is known here, or why it is not."""
    unknown = sorted({*(protocol.reader_features or ())} - FEATURES)
    if protocol.reader > _READER:
        return f"its protocol is {protocol.reader}, {protocol.writer}"
    return f"it has the feature {unknown[0]}" if unknown else None


def what_may_be_written(
    protocol: Protocol, metadata: Metadata, clustered: Iterable[tuple[str, ...]] = ()
) -> str | None:
    """Return None if a table may be written here, or why it may not.

    ``clustered`` are its clustering columns (`Snapshot.clustered`).
    """
    columns = parse(metadata.schema)
    reasons = (
        *_of_protocol(protocol),
        *_of_properties(metadata.properties),
        *_of_columns(columns),
        *_of_layout(metadata, columns, clustered),
    )
    return next(iter(reasons), None)


def may_be_written(snapshot: Snapshot) -> str | None:
    """Return None if the table of a snapshot may be written here, or why it may not."""
    if snapshot.domains is None:
        return "its clustering columns are not known"
    return what_may_be_written(snapshot.protocol, snapshot.metadata, snapshot.clustered)


def may_hide_rows(metadata: Metadata) -> bool:
    """Return whether files may get deletion vectors (PROTOCOL.md, Deletion Vectors, Writer Requirements)."""
    return metadata.properties.get(VECTORS_PROPERTY, "false").lower() == "true"


def has_change_feed(metadata: Metadata) -> bool:
    """Return whether commits that change or delete rows need change files."""
    return metadata.properties.get(CHANGE_FEED_PROPERTY, "false").lower() == "true"


def _of_protocol(protocol: Protocol) -> Iterator[str]:
    if protocol.reader > _READER or protocol.writer > _WRITER:
        yield f"its protocol is {protocol.reader}, {protocol.writer}"
    listed = {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
    for each in sorted(listed - FEATURES):
        yield f"it has the feature {each}"


def _of_properties(properties: Mapping[str, str]) -> Iterator[str]:
    for name, value in sorted(properties.items()):
        if name.startswith(_FEATURE) or not name.startswith("delta."):
            continue
        if name not in _PROPERTIES:
            yield f"it has the property {name}"
        elif name == "delta.appendOnly" and value.lower() != "false":
            yield "its rows must not be changed (delta.appendOnly)"
        elif name == "delta.columnMapping.mode" and value not in _MAPPINGS:
            yield f"its column mapping is {value}"


def _of_columns(columns: Iterable[Column]) -> Iterator[str]:
    listed = tuple(columns)
    for kind in types_within(listed):
        if isinstance(kind, Unknown):
            yield f"it has a column of type {kind.name}"
        if isinstance(kind, Group) and not kind.fields:
            yield "it has a struct without fields"
        if isinstance(kind, (ListOf, MapOf)) and not kind.nullable:
            yield "it has an array or a map whose values must not be null"
    for each in within(listed):
        if not each.nullable:
            yield f"its column {each.name} must not be null"
        for name in sorted(each.metadata):
            if not _is_known(name):
                yield f"its column {each.name} has {name}"


def _is_known(name: str) -> bool:
    special = name.startswith(("delta.", "__")) or name in _OF_SPARK
    return not special or name in _METADATA


def _of_layout(
    metadata: Metadata, columns: Iterable[Column], clustered: Iterable[tuple[str, ...]]
) -> Iterator[str]:
    if metadata.provider != "parquet":
        yield f"its files are {metadata.provider}"
    kinds = {each.name: each.type for each in columns}
    for name in metadata.partitions:
        if name not in kinds or not may_divide(kinds[name]):
            yield f"its partition column {name} is of a type that is not written here"
    if not set(kinds) - set(metadata.partitions):
        yield "all its columns are partition columns"
    if any(len(path) != 1 for path in clustered):
        yield "it is clustered by a field of a struct"
