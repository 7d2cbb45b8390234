"""``verify(pipeline)``: compares mirrors with their source, table by table; see `lakemirror.driver.verify`.

Tables are compared from outside, beside a driver that may be running. Nothing is written, except for a
repair, which is handed to the driver that owns the checkpoint (`runtime.repair`).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial

from pyspark.sql import SparkSession

from lakemirror.api import AmbiguousTable, CdcPipeline
from lakemirror.api.tables import matches
from lakemirror.driver.checkpoint.storage import Storage, open_storage
from lakemirror.driver.errors import LakemirrorError, NotAnswered, PipelineStopped, cause_of
from lakemirror.driver.jdbc import Login
from lakemirror.driver.plan.refusal import Refused
from lakemirror.driver.read.offset_log import OffsetLog
from lakemirror.driver.read.secrets import Secrets
from lakemirror.driver.record import audit
from lakemirror.driver.runtime.paths import absolute, with_absolute_paths
from lakemirror.driver.runtime.repair import RepairRequest
from lakemirror.driver.runtime.repair import repair as carry_out
from lakemirror.driver.runtime.replay_requests import ReplayOutcome
from lakemirror.driver.runtime.reporter import stored_report
from lakemirror.driver.runtime.session import create_session
from lakemirror.driver.runtime.table_epochs import TableEpochs
from lakemirror.driver.runtime.target import open_target
from lakemirror.driver.tables.mirror import Mirror
from lakemirror.driver.tables.store import OpenStore
from lakemirror.driver.verify.arrivals import Arrivals, shown
from lakemirror.driver.verify.dialects import DIALECTS
from lakemirror.driver.verify.open import DatabaseWanted, SnapshotWanted, SourceWanted, open_source, source_of
from lakemirror.driver.verify.sources import SourceTables, SourceUnfit
from lakemirror.driver.verify.table import Checked, check, opened, repairing, session_for
from lakemirror.driver.write.target import TargetKind

__all__ = [
    "Checked",
    "DatabaseWanted",
    "Login",
    "Patience",
    "SnapshotWanted",
    "Verified",
    "compare",
    "source_of",
    "verify",
]

URLS = tuple(prefix for dialect in DIALECTS for prefix in dialect.prefixes)
"""The prefixes of database URLs."""
MOST_KEYS = 10_000
WAIT_SECONDS, SETTLE_SECONDS = 120.0, 30.0
_OLD_AFTER = timedelta(seconds=90)
_ENDED = ("Completed", "Stopped", "Failed")


class NothingToVerify(LakemirrorError):
    """There is no table to compare, or none has the given name."""


@dataclass(frozen=True)
class Patience:
    """How long to wait for a change that may explain a difference.

    ``wait`` is the maximum number of seconds to wait for a table. ``settle`` is the maximum number of seconds
    that a change takes from the source to the pipeline, if nothing else shows its arrival. ``settled`` says
    that nothing changes on either side, so that each difference counts at once.
    """

    wait: float = WAIT_SECONDS
    settle: float = SETTLE_SECONDS
    settled: bool = False


@dataclass(frozen=True)
class Repaired:
    """The outcome of a table's repair. ``impossible`` says why there was none."""

    source: str
    rows: int
    outcome: ReplayOutcome | None = None
    impossible: str | None = None

    @property
    def done(self) -> bool:
        """Whether all wrong rows were replaced."""
        return self.outcome is not None and self.outcome.done


@dataclass(frozen=True)
class Verified:
    """The outcome for all tables. ``repairs`` contains the outcome of each table's repair."""

    tables: tuple[Checked, ...]
    began: datetime
    ended: datetime
    driver: bool = True
    """Whether a driver was running, so that changes could arrive."""
    repairs: tuple[Repaired, ...] = ()

    @property
    def equal(self) -> bool:
        """Whether all tables were compared and are equal, or were made equal by a repair."""
        repaired = {each.source for each in self.repairs if each.done}
        return all(table.equal or self._made_equal(table, repaired) for table in self.tables)

    def _made_equal(self, table: Checked, repaired: Collection[str]) -> bool:
        return table.source in repaired and table.complete and not table.settled.arriving


