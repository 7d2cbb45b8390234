"""Creates an empty Delta table at a path.

Delta's own transaction does this, without the command of Spark SQL around it, which takes many times as long
for the same commit. These are internals of delta-spark 4.4 (``org.apache.spark.sql.delta``), so check this
module when you change the version.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from lakemirror.driver.checkpoint.storage import file_system
from lakemirror.driver.java import java_class
from lakemirror.driver.raised import LakemirrorError
from lakemirror.driver.tables.delta import clear_unfinished, log_of

_DELTA = "org.apache.spark.sql.delta"
_NO_PROPERTIES: Mapping[str, str] = MappingProxyType({})


class FolderNotEmpty(LakemirrorError):
    """A new table is to be created in a folder that has other files."""


def create(
    spark: SparkSession,
    path: str,
    schema: StructType,
    properties: Mapping[str, str] = _NO_PROPERTIES,
    *,
    partitions: Sequence[str] = (),
    comment: str | None = None,
) -> None:
    """Create an empty table, unless there is one at the path.

    Its protocol is what its columns and properties need. ``partitions`` are the columns that divide its
    files. Raises FolderNotEmpty, and Delta's error if somebody else creates the table at the same time.
    """
    clear_unfinished(spark, path)
    transaction = log_of(spark, path).startTransaction()
    if transaction.readVersion() >= 0:
        return
    files, folder = file_system(spark, path)
    if files.exists(folder) and list(files.listStatus(folder)):
        raise FolderNotEmpty(
            f"{path} is not empty, and is not a Delta table: choose another target, or remove what is there"
        )
    transaction.updateMetadataForNewTable(_parsed(spark, _metadata(schema, properties, partitions, comment)))
    nothing = java_class(spark, "scala.Option").empty()
    operation = java_class(spark, f"{_DELTA}.DeltaOperations$CreateTable")
    no_actions = getattr(java_class(spark, "scala.collection.immutable.Nil$"), "MODULE$")
    transaction.commit(no_actions, operation(transaction.metadata(), False, False, nothing))


def _metadata(
    schema: StructType, properties: Mapping[str, str], partitions: Sequence[str], comment: str | None
) -> Mapping[str, Any]:
    """Return the metadata of a new table (PROTOCOL.md, Change Metadata)."""
    told = {
        "id": str(uuid.uuid4()),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema.json(),
        "partitionColumns": list(partitions),
        "configuration": dict(properties),
        "createdTime": time.time_ns() // 1_000_000,
    }
    return told if comment is None else {**told, "description": comment}


def _parsed(spark: SparkSession, metadata: Mapping[str, Any]) -> Any:
    """Return metadata as Delta's own object."""
    actions = java_class(spark, f"{_DELTA}.actions.Action")
    return actions.fromJson(json.dumps({"metaData": metadata}))
