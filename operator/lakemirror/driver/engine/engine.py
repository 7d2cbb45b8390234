"""Applies the plain changes of a batch, table by table, with one job for all of them.

A batch that was planned shows what a table is like (`believed`). From then on its changes are read in
columns, as long as all of its records are as expected. If one is not, all records of its topic are applied by
Spark in the same batch, and what the job has made of the table is thrown away. So nothing here decides about
records that are odd, about columns that change or about positions that start again.
"""

from __future__ import annotations

import logging
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lakemirror.api.report import Counts
from lakemirror.api.spark_settings import LAKEMIRRORS, in_columns
from lakemirror.api.spec import Ordering
from lakemirror.driver import faults
from lakemirror.driver.columns.stored import rows_schema
from lakemirror.driver.decision import Decision
from lakemirror.driver.engine import job
from lakemirror.driver.engine.believed import Believed, Learned, believed, reason_of_batch
from lakemirror.driver.engine.blocks import Dividing, Report
from lakemirror.driver.engine.buckets import Done, StoredMirror
from lakemirror.driver.engine.commits import (
    Author,
    DeltaTable,
    changes_in,
    commit_rows,
    discard,
    new_tombstones,
    tombstones_of,
)
from lakemirror.driver.engine.file_systems import FileSystems, reason_against_place
from lakemirror.driver.engine.job import JobResult
from lakemirror.driver.engine.mirror_files import MirrorFiles, NotForEngine
from lakemirror.driver.engine.pauses import Pauses
from lakemirror.driver.engine.quarantine_rows import AsideRecord
from lakemirror.driver.engine.quarantine_table import QuarantineTable
from lakemirror.driver.engine.stored_ends import DELETED, MOVED, TOMBSTONES, TombstoneFiles
from lakemirror.driver.engine.summaries import summary_of
from lakemirror.driver.engine.table_change import is_untidy, tidied
from lakemirror.driver.engine.verdicts import Candidate, Verdict, judge, judge_planned
from lakemirror.driver.errors import cause_of, stops_pipeline
from lakemirror.driver.orders import Orders
from lakemirror.driver.parallel import side_by_side
from lakemirror.driver.plan.mirrored import MirroredTable
from lakemirror.driver.plan.table import TablePlan
from lakemirror.driver.profile.overview import Changes, Group, TableOverview
from lakemirror.driver.profile.positions import Memory
from lakemirror.driver.read.base import Batch, SavedLines
from lakemirror.driver.record.aside import BadRecord
from lakemirror.driver.results import TableResult
from lakemirror.driver.rules.orders import Truncated
from lakemirror.driver.rules.values import Outcome
from lakemirror.driver.tables.names import TableName
from lakemirror.driver.tables.tombstones import Summary, raised
from lakemirror.driver.write.outcome import warn_of_order
from lakemirror.driver.writer.data_files import Layout
from lakemirror.driver.writer.features import VECTORS_PROPERTY, may_hide_rows
from lakemirror.driver.writer.log_files import Damaged
from lakemirror.driver.writer.log_state import NotPlain, State
from lakemirror.driver.writer.stores import Files, FileSystem

log = logging.getLogger(__name__)

