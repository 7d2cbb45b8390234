"""Replay of quarantined records, through the same gate as any other.

Only the driver writes. So a replay is a request: a file ``replay/<id>.json`` beside the checkpoint, which
the driver applies between two batches. Where no driver owns the checkpoint, `replay` takes it and applies
the request itself.

A request is one batch of a query of its own (``replay-<id>``); a record that is still bad stays in
quarantine as it is, the others are marked ``replayed``.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from delta import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from lakemirror.api import CdcPipeline
from lakemirror.driver import quarantine
from lakemirror.driver.batch import BatchApplier
from lakemirror.driver.delta import is_table
from lakemirror.driver.errors import CheckpointInUse
from lakemirror.driver.owner import Owner
from lakemirror.driver.paths import with_absolute_paths
from lakemirror.driver.results import BatchResult
from lakemirror.driver.session import create_session
from lakemirror.driver.sources.base import RAW, Batch
from lakemirror.driver.storage import Storage, open_storage

FOLDER = "replay"


@dataclass(frozen=True)
class Request:
    """Which open records to replay: of a table, whose reason contains a text, or all."""

    id: str
    table: str | None = None
    reason: str | None = None

    def chosen(self) -> Column:
        """The condition on the quarantine's rows."""
        wanted = F.col("state") == "open"
        if self.table is not None:
            wanted = wanted & ((F.col("source") == self.table) | F.col("source").endswith("." + self.table))
        if self.reason is not None:
            wanted = wanted & F.col("reason").contains(self.reason)
        return wanted


@dataclass(frozen=True)
class Outcome:
    """What a replay did: records taken up, of them still bad; ``filed`` when a running driver is to do it."""

    request: str
    records: int = 0
    still_bad: int = 0
    filed: bool = False


def replay(
    pipeline: CdcPipeline,
    *,
    table: str | None = None,
    reason: str | None = None,
    spark: SparkSession | None = None,
) -> Outcome:
    """Replay open quarantined records of ``pipeline``, here or by the driver that owns its checkpoint."""
    pipeline = with_absolute_paths(pipeline)
    session = spark or create_session(f"lakemirror-replay-{pipeline.name}", pipeline.spec.spark.conf)
    try:
        storage = open_storage(pipeline.spec.checkpoint, session)
        request = Request(uuid.uuid4().hex[:12], table, reason)
        file(storage, request)
        try:
            with Owner(storage, run_id=f"replay-{request.id}") as owner:
                owner.hold_jvm(session)
                done = serve(session, pipeline, storage)
        except CheckpointInUse:
            return Outcome(request.id, filed=True)
        return next(each for each in done if each.request == request.id)
    finally:
        if spark is None:
            session.stop()


def file(storage: Storage, request: Request) -> None:
    """Ask for a replay."""
    text = json.dumps({"id": request.id, "table": request.table, "reason": request.reason})
    storage.write_text_new(f"{FOLDER}/{request.id}.json", text)


def serve(
    spark: SparkSession,
    pipeline: CdcPipeline,
    storage: Storage,
    told: Callable[[BatchResult], None] = lambda result: None,
) -> list[Outcome]:
    """Apply all requests that were filed; for the owner of the checkpoint, between batches."""
    outcomes = []
    for entry in storage.list(FOLDER):
        name = entry.name if entry.name.startswith(f"{FOLDER}/") else f"{FOLDER}/{entry.name}"
        request = Request(**json.loads(storage.read_text(name)))
        outcomes.append(_serve(spark, pipeline, request, told))
        storage.delete(name)
    return outcomes


def _serve(
    spark: SparkSession, pipeline: CdcPipeline, request: Request, told: Callable[[BatchResult], None]
) -> Outcome:
    where = quarantine.path(pipeline.spec.checkpoint)
    if not is_table(spark, where):
        return Outcome(request.id)
    session = spark.newSession()  # its settings are not those of the streaming query
    version = DeltaTable.forPath(session, where).history(1).select("version").first()
    assert version is not None
    chosen = (
        session.read.format("delta")
        .option("versionAsOf", version[0])
        .load(where)
        .where(request.chosen())
        .persist()
    )
    try:
        count = chosen.count()
        if not count:
            return Outcome(request.id)
        applier = BatchApplier(session, pipeline, f"replay-{request.id}")
        result = applier.apply(
            _raw(chosen), Batch(f"replay-{request.id}", 0, {"quarantine": int(version[0])})
        )
        told(result)
        _settle(session, where, chosen, applier.still_bad)
        return Outcome(request.id, count, result.counts.quarantined + result.counts.refused)
    finally:
        chosen.unpersist()


def _raw(rows: DataFrame) -> DataFrame:
    """Quarantined rows as RAW records; a line that was no record still is none."""
    names = [
        part.split(" ")[0]
        for part in RAW.replace("ARRAY<STRUCT<key: STRING, value: BINARY>>", "X").split(", ")
    ]
    return rows.select(*names)


def _settle(session: SparkSession, where: str, chosen: DataFrame, still_bad: DataFrame | None) -> None:
    """Mark what was replayed; what is still bad stays open."""
    done = chosen.select("id")
    if still_bad is not None:
        done = done.join(still_bad.select("id"), "id", "left_anti")
    target = DeltaTable.forPath(session, where).alias("t")
    target.merge(done.alias("s"), "t.id = s.id").whenMatchedUpdate(set={"state": F.lit("replayed")}).execute()
