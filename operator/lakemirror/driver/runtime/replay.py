"""Quarantined records, once more through the same gate as any other.

Only the driver writes. So a replay is a request: a file ``replay/<id>.json`` beside the checkpoint, which
the driver applies between two batches; what came of it is told in ``replay/outcomes/<id>.json``. Where no
driver owns the checkpoint, `replay` takes it and does the work itself.

The driver takes up held records (`quarantine.HELD`) by itself in the same way; see `runtime.held`.

A replay may be cut off at any point and done again. Each attempt is a query of its own, so that no batch is
taken for another one, and what it had written already is met again as duplicates.
"""

from __future__ import annotations

import json
import math
import time
import uuid
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime

from delta import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from lakemirror.api import AmbiguousTable, CdcPipeline
from lakemirror.driver import faults
from lakemirror.driver.batch import BatchApplier
from lakemirror.driver.checkpoint.owner import Owner
from lakemirror.driver.checkpoint.storage import FileCutOff, Storage, open_storage
from lakemirror.driver.document import iso
from lakemirror.driver.errors import CheckpointInUse, LakemirrorError, cause_of
from lakemirror.driver.read.base import RAW, Batch
from lakemirror.driver.record import quarantine
from lakemirror.driver.record.write_behind import WriteBehind
from lakemirror.driver.results import BatchResult
from lakemirror.driver.runtime.backoff import Backoff
from lakemirror.driver.runtime.paths import with_absolute_paths
from lakemirror.driver.runtime.session import create_session

FOLDER = "replay"
OUTCOMES = f"{FOLDER}/outcomes"
MOST_RECORDS = 500_000
"""Records that are applied at once; batches of the source come in between."""
MOST_BYTES = 1 << 30
WAIT_SECONDS = 300.0
_POLL_SECONDS = 0.5
_FIRST_DELAY, _LONGEST_DELAY = 5.0, 900.0
_OUTCOMES_KEPT = 100
_PLACES_SHOWN = 3
_REASONS_SHOWN = 20

Alone = Callable[[], AbstractContextManager[object]]
"""Keeps batches away while it is entered."""


class DamagedRequest(LakemirrorError):
    """A request file cannot be read."""


@dataclass(frozen=True)
class Request:
    """Which open records to replay: of a table, whose reason contains a text, or all."""

    id: str
    table: str | None = None
    reason: str | None = None

    @classmethod
    def parse(cls, text: str, where: str) -> Request:
        """The request in the file ``where``; raises DamagedRequest."""
        try:
            document = json.loads(text)
            request = cls(document["id"], document["table"], document["reason"])
            if not all(value is None or isinstance(value, str) for value in asdict(request).values()):
                raise TypeError("a text is expected for id, table and reason")
            return request
        except (ValueError, TypeError, KeyError) as error:
            raise DamagedRequest(
                f"{where} is not a replay request ({type(error).__name__}: {error}): delete it, and run "
                "`lakemirror replay` again if the replay is still wanted"
            ) from None

    def chosen(self) -> Column:
        """The condition on the quarantine's open rows."""
        wanted = F.lit(True)
        if self.table is not None:
            wanted = (F.col("source") == self.table) | F.endswith(F.col("source"), F.lit("." + self.table))
        if self.reason is not None:
            wanted = wanted & F.col("reason").contains(self.reason)
        return wanted