def verify(
    pipeline: CdcPipeline,
    source: SourceWanted,
    *,
    tables: Sequence[str] = (),
    patience: Patience = Patience(),
    most: int = MOST_KEYS,
    repair: bool = False,
    spark: SparkSession | None = None,
    secrets: Secrets | None = None,
    told: Callable[[Checked], None] = lambda table: None,
) -> Verified:
    """Compare the mirrors of ``pipeline`` with ``source``: those of the named ``tables``, or all.

    ``told`` receives each table when it is done. ``secrets`` contains the directory of the Secret of
    ``target.jdbc`` if the mirrors are in a database. With ``repair``, wrong rows are read again and applied,
    by the driver that owns the checkpoint or, if there is none, here. An error in one table is reported in
    its `Checked`. Raises LakemirrorError if nothing can be compared.
    """
    pipeline = with_absolute_paths(pipeline)
    if isinstance(source, SnapshotWanted):
        source = replace(source, path=absolute(source.path))
    session = spark or create_session(f"lakemirror-verify-{pipeline.name}", pipeline.spec.spark.conf)
    try:
        storage = open_storage(pipeline.spec.checkpoint, session)
        standing, comparing = Standing(storage), session_for(session)
        with (
            open_target(session, pipeline, secrets or {}, owned=False) as target,
            open_source(comparing, source, pipeline.spec) as sources,
        ):
            wanted = chosen(pipeline, audit.history(session, pipeline.spec.checkpoint).tables, tables)
            done = compare(
                comparing,
                pipeline,
                sources,
                wanted,
                patience,
                caught_up=standing.caught_up,
                alive=standing.alive,
                partitions=partial(partitions, pipeline, storage),
                most=most,
                images=repair,
                open_store=target.open,
                told=told,
            )
            if not repair:
                return done
            return _repaired(comparing, pipeline, storage, sources, target, done, patience.wait)
    finally:
        if spark is None:
            session.stop()


def _repaired(
    session: SparkSession,
    pipeline: CdcPipeline,
    storage: Storage,
    sources: SourceTables,
    target: TargetKind,
    done: Verified,
    timeout: float,
) -> Verified:
    """Replace wrong rows where that is possible, and return ``done`` with the outcomes."""
    epochs = TableEpochs(
        pipeline, storage, lambda: audit.history(session, pipeline.spec.checkpoint).positions()
    )
    requests, impossible = [], []
    for checked in done.tables:
        wrong = len(checked.settled.wrong)
        if not wrong:
            continue
        try:
            table = opened(session, pipeline, checked.source, target.open)
            found = tuple(repairing(checked, table, sources, epochs.to_write(table)))
            requests.append(RepairRequest(uuid.uuid4().hex[:12], checked.source, found))
        except SourceUnfit as error:
            impossible.append(Repaired(checked.source, wrong, impossible=str(error)))
    outcomes = carry_out(session, pipeline, storage, requests, timeout, target)
    made = [
        Repaired(request.table, len(request.events), outcome)
        for request, outcome in zip(requests, outcomes, strict=True)
    ]
    return replace(done, repairs=(*made, *impossible))


