"""Every mistake in a manifest gives one clear error with the path of the field."""

from __future__ import annotations

from typing import Any

import pytest

from lakemirror.api import CdcPipeline, ManifestError, load_documents
from tests.api.manifests import SMALL, changed


def kafka(**fields: Any) -> dict[str, Any]:
    source = {"bootstrapServers": "kafka:9092", "topics": ["a"], **fields}
    return changed(source={"kafka": {k: v for k, v in source.items() if v is not None}})


def table(**fields: Any) -> dict[str, Any]:
    return changed(tables=[{"source": "public.customers", **fields}])


def feed(**fields: Any) -> dict[str, Any]:
    return changed(source={"changeFeed": fields})


def whole(**fields: Any) -> dict[str, Any]:
    return {**SMALL, **fields}


CUSTOMERS = "spec.tables[public.customers]"
KAFKA = "spec.source.kafka"
OAUTH = {"tokenEndpointUrl": "https://idp/token"}
OAUTHBEARER = {"protocol": "SASL_SSL", "mechanism": "OAUTHBEARER", "secret": "s", "oauth": OAUTH}

MISTAKES: dict[str, tuple[Any, str, str]] = {
    # the frame
    "no mapping": ([1], "", "mapping"),
    "no apiVersion": ({k: v for k, v in SMALL.items() if k != "apiVersion"}, "apiVersion", "required"),
    "other apiVersion": (whole(apiVersion="lakemirror.io/v2"), "apiVersion", "lakemirror.io/v1alpha1"),
    "other kind": (whole(kind="CdcPipelines"), "kind", "did you mean CdcPipeline?"),
    "no name": (whole(metadata={}), "metadata.name", "required"),
    "name too long": (whole(metadata={"name": "a" * 41}), "metadata.name", "40"),
    "name in capitals": (whole(metadata={"name": "Inventory"}), "metadata.name", "lower-case"),
    "name ends with a dash": (whole(metadata={"name": "shop-"}), "metadata.name", "ends"),
    "unknown in metadata": (whole(metadata={"name": "a", "lables": {}}), "metadata.lables", "labels"),
    "no spec": ({k: v for k, v in SMALL.items() if k != "spec"}, "spec", "required"),
    "empty spec": (whole(spec=None), "spec", "empty"),
    "unknown at the top": (whole(sepc={}), "sepc", "did you mean spec?"),
    # spec
    "misspelt field": (changed(schemaEvoluton="evolve"), "spec.schemaEvoluton", "schemaEvolution"),
    "misspelt required field": (
        {**SMALL, "spec": {**changed(checkpoint=None)["spec"], "checkpont": "x"}},
        "spec.checkpont",
        "did you mean checkpoint?",
    ),
    "snake_case field": (changed(on_bad_record="fail"), "spec.on_bad_record", "onBadRecord"),
    "no source": (changed(source=None), "spec.source", "required"),
    "no target": (changed(target=None), "spec.target", "required"),
    "no checkpoint": (changed(checkpoint=None), "spec.checkpoint", "required"),
    "empty checkpoint": (changed(checkpoint=""), "spec.checkpoint", "path"),
    "placeholder in the checkpoint": (changed(checkpoint="lake/{table}"), "spec.checkpoint", "braces"),
    "checkpoint is the target": (
        changed(target={"path": "lake/x"}, checkpoint="lake/x/", unlisted="ignore"),
        "spec.checkpoint",
        "path of the target",
    ),
    "field left empty": (
        whole(spec={**SMALL["spec"], "trigger": None}),
        "spec.trigger",
        "empty",
    ),
    "text for a truth value": (changed(suspend="yes"), "spec.suspend", "true or false"),
    "number for a text": (changed(restartToken=2), "spec.restartToken", "quotes"),
    "unknown schemaEvolution": (
        changed(schemaEvolution="ignore"),
        "spec.schemaEvolution",
        "evolve, skip or fail",
    ),
    "unknown onBadRecord": (changed(onBadRecord="skip"), "spec.onBadRecord", "quarantine or fail"),
    "unquoted null": (
        whole(spec={**SMALL["spec"], "onUnrepresentable": None}),
        "spec.onUnrepresentable",
        "quotes",
    ),
    "unknown unlisted": (changed(unlisted="skip"), "spec.unlisted", "mirror or ignore"),
    "unknown deletionPolicy": (changed(deletionPolicy="Delete"), "spec.deletionPolicy", "Retain"),
    # source
    "no source inside": (changed(source={}), "spec.source", "found none"),
    "two sources": (
        changed(source={"files": {"path": "in"}, "changeFeed": {"table": "t"}}),
        "spec.source",
        "found files and changeFeed",
    ),
    "unknown source": (
        changed(source={"kafkaa": {}, "files": {"path": "in"}}),
        "spec.source.kafkaa",
        "kafka?",
    ),
    "no servers": (kafka(bootstrapServers=None), f"{KAFKA}.bootstrapServers", "required"),
    "server without port": (kafka(bootstrapServers="kafka"), f"{KAFKA}.bootstrapServers", "host:port"),
    "servers as a list": (kafka(bootstrapServers=["kafka:9092"]), f"{KAFKA}.bootstrapServers", "a list"),
    "no topics": (kafka(topics=None), KAFKA, "one of topics and topicPattern"),
    "empty topics": (kafka(topics=[]), f"{KAFKA}.topics", "at least 1"),
    "topics and pattern": (kafka(topicPattern="a"), f"{KAFKA}.topicPattern", "only one"),
    "bad topic": (kafka(topics=["a b"]), f"{KAFKA}.topics[0]", "'a b'"),
    "topic twice": (kafka(topics=["a", "b", "a"]), f"{KAFKA}.topics", "a is listed twice"),
    "bad pattern": (kafka(topics=None, topicPattern="shop.(public"), f"{KAFKA}.topicPattern", "expression"),
    "glob for a pattern": (kafka(topics=None, topicPattern="*.public"), f"{KAFKA}.topicPattern", "repeat"),
    "bad starting word": (kafka(startingOffsets="erliest"), f"{KAFKA}.startingOffsets", "earliest"),
    "starting offset is no number": (
        kafka(startingOffsets={"a.b": {"0": "x"}}),
        f"{KAFKA}.startingOffsets[a.b].0",
        "whole number",
    ),
    "partition is no number": (
        kafka(startingOffsets={"a": {"p0": 5}}),
        f"{KAFKA}.startingOffsets.a.p0",
        "whole number",
    ),
    "starting offset below -2": (
        kafka(startingOffsets={"a": {"0": -3}}),
        f"{KAFKA}.startingOffsets.a.0",
        "-2",
    ),
    "starting time without zone": (
        kafka(startingOffsets={"timestamp": "2026-03-01T00:00:00"}),
        f"{KAFKA}.startingOffsets.timestamp",
        "zone",
    ),
    "batch of no records": (kafka(maxRecordsPerBatch=0), f"{KAFKA}.maxRecordsPerBatch", "at least 1"),
    "batch size as text": (kafka(maxRecordsPerBatch="many"), f"{KAFKA}.maxRecordsPerBatch", "whole number"),
    "secret without use": (
        kafka(security={"protocol": "PLAINTEXT", "secret": "s"}),
        f"{KAFKA}.security.secret",
        "PLAINTEXT",
    ),
    "SASL without secret": (
        kafka(security={"protocol": "SASL_SSL", "mechanism": "PLAIN"}),
        f"{KAFKA}.security.secret",
        "required",
    ),
    "SASL without mechanism": (
        kafka(security={"protocol": "SASL_SSL", "secret": "s"}),
        f"{KAFKA}.security.mechanism",
        "required",
    ),
    "mechanism without SASL": (
        kafka(security={"protocol": "SSL", "mechanism": "PLAIN"}),
        f"{KAFKA}.security.mechanism",
        "SASL",
    ),
    "unknown mechanism": (
        kafka(security={"protocol": "SASL_SSL", "mechanism": "SCRAM", "secret": "s"}),
        f"{KAFKA}.security.mechanism",
        "SCRAM-SHA-256",
    ),
    "mechanism with keys elsewhere": (
        kafka(security={"protocol": "SASL_SSL", "mechanism": "EXTERNAL", "secret": "s"}),
        f"{KAFKA}.security.mechanism",
        "OAUTHBEARER",
    ),
    "OAUTHBEARER without endpoint": (
        kafka(security={"protocol": "SASL_SSL", "mechanism": "OAUTHBEARER", "secret": "s"}),
        f"{KAFKA}.security.oauth",
        "tokenEndpointUrl",
    ),
    "OAUTHBEARER without secret": (
        kafka(security={"protocol": "SASL_SSL", "mechanism": "OAUTHBEARER", "oauth": OAUTH}),
        f"{KAFKA}.security.secret",
        "clientId and clientSecret",
    ),
    "endpoint without OAUTHBEARER": (
        kafka(security={"protocol": "SASL_SSL", "mechanism": "PLAIN", "secret": "s", "oauth": OAUTH}),
        f"{KAFKA}.security.oauth",
        "PLAIN",
    ),
    "token from a file": (
        kafka(security={**OAUTHBEARER, "oauth": {"tokenEndpointUrl": "file:///var/token"}}),
        f"{KAFKA}.security.oauth.tokenEndpointUrl",
        "tokens in files are not read",
    ),
    "endpoint that ends an option": (
        kafka(security={**OAUTHBEARER, "oauth": {"tokenEndpointUrl": "https://idp/t -Dx=y"}}),
        f"{KAFKA}.security.oauth.tokenEndpointUrl",
        "address",
    ),
    "empty scope": (
        kafka(security={**OAUTHBEARER, "oauth": {**OAUTH, "scope": ""}}),
        f"{KAFKA}.security.oauth.scope",
        "empty",
    ),
    "bad secret name": (
        kafka(security={"protocol": "SSL", "secret": "My_Secret"}),
        f"{KAFKA}.security.secret",
        "Secret",
    ),
    "files without path": (changed(source={"files": {}}), "spec.source.files.path", "required"),
    "unknown file format": (
        changed(source={"files": {"path": "in", "format": "jsonl"}}),
        "spec.source.files.format",
        "did you mean json?",
    ),
    "feed without table": (feed(startingVersion=1), "spec.source.changeFeed", "one of table and path"),
    "feed of table and path": (feed(table="t", path="p"), "spec.source.changeFeed.path", "only one"),
    "feed from two places": (
        feed(table="t", startingVersion=1, startingTimestamp="2026-03-01T00:00:00Z"),
        "spec.source.changeFeed.startingTimestamp",
        "only one",
    ),
    # envelope
    "unknown envelope": (changed(envelope={"format": "debezum"}), "spec.envelope.format", "debezium"),
    "avro without registry": (changed(envelope={"encoding": "avro"}), "spec.envelope.schemaRegistry", "avro"),
    "registry without scheme": (
        changed(envelope={"encoding": "avro", "schemaRegistry": {"url": "registry:8081"}}),
        "spec.envelope.schemaRegistry.url",
        "http://",
    ),
    "password in the registry's address": (
        changed(envelope={"encoding": "avro", "schemaRegistry": {"url": "http://me:pw@registry:8081"}}),
        "spec.envelope.schemaRegistry.url",
        "password",
    ),
    "custom without fields": (changed(envelope={"format": "custom"}), "spec.envelope.fields", "required"),
    "custom with no field": (
        changed(envelope={"format": "custom", "fields": {}}),
        "spec.envelope.fields",
        "at least one",
    ),
    "fields without custom": (changed(envelope={"fields": {"op": "op"}}), "spec.envelope.fields", "custom"),
    "opMap without custom": (changed(envelope={"opMap": {"I": "c"}}), "spec.envelope.opMap", "custom"),
    "opMap to an unknown op": (
        changed(envelope={"format": "custom", "fields": {"op": "op"}, "opMap": {"I": "insert"}}),
        "spec.envelope.opMap.I",
        "c, u, d, r, t or ignore",
    ),
    # target
    "target of nothing": (changed(target={}), "spec.target", "one of path and table"),
    "target as text": (changed(target="lake/{table}"), "spec.target", "mapping"),
    "path and table": (
        changed(target={"path": "a/{table}", "table": "{table}"}),
        "spec.target.table",
        "only one",
    ),
    "no regular expression": (
        changed(tables=[{"source": "/a(/"}]),
        "spec.tables[/a(/].source",
        "not a valid regular expression",
    ),
    "a group that its pattern has not": (
        changed(tables=[{"source": "/(?<a>.+)/", "target": {"path": "/{a}/{b}"}}]),
        "spec.tables[/(?<a>.+)/].target.path",
        "{b}",
    ),
    "a group without a pattern": (
        changed(tables=[{"source": "x", "target": {"path": "/{a}"}}]),
        "spec.tables[x].target.path",
        "{a}",
    ),
    "one target for a pattern": (
        changed(tables=[{"source": "/x.*/", "target": {"path": "/a"}}]),
        "spec.tables[/x.*/].target",
        "needs a placeholder",
    ),
    "unknown placeholder": (changed(target={"path": "lake/{tabel}"}), "spec.target.path", "{tabel}"),
    "lone brace": (changed(target={"path": "lake/{table"}), "spec.target.path", "brace"),
    "all tables in one": (changed(target={"path": "lake/{schema}"}), "spec.target.path", "{table}"),
    "two listed tables in one": (
        changed(target={"table": "lake.t"}, unlisted="ignore", tables=[{"source": "a"}, {"source": "b"}]),
        "spec.target.table",
        "a and b",
    ),
    "bad table name": (changed(target={"table": "lake..{table}"}), "spec.target.table", "dots"),
    # defaults and tables
    "unknown mode": (changed(defaults={"mode": "scd3"}), "spec.defaults.mode", "append, scd1 or scd2"),
    "soft delete without column": (
        changed(defaults={"delete": {"type": "soft"}}),
        "spec.defaults.delete.column",
        "required",
    ),
    "hard delete with column": (
        changed(defaults={"delete": {"type": "hard", "column": "gone"}}),
        "spec.defaults.delete.column",
        "hard",
    ),
    "delete without type": (changed(defaults={"delete": {}}), "spec.defaults.delete.type", "required"),
    "our column for a soft delete": (
        changed(defaults={"delete": {"type": "soft", "column": "__deleted"}}),
        "spec.defaults.delete.column",
        "__",
    ),
    "tables as a mapping": (changed(tables={"public.customers": {}}), "spec.tables", "a list"),
    "table without source": (changed(tables=[{"mode": "scd1"}]), "spec.tables[0].source", "required"),
    "table with four parts": (
        changed(tables=[{"source": "a.b.c.d"}]),
        "spec.tables[a.b.c.d].source",
        "database.schema.table",
    ),
    "table twice": (
        changed(tables=[{"source": "a"}, {"source": "a"}]),
        "spec.tables",
        "a is listed twice",
    ),
    "tables that mean the same": (
        changed(tables=[{"source": "public.customers"}, {"source": "customers"}]),
        "spec.tables",
        "customers and public.customers",
    ),
    "delete of an unknown type": (
        table(delete={"type": "sotf", "column": "gone"}),
        f"{CUSTOMERS}.delete.type",
        "did you mean soft?",
    ),
    "misspelt in a table": (table(primarykey=["id"]), f"{CUSTOMERS}.primarykey", "did you mean primaryKey?"),
    "no key column": (table(primaryKey=[]), f"{CUSTOMERS}.primaryKey", "at least 1"),
    "key as text": (table(primaryKey="id"), f"{CUSTOMERS}.primaryKey", "a list"),
    "key column twice": (table(primaryKey=["id", "id"]), f"{CUSTOMERS}.primaryKey", "twice"),
    "key column left out": (
        table(primaryKey=["id"], columns={"exclude": ["id"]}),
        f"{CUSTOMERS}.primaryKey",
        "id is left out",
    ),
    "append with delete": (table(mode="append", delete={"type": "hard"}), f"{CUSTOMERS}.delete", "append"),
    "table's target has both": (
        table(target={"path": "a", "table": "b"}),
        f"{CUSTOMERS}.target.table",
        "only one",
    ),
    "include and exclude": (
        table(columns={"include": ["a"], "exclude": ["b"]}),
        f"{CUSTOMERS}.columns.exclude",
        "only one",
    ),
    "excluded twice": (table(columns={"exclude": ["a", "a"]}), f"{CUSTOMERS}.columns.exclude", "twice"),
    "rename to our column": (table(columns={"rename": {"a": "__a"}}), f"{CUSTOMERS}.columns.rename.a", "__"),
    "two columns to one": (
        table(columns={"rename": {"a": "c", "b": "c"}}),
        f"{CUSTOMERS}.columns.rename",
        "two columns",
    ),
    "rename of an excluded column": (
        table(columns={"exclude": ["a"], "rename": {"a": "b"}}),
        f"{CUSTOMERS}.columns.rename",
        "a is left out",
    ),
    "encoding of a column of another type": (
        table(columns={"types": {"a": "string"}, "encodings": {"a": "hex"}}),
        f"{CUSTOMERS}.columns.encodings",
        "a is not declared in types as decimal or binary",
    ),
    "encoding of a column without a type": (
        table(columns={"encodings": {"a": "base64"}}),
        f"{CUSTOMERS}.columns.encodings",
        "a is not declared",
    ),
    "unknown type": (table(columns={"types": {"a.b": "text"}}), f"{CUSTOMERS}.columns.types[a.b]", "'text'"),
    "decimal too wide": (
        table(columns={"types": {"a": "decimal(39,2)"}}),
        f"{CUSTOMERS}.columns.types.a",
        "decimal(39,2)",
    ),
    "scale above precision": (
        table(columns={"types": {"a": "decimal(4,5)"}}),
        f"{CUSTOMERS}.columns.types.a",
        "decimal(4,5)",
    ),
    "unfinished type": (
        table(columns={"types": {"a": "array<int"}}),
        f"{CUSTOMERS}.columns.types.a",
        "array<int",
    ),
    "two targets alike": (
        changed(
            tables=[
                {"source": "s.a", "target": {"path": "x/T"}},
                {"source": "s.b", "target": {"path": "x/t/"}},
            ]
        ),
        "spec.tables[s.b].target",
        "s.a and s.b would have one target",
    ),
    "a target of its own that another has by the template": (
        changed(tables=[{"source": "s.a"}, {"source": "s.b", "target": {"path": "lake/S/A"}}]),
        "spec.tables[s.b].target",
        "one target",
    ),
    "a template that two tables fill alike": (
        changed(target={"table": "lake.{table}"}, tables=[{"source": "s.a"}, {"source": "t.a"}]),
        "spec.target.table",
        "one target",
    ),
    "a soft-delete column that is a column": (
        table(columns={"include": ["id", "Gone"]}, delete={"type": "soft", "column": "gone"}),
        f"{CUSTOMERS}.delete.column",
        "called Gone",
    ),
    "a default soft-delete column that is a renamed column": (
        {
            **SMALL,
            "spec": {
                **table(columns={"rename": {"a": "gone"}})["spec"],
                "defaults": {"delete": {"type": "soft", "column": "gone"}},
            },
        },
        "spec.defaults.delete.column",
        "column of public.customers",
    ),
    "two columns that differ in case": (
        table(columns={"rename": {"a": "x", "b": "X"}}),
        f"{CUSTOMERS}.columns.rename",
        "x and X",
    ),
    "a column renamed to another": (
        table(columns={"include": ["a", "b"], "rename": {"a": "b"}}),
        f"{CUSTOMERS}.columns.rename",
        "two columns would be called b",
    ),
    "an added column with a name of the mirror's own": (
        table(columns={"rowHash": "__hash"}),
        f"{CUSTOMERS}.columns.rowHash",
        "__ belong to Lakemirror",
    ),
    "two added columns of one name": (
        table(columns={"metadata": {"x": "op"}, "keyHash": "X"}),
        f"{CUSTOMERS}.columns.metadata",
        "two columns would be called x",
    ),
    "a computed column with the name of another": (
        table(columns={"rowHash": "x", "expressions": {"X": "id + 1"}}),
        f"{CUSTOMERS}.columns.metadata",
        "two columns would be called x",
    ),
    "an expression of two": (
        table(columns={"expressions": {"x": "id; id"}}),
        f"{CUSTOMERS}.columns.expressions.x",
        "is not a valid expression: it is one expression, without ;",
    ),
    "an added column with the name of another": (
        table(columns={"rename": {"a": "x"}, "rowHash": "x"}),
        f"{CUSTOMERS}.columns.metadata",
        "x is a column of the table already",
    ),
    "unknown onConflict": (table(onConflict="ignore"), f"{CUSTOMERS}.onConflict", "replace or fail"),
    "empty filter": (table(filter=""), f"{CUSTOMERS}.filter", "empty"),
    "an expectation without a condition": (
        table(expectations=[{"name": "a"}]),
        f"{CUSTOMERS}.expectations[a].condition",
        "required",
    ),
    "an unknown action": (
        table(expectations=[{"name": "a", "condition": "id > 1", "onViolation": "drop"}]),
        f"{CUSTOMERS}.expectations[a].onViolation",
        "warn, quarantine or fail",
    ),
    "an expectation without a good name": (
        table(expectations=[{"name": "{a}", "condition": "id > 1"}]),
        f"{CUSTOMERS}.expectations[{{a}}].name",
        "not a valid name",
    ),
    "two expectations of one name": (
        table(expectations=[{"name": "a", "condition": "id > 1"}, {"name": "a", "condition": "id > 2"}]),
        f"{CUSTOMERS}.expectations",
        "a is listed twice",
    ),
    # ordering
    "unknown order": (changed(ordering={"by": "scn"}), "spec.ordering.by", "lsn"),
    "order by no columns": (changed(ordering={"by": "columns"}), "spec.ordering.columns", "required"),
    "columns without use": (changed(ordering={"columns": ["a"]}), "spec.ordering.columns", "by auto"),
    "epochs not in order": (
        changed(ordering={"epochs": [{"epoch": n, "from": {"t": {"0": 1}}} for n in (2, 1)]}),
        "spec.ordering.epochs",
        "higher number",
    ),
    "epoch 0": (
        changed(ordering={"epochs": [{"epoch": 0, "from": {"t": {"0": 1}}}]}),
        "spec.ordering.epochs[0].epoch",
        "at least 1",
    ),
    "epoch from nowhere": (
        changed(ordering={"epochs": [{"epoch": 1}]}),
        "spec.ordering.epochs[0].from",
        "required",
    ),
    "negative tolerance": (changed(ordering={"toleranceMs": -1}), "spec.ordering.toleranceMs", "at least 0"),
    # times and triggers
    "duration without unit": (changed(tombstones={"retention": "7"}), "spec.tombstones.retention", "10s"),
    "duration as a number": (
        changed(tombstones={"retention": 7}),
        "spec.tombstones.retention",
        "must be text",
    ),
    "duration in weeks": (changed(tombstones={"retention": "1w"}), "spec.tombstones.retention", "'1w'"),
    "deadline of zero": (changed(progressDeadline="0s"), "spec.progressDeadline", "above zero"),
    "no trigger": (changed(trigger={}), "spec.trigger", "one of interval and availableNow"),
    "two triggers": (
        changed(trigger={"interval": "1s", "availableNow": True}),
        "spec.trigger.availableNow",
        "one",
    ),
    "schedule without availableNow": (
        changed(trigger={"interval": "1s", "schedule": "0 * * * *"}),
        "spec.trigger.schedule",
        "availableNow",
    ),
    "availableNow false": (changed(trigger={"availableNow": False}), "spec.trigger.availableNow", "interval"),
    "bad cron": (
        changed(trigger={"availableNow": True, "schedule": "0 25 * * *"}),
        "spec.trigger.schedule",
        "0 25 * * *",
    ),
    "cron with seconds": (
        changed(trigger={"availableNow": True, "schedule": "0 0 * * * *"}),
        "spec.trigger.schedule",
        "five fields",
    ),
    "a filter with an open quote": (
        changed(tables=[{"source": "t", "filter": "a = 'x"}]),
        "spec.tables[t].filter",
        "a quote is not closed",
    ),
    "a filter with an open bracket": (
        changed(tables=[{"source": "t", "filter": "(a = ')'"}]),
        "spec.tables[t].filter",
        "brackets do not match",
    ),
    "a filter of two statements": (
        changed(tables=[{"source": "t", "filter": "a = 1; DROP TABLE t"}]),
        "spec.tables[t].filter",
        "without ;",
    ),
    "a filter with a subquery": (
        changed(tables=[{"source": "t", "filter": "a IN (\nselect 1)"}]),
        "spec.tables[t].filter",
        "no subquery",
    ),
    "an expectation with an open quote": (
        changed(tables=[{"source": "t", "expectations": [{"name": "a", "condition": "b = 'x"}]}]),
        "spec.tables[t].expectations[a].condition",
        "a quote is not closed",
    ),
    "an empty filter": (changed(tables=[{"source": "t", "filter": " "}]), "spec.tables[t].filter", "empty"),
    "a vacuum that takes what is read": (
        changed(maintenance={"vacuum": {"retain": "30m"}}),
        "spec.maintenance.vacuum.retain",
        "whole hours or days",
    ),
    "a vacuum that keeps nothing": (
        changed(maintenance={"vacuum": {"retain": "0h"}}),
        "spec.maintenance.vacuum.retain",
        "no less than 1h",
    ),
    "maintenance every never": (
        changed(maintenance={"optimize": {"every": "0h"}}),
        "spec.maintenance.optimize.every",
        "above zero",
    ),
    "nothing to compare with": (changed(verify={}), "spec.verify", "exactly one of jdbc and snapshot"),
    "two to compare with": (
        changed(verify={"jdbc": {"url": "jdbc:mariadb://db/"}, "snapshot": {"path": "/s"}}),
        "spec.verify",
        "exactly one of jdbc and snapshot",
    ),
    "a database of another kind": (
        changed(verify={"jdbc": {"url": "jdbc:oracle:thin:@db"}}),
        "spec.verify.jdbc.url",
        "jdbc:postgresql://",
    ),
    "a password in a URL": (
        changed(verify={"jdbc": {"url": "jdbc:postgresql://db/shop?Password=x"}}),
        "spec.verify.jdbc.url",
        "put it into a Secret",
    ),
    "a login before the host": (
        changed(verify={"jdbc": {"url": "jdbc:postgresql://u:s3cr3t@db/shop"}}),
        "spec.verify.jdbc.url",
        "put it into a Secret",
    ),
    "a login before the host of a target": (
        changed(target={"table": "{table}", "jdbc": {"url": "jdbc:mysql://root:s3cr3t@db/"}}),
        "spec.target.jdbc.url",
        "put it into a Secret",
    ),
    "a key in the address of a checkpoint": (
        changed(checkpoint="s3a://AKIA:s3cr3t/x@lake/c"),
        "spec.checkpoint",
        "put them into a Secret",
    ),
    "a key in the address of a target": (
        changed(target={"path": "s3a://AKIA:s3cr3t@lake/{table}"}),
        "spec.target.path",
        "put them into a Secret",
    ),
    "a path in a database": (
        changed(target={"path": "/{table}", "jdbc": {"url": "jdbc:mariadb://db/"}}),
        "spec.target.path",
        "is no place in a database",
    ),
    "a catalog of a database": (
        changed(target={"table": "a.b.{table}", "jdbc": {"url": "jdbc:mariadb://db/"}}),
        "spec.target.table",
        "two at most",
    ),
    "a user in the URL of a target": (
        changed(target={"table": "{table}", "jdbc": {"url": "jdbc:mariadb://db/?user=me"}}),
        "spec.target.jdbc.url",
        "put it into a Secret",
    ),
    "a slot of MariaDB": (
        changed(verify={"jdbc": {"url": "jdbc:mariadb://db/", "slot": "s"}}),
        "spec.verify.jdbc.slot",
        "belongs to PostgreSQL",
    ),
    "a comparison at no time": (
        changed(verify={"snapshot": {"path": "/s"}, "schedule": "daily"}),
        "spec.verify.schedule",
        "cron",
    ),
    "a table compared twice": (
        changed(verify={"snapshot": {"path": "/s"}, "tables": ["a", "a"]}),
        "spec.verify.tables",
        "listed twice",
    ),
    "negative backoff": (changed(restart={"backoffLimit": -1}), "spec.restart.backoffLimit", "at least 0"),
    # spark
    "unknown backend": (changed(spark={"backend": "yarn"}), "spec.spark.backend", "native"),
    "more least than most": (
        changed(spark={"executors": {"min": 5, "max": 2}}),
        "spec.spark.executors.min",
        "above max",
    ),
    "fractional cores": (
        changed(spark={"driver": {"cores": 1.5}}),
        "spec.spark.driver.cores",
        "whole number",
    ),
    "memory in Kubernetes' units": (
        changed(spark={"driver": {"memory": "2Gi"}}),
        "spec.spark.driver.memory",
        "512m",
    ),
    "number in conf": (changed(spark={"conf": {"spark.a": 1}}), "spec.spark.conf[spark.a]", "quotes"),
    "foreign setting in conf": (
        changed(spark={"conf": {"fs.s3a.key": "x"}}),
        "spec.spark.conf[fs.s3a.key]",
        "spark.",
    ),
    "pull secrets as objects": (
        changed(spark={"imagePullSecrets": [{"name": "x"}]}),
        "spec.spark.imagePullSecrets[0]",
        "must be text",
    ),
    # status
    "unknown phase": (whole(status={"phase": "Runing"}), "status.phase", "did you mean Running?"),
    "unknown condition": (
        whole(
            status={
                "conditions": [
                    {
                        "type": "Healthy",
                        "status": "True",
                        "reason": "x",
                        "lastTransitionTime": "2026-03-01T00:00:00Z",
                    }
                ]
            }
        ),
        "status.conditions[0].type",
        "Ready",
    ),
}


