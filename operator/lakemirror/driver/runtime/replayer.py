"""Replays quarantined records through the same gate as any other record.

If no driver owns the checkpoint, `replay` takes it and does the work itself. Otherwise it files a request
(`runtime.replay_requests`). The driver retries held records (`quarantine.HELD`) in the same way, without a
request; see `runtime.held`.

A replay may be interrupted at any point and repeated. Each attempt is a query of its own, so that no batch is
mistaken for another. Records that an earlier attempt has already written count as duplicates.
"""

from __future__ import annotations

import logging
import math
import uuid
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext

from delta import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from lakemirror.api import AmbiguousTable, CdcPipeline
from lakemirror.driver import faults
from lakemirror.driver.batch import BatchApplier
from lakemirror.driver.checkpoint.owner import Owner
from lakemirror.driver.checkpoint.storage import open_storage
from lakemirror.driver.engine.engine import Engine
from lakemirror.driver.engine.file_systems import FileSystems
from lakemirror.driver.engine.quarantine_table import QuarantineTable
from lakemirror.driver.errors import CheckpointInUse
from lakemirror.driver.parse.encodings import Encoding, encoding_of
from lakemirror.driver.read.base import CONTENT, RAW_NAMES, REREAD, Batch, SourceFile
from lakemirror.driver.read.files.lines import NO_RECORD
from lakemirror.driver.read.secrets import Secrets
from lakemirror.driver.read.watch import SourceWatch
from lakemirror.driver.record import audit, quarantine
from lakemirror.driver.record.write_behind import WriteBehind
from lakemirror.driver.reload.reading import RELOAD_TOPIC, REPAIR_TOPIC, as_read, as_repaired
from lakemirror.driver.results import BatchResult
from lakemirror.driver.runtime.paths import with_absolute_paths
from lakemirror.driver.runtime.replay_requests import (
    ReplayOutcome,
    ReplayRequest,
    StillBad,
    await_outcome,
    file_request,
)
from lakemirror.driver.runtime.session import create_session
from lakemirror.driver.runtime.target import open_target
from lakemirror.driver.write.target import DELTA, TargetKind

_log = logging.getLogger(__name__)

MOST_RECORDS = 500_000
"""The maximum number of records applied at once. Batches of the source run in between."""
MOST_BYTES = 1 << 30
WAIT_SECONDS = 300.0
_PLACES_SHOWN = 3
_REASONS_SHOWN = 20

Alone = Callable[[], AbstractContextManager[object]]
"""Returns a context manager that keeps batches away while it is active."""


def replay(
    pipeline: CdcPipeline,
    *,
    table: str | None = None,
    reason: str | None = None,
    discard: bool = False,
    spark: SparkSession | None = None,
    timeout: float = WAIT_SECONDS,
    secrets: Secrets | None = None,
) -> ReplayOutcome:
    """Replay open quarantined records of ``pipeline``, here or in the driver that owns its checkpoint.

    With ``discard``, close them instead, because nobody is going to correct them (`ReplayRequest`).
    In the second case, waits up to ``timeout`` seconds for the driver. ``secrets`` contains the directories
    of the Secrets of a schema registry and of ``target.jdbc``.
    """
    pipeline = with_absolute_paths(pipeline)
    session = spark or create_session(f"lakemirror-replay-{pipeline.name}", pipeline.spec.spark.conf)
    try:
        storage = open_storage(pipeline.spec.checkpoint, session)
        request = ReplayRequest(uuid.uuid4().hex[:12], table, reason, discard)
        try:
            with Owner(storage, run_id=f"replay-{request.id}") as owner:
                owner.hold_jvm(session)
                with WriteBehind(session, pipeline.spec.checkpoint, check=owner.check):
                    encoding = encoding_of(pipeline.spec, secrets or {}, SourceWatch())
                    with open_target(session, pipeline, secrets or {}) as target:
                        replayer = Replayer(session, pipeline, encoding=encoding, target=target)
                        return replayer.carry_out(request)
        except CheckpointInUse:
            file_request(storage, request)
            return await_outcome(storage, request, timeout)
    finally:
        if spark is None:
            session.stop()


