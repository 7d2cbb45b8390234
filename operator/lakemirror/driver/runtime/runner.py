"""``run(pipeline)``: a session, the checkpoint's ownership, a feed, and the batches, reported as they go."""

from __future__ import annotations

import logging
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Literal, Protocol, TypeVar
from urllib.parse import urlsplit

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from lakemirror.api import CdcPipeline, duration_seconds
from lakemirror.api.report import NONE, Counts, DriverPhase, Report, SourceReport
from lakemirror.api.source import Source
from lakemirror.driver.batch import BatchApplier
from lakemirror.driver.checkpoint import tokens
from lakemirror.driver.checkpoint.owner import Owner
from lakemirror.driver.checkpoint.storage import Storage, open_storage
from lakemirror.driver.errors import LakemirrorError, SourceUnreachable, cause_of, stops_pipeline
from lakemirror.driver.read.base import Batch, Lag
from lakemirror.driver.read.files import FilesFeed, InputIncomplete
from lakemirror.driver.read.kafka import KafkaFeed
from lakemirror.driver.read.watch import SourceWatch
from lakemirror.driver.record import audit
from lakemirror.driver.results import BatchResult, TableResult
from lakemirror.driver.runtime import replay
from lakemirror.driver.runtime.backoff import Backoff
from lakemirror.driver.runtime.held import HeldRecords
from lakemirror.driver.runtime.metrics import Metrics, port_from_environment
from lakemirror.driver.runtime.paths import with_absolute_paths
from lakemirror.driver.runtime.progress import FileSink, Progress, ProgressSink, Reporter
from lakemirror.driver.runtime.session import create_session
from lakemirror.driver.runtime.supported import require_supported

Status = Literal["completed", "stopped"]
Secrets = Mapping[str, str | Path]
_DEFAULT_INTERVAL = "10s"
_COLLECT_EVERY_SECONDS = 600.0
_REPLAY_EVERY_SECONDS = 5.0
_LONGEST_DELAY_SECONDS = 300.0
_RETRY_SECONDS = (1.0, 5.0, 25.0)
"""Delays after which a batch that failed is tried again, before the driver gives up."""
_AWAY_SECONDS, _AWAY_RETRY_SECONDS = 600.0, 30.0
"""For how long a store that is away is waited for, and how often it or the source is asked again after the
delays above.
"""
_LOOK_SECONDS = 0.2
_AWAY = re.compile(
    r"TimeoutException|DisconnectException|ConnectException|NetworkException|UnknownHostException|NotAvailable|"
    r"NotLeaderOrFollower|Connection (refused|reset)|timed out",
    re.IGNORECASE,
)
Got = TypeVar("Got")
_log = logging.getLogger(__name__)


class Applier(Protocol):
    """What applies batches; see ``batch.BatchApplier``."""

    def apply(self, raw: DataFrame, batch: Batch) -> BatchResult: ...

    def collect_tombstones(self, *, caught_up: bool) -> int: ...

    def forget(self) -> None: ...


@dataclass(frozen=True)
class Started:
    """The run owns its checkpoint and is about to read."""

    pipeline: str
    run_id: str
    checkpoint: str


@dataclass(frozen=True)
class BatchStarted:
    batch: Batch


@dataclass(frozen=True)
class BatchDone:
    result: BatchResult
    seconds: float


@dataclass(frozen=True)
class Reported:
    report: Report


@dataclass(frozen=True)
class Warned:
    message: str


@dataclass(frozen=True)
class RunSummary:
    """What a run did: its own counts, by source table in ``tables``, with the rows that stand there now.

    ``status`` is "completed" when all that was there is applied, "stopped" when it was asked to stop.
    """

    pipeline: str
    status: Status
    tables: dict[str, TableResult] = field(default_factory=dict)
    counts: Counts = NONE
    batches: int = 0
    seconds: float = 0.0
    lag: Lag = field(default_factory=lambda: Lag(None, False))
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Finished:
    summary: RunSummary


@dataclass(frozen=True)
class Resync:
    """Tables are read again, as their resyncToken asks; or that is done."""

    tables: str
    done: bool


Event = Started | BatchStarted | BatchDone | Reported | Warned | Resync | Finished


