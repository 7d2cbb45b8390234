"""The tables of a pipeline, each of which may fail alone (the law of isolation, ARCHITECTURE.md).

A table that fails is tried once more, from its events on; then a record is looked for that makes Spark throw;
and if there is none, all the table's records of the batch are held. What is raised is what stops the whole
pipeline, and the loss of rows that the batch had kept in an executor: then it is read again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

from pyspark.sql import DataFrame, SparkSession

from lakemirror.api import AmbiguousTable, CdcPipeline
from lakemirror.driver.applier import TableApplier, hold, of_table
from lakemirror.driver.decision import Decision, Held
from lakemirror.driver.errors import cause_of, stops_pipeline
from lakemirror.driver.materialise import is_lost
from lakemirror.driver.parse import isolate
from lakemirror.driver.plan.mirrored import MirroredTable
from lakemirror.driver.plan.refusal import Refused
from lakemirror.driver.plan.targets import Targets
from lakemirror.driver.profile.overview import TableOverview
from lakemirror.driver.profile.positions import Standing
from lakemirror.driver.read.base import Batch, SourceFile
from lakemirror.driver.results import TableResult
from lakemirror.driver.tables.names import TableName
from lakemirror.driver.write.target import DELTA, TargetKind

log = logging.getLogger(__name__)

_FEW = 4
"""Tables that begin with a batch before it is known what it has of them; with more, the cores are busy."""

Out = TypeVar("Out")


class PipelineTables:
    """The tables that a pipeline has met so far, with their mirrors in places of the kind ``target``;
    ``former`` are results of earlier runs by source table.
    """

    def __init__(
        self,
        session: SparkSession,
        pipeline: CdcPipeline,
        former: Mapping[str, TableResult],
        target: TargetKind = DELTA,
    ) -> None:
        self._session, self._target = session, target
        self._pipeline = pipeline
        self._tables: dict[TableName, TableApplier] = {}
        self._drift = {name: table.drift for name, table in former.items()}
        self._targets = Targets(
            {
                table.target: pipeline.spec.kept_as(name)
                for name, table in former.items()
                if table.target and table.version is not None
            }
        )
        self._fresh: set[str] = set()  # tables whose mirror this query makes
        self._background = ThreadPoolExecutor(_FEW, thread_name_prefix="lakemirror-begin")

    def __iter__(self) -> Iterator[TableApplier]:
        return iter(self._tables.values())

    def __getitem__(self, name: TableName) -> TableApplier:
        """The table of a name; one that cannot be mirrored is held."""
        if name not in self._tables:
            self._tables[name] = self._opened(name)
        return self._tables[name]

    def __contains__(self, name: TableName) -> bool:
        return name in self._tables

    def forget(self) -> None:
        """Read all mirrors anew when they are asked for again."""
        self._tables = {}

    def begin(self, events: DataFrame) -> None:
        """Have the tables of a few begin in the background with a batch that is still being profiled."""
        if len(self._tables) <= _FEW:
            for table in self._tables.values():
                table.begin(events, self._background)

    def use(self, session: SparkSession) -> None:
        """Work in another session from now on."""
        if session is not self._session:
            self._session = session
            self.forget()

    def decide(
        self, name: TableName, events: DataFrame, seen: TableOverview, documents: Mapping[int, str]
    ) -> Decision:
        """What to do with one table's part of a batch. A failure is tried once more, then holds it."""

        def attempt(some: DataFrame = events) -> Decision | Exception:
            return self.tried(name, lambda: self[name].decide(some, seen, documents))

        decision = attempt()
        if isinstance(decision, Exception):
            decision = attempt()
        if isinstance(decision, Exception):
            decision = self._without_poison(attempt, of_table(events, name), decision)
        if isinstance(decision, Exception):
            decision = self.failed(name, events, seen, decision)
        return decision

    def tried(self, name: TableName, step: Callable[[], Out]) -> Out | Exception:
        """The outcome of a table's step, or the error that it raised unless that stops the pipeline."""
        try:
            return step()
        except Exception as error:
            if stops_pipeline(error, self._session) or is_lost(error):
                raise
            self._target.check(self._session)
            log.warning("table %s failed: %s", name, cause_of(error))
            self._tables.pop(name, None)  # what it knows may be wrong: it is read anew
            return error

    def failed(self, name: TableName, events: DataFrame, seen: TableOverview, error: Exception) -> Decision:
        """The table's records are held, for the reason that it failed twice."""
        log.debug("table %s failed twice", name, exc_info=error)
        self._tables.pop(name, None)
        return hold(name, Held(_failure(name, error)), events, seen)

    def standing(self, source: str) -> Sequence[Standing]:
        """What the mirror of a source table has from before this query; nothing if that cannot be read, for
        then the table is going to be refused.
        """
        name = next((each for each in self._tables if str(each) == source), None)
        if name is None or source in self._fresh:
            return ()
        found = self.tried(name, self[name].standing)
        if isinstance(found, Exception):
            return ()
        if found is None:
            self._fresh.add(source)
        return found or ()

    def files_of(self, name: TableName, batch: Batch, app_id: str) -> Sequence[SourceFile]:
        """Those files of rows of a batch that the mirror of a table has; none if that cannot be read, for
        then the table is going to be refused.
        """
        found = self.tried(name, lambda: self[name].files_of(batch, app_id))
        return () if isinstance(found, Exception) else found

    def _without_poison(
        self, attempt: Callable[[DataFrame], Decision | Exception], events: DataFrame, error: Exception
    ) -> Decision | Exception:
        """What an attempt decides without those ``events`` that are to blame for the ``error``; an error
        where none is, or where it fails for another reason as well.
        """

        def probe(some: DataFrame) -> None:
            outcome = attempt(some)
            if isinstance(outcome, Exception):
                raise outcome

        try:
            poison = isolate.poisoned(events, probe, error)
        except Exception as failure:
            if stops_pipeline(failure, self._session) or is_lost(failure):
                raise
            return failure
        decision = attempt(isolate.without(events, poison))
        if isinstance(decision, Exception):
            return decision
        # Where the table is held for what the others say, these are held with it.
        return replace(decision, poison={} if decision.held else poison, changes=events)

    def _opened(self, name: TableName) -> TableApplier:
        try:
            settings = self._pipeline.spec.table_settings(str(name))
            if settings is None:
                return TableApplier(name, None)
            if settings.suspend:
                held = Held(f"tables[{settings.source}].suspend is true", error=False)
                return TableApplier(name, None, held)
            reported = self._drift.get(str(name), ())
            table = MirroredTable(self._session, self._pipeline, name, settings, reported, self._target.open)
            self._targets.claim(table.location, table.kept_as)
            writing = self._targets.writing(table.location) if table.shard is not None else None
            return TableApplier(name, table, writing=writing, target=self._target)
        except (Refused, AmbiguousTable) as reason:
            return TableApplier(name, None, Held(str(reason)))


def _failure(name: TableName, error: Exception) -> str:
    return (
        f"table {name} could not be written: {cause_of(error)}. Its records are kept in quarantine and "
        f"applied again by the driver when the cause is gone; set tables[{name}].suspend: true to stop trying"
    )
