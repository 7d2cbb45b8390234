"""The tables of a pipeline, each of which may fail on its own (the law of isolation, ARCHITECTURE.md).

A table that fails is tried once more, starting from its events. If it fails again, the driver looks for a
record that makes Spark throw. If there is none, all of the table's records in the batch are held. Only two
kinds of errors are raised: those that stop the whole pipeline, and the loss of rows that the batch kept in an
executor, after which the batch is read again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from pyspark.sql import DataFrame, Row, SparkSession

from lakemirror.api import AmbiguousTable, CdcPipeline, Table
from lakemirror.driver.applier import InColumns, KnownFile, TableApplier, hold, never, of_table
from lakemirror.driver.decision import NO_POISON, Decision, Held
from lakemirror.driver.errors import cause_of, stops_pipeline
from lakemirror.driver.materialise import is_lost
from lakemirror.driver.parse import isolate
from lakemirror.driver.plan.mirrored import MirroredTable
from lakemirror.driver.plan.places import Places
from lakemirror.driver.plan.possession import Possession
from lakemirror.driver.plan.refusal import Refused
from lakemirror.driver.plan.schemas import shown_by_values
from lakemirror.driver.plan.targets import Fixed, Targets, require_same
from lakemirror.driver.profile.overview import Overview, TableOverview
from lakemirror.driver.profile.positions import Standing
from lakemirror.driver.read.base import Batch
from lakemirror.driver.results import TableResult
from lakemirror.driver.tables.names import TableName
from lakemirror.driver.write.target import DELTA, TargetKind

log = logging.getLogger(__name__)

_FEW = 4
"""Maximum number of tables that start on a batch before it is known what the batch has for them.