class Replayer:
    """Applies quarantined records as batches of their own.

    ``alone`` keeps other batches away while records are applied. ``told`` receives the results, and
    ``warn`` what people should know.
    """

    def __init__(
        self,
        spark: SparkSession,
        pipeline: CdcPipeline,
        alone: Alone = nullcontext,
        told: Callable[[BatchResult], None] = lambda result: None,
        encoding: Encoding | None = None,
        target: TargetKind = DELTA,
        warn: Callable[[str], None] = _log.warning,
    ) -> None:
        self._target, self._warn = target, warn
        self._session = spark.newSession()  # so that its settings are separate from the streaming query's
        self._alone, self._told, self._encoding = alone, told, encoding
        self._checkpoint = pipeline.spec.checkpoint
        in_columns = Engine.is_on(spark)
        systems = FileSystems(spark)
        self._table = QuarantineTable(spark, systems, self._checkpoint) if in_columns else None
        # A bad record stays in the quarantine here: there is no stream to stop.
        spec = pipeline.spec.model_copy(update={"on_bad_record": "quarantine"})
        self._pipeline = pipeline.model_copy(update={"spec": spec})

    def carry_out(self, request: ReplayRequest) -> ReplayOutcome:
        """Carry out a request and return its outcome."""
        if request.discard:
            return self._discard(request)
        sources = self.count(request.chosen())
        left_out = self.left_out(sources)
        taken = {source: number for source, number in sources.items() if source not in left_out}
        queries = self.apply(request.chosen() & _source().isin(list(taken))) if taken else []
        again = F.col("query_id").isin(queries)
        open_still = sum(self.count(again).values()) if queries else 0
        bad = self.still_bad(again) if open_still else ()
        bad += tuple(StillBad(each, "the manifest leaves this table out", sources[each]) for each in left_out)
        open_still += sum(sources[each] for each in left_out)
        return ReplayOutcome(request.id, sum(sources.values()), open_still, taken=sources, bad=bad)

    def _discard(self, request: ReplayRequest) -> ReplayOutcome:
        """Close the records of a request without applying them."""
        with self._alone():
            taken = self.count(request.chosen())
            if taken:
                chosen = (F.col("state") == "open") & request.chosen()
                quarantine.close(self._session, self._checkpoint, chosen, "discarded")
        return ReplayOutcome(request.id, sum(taken.values()), taken=taken, discarded=True)

    def apply(self, chosen: Column) -> list[str]:
        """Apply the open records that meet a condition, in parts, and return the ids of the queries."""
        topic = F.coalesce("topic", F.lit(""))
        own = ((RELOAD_TOPIC, as_read(self._pipeline)), (REPAIR_TOPIC, as_repaired(self._pipeline)))
        queries = self._apply_some(
            chosen & ~topic.isin(*[name for name, _ in own]), self._pipeline, self._encoding
        )
        for name, pipeline in own:
            queries += self._apply_some(chosen & (topic == name), pipeline, None)
        return queries

    def _apply_some(self, chosen: Column, pipeline: CdcPipeline, encoding: Encoding | None) -> list[str]:
        """Apply the open records that meet a condition as ``pipeline`` reads them. Returns the query ids."""
        queries = []
        for scope, rounds in self._rounds(chosen).items():
            for number in range(rounds):
                query = f"replay-{uuid.uuid4().hex}"
                # Unlike LIMIT, this selects the same rows whenever Spark recomputes them.
                part = (_scope() == scope) & (F.pmod(F.xxhash64("id"), F.lit(rounds)) == number)
                with self._alone():
                    self._apply(chosen & part, query, pipeline, encoding)
                queries.append(query)
        return queries

    def left_out(self, sources: Iterable[str]) -> list[str]:
        """Return the given source tables that the manifest leaves out. Nothing can be applied to them."""
        return [each for each in sources if each and not self._is_mirrored(each)]

    def open_counts(self) -> quarantine.OpenRecords:
        """Return the number of open records by table and scope."""
        found = None if self._table is None else self._table.open_counts()
        return quarantine.open_counts(self._session, self._checkpoint) if found is None else found

    def count(self, chosen: Column) -> dict[str, int]:
        """Return the number of open records that meet a condition, by table."""
        rows = self._open(chosen)
        if rows is None:
            return {}
        return {row[0]: row[1] for row in rows.groupBy(_source()).agg(F.count("*")).collect()}

    def still_bad(self, chosen: Column) -> tuple[StillBad, ...]:
        """Return the open records that meet a condition, by table and reason, the most frequent first."""
        rows = self._open(chosen)
        if rows is None:
            return ()
        origin = F.concat_ws("/", "topic", "partition", "offset")
        place = F.coalesce(F.nullif(origin, F.lit("")), F.concat_ws(", line ", "file", "row"))
        places = F.slice(F.sort_array(F.collect_set(place)), 1, _PLACES_SHOWN)
        reason = F.coalesce("reason", F.lit("")).alias("reason")
        groups = rows.groupBy(_source(), reason).agg(F.count("*").alias("records"), places.alias("places"))
        most = groups.orderBy(F.desc("records"), "source", "reason").limit(_REASONS_SHOWN).collect()
        return tuple(StillBad(row[0], row[1], row[2], tuple(row[3])) for row in most)

    def explain(self, chosen: Column, reason: str) -> None:
        """Record why the open records that meet a condition could not be applied."""
        with self._alone():
            target = DeltaTable.forPath(self._session, quarantine.path(self._checkpoint))
            differs = ~F.col("reason").eqNullSafe(F.lit(reason))
            target.update((F.col("state") == "open") & chosen & differs, {"reason": F.lit(reason)})

    def _open(self, chosen: Column) -> DataFrame | None:
        rows = quarantine.read(self._session, self._checkpoint)
        return None if rows is None else rows.where(F.col("state") == "open").where(chosen)

    def _rounds(self, chosen: Column) -> dict[str, int]:
        """Return in how many parts the open records that meet a condition are applied, by `_scope`."""
        rows = self._open(chosen)
        if rows is None:
            return {}
        sizes = rows.groupBy(_scope()).agg(F.count("*"), F.sum(F.length("value"))).collect()
        return {
            scope: math.ceil(max(records / MOST_RECORDS, (volume or 0) / MOST_BYTES))
            for scope, records, volume in sorted(map(tuple, sizes))
        }

    def _apply(self, chosen: Column, query: str, pipeline: CdcPipeline, encoding: Encoding | None) -> None:
        target = DeltaTable.forPath(self._session, quarantine.path(self._checkpoint))
        newest = target.history(1).select("version").first()
        assert newest is not None
        stored = quarantine.read(self._session, self._checkpoint, int(newest[0]))
        assert stored is not None
        rows = stored.where(F.col("state") == "open").where(chosen).persist()
        try:
            if rows.isEmpty():
                return
            history = audit.history(self._session, self._checkpoint)
            applier = BatchApplier(
                self._session, pipeline, query, history, encoding, self._warn, self._target
            )
            batch = Batch(query, 0, {"quarantine": int(newest[0])}, _files(rows, stored))
            self._told(applier.apply(_raw(rows), batch))
            faults.reach("after-replay-applied")
            # Records that are still bad were stored again by this query, perhaps with another reason.
            applied = f"NOT t.query_id <=> '{query}'"
            (
                target.alias("t")
                .merge(rows.select("id").alias("s"), "t.id = s.id AND t.state = 'open'")
                .whenMatchedUpdate(applied, {"state": F.lit("replayed")})
                .execute()
            )
        finally:
            rows.unpersist()

    def _is_mirrored(self, source: str) -> bool:
        try:
            return self._pipeline.spec.table_settings(source) is not None
        except AmbiguousTable:  # two entries match: applying the records reports that
            return True


