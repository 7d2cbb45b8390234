"""One table of a pipeline: decide what a batch does to it, then do it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property, reduce
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from lakemirror.api import CdcPipeline, Table
from lakemirror.driver import faults
from lakemirror.driver.apply import bounds, moves, tombstones
from lakemirror.driver.apply.append import append
from lakemirror.driver.apply.reduce import anchor, reduce_events
from lakemirror.driver.apply.scd1 import Default, MergeCounts, Scd1, T, merge
from lakemirror.driver.apply.tombstones import Summary, Tombstones
from lakemirror.driver.decode import Reading, Version, decode
from lakemirror.driver.drift import DriftPlan, SchemaVersion, plan_drift
from lakemirror.driver.errors import BatchMismatch
from lakemirror.driver.mirror import (
    DEFAULTS_PROPERTY,
    KEY_PROPERTY,
    MODE_PROPERTY,
    SOURCE_PROPERTY,
    Mirror,
    TableName,
    locate,
    owner_of,
)
from lakemirror.driver.overview import Group, TableOverview
from lakemirror.driver.results import Drift, TableResult
from lakemirror.driver.sources.base import Batch
from lakemirror.driver.values.connect import Field, parse_envelope, parse_key, schemaless
from lakemirror.driver.values.decode import RowDecoder
from lakemirror.driver.values.inference import infer, resolve

GAPS_PROPERTY = "lakemirror.gaps"


class Refused(Exception):
    """A table that cannot be mirrored as it is asked for; its records go to quarantine and the others go
    on.
    """


@dataclass(frozen=True)
class Schema:
    """The schema of a group of events: the source's columns, their types in Spark, and the names of key
    columns.
    """

    group: Group
    fields: Sequence[Field]
    types: Mapping[str, DataType]
    key: Sequence[str]


@dataclass
class Decision:
    """What a batch is going to do to one table; made without writing anything."""

    name: TableName
    table: TableApplier
    events: int = 0
    left_out: bool = False
    refused: str | None = None
    overview: TableOverview | None = None
    plan: DriftPlan | None = None
    reading: Reading | None = None
    frame: DataFrame | None = None
    state: DataFrame | None = None
    images: DataFrame | None = None
    counts: StateCounts | None = None
    since: Mapping[str, bytes] = field(default_factory=dict)
    drift: tuple[Drift, ...] = ()

    @property
    def bad(self) -> int:
        """Records of the table that go to quarantine."""
        if self.refused:
            return self.events
        return self.counts.bad if self.counts else 0

    def example(self) -> str:
        """The first reason why a record is bad."""
        if self.refused:
            return f"table {self.name}: {self.refused}"
        row = self.bad_records().first()
        assert row is not None
        return f"{row['topic']}/{row['partition']}/{row['offset']}: {row['reason']}"

    def bad_records(self) -> DataFrame:
        """source, reason, topic, partition, offset of each bad record."""
        assert self.frame is not None
        reason = F.lit(self.refused) if self.refused else F.col("problem")
        return self.frame.where(reason.isNotNull()).select(
            F.lit(str(self.name)).alias("source"), reason.alias("reason"), "topic", "partition", "offset"
        )

    def prepare(self, batch: Batch, app_id: str, *, replay: bool) -> None:
        """Write what has to stand before the rows do: the table itself, and its tombstones.

        ``replay``: the batch may have been written before.
        """
        if self.refused is None:
            self.table.prepare(self, batch, app_id, replay=replay)

    def commit(self, batch: Batch, app_id: str, *, replay: bool) -> TableResult:
        """Write the rows."""
        return self.table.commit(self, batch, app_id, replay=replay)


@dataclass(frozen=True)
class StateCounts:
    """What a materialised state frame holds. ``bad`` and ``events`` count records, the others keys."""

    keys: int = 0
    events: int = 0
    bad: int = 0
    duplicates: int = 0
    live: int = 0
    deletes: int = 0
    stale: int = 0
    known: int = 0
    expected: int = 0
    bounds: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    first_seq: bytes | None = None
    last_delete: bytes | None = None


class TableApplier:
    """Applies batches to the mirror of one source table. Keeps what it knows of the mirror between
    batches.
    """

    def __init__(
        self, spark: SparkSession, pipeline: CdcPipeline, name: TableName, reported: Sequence[Drift]
    ) -> None:
        self._spark = spark
        self._spec = pipeline.spec
        self.name = name
        self._source = owner_of(pipeline.name, name)
        self._settings: Table | None = pipeline.spec.table_settings(str(name))
        self._schemas: dict[tuple[int | None, int | None], Schema] = {}
        self._reported = {(each.column, each.change, each.to_type): each for each in reported}

    @cached_property
    def mirror(self) -> Mirror:
        assert self._settings is not None
        assert self._settings.target is not None
        return Mirror(self._spark, locate(self._settings.target, self.name))

    @cached_property
    def tombstones(self) -> Tombstones:
        return Tombstones(self._spark, self.mirror)

    # -- decide ---------------------------------------------------------------------------------

    def decide(self, events: DataFrame, seen: TableOverview, documents: Mapping[int, str]) -> Decision:
        """What to do with the table's part of the batch; materialises its state. Writes nothing.

        ``documents``: every schema document that the batch refers to, by id.
        """
        decision = Decision(self.name, self, seen.events + seen.truncates, overview=seen)
        if self._settings is None or self._settings.suspend:
            decision.left_out = True
            return decision
        mine = _of(events, self.name)
        try:
            self._decide(decision, mine, seen, documents)
        except Refused as refusal:
            decision.refused = str(refusal)
            decision.frame = mine
        return decision

    def _decide(
        self, decision: Decision, mine: DataFrame, seen: TableOverview, documents: Mapping[int, str]
    ) -> None:
        changes = mine.where("kind = 'change'")
        versions = self._versions(changes, seen, documents)
        key = self._key(seen, versions)
        self._check_target(key)
        names = self._names(versions)
        decision.plan, decision.drift = self._drift(seen, versions, names)
        decision.reading = self._reading(decision, versions, names, key)
        if not versions:
            decision.counts = StateCounts()
            return
        decision.frame = decode(changes, decision.reading)
        if not key:
            decision.counts = _count_events(decision.frame)
            return
        self._reduce(decision, seen)

    def _versions(
        self, changes: DataFrame, seen: TableOverview, documents: Mapping[int, str]
    ) -> list[Schema]:
        """The schemas of the batch, oldest first."""
        found = []
        for identity, group in sorted(seen.groups.items(), key=lambda item: item[1].first_seq or b""):
            schema = self._schemas.get(identity)
            if schema is None or group.schema_id is None:
                schema = self._schemas[identity] = self._parse(changes, group, documents)
            found.append(replace(schema, group=group))
        return found

    def _parse(self, changes: DataFrame, group: Group, documents: Mapping[int, str]) -> Schema:
        if group.schema_id is not None:
            fields: Sequence[Field] = parse_envelope(documents[group.schema_id])
            types: Mapping[str, DataType] = RowDecoder(fields).types
        else:
            types = self._inferred(changes)
            fields = [schemaless(name) for name in types]
        if group.key_schema_id is not None:
            return Schema(
                group, fields, types, [each.name for each in parse_key(documents[group.key_schema_id])]
            )
        keys = (
            changes.where("key_text IS NOT NULL AND key_schema_id IS NULL")
            .select(F.json_object_keys("key_text"))
            .first()
        )
        return Schema(group, fields, types, list(keys[0] or ()) if keys is not None else ())

    def _inferred(self, changes: DataFrame) -> dict[str, DataType]:
        """Types of columns without schema: the mirror's, then those of the manifest, then what the values
        say.
        """
        texts = F.coalesce("row_text", "before_text").alias("text")
        images = changes.where("schema_id IS NULL").select("table", texts)
        columns = self._settings.columns if self._settings else None
        rename = (columns and columns.rename) or {}
        back = {mirror: source for source, mirror in rename.items()}
        existing = {back.get(name, name): kind for name, kind in (self.mirror.columns or {}).items()}
        found = resolve(infer(images).get(self.name.table, {}), existing, self._declared())
        return {**{name: kind for name, kind in existing.items() if name != self._soft}, **found}

    def _declared(self) -> dict[str, DataType]:
        """Types that the manifest gives, by source name."""
        columns = self._settings.columns if self._settings else None
        return {name: _parsed(text) for name, text in ((columns and columns.types) or {}).items()}

    def _key(self, seen: TableOverview, versions: Sequence[Schema]) -> list[str]:
        """The mirror's key columns; empty where the table is only appended to."""
        assert self._settings is not None
        columns = self._settings.columns
        rename = (columns and columns.rename) or {}
        if self._settings.primary_key:
            names = list(self._settings.primary_key)
        elif KEY_PROPERTY in (self.mirror.properties if self.mirror.exists else {}):
            return list(json.loads(self.mirror.properties[KEY_PROPERTY]))
        else:
            names = next((list(each.key) for each in versions if each.key), [])
        if self._settings.mode == "append":
            return []
        if (
            not names
            and not self.mirror.exists
            and (listed := self._spec.listed(str(self.name)))
            and listed.mode == "scd1"
        ):
            raise Refused(
                f"mode scd1 needs a key, but records of {self.name} have none: "
                f"set tables[{listed.source}].primaryKey, or mode: append"
            )
        return [rename.get(name, name) for name in names]

    def _check_target(self, key: Sequence[str]) -> None:
        """A mirror belongs to one source table of one pipeline."""
        if not self.mirror.exists:
            return
        owner = self.mirror.properties.get(SOURCE_PROPERTY)
        if owner is None:
            raise Refused(
                f"the target {self.mirror.location} is a table that Lakemirror did not make: choose "
                "another target"
            )
        if owner != self._source:
            raise Refused(
                f"the target {self.mirror.location} is the mirror of {owner}: choose another target"
            )
        self._check_form(key)

    def _check_form(self, key: Sequence[str]) -> None:
        """Mode and key of a mirror cannot change: its rows would mean something else."""
        mode = self.mirror.properties.get(MODE_PROPERTY)
        wanted = "scd1" if key else "append"
        if mode != wanted:
            raise Refused(
                f"the target {self.mirror.location} was made with mode {mode}, and {wanted} is asked for "
                "now: choose another target"
            )
        stored = json.loads(self.mirror.properties.get(KEY_PROPERTY, "null"))
        if key and stored is not None and set(stored) != set(key):
            raise Refused(
                f"the target {self.mirror.location} has the key {', '.join(stored)}, and {', '.join(key)} is "
                "asked for now: choose another target"
            )

    def _names(self, versions: Sequence[Schema]) -> dict[str, str]:
        """Source column -> mirror column, without those that are left out."""
        columns = self._settings.columns if self._settings else None
        rename = (columns and columns.rename) or {}
        names = [each.name for schema in versions for each in schema.fields]
        return {name: rename.get(name, name) for name in names if columns is None or columns.keeps(name)}

    def _drift(
        self,
        seen: TableOverview,
        versions: Sequence[Schema],
        names: Mapping[str, str],
    ) -> tuple[DriftPlan, tuple[Drift, ...]]:
        declared = self._declared()
        schemas = []
        for each in versions:
            types = {
                names[name]: declared.get(name, kind) for name, kind in each.types.items() if name in names
            }
            schemas.append(SchemaVersion(types, each.group.since, each.group.schema_id is not None))
        existing = dict(self.mirror.columns or {}) if self.mirror.exists else None
        soft = self._soft
        if existing is not None and soft is not None:
            existing.pop(soft, None)
        plan = plan_drift(str(self.name), existing, schemas, self._spec.schema_evolution)
        fresh = tuple(
            each for each in plan.drift if (each.column, each.change, each.to_type) not in self._reported
        )
        return plan, fresh

    @property
    def _soft(self) -> str | None:
        assert self._settings is not None
        delete = self._settings.delete
        return delete.column if delete is not None and delete.type == "soft" else None

    def _reading(
        self,
        decision: Decision,
        versions: Sequence[Schema],
        names: Mapping[str, str],
        key: Sequence[str],
    ) -> Reading:
        assert decision.plan is not None
        assert self._settings is not None
        plan = decision.plan
        decision.since = self._defaults_since(versions, names, plan)
        read = []
        for schema, refused in zip(versions, plan.refused, strict=True):
            why = {
                names[name]: _changed(plan.columns[names[name]], kind)
                for name, kind in schema.types.items()
                if names.get(name) in refused
            }
            stored = {name: mirror for name, mirror in names.items() if mirror in plan.columns}
            read.append(
                Version(schema.group.schema_id, [each for each in schema.fields if each.name in stored], why)
            )
        return Reading(
            columns=plan.columns,
            names={name: mirror for name, mirror in names.items() if mirror in plan.columns},
            key=key,
            versions=_distinct(read),
            defaults=self._defaults(versions, names, plan, decision.since),
            declared=bool(self._settings.primary_key),
            images=not key,
            unrepresentable=self._spec.on_unrepresentable,
        )

    def _defaults_since(
        self,
        versions: Sequence[Schema],
        names: Mapping[str, str],
        plan: DriftPlan,
    ) -> dict[str, bytes]:
        """For each column with a default: the sequence of the first event that had it, as far as is known."""
        known = {name: bytes.fromhex(each["since"]) for name, each in self._stored_defaults().items()}
        for schema in versions:
            first = schema.group.first_seq
            for each in schema.fields:
                name = names.get(each.name)
                if (
                    name is not None
                    and name in plan.columns
                    and each.default is not None
                    and first is not None
                ):
                    known[name] = min(known.get(name, first), first)
        return known

    def _stored_defaults(self) -> dict[str, dict[str, Any]]:
        text = self.mirror.properties.get(DEFAULTS_PROPERTY) if self.mirror.exists else None
        return dict(json.loads(text)) if text else {}

    def _defaults(
        self,
        versions: Sequence[Schema],
        names: Mapping[str, str],
        plan: DriftPlan,
        since: Mapping[str, bytes],
    ) -> dict[str, Default]:
        """Columns with a default, as values that older rows have."""
        found = {name: Field(name, **stored["field"]) for name, stored in self._stored_defaults().items()}
        for schema in versions:
            for each in schema.fields:
                name = names.get(each.name)
                if name is not None and each.default is not None:
                    found[name] = replace(each, name=name)
        return {
            name: Default(RowDecoder([each], {name: plan.columns[name]}).default(name), since[name])
            for name, each in found.items()
            if name in since and name in plan.columns
        }

    # -- reduce ---------------------------------------------------------------------------------

    def _reduce(self, decision: Decision, seen: TableOverview) -> None:
        assert decision.frame is not None
        assert decision.reading is not None
        frame = decision.frame
        if seen.snapshot and seen.unanchored:
            frame = anchor(frame)
        summary = self.tombstones.summary if self.mirror.exists else Summary()
        floor = max(filter(None, (summary.floor, seen.floor)), default=None)
        tracked = self._tracked(decision)
        state = reduce_events(frame, tracked=tracked, floor=floor, soft=self._soft is not None)
        deleted = None if self._outlived(seen, summary, tracked) else self.tombstones.deleted()
        if deleted is not None:
            state = tombstones.gate(state, deleted, tracked=tracked)
        else:
            state = state.withColumns({"known": F.lit(False), "stale": F.lit(False)})
        if tracked and (seen.moves or summary.moved):
            decision.images = self._images(decision, frame, deleted, tracked, floor).localCheckpoint()
            inherited = moves.patches(decision.images, tracked)
            marks = state.select("key", "known", "stale")
            state = moves.inherit(state.drop("known", "stale"), inherited, tracked)
            state = state.join(marks, "key", "left").na.fill(False, ["known", "stale"])
        decision.state = state.localCheckpoint(eager=False)  # MERGE reads it twice
        decision.counts = self._count(decision)

    def _outlived(self, seen: TableOverview, summary: Summary, tracked: Sequence[str]) -> bool:
        """Whether every event is newer than every tombstone, so that none need be read: the common case.

        Not so where sequences do not tell all: snapshot rows, transactions open at the snapshot, and values
        that a tombstone keeps from being filled.
        """
        if summary.newest is None:
            return True
        if tracked or seen.snapshot or seen.unanchored:
            return False
        first = min((group.first_seq for group in seen.groups.values() if group.first_seq), default=b"")
        return first > summary.newest

    def _tracked(self, decision: Decision) -> list[str]:
        """Columns whose values may be older than their row: none, until the source leaves out a value
        once.
        """
        assert decision.overview is not None
        assert decision.reading is not None
        stored = self.mirror.exists and self.mirror.properties.get(GAPS_PROPERTY) == "true"
        if not (stored or decision.overview.gaps or decision.overview.moves):
            return []
        return [
            name
            for name, kind in decision.reading.columns.items()
            if name not in decision.reading.key and _may_be_left_out(kind)
        ]

    def _images(
        self,
        decision: Decision,
        frame: DataFrame,
        deleted: DataFrame | None,
        tracked: Sequence[str],
        floor: bytes | None,
    ) -> DataFrame:
        reading = decision.reading
        assert reading is not None
        key_type = StructType([StructField(name, reading.columns[name]) for name in reading.key])
        row_type = StructType([StructField(name, reading.columns[name]) for name in tracked])
        stored = self.tombstones.moved() if self.mirror.exists else None
        known = None
        if stored is not None:
            known = stored.select(
                F.from_json("key", key_type).alias("key"),
                "seq",
                F.from_json("new_key", key_type).alias("new_key"),
                F.from_json("image", row_type).alias("row"),
                "seqs",
            )
        rows = self._stored_rows(reading, tracked) if self.mirror.exists else None
        gone = None
        if deleted is not None:
            gone = deleted.select(F.from_json("key", key_type).alias("key"), "seq")
        good = frame.where("key IS NOT NULL")
        return moves.images(good, known, rows, gone, tracked=tracked, floor=floor)

    def _stored_rows(self, reading: Reading, tracked: Sequence[str]) -> DataFrame:
        """The mirror's live rows: key, row of tracked columns, seq, seqs."""
        present = self.mirror.columns or {}
        rows = self.mirror.frame().alias("t").where("__op <> 'd'")
        return rows.select(
            _key_of(reading).alias("key"),
            F.struct(
                *[
                    (T(name) if name in present else F.lit(None)).cast(reading.columns[name]).alias(name)
                    for name in tracked
                ]
            ).alias("row"),
            T("__seq").alias("seq"),
            T("__column_seq").alias("seqs"),
        )

    def _count(self, decision: Decision) -> StateCounts:
        assert decision.state is not None
        assert decision.reading is not None
        good = F.col("key").isNotNull()
        types = decision.reading.columns
        bounded = [name for name in decision.reading.key if bounds.has_bounds(types[name])]
        ends = [end for name in bounded for end in bounds.ends(F.when(good, F.col("key")[name]), types[name])]
        live = good & F.col("op").isin("c", "u", "r")
        row = decision.state.agg(
            F.count_if(good & (F.col("op") != "p")),
            F.coalesce(F.sum(F.when(good, F.col("events"))), F.lit(0)),
            F.coalesce(F.sum(F.when(~good, F.col("events"))), F.lit(0)),
            F.coalesce(F.sum(F.when(good, F.col("duplicates"))), F.lit(0)),
            F.count_if(live),
            F.count_if(good & (F.col("op") == "d")),
            F.coalesce(F.sum(F.when(good & F.col("stale"), F.col("events"))), F.lit(0)),
            F.count_if(good & F.col("known")),
            F.count_if(good & (F.col("op") != "p") & ~((F.col("op") == "d") & F.col("born"))),
            F.min(F.when(live, F.col("seq"))),
            F.max(F.when(good & (F.col("op") == "d"), F.col("seq"))),
            *ends,
        ).first()
        assert row is not None
        found = {name: (row[11 + 2 * i], row[12 + 2 * i]) for i, name in enumerate(bounded)}
        keys, events, bad, duplicates, live_keys, deletes, stale, known, expected, first, last = row[:11]
        return StateCounts(
            keys,
            events,
            bad,
            duplicates,
            live_keys,
            deletes,
            stale,
            known,
            expected,
            found,
            first_seq=_bytes(first),
            last_delete=_bytes(last),
        )

    # -- commit ---------------------------------------------------------------------------------

    def prepare(self, decision: Decision, batch: Batch, app_id: str, *, replay: bool) -> None:
        """Create or alter the table and write its tombstones, unless it has this batch already."""
        if replay and self._has(batch, app_id):
            return
        self._prepare(decision)
        if decision.reading is not None and decision.reading.key:
            self._write_tombstones(decision, batch)
        faults.reach("after-tombstones")

    def _has(self, batch: Batch, app_id: str) -> bool:
        if not self.mirror.exists:
            return False
        done = self.mirror.applied(app_id)
        return done is not None and done >= batch.batch_id

    def commit(self, decision: Decision, batch: Batch, app_id: str, *, replay: bool) -> TableResult:
        """Write the rows; a table that has this batch already is left as it is."""
        result = TableResult(
            str(self.name),
            str(self.mirror.location),
            events=decision.events,
            tombstone_records=decision.overview.tombstone_records if decision.overview else 0,
            quarantined=decision.bad,
            last_event_time=decision.overview.last_event_time if decision.overview else None,
            drift=decision.drift,
        )
        if decision.refused:
            return replace(result, error=decision.refused)
        if replay and self._has(batch, app_id):
            return self._already(decision, batch, result)
        before = self.mirror.version
        counts = self._write(decision)
        faults.reach("after-rows")
        self._reported.update({(each.column, each.change, each.to_type): each for each in decision.drift})
        return self._counted(result, decision, counts, before=before, after=self.mirror.version)

    def _counted(
        self,
        result: TableResult,
        decision: Decision,
        counts: MergeCounts,
        *,
        before: int | None,
        after: int | None,
    ) -> TableResult:
        """The result with what the commit between two versions did."""
        stale, duplicates, late = self._skipped(decision, counts, before)
        keyed = decision.reading is not None and decision.reading.key
        return replace(
            result,
            version=after,
            inserted=counts.inserted,
            updated=counts.updated,
            deleted=counts.deleted,
            stale=stale,
            duplicates=duplicates,
            late_after_collection=late,
            tombstones_retained=self.tombstones.summary.retained if keyed else 0,
        )

    def _already(self, decision: Decision, batch: Batch, result: TableResult) -> TableResult:
        """The result of a batch that this table was given before."""
        commits = self.mirror.delta().history(50).where("userMetadata IS NOT NULL")
        for row in commits.select("version", "userMetadata", "operationMetrics").collect():
            note = json.loads(row["userMetadata"])
            if note.get("query") != batch.query_id or note.get("batch") != batch.batch_id:
                continue
            if note.get("extent") != json.loads(json.dumps(batch.extent)):
                raise BatchMismatch(
                    f"table {self.name} has batch {batch.batch_id} already, with another range of input: "
                    f"it was {note.get('extent')}, "
                    f"now {batch.extent}. The checkpoint is not the one that wrote {self.mirror.location}: "
                    "restore it, or start with a new one."
                )
            metrics = row["operationMetrics"] or {}
            counts = MergeCounts(
                *[int(metrics.get(f"numTargetRows{what}", 0)) for what in ("Inserted", "Updated", "Deleted")]
            )
            version = int(row["version"])
            return self._counted(result, decision, counts, before=version - 1, after=version)
        return replace(result, version=self.mirror.version)

    def _prepare(self, decision: Decision) -> None:
        """Create or alter the table; a commit of metadata only, that may be repeated."""
        assert decision.plan is not None
        assert decision.reading is not None
        properties = {}
        if decision.since:
            properties[DEFAULTS_PROPERTY] = self._defaults_text(decision)
        if decision.state is not None and self._tracked(decision):
            properties[GAPS_PROPERTY] = "true"
        if self.mirror.exists:
            self.mirror.alter(decision.plan.add, decision.plan.alter, properties)
            return
        soft = {self._soft: TimestampType()} if self._soft and decision.reading.key else {}
        own = {
            SOURCE_PROPERTY: self._source,
            KEY_PROPERTY: json.dumps(list(decision.reading.key)),
            MODE_PROPERTY: "scd1" if decision.reading.key else "append",
        }
        self.mirror.create({**decision.plan.columns, **soft}, {**own, **properties}, decision.reading.key)

    def _defaults_text(self, decision: Decision) -> str:
        assert decision.reading is not None
        stored = self._stored_defaults()
        for version in decision.reading.versions:
            for each in version.fields:
                name = decision.reading.names[each.name]
                if each.default is not None and name in decision.since:
                    stored[name] = {"field": _described(each)}
        for name, seq in decision.since.items():
            if name in stored:
                stored[name]["since"] = seq.hex()
        return json.dumps(stored, sort_keys=True)

    def _write(self, decision: Decision) -> MergeCounts:
        assert decision.reading is not None
        assert decision.overview is not None
        reading, seen = decision.reading, decision.overview
        if not reading.key:
            if decision.frame is None:
                return MergeCounts(0, 0, 0)
            return append(self.mirror, decision.frame.where("problem IS NULL"), reading.columns)
        state = decision.state if decision.state is not None else self._no_state(reading)
        counts = decision.counts or StateCounts()
        fills = {
            name: each
            for name, each in reading.defaults.items()
            if decision.plan and name in decision.plan.add
        }
        tracked = self._tracked(decision)
        if not counts.keys and not tracked and seen.floor is None and not fills:
            return MergeCounts(0, 0, 0)
        plan = Scd1(
            columns=reading.columns,
            key=reading.key,
            tracked=tracked,
            soft=self._soft,
            floor=seen.floor,
            fills=fills,
            snapshot=seen.snapshot,
            unanchored=seen.unanchored,
            bounds=() if seen.floor is not None or fills else self._bounds(reading, counts),
        )
        source = state.where("key IS NOT NULL" if tracked else "key IS NOT NULL AND op <> 'p'")
        return merge(self.mirror, source, plan)

    def _no_state(self, reading: Reading) -> DataFrame:
        """An empty state frame, for a batch that only truncates."""
        key = ", ".join(f"`{name}`: {reading.columns[name].simpleString()}" for name in reading.key)
        row = ", ".join(f"`{name}`: {kind.simpleString()}" for name, kind in reading.columns.items())
        return self._spark.createDataFrame(
            [],
            f"key STRUCT<{key}>, op STRING, seq BINARY, unanchored BOOLEAN, event_time TIMESTAMP, topic "
            "STRING, partition INT, "
            f"offset BIGINT, row STRUCT<{row}>, seqs MAP<STRING, BINARY>, texts MAP<STRING, STRING>, "
            "events BIGINT, duplicates BIGINT, row_seq BINARY, born BOOLEAN, "
            "known BOOLEAN, stale BOOLEAN",
        )

    def _bounds(self, reading: Reading, counts: StateCounts) -> list[Column]:
        """Limits of the batch's keys, so that files outside of them are not read."""
        return [
            bounds.within(T(name), reading.columns[name], low, high)
            for name, (low, high) in counts.bounds.items()
            if low is not None
        ]

    def _write_tombstones(self, decision: Decision, batch: Batch) -> None:
        seen, counts, state = decision.overview, decision.counts, decision.state
        assert seen is not None
        assert counts is not None
        facts = []
        soft = self._soft is not None
        deletes = 0
        if state is not None and counts.deletes > counts.known and not soft:
            gone = state.where("key IS NOT NULL AND op = 'd' AND NOT known")
            deletes = counts.deletes - counts.known
            place = {name: F.col(name) for name in ("seq", "event_time", "topic", "partition", "offset")}
            facts.append(
                tombstones.fact(gone, "deleted", batch=batch.batch_id, key=F.to_json("key"), **place)
            )
        if seen.floor is not None:
            facts.append(
                tombstones.fact(
                    self._spark.range(1), "truncated", batch=batch.batch_id, seq=F.lit(seen.floor)
                )
            )
        moved = 0
        if decision.images is not None:
            moved = decision.images.count()
            if moved:
                facts.append(
                    tombstones.fact(
                        decision.images,
                        "moved",
                        batch=batch.batch_id,
                        key=F.to_json("key"),
                        seq=F.col("seq"),
                        new_key=F.to_json("new_key"),
                        image=F.to_json("row"),
                        seqs=F.col("seqs"),
                    )
                )
        if facts:
            summary = tombstones.raised(
                self.tombstones.summary,
                deletes=deletes,
                last_delete=counts.last_delete,
                moved=moved,
                floor=seen.floor,
            )
            self.tombstones.append(reduce(DataFrame.unionByName, facts), summary)

    def _skipped(self, decision: Decision, counts: MergeCounts, before: int | None) -> tuple[int, int, int]:
        """(stale, duplicates, late after collection), in events. Only asked of the table when a key was
        skipped.
        """
        state, held = decision.state, decision.counts
        if held is None or state is None:
            return 0, held.duplicates if held else 0, 0
        late = self._late(decision, held)
        changed = counts.inserted + counts.updated + counts.deleted
        truncated = decision.overview is not None and decision.overview.floor is not None
        if before is None or (changed >= held.expected and not truncated):
            return held.stale, held.duplicates, late
        reading = decision.reading
        assert reading is not None
        stored = self._stored_seqs(reading, before)
        compared = state.where("key IS NOT NULL AND op <> 'p'").join(stored, "key", "left")
        same = (F.col("stored") == F.col("seq")) | (F.col("known") & F.col("stored").isNull())
        older = F.col("stored") > F.col("seq")
        row = compared.agg(
            F.coalesce(F.sum(F.when(older, F.col("events") - F.col("duplicates"))), F.lit(0)),
            F.count_if(same),
            F.coalesce(F.sum(F.when(same, F.col("events") - F.col("duplicates") - 1)), F.lit(0)),
        ).first()
        assert row is not None
        return held.stale + row[0] + row[2], held.duplicates + row[1], late

    def _late(self, decision: Decision, held: StateCounts) -> int:
        """Events older than a collected tombstone that wrote a row after all."""
        collected = self.tombstones.summary.collected
        if (
            collected is None
            or held.first_seq is None
            or held.first_seq > collected
            or decision.state is None
        ):
            return 0
        live = decision.state.where("key IS NOT NULL AND op IN ('c', 'u', 'r')").where(
            F.col("seq") <= F.lit(collected)
        )
        assert decision.reading is not None
        return live.join(self._stored_seqs(decision.reading), "key").where("stored = seq").count()

    def _stored_seqs(self, reading: Reading, version: int | None = None) -> DataFrame:
        """The sequence of each row of the mirror, now or at a version: key, stored."""
        rows = self.mirror.frame(version).alias("t")
        return rows.select(_key_of(reading).alias("key"), T("__seq").alias("stored"))

    def collect_tombstones(self, before: datetime, below: bytes | None) -> int:
        """Forget tombstones that are old enough; returns how many."""
        if self._settings is None or self._settings.suspend or not self.mirror.exists:
            return 0
        properties = self.mirror.properties
        if properties.get(MODE_PROPERTY) != "scd1" or properties.get(SOURCE_PROPERTY) != self._source:
            return 0
        return self.tombstones.collect(before, below)