def compare(
    spark: SparkSession,
    pipeline: CdcPipeline,
    sources: SourceTables,
    wanted: Sequence[str],
    patience: Patience,
    *,
    caught_up: Callable[[], datetime | None],
    alive: Callable[[], bool],
    partitions: Callable[[], Mapping[str, Collection[int]]] = dict,
    most: int = MOST_KEYS,
    images: bool = False,
    open_store: OpenStore = Mirror,
    told: Callable[[Checked], None] = lambda table: None,
    stopping: Callable[[], bool] = lambda: False,
) -> Verified:
    """Compare the ``wanted`` source tables one after the other. A table that fails does not stop the others.

    ``open_store`` opens the mirrors.
    """
    began, done = datetime.now(UTC), []
    for source in wanted:
        if stopping():
            break
        try:
            table = opened(spark, pipeline, source, open_store)
            arrivals = Arrivals(
                sources,
                partial(shown, table),
                caught_up=caught_up,
                alive=alive,
                settle=patience.settle,
                wait=0.0 if patience.settled else patience.wait,
                settled=patience.settled,
                partitions=partitions,
                stopping=stopping,
            )
            checked = check(spark, table, sources, arrivals, most=most, images=images)
        except (PipelineStopped, NotAnswered):  # the other tables would fail as well
            raise
        except (LakemirrorError, Refused, AmbiguousTable) as error:
            checked = Checked(source, error=str(error))
        except Exception as error:
            checked = Checked(source, error=f"{source}: {cause_of(error)}")
        told(checked)
        done.append(checked)
    return Verified(tuple(done), began, datetime.now(UTC), driver=alive() or patience.settled)


def chosen(pipeline: CdcPipeline, known: Collection[str], named: Sequence[str]) -> list[str]:
    """Return the source tables to compare: all ``known`` ones that are mirrored, or those that are ``named``.

    Names are written as in the manifest. Raises NothingToVerify if there is no table, or if a name does not
    match exactly one table.
    """
    if not named:
        found = [each for each in sorted(known) if is_mirrored(pipeline, each)]
        if not found:
            raise NothingToVerify("no table has been mirrored yet: run the pipeline first")
        return found
    found = []
    for name in named:
        meant = [each for each in sorted(known) if matches(name, each)]
        if len(meant) != 1:
            there = ", ".join(sorted(known)) or "none so far"
            how = "is no table of this pipeline" if not meant else f"means {' and '.join(meant)}"
            raise NothingToVerify(f"{name} {how}: its tables are {there}")
        found += meant
    return found


def listed(
    pipeline: CdcPipeline, known: Collection[str], named: Sequence[str]
) -> tuple[list[str], tuple[Checked, ...]]:
    """Return the source tables to compare (see `chosen`), and those of the manifest that cannot be.

    A table that has no mirror yet does not keep the others from being compared. Raises NothingToVerify if
    there is no table at all.
    """
    if not named:
        return chosen(pipeline, known, ()), ()
    found: list[str] = []
    lacking: list[Checked] = []
    for name in named:
        try:
            found += chosen(pipeline, known, [name])
        except NothingToVerify as error:
            lacking.append(Checked(name, error=str(error)))
    if not found:
        raise NothingToVerify("; ".join(str(each.error) for each in lacking))
    return found, tuple(lacking)


def is_mirrored(pipeline: CdcPipeline, source: str) -> bool:
    """Return whether the manifest mirrors a source table."""
    try:
        return pipeline.spec.table_settings(source) is not None
    except AmbiguousTable:  # comparing the table reports that
        return True


def partitions(pipeline: CdcPipeline, storage: Storage) -> Mapping[str, Collection[int]]:
    """Return the partitions of each topic that the pipeline reads, as far as its checkpoint knows them."""
    if pipeline.spec.source.kafka is None:
        return {}
    return OffsetLog(storage).position() or {}


class Standing:
    """How far the driver is, according to the report beside its checkpoint."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def caught_up(self) -> datetime | None:
        """Return when the driver last reported that nothing is left to apply, or None if it does not."""
        report = stored_report(self._storage)
        return _moment(report.observed_at) if report is not None and report.caught_up else None

    def alive(self) -> bool:
        """Return whether a driver is running."""
        report = stored_report(self._storage)
        said = _moment(report.observed_at) if report is not None and report.phase not in _ENDED else None
        return said is not None and datetime.now(UTC) - said < _OLD_AFTER


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
