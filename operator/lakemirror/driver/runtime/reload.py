"""``reload(pipeline, source)``: makes mirrors equal to a snapshot of their source; see docs/snapshots.md.

Only the driver writes mirrors. A snapshot is therefore read and compared here (`lakemirror.driver.reload`),
and the changes are kept as files in ``reload/ID`` beside the checkpoint. A request, ``reload/ID.json``, makes
the driver apply them between two batches, through the same gate as all other changes. If no driver owns the
checkpoint, they are applied here.

A request that was interrupted is carried out again from the same files. Changes that were already applied
have no effect.
"""

from __future__ import annotations

import json
import logging
import math
import uuid
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from lakemirror.api import AmbiguousTable, CdcPipeline
from lakemirror.api.tables import matches, parts_of
from lakemirror.driver import faults
from lakemirror.driver.batch import BatchApplier
from lakemirror.driver.checkpoint.owner import Owner
from lakemirror.driver.checkpoint.storage import Storage, open_storage
from lakemirror.driver.errors import (
    CheckpointInUse,
    LakemirrorError,
    NotAnswered,
    PipelineStopped,
    cause_of,
)
from lakemirror.driver.plan.refusal import Refused
from lakemirror.driver.read.base import RAW_NAMES, Batch
from lakemirror.driver.read.secrets import Secrets
from lakemirror.driver.record import audit, quarantine
from lakemirror.driver.record.write_behind import WriteBehind
from lakemirror.driver.reload.reading import RELOAD_TOPIC, as_read
from lakemirror.driver.reload.stage import Staged, shows_all, stage
from lakemirror.driver.results import BatchResult
from lakemirror.driver.runtime.looking import accept, is_lost
from lakemirror.driver.runtime.paths import absolute, with_absolute_paths
from lakemirror.driver.runtime.replay_requests import (
    DamagedRequest,
    ReplayOutcome,
    Requests,
    StillBad,
    aside,
    await_outcome,
)
from lakemirror.driver.runtime.replayer import Alone
from lakemirror.driver.runtime.session import create_session
from lakemirror.driver.runtime.table_epochs import TableEpochs
from lakemirror.driver.runtime.target import open_target
from lakemirror.driver.runtime.verifier import (
    URLS,
    DatabaseWanted,
    Login,
    SnapshotWanted,
    is_mirrored,
    source_of,
)
from lakemirror.driver.tables.mirror import Mirror
from lakemirror.driver.tables.names import TableName
from lakemirror.driver.tables.store import OpenStore
from lakemirror.driver.verify.jdbc import Database
from lakemirror.driver.verify.open import SourceWanted, open_source
from lakemirror.driver.verify.sources import SourceTables, SourceUnfit
from lakemirror.driver.verify.table import named, session_for, table_of
from lakemirror.driver.write.target import DELTA, TargetKind

__all__ = ["URLS", "DatabaseWanted", "Login", "Reloaded", "SnapshotWanted", "reload", "source_of"]