def _key_of(reading: Reading) -> Column:
    """The key of a stored row, as the state has it."""
    return F.struct(*[T(name).cast(reading.columns[name]).alias(name) for name in reading.key])


def _of(events: DataFrame, name: TableName) -> DataFrame:
    """The events of one table."""
    return events.where(
        F.col("database").eqNullSafe(F.lit(name.database))
        & F.col("schema").eqNullSafe(F.lit(name.schema))
        & (F.col("table") == name.table)
        & F.col("kind").isin("change", "truncate")
    )


def _distinct(versions: Sequence[Version]) -> list[Version]:
    """One version a schema; the schemas of keys may differ within it."""
    found: dict[int | None, Version] = {}
    for version in versions:
        found.setdefault(version.schema_id, version)
    return list(found.values())


def _count_events(frame: DataFrame) -> StateCounts:
    row = frame.agg(F.count_if(F.col("problem").isNull()), F.count_if(F.col("problem").isNotNull())).first()
    assert row is not None
    return StateCounts(events=row[0], bad=row[1])


def _changed(before: DataType, after: DataType) -> str:
    return f"its type changed from {before.simpleString()} to {after.simpleString()}"


def _described(each: Field) -> dict[str, Any]:
    """What a default needs of its field, as JSON."""
    return {
        "connect_type": each.connect_type,
        "semantic_name": each.semantic_name,
        "parameters": dict(each.parameters),
        "default": each.default,
    }


def _parsed(ddl: str) -> DataType:
    return DataType.fromDDL(ddl)


def _may_be_left_out(kind: DataType) -> bool:
    """PostgreSQL leaves out large values only: text, bytes, arrays and the like."""
    return isinstance(kind, (StringType, BinaryType, ArrayType, MapType, StructType))


def _bytes(value: bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)