def run(
    pipeline: CdcPipeline,
    *,
    once: bool = False,
    spark: SparkSession | None = None,
    secrets: Secrets | None = None,
    on_event: Callable[[Event], None] | None = None,
    stopping: Callable[[], bool] | None = None,
    sinks: Sequence[ProgressSink] = (),
    grace_seconds: float | None = None,
    make_applier: Callable[[SparkSession, CdcPipeline, str], Applier] = BatchApplier,
) -> RunSummary:
    """Apply the pipeline's change events until it is told to stop, or ``once`` all that is there now.

    ``spark`` is used and left open when it is given. ``secrets``: a directory for each Secret that the
    manifest names, with one file a key. ``on_event`` is told what happens, from several threads.
    ``sinks`` get the progress reports besides. A first SIGTERM or Ctrl-C (or ``stopping()``) lets the
    current batch finish; a second one, or ``grace_seconds`` after a first signal, interrupts it. Raises
    LakemirrorError with what to do; an interrupted or failed batch is repeated at the next run.
    """
    require_supported(pipeline)
    pipeline = with_absolute_paths(pipeline)
    with ExitStack() as stack:
        stop = stack.enter_context(_stop_requests(stopping, grace_seconds))
        tell = on_event or (lambda event: None)
        return _Run(pipeline, once, tell, stop, sinks, secrets or {}, make_applier).run(stack, spark)


