"""Which tables may be written here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from lakemirror.driver.writer.actions import Metadata, Protocol
from lakemirror.driver.writer.features import may_be_written, what_may_be_written
from lakemirror.driver.writer.snapshot import Snapshot

PLAIN = Protocol(1, 2)


def field(name: str, kind: Any, nullable: bool = True, **metadata: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": nullable, "metadata": metadata}


def metadata(
    *fields: dict[str, Any],
    partitions: tuple[str, ...] = (),
    provider: str = "parquet",
    properties: Mapping[str, str] | None = None,
) -> Metadata:
    listed = [field("id", "long"), *fields]
    return Metadata(
        {
            "id": "m",
            "format": {"provider": provider, "options": {}},
            "schemaString": json.dumps({"type": "struct", "fields": listed}),
            "partitionColumns": list(partitions),
            "configuration": dict(properties or {}),
        }
    )


def features(*names: str) -> Protocol:
    return Protocol(3, 7, names, names)


def struct(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": list(fields)}


MAP = {"type": "map", "keyType": "string", "valueType": "long"}
KNOWN = ("deletionVectors", "columnMapping", "timestampNtz", "appendOnly", "invariants", "checkConstraints")


@pytest.mark.parametrize(
    ("protocol", "about"),
    [
        (PLAIN, metadata()),
        (Protocol(2, 6), metadata(properties={"delta.columnMapping.mode": "name"})),
        (features(*KNOWN), metadata(properties={"delta.enableDeletionVectors": "true"})),
        (features("clustering", "domainMetadata", "v2Checkpoint"), metadata()),
        (
            Protocol(1, 7, None, ("checkpointProtection",)),
            metadata(properties={"delta.requireCheckpointProtectionBeforeVersion": "7"}),
        ),
        (PLAIN, metadata(field("p", "decimal(10,2)"), partitions=("p",))),
        (PLAIN, metadata(field("x", "string", comment="c", **{"delta.columnMapping.id": 1}))),
        (PLAIN, metadata(properties={"lakemirror.source": "x", "delta.checkpointInterval": "30"})),
        (PLAIN, metadata(properties={"delta.appendOnly": "false", "delta.feature.invariants": "supported"})),
    ],
)
def test_tables_that_may(protocol: Protocol, about: Metadata) -> None:
    assert what_may_be_written(protocol, about) is None


@pytest.mark.parametrize(
    ("protocol", "about", "reason"),
    [
        (Protocol(4, 7), metadata(), "protocol"),
        (Protocol(3, 8), metadata(), "protocol"),
        (features("rowTracking"), metadata(), "feature rowTracking"),
        (features("inCommitTimestamp"), metadata(), "feature inCommitTimestamp"),
        (features("catalogManaged"), metadata(), "feature catalogManaged"),
        (features("icebergCompatV2"), metadata(), "feature icebergCompatV2"),
        (features("allowColumnDefaults"), metadata(), "feature allowColumnDefaults"),
        (features("variantType"), metadata(field("v", "variant")), "feature variantType"),
        (features("somethingNew"), metadata(), "feature somethingNew"),
        (PLAIN, metadata(field("v", "variant")), "type variant"),
        (PLAIN, metadata(field("v", {"type": "array", "elementType": "void", "containsNull": True})), "void"),
        (PLAIN, metadata(field("x", "string", nullable=False)), "must not be null"),
        (PLAIN, metadata(field("s", struct(field("x", "long", nullable=False)))), "must not be null"),
        (PLAIN, metadata(field("s", struct())), "struct without fields"),
        (
            PLAIN,
            metadata(field("a", {"type": "array", "elementType": "long", "containsNull": False})),
            "null",
        ),
        (
            PLAIN,
            metadata(field("m", {**MAP, "valueContainsNull": False})),
            "must not be null",
        ),
        (PLAIN, metadata(field("x", "long", **{"delta.invariants": "{}"})), "delta.invariants"),
        (PLAIN, metadata(field("x", "long", **{"delta.generationExpression": "id"})), "generationExpression"),
        (PLAIN, metadata(field("x", "long", **{"delta.identity.step": 1})), "delta.identity.step"),
        (PLAIN, metadata(field("x", "long", CURRENT_DEFAULT="1")), "CURRENT_DEFAULT"),
        (PLAIN, metadata(field("x", "string", __CHAR_VARCHAR_TYPE_STRING="char(3)")), "CHAR_VARCHAR"),
        (PLAIN, metadata(field("x", "string", __COLLATIONS={"x": "icu.UNICODE"})), "COLLATIONS"),
        (PLAIN, metadata(properties={"delta.constraints.positive": "id > 0"}), "delta.constraints.positive"),
        (PLAIN, metadata(properties={"delta.appendOnly": "true"}), "appendOnly"),
        (PLAIN, metadata(properties={"delta.enableRowTracking": "true"}), "enableRowTracking"),
        (PLAIN, metadata(properties={"delta.universalFormat.enabledFormats": "iceberg"}), "universalFormat"),
        (PLAIN, metadata(properties={"delta.columnMapping.mode": "other"}), "column mapping"),
        (PLAIN, metadata(provider="orc"), "orc"),
        (PLAIN, metadata(field("p", "double"), partitions=("p",)), "partition column p"),
        (PLAIN, metadata(field("p", "binary"), partitions=("p",)), "partition column p"),
        (PLAIN, metadata(partitions=("id",)), "all its columns"),
    ],
)
def test_tables_that_may_not(protocol: Protocol, about: Metadata, reason: str) -> None:
    found = what_may_be_written(protocol, about)
    assert found is not None
    assert reason in found


def test_clustering_by_fields_of_structs_is_left_to_delta() -> None:
    assert what_may_be_written(PLAIN, metadata(), [("id",)]) is None
    assert what_may_be_written(PLAIN, metadata(), [("s", "x")]) is not None


def test_without_the_domains_it_is_not_known() -> None:
    snapshot = Snapshot(0, PLAIN, metadata())
    assert may_be_written(snapshot) is None
    assert may_be_written(Snapshot(0, PLAIN, metadata(), domains=None)) is not None
