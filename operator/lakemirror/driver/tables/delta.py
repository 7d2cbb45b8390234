"""Delta tables by path, and names, types and text in SQL."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from delta import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import (
    ArrayType,
    CharType,
    DataType,
    MapType,
    StringType,
    StructField,
    StructType,
    VarcharType,
)

from lakemirror.driver.checkpoint.storage import file_system
from lakemirror.driver.java import delta_log, java_class

_LOG = "_delta_log"

_DAY: Final = 86_400
FILE_RETENTION: Final = "delta.deletedFileRetentionDuration"
"""How long the files of earlier versions are kept. Delta requires that the log reaches back as far."""
LOG_RETENTION: Final = "delta.logRetentionDuration"
MIRROR_LOG_SECONDS: Final = 7 * _DAY
"""How far back the log of a mirror reaches at least, unless a property of the table says otherwise."""
SIDE_LOG_SECONDS: Final = _DAY
"""The same for a table of our own. Nobody reads its earlier versions."""


def interval(seconds: int) -> str:
    """Return a duration as a table property has it."""
    return f"interval {seconds} seconds"


MIRROR_LOG: Mapping[str, str] = MappingProxyType(
    {"delta.checkpointInterval": "30", LOG_RETENTION: interval(MIRROR_LOG_SECONDS)}
)
"""Properties of a mirror's log.

A checkpoint of the log takes as long as three commits. A reader replays at most 30 small files.
"""
SELDOM_READ: Mapping[str, str] = MappingProxyType(
    {
        "delta.checkpointInterval": "100",
        LOG_RETENTION: interval(SIDE_LOG_SECONDS),
        FILE_RETENTION: interval(SIDE_LOG_SECONDS),
    }
)
"""Properties of a table that is read only at startup."""


def snapshot(spark: SparkSession, path: str) -> Any:
    """Return Delta's own snapshot object for the newest version (org.apache.spark.sql.delta.Snapshot)."""
    log = delta_log(spark, path)
    nothing = java_class(spark, "scala.Option").empty()
    return log.update(False, nothing, nothing)


def seen(spark: SparkSession, path: str) -> Any:
    """Return the newest snapshot that this process has seen, without asking the storage.

    It has at least what this process has committed itself.
    """
    return delta_log(spark, path).unsafeVolatileSnapshot()


def configuration(newest: Any) -> dict[str, str]:
    """Return the table properties in a snapshot, as they are set."""
    pairs = newest.metadata().configuration().iterator()
    found = {}
    while pairs.hasNext():
        pair = pairs.next()
        found[str(pair._1())] = str(pair._2())
    return found


def path_of(table: DeltaTable) -> str:
    """Return the path of a table."""
    detail = table.detail().select("location").first()
    assert detail is not None
    return str(detail[0])


def is_table(spark: SparkSession, path: str) -> bool:
    """Return whether there is a Delta table at exactly this path.

    Delta's own check also accepts folders inside a table.
    """
    return int(snapshot(spark, path).version()) >= 0


def read(spark: SparkSession, path: str) -> DataFrame | None:
    """Return the rows of the table at this path, or None if there is none."""
    return spark.read.format("delta").load(path) if is_table(spark, path) else None


def applied(spark: SparkSession, path: str, app_id: str) -> int | None:
    """Return the newest transaction version in the log at ``path`` for ``app_id``, or None."""
    return applied_at(snapshot(spark, path), app_id)


def applied_at(newest: Any, app_id: str) -> int | None:
    """Return the newest transaction version in a snapshot for ``app_id``, or None if there is none.

    Delta's checksum file of the version lists them if there are not many. Otherwise, Delta computes the state
    of the log, which takes a job.
    """
    checksum = newest.checksumOpt()
    listed = checksum.get().setTransactions() if checksum.isDefined() else checksum
    if listed.isDefined():
        every = listed.get()
        transactions = (every.apply(i) for i in range(every.size()))
        return max((int(each.version()) for each in transactions if each.appId() == app_id), default=None)
    found = newest.transactions().get(app_id)
    return int(found.get()) if found.isDefined() else None


def append(rows: DataFrame, path: str, properties: Mapping[str, str] = MappingProxyType({})) -> None:
    """Append rows as one commit and one file, and add columns that the table lacks.

    If the table does not exist, the same commit creates it, with ``properties``.
    """
    writer = rows.coalesce(1).write.format("delta").mode("append").option("mergeSchema", "true")
    if not is_table(rows.sparkSession, path):
        clear_unfinished(rows.sparkSession, path)
        writer = writer.options(**properties)
    writer.save(path)


def create(rows: DataFrame, path: str, properties: Mapping[str, str]) -> None:
    """Create a table with ``rows`` in one commit and one file. Raises Delta's error if it already exists."""
    clear_unfinished(rows.sparkSession, path)
    rows.coalesce(1).write.format("delta").mode("errorifexists").options(**properties).save(path)


def clear_unfinished(spark: SparkSession, path: str) -> None:
    """Remove what a crash left of a table at ``path`` while its first commit was being written.

    If a log folder contains only a temporary file, Delta sees no table when it reads, but an existing one
    when it creates the table.
    """
    files, log = file_system(spark, f"{path}/{_LOG}")
    left = list(files.listStatus(log)) if files.exists(log) else []
    if not all(_is_temporary(entry.getPath().getName()) for entry in left):
        return
    for entry in left:
        files.delete(entry.getPath(), False)
    files.delete(log, False)


def _is_temporary(name: str) -> bool:
    return (name.startswith(".") and name.endswith(".tmp")) or name == "_staged_commits"


def quoted(name: str) -> str:
    """Return a column's name quoted for SQL."""
    return "`" + name.replace("`", "``") + "`"


def ddl(kind: DataType) -> str:
    """Return a type in SQL. Unlike ``simpleString``, this quotes the names of a struct's fields."""
    if isinstance(kind, ArrayType):
        return f"ARRAY<{ddl(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"MAP<{ddl(kind.keyType)}, {ddl(kind.valueType)}>"
    if isinstance(kind, StructType):
        members = ", ".join(f"{quoted(field.name)}: {ddl(field.dataType)}" for field in kind.fields)
        return f"STRUCT<{members}>"
    return kind.simpleString()


def unlimited(kind: DataType) -> DataType:
    """Return the type with STRING for texts of a limited length, which Spark does not keep apart from it."""
    if isinstance(kind, ArrayType):
        return ArrayType(unlimited(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(unlimited(kind.keyType), unlimited(kind.valueType))
    if isinstance(kind, StructType):
        return StructType([StructField(each.name, unlimited(each.dataType)) for each in kind.fields])
    return StringType() if isinstance(kind, (CharType, VarcharType)) else kind


def sql_text(text: str) -> str:
    """Return a text as an SQL literal."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