_KEYS_A_BUCKET: Final = 50_000
"""About how many changes of a table one task folds."""
_MOST_TURNS: Final = 2
"""How many buckets of a table each task folds at most."""
_KEYS_OF_MOVED: Final = 200_000
"""The same for a table whose rows change their keys: keys that are connected have to be in one bucket."""
_FEW_RECORDS: Final = 2_000
"""A batch with so many records, or less, is applied by one task."""
_WITHOUT_LINES: Final = 20
"""How many batches are parsed by Spark after one with lines that had to be."""
_MOST_PLANNED: Final = 300_000
"""Maximum number of records of a batch with which new tables are applied: a first batch may be very large."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_Judging = Callable[[Sequence[Candidate]], Verdict]


@dataclass
class _Table:
    """A table that is applied in columns, between batches. ``changes`` is how many its last batch had."""

    mirrored: MirroredTable
    believed: Believed
    system: FileSystem
    rows: DeltaTable
    ends: DeltaTable
    orders: Orders
    known: MirrorFiles
    changes: int = 0

    @property
    def files(self) -> MirrorFiles:
        """The files of the mirror as it was last read: its columns are those that it had."""
        state = self.rows.state
        assert state is not None
        if self.known.version != state.snapshot.version:
            self.known = replace(
                self.known, version=state.snapshot.version, files=tuple(state.snapshot.files.values())
            )
        return self.known


@dataclass(frozen=True)
class Plain:
    """What a job has made of one table. ``report`` is that of its topic."""

    name: TableName
    report: Report
    done: Sequence[Done]
    overview: TableOverview


@dataclass(frozen=True)
class BatchRead:
    """What a job has made of a batch.

    ``tables`` are those that can be committed, ``memory`` is what to remember of their streams, ``topics``
    are those that are not left for Spark, as ``others`` records are. ``tombstones`` are Kafka tombstones of
    topics without changes.
    """

    tables: Mapping[TableName, Plain] = field(default_factory=dict)
    memory: Memory = field(default_factory=dict)
    topics: frozenset[str] = frozenset()
    tombstones: int = 0
    others: int = 0

    @property
    def records(self) -> int:
        """How many records the engine applies."""
        return sum(each.report.records for each in self.tables.values()) + self.tombstones

    @property
    def unreadable(self) -> int:
        """How many of its records are not known to be changes of a table."""
        return sum(each.report.unreadable for each in self.tables.values())

    def aside(self) -> Iterator[AsideRecord]:
        """Yield the records that cannot be applied."""
        for each in self.tables.values():
            for record in each.report.aside:
                place = (str(each.report.topic), record.partition, record.offset)
                yield AsideRecord(BadRecord(*place, record.source, record.reason), record.raw)

    def without_unreadable(self) -> BatchRead:
        """Return the same without the records that are no changes, which somebody else keeps aside."""
        tables = {
            name: replace(each, report=each.report.without_unreadable()) for name, each in self.tables.items()
        }
        return replace(self, tables=tables)

    def rest(self, raw: DataFrame) -> DataFrame:
        """Return the records that are left for Spark."""
        if not self.topics:
            return raw
        mine = F.col("topic").isin(sorted(self.topics)) & F.col("problem").isNull()
        return raw.where(~F.coalesce(mine, F.lit(False)))

    def of(self, raw: DataFrame, names: Collection[TableName]) -> DataFrame:
        """Return the records of the topics of some tables."""
        topics = [str(self.tables[name].report.topic) for name in names]
        return raw.where(F.col("topic").isin(topics) & F.col("problem").isNull())

    def without(self, names: Collection[TableName]) -> BatchRead:
        """Return the same without some tables, whose records are left for Spark."""
        gone = [self.tables[name].report for name in names]
        return replace(
            self,
            tables={name: each for name, each in self.tables.items() if name not in names},
            memory={
                stream: place
                for stream, place in self.memory.items()
                if stream.topic not in {each.topic for each in gone}
            },
            topics=self.topics - {str(each.topic) for each in gone},
            others=self.others + sum(each.records for each in gone),
        )


class Engine:
    """Keeps what is believed of tables between batches, and applies their plain changes. Not thread-safe.

    ``app_id`` is the application whose batches are applied.
    """

    def __init__(self, spark: SparkSession, app_id: str, ordering: Ordering) -> None:
        self._spark, self._app_id, self._ordering = spark, app_id, ordering
        self._tables: dict[TableName, _Table] = {}
        self._batch: int | None = None
        """The number of the batch that is applied."""
        self._is_small = False
        """Whether it is so small that one task is faster than several."""
        self._closer: dict[TableName, bool] = defaultdict(bool)
        """Whether positions have to be looked at one by one, by table."""
        self._systems = FileSystems(spark)
        self._opened: dict[str, DeltaTable] = {}
        """The tables of this batch whose logs were read before it is known whether they are applied here."""
        self._stored: dict[str, tuple[Files, Sequence[Done]]] = {}
        """The files stored for this batch, by the folder of their table, until a commit names them."""
        self._planned: set[TableName] = set()
        """The tables of this batch of which it has learned before it applied their changes."""
        self._unfit: set[TableName] = set()
        """The tables that it could not apply the last time: Spark does, and then it may learn of them."""
        self._pauses = Pauses()
        self._without_lines = 0
        """How many of the next batches are parsed by Spark, even if they are lines of records."""
        self._decided_again: set[TableName] = set()
        """The tables of this batch of which other things were done than what was decided first."""

    @classmethod
    def is_on(cls, spark: SparkSession) -> bool:
        """Return whether the session's settings leave changes to it."""
        return in_columns({name: spark.conf.get(name, "") or "" for name in LAKEMIRRORS})

    def quarantine_at(self, checkpoint: str) -> QuarantineTable:
        """Return the quarantine of a checkpoint."""
        return QuarantineTable(self._spark, self._systems, checkpoint)

    def forget(self) -> None:
        """Believe nothing any more: somebody else may have changed mirrors."""
        self._tables = {}

    # -- learning ---------------------------------------------------------------------------------

    def learn(
        self,
        decisions: Iterable[Decision],
        mirrored: Callable[[TableName], MirroredTable | None],
        documents: Mapping[int, str],
    ) -> None:
        """Learn from the decisions of a batch, once they are carried out."""
        for each in decisions:
            if each.name in self._decided_again:
                self._tables.pop(each.name, None)
            elif each.name not in self._planned:
                self._learn_one(each, mirrored(each.name), documents)

    def decided_again(self, name: TableName) -> None:
        """Learn nothing of a table from what was decided first in this batch, and was not carried out."""
        self._decided_again.add(name)

    def _learn_one(
        self, decision: Decision, table: MirroredTable | None, documents: Mapping[int, str]
    ) -> _Table | None:
        """Return what is learned of a table from a decision, or None if nothing is believed of it."""
        name = decision.name
        self._tables.pop(name, None)
        self._unfit.discard(name)
        if decision.plan is None or table is None or decision.bad or decision.refused:
            return None
        try:
            self._tables[name] = self._learned(decision, table, documents)
        except (NotForEngine, NotPlain, Damaged) as reason:
            log.debug("table %s is not applied in columns: %s", name, reason)
        except Exception as error:  # nothing has to be believed
            self._doubt(self._folder(table), error)
            log.warning("nothing could be learned of table %s", name, exc_info=True)
        if name not in self._tables:
            self._unfit.add(name)
        return self._tables.get(name)

    def _learned(self, decision: Decision, table: MirroredTable, documents: Mapping[int, str]) -> _Table:
        assert decision.plan is not None
        reason = reason_of_batch(table, decision.plan)
        if reason is not None:
            raise NotForEngine(reason)
        folder = self._folder(table)
        system = self._systems.of(folder)
        rows, ends = (self._open(each) for each in (folder, f"{folder}/{TOMBSTONES}"))
        state = rows.refresh()
        if state is None:
            raise NotForEngine("it has no mirror")
        self._systems.require_same(rows)
        if table.checked is not None and rows.was_changed_by_others(table.checked):
            raise NotForEngine(
                "others have changed its rows since that was looked for: Spark has to say what"
            )
        learned = Learned(table, decision.plan, state.snapshot, documents)
        known = believed(learned, str(uuid.uuid4()))
        files = _files(table, known, state)
        orders, events = table.orders, decision.overview.events
        found = _Table(table, known, system, rows, ends, orders, files, events)
        if _has_facts(found) and ends.refresh() is None:
            raise NotForEngine("its tombstones are gone")
        return found

    def look_ahead(self, tables: Iterable[MirroredTable]) -> None:
        """Read the tombstones of tables of which nothing is known yet, as after a start.

        What cannot be read here is left to Spark, which takes a job for each table.
        """
        side_by_side(self._summarise, tables)

    def _summarise(self, table: MirroredTable) -> None:
        try:
            if table.shard is not None or not table.mirror.exists or table.tombstones.is_summarised:
                return
            ends = self._open(f"{self._folder(table)}/{TOMBSTONES}")
            summary = summary_of(ends)
            if summary is not None:
                table.tombstones.summary, table.tombstones.exist = summary, ends.state is not None
        except Exception as error:
            if stops_pipeline(error, self._spark):
                raise
            log.debug("the tombstones of table %s are read by Spark: %s", table.name, error)

    def last_batch(self, table: MirroredTable) -> int | None:
        """Return the last batch of this application that a mirror has, or None."""
        if not table.mirror.exists:
            return None
        try:
            state = self._open(self._folder(table)).refresh() if table.shard is None else None
            known = None if state is None else state.snapshot.transactions
        except Exception as error:
            if stops_pipeline(error, self._spark):
                raise
            log.debug("the batches of table %s are read by Spark: %s", table.name, error)
            known = None
        if known is None:
            return table.last_batch_seen(self._app_id)
        return known[self._app_id].version if self._app_id in known else None

    def _open(self, folder: str) -> DeltaTable:
        """Return the table in a folder. Raises as `FileSystems.of` does."""
        if folder not in self._opened:
            self._opened[folder] = self._systems.table(folder)
        return self._opened[folder]

    def _folder(self, table: MirroredTable) -> str:
        """Return where a mirror is; empty if it is no Delta table with a path."""
        return self._systems.folder(str(getattr(table.mirror, "path", None) or "").rstrip("/"))

    # -- reading ----------------------------------------------------------------------------------

    def read(self, raw: DataFrame, batch: Batch, memory: Memory) -> BatchRead | None:
        """Read a batch. Nothing that anybody reads is changed. Returns None if all is left for Spark.

        ``memory`` is what is remembered of the source's positions.
        """
        self._batch, self._stored, self._opened = batch.batch_id, {}, {}
        self._is_small = batch.offsets is not None and batch.offsets <= _FEW_RECORDS
        self._planned, self._decided_again = set(), set()
        self._systems.renew()
        self._pauses.begin()
        if self._pauses.active or not self._tables or batch.files:
            return None
        tables = list(self._tables.values())
        as_left = side_by_side(self._is_as_left, tables)
        known = [each for each, stays in zip(tables, as_left, strict=True) if stays]
        self._tables = {each.believed.name: each for each in known}
        judging = partial(judge, memory=memory, ordering=self._ordering)
        return self._tried_to_read(raw, known, judging, self._lines(batch))

    def can_apply(self, table: MirroredTable, plan: TablePlan, records: int) -> bool:
        """Return whether the changes of a table can be applied once its mirror has the planned form.

        ``records`` is how many the batch has.
        """
        seen = plan.seen
        if records > _MOST_PLANNED or seen.truncates or seen.rekeyed:
            return False
        if table.name in self._unfit or self._pauses.active:
            return False
        reason = reason_of_batch(table, plan) or reason_against_place(self._folder(table))
        if reason is not None:
            log.debug("table %s is not applied in columns: %s", table.name, reason)
        return reason is None

    def read_planned(
        self,
        raw: DataFrame,
        decisions: Sequence[Decision],
        mirrored: Callable[[TableName], MirroredTable | None],
        documents: Mapping[int, str],
        memory: Memory,
    ) -> BatchRead:
        """Read the changes of tables that have just been planned, and whose mirrors have that form.

        ``memory`` is what is remembered of the source's positions after this batch, which Spark has judged.
        Tables that cannot be committed are left out of the answer.
        """
        learned = (self._learn_one(each, mirrored(each.name), documents) for each in decisions)
        known = [each for each in learned if each is not None]
        numbers = {each.name: (each.records, each.overview.tombstone_records) for each in decisions}
        topics = F.col("topic").isin(sorted(each.believed.topic for each in known))
        mine = raw.where(topics & F.col("problem").isNull())
        judging = partial(judge_planned, memory=memory, numbers=numbers)
        read = self._tried_to_read(mine, known, judging, planned=True)
        self._planned |= read.tables.keys() if read is not None else set()
        return replace(read, memory={}) if read is not None else BatchRead()

    def _lines(self, batch: Batch) -> SavedLines | None:
        """Return the lines of a batch of saved records, unless those of one before were not usual."""
        if self._without_lines:
            self._without_lines -= 1
            return None
        return batch.lines()

    def _tried_to_read(
        self,
        raw: DataFrame,
        known: Sequence[_Table],
        judging: _Judging,
        lines: SavedLines | None = None,
        *,
        planned: bool = False,
    ) -> BatchRead | None:
        if not known:
            return None
        found: JobResult | None = None
        try:
            dividing = self._dividing(known)
            tables = [
                _now(each, closer=self._closer[each.believed.name], whole=buckets == 1, planned=planned)
                for each, buckets in zip(known, dividing.buckets, strict=True)
            ]
            places = [_place(each, self._batch) for each in known]
            found = self._run(raw, lines, known, (tables, places, dividing))
            with_vectors = self._with_vectors(known, found)
            if with_vectors is not None:
                _discard_all(known, found)
                return self._tried_to_read(raw, with_vectors, judging, lines, planned=planned)
            read = self._sorted(found, known, tables, judging)
        except Exception as error:
            if found is not None:
                _discard_all(known, found)
            if stops_pipeline(error, self._spark):
                raise
            log.warning(
                "this batch and %d after it are applied by Spark's plans, because the job that applies "
                "changes in columns failed: %s",
                self._pauses.failed(),
                cause_of(error),
            )
            return None
        self._pauses.succeeded()
        return read

    def _with_vectors(self, known: Sequence[_Table], found: JobResult) -> list[_Table] | None:
        """Let rows be hidden by deletion vectors in the tables that need it.

        Spark's plans do the same, once files are so large that it pays to hide rows. Returns the tables to
        read again, without those that got no vectors, which are left for Spark; or None if none got any.
        """
        lacking = {n for n, done in found.done.items() if any(each.lacks_vectors for each in done)}
        got = {n for n in lacking if self._got_vectors(known[n])}
        self._unfit |= {known[n].believed.name for n in lacking - got}
        return [each for n, each in enumerate(known) if n not in lacking - got] if got else None

    def _got_vectors(self, table: _Table) -> bool:
        """Turn vectors on for a table. Returns False if a property says that it must not have any."""
        state = table.rows.state
        if state is None or VECTORS_PROPERTY in state.snapshot.metadata.properties:
            return False
        try:
            self._turn_on_vectors(table, state)
        except Exception as error:  # it concerns this table alone
            if stops_pipeline(error, self._spark):
                raise
            log.debug("table %s gets no deletion vectors: %s", table.believed.name, cause_of(error))
            self._tables.pop(table.believed.name, None)
            return False
        return True

    def _turn_on_vectors(self, table: _Table, before: State) -> None:
        """Turn vectors on for a table whose state was ``before``. Raises NotForEngine."""
        table.mirrored.mirror.alter({}, {}, {VECTORS_PROPERTY: "true"})
        state = table.rows.refresh()
        if state is None:
            raise NotForEngine("it has no mirror any more")
        if table.rows.was_changed_by_others(before.snapshot.version):
            raise NotForEngine("others have changed its rows meanwhile: Spark has to say what")
        if not may_hide_rows(state.snapshot.metadata):
            raise NotForEngine("somebody has turned its deletion vectors off again")
        table.known = _files(table.mirrored, table.believed, state)

    def _run(
        self,
        raw: DataFrame,
        lines: SavedLines | None,
        known: Sequence[_Table],
        given: tuple[Sequence[Believed], Sequence[StoredMirror], Dividing],
    ) -> JobResult:
        """Run the job, on lines of saved records if there are some and all of them are usual."""
        if lines is None:
            return job.run(raw, *given)
        found = job.run(raw, *given, lines)
        if found.unread is None:
            return found
        log.debug("the lines of a batch are parsed by Spark: %s", found.unread)
        self._without_lines = _WITHOUT_LINES
        _discard_all(known, found)
        return job.run(raw, *given)

    def _sorted(
        self, found: JobResult, known: Sequence[_Table], tables: Sequence[Believed], judging: _Judging
    ) -> BatchRead:
        """Divide what was found into what is applied here, and what is left for Spark."""
        candidates = [
            (each, Candidate(table, found.reports[table.topic], found.done.get(number, ())))
            for number, (each, table) in enumerate(zip(known, tables, strict=True))
            if table.topic in found.reports and found.reports[table.topic].number == number
        ]
        verdict = judging([candidate for _, candidate in candidates])
        plain: dict[TableName, Plain] = {}
        topics, tombstones = set(), 0
        for each, (table, report, done) in candidates:
            reason = verdict.left.get(table.name)
            if reason is not None:
                self._closer[table.name] |= reason.falls_back
                log.debug("the changes of table %s are applied by Spark: %s", table.name, reason.text)
                self._unfit |= {table.name} if any(bucket.error for bucket in done) else set()
                discard(each.rows.files, done)
                continue
            topics.add(table.topic)
            if verdict.fell is not None:
                self._closer[table.name] = table.name in verdict.fell  # all changes one by one are many
            each.changes = report.seen.records
            if report.seen.records:
                self._stored[each.rows.folder] = each.rows.files, done
                overview = _overview(table, report, each.orders)
                plain[table.name] = Plain(table.name, report, done, overview)
            else:
                tombstones += report.tombstones
        others = sum(each.records for topic, each in found.reports.items() if topic not in topics)
        return BatchRead(plain, verdict.memory, frozenset(topics), tombstones, others)

    def _is_as_left(self, table: _Table) -> bool:
        """Return whether a table is as it was left; otherwise nothing must be believed of it any more."""
        before = table.rows.state
        try:
            self._use(table)
            state = table.rows.refresh()
            if _has_facts(table):
                table.ends.refresh()
        except Exception as error:
            if stops_pipeline(error, self._spark):
                raise
            self._doubt(table.rows.folder, error)
            log.debug("table %s is not applied in columns: %s", table.believed.name, error)
            state = None
        is_same = state is not None and before is not None and state.known == before.known
        return is_same and not _lacks_ends(table)

    def _doubt(self, folder: str, error: Exception) -> None:
        """Find out anew whether a mirror can be reached, if an error says that its storage has failed."""
        if isinstance(error, OSError):
            self._systems.doubt(folder)

    def _use(self, table: _Table) -> None:
        """Read and write the files of a table with what holds by now."""
        table.system = self._systems.of(table.rows.folder)
        for each in (table.rows, table.ends):
            self._systems.renew_table(each)

    def _dividing(self, tables: Sequence[_Table]) -> Dividing:
        parallel = self._spark.sparkContext.defaultParallelism
        buckets = [_buckets(each, parallel) for each in tables]
        if self._is_small:
            return Dividing(buckets, 1, is_small=True)
        return Dividing(buckets, max(1, min(parallel, sum(buckets))))

    # -- writing ----------------------------------------------------------------------------------

    def write(self, read: BatchRead, batch: Batch) -> tuple[dict[TableName, TableResult], list[TableName]]:
        """Commit what was read, table by table.

        Returns the results, and the tables for which that failed, for example because somebody else has
        changed them meanwhile. Spark has to apply these: it sees whether their mirrors have the batch.
        """
        self._systems.renew()  # the job may have taken long
        found = side_by_side(lambda each: self._tried(each, batch), read.tables.values())
        results = {each.name: done for each, done in zip(read.tables.values(), found, strict=True)}
        overtaken = [name for name, done in results.items() if done is None]
        self.discard(overtaken)  # what was stored before it came to a commit
        for name in overtaken:
            self._tables.pop(name, None)
        return {name: done for name, done in results.items() if done is not None}, overtaken

    def _tried(self, plain: Plain, batch: Batch) -> TableResult | None:
        """Commit what was read of a table. Returns None if that fails, whatever it may have done."""
        try:
            table = self._tables[plain.name]
            self._use(table)
            return self._written(table, plain, batch)
        except Exception as error:
            if stops_pipeline(error, self._spark):
                raise
            log.warning("table %s is applied by Spark: %s", plain.name, cause_of(error))
            return None

    def discard(self, names: Collection[TableName] | None = None) -> None:
        """Delete the files that were stored for tables (None: for all) and that no commit has named."""
        folders = [self._tables[name].rows.folder for name in names or () if name in self._tables]
        for folder in list(self._stored) if names is None else folders:
            if folder in self._stored:
                discard(*self._stored.pop(folder))

    def _written(self, table: _Table, plain: Plain, batch: Batch) -> TableResult:
        author = Author(self._app_id, batch.batch_id, batch.note)
        self._write_tombstones(table, plain, author)
        faults.reach("after-tombstones")
        self._stored.pop(table.rows.folder, None)  # from here on, they may be the table's
        noted = table.mirrored.tombstones_note
        version = commit_rows(table.rows, plain.done, author, noted)
        table.mirrored.noted(noted)
        if len(plain.done) > 1:
            self._tidy(table, author)
        table.mirrored.applied(plain.overview)
        result = _result(table, plain, version)
        warn_of_order(table.mirrored, result.counts.out_of_order)
        return result

    def _tidy(self, table: _Table, author: Author) -> None:
        """Rewrite scraps of a table that several buckets have changed. It can do without that."""
        try:
            if is_untidy(table.files):
                change = tidied(table.rows.files, table.files, _millis())
                if change:
                    table.rows.commit(change.commit([]), replace(author, note={}), _millis())
        except Exception as error:
            log.warning("files of table %s could not be combined: %s", table.believed.name, cause_of(error))

    def _write_tombstones(self, table: _Table, plain: Plain, author: Author) -> None:
        known = table.believed
        rows = tombstones_of(plain.done, known.kinds, known.mirrored.key, author.number)
        if rows is None:
            return
        summary = _raised(table.mirrored.tombstones.summary, rows, plain.done)
        if table.ends.refresh() is None:
            if _has_facts(table) or table.mirrored.tombstones.exist:
                raise NotForEngine("its tombstones are gone")
            table.ends.begin(new_tombstones(_millis()), author, _millis())
            table.ends.refresh()
        table.ends.append(rows, Author(self._app_id, author.number, author.note), _millis())
        table.mirrored.tombstones.summary = summary
        table.mirrored.tombstones.exist = True