def _files(rows: DataFrame, stored: DataFrame) -> tuple[SourceFile, ...]:
    """Return the files of held ``rows``, by table, and whether ``rows`` are all that is held of them.

    A table may have had the file already when it was held: it could not be asked while it was suspended or
    refused, or while its mirror could not be read. It is asked now, except about rows that are applied
    whether it has the file or not.
    """
    names = F.transform("headers", lambda each: each["key"])
    # The rest of an undecided row's file was applied, so the table has the file, but not this row.
    again = (F.col("scope") == "order") | F.array_contains(names, REREAD)
    held = _scope().isin(*quarantine.HELD)

    def counts(some: DataFrame) -> dict[tuple[str, str, str], tuple[int, bool, int]]:
        groups = some.where(held).groupBy(_source(), "file", _content().alias("sha256"))
        start = F.coalesce(F.min(F.col("offset") - F.col("row")), F.lit(0))
        found = groups.agg(F.count("*"), F.max(again), start).collect()
        return {(row[0], row[1], row[2]): (row[3], row[4], row[5]) for row in found}

    taken = counts(rows)
    if not taken:
        return ()
    there = counts(stored.where("state = 'open'"))
    return tuple(
        SourceFile(
            file,
            file.rpartition("/")[2],
            sha256,
            again=anyway,
            table=source,
            whole=number == there[source, file, sha256][0],
            start=start,
        )
        for (source, file, sha256), (number, anyway, start) in taken.items()
    )


def _content() -> Column:
    """STRING: the hash of the content of the file that a row is from, null for other records."""
    found = F.get(F.filter("headers", lambda each: each["key"] == CONTENT), 0)["value"].cast("string")
    return F.when(F.col("file").isNotNull(), found)


def _scope() -> Column:
    """STRING: the scope of a row of a file, "" for other records.

    Rows of each scope are applied on their own: a table that has a file need not have the bad and undecided
    rows of it.
    """
    return F.when(_content().isNotNull(), F.col("scope")).otherwise("")


def _source() -> Column:
    """Return the column with a row's table, "" if it is unknown."""
    return F.coalesce("source", F.lit("")).alias("source")


def _raw(rows: DataFrame) -> DataFrame:
    """Return quarantined rows as RAW records. A line that was not a record still is not one."""
    told = F.when(F.col("file").isNotNull() & F.col("reason").rlike(NO_RECORD), F.col("reason"))
    return rows.withColumn("problem", F.coalesce("problem", told)).select(*RAW_NAMES)
