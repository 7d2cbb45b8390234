"""Settings of Spark SQL and Delta that may be set, and the values on which mirrors rely.

A setting such as ``spark.sql.session.timeZone`` changes what values, times and orders mean, and a mirror that
was written under two of its values agrees with neither. Every ``spark.sql.*`` and
``spark.databricks.delta.*`` setting is therefore refused by name, unless it changes only speed, says where
tables are (catalogs), or has the value that the driver uses anyway.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from lakemirror.api.object_stores import FILE_MANAGER_SETTING

OURS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.ansi.enabled": "true",
        "spark.sql.caseSensitive": "false",
        "spark.sql.timestampType": "TIMESTAMP_LTZ",
        "spark.sql.storeAssignmentPolicy": "ANSI",
        "spark.sql.mapKeyDedupPolicy": "EXCEPTION",
        # A column may be called ${env:HOME}.
        "spark.sql.variable.substitute": "false",
        # A column may be called s: inside a lambda function, s.seq would then be a field of its new value.
        "spark.sql.lateralColumnAlias.enableImplicitResolution": "false",
        # Spark's own default is the old INT96, which takes a seventh of the time of rewriting a file.
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.parquet.writeLegacyFormat": "false",
        "spark.sql.parquet.binaryAsString": "false",
        "spark.sql.files.ignoreCorruptFiles": "false",
        "spark.sql.files.ignoreMissingFiles": "false",
    }
)
"""What the driver sets whatever its image says."""

ENGINE: Final = "spark.lakemirror.engine"
IN_COLUMNS: Final = "columns"
"""The value of `ENGINE` with which plain changes are applied in columns, which is the default."""
BY_SPARK: Final = "spark"
"""The value of `ENGINE` with which all changes are applied by Spark's own plans."""
WRITER: Final = "spark.lakemirror.writer"
MERGE: Final = "merge"
"""The value of `WRITER` with which Spark writes every table with MERGE."""
LAKEMIRRORS: Final = MappingProxyType({WRITER: (MERGE,), ENGINE: (IN_COLUMNS, BY_SPARK)})
"""The settings of Lakemirror among those of Spark, each with its values."""

_GOVERNED: Final = ("spark.sql.", "spark.databricks.delta.")
_WHOLE: Final = frozenset(
    {
        "spark.sql.artifact.isolation.enabled",  # Spark sets it itself
        "spark.sql.autoBroadcastJoinThreshold",
        "spark.sql.broadcastExchange.maxThreadThreshold",
        "spark.sql.broadcastTimeout",
        "spark.sql.constraintPropagation.enabled",
        "spark.sql.dataFrameQueryContext.enabled",
        "spark.sql.debug.maxToStringFields",
        "spark.sql.event.truncate.length",
        "spark.sql.exchange.reuse",
        "spark.sql.execution.topKSortFallbackThreshold",
        "spark.sql.execution.useObjectHashAggregateExec",
        "spark.sql.files.maxPartitionBytes",
        "spark.sql.files.maxPartitionNum",
        "spark.sql.files.minPartitionNum",
        "spark.sql.files.openCostInBytes",
        "spark.sql.join.preferSortMergeJoin",
        "spark.sql.leafNodeDefaultParallelism",
        "spark.sql.maxPlanStringLength",
        "spark.sql.objectHashAggregate.sortBased.fallbackThreshold",
        "spark.sql.parquet.aggregatePushdown",
        "spark.sql.parquet.columnarReaderBatchSize",
        "spark.sql.parquet.compression.codec",
        "spark.sql.parquet.enableNestedColumnVectorizedReader",
        "spark.sql.parquet.enableVectorizedReader",
        "spark.sql.parquet.filterPushdown",
        "spark.sql.shuffle.partitions",
        "spark.sql.sources.parallelPartitionDiscovery.parallelism",
        "spark.sql.sources.parallelPartitionDiscovery.threshold",
        "spark.sql.streaming.metricsEnabled",
        "spark.sql.streaming.numRecentProgressUpdates",
        "spark.sql.streaming.pollingDelay",
        "spark.databricks.delta.checkpoint.partSize",
        "spark.databricks.delta.delta.log.cacheSize",
        "spark.databricks.delta.merge.repartitionBeforeWrite.enabled",
        "spark.databricks.delta.properties.defaults.enableDeletionVectors",
        "spark.databricks.delta.snapshotPartitions",
        "spark.databricks.delta.stats.skipping",
        "spark.databricks.delta.vacuum.parallelDelete.enabled",
        "spark.databricks.delta.vacuum.parallelDelete.parallelism",
    }
)
_BELOW: Final = (
    "spark.sql.adaptive.",
    "spark.sql.cartesianProductExec.buffer.",
    "spark.sql.cbo.",
    "spark.sql.codegen.",
    "spark.sql.inMemoryColumnarStorage.",
    "spark.sql.optimizer.dynamicPartitionPruning.",
    "spark.sql.optimizer.runtime.",
    "spark.sql.planChangeLog.",
    "spark.sql.shuffledHashJoin",
    "spark.sql.sortMergeJoinExec.buffer.",
    "spark.sql.statistics.",
    "spark.sql.ui.",
    "spark.sql.windowExec.buffer.",
    "spark.databricks.delta.autoCompact.",
    "spark.databricks.delta.optimize.",
    "spark.databricks.delta.optimizeWrite.",
)
"""Settings that change only speed, memory and what is displayed, by name and by how their names begin."""
_ELSEWHERE: Final = re.compile(
    r"spark\.sql\.(catalog\..+|catalogImplementation|defaultCatalog|warehouse\.dir|hive\.metastore\..+|redaction\..+)"
)
"""Settings that say where tables are, or what logs must not show."""