@pytest.mark.parametrize(("document", "path", "word"), MISTAKES.values(), ids=MISTAKES)
def test_one_mistake_is_one_error_with_its_path(document: Any, path: str, word: str) -> None:
    with pytest.raises(ManifestError) as caught:
        CdcPipeline.from_dict(document)
    assert [where for where, _ in caught.value.errors] == [path]
    assert word in caught.value.errors[0][1]
    assert "\n" not in str(caught.value)


def test_all_mistakes_are_told_at_once() -> None:
    document = changed(schemaEvolution="x", trigger={}, tables=[{"source": "a", "mode": "b"}])
    with pytest.raises(ManifestError) as caught:
        CdcPipeline.from_dict(document)
    assert {path for path, _ in caught.value.errors} == {
        "spec.schemaEvolution",
        "spec.trigger",
        "spec.tables[a].mode",
    }


@pytest.mark.parametrize(
    ("text", "where", "word"),
    [
        ("a: [1", "line 1", "not valid YAML"),
        ("a: 1\nb:\n  a: 1\n  a: 2\n", "line 4, column 3", "a occurs twice"),
        ("? [a]\n: 1\n", "line 1", "key"),
        ("a: !!python/object:os.system x\n", "line 1", "constructor"),
        ("a: \x07", "", "not valid YAML"),
    ],
)
def test_what_is_no_yaml_is_told_with_its_line(text: str, where: str, word: str) -> None:
    with pytest.raises(ManifestError) as caught:
        load_documents(text)
    [(path, message)] = caught.value.errors
    assert path.startswith(where)
    assert word in message


def test_more_than_one_document_is_refused() -> None:
    with pytest.raises(ManifestError, match="found 2"):
        CdcPipeline.from_yaml("a: 1\n---\nb: 1\n")


def test_a_file_that_is_not_there_is_an_error_of_the_manifest() -> None:
    with pytest.raises(ManifestError, match="No such file"):
        CdcPipeline.load("no/such/file.yaml")
