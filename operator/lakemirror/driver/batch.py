"""Processes a micro-batch: in columns (`engine`), and what that leaves by Spark's own plans.

These parse, profile, plan, reduce and write. The engine reads the batch before, and stores data files that no
log names yet. Nothing that anybody reads is written until all other tables are planned and reduced. At that
point, each of these has one materialized state frame, and everything that a policy may refuse is known. The
quarantine is written next, then tombstones and rows, and finally the audit record. The rows of each table are
written in one commit under the batch's transaction ID, so a replay changes nothing.

Two laws hold (ARCHITECTURE.md). Isolation: a table that fails is tried once more and is held if it fails
again, while the other tables continue (`isolation`). Conservation: each record has exactly one outcome, and
the outcomes are added up before the batch is done.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from lakemirror.api import AmbiguousTable, CdcPipeline, duration_seconds
from lakemirror.api.report import Counts
from lakemirror.driver import faults
from lakemirror.driver.applier import InColumns, described, hold, is_of, never, of_table
from lakemirror.driver.checkpoint import identity, possession, tokens
from lakemirror.driver.checkpoint.storage import open_storage
from lakemirror.driver.consistent.reach import BEGIN, Part, logs_of, reach
from lakemirror.driver.decision import Decision, Held
from lakemirror.driver.engine.engine import BatchRead, Engine
from lakemirror.driver.engine.quarantine_rows import AsideRecord
from lakemirror.driver.errors import (
    BadRecordRefused,
    OffsetsTaken,
    cause_of,
    stops_pipeline,
)
from lakemirror.driver.isolation import PipelineTables
from lakemirror.driver.materialise import is_lost, materialised, release
from lakemirror.driver.orders import is_dated
from lakemirror.driver.parallel import LookAhead, side_by_side
from lakemirror.driver.parse import isolate
from lakemirror.driver.parse.encodings import Encoding
from lakemirror.driver.parse.envelopes.chooser import classifier
from lakemirror.driver.plan.mirrored import MirroredTable
from lakemirror.driver.plan.places import Places
from lakemirror.driver.plan.possession import Possession
from lakemirror.driver.plan.table import TablePlan
from lakemirror.driver.plan.targets import Fixed
from lakemirror.driver.profile import epochs, positions, rewinds
from lakemirror.driver.profile.admission import within_limits, without_foreign
from lakemirror.driver.profile.overview import (
    Overview,
    TableOverview,
    cannot_matter,
    overview,
    source_of,
    with_readable_schemas,
)
from lakemirror.driver.profile.positions import Memory, Standing
from lakemirror.driver.read.base import Batch
from lakemirror.driver.read.offset_log import partitions_of, topic_ids
from lakemirror.driver.record import audit, quarantine
from lakemirror.driver.record.aside import keep_aside, keep_bad
from lakemirror.driver.record.beginning import latest, since
from lakemirror.driver.record.conservation import require_accounted
from lakemirror.driver.record.history import AuditHistory
from lakemirror.driver.reduce.waiting import LogMoved
from lakemirror.driver.results import BatchResult, Left, TableResult, without_open
from lakemirror.driver.rules.orders import Kind
from lakemirror.driver.sequence import GIVEN
from lakemirror.driver.tables.names import TableName
from lakemirror.driver.write.target import DELTA, TargetKind
from lakemirror.driver.write.transaction import noted, transaction

log = logging.getLogger(__name__)

_MOST_SCHEMAS = 2000
"""How many schema documents are kept beyond those that a batch uses. Records may each bring another one."""
_SORTED = 1_000_000
"""Maximum number of positions of a batch that are sorted, provided that the previous batch was as large."""


@dataclass(frozen=True)
class _Profiled:
    """A batch after profiling.

    It has the records, raw and as classified events, what the events contain, and what to remember about the
    source's positions. ``restarted`` says what to do if these have started again.
    """

    batch: Batch
    raw: DataFrame
    events: DataFrame
    seen: Overview
    memory: Memory
    restarted: str | None = None


@dataclass(frozen=True)
class _Part:
    """What Spark has applied of a batch: its records, what was decided about them, and what was done."""

    given: _Profiled
    decisions: Sequence[Decision]
    written: Sequence[TableResult]


class BatchApplier:
    """Applies the micro-batches of one query of one pipeline.

    Not thread-safe. ``query_id`` names the checkpoint's query, within which batches are numbered. ``history``
    is what the audit says about earlier batches. ``encoding`` says how the query's records are written (JSON
    by default). ``warn`` is called for files that are not applied, and for changes by hand. ``target`` is the
    kind of place that holds the mirrors. ``anew`` names source tables that are reloaded, whose mirrors may be
    in any state.
    """

    def __init__(
        self,
        spark: SparkSession,
        pipeline: CdcPipeline,
        query_id: str,
        history: AuditHistory,
        encoding: Encoding | None = None,
        warn: Callable[[str], None] = log.warning,
        target: TargetKind = DELTA,
        anew: Collection[str] = (),
    ) -> None:
        self._warn = warn
        self._pipeline, self._spec = pipeline, pipeline.spec
        self._checkpoint = pipeline.spec.checkpoint
        self._app_id = _app_id(pipeline, query_id)
        self._session = spark
        fixed, places = self._fixed(history), self._places(history, anew)
        ours = possession.ensured(open_storage(self._checkpoint, spark), pipeline.name)
        held = Possession(ours, {self._app_id, *fixed.app_ids}, warn)
        self._tables = PipelineTables(spark, pipeline, history.tables, target, fixed, places, held)
        self._schemas: dict[int, str] = {}
        self._not_before = latest(history, identity.stored(open_storage(self._checkpoint, spark)))
        self._classifier = classifier(self._spec, encoding)
        self._again = query_id.startswith("replay-")
        remembered = history.positions(None if self._again else query_id)
        self._memory = epochs.with_epochs(remembered, self._spec.order)
        self._logs = dict(history.logs)
        """The logs that the changes of each table came from. None if some came from elsewhere."""
        self._mirrored = set(history.tables)
        """The source tables that the pipeline has met and does not leave out."""
        self._topic_ids: Mapping[str, str] = {}
        self._numbered: set[TableName] = set()
        """The tables whose rows are known to have lower offsets than those of new files."""
        self._every = 1
        self._first = True
        self._began = 0.0
        self._ahead = LookAhead()
        in_columns = target is DELTA and not self._again and Engine.is_on(spark)
        self._engine = Engine(spark, self._app_id, self._spec.order) if in_columns else None
        self._quarantine = None if self._engine is None else self._engine.quarantine_at(self._checkpoint)

    def _fixed(self, history: AuditHistory) -> Fixed:
        storage = open_storage(self._checkpoint, self._session)
        begun = identity.stored(storage)
        if begun is None:
            return Fixed()
        at = since(history, begun)
        queries = dict.fromkeys((begun.query_id, *history.queries_since(at)))
        return Fixed(
            history.targets_since(at),
            except_for=tokens.reread(storage, self._spec),
            app_ids=[_app_id(self._pipeline, each) for each in queries],
        )

    def _places(self, history: AuditHistory, anew: Collection[str]) -> Places:
        """Return how the mirrors were left since the checkpoint began to read its source."""
        storage = open_storage(self._checkpoint, self._session)

        def known(history: AuditHistory) -> dict[str, Left]:
            begun = identity.stored(storage)
            return {} if begun is None else history.left_since(since(history, begun))

        def again() -> dict[str, Left]:
            return known(audit.history(self._session, self._checkpoint))

        waiting = tokens.waiting(storage, self._spec)
        return Places(known(history), again, {*anew, *waiting}, self._warn)

    def apply(self, raw: DataFrame, batch: Batch) -> BatchResult:
        """Apply one batch of RAW records. Applying it again changes nothing.

        Raises a PipelineStopped error. SchemaDriftRefused means that nothing was written, and so does
        BadRecordRefused, unless records became bad when their table was tried again. After that, and after
        BatchMismatch or RecordsUnaccounted, some tables may have been written; a replay completes the others.
        """
        self._began = time.monotonic()
        is_other = raw.sparkSession is not self._session  # then `use` forgets the mirrors
        self._session = raw.sparkSession
        self._tables.use(raw.sparkSession)
        if self._engine is not None and (self._first or is_other):
            self._engine.forget()
        if self._quarantine is not None:
            self._quarantine.begin()
        read = self._engine.read(raw, batch, self._memory) if self._engine is not None else None
        try:
            return self._apply(raw, batch, read or BatchRead())
        except BaseException:
            if self._engine is not None:
                self._engine.discard()
            raise

    def _apply(self, raw: DataFrame, batch: Batch, read: BatchRead) -> BatchResult:
        """Apply a batch of which the engine has ``read`` a part."""
        parts: list[_Part] = []
        parsed: list[DataFrame] = []
        try:
            given = None
            if read.others or not read.topics:
                given, read = self._given(raw, batch, read, parsed)
            with noted(self._session, batch):
                decisions = [] if given is None else self._decided(given)
                results, overtaken = self._write_read(read, raw, batch)
                if given is not None:
                    parts.append(_Part(given, decisions, self._write(decisions, given)))
                if overtaken:
                    parts.append(self._overtaken(raw, batch, read, overtaken, parsed))
                    read = read.without(overtaken)
                corrected = self._close_corrected(raw, batch)
                result = self._record(parts, read, results, batch)
                return replace(result, corrected=corrected)
        finally:
            for frame in parsed:
                release(frame)

    def _given(
        self, raw: DataFrame, batch: Batch, read: BatchRead, parsed: list[DataFrame]
    ) -> tuple[_Profiled, BatchRead]:
        """Return the rest of the batch, profiled, and what the engine applies of it.

        A table that has records in the rest, too, is left for Spark as a whole.
        """
        while True:
            events, all_seen = self._parse(read.rest(raw))
            parsed.append(events)
            several = read.tables.keys() & {*all_seen.tables, *all_seen.apart}
            if not several:
                break
            assert self._engine is not None
            self._engine.discard(several)
            read = read.without(several)
        events, seen = self._without_applied(events, all_seen, batch)
        self._require_newest(events, seen, batch)
        return self._profile(raw, batch, events, seen), read

    def _write_read(
        self, read: BatchRead, raw: DataFrame, batch: Batch
    ) -> tuple[Mapping[TableName, TableResult], Sequence[TableName]]:
        """Commit what the engine has read, after its bad records are stored.

        Returns the results, and the tables that are left for Spark, for example because somebody else has
        changed them in the meantime.
        """
        if self._engine is None or not read.tables:
            return {}, ()
        spoilt: list[TableName] = []
        if not self._keep_bad(list(read.aside()), raw, batch):
            spoilt = [name for name, each in read.tables.items() if each.report.aside]
            self._engine.discard(spoilt)
        results, overtaken = self._engine.write(read.without(spoilt), batch)
        placed = {name: self._tables[name].left_at(each) for name, each in results.items()}
        return placed, [*overtaken, *spoilt]

    def _keep_bad(self, records: Sequence[AsideRecord], raw: DataFrame, batch: Batch) -> bool:
        """Store bad records that the engine has read.

        Returns False, without storing any, if their places are not those of exactly as many records.
        """
        if self._quarantine is not None and self._quarantine.keep(records, batch, self._app_id):
            return True
        return keep_bad([each.bad for each in records], raw, self._checkpoint, batch)

    def _overtaken(
        self,
        raw: DataFrame,
        batch: Batch,
        read: BatchRead,
        names: Collection[TableName],
        parsed: list[DataFrame],
    ) -> _Part:
        """Apply the records of tables that somebody else has changed since the engine has read them."""
        mine = read.of(raw, names)
        events, seen = self._parse(mine)
        parsed.append(events)
        given = self._profile(mine, batch, events, seen)
        listed = ", ".join(sorted(map(str, names)))
        decisions = self._decided(given, f"nothing of {listed} was written")
        return _Part(given, decisions, self._write(decisions, given, again=True))

    def _decided(self, given: _Profiled, done: str = "nothing was written") -> list[Decision]:
        """Decide what to do with each table, and store what cannot be applied. Raises BadRecordRefused.

        ``done`` says what was written before.
        """
        decisions = self._decide(given)
        self._refuse_bad(given.seen, decisions, done)
        self._keep_aside(given, decisions, rest=given.seen.bad + given.seen.held)
        return decisions

    # -- parse and profile ------------------------------------------------------------------------

    def _parse(self, raw: DataFrame) -> tuple[DataFrame, Overview]:
        """Return the classified events, materialized, and their overview.

        Schemas that the events name but that are unknown are fetched first.
        """
        self._classifier.ask_again(at_once=self._again)
        events, seen = self._classified(raw)
        while seen.unknown_schemas:
            release(events)
            self._schemas.update(seen.documents)
            self._classifier.learn(seen.unknown_schemas)
            events, seen = self._classified(raw)
        return events, seen

    def _classified(self, raw: DataFrame) -> tuple[DataFrame, Overview]:
        """Return the classified events and their overview.

        Records that make Spark throw are classified as bad.
        """
        self._schemas.update(self._classifier.documents())
        try:
            return self._materialised(self._classifier.classify(raw, self._schemas))
        except Exception as error:
            if stops_pipeline(error, self._session) or is_lost(error):
                raise
            log.warning("a batch cannot be read, so its records are tried one by one: %s", cause_of(error))
            return self._classified_without_poison(raw, error)

    def _classified_without_poison(self, raw: DataFrame, error: Exception) -> tuple[DataFrame, Overview]:
        """Return the same for a batch whose classification failed with this error."""

        def probe(some: DataFrame) -> object:
            return overview(self._classifier.classify(some, self._schemas))

        tried = materialised(raw)  # it is read once for each attempt
        try:
            poison = isolate.poisoned(tried, probe, error, blank=isolate.without_content)
        finally:
            release(tried)
        readable = self._classifier.classify(isolate.without(raw, poison), self._schemas)
        return self._materialised(readable.unionByName(isolate.aside(raw, poison), allowMissingColumns=True))

    def _materialised(self, events: DataFrame) -> tuple[DataFrame, Overview]:
        """Return the events, materialized, and their overview."""
        events = materialised(events)
        self._tables.begin(events)
        try:
            return events, overview(events, every=self._every)
        except Exception:
            release(events)
            raise

    def _without_applied(self, events: DataFrame, seen: Overview, batch: Batch) -> tuple[DataFrame, Overview]:
        """Set apart (kind ``again``) the events from files that their tables already have."""
        again = F.lit(False)
        names = sorted(seen.tables, key=str) if batch.files else []
        known = {name: self._tables.files_of(name, batch, self._app_id) for name in names}
        for name, files in known.items():
            whole = [each.file for each in files if not each.only_dated]
            for file in whole:
                self._warn(f"{file.name} is not applied to {name} again: the table has its content already")
            dated = [each.file.place for each in files if each.only_dated]
            if whole:
                again = again | (is_of(name) & F.col("file").isin([file.place for file in whole]))
            if dated:
                again = again | (is_of(name) & F.col("file").isin(dated) & is_dated(F.col("seq")))
        if not any(known.values()):
            return events, seen
        kind = F.when(again, "again").otherwise(F.col("kind"))
        marked = events.withColumn("kind", kind)
        return marked, overview(marked, every=self._every)

    def _require_newest(self, events: DataFrame, seen: Overview, batch: Batch) -> None:
        """Require that rows of new files have higher offsets than the rows that their tables have.

        A query that follows a lost checkpoint does not know the former offsets, which begin with the time of
        the driver's clock. Raises OffsetsTaken, before anything is written.
        """
        if self._again or not batch.files or any(file.again for file in batch.files):
            return
        for name, table in seen.tables.items():
            if name in self._numbered:
                continue
            highest = self._tables.highest_offset(name, self._app_id, table.topics)
            if highest is not None:
                mine = of_table(events, name).where(F.col("kind").isin("change", "truncate"))
                row = mine.agg(F.min("offset")).first()
                if row is not None and row[0] is not None and row[0] <= highest:
                    raise OffsetsTaken(str(name), highest)
            if name in self._tables and self._tables[name].held is None:
                self._numbered.add(name)

    def _profile(self, raw: DataFrame, batch: Batch, events: DataFrame, seen: Overview) -> _Profiled:
        """Profile the batch.

        Events whose schema cannot be read or that are not admitted are set apart, and so are events whose
        place in the source's order is undecided (kind ``held``). Bad events of tables that the manifest
        leaves out are no row changes (kind ``other``), like all their events.
        """
        events, seen = with_readable_schemas(events, seen, self._schemas)
        events, seen = without_foreign(events, seen, self._spec)
        events, seen = within_limits(events, seen, self._mirrored, self._memory, self._tables.leaves_out)
        self._keep_schemas(seen)
        for name, table in seen.tables.items():
            self._logs[str(name)] = _both(self._logs.get(str(name), frozenset()), logs_of(table.parts))
        for name in sorted(seen.tables, key=str):
            self._tables.open(name)
        left_out = [str(name) for name in seen.tables if self._tables.leaves_out(name)]
        self._mirrored |= {str(name) for name in seen.tables}.difference(left_out)
        no_matter = [str(name) for name in seen.apart if self._tables.leaves_out(name)]
        verdict = self._order(events, seen)
        if no_matter:
            other = F.when(cannot_matter(no_matter), "other")
            events = events.withColumn("kind", F.coalesce(other, "kind"))
        if verdict.held is not None:
            held = verdict.held & ~F.coalesce(source_of(), F.lit("")).isin([*left_out, *no_matter])
            kind, reason = F.when(held, "held"), F.when(held, rewinds.reason())
            events = events.withColumns(
                {"kind": F.coalesce(kind, "kind"), "reason": F.coalesce(reason, "reason")}
            )
        if no_matter or verdict.held is not None:
            seen = overview(events)
        for table in seen.tables.values():
            if Kind.OFFSET in table.orders.places:
                table.topic_ids = self._ids_of(table.topics)
        restarted = verdict.restarted
        if restarted is not None:
            self._tables.wait_for_epoch(restarted.tables, restarted.message)
        return _Profiled(batch, raw, events, seen, verdict.memory, restarted.message if restarted else None)

    def _keep_schemas(self, seen: Overview) -> None:
        """Keep the schema documents of a batch, and of all of them those in use once there are many.

        What is forgotten is learned again when a record brings it.
        """
        self._schemas.update(seen.documents)
        if len(self._schemas) > _MOST_SCHEMAS:
            used = {each for table in seen.tables.values() for pair in table.groups for each in pair}
            used |= self._classifier.documents().keys()
            self._schemas = {each: text for each, text in self._schemas.items() if each in used}

    def _ids_of(self, topics: Collection[str]) -> Mapping[str, str]:
        """Return the IDs of topics, if the source is Kafka."""
        if self._pipeline.spec.source.kafka is None:
            return {}
        if not self._topic_ids.keys() >= set(topics):
            self._topic_ids = topic_ids(self._pipeline, open_storage(self._checkpoint, self._session))
        return {topic: self._topic_ids[topic] for topic in topics if topic in self._topic_ids}

    def _order(self, events: DataFrame, seen: Overview) -> rewinds.Verdict:
        """Determine which events and tables wait, and what to remember about the source's positions."""
        about = (events, seen.streams, self._memory, self._spec.order, self._tables.standing)
        if self._again:
            return rewinds.judge_held(*about, self._partitions, self._is_mirrored)
        return rewinds.judge(*about, self._standing_again, self._partitions, self._is_mirrored)

    def _is_mirrored(self, source: str) -> bool:
        try:
            return self._spec.table_settings(source) is not None
        except AmbiguousTable:
            return True

    def _partitions(self) -> Mapping[str, Collection[int]]:
        return partitions_of(self._pipeline, open_storage(self._checkpoint, self._session))

    def _standing_again(self, source: str) -> Sequence[Standing] | None:
        """Return what the mirror of a source table has that could not tell before, or None.

        If records of the table are held, they are judged and applied first: they may show where the positions
        of the source have started again.
        """
        stands = self._tables.standing(source)
        if stands is None:
            return None
        held = quarantine.open_counts(self._session, self._checkpoint).get(source, {})
        if any(held.get(scope) for scope in quarantine.HELD):
            self._tables.wait(source)
            return None
        return stands

    # -- plan and reduce --------------------------------------------------------------------------

    def _decide(self, given: _Profiled) -> list[Decision]:
        """Decide what to do with each table's part of the batch."""
        names, in_columns = sorted(given.seen.tables, key=str), self._in_columns(given)
        if self._engine is not None:
            self._engine.look_ahead(each for each in map(self._tables.mirrored_as, names) if each is not None)
        shown = self._tables.shown(given.events, given.seen)
        return side_by_side(lambda name: self._decide_one(name, given, in_columns, shown.get(name)), names)

    def _in_columns(self, given: _Profiled) -> InColumns:
        """Return which tables the engine applies as they are planned.

        It looks for bad records after mirrors have got their form, so that none may be refused. A mirror that
        has the batch already tells what that did by way of Spark's plan.
        """
        engine, seen = self._engine, given.seen
        refuses = self._spec.on_bad_record == "fail"
        if engine is None or refuses or given.batch.files or seen.held or given.restarted is not None:
            return never

        def asked(table: MirroredTable, plan: TablePlan) -> bool:
            if not engine.can_apply(table, plan, seen.records):
                return False
            done = engine.last_batch(table)
            return done is None or done < given.batch.batch_id

        return asked

    def _decide_one(
        self, name: TableName, given: _Profiled, in_columns: InColumns = never, shown: Row | None = None
    ) -> Decision:
        try:
            seen, batch = given.seen.tables[name], given.batch.batch_id
            about = (given.events, seen, self._schemas, batch, in_columns)
            return self._tables.decide(name, *about, shown)
        except LogMoved as moved:
            rest = epochs.unread(moved.begun, self._partitions(), given.memory, self._spec.order)
            why = epochs.remedy_of_moved(moved.begun, self._spec.order, rest)
            return hold(name, Held(why), given.events, given.seen.tables[name])

    def _refuse_bad(
        self, seen: Overview, decisions: Sequence[Decision], done: str = "nothing was written"
    ) -> None:
        """Raise BadRecordRefused if there is a bad record under ``onBadRecord: fail``.

        ``done`` says what was written before.
        """
        if self._spec.on_bad_record != "fail":
            return
        bad = [d for d in decisions if d.bad > d.waiting or d.error]
        if not seen.bad and not bad:
            return
        reason = seen.bad_reason or next(d.example() for d in bad)
        count = seen.bad + sum(d.bad - d.waiting + d.refused for d in bad)
        raise BadRecordRefused(
            f"{count} record(s) cannot be applied and onBadRecord is 'fail': {done}. First: "
            f"{reason}. "
            f"Set spec.onBadRecord to 'quarantine' to keep them aside, or correct the source."
        )

    # -- write ------------------------------------------------------------------------------------

    def _keep_aside(self, given: _Profiled, decisions: Sequence[Decision], rest: int = 0) -> None:
        """Store records that cannot be applied.

        These are bad records of tables, all records of held tables, and the ``rest``, which is unreadable or
        undecided.
        """
        aside = [(d.kept_aside(), d.bad + d.refused) for d in decisions if d.bad or d.refused]
        keep_aside(given.events, given.raw, rest, aside, self._checkpoint, given.batch)

    def _write(
        self, decisions: Sequence[Decision], given: _Profiled, *, again: bool = False
    ) -> list[TableResult]:
        """Write all tables in parallel: first the form of their mirrors, then tombstones and rows.

        ``again`` says that their mirrors may have the batch already.
        """
        planned = [each for each in decisions if each.plan is not None]
        errors = side_by_side(lambda each: self._prepared(each, given, again=again), planned)
        ready = [each for each, error in zip(planned, errors, strict=True) if error is None]
        reduced = [each for each in ready if not each.in_columns]
        with transaction(self._session, self._app_id, given.batch):
            written = side_by_side(lambda each: self._written(each, given, again=again), reduced)
        done = {each.name: outcome for each, outcome in zip(reduced, written, strict=True)}
        done |= self._write_in_columns([each for each in ready if each.in_columns], given)
        results = []
        for each in decisions:
            outcome = done.get(each.name)
            if isinstance(outcome, TableResult):
                results.append(outcome)
            elif each.plan is not None:
                results.append(self._write_again(each.name, given))
            elif each.held is not None:
                results.append(described(each))
        return results

    def _write_in_columns(
        self, decisions: Sequence[Decision], given: _Profiled
    ) -> Mapping[TableName, TableResult]:
        """Have the engine apply what is planned. Tables that it leaves for Spark have no result."""
        if self._engine is None or not decisions:
            return {}
        about = (decisions, self._tables.mirrored_as, self._schemas, given.memory)
        read = self._engine.read_planned(given.raw, *about)
        results, _ = self._write_read(read.without_unreadable(), given.raw, given.batch)
        return results

    def _write_again(self, name: TableName, given: _Profiled) -> TableResult:
        """Decide, prepare and write one table on its own, starting from its events.

        Records may be bad that were not when the table was first decided: another shard may have created the
        mirror since then, with other types.
        """
        if self._engine is not None:
            self._engine.decided_again(name)
        decision = self._decide_one(name, given)
        self._refuse_bad(given.seen, [decision], f"nothing of table {name} was written")
        if decision.plan is not None:
            self._keep_aside(given, [decision])
            error = self._prepared(decision, given, again=True)
            if error is None:
                with transaction(self._session, self._app_id, given.batch):
                    outcome = self._written(decision, given, again=True)
                if isinstance(outcome, TableResult):
                    return outcome
                error = outcome
            decision = self._tables.failed(name, given.events, given.seen.tables[name], error)
        self._keep_aside(given, [decision])
        return described(decision)

    def _prepared(self, decision: Decision, given: _Profiled, *, again: bool = False) -> Exception | None:
        """Prepare the table. Returns the error that prevented it, or None."""
        name, replay = decision.name, self._first or again
        return self._tables.tried(
            name, lambda: self._tables[name].prepare(decision, given.batch, self._app_id, replay=replay)
        )

    def _written(
        self, decision: Decision, given: _Profiled, *, again: bool = False
    ) -> TableResult | Exception:
        """Write the table's rows. Returns the result, or the error that prevented it."""
        name, replay = decision.name, self._first or again
        return self._tables.tried(
            name, lambda: self._tables[name].write(decision, given.batch, self._app_id, replay=replay)
        )

    def _close_corrected(self, raw: DataFrame, batch: Batch) -> int:
        """Close quarantined lines of files that the batch has in another form, and return how many."""
        files = self._spec.source.files
        if self._again or files is None or files.format not in ("records", "csv", "json"):
            return 0
        if self._quarantine is not None and not self._quarantine.may_correct(batch):
            return 0
        return quarantine.close_corrected(raw, self._checkpoint)

    # -- record -----------------------------------------------------------------------------------

    def _record(
        self,
        parts: Sequence[_Part],
        read: BatchRead,
        results: Mapping[TableName, TableResult],
        batch: Batch,
    ) -> BatchResult:
        """Add up the outcomes of the batch's records and write them to the audit."""
        memory = _remembered(self._memory, parts, read)
        for part in parts:
            by_spark = [each for each in part.decisions if each.plan and not each.in_columns]
            merged = [each.name for each in by_spark if each.name in self._tables]
            self._ahead.begin(self._tables[name].read_log for name in merged)
        overviews = {str(name): each.overview for name, each in read.tables.items()}
        tables = {each.source: each for each in self._placed(results.values(), overviews, memory)}
        for part in parts:
            overviews = {str(name): table for name, table in part.given.seen.tables.items()}
            tables |= {each.source: each for each in self._placed(part.written, overviews, memory)}
        tops = None if self._again else positions.tops(memory)
        rest = _of_nothing(read)
        for part in parts:
            rest += _rest(part.given.seen, part.decisions)
        restarted = next((part.given.restarted for part in parts if part.given.restarted), None)
        result = BatchResult(batch.batch_id, rest, tables, tops, restarted=restarted)
        # What the engine has read is all that there is: Spark must not have seen more or less in the rest.
        in_parts = sum(part.given.seen.records for part in parts)
        records = read.records + (read.others if read.topics else in_parts)
        require_accounted(result, records)
        told = bool(result.tables or result.rest.quarantined)
        if self._again:
            result = without_open(result)
        if told:
            kept = None if self._again else memory
            seconds = time.monotonic() - self._began
            about = (self._session, self._checkpoint, batch, result, kept, seconds)
            audit.keep(*about, not_before=self._not_before)
        faults.reach("after-audit")
        self._memory = memory
        self._every = 1 + records // _SORTED
        self._first = False
        self._learn(parts)
        return result

    def _learn(self, parts: Sequence[_Part]) -> None:
        """Let the engine learn from what Spark has applied."""
        if self._engine is None:
            return
        for part in parts:
            self._engine.learn(part.decisions, self._tables.mirrored_as, self._schemas)

    def _placed(
        self, written: Iterable[TableResult], seen: Mapping[str, TableOverview], memory: Memory
    ) -> Iterator[TableResult]:
        """Yield the results, each with the positions of its table's changes."""
        by: str = self._spec.order.by
        made = by == GIVEN
        before = positions.streamed({} if self._again else self._memory)
        for each in written:
            table = seen[each.source]
            logs = {part.log for part in table.parts if part.log is not None} if table.unanchored else ()
            snapshots = (positions.last_snapshot(memory, log) for log in logs)
            snapshot = max((at for at in snapshots if at is not None), default=None)
            found = reach(table.parts, before, given=made, snapshot=snapshot)
            aside = each.counts.quarantined + each.counts.refused
            if aside and aside + each.counts.no_row_change == each.counts.records:
                found = None  # what is kept aside is in no version yet
            yield replace(each, reach=found, gap=_gap(table.parts, made) if aside else None)

    # -- between batches --------------------------------------------------------------------------

    def forget(self) -> None:
        """Read all mirrors again before the next batch.

        This is needed when something else has written to them, or when a batch that is retried has written to
        some of them.
        """
        self._tables.forget()
        if self._engine is not None:
            self._engine.forget()
        self._first = True

    def collect_tombstones(self, *, had_all_at: datetime | None) -> int:
        """Delete tombstones that no event can need any more, and return how many.

        To be called between batches. A tombstone must be older than the retention, and its table must have no
        open quarantined records. Nor may there be any whose table is unknown and that may be of its topics: a
        record that waits for its schema may turn out to be older. In addition, one of two things must hold:

        - The tombstone lies below the committed position of every partition of its table's logs, except for
          quiet ones. All changes of the table must have come from known logs.
        - It was older than the retention when the source had nothing that is not applied by now, at
          ``had_all_at`` (None if no such moment is known). Whatever the source got later is later than the
          retention promises to wait for.
        """
        now = datetime.now(UTC)
        retention = timedelta(seconds=duration_seconds(self._spec.tombstones.retention))
        due = [
            name
            for name in self._tables.names
            if self._of_one(name, partial(self._has_tombstones, name, now - retention))
        ]
        if not due:
            return 0
        open_records = quarantine.open_counts(self._session, self._checkpoint)
        unknown = quarantine.topics_of_unknown(self._session, self._checkpoint) if "" in open_records else ()
        return sum(
            self._of_one(name, partial(self._collect, name, now, retention, had_all_at))
            for name in due
            if str(name) not in open_records
            and not positions.may_be_of(self._memory, self._logs.get(str(name)), unknown)
        )

    def _of_one(self, name: TableName, step: Callable[[], int]) -> int:
        """Do a step of the collection. If it fails, this table alone keeps its tombstones until the next."""
        done = self._tables.attempted(name, step)
        if isinstance(done, Exception):
            self._warn(
                f"the tombstones of {name} could not be collected, which is tried again later: "
                f"{cause_of(done)}"
            )
            return 0
        return done

    def _has_tombstones(self, name: TableName, before: datetime) -> bool:
        """Return whether a table may have tombstones to collect. One that cannot be opened is held anyway."""
        opened = self._tables.attempted(name, lambda: self._tables[name].require_readable())
        return not isinstance(opened, Exception) and self._tables[name].has_tombstones(before)

    def _collect(
        self, name: TableName, now: datetime, retention: timedelta, had_all_at: datetime | None
    ) -> int:
        table = self._tables[name]
        known = positions.of_logs(self._memory, self._logs.get(str(name)) or ())
        passed = positions.committed_by_all(known, now, retention)
        collected = 0 if had_all_at is None else table.collect_tombstones(had_all_at - retention, None)
        if not passed:  # nothing is below that
            return collected
        return collected + table.collect_tombstones(now - retention, passed)