def _discard_all(known: Sequence[_Table], found: JobResult) -> None:
    """Delete the files that a job has stored."""
    for number, done in found.done.items():
        discard(known[number].rows.files, done)


def _files(table: MirroredTable, known: Believed, state: State) -> MirrorFiles:
    return MirrorFiles.of(state.snapshot, rows_schema(known.kinds, soft=table.soft), table.avoided)


def _buckets(table: _Table, parallel: int) -> int:
    """Return into how many buckets the keys of a table are divided. ``parallel`` are folded at a time."""
    wanted = round(table.changes / _keys_a_bucket(table)) if table.files.may_hide else 1
    if wanted < parallel:
        return max(1, wanted)
    turns = -(-wanted // parallel)
    return min(turns, _MOST_TURNS) * parallel


def _keys_a_bucket(table: _Table) -> int:
    return _KEYS_OF_MOVED if table.mirrored.tombstone_summary.moved else _KEYS_A_BUCKET


def _raised(summary: Summary, rows: pa.RecordBatch, done: Sequence[Done]) -> Summary:
    """Return the summary of tombstones with those of a batch, whose rows are ``rows``."""
    kinds, seqs = (rows.column(name).to_pylist() for name in ("kind", "seq"))
    deleted, moved = (
        [seq for kind, seq in zip(kinds, seqs, strict=True) if kind == mine] for mine in (DELETED, MOVED)
    )
    return raised(
        summary,
        deletes=len(deleted) - sum(each.again for each in done),
        last_delete=max(deleted, default=None),
        moved=len(moved),
        new_moves=sum(each.moves for each in done),
        last_move=max(moved, default=None),
    )


def _now(table: _Table, *, closer: bool, whole: bool, planned: bool) -> Believed:
    """Return what is believed of a table, with its tombstones and its newest truncate as they are by now.

    All of its changes are in one order, in which they compare with the truncate. ``whole`` says that all of
    its keys are in one bucket, ``planned`` that Spark has planned the batch.
    """
    summary, known = table.mirrored.tombstone_summary, table.believed.mirrored
    former = None if summary.floor is None else Truncated(summary.floor)
    now = replace(known, table=replace(known.table, former=former, now=_millis() * 1000))
    return replace(
        table.believed,
        mirrored=now,
        closer=closer,
        newest=summary.newest,
        collected=summary.collected,
        moved=summary.moved > 0,
        may_move=table.believed.may_move and whole,
        may_be_open=planned,
    )


def _lacks_ends(table: _Table) -> bool:
    """Return whether tombstones are gone that there were: rows would be written that were deleted."""
    return _has_facts(table) and table.ends.state is None


def _has_facts(table: _Table) -> bool:
    """Return whether the mirror has tombstones, or was truncated."""
    summary = table.mirrored.tombstone_summary
    return summary.newest is not None or summary.floor is not None


def _place(table: _Table, batch: int | None) -> StoredMirror:
    """Return what the tasks of a batch have to know of a mirror."""
    ends = table.ends.state
    listed = TombstoneFiles()
    if ends is not None and table.mirrored.tombstone_summary.newest is not None:
        listed = TombstoneFiles(Layout.of(ends.snapshot), tuple(ends.snapshot.files.values()), batch)
    tolerance = table.mirrored.spec.ordering.tolerance_ms * 1000
    return StoredMirror(table.system, table.rows.folder, table.files, listed, tolerance)


def _overview(table: Believed, report: Report, orders: Orders) -> TableOverview:
    seen = report.seen
    assert seen.ends is not None
    value, key = table.group
    group = Group(value, key, seen.records, *seen.ends, shapes=None)
    for stream, summary in seen.streams.items():
        if summary.streamed is not None:
            ends = (
                bytes.fromhex(each) for each in (summary.tables[str(table.name)][0], summary.streamed.seq)
            )
            group.changes.append(Changes(stream.name, stream.topic, *ends))
    return TableOverview(
        table.name,
        {group.identity: group},
        events=seen.records,
        orders=orders,
        keyed=seen.records,
        last_event_time=None if seen.latest is None else _EPOCH + timedelta(microseconds=seen.latest),
        topics={table.topic},
        unanchored=seen.unanchored,
        parts=[each.part(place) for place, each in seen.parts.items()],
        tombstone_records=report.tombstones,
    )


def _result(table: _Table, plain: Plain, version: int) -> TableResult:
    """Return what a batch did to a table (`write.outcome.counted`)."""
    numbers: dict[Outcome, int] = dict.fromkeys(Outcome, 0)
    for each in plain.done:
        for outcome, number in each.counted.outcomes.items():
            numbers[outcome] += number
    rows = {
        name: sum(getattr(each, name) for each in changes_in(plain.done))
        for name in ("inserted", "updated", "deleted")
    }
    tombstones, records = plain.report.tombstones, plain.report.records - plain.report.unreadable
    counts = Counts(
        records=records,
        records_in_columns=records,
        no_row_change=tombstones,
        quarantined=plain.report.spoilt,
        tombstone_records=tombstones,
        applied=numbers[Outcome.APPLIED],
        superseded=numbers[Outcome.SUPERSEDED],
        stale=numbers[Outcome.STALE],
        duplicates=numbers[Outcome.DUPLICATE],
        out_of_order=sum(each.counted.out_of_order for each in plain.done),
        absent_rows=sum(map(_absent, plain.done)),
        **rows,
    )
    return TableResult(
        str(plain.name),
        target=str(table.mirrored.location),
        version=version,
        counts=counts,
        tombstones_retained=table.mirrored.tombstones.summary.retained,
        last_event_time=plain.overview.last_event_time,
    )


def _absent(done: Done) -> int:
    """Return how many rows updates inserted, at least (`write.outcome`); each bucket has keys of its own."""
    counted, inserted = done.counted, 0 if done.change is None else done.change.inserted
    return min(counted.unborn, max(0, inserted - (counted.keys - counted.unborn - counted.deletes)))


def _millis() -> int:
    return int(datetime.now(UTC).timestamp() * 1000)