class _Run:
    def __init__(
        self,
        pipeline: CdcPipeline,
        once: bool,
        on_event: Callable[[Event], None],
        stop: _StopRequests,
        sinks: Sequence[ProgressSink],
        secrets: Secrets,
        make_applier: Callable[[SparkSession, CdcPipeline, str], Applier],
    ) -> None:
        self._pipeline = pipeline
        self._secrets = secrets
        self._make_applier = make_applier
        self._more_sinks = sinks
        self._spec = pipeline.spec
        self._once = once or bool(pipeline.spec.trigger.available_now)
        self._tell = on_event
        self._stop = stop
        self._began = time.monotonic()
        self._progress = Progress(pipeline.name)
        self._source = SourceWatch(self._source_news)
        self._reporter: Reporter | None = None
        self._collected = time.monotonic()
        self._busy = threading.Lock()
        self._appliers: list[Applier] = []
        self._held: HeldRecords | None = None
        self._failure: BaseException | None = None
        self._gave_up: BaseException | None = None

    def run(self, stack: ExitStack, spark: SparkSession | None) -> RunSummary:
        storage, session = self._take_over(stack, spark)
        self._progress.begin_with(audit.history(session, self._spec.checkpoint))
        wanted = tokens.begin(storage, self._spec)
        self._progress.resyncing(wanted)
        feed = self._feed(stack, session, self._spec.source, storage)
        self._appliers = [self._make_applier(session, self._pipeline, feed.query_id)]
        self._progress.stands_at(feed.committed())
        self._replays = {batch.batch_id for batch in feed.pending()}
        reporter = self._reporter = Reporter(self._report_with(feed), self._sinks(stack, storage))
        self._tell(Started(self._pipeline.name, self._progress.run_id, storage.uri))
        reporter.start()
        try:
            with ExitStack() as meanwhile:
                meanwhile.enter_context(self._between_batches(session, storage))
                if wanted:
                    resync = partial(self._resync, wanted, feed, session, storage)
                    meanwhile.enter_context(self._beside(session, resync))
                self._patiently(
                    lambda: feed.run(self._apply, once=self._once, stopping=self._stopping),
                    session,
                    self._stopping,
                )
            lag = self._lag(feed)
            self._collect_tombstones(caught_up=lag.caught_up)
        except BaseException as error:
            self._progress.failed(error)
            reporter.stop("Failed")
            raise
        status: Status = "stopped" if self._stop.requested() else "completed"
        report = reporter.stop("Stopped" if status == "stopped" else "Completed")
        summary = self._summary(session, status, lag, report)
        self._tell(Finished(summary))
        return summary

    def _take_over(self, stack: ExitStack, spark: SparkSession | None) -> tuple[Storage, SparkSession]:
        """Own the checkpoint and have a session, in the order that says no soonest."""
        early = spark is not None or _is_local(self._spec.checkpoint, self._spec.spark.conf)
        if early:
            storage = open_storage(self._spec.checkpoint, spark)
            self._owner = stack.enter_context(Owner(storage, run_id=self._progress.run_id))
        session = spark or create_session(f"lakemirror-{self._pipeline.name}", self._spec.spark.conf)
        if spark is None:
            stack.callback(session.stop)
            self._stop.install()  # Spark has put a handler of its own in its place
        if not early:
            storage = open_storage(self._spec.checkpoint, session)
            self._owner = stack.enter_context(Owner(storage, run_id=self._progress.run_id))
        self._owner.hold_jvm(session)
        return storage, session

    def _feed(
        self, stack: ExitStack, session: SparkSession, source: Source, storage: Storage
    ) -> FilesFeed | KafkaFeed:
        interval = duration_seconds(self._spec.trigger.interval or _DEFAULT_INTERVAL)
        if source.files is not None:
            base64 = self._spec.envelope.encoding == "avro"
            return FilesFeed(
                session,
                source.files,
                storage,
                base64=base64,
                interval_seconds=interval,
                warn=self._warn,
                watch=self._source,
            )
        if source.kafka is None:
            raise LakemirrorError("spec.source: exactly one of kafka and files is needed")
        secret = source.kafka.security.secret if source.kafka.security is not None else None
        keys = read_secret(secret, self._secrets) if secret is not None else {}
        feed = KafkaFeed(
            session,
            source.kafka,
            storage,
            interval_seconds=interval,
            secrets=keys,
            warn=self._warn,
            watch=self._source,
        )
        stack.callback(feed.close)
        return feed

    @contextmanager
    def _beside(self, session: SparkSession, read: Callable[[Callable[[], bool]], None]) -> Iterator[None]:
        """Reads something else meanwhile; a run once waits until that is done too.

        ``read`` is asked to stop as feeds are. What it raises ends the run.
        """
        over = threading.Event()

        def work() -> None:
            try:
                read(lambda: over.is_set() or self._stopping())
            except BaseException as error:
                self._failure = error

        thread = threading.Thread(target=work, name="resync", daemon=True)
        thread.start()
        try:
            yield
            if self._once:
                thread.join()
        except KeyboardInterrupt:
            session.sparkContext.cancelAllJobs()
            raise
        finally:
            over.set()
            thread.join()
        if self._failure is not None:
            raise self._failure

    def _resync(
        self,
        wanted: Mapping[str, str],
        feed: FilesFeed | KafkaFeed,
        session: SparkSession,
        storage: Storage,
        stopping: Callable[[], bool],
    ) -> None:
        """Read all that the source still has of the ``wanted`` tables again, through the same gate."""
        names = ", ".join(sorted(wanted))
        self._tell(Resync(names, done=False))
        folder = open_storage(f"{storage.uri}/{tokens.resync_folder(wanted)}", session)
        with ExitStack() as stack:
            while not stopping() and (self._source.lost or self._source.said.reached_at is None):
                time.sleep(_LOOK_SECONDS)
            beginning = self._patiently(feed.from_its_beginning, session, stopping)
            if beginning is None:
                return
            again = self._feed(stack, session, beginning, folder)
            applier = self._make_applier(session, _only(self._pipeline, wanted), again.query_id)
            self._appliers.append(applier)
            apply = partial(self._apply, applier=applier)
            try:
                self._patiently(lambda: again.run(apply, once=True, stopping=stopping), session, stopping)
            except InputIncomplete as error:  # the feed itself reads these files once they are complete
                self._warn(str(error))
            self._appliers.remove(applier)
        if not stopping():
            tokens.resynced(storage, wanted)
            self._progress.resyncing(())
            self._news()
            self._tell(Resync(names, done=True))

    def _stopping(self) -> bool:
        return self._stop.requested() or self._failure is not None

    @contextmanager
    def _between_batches(self, session: SparkSession, storage: Storage) -> Iterator[None]:
        """Serves requests for a replay, and tries held records again, while no batch is under way: at once,
        then every few seconds, and when a run once has applied all that was there.
        """
        over = threading.Event()
        gate = replay.Gate(
            session, self._pipeline, self._alone, partial(self._progress.batch_done, again=True)
        )
        requests = replay.Requests(storage, gate, self._warn)
        self._held = held = HeldRecords(self._spec, gate, self._warn)
        delays: Backoff[str] = Backoff(_REPLAY_EVERY_SECONDS, _LONGEST_DELAY_SECONDS)
        complete = False

        def attempt(what: str, serve: Callable[[], object]) -> None:
            if not delays.is_due(what):
                return
            try:
                serve()
                delays.forget(what)
            except Exception as error:
                delays.failed(what)
                self._warn(f"{what} could not be applied: {cause_of(error)}")

        def serve_requests() -> None:
            if requests.serve():
                held.recount()

        def work() -> None:
            last = False
            while True:
                try:
                    attempt("requests for a replay", serve_requests)
                    attempt("held records", held.serve)
                except BaseException as error:  # a crash that a test injects
                    self._failure = error
                    return
                if last or (over.wait(_REPLAY_EVERY_SECONDS) and not complete):
                    return
                last = over.is_set()

        thread = threading.Thread(target=work, name="replay", daemon=True)
        thread.start()
        try:
            yield
            complete = self._once and not self._stopping()
        finally:
            over.set()
            thread.join()
        if self._failure is not None:
            raise self._failure

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """No batch meanwhile; afterwards the appliers read all mirrors anew."""
        with self._busy:
            self._owner.check()
            try:
                yield
            finally:
                for applier in self._appliers:
                    applier.forget()

    def _patiently(
        self, read: Callable[[], Got], session: SparkSession, stopping: Callable[[], bool]
    ) -> Got | None:
        """What ``read`` gives; once more where the source or a store is away. None when it is to stop.

        A source that cannot be reached is waited for as long as that lasts, for a driver that is started
        anew would not reach it either. A run once gives up: SourceUnreachable.
        """
        failures, since = 0, time.monotonic()
        while True:
            batches = self._progress.batches
            try:
                return read()
            except Exception as error:
                if self._progress.batches > batches:
                    failures, since = 0, time.monotonic()
                if error is self._gave_up or not _may_pass(error, session):
                    raise
                lost = self._source.lost
                away = lost or (_is_away(error) and time.monotonic() - since < _AWAY_SECONDS)
                if failures >= len(_RETRY_SECONDS) and (self._once or not away):
                    if lost:
                        raise SourceUnreachable(f"the source cannot be reached: {lost}") from error
                    raise
                delay = _RETRY_SECONDS[failures] if failures < len(_RETRY_SECONDS) else _AWAY_RETRY_SECONDS
                failures += 1
                if not lost:  # that was told when it was lost
                    self._warn(
                        f"the source could not be read, and is read again in {delay:g} s: {cause_of(error)}"
                    )
            self._pause(delay)
            if stopping():
                return None

    def _apply(self, raw: DataFrame, batch: Batch, applier: Applier | None = None) -> None:
        """Apply a batch of the source, or one that another ``applier`` reads again.

        One that fails for a reason that may pass is tried again; to start a driver anew takes much longer.
        """
        chosen = applier or self._appliers[0]
        for delay in (*_RETRY_SECONDS, None):
            try:
                with self._busy:
                    self._apply_alone(raw, batch, chosen)
                return
            except Exception as error:
                if delay is None or not _may_pass(error, raw.sparkSession) or self._stopping():
                    self._gave_up = error
                    raise
                self._warn(
                    f"batch {batch.batch_id} failed and is tried again in {delay:g} s: {cause_of(error)}"
                )
            self._pause(delay)
            with self._busy:
                chosen.forget()

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self._stopping():
            time.sleep(_LOOK_SECONDS)

    def _apply_alone(self, raw: DataFrame, batch: Batch, applier: Applier) -> None:
        self._owner.check()
        self._tell(BatchStarted(batch))
        began = time.monotonic()
        result = applier.apply(raw, batch)
        for other in self._appliers:
            if other is not applier:
                other.forget()
        again = applier is not self._appliers[0]
        replayed = again or batch.batch_id in self._replays
        history = audit.history(raw.sparkSession, self._spec.checkpoint) if replayed else None
        self._progress.batch_done(result, history, again=again)
        if self._held is not None:
            self._held.batch_done(result)
        self._tell(BatchDone(result, time.monotonic() - began))
        self._news()
        if time.monotonic() - self._collected > _COLLECT_EVERY_SECONDS:
            self._collect_tombstones(caught_up=False)

    def _collect_tombstones(self, *, caught_up: bool) -> None:
        # Not while old events are read again: these would come after their tombstones.
        if self._progress.batches and len(self._appliers) == 1:
            self._appliers[0].collect_tombstones(caught_up=caught_up)
        self._collected = time.monotonic()

    def _warn(self, message: str) -> None:
        _log.warning("%s", message)
        self._progress.warn(message)
        self._tell(Warned(message))

    def _source_news(self, said: SourceReport) -> None:
        """Tell that the source is reached, is lost, or is lost for another reason."""
        if said.error is not None:
            self._warn(f"the source cannot be reached: {said.error}")
        else:
            _log.info("the source is reached")
        self._news()

    def _news(self) -> None:
        if self._reporter is not None:
            self._reporter.news()

    def _report_with(self, feed: FilesFeed | KafkaFeed) -> Callable[[DriverPhase], Report]:
        def make(phase: DriverPhase) -> Report:
            # The first report waits for no source: it tells at once where the checkpoint stands.
            lag = Lag(None, False) if phase == "Starting" else self._lag(feed)
            open_records = self._held.open if self._held else {}
            return self._progress.report(phase, lag, open_records, self._source.said)

        return make

    def _lag(self, feed: FilesFeed | KafkaFeed) -> Lag:
        """The feed's lag; unknown while the source cannot be reached."""
        if self._source.lost:  # whoever reads it asks again and again
            return Lag(None, False)
        try:
            return feed.lag()
        except Exception as error:
            _log.debug("the source's lag cannot be told: %s", cause_of(error))
            return Lag(None, False)

    def _sinks(self, stack: ExitStack, storage: Storage) -> list[ProgressSink]:
        sinks: list[ProgressSink] = [FileSink(storage), _EventSink(self._tell), *self._more_sinks]
        port = port_from_environment()
        if port is not None:
            sinks.append(stack.enter_context(Metrics(port)))
        return sinks

    def _summary(self, session: SparkSession, status: Status, lag: Lag, report: Report) -> RunSummary:
        progress = self._progress
        return RunSummary(
            self._pipeline.name,
            status,
            {name: _with_rows(session, table) for name, table in sorted(progress.tables.items())},
            progress.counts,
            progress.batches,
            time.monotonic() - self._began,
            lag,
            tuple(report.warnings),
        )