FOLDER = "reload"
MOST_RECORDS = 500_000
"""The maximum number of change events applied at once. Batches of the source run in between."""
WAIT_SECONDS = 300.0
_STAGED = ".staged"
"""The suffix of a marker file that exists as long as the folder of the same name may contain changes."""
_ABANDONED_SECONDS = 7 * 24 * 3600.0
"""Longer than it takes to read any table."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ReloadRequest:
    """The changes of one source table: ``records`` change events in the folder that is named after ``id``.

    ``shown`` is when the source was as the snapshot shows, in microseconds (None in requests of earlier
    versions): truncates that were waiting then are part of it.
    Without any, the mirror is as the source, and the table goes on if it was held because of its mirror.
    """

    id: str
    table: str
    records: int
    shown: int | None = None

    def text(self) -> str:
        """Return the request as JSON."""
        return json.dumps(asdict(self), ensure_ascii=False) + "\n"

    @classmethod
    def parse(cls, text: str, where: str) -> ReloadRequest:
        """Parse the request in the file ``where``. Raises DamagedRequest if it cannot be read."""
        try:
            document = json.loads(text)
            shown = document.get("shown")
            about = str(document["id"]), str(document["table"]), int(document["records"])
            return cls(*about, None if shown is None else int(shown))
        except (ValueError, TypeError, KeyError) as error:
            raise DamagedRequest(
                f"{where} is not a request for a reload ({type(error).__name__}: {error}): delete it, and "
                "run `lakemirror reload` again"
            ) from None


@dataclass(frozen=True)
class Reloaded:
    """The outcome for a table. ``error`` says why it was not reloaded."""

    source: str
    staged: Staged = field(default_factory=Staged)
    outcome: ReplayOutcome | None = None
    error: str | None = None

    @property
    def done(self) -> bool:
        """Whether the mirror has everything that the snapshot shows, or something newer."""
        if self.error is not None or self.staged.unfit:
            return False
        outcome = self.outcome
        return outcome is None or not (outcome.filed or outcome.error or outcome.still_bad)


class Reloader:
    """Applies the changes of requests as batches of their own.

    ``alone`` keeps other batches away while they are applied. ``told`` receives the results, and
    ``warn`` what people should know.
    """

    def __init__(
        self,
        spark: SparkSession,
        pipeline: CdcPipeline,
        storage: Storage,
        alone: Alone = nullcontext,
        told: Callable[[BatchResult], None] = lambda result: None,
        target: TargetKind = DELTA,
        warn: Callable[[str], None] = _log.warning,
    ) -> None:
        self._target, self._warn = target, warn
        self._session = spark.newSession()  # so that its settings are separate from the streaming query's
        self._pipeline, self._storage = pipeline, storage
        self._alone, self._told = alone, told

    def requests(self, warn: Callable[[str], None]) -> Requests[ReloadRequest]:
        """Return the requests that were filed."""
        settled = partial(_forget, self._storage)
        return Requests(self._storage, FOLDER, "reload", ReloadRequest.parse, self.carry_out, warn, settled)

    def carry_out(self, request: ReloadRequest) -> ReplayOutcome:
        """Apply the changes of a request. Those older than what the mirror has by now have no effect.

        The files stay until the outcome is known to whoever asked for it.
        """
        rounds, stale = math.ceil(request.records / MOST_RECORDS), 0
        bad: tuple[StillBad, ...] = ()
        for number in range(rounds):
            query, raw = f"replay-{uuid.uuid4().hex}", self._raw(request, rounds, number)
            with self._alone():
                history = audit.history(self._session, self._pipeline.spec.checkpoint)
                pipeline = as_read(self._pipeline)
                applier = BatchApplier(
                    self._session,
                    pipeline,
                    query,
                    history,
                    warn=self._warn,
                    target=self._target,
                    anew=[request.table],
                )
                result = applier.apply(raw, Batch(query, 0, {"reload": request.id, "part": number}))
                self._told(result)
            bad += aside(request.table, result, raw.count())
            stale += result.counts.stale
            faults.reach("after-reload-part")
        if not rounds:
            self._accept(request.table)
        if stale:
            bad += (StillBad(request.table, "the mirror has a newer change of the row by now", stale),)
        lost = sum(each.records for each in bad) - stale
        if not lost and request.shown is not None:
            with self._alone():
                chosen = _shown_truncates(request.table, request.shown)
                quarantine.close(self._session, self._pipeline.spec.checkpoint, chosen)
        taken = {request.table: request.records}
        return ReplayOutcome(request.id, request.records, lost, taken=taken, bad=bad)

    def _accept(self, source: str) -> None:
        """Let a table go on whose mirror is not as the driver left it, but as the source."""
        with self._alone():
            self._told(accept(table_of(self._session, self._pipeline, named(source), self._target.open)))

    def _raw(self, request: ReloadRequest, rounds: int, number: int) -> DataFrame:
        """Return a part of the changes as RAW records, the same ones each time."""
        place = folder(self._pipeline, request.id)
        form = "number BIGINT, key STRING, value STRING, partition INT"
        rows = self._session.read.schema(form).parquet(place)
        given: dict[str, Column] = {
            "topic": F.lit(RELOAD_TOPIC),
            # An offset means something in its partition only, so that the place of a row goes with it.
            "partition": F.coalesce("partition", F.lit(0)),
            "offset": F.lit(int(request.id.partition("-")[0], 16)) + F.col("number"),
            "timestamp": F.current_timestamp(),
            "key": F.col("key").cast("binary"),
            "value": F.col("value").cast("binary"),
            "headers": F.lit(None).cast("array<struct<key: string, value: binary>>"),
            "file": F.lit(None).cast("string"),
            "row": F.lit(None).cast("bigint"),
            "problem": F.lit(None).cast("string"),
        }
        part = rows.where(F.pmod(F.xxhash64("key"), F.lit(rounds)) == number)
        return part.select(*[given[name].alias(name) for name in RAW_NAMES])


def _shown_truncates(table: str, shown: int) -> Column:
    """BOOLEAN: whether a quarantined record is a truncate of a table that a snapshot already shows."""
    return quarantine.truncates(table) & (F.unix_micros("quarantined_at") < F.lit(shown))


def _awaits(session: SparkSession, pipeline: CdcPipeline, table: str, shown: int) -> bool:
    """Return whether a truncate waits for this reload."""
    rows = quarantine.read(session, pipeline.spec.checkpoint)
    return rows is not None and not rows.where(_shown_truncates(table, shown)).isEmpty()


def folder(pipeline: CdcPipeline, identity: str) -> str:
    """Return the folder that contains the changes of a request."""
    return f"{pipeline.spec.checkpoint.rstrip('/')}/{FOLDER}/{identity}"


def new_identity() -> str:
    """Return an id for a new request.

    It starts with a number that grows over time, so that the later of two requests at the same position wins.
    """
    return f"{_micros(datetime.now(UTC)):x}-{uuid.uuid4().hex[:8]}"


def _micros(moment: datetime) -> int:
    return int(moment.timestamp() * 1_000_000)


def reload(
    pipeline: CdcPipeline,
    source: SourceWanted,
    *,
    tables: Sequence[str] = (),
    at: datetime | None = None,
    empty: bool = False,
    spark: SparkSession | None = None,
    timeout: float = WAIT_SECONDS,
    secrets: Secrets | None = None,
    told: Callable[[Reloaded], None] = lambda table: None,
) -> list[Reloaded]:
    """Make mirrors equal to what ``source`` shows: those of the named ``tables``, or all.

    ``at`` is the time of a snapshot that is not a database, and ``empty`` says that such a snapshot may have
    no rows. ``timeout`` is how many seconds to wait for a running driver. ``secrets`` contains the directory
    of the Secret of ``target.jdbc`` if the mirrors are in a database. A table that fails does not stop the
    others. Raises LakemirrorError if nothing can be read.
    """
    pipeline = with_absolute_paths(pipeline)
    if isinstance(source, SnapshotWanted):
        source = replace(source, path=absolute(source.path))
    session = spark or create_session(f"lakemirror-reload-{pipeline.name}", pipeline.spec.spark.conf)
    try:
        storage = open_storage(pipeline.spec.checkpoint, session)
        reading, done = session_for(session), []
        with (
            open_target(session, pipeline, secrets or {}, owned=False) as target,
            open_source(reading, source, pipeline.spec) as sources,
        ):
            history = audit.history(session, pipeline.spec.checkpoint)
            known = [source for source in history.tables if is_mirrored(pipeline, source)]
            epochs = TableEpochs(pipeline, storage, history.positions)
            for name in wanted(known, tables, sources):
                found, request = stage_table(
                    *(reading, pipeline, sources, storage, name, epochs),
                    at=at,
                    empty=empty,
                    open_store=target.open,
                )
                if request is not None:
                    outcome = _carried_out(session, pipeline, storage, request, timeout, target)
                    found = replace(found, outcome=outcome)
                told(found)
                done.append(found)
        return done
    finally:
        if spark is None:
            session.stop()


def wanted(known: Collection[str], names: Sequence[str], sources: SourceTables) -> list[TableName]:
    """Return the tables to reload: all that are ``known``, or those that are named, which may be new.

    Raises SourceUnfit if there is no table, or if a name matches several.
    """
    if not names:
        if not known:
            raise SourceUnfit("no table has been mirrored yet: name the tables that are to be loaded")
        return [named(source) for source in sorted(known)]
    found = []
    for name in names:
        meant = [each for each in sorted(known) if matches(name, each)]
        if len(meant) > 1:
            raise SourceUnfit(f"{name} means {' and '.join(meant)}: name one of them")
        if meant:
            found.append(named(meant[0]))
        elif isinstance(sources, Database):
            found.append(sources.full_name(parts_of(name)))
        else:
            found.append(named(name))
    return found


def stage_table(
    session: SparkSession,
    pipeline: CdcPipeline,
    sources: SourceTables,
    storage: Storage,
    name: TableName,
    epochs: TableEpochs,
    *,
    at: datetime | None = None,
    empty: bool = False,
    open_store: OpenStore = Mirror,
) -> tuple[Reloaded, ReloadRequest | None]:
    """Read a table and compare it with its mirror, which ``open_store`` opens.

    Returns the result, and the request that has the changes written, or None if there is nothing to write.
    """
    identity, shown = new_identity(), _micros(at or datetime.now(UTC))
    storage.write_text_new(f"{FOLDER}/{identity}{_STAGED}", f"{name}\n")
    try:
        table = table_of(session, pipeline, name, open_store)
        found = stage(
            *(session, table, sources, folder(pipeline, identity)),
            at=at,
            empty=empty,
            epoch=epochs.to_write(table),
            declared=epochs.declared,
        )
        closes = _awaits(session, pipeline, str(name), shown) and shows_all(table, sources)
        if found.records or closes or (table.mirror.exists and is_lost(table, storage)):
            request = ReloadRequest(identity, str(name), found.records, shown if closes else None)
            return Reloaded(str(name), found), request
        result = Reloaded(str(name), found)
    except (PipelineStopped, NotAnswered):  # the other tables would fail as well
        _forget(storage, identity)
        raise
    except (LakemirrorError, Refused, AmbiguousTable) as error:
        result = Reloaded(str(name), error=str(error))
    except Exception as error:
        result = Reloaded(str(name), error=f"{name}: {cause_of(error)}")
    _forget(storage, identity)
    return result, None


def _forget(storage: Storage, identity: str) -> None:
    """Delete the changes of a request, and then the marker file that says that there are some."""
    storage.delete_folder(f"{FOLDER}/{identity}")
    storage.delete(f"{FOLDER}/{identity}{_STAGED}")


def forget_abandoned(storage: Storage, now: datetime) -> None:
    """Delete the changes that a command or a driver left behind when it died before a request named them.

    Changes of the last 7 days are kept, because they may still be in the making.
    """
    listed = storage.list(FOLDER)
    asked = {entry.name.removesuffix(".json") for entry in listed if entry.name.endswith(".json")}
    for entry in listed:
        identity = entry.name.removesuffix(_STAGED)
        age = now.timestamp() - entry.mtime / 1000
        if entry.name.endswith(_STAGED) and identity not in asked and age > _ABANDONED_SECONDS:
            _forget(storage, identity)


def _carried_out(
    session: SparkSession,
    pipeline: CdcPipeline,
    storage: Storage,
    request: ReloadRequest,
    timeout: float,
    target: TargetKind,
) -> ReplayOutcome:
    """Carry out a request here, or have the driver that owns the checkpoint carry it out."""
    try:
        with Owner(storage, run_id=f"reload-{request.id}") as owner:
            owner.hold_jvm(session)
            with WriteBehind(session, pipeline.spec.checkpoint, check=owner.check):
                outcome = Reloader(session, pipeline, storage, target=target).carry_out(request)
            _forget(storage, request.id)
            return outcome
    except CheckpointInUse:
        storage.write_text_new(f"{FOLDER}/{request.id}.json", request.text())
        return await_outcome(storage, request, timeout, FOLDER)