With more tables, the cores are busy anyway.
"""

_FEWEST_TOGETHER = 2
"""Minimum number of tables whose values are read together."""

_WAITING = "its mirror could not be read at first: what has been held since then is applied before this"

Out = TypeVar("Out")


class PipelineTables:
    """The tables that a pipeline has met so far, with their mirrors.

    The mirrors are kept in places of the kind ``target``. ``former`` holds the results of earlier runs by
    source table, ``fixed`` the targets that tables may not leave, and ``places`` knows how mirrors were left.
    ``possession`` is the checkpoint that the mirrors belong to.
    """

    def __init__(
        self,
        session: SparkSession,
        pipeline: CdcPipeline,
        former: Mapping[str, TableResult],
        target: TargetKind = DELTA,
        fixed: Fixed | None = None,
        places: Places | None = None,
        possession: Possession | None = None,
    ) -> None:
        self._places = places
        self._session, self._target, self._fixed = session, target, fixed or Fixed()
        self._pipeline, self._possession = pipeline, possession
        self._tables: dict[TableName, TableApplier] = {}
        self._names: set[TableName] = set()
        self._drift = {name: table.drift for name, table in former.items()}
        self._targets = Targets(
            {
                table.target: pipeline.spec.kept_as(name)
                for name, table in former.items()
                if table.target and table.version is not None
            },
            pipeline.spec.checkpoint,
            self._entry,
        )
        self._unread: dict[TableName, Exception] = {}
        """Why the mirrors could not be read that had to be known before this batch was decided."""
        self._waiting: set[TableName] = set()
        """The tables whose held records come before those of this batch."""
        self._restarted: tuple[Collection[str], str] = ((), "")
        """The source tables that wait for an epoch, and why."""
        self._fresh: set[str] = set()  # tables whose mirror this query creates
        self._background = ThreadPoolExecutor(_FEW, thread_name_prefix="lakemirror-begin")

    @property
    def names(self) -> list[TableName]:
        """The tables that were opened so far, also those that are to be read again."""
        return sorted(self._names, key=str)

    def __getitem__(self, name: TableName) -> TableApplier:
        """Return the table with this name. A table that cannot be mirrored is held."""
        if name not in self._tables:
            self._tables[name] = self._opened(name)
            self._names.add(name)
        return self._tables[name]

    def __contains__(self, name: TableName) -> bool:
        return name in self._tables

    def open(self, name: TableName) -> None:
        """Open a table. One whose mirror cannot be opened is held in this batch, and tried again by the next.

        To be called in the order of the names: if two tables share a target, the first one gets it.
        """
        if name in self._unread:
            return
        found = self._asked(name, lambda table: table.left_out)
        if isinstance(found, Exception):
            self._unread[name] = found

    def mirrored_as(self, name: TableName) -> MirroredTable | None:
        """Return an open table with its mirror, or None if it is not open or has none."""
        return self._tables[name].mirrored if name in self._tables else None

    def leaves_out(self, name: TableName) -> bool:
        """Return whether the manifest leaves a table out, without opening its mirror."""
        try:
            return self._pipeline.spec.table_settings(str(name)) is None
        except AmbiguousTable:
            return False

    def forget(self) -> None:
        """Read each mirror again when it is next requested."""
        self._tables = {}

    def begin(self, events: DataFrame) -> None:
        """Let tables start in the background on a batch that is still being profiled.

        This is done only while there are few tables.
        """
        self._unread, self._waiting, self._restarted = {}, set(), ((), "")
        if len(self._tables) <= _FEW:
            for table in self._tables.values():
                table.begin(events, self._background)

    def use(self, session: SparkSession) -> None:
        """Use another session from now on."""
        if session is not self._session:
            self._session = session
            self.forget()

    def shown(self, events: DataFrame, seen: Overview) -> Mapping[TableName, Row]:
        """Return what the values of tables show whose columns' types depend on them, for `decide`.

        One aggregation reads them for all tables. If it fails, each table reads its own.
        """
        try:
            names = [name for name in seen.tables if self._reads_values(name, seen)]
            return shown_by_values(events, names) if len(names) >= _FEWEST_TOGETHER else {}
        except Exception as error:
            if stops_pipeline(error, self._session) or is_lost(error):
                raise
            log.debug("each table reads its own values: %s", cause_of(error))
            return {}

    def _reads_values(self, name: TableName, seen: Overview) -> bool:
        if name in self._unread:
            return False
        try:
            return self[name].reads_values(seen.tables[name])
        except Refused:  # as `decide` is going to say
            return False

    def decide(
        self,
        name: TableName,
        events: DataFrame,
        seen: TableOverview,
        documents: Mapping[int, str],
        batch: int,
        in_columns: InColumns = never,
        shown: Row | None = None,
    ) -> Decision:
        """Decide what to do with one table's part of a batch, whose number is given.

        ``shown`` is what its values show, if that was read before. If a decision fails, it is tried once
        more, and then without any records that make Spark throw. If it still fails, the table is held.
        """
        if name in self._unread:
            return self.failed(name, events, seen, self._unread[name])
        sources, message = self._restarted
        if str(name) in sources and not self.leaves_out(name):
            return hold(name, Held(message), events, seen)
        if name in self._waiting:
            return hold(name, Held(_WAITING, error=False), events, seen)

        def attempt(some: DataFrame = events) -> Decision | Exception:
            mine = shown if some is events else None
            return self.tried(name, lambda: self[name].decide(some, seen, documents, batch, in_columns, mine))

        decision = attempt()
        if isinstance(decision, Exception):
            decision = attempt()
        if isinstance(decision, Exception):
            decision = self._without_poison(attempt, of_table(events, name), decision)
        if isinstance(decision, Exception):
            decision = self.failed(name, events, seen, decision)
        return decision

    def tried(self, name: TableName, step: Callable[[], Out]) -> Out | Exception:
        """Run a step of a table and return its outcome, or the error that it raised.

        An error that stops the pipeline, or that reports lost rows, is raised instead.
        """
        found = self.attempted(name, step)
        if isinstance(found, Exception):
            self._tables.pop(name, None)  # what it knows may be wrong, so it is read again
        return found

    def attempted(self, name: TableName, step: Callable[[], Out]) -> Out | Exception:
        """Do the same, and keep what is known about the table."""
        try:
            return step()
        except Exception as error:
            if stops_pipeline(error, self._session) or is_lost(error):
                raise
            self._target.check(self._session)
            log.warning("table %s failed: %s", name, cause_of(error))
            return error

    def failed(self, name: TableName, events: DataFrame, seen: TableOverview, error: Exception) -> Decision:
        """Hold the table's records because it failed twice."""
        log.debug("table %s failed twice", name, exc_info=error)
        self._tables.pop(name, None)
        return hold(name, Held(self._failure(name, error)), events, seen)

    def standing(self, source: str) -> Sequence[Standing] | None:
        """Return what the mirror of a source table has from before this query.

        Returns None if that cannot be read. The table is then held in this batch, because without it, old
        changes could be taken for new ones. It has to be asked again before its changes are applied.
        """
        name = self._met(source)
        if name is None or source in self._fresh:
            return ()
        if name in self._unread or self[name].held is not None:
            return None
        found = self._asked(name, TableApplier.standing)
        if isinstance(found, Exception):
            self._unread[name] = found
            return None
        if found is None:
            self._fresh.add(source)
        return found or ()

    def wait(self, source: str) -> None:
        """Hold a table in this batch, because its held records have to be applied first."""
        name = self._met(source)
        if name is not None:
            self._waiting.add(name)

    def wait_for_epoch(self, sources: Collection[str], message: str) -> None:
        """Hold these source tables in this batch: the positions of their source have started again."""
        self._restarted = sources, message

    def _met(self, source: str) -> TableName | None:
        """Return the name of a table that is open, or that was until it failed."""
        return next((each for each in (*self._tables, *self._unread) if str(each) == source), None)

    def files_of(self, name: TableName, batch: Batch, app_id: str) -> Sequence[KnownFile]:
        """Return the batch's files of rows whose content the mirror of a table already has.

        Returns nothing, and the table is held in this batch, if its mirror cannot be read. If only the list
        of its files cannot be read, that error is raised: held records of a file are applied later as ones
        that the mirror lacks, and old rows would overwrite newer ones.
        """
        found = self._asked(name, lambda table: table.files_of(batch, app_id))
        if not isinstance(found, Exception):
            return found
        unread = self._asked(name, TableApplier.require_readable)
        if unread is None:
            raise found
        self._unread[name] = unread
        return ()

    def highest_offset(self, name: TableName, app_id: str, topics: Collection[str]) -> int | None:
        """Return the highest offset of rows that a mirror has from before this query, or None without any.

        Returns None, too, and the table is held in this batch, if its mirror cannot be read.
        """
        found = self._asked(name, lambda table: table.highest_offset(app_id, topics))
        if isinstance(found, Exception):
            self._unread[name] = found
            return None
        return found

    def _asked(self, name: TableName, question: Callable[[TableApplier], Out]) -> Out | Exception:
        """Ask a table about its mirror, and once more if that fails. Returns the answer, or the error."""
        found = self.tried(name, lambda: question(self[name]))
        return self.tried(name, lambda: question(self[name])) if isinstance(found, Exception) else found

    def _without_poison(
        self, attempt: Callable[[DataFrame], Decision | Exception], events: DataFrame, error: Exception
    ) -> Decision | Exception:
        """Decide again without the ``events`` that are to blame for the ``error``.

        Returns an error if no event is to blame, if too many are to find them all, or if the attempt also
        fails for another reason.
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
        if poison.parts:
            return error
        decision = attempt(isolate.without(events, poison))
        if isinstance(decision, Exception):
            return decision
        # If the table is held because of other events, these events are held with it.
        return replace(decision, poison=NO_POISON if decision.held else poison, changes=events)

    def _opened(self, name: TableName) -> TableApplier:
        try:
            settings = self._pipeline.spec.table_settings(str(name))
            if settings is None:
                return TableApplier(name, None)
            if settings.suspend:
                held = Held(f"tables[{settings.source}].suspend is true", error=False)
                return TableApplier(name, None, held)
            table = self._mirrored(name, settings)
            require_same(self._fixed, table.location, name, settings.source, table.last_batch_of)
            self._targets.claim(table.location, table.kept_as)
            writing = self._targets.writing(table.location) if table.shard is not None else None
            return TableApplier(name, table, writing=writing, target=self._target, places=self._places)
        except (Refused, AmbiguousTable) as reason:
            return TableApplier(name, None, Held(str(reason)))

    def _failure(self, name: TableName, error: Exception) -> str:
        if isinstance(error, Refused):
            return str(error)
        return (
            f"table {name} could not be written: {cause_of(error)}. Its records are kept in quarantine and "
            "applied again by the driver when the cause is gone; set "
            f"tables[{self._entry(str(name))}].suspend: true to stop trying"
        )

    def _entry(self, name: str) -> str:
        """Return what the manifest calls a table, or would call it."""
        with suppress(AmbiguousTable):
            listed = self._pipeline.spec.listed(name)
            return listed.source if listed is not None else name
        return name

    def _mirrored(self, name: TableName, settings: Table) -> MirroredTable:
        """Return a table with its mirror, which stays where it is, whatever spelling of the name comes first.

        A template such as ``{db}/{table}`` may lead each spelling to another place.
        """
        reported = self._drift.get(str(name), ())
        spelled = [
            MirroredTable(
                self._session, self._pipeline, each, settings, reported, self._target.open, self._possession
            )
            for each in (name, *name.spellings())
        ]
        return next((t for t in spelled if self._targets.has(t.location, t.kept_as)), spelled[0])