def _may_pass(error: Exception, session: SparkSession) -> bool:
    """Whether time may heal what an error says: it is none of our own, and the session is still there."""
    return not isinstance(error, LakemirrorError) and not stops_pipeline(error, session)


def _is_away(error: Exception) -> bool:
    """Whether an error says that something cannot be reached."""
    return _AWAY.search(str(error)) is not None


def _only(pipeline: CdcPipeline, sources: Mapping[str, str]) -> CdcPipeline:
    """The pipeline for these of its listed tables alone."""
    listed = [table for table in pipeline.spec.tables if table.source in sources]
    spec = pipeline.spec.model_copy(update={"tables": listed, "unlisted": "ignore"})
    return pipeline.model_copy(update={"spec": spec})


def read_secret(name: str, secrets: Secrets) -> dict[str, str]:
    """The keys of a Secret from its directory, one file a key (as Kubernetes mounts it)."""
    if name not in secrets:
        raise LakemirrorError(
            f"the manifest names the secret {name}: say where it is with --secret {name}=DIR"
        )
    folder = Path(secrets[name])
    try:
        return {file.name: file.read_text("utf-8") for file in folder.iterdir() if file.is_file()}
    except OSError as error:
        raise LakemirrorError(f"secret {name}: {folder} cannot be read: {error.strerror}") from None