def changes_results(name: str) -> bool:
    """Return whether a setting of Spark may change what a mirror contains, as far as that is known."""
    if not name.startswith(_GOVERNED) or name in _WHOLE or name.startswith(_BELOW):
        return False
    return name != FILE_MANAGER_SETTING and _ELSEWHERE.fullmatch(name) is None


def in_columns(conf: Mapping[str, str]) -> bool:
    """Return whether plain changes are applied in columns: unless a setting asks for Spark's own plans.

    `WRITER` does, too, because it has every table merged. Where both are given, `ENGINE` decides.
    """
    unsaid = BY_SPARK if conf.get(WRITER) == MERGE else IN_COLUMNS
    return (conf.get(ENGINE) or unsaid) == IN_COLUMNS


def refused(conf: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the settings that may change what a mirror contains, by name, each with what to do."""
    for name, value in conf.items():
        if name.startswith("spark.lakemirror.") and value not in LAKEMIRRORS.get(name, ()):
            known = " and ".join(f"{each}: {' or '.join(values)}" for each, values in LAKEMIRRORS.items())
            yield name, f"has no effect: of these settings there are only {known}. Leave it out"
        if not changes_results(name):
            continue
        ours = OURS.get(name)
        if ours is None:
            yield (
                name,
                "may change what mirrors contain, and not only how fast they are written: leave it out",
            )
        elif value.strip().lower() != ours.lower():
            yield name, f"changes what mirrors contain: leave it out, or give the driver's own value, {ours}"


_READ_AT_SUBMISSION: Final = re.compile(
    r"spark\.(master|submit\..+|kerberos\..+|security\.credentials\..+|jars\.ivy|jars\.ivySettings)"
    r"|spark\.kubernetes\.(namespace|context|file\.upload\.path|kerberos\.krb5\.path"
    r"|authenticate\.(submission\..+|caCertFile|clientKeyFile|clientCertFile|oauthTokenFile)"
    r"|(driver|executor)\.(podTemplateFile|pod\.\w*[fF]eatureSteps))"
)
_FILES_TO_SUBMIT: Final = frozenset({"spark.files", "spark.jars", "spark.archives", "spark.submit.pyFiles"})


def submitted_by_others(conf: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield settings that the operator which submits a driver would follow in its own pod, with what to do.

    They make it read and upload files of its own, load classes, use its own login, or submit elsewhere than
    in the pipeline's namespace: see "Submitting Applications to Kubernetes" in Spark's documentation. Files
    that are in the image (``local://``) are read by the driver alone.
    """
    for name, value in conf.items():
        inside = name in _FILES_TO_SUBMIT and all(
            each.strip().startswith("local://") for each in value.split(",") if each.strip()
        )
        if not inside and (name in _FILES_TO_SUBMIT or _READ_AT_SUBMISSION.fullmatch(name)):
            yield (
                name,
                "is followed by the pod of the operator that submits the driver, with that operator's files "
                "and rights: leave it out, put files into the image (local://), and use spark.podTemplate",
            )
