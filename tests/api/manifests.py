"""Manifests for the tests: a small one, one that sets every field, and how to change a field."""

from __future__ import annotations

import copy
from typing import Any

SMALL: dict[str, Any] = {
    "apiVersion": "lakemirror.io/v1alpha1",
    "kind": "CdcPipeline",
    "metadata": {"name": "inventory"},
    "spec": {
        "source": {"files": {"path": "events"}},
        "target": {"path": "lake/{schema}/{table}"},
        "checkpoint": "lake/_checkpoint",
    },
}

FULL = r"""
apiVersion: lakemirror.io/v1alpha1
kind: CdcPipeline
metadata:
  name: inventory
  namespace: mirrors
  labels: {team: data}
  annotations: {note: "1"}
spec:
  suspend: false
  restartToken: ""
  source:
    kafka:
      bootstrapServers: kafka-0:9092,kafka-1:9092
      topicPattern: inventory\.public\..*
      startingOffsets: {inventory.public.orders: {0: 100, 1: -2}}
      maxRecordsPerBatch: 100000
      security:
        protocol: SASL_SSL
        mechanism: OAUTHBEARER
        secret: kafka-auth
        oauth: {tokenEndpointUrl: "https://idp/token", scope: kafka.read}
    tableTopics: ["inventory.{schema}.{table}"]
  envelope:
    format: custom
    encoding: avro
    schemaRegistry: {url: "http://registry:8081/apis", secret: registry-auth, useId: globalId}
    fields: {op: op, before: data.before, after: data.after, key: key, timestamp: ts, table: meta.table}
    opMap: {I: c, U: u, D: d}
  target: {path: "s3a://lake/{db}/{schema}/{table}", compatibility: [trino], changeFeed: true}
  defaults: {mode: scd1, delete: {type: soft, column: deleted_at}}
  unlisted: ignore
  tables:
    - source: public.customers
      topics: [inventory.public.customers]
      primaryKey: [id]
      mode: scd2
      target: {table: "lake.{schema}.people", compatibility: [all], changeFeed: false}
      columns:
        exclude: [ssn]
        rename: {a: b}
        types: {price: "decimal(10,2)", tags: "array<string>"}
        encodings: {price: text}
        metadata: {loaded_at: loadTime, change: op}
        rowHash: row_hash
        keyHash: key_hash
        expressions: {full name: "first || ' ' || `last name`", total: price * 2}
      delete: {type: hard}
      onConflict: fail
      filter: "country = 'CH'"
      expectations:
        - {name: adult, condition: age >= 18}
        - {name: has e-mail, condition: "email LIKE '%@%'", onViolation: quarantine}
      mergeShards: true
      trackedColumns: [name, city]
      initialValidFrom: "1900-01-01T00:00:00Z"
      suspend: true
      resyncToken: "2"
    - source: public.orders
      columns: {include: [id, total]}
  ordering:
    by: columns
    columns: [changed_at, id]
    epochs: [{epoch: 1, from: {t: {0: 5}}}, {epoch: 2, from: {t: {0: 50}}}]
    toleranceMs: 10
  schemaEvolution: skip
  driftAcknowledgedUntil: "2026-03-01T00:00:00Z"
  onBadRecord: fail
  onUnrepresentable: "null"
  tombstones: {retention: 14d}
  retention: {audit: 1d, quarantine: 90d}
  checkpoint: s3a://lake/_checkpoints/inventory
  trigger: {availableNow: true, schedule: "*/5 * * * 1-5"}
  maintenance: {optimize: {every: 6h}, vacuum: {every: 1d, retain: 7d}}
  verify:
    jdbc: {url: "jdbc:postgresql://db:5432/shop?sslmode=require", secret: shop-reader, slot: debezium}
    schedule: "0 3 * * *"
    tables: [public.customers]
    wait: 5m
    settle: 1m
  progressDeadline: 10m
  restart: {backoffLimit: 3, resetAfter: 1h}
  deletionPolicy: DeleteCheckpoint
  spark:
    backend: kubeflow
    image: registry.example/lakemirror-driver:0.1.0
    imagePullSecrets: [pull]
    executors: {min: 1, max: 8, cores: 4, memory: 8g, podTemplate: {spec: {priorityClassName: low}}}
    driver: {cores: 2, memory: 3g, podTemplate: {spec: {priorityClassName: high}}}
    conf: {spark.hadoop.fs.s3a.endpoint: "http://s3:9000"}
    podTemplate: {spec: {nodeSelector: {disk: ssd}, securityContext: null}}
    resetToken: "1"
status:
  observedGeneration: 3
  phase: Running
  conditions:
    - type: Ready
      status: "True"
      observedGeneration: 3
      lastTransitionTime: 2026-03-01T00:00:00Z
      reason: Progressing
      message: batch 41 is committed
  driver:
    pod: inventory-driver-0
    runId: a1
    startedAt: "2026-03-01T00:00:00Z"
    image: registry.example/lakemirror-driver:0.1.0
    restarts: 1
    consecutiveFailures: 0
    lastFailure: {reason: OOMKilled, message: "exit code 137", at: "2026-02-28T00:00:00Z"}
  checkpoint:
    batchId: 41
    committedAt: "2026-03-01T00:00:00Z"
    lagRecords: 12
    lagSeconds: 1.5
    eventTime: "2026-03-01T00:00:00.123Z"
    caughtUp: false
    observedAt: "2026-03-01T00:00:05Z"
  totals:
    applied: 10
    inserted: 5
    updated: 3
    deleted: 2
    stale: 1
    duplicates: 1
    tombstoneRecords: 2
    tombstonesRetained: 2
    lateAfterCollection: 0
    quarantined: 1
  tablesTotal: 1
  tables:
    - source: inventory.public.customers
      target: lake.public.people
      version: 7
      lastEventTime: "2026-03-01T00:00:00Z"
      applied: 10
      tombstonesRetained: 2
      drift:
        - {column: a, change: widened, from: int, to: bigint, action: altered, since: "2026-03-01T00:00:00Z"}
      error: none
  handled: {restartToken: "", resetToken: "1", resync: {public.customers: "2"}}
"""


def changed(**fields: Any) -> dict[str, Any]:
    """The small manifest with fields of ``spec`` replaced; None takes one out."""
    document = copy.deepcopy(SMALL)
    for name, value in fields.items():
        if value is None:
            del document["spec"][name]
        else:
            document["spec"][name] = value
    return document
