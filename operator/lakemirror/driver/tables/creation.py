"""Creates an empty Delta table at a path.

Delta's own transaction says what protocol the table gets, and its metadata. The entry of the log and its
checksum file are then written here, where that is all that the table needs: the command of Spark SQL takes a
job for it, and more than twice the time. These are internals of delta-spark 4.4
(``org.apache.spark.sql.delta``), so check this module when you change the version.
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
from lakemirror.driver.java import delta_log, java_class
from lakemirror.driver.raised import LakemirrorError
from lakemirror.driver.tables.delta import clear_unfinished
from lakemirror.driver.writer import checksum, entry, exact_json
from lakemirror.driver.writer.actions import Action, Creation, Metadata, Protocol
from lakemirror.driver.writer.features import what_may_be_written
from lakemirror.driver.writer.java_store import DeltaLogStore
from lakemirror.driver.writer.snapshot import begun

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
    transaction = delta_log(spark, path).startTransaction()
    if transaction.readVersion() >= 0:
        return
    files, folder = file_system(spark, path)
    if files.exists(folder) and list(files.listStatus(folder)):
        raise FolderNotEmpty(
            f"{path} is not empty, and is not a Delta table: choose another target, or remove what is there"
        )
    told = Metadata.new(schema.json(), properties, time.time_ns() // 1_000_000, partitions).given
    described = told if comment is None else {**told, "description": comment}
    transaction.updateMetadataForNewTable(_parsed(spark, described))
    protocol = Protocol.parse(_members(transaction.protocol(), "protocol"))
    metadata = Metadata(_members(transaction.metadata(), "metaData"))
    if what_may_be_written(protocol, metadata) is None:
        _begin(DeltaLogStore(spark, path), protocol, metadata)
    else:
        _commit(spark, transaction)


def _begin(log: DeltaLogStore, protocol: Protocol, metadata: Metadata) -> None:
    """Write the first entry of a log, and its checksum file, without which Delta reads it by a job."""
    info = Creation(str(uuid.uuid4()), metadata, time.time_ns() // 1_000_000)
    actions: list[Action] = [metadata, protocol]
    entry.begin(log, info, actions)
    text = checksum.text_of(begun(0, actions), info.id)
    if text is not None:
        log.replace(checksum.name_of(0), text)


def _commit(spark: SparkSession, transaction: Any) -> None:
    nothing = java_class(spark, "scala.Option").empty()
    operation = java_class(spark, f"{_DELTA}.DeltaOperations$CreateTable")
    no_actions = getattr(java_class(spark, "scala.collection.immutable.Nil$"), "MODULE$")
    transaction.commit(no_actions, operation(transaction.metadata(), False, False, nothing))


def _parsed(spark: SparkSession, metadata: Mapping[str, Any]) -> Any:
    """Return metadata as Delta's own object."""
    actions = java_class(spark, f"{_DELTA}.actions.Action")
    return actions.fromJson(json.dumps({"metaData": metadata}))


def _members(action: Any, name: str) -> Any:
    """Return the members of an action of Delta's, as they are in the log."""
    return exact_json.loads(action.json())[name]