@dataclass(frozen=True)
class StillBad:
    """Records that stay in quarantine: their table ("" where it is not known), how many, why, and where some
    of them stood in the source.
    """

    source: str
    reason: str
    records: int
    places: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """What came of a replay.

    ``records`` were taken up, by table in ``taken``; of them ``still_bad`` stay in quarantine, for the
    reasons in ``bad``. ``error``: why the last of ``attempts`` came to no end; the driver tries again.
    ``filed``: a running driver is to do it and has not told yet.
    """

    request: str
    records: int = 0
    still_bad: int = 0
    filed: bool = False
    taken: dict[str, int] = field(default_factory=dict)
    bad: tuple[StillBad, ...] = ()
    error: str | None = None
    attempts: int = 1
    at: str | None = None

    @property
    def done(self) -> bool:
        """Whether nothing of it is left in quarantine."""
        return not (self.filed or self.error or self.still_bad)

    def text(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def parse(cls, text: str) -> Outcome:
        """From JSON; ValueError while it is being written."""
        document = json.loads(text)
        bad = tuple(StillBad(**{**each, "places": tuple(each["places"])}) for each in document.pop("bad"))
        return cls(**document, bad=bad)


def replay(
    pipeline: CdcPipeline,
    *,
    table: str | None = None,
    reason: str | None = None,
    spark: SparkSession | None = None,
    timeout: float = WAIT_SECONDS,
) -> Outcome:
    """Replay open quarantined records of ``pipeline``, here or by the driver that owns its checkpoint.

    In the second case this waits for ``timeout`` seconds until the driver has done it.
    """
    pipeline = with_absolute_paths(pipeline)
    session = spark or create_session(f"lakemirror-replay-{pipeline.name}", pipeline.spec.spark.conf)
    try:
        storage = open_storage(pipeline.spec.checkpoint, session)
        request = Request(uuid.uuid4().hex[:12], table, reason)
        try:
            with Owner(storage, run_id=f"replay-{request.id}") as owner:
                owner.hold_jvm(session)
                with WriteBehind(session, pipeline.spec.checkpoint, check=owner.check):
                    return carry_out(Gate(session, pipeline), request)
        except CheckpointInUse:
            file(storage, request)
            return _awaited(storage, request, timeout)
    finally:
        if spark is None:
            session.stop()


def file(storage: Storage, request: Request) -> None:
    """Ask the driver for a replay."""
    storage.write_text_new(f"{FOLDER}/{request.id}.json", json.dumps(asdict(request)) + "\n")


def _awaited(storage: Storage, request: Request, timeout: float) -> Outcome:
    """What the driver told of a request, or that it has not told anything in time."""
    until = time.monotonic() + timeout
    while True:
        outcome = _told(storage, request.id)
        if outcome is not None:
            return outcome
        if time.monotonic() >= until:
            return Outcome(request.id, filed=True)
        time.sleep(_POLL_SECONDS)


def _told(storage: Storage, identity: str) -> Outcome | None:
    """What the driver has told of a request; None before, and while it is telling."""
    try:
        return Outcome.parse(storage.read_text(f"{OUTCOMES}/{identity}.json"))
    except (FileNotFoundError, ValueError, TypeError, KeyError, LakemirrorError):
        return None


class Requests:
    """The requests that were filed; for the owner of the checkpoint.

    One that fails is tried again after a growing delay, and none waits for another. ``warn`` is told of
    failures.
    """

    def __init__(self, storage: Storage, gate: Gate, warn: Callable[[str], None]) -> None:
        self._storage, self._gate, self._warn = storage, gate, warn
        self._delays: Backoff[str] = Backoff(_FIRST_DELAY, _LONGEST_DELAY)

    def serve(self) -> list[Outcome]:
        """Carry out what is due."""
        names = [entry.name for entry in self._storage.list(FOLDER) if entry.name.endswith(".json")]
        return [self._serve(name) for name in names if self._delays.is_due(name)]

    def _request(self, name: str) -> Request:
        try:
            text = self._storage.read_text(name)
        except FileCutOff:
            text = ""
        return Request.parse(text, f"{self._storage.uri}/{name}")

    def _serve(self, name: str) -> Outcome:
        where, identity = f"{FOLDER}/{name}", name.removesuffix(".json")
        attempts = self._delays.failures(name) + 1
        try:
            outcome = _told(self._storage, identity)  # done already, if only its file is left
            if outcome is None or outcome.error is not None:
                request = self._request(where)
                outcome = replace(carry_out(self._gate, request), request=identity, attempts=attempts)
                self._tell(outcome)
            faults.reach("after-replay-settled")
            self._storage.delete(where)
            self._delays.forget(name)
            return outcome
        except Exception as error:
            delay = self._delays.failed(name)
            message = cause_of(error)
            self._warn(f"the replay {identity} failed and is tried again in {delay:.0f} s: {message}")
            outcome = Outcome(identity, error=message, attempts=attempts)
            self._tell_anyway(outcome)
            return outcome

    def _tell(self, outcome: Outcome) -> None:
        text = replace(outcome, at=iso(datetime.now(UTC))).text()
        self._storage.write_text(f"{OUTCOMES}/{outcome.request}.json", text)
        for old in sorted(self._storage.list(OUTCOMES), key=lambda entry: entry.mtime)[:-_OUTCOMES_KEPT]:
            self._storage.delete(f"{OUTCOMES}/{old.name}")

    def _tell_anyway(self, outcome: Outcome) -> None:
        try:
            self._tell(outcome)
        except Exception as error:
            self._warn(f"the outcome of the replay {outcome.request} could not be written: {error}")


class Gate:
    """Takes records of the quarantine through the gate.

    ``alone`` keeps batches away meanwhile; ``told`` gets the results.
    """

    def __init__(
        self,
        spark: SparkSession,
        pipeline: CdcPipeline,
        alone: Alone = nullcontext,
        told: Callable[[BatchResult], None] = lambda result: None,
    ) -> None:
        self._session = spark.newSession()  # its settings are not those of the streaming query
        self._alone, self._told = alone, told
        self._checkpoint = pipeline.spec.checkpoint
        # Here a bad record stays where it is: there is nothing to be stopped.
        spec = pipeline.spec.model_copy(update={"on_bad_record": "quarantine"})
        self._pipeline = pipeline.model_copy(update={"spec": spec})

    def apply(self, chosen: Column) -> list[str]:
        """Apply open records that meet a condition, some at a time; returns the ids of the queries."""
        rounds = self._rounds(chosen)
        queries = []
        for number in range(rounds):
            query = f"replay-{uuid.uuid4().hex}"
            # The same rows however often Spark computes them again, unlike those of a LIMIT.
            part = F.pmod(F.xxhash64("id"), F.lit(rounds)) == number
            with self._alone():
                self._apply(chosen & part, query)
            queries.append(query)
        return queries

    def left_out(self, sources: Iterable[str]) -> list[str]:
        """Those of these source tables that the manifest leaves out: for them, nothing can be applied."""
        return [each for each in sources if each and not self._is_mirrored(each)]

    def open_counts(self) -> quarantine.OpenRecords:
        """How many records are open, by table and scope."""
        return quarantine.open_counts(self._session, self._checkpoint)

    def count(self, chosen: Column) -> dict[str, int]:
        """How many open records meet a condition, by table."""
        rows = self._open(chosen)
        if rows is None:
            return {}
        return {row[0]: row[1] for row in rows.groupBy(_source()).agg(F.count("*")).collect()}

    def still_bad(self, chosen: Column) -> tuple[StillBad, ...]:
        """Open records that meet a condition, by table and reason, the most frequent first."""
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
        """Say why open records that meet a condition could not be applied."""
        with self._alone():
            target = DeltaTable.forPath(self._session, quarantine.path(self._checkpoint))
            differs = ~F.col("reason").eqNullSafe(F.lit(reason))
            target.update((F.col("state") == "open") & chosen & differs, {"reason": F.lit(reason)})

    def _open(self, chosen: Column) -> DataFrame | None:
        rows = quarantine.read(self._session, self._checkpoint)
        return None if rows is None else rows.where(F.col("state") == "open").where(chosen)

    def _rounds(self, chosen: Column) -> int:
        rows = self._open(chosen)
        size = None if rows is None else rows.agg(F.count("*"), F.sum(F.length("value"))).first()
        if size is None:
            return 0
        records, volume = int(size[0]), int(size[1] or 0)
        return math.ceil(max(records / MOST_RECORDS, volume / MOST_BYTES))

    def _apply(self, chosen: Column, query: str) -> None:
        target = DeltaTable.forPath(self._session, quarantine.path(self._checkpoint))
        newest = target.history(1).select("version").first()
        assert newest is not None
        stored = quarantine.read(self._session, self._checkpoint, int(newest[0]))
        assert stored is not None
        rows = stored.where(F.col("state") == "open").where(chosen).persist()
        try:
            if rows.isEmpty():
                return
            applier = BatchApplier(self._session, self._pipeline, query)
            self._told(applier.apply(_raw(rows), Batch(query, 0, {"quarantine": int(newest[0])})))
            faults.reach("after-replay-applied")
            # What is still bad was stored again by this query, perhaps for another reason.
            applied = F.expr(f"t.state = 'open' AND NOT t.query_id <=> '{query}'")
            (
                target.alias("t")
                .merge(rows.select("id").alias("s"), "t.id = s.id")
                .whenMatchedUpdate(applied, {"state": F.lit("replayed")})
                .execute()
            )
        finally:
            rows.unpersist()

    def _is_mirrored(self, source: str) -> bool:
        try:
            return self._pipeline.spec.table_settings(source) is not None
        except AmbiguousTable:  # two entries fit: the gate says so
            return True


def carry_out(gate: Gate, request: Request) -> Outcome:
    """Do what a request asks for."""
    sources = gate.count(request.chosen())
    left_out = gate.left_out(sources)
    taken = {source: number for source, number in sources.items() if source not in left_out}
    queries = gate.apply(request.chosen() & _source().isin(list(taken))) if taken else []
    again = F.col("query_id").isin(queries)
    open_still = sum(gate.count(again).values()) if queries else 0
    bad = gate.still_bad(again) if open_still else ()
    bad += tuple(StillBad(each, "the manifest leaves this table out", sources[each]) for each in left_out)
    open_still += sum(sources[each] for each in left_out)
    return Outcome(request.id, sum(sources.values()), open_still, taken=sources, bad=bad)


def _source() -> Column:
    """A row's table, "" where it is not known."""
    return F.coalesce("source", F.lit("")).alias("source")


def _raw(rows: DataFrame) -> DataFrame:
    """Quarantined rows as RAW records; a line that was no record still is none."""
    names = [
        part.split(" ")[0]
        for part in RAW.replace("ARRAY<STRUCT<key: STRING, value: BINARY>>", "X").split(", ")
    ]
    return rows.select(*names)
