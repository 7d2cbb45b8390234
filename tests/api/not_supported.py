"""Changes of a good spec that are refused: fields of spec, the path that is named, a word of the reason."""

from __future__ import annotations

from typing import Any

KAFKA: dict[str, Any] = {"bootstrapServers": "k:9092", "topics": ["a"], "topicPattern": None}
CUSTOM = {"format": "custom", "fields": {"after": "row"}}
EFFECT = "no effect"
LIES = "give one of the two another path"
DATABASE = {"verify": {"jdbc": {"url": "jdbc:postgresql://db/shop"}}}
JDBC: dict[str, Any] = {
    "target": {"path": None, "table": "m.{table}", "jdbc": {"url": "jdbc:postgresql://db/shop"}}
}


def table(**fields: Any) -> dict[str, Any]:
    return {"tables": [{"source": "public.a", **fields}]}


def conf(name: str, value: str) -> tuple[dict[str, Any], str]:
    """A setting of Spark's, and its path."""
    return {"spark": {"conf": {name: value}}}, f"spec.spark.conf[{name}]"


SINGLE = "io.delta.storage.S3SingleDriverLogStore"
MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
RENAMES = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"

NOT_SUPPORTED: list[tuple[dict[str, Any], str, str]] = [
    ({"checkpoint": "s3a://lake"}, "spec.target.path", "lies in spec.checkpoint (s3a://lake)"),
    ({"checkpoint": "s3://lake/"}, "spec.target.path", LIES),
    (
        {"checkpoint": "/state", "target": {"path": "file:///x/..//state/./{table}"}},
        "spec.target.path",
        LIES,
    ),
    (
        {"checkpoint": "file:/state", **table(target={"path": "/state"})},
        "spec.tables[public.a].target.path",
        LIES,
    ),
    (
        {"checkpoint": "/in", "source": {"kafka": None, "files": {"path": "/in/x", "format": "records"}}},
        "spec.source.files.path",
        LIES,
    ),
    (
        {"checkpoint": "/in", "source": {"kafka": None, "changeFeed": {"path": "/in/x"}}},
        "spec.source.changeFeed.path",
        LIES,
    ),
    (
        {"checkpoint": "abfss://c@a/x", "verify": {"snapshot": {"path": "abfs://c@a/x/{table}"}}},
        "spec.verify.snapshot.path",
        LIES,
    ),
    ({"checkpoint": "ftp://host/state"}, "spec.checkpoint", "what makes commits to ftp:// atomic"),
    ({"target": {"path": "https://minio/lake/{table}"}}, "spec.target.path", "fs.s3a.endpoint"),
    (table(target={"path": "wasb://lake/{table}"}), "spec.tables[public.a].target.path", "wasb://"),
    ({"unlisted": "ignore"}, "spec.unlisted", "ignore without tables mirrors nothing"),
    ({"spark": {"executors": {"max": 0, "cores": 8}}}, "spec.spark.executors.cores", EFFECT),
    ({"spark": {"executors": {"max": 0, "memory": "8g"}}}, "spec.spark.executors.memory", "spark.driver"),
    ({"defaults": {"mode": "append"}, "tombstones": {"retention": "1d"}}, "spec.tombstones", EFFECT),
    (*conf("spark.lakemirror.writer", "junk"), "spark.lakemirror.writer: merge"),
    (*conf("spark.lakemirror.engine", "junk"), "spark.lakemirror.engine: columns or spark"),
    (*conf("spark.lakemirror.engine", ""), "spark.lakemirror.engine: columns or spark"),
    (*conf("spark.lakemirror.engine", "Spark"), "spark.lakemirror.engine: columns or spark"),
    (*conf("spark.lakemirror.reader", "merge"), EFFECT),
    (*conf("spark.delta.logStore.class", SINGLE), "leave it out"),
    (*conf("spark.delta.logStore.s3a.impl", SINGLE), "ConditionalPutLogStore"),
    (*conf("spark.delta.logStore.s3.impl", SINGLE), "ConditionalPutLogStore"),
    (*conf("spark.delta.logStore.gs.impl", "io.delta.storage.HDFSLogStore"), "GCSLogStore"),
    (*conf("spark.delta.logStore.file.impl", "io.delta.storage.LocalLogStore"), "ListingLogStore"),
    (*conf("spark.hadoop.fs.s3a.create.conditional.enabled", "false"), "conditional puts"),
    (*conf("spark.hadoop.fs.s3a.bucket.lake.create.conditional.enabled", "false"), "conditional puts"),
    (
        {"checkpoint": "s3a://lake/c", "spark": {"conf": {MANAGER: RENAMES}}},
        f"spec.spark.conf[{MANAGER}]",
        "ConditionalPutFileManager",
    ),
    (*conf("spark.hadoop.fs.s3a.secret.key", "x"), "write ${env.NAME} here"),
    (*conf("spark.hadoop.fs.s3a.bucket.lake.secret.key", "${env.KEY:-x}"), "write ${env.NAME} here"),
    (*conf("spark.hadoop.fs.azure.account.key.lake.dfs.core.windows.net", "x"), "in a Secret"),
    (*conf("spark.sql.catalog.unity.token", "x"), "spark-defaults.conf"),
    (*conf("spark.sql.session.timeZone", "Europe/Berlin"), "the driver's own value, UTC"),
    (*conf("spark.sql.ansi.enabled", "false"), "the driver's own value, true"),
    (*conf("spark.sql.caseSensitive", "true"), "the driver's own value, false"),
    (*conf("spark.sql.extensions", "org.example.Extension"), "DeltaSparkSessionExtension"),
    (*conf("spark.sql.legacy.timeParserPolicy", "LEGACY"), "leave it out"),
    (*conf("spark.sql.session.timezone", "UTC"), "leave it out"),
    (*conf("spark.sql.columnNameOfCorruptRecord", "v"), "leave it out"),
    (*conf("spark.sql.streaming.noDataMicroBatches.enabled", "false"), "leave it out"),
    (*conf("spark.databricks.delta.schema.autoMerge.enabled", "true"), "leave it out"),
    (*conf("spark.databricks.delta.properties.defaults.columnMapping.mode", "name"), "leave it out"),
    (*conf("spark.databricks.delta.retentionDurationCheck.enabled", "false"), "leave it out"),
    (
        {"source": {"kafka": None, "files": {"path": "/i", "format": "csv"}}},
        "spec.envelope.format",
        "use custom",
    ),
    (
        {
            "source": {"kafka": None, "files": {"path": "/i", "format": "avro"}},
            "envelope": {"format": "maxwell"},
        },
        "spec.envelope.format",
        "files of JSON",
    ),
    (
        {
            "source": {"kafka": None, "files": {"path": "/i", "format": "json"}},
            "envelope": {"encoding": "avro", "schemaRegistry": {"url": "http://r"}},
        },
        "spec.envelope.encoding",
        "use json",
    ),
    (
        {"envelope": {"format": "maxwell", "encoding": "avro", "schemaRegistry": {"url": "http://r"}}},
        "spec.envelope.encoding",
        "Maxwell writes",
    ),
    (
        {"envelope": {"encoding": "avro", "schemaRegistry": {"url": "http://r", "useId": "globalId"}}},
        "spec.envelope.schemaRegistry.useId",
        EFFECT,
    ),
    (table(mode="append", onConflict="fail"), "spec.tables[public.a].onConflict", EFFECT),
    (table(mode="append", columns={"keyHash": "k"}), "spec.tables[public.a].columns.keyHash", EFFECT),
    (
        {"target": {"path": "lake/{schema}/{table}", "compatibility": ["trino"]}}
        | table(columns={"identity": "n"}),
        "spec.tables[public.a].columns.identity",
        "or use keyHash",
    ),
    (
        {"target": {"path": "lake/{schema}/{table}", "compatibility": ["trino"]}}
        | table(mode="append", columns={"identity": "n"}),
        "spec.tables[public.a].columns.identity",
        "trino of target.compatibility must read the mirror: its rows are written anew when a column is "
        "widened. Leave it out",
    ),
    (table(trackedColumns=["a"]), "spec.tables[public.a].trackedColumns", "or set mode: scd2"),
    (
        table(mode="append", initialValidFrom="1900-01-01T00:00:00Z"),
        "spec.tables[public.a].initialValidFrom",
        EFFECT,
    ),
    ({"maintenance": {}}, "spec.maintenance", EFFECT),
    (
        {"spark": {"executors": {"max": 0, "podTemplate": {"spec": {"priorityClassName": "low"}}}}},
        "spec.spark.executors.podTemplate",
        EFFECT,
    ),
    ({"verify": {"snapshot": {"path": "/s/{table}"}, "wait": "1m"}}, "spec.verify.wait", EFFECT),
    ({"verify": {"snapshot": {"path": "/s/{table}"}, "settle": "1m"}}, "spec.verify.settle", EFFECT),
    ({"envelope": {"schemaRegistry": {"url": "http://r"}}}, "spec.envelope.schemaRegistry", EFFECT),
    (
        {"envelope": {"format": "maxwell", "unavailableValuePlaceholder": "?"}},
        "spec.envelope.unavailableValuePlaceholder",
        EFFECT,
    ),
    (
        {"envelope": {"format": "maxwell", "nullValue": "ignore"}},
        "spec.envelope.nullValue",
        EFFECT,
    ),
    (
        {"envelope": {"format": "custom", "fields": {"after": "row"}, "opMap": {"I": "c"}}},
        "spec.envelope.opMap",
        EFFECT,
    ),
    (
        {"source": {"kafka": None, "changeFeed": {"path": "/t"}}, "envelope": {"format": "maxwell"}},
        "spec.envelope.format",
        EFFECT,
    ),
    ({"envelope": {"format": "maxwell"}, "ordering": {"by": "lsn"}}, "spec.ordering.by", "binlog"),
    ({"envelope": CUSTOM, "ordering": {"by": "binlog"}}, "spec.ordering.by", "offset"),
    ({"envelope": CUSTOM, "ordering": {"by": "timestamp"}}, "spec.ordering.by", "fields.timestamp"),
    *(
        (
            {"spark": {"backend": backend, "conf": {name: value}}},
            f"spec.spark.conf[{name}]",
            "is followed by the pod of the operator that submits",
        )
        for backend in ("kubeflow", "apache")
        for name, value in (
            ("spark.files", "/var/run/secrets/kubernetes.io/serviceaccount/token"),
            ("spark.jars", "local:///opt/a.jar,file:///etc/passwd"),
            ("spark.archives", "https://example.com/a.zip"),
            ("spark.submit.pyFiles", "/etc/passwd"),
            ("spark.kubernetes.driver.podTemplateFile", "/etc/passwd"),
            ("spark.kubernetes.executor.podTemplateFile", "/etc/passwd"),
            ("spark.kubernetes.driver.pod.featureSteps", "a.B"),
            ("spark.kubernetes.file.upload.path", "s3a://mine/x"),
            ("spark.kubernetes.namespace", "kube-system"),
            ("spark.kubernetes.context", "other"),
            ("spark.kubernetes.authenticate.submission.oauthTokenFile", "/t"),
            ("spark.kerberos.keytab", "/etc/krb5.keytab"),
            ("spark.master", "k8s://https://elsewhere"),
        )
    ),
    ({"restart": {"resetAfter": "1h"}, "spark": {"backend": "kubeflow"}}, "spec.restart.resetAfter", EFFECT),
    (
        {"trigger": {"availableNow": True, "schedule": "@daily"}, "spark": {"backend": "apache"}},
        "spec.trigger.schedule",
        EFFECT,
    ),
    (
        {"source": {"kafka": {**KAFKA, "startingOffsets": {"b": {"0": 1}}}}},
        "spec.source.kafka.startingOffsets.b",
        "topics",
    ),
    (
        {"source": {"kafka": KAFKA}, "ordering": {"epochs": [{"epoch": 1, "from": {"b": {"0": 1}}}]}},
        "spec.ordering.epochs[0].from.b",
        "topics",
    ),
    (
        {"defaults": {"mode": "append"}, **table(delete={"type": "hard"})},
        "spec.tables[public.a].delete",
        EFFECT,
    ),
    (
        {"defaults": {"mode": "append"}, **table(primaryKey=["id"])},
        "spec.tables[public.a].primaryKey",
        EFFECT,
    ),
    (table(mode="append", primaryKey=["id"]), "spec.tables[public.a].primaryKey", EFFECT),
    (table(mode="scd2", delete={"type": "hard"}), "spec.tables[public.a].delete", EFFECT),
    (
        {"defaults": {"mode": "scd2", "delete": {"type": "soft", "column": "gone"}}},
        "spec.defaults.delete",
        EFFECT,
    ),
    (
        {"defaults": {"mode": "append", "delete": {"type": "soft", "column": "gone"}}},
        "spec.defaults.delete",
        EFFECT,
    ),
    (table(snapshot="jdbc"), "spec.tables[public.a].snapshot", "spec.verify.jdbc"),
    (
        {**DATABASE, "tables": [{"source": "/public\\..*/", "snapshot": "jdbc"}]},
        "spec.tables[/public\\..*/].snapshot",
        "by its name",
    ),
    (
        {**DATABASE, **table(snapshot="jdbc", mergeShards=True)},
        "spec.tables[public.a].snapshot",
        "lakemirror reload",
    ),
    ({**DATABASE, **table(snapshot="jdbc", mode="append")}, "spec.tables[public.a].snapshot", "keeps events"),
    (
        {**DATABASE, **table(snapshot="jdbc"), "ordering": {"by": "timestamp"}},
        "spec.tables[public.a].snapshot",
        "--at",
    ),
    (
        {**DATABASE, **table(snapshot="jdbc"), "ordering": {"by": "columns", "columns": ["version"]}},
        "spec.tables[public.a].snapshot",
        "leave it out. With ordering.by: columns",
    ),
    (
        {"target": {**JDBC["target"], "compatibility": ["duckdb"]}},
        "spec.target.compatibility",
        "Delta tables",
    ),
    ({"target": {**JDBC["target"], "changeFeed": True}}, "spec.target.changeFeed", "Delta tables"),
    ({**JDBC, "maintenance": {"vacuum": {}}}, "spec.maintenance", "Delta tables"),
    (
        {
            **JDBC,
            "source": {"kafka": None, "files": {"path": "/i", "format": "json"}},
            "envelope": CUSTOM,
        },
        "spec.source.files.format",
        "files of records",
    ),
    ({**JDBC, "defaults": {"mode": "scd2"}}, "spec.defaults.mode", "use scd1"),
    ({**JDBC, **table(mode="append")}, "spec.tables[public.a].mode", "use scd1"),
    ({**JDBC, **table(mergeShards=True)}, "spec.tables[public.a].mergeShards", "its own target"),
    ({**JDBC, **table(target={"path": "/a"})}, "spec.tables[public.a].target.path", "give target.table"),
    ({**JDBC, **table(target={"table": "a.b.c"})}, "spec.tables[public.a].target.table", "two at most"),
    (
        {**JDBC, **table(target={"table": "a", "changeFeed": True})},
        "spec.tables[public.a].target.changeFeed",
        "Delta tables",
    ),
    ({**JDBC, **table(columns={"identity": "n"})}, "spec.tables[public.a].columns.identity", "keyHash"),
    (
        {**JDBC, **table(columns={"expressions": {"n": "id + 1"}})},
        "spec.tables[public.a].columns.expressions",
        "in a view",
    ),
]