def _both(some: frozenset[str] | None, others: frozenset[str] | None) -> frozenset[str] | None:
    """Return the logs of both, or None if those of one of them are unknown."""
    return None if some is None or others is None else some | others


def _remembered(before: Memory, parts: Sequence[_Part], read: BatchRead) -> Memory:
    """Return what to remember of the streams after a batch, each part of which has looked at its own."""
    found = {**before, **read.memory}
    for part in parts:
        found |= {stream: place for stream, place in part.given.memory.items() if place != before.get(stream)}
    return found


def _of_nothing(read: BatchRead) -> Counts:
    """Count the records that the engine has read and that belong to no table."""
    tombstones, bad = read.tombstones, read.unreadable
    records = tombstones + bad
    return Counts(records=records, no_row_change=tombstones, quarantined=bad, records_in_columns=records)


def _app_id(pipeline: CdcPipeline, query_id: str) -> str:
    """Return the application under which a query's batches are transactions of the mirrors."""
    return f"lakemirror/{pipeline.name}/{query_id}"


def _gap(parts: Sequence[Part], given: bool) -> str:
    """Return a position below all changes of a table in a batch."""
    found = reach(parts, lambda stream: None, given=given)
    return BEGIN if found is None else found.first


def _rest(seen: Overview, decisions: Sequence[Decision]) -> Counts:
    """Count the records of a batch that belong to no table of the pipeline."""
    mirrored = [decision for decision in decisions if not decision.left_out]
    tombstones = sum(decision.overview.tombstone_records for decision in mirrored)
    none = seen.ignored - tombstones + sum(d.records for d in decisions if d.left_out)
    aside = seen.bad + seen.held
    counts = {"no_row_change": none, "quarantined": aside, "duplicates": seen.again}
    return Counts(records=sum(counts.values()), **counts)