class _EventSink:
    def __init__(self, tell: Callable[[Event], None]) -> None:
        self._tell = tell

    def publish(self, report: Report) -> None:
        self._tell(Reported(report))


class _StopRequests:
    """SIGTERM, SIGINT and the caller's own wish, as one question. SIGALRM says that the grace is over."""

    _SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGALRM)

    def __init__(self, stopping: Callable[[], bool] | None, grace_seconds: float | None = None) -> None:
        self._stopping = stopping
        self._grace_seconds = grace_seconds
        self._signalled = threading.Event()
        self._in_main = threading.current_thread() is threading.main_thread()

    def requested(self) -> bool:
        return self._signalled.is_set() or (self._stopping is not None and self._stopping())

    def install(self) -> None:
        """Take the signals; only the main thread can."""
        if self._in_main:
            for number in self._SIGNALS:
                signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._signalled.is_set():
            raise KeyboardInterrupt
        self._signalled.set()
        if self._grace_seconds is not None:
            signal.setitimer(signal.ITIMER_REAL, self._grace_seconds)


@contextmanager
def _stop_requests(
    stopping: Callable[[], bool] | None, grace_seconds: float | None
) -> Iterator[_StopRequests]:
    requests = _StopRequests(stopping, grace_seconds)
    before = {number: signal.getsignal(number) for number in _StopRequests._SIGNALS}
    requests.install()
    try:
        yield requests
    finally:
        if requests._in_main:
            signal.setitimer(signal.ITIMER_REAL, 0)
            for number, handler in before.items():
                signal.signal(number, handler)


def _with_rows(session: SparkSession, table: TableResult) -> TableResult:
    """The result with the rows that its Delta table has now."""
    if table.rows is not None or table.target is None:
        return table
    try:
        stored = "/" in table.target
        frame = session.read.format("delta").load(table.target) if stored else session.table(table.target)
        return replace(table, rows=frame.count())
    except PySparkException as error:
        _log.warning("the rows of %s cannot be counted: %s", table.target, cause_of(error))
        return table


def _is_local(uri: str, conf: Mapping[str, str]) -> bool:
    """Whether it is sure, before there is a session, that ``uri`` is a local path."""
    scheme = urlsplit(uri).scheme
    default_is_local = "spark.hadoop.fs.defaultFS" not in conf and "HADOOP_CONF_DIR" not in os.environ
    return scheme == "file" or (not scheme and default_is_local)
