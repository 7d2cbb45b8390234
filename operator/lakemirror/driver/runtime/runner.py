"""``run(pipeline)``: takes a session, the checkpoint and a feed, applies batches, and reports them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime
from functools import partial
from urllib.parse import urlsplit

from pyspark.sql import SparkSession

from lakemirror.api import CdcPipeline, duration_seconds
from lakemirror.api.report import Verification
from lakemirror.driver.batch import BatchApplier
from lakemirror.driver.checkpoint import identity, tokens
from lakemirror.driver.checkpoint.owner import Owner
from lakemirror.driver.checkpoint.possession import ensured
from lakemirror.driver.checkpoint.storage import Storage, open_storage
from lakemirror.driver.checkpoint.tokens import loads
from lakemirror.driver.engine.engine import Engine
from lakemirror.driver.engine.job import start_worker
from lakemirror.driver.parse.encodings import encoding_of
from lakemirror.driver.profile.epochs import message, with_epochs
from lakemirror.driver.read.base import Feed, Lag, Standing
from lakemirror.driver.read.open import FeedOpener
from lakemirror.driver.read.secrets import Secrets
from lakemirror.driver.record import audit
from lakemirror.driver.record.beginning import latest
from lakemirror.driver.record.history import AuditHistory
from lakemirror.driver.record.lost import note_lost_files
from lakemirror.driver.record.write_behind import WriteBehind
from lakemirror.driver.runtime.announcer import Announcer
from lakemirror.driver.runtime.atomic import atomic_checkpoint, require_atomic_commits
from lakemirror.driver.runtime.batches import Batches
from lakemirror.driver.runtime.between_batches import BetweenBatches
from lakemirror.driver.runtime.context import RunContext
from lakemirror.driver.runtime.events import BatchDone, Event, Finished, Started
from lakemirror.driver.runtime.held import HeldRecords
from lakemirror.driver.runtime.loading import Loading
from lakemirror.driver.runtime.looking import look
from lakemirror.driver.runtime.maintenance import Maintenance
from lakemirror.driver.runtime.metrics import Metrics, port_from_environment
from lakemirror.driver.runtime.paths import with_absolute_paths
from lakemirror.driver.runtime.progress import SETTLE_SECONDS
from lakemirror.driver.runtime.reload import Reloader, forget_abandoned
from lakemirror.driver.runtime.repair import Repairer
from lakemirror.driver.runtime.replay_requests import ReplayRequests
from lakemirror.driver.runtime.replayer import Replayer
from lakemirror.driver.runtime.reporter import FileSink, ProgressSink
from lakemirror.driver.runtime.resync import Rereading
from lakemirror.driver.runtime.retry import Retries
from lakemirror.driver.runtime.session import create_session
from lakemirror.driver.runtime.signals import StopRequests, stop_requests
from lakemirror.driver.runtime.summary import RunSummary, Status, with_rows
from lakemirror.driver.runtime.supported import require_catalog, require_conditions, require_supported
from lakemirror.driver.runtime.target import open_target
from lakemirror.driver.runtime.threads import Threads
from lakemirror.driver.runtime.turns import Applier, Turns
from lakemirror.driver.runtime.verification import Verifications
from lakemirror.driver.write.target import DELTA

__all__ = ["BatchDone", "Event", "run"]


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
    make_applier: Callable[[SparkSession, CdcPipeline, str, AuditHistory], Applier] | None = None,
) -> RunSummary:
    """Apply the pipeline's change events until told to stop or, with ``once``, all that are there now.

    ``spark`` is used and left open if it is given. ``secrets`` contains a directory for each Secret that the
    manifest names, with one file per key. ``on_event`` receives events, from several threads. ``sinks`` are
    further receivers of the progress reports. A first SIGTERM or Ctrl-C (or ``stopping()``) lets the current
    batch finish. A second one, or the end of ``grace_seconds`` after a first signal, interrupts the batch.
    Raises LakemirrorError with a message that says what to do. An interrupted or failed batch is repeated by
    the next run.
    """
    began = time.monotonic()
    require_supported(pipeline)
    pipeline = with_absolute_paths(pipeline)
    interval = duration_seconds(pipeline.spec.trigger.interval or "0s")
    announcer = Announcer(pipeline.name, on_event, _settle(pipeline), interval)
    with ExitStack() as stack:
        stop = stack.enter_context(stop_requests(stopping, grace_seconds))
        owner, storage, session = _take_over(stack, pipeline, announcer.progress.run_id, spark, stop)
        require_catalog(pipeline, session)
        require_conditions(pipeline, session)
        ensured(storage, pipeline.name)
        stack.enter_context(atomic_checkpoint(session, pipeline.spec.checkpoint))
        encoding = encoding_of(pipeline.spec, secrets or {}, announcer.source)
        target = stack.enter_context(open_target(session, pipeline, secrets or {}))
        if spark is None and target is DELTA and Engine.is_on(session):
            start_worker(session)
        standing = Standing(owner.check, partial(_applied, session, pipeline.spec.checkpoint))
        made = partial(BatchApplier, encoding=encoding, warn=announcer.warn, target=target)
        context = RunContext(
            pipeline,
            session,
            storage,
            FeedOpener(session, pipeline.spec, secrets or {}, announcer.warn, announcer.source, standing),
            partial(make_applier or made, session),
            encoding,
            announcer,
            Threads(stop.requested),
            once or bool(pipeline.spec.trigger.available_now),
            secrets or {},
            target,
        )
        status, lag = _mirror(stack, context, owner, sinks)
        summary = _summary(context, status, lag, time.monotonic() - began)
        announcer.tell(Finished(summary))
        return summary


def _applied(session: SparkSession, checkpoint: str, query_id: str) -> int:
    """Return the last batch of a query that the audit has, or -1. All tables have it, and those before it."""
    return audit.history(session, checkpoint).last_batches.get(query_id, -1)


def _take_over(
    stack: ExitStack, pipeline: CdcPipeline, run_id: str, spark: SparkSession | None, stop: StopRequests
) -> tuple[Owner, Storage, SparkSession]:
    """Take the checkpoint and get a session, in the order that detects a refusal soonest."""
    spec = pipeline.spec
    checkpoint, conf = spec.checkpoint, spec.spark.conf
    early = spark is not None or _is_local(checkpoint, conf)
    if spark is not None:
        require_atomic_commits(spark, pipeline)
    if early:
        storage = open_storage(checkpoint, spark)
        owner = stack.enter_context(Owner(storage, run_id=run_id))
    session = spark or create_session(f"lakemirror-{pipeline.name}", conf, spec.java_properties)
    if spark is None:
        stack.callback(session.stop)
        stop.install()  # Spark has replaced the handler with one of its own
        require_atomic_commits(session, pipeline)
    if not early:
        storage = open_storage(checkpoint, session)
        owner = stack.enter_context(Owner(storage, run_id=run_id))
    owner.hold_jvm(session)
    return owner, storage, session


def _mirror(
    stack: ExitStack, run: RunContext, owner: Owner, sinks: Sequence[ProgressSink]
) -> tuple[Status, Lag]:
    """Read the source and apply its batches. Return how the run ended and what the source still holds."""
    announcer, spec = run.announcer, run.pipeline.spec
    note_lost_files(run.session, spec.checkpoint, announcer.warn)
    history = audit.history(run.session, spec.checkpoint)
    wanted = _resume(run, history)
    history = look(run, history)
    begins = not identity.exists(run.storage)
    feed = stack.enter_context(closing(run.feeds.open(spec.source, run.storage)))
    if begins:
        identity.begin_after(run.storage, latest(history))
    turns = Turns(owner, run.make_applier(run.pipeline, feed.query_id, history))
    announcer.progress.stands_at(feed.committed())
    memory = with_epochs(history.memories.get(feed.query_id, {}), spec.order)
    announcer.progress.reads_on(memory)
    announcer.progress.restarted(message(memory, spec.order))
    told = partial(announcer.progress.batch_done, again=True)
    warn = announcer.warn
    replayer = Replayer(run.session, run.pipeline, turns.turn, told, run.encoding, run.target, warn)
    held = HeldRecords(spec, replayer, announcer.warn, kept_aside=lambda: announcer.progress.kept_aside)
    requests = ReplayRequests(run.storage, replayer.carry_out, announcer.warn)
    repairer = Repairer(run.session, run.pipeline, turns.turn, told, run.target, warn)
    repairs = repairer.requests(run.storage, announcer.warn)
    reloader = Reloader(run.session, run.pipeline, run.storage, turns.turn, told, run.target, warn)
    forget_abandoned(run.storage, datetime.now(UTC))
    retries = Retries(run)
    batches = Batches(run, turns, retries, held, {batch.batch_id for batch in feed.pending()})
    all_sinks = _sinks(stack, run, sinks)
    announcer.tell(Started(run.pipeline.name, announcer.progress.run_id, run.storage.uri))
    announcer.start(feed, held, all_sinks)
    try:
        behind = WriteBehind(run.session, spec.checkpoint, announcer.warn, owner.check)
        with behind as audited:
            maintenance = Maintenance(run, turns, audited.idle)
            # A run with ``once`` does what is due at its end.
            more = (lambda: False) if run.once else maintenance.serve
            reloads = reloader.requests(announcer.warn)
            idle = (lambda: None) if run.once else batches.collect_while_idle
            between = BetweenBatches(requests, held, announcer.warn, more, repairs.serve, reloads.serve, idle)
            ended = threading.Event()
            again = _again(run, wanted, feed, batches, retries, ended.is_set)
            verifications = _verifications(run, feed)
            with _beside(run, between, verifications, again):
                stopping = run.threads.stopping
                retries.reading(lambda: feed.run(batches.apply, once=run.once, stopping=stopping), stopping)
                ended.set()
            if run.once and not run.threads.stopping():
                between.serve(last=True)
                maintenance.serve_all(run.threads.stopping)
                verifications.serve_once(run.threads.stopping)
        asked, lag = datetime.now(UTC), announcer.lag(feed)
        batches.collect_tombstones(had_all_at=lag.had_all(asked))
    except BaseException as error:
        announcer.fail(error)
        raise
    stopped = run.threads.requested()
    announcer.end("Stopped" if stopped else "Completed")
    return "stopped" if stopped else "completed", lag


def _resume(run: RunContext, history: AuditHistory) -> dict[str, str]:
    """Continue where earlier runs left off. Return the tables to read again, with their tokens."""
    spec, progress = run.pipeline.spec, run.announcer.progress
    progress.begin_with(history)
    wanted = tokens.begin(run.storage, spec)
    progress.resyncing(wanted)
    return wanted


def _again(
    run: RunContext,
    wanted: Mapping[str, str],
    feed: Feed,
    batches: Batches,
    retries: Retries,
    ended: Callable[[], bool],
) -> Callable[[threading.Event], None] | None:
    """Return what reads the ``wanted`` tables again: first from the source, then from their database."""
    if not wanted:
        return None
    from_database = loads(run.pipeline.spec).keys() & wanted.keys()
    from_source = {source: token for source, token in wanted.items() if source not in from_database}

    def work(over: threading.Event) -> None:
        if from_source:
            Rereading(run, from_source, feed, batches, retries, from_database).read(over)
        if from_database:
            Loading(run, {source: wanted[source] for source in sorted(from_database)}, feed, ended).load(over)

    return work


@contextmanager
def _beside(
    run: RunContext,
    between: BetweenBatches,
    verifications: Verifications,
    again: Callable[[threading.Event], None] | None,
) -> Iterator[None]:
    """Run the threads beside the source. With ``once``, also wait until all tables are read again."""
    with ExitStack() as stack:
        stack.enter_context(run.threads.beside("replay", between.serve_until))
        if not run.once:
            stack.enter_context(run.threads.beside("verify", verifications.serve_until))
        if again is not None:
            cancel = run.session.sparkContext.cancelAllJobs
            stack.enter_context(run.threads.beside("resync", again, wait=run.once, interrupt=cancel))
        yield


def _verifications(run: RunContext, feed: Feed) -> Verifications:
    """Return the comparisons with the source, whose outcomes appear in the reports."""
    announcer = run.announcer

    def tell(told: Verification) -> None:
        announcer.progress.verified(told)
        announcer.news()

    return Verifications(
        run.session,
        run.pipeline,
        run.storage,
        run.secrets,
        known=lambda: list(announcer.progress.known_tables()),
        lag=lambda: announcer.lag(feed),
        tell=tell,
        warn=announcer.warn,
        open_store=run.target.open,
    )


def _sinks(stack: ExitStack, run: RunContext, more: Sequence[ProgressSink]) -> list[ProgressSink]:
    sinks: list[ProgressSink] = [FileSink(run.storage), run.announcer, *more]
    port = port_from_environment()
    if port is not None:
        sinks.append(stack.enter_context(Metrics(port)))
    return sinks


def _summary(run: RunContext, status: Status, lag: Lag, seconds: float) -> RunSummary:
    progress = run.announcer.progress
    return RunSummary(
        run.pipeline.name,
        status,
        with_rows(run.session, progress.tables, run.target),
        progress.counts,
        progress.batches,
        seconds,
        lag,
        progress.warnings,
    )


def _settle(pipeline: CdcPipeline) -> float:
    """Return the maximum number of seconds that a change takes from the source to the pipeline."""
    asked = pipeline.spec.verify
    return SETTLE_SECONDS if asked is None else duration_seconds(asked.settle)


def _is_local(uri: str, conf: Mapping[str, str]) -> bool:
    """Return whether ``uri`` is certainly a local path, before there is a session."""
    scheme = urlsplit(uri).scheme
    default_is_local = "spark.hadoop.fs.defaultFS" not in conf and "HADOOP_CONF_DIR" not in os.environ
    return scheme == "file" or (not scheme and default_is_local)
