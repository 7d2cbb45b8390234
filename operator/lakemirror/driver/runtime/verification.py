"""``spec.verify``: compares mirrors with their source on a schedule and reports the outcome.

Comparisons have a thread of their own and only read. Batches do not wait for them, except for the cores that
both use. A run that ends on its own makes a comparison at its end if one has become due since the last time.
The outcome of the last comparison is stored in ``verified.json`` beside the checkpoint, so that a restarted
driver still reports it.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

from croniter import croniter
from pyspark.sql import SparkSession

from lakemirror.api import CdcPipeline, duration_seconds
from lakemirror.api.report import Verification, VerifiedTable
from lakemirror.driver.checkpoint.storage import Storage
from lakemirror.driver.document import iso, to_json
from lakemirror.driver.errors import LakemirrorError, cause_of
from lakemirror.driver.read.base import Lag
from lakemirror.driver.read.secrets import Secrets
from lakemirror.driver.runtime.verifier import Patience, Verified, compare, listed, partitions
from lakemirror.driver.tables.mirror import Mirror
from lakemirror.driver.tables.store import OpenStore
from lakemirror.driver.verify.open import SourceWanted, open_source, source_of
from lakemirror.driver.verify.table import Checked, session_for

FILE = "verified.json"
_LOOK_SECONDS = 5.0
_TAG = "lakemirror-verify"
_log = logging.getLogger(__name__)


class Verifications:
    """Makes the comparisons of a run.

    ``known`` returns the source tables that are mirrored, ``lag`` what the source still holds. ``tell``
    receives the outcome of each comparison, ``warn`` messages that a person should see. ``open_store`` opens
    mirrors.
    """

    def __init__(
        self,
        spark: SparkSession,
        pipeline: CdcPipeline,
        storage: Storage,
        secrets: Secrets,
        *,
        known: Callable[[], list[str]],
        lag: Callable[[], Lag],
        tell: Callable[[Verification], None],
        warn: Callable[[str], None],
        open_store: OpenStore = Mirror,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._spark, self._pipeline, self._storage = spark, pipeline, storage
        self._known, self._lag, self._tell, self._warn, self._clock = known, lag, tell, warn, clock
        self._open_store, self._asked = open_store, pipeline.spec.verify
        self._source: SourceWanted | None = None
        if self._asked is not None and self._asked.schedule is not None:
            self._source = source_of(self._asked, secrets)
        last = stored(storage)
        self._last = clock()
        if last is not None:
            tell(last)
            self._last = datetime.fromisoformat(last.began_at) if last.began_at is not None else self._last

    def serve_until(self, over: threading.Event) -> None:
        """Make each comparison when it is due, until the run is ``over``."""
        if self._source is None:
            return
        with self._ending_with(over):
            while not over.wait(_LOOK_SECONDS):
                if self.is_due():
                    self.verify(over.is_set)

    @contextmanager
    def _ending_with(self, over: threading.Event) -> Iterator[None]:
        """Cancel this thread's Spark jobs when the run is over, so that no stop waits for a table scan."""
        context, done = self._spark.sparkContext, threading.Event()

        def end() -> None:
            over.wait()
            while not done.wait(0.5):
                context.cancelJobsWithTag(_TAG)

        context.addJobTag(_TAG)
        watch = threading.Thread(target=end, name="verify-end", daemon=True)
        watch.start()
        try:
            yield
        finally:
            done.set()
            over.set()
            watch.join()

    def serve_once(self, stopping: Callable[[], bool]) -> None:
        """Compare if a comparison has become due since the last one, or if there was none."""
        if self._source is not None and (self.is_due() or stored(self._storage) is None):
            self.verify(stopping)

    def is_due(self) -> bool:
        """Return whether a comparison should have started since the last one.

        If that one is still to come, the clock was ahead, and it says nothing about when the next is due.
        """
        asked, now = self._asked, self._clock()
        if asked is None or asked.schedule is None:
            return False
        return self._last > now or bool(croniter(asked.schedule, self._last).get_next(datetime) <= now)

    def verify(self, stopping: Callable[[], bool]) -> None:
        """Compare now and report the outcome. A failure is reported, and retried when the next one is due."""
        began = self._last = self._clock()
        asked, source = self._asked, self._source
        assert asked is not None
        assert source is not None
        try:
            session = session_for(self._spark)
            wanted, lacking = listed(self._pipeline, self._known(), asked.tables or ())
            with open_source(session, source, self._pipeline.spec) as sources:
                done = compare(
                    session,
                    self._pipeline,
                    sources,
                    wanted,
                    Patience(duration_seconds(asked.wait), duration_seconds(asked.settle)),
                    caught_up=self._caught_up,
                    alive=lambda: True,
                    partitions=partial(partitions, self._pipeline, self._storage),
                    open_store=self._open_store,
                    stopping=stopping,
                )
            if stopping():
                return
            told = told_of(replace(done, tables=(*done.tables, *lacking)))
        except Exception as error:
            if stopping():
                return
            told = Verification(began_at=iso(began), ended_at=iso(self._clock()), error=cause_of(error))
        if told.error is not None:
            self._warn(f"the mirrors could not be compared with their source: {told.error}")
        elif not told.equal:
            names = ", ".join(each.source for each in told.findings)
            self._warn(f"{told.unequal} of {told.tables} tables are not equal to their source: {names}")
        _log.info("%d tables were compared with their source: %s", told.tables, told.equal)
        self._tell(told)
        try:
            self._storage.write_text(FILE, to_json(told.document()))
        except Exception as error:
            self._warn(f"the outcome of the comparison could not be stored: {cause_of(error)}")

    def _caught_up(self) -> datetime | None:
        began = self._clock()
        return began if self._lag().caught_up else None


def told_of(done: Verified) -> Verification:
    """Return what a report says about a comparison."""
    unequal = [table for table in done.tables if not table.equal]
    return Verification(
        began_at=iso(done.began),
        ended_at=iso(done.ended),
        equal=not unequal,
        tables=len(done.tables),
        rows=sum(table.mirror_rows for table in done.tables),
        unequal=len(unequal),
        # A report shows the first few only: tables with wrong keys come before those that only may have some.
        findings=[_finding(table) for table in sorted(unequal, key=lambda each: -len(each.settled.wrong))],
    )


def _finding(table: Checked) -> VerifiedTable:
    kinds = [each.what for each in table.settled.wrong]
    return VerifiedTable(
        source=table.source,
        missing=kinds.count("missing"),
        extra=kinds.count("extra"),
        differing=kinds.count("differs"),
        arriving=len(table.settled.arriving),
        keys=[each.key for each in table.settled.wrong if each.key],
        error=table.error,
    )


def stored(storage: Storage) -> Verification | None:
    """Return the outcome of the last comparison, or None if none can be read."""
    try:
        return Verification.read(json.loads(storage.read_text(FILE)))
    except (FileNotFoundError, ValueError, LakemirrorError):
        return None
