"""One source table of a pipeline and its mirror.

This is what the manifest says about the table, and what is stored in Delta.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from lakemirror.api import CdcPipeline, Table
from lakemirror.api.tables import Mode, OwnColumn, groups_of
from lakemirror.driver.codes import OWN_TOPICS, Op
from lakemirror.driver.kept_property import kept_property
from lakemirror.driver.orders import NO_ORDERS, Fact, Orders, kind_of
from lakemirror.driver.parse import computed, condition
from lakemirror.driver.parse.computed import Computed
from lakemirror.driver.parse.condition import Condition
from lakemirror.driver.parse.decode import Reading
from lakemirror.driver.plan import selection
from lakemirror.driver.plan.lives import Life, Lives, Log, from_text
from lakemirror.driver.plan.names import check_location
from lakemirror.driver.plan.possession import Possession
from lakemirror.driver.plan.selection import Selection
from lakemirror.driver.profile.epochs import Partition
from lakemirror.driver.profile.overview import TableOverview
from lakemirror.driver.results import Drift, DriftAction
from lakemirror.driver.rules.orders import Kind
from lakemirror.driver.sequence import GIVEN, as_bytes, beginning_of
from lakemirror.driver.tables.columns import SHARD, T, of_shard
from lakemirror.driver.tables.delta import unlimited
from lakemirror.driver.tables.mirror import (
    COLUMNS_PROPERTY,
    GAPS_PROPERTY,
    KEY_PROPERTY,
    ORDERS_PROPERTY,
    RENAMING_PROPERTY,
    SELECTION_PROPERTY,
    SENT_PROPERTY,
    SHARD_PROPERTY,
    TOMBSTONES_PROPERTY,
    TOPICS_PROPERTY,
    Mirror,
)
from lakemirror.driver.tables.names import Location, TableName, locate, owner_of
from lakemirror.driver.tables.store import OpenStore, Store
from lakemirror.driver.tables.tombstones import Summary, Tombstones

_OWN: Mapping[OwnColumn, str] = {
    "sourceTime": "timestamp",
    "op": "string",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "loadTime": "timestamp",
    "pipeline": "string",
    "batch": "bigint",
    "rowHash": "string",
    "keyHash": "string",
    "identity": "bigint",
}
_OF_SHARD = (
    COLUMNS_PROPERTY,
    GAPS_PROPERTY,
    ORDERS_PROPERTY,
    SHARD_PROPERTY,
    TOMBSTONES_PROPERTY,
    TOPICS_PROPERTY,
)
"""Properties that describe a single source table. A mirror may have several source tables."""


_YES = "true"


class MirroredTable:
    """A source table with its settings, mirror and tombstones, as known between batches."""

    def __init__(
        self,
        spark: SparkSession,
        pipeline: CdcPipeline,
        name: TableName,
        settings: Table,
        reported: Sequence[Drift],
        open_store: OpenStore = Mirror,
        possession: Possession | None = None,
    ) -> None:
        """``open_store`` opens the mirror at a location.

        ``possession`` is the checkpoint that the mirror has to belong to, if the table is written.
        """
        self.possession = possession
        self.spark = spark
        self._open_store = open_store
        self.spec = pipeline.spec
        self.name = name
        self.settings = settings
        self.pipeline = pipeline.name
        self.shard = str(name) if settings.merge_shards else None
        """The name of this shard, if the mirror has several shards; otherwise None."""
        self.kept_as = settings.source if settings.merge_shards else str(name)
        """The name of the mirror's owner in this pipeline."""
        self.source = owner_of(pipeline.name, self.kept_as)
        self._reported = {each.identity for each in reported}
        self._skipped = {each.column for each in reported if each.action is DriftAction.SKIPPED}
        self._highest: bytes | None = None
        self._found: Orders | None = None
        self._conditions: dict[str, tuple[dict[str, DataType], Condition]] = {}
        self._computed: dict[str, tuple[dict[str, DataType], Computed]] = {}
        self.checked: int | None = None
        """The version of the mirror up to which changes by others were looked for (`plan.places`)."""
        self.warned_of_order = False
        """Whether a warning about changes out of order was logged."""
        self.has_view = False
        """Whether this run has created the view of the current rows, or has tried to."""

    @kept_property
    def location(self) -> Location:
        """Where the mirror is, or is going to be."""
        assert self.settings.target is not None
        return locate(self.settings.target, self.name, groups_of(self.settings.source, str(self.name)))

    @kept_property
    def mirror(self) -> Store:
        """The mirror as it was last read. Raises Refused for an impossible location."""
        check_location(self.settings.source, self.location)
        return self._open_store(self.spark, self.location)

    @kept_property
    def tombstones(self) -> Tombstones:
        """The tombstones. Only for a mirror that exists."""
        return Tombstones(self.spark, self.mirror.facts(self.shard))

    def lacks_tombstones(self) -> bool:
        """Return whether the tombstones are gone that the mirror's property says there are.

        As long as they are, this looks again: they may be restored.
        """
        if self.properties.get(TOMBSTONES_PROPERTY) != _YES or self.tombstones.exist:
            return False
        self.__dict__.pop("tombstones", None)
        return not self.tombstones.exist

    def note_tombstones(self) -> None:
        """Note in the mirror whether it has tombstones, if that is not noted yet.

        It is noted after they are written, and before the batch is done. Repeating this changes nothing.
        """
        note = self.tombstones_note
        if note:
            self.mirror.alter({}, {}, note)

    @property
    def tombstones_note(self) -> Mapping[str, str]:
        """The property of the mirror that says whether it has tombstones, if that is not noted yet."""
        if not self.mirror.exists or self.properties.get(KEY_PROPERTY, "[]") == "[]":
            return {}
        noted = self.properties.get(TOMBSTONES_PROPERTY) == _YES
        if not self.tombstones.apart or noted == self.tombstones.exist:
            return {}
        return {self.property_name(TOMBSTONES_PROPERTY): _YES if self.tombstones.exist else ""}

    def noted(self, properties: Mapping[str, str]) -> None:
        """Know that the mirror has got these properties."""
        self.mirror.properties |= properties

    @property
    def tombstone_summary(self) -> Summary:
        """The summary of the tombstones; it is empty if the mirror does not exist yet."""
        return self.tombstones.summary if self.mirror.exists else Summary()

    @property
    def properties(self) -> Mapping[str, str]:
        """The mirror's table properties, or those of this shard; empty until the mirror exists."""
        if not self.mirror.exists:
            return {}
        if self.shard is None:
            return self.mirror.properties
        found = {name: text for name, text in self.mirror.properties.items() if name not in _OF_SHARD}
        for name in _OF_SHARD:
            text = self.mirror.properties.get(self.property_name(name))
            if text is not None:
                found[name] = text
        if KEY_PROPERTY in found:
            found[KEY_PROPERTY] = json.dumps([n for n in json.loads(found[KEY_PROPERTY]) if n != SHARD])
        return found

    def property_name(self, name: str) -> str:
        """Return the name of a property in the mirror."""
        return f"{name}.{self.shard}" if self.shard is not None and name in _OF_SHARD else name

    def rows(self, version: int | None = None) -> DataFrame:
        """Return the mirror's rows, now or at a version; for a shard, only its own rows."""
        rows = self.mirror.frame(version).alias("t")
        return rows if self.shard is None else rows.where(of_shard(self.shard))

    def last_batch_of(self, app_id: str) -> int | None:
        """Return the last batch of an application that the mirror has of this table, or None.

        Each shard has an application of its own (`lakemirror.driver.write.transaction.of_shard`).
        """
        return self.mirror.applied(self._application(app_id)) if self.mirror.exists else None

    def last_batch_seen(self, app_id: str) -> int | None:
        """Return the same as of the version at which this process has last looked at the mirror."""
        return self.mirror.applied_seen(self._application(app_id)) if self.mirror.exists else None

    def _application(self, app_id: str) -> str:
        return app_id if self.shard is None else f"{app_id}/{self.shard}"

    def origins(self) -> set[Partition]:
        """Return the partitions that its rows and tombstones come from.

        Those that a reload or a repair wrote come from none.
        """
        if not self.mirror.exists:
            return set()
        places = self.rows().where("__seq IS NOT NULL").select("__origin.topic", "__origin.partition")
        if self.tombstone_summary.newest is not None:
            gone = self.tombstones.frame().where("topic IS NOT NULL")
            places = places.unionByName(gone.select("topic", "partition"))
        found = (Partition(*row) for row in places.distinct().collect())
        return {each for each in found if not (each.topic or "").startswith(OWN_TOPICS)}

    @property
    def orders(self) -> Orders:
        """The orders that its rows and tombstones come from, as the mirror remembers them.

        A mirror from before it remembered them is looked through once.
        """
        if not self.mirror.exists or self.properties.get(KEY_PROPERTY) == "[]":
            return NO_ORDERS
        text = self.properties.get(ORDERS_PROPERTY)
        if text is not None:
            return self._as_known(Orders.from_text(text))
        if self._found is None:
            self._found = self.orders_of_rows()
            if self.tombstone_summary.newest is not None:
                gone = self.tombstones.frame().where("kind = 'deleted'")
                found = _orders_in(gone.drop("at").withColumnRenamed("event_time", "at"))
                self._found |= self._as_known(found)
        return self._found

    def with_orders(self, seen: TableOverview) -> TableOverview:
        """Return what was seen in a batch with its orders as the mirror remembers them."""
        both = self._as_known(seen.orders), self._as_known(seen.truncated)
        return replace(seen, orders=both[0], truncated=both[1])

    def _as_known(self, orders: Orders) -> Orders:
        return orders.as_one if self.of_rows else orders

    @property
    def topics(self) -> dict[str, tuple[str, int]]:
        """The ID of each topic whose offsets order changes, and the highest epoch declared for it."""
        text = self.properties.get(TOPICS_PROPERTY)
        return {} if text is None else {topic: (each[0], each[1]) for topic, each in json.loads(text).items()}

    def topics_after(self, seen: TableOverview) -> dict[str, tuple[str, int]]:
        """Return the same after a batch."""
        now = {topic: (identity, self.declared_for(topic)) for topic, identity in seen.topic_ids.items()}
        return {**self.topics, **now}

    def declared_for(self, topic: str) -> int:
        """Return the highest epoch that the manifest declares for a topic."""
        return max((each.epoch for each in self.spec.order.epochs if topic in each.from_), default=0)

    def orders_of_rows(self) -> Orders:
        """Return the orders of the rows that it has now. No topic names its log."""
        if not self.mirror.exists:
            return NO_ORDERS
        rows = self.rows().where("__seq IS NOT NULL")  # null: inserted by hand
        found = _orders_in(
            rows.select(F.col("__seq").alias("seq"), F.col("__event_time").alias("at"), "__origin.*")
        )
        return self._as_known(found)

    @property
    def mode(self) -> Mode:
        """How the table is kept if it has a key."""
        return self.settings.mode or "scd1"

    @property
    def soft(self) -> str | None:
        """The column that says when a row was deleted, if deletes are soft.

        A mirror of versions does not need one.
        """
        delete = self.settings.delete if self.mode != "scd2" else None
        return delete.column if delete is not None and delete.type == "soft" else None

    @property
    def own(self) -> dict[str, DataType]:
        """The columns that the manifest adds to the mirror, except those that are computed from others."""
        return {name: DataType.fromDDL(_OWN[what]) for name, what in self.settings.own_columns.items()}

    @property
    def avoided(self) -> Mapping[str, Sequence[str]]:
        """Delta reader features that the mirror must not have, each with the programs that lack it."""
        return self.settings.target.avoided if self.settings.target is not None else {}

    @property
    def change_feed(self) -> bool | None:
        """Whether the mirror keeps Delta's change feed. None leaves this as it is."""
        return self.settings.target.change_feed if self.settings.target is not None else None

    @property
    def asks_for_key(self) -> bool:
        """Whether the manifest asks for rows by key for this particular table, and not for tables in general.

        Detecting conflicts requires a key as well.
        """
        listed = self.spec.listed(str(self.name))
        return listed is not None and (listed.mode in ("scd1", "scd2") or listed.on_conflict == "fail")

    def condition(self, sql: str, columns: Mapping[str, DataType]) -> Condition:
        """Return a checked condition on rows with these columns.

        It is checked again only when the columns change. Raises WrongCondition.
        """
        if sql not in self._conditions or self._conditions[sql][0] != columns:
            self._conditions[sql] = dict(columns), condition.checked(self.spark, sql, columns)
        return self._conditions[sql][1]

    def computed(self, sql: str, columns: Mapping[str, DataType]) -> Computed:
        """Return a checked expression of any type, under the same rules as `condition`."""
        if sql not in self._computed or self._computed[sql][0] != columns:
            self._computed[sql] = dict(columns), computed.checked(self.spark, sql, columns)
        return self._computed[sql][1]

    @property
    def selection(self) -> Selection:
        """The columns that the manifest takes from the source."""
        return Selection.of(self.settings.columns)

    @property
    def selections_as_made(self) -> tuple[Selection, ...]:
        """The columns that the mirror's rows were written with, oldest first; empty if it does not say so."""
        return selection.from_text(
            self.mirror.properties.get(SELECTION_PROPERTY) if self.mirror.exists else None
        )

    @property
    def selection_as_made(self) -> Selection | None:
        """The last of the `selections_as_made`."""
        return next(reversed(self.selections_as_made), None)

    @property
    def renaming(self) -> dict[str, str]:
        """Columns that are still to get their values from those of a former name, by former name."""
        text = self.mirror.properties.get(RENAMING_PROPERTY) if self.mirror.exists else None
        return dict(json.loads(text or "{}"))

    @property
    def mirrored_columns(self) -> list[str]:
        """The mirror's columns that neither the manifest nor a person added; empty without a mirror."""
        added = {self.soft, *self.own, *self.settings.expressions, *self.users}
        return [name for name in self.mirror.columns or () if name not in added]

    @property
    def rename(self) -> Mapping[str, str]:
        """The mirror names of the source columns that the manifest renames."""
        return (self.settings.columns and self.settings.columns.rename) or {}

    @property
    def declared(self) -> dict[str, DataType]:
        """The types that the manifest declares, by source name."""
        columns = self.settings.columns
        types = (columns and columns.types) or {}
        return {name: unlimited(DataType.fromDDL(ddl)) for name, ddl in types.items()}

    @property
    def users(self) -> frozenset[str]:
        """The mirror's columns that are neither the source's nor the manifest's: they were added by hand."""
        sent = self.mirror.properties.get(SENT_PROPERTY) if self.mirror.exists else None
        if sent is None:
            return frozenset()
        known = {*json.loads(sent), self.soft, *self.own, *self.settings.expressions}
        return frozenset((self.mirror.columns or {}).keys() - known)

    @property
    def fed(self) -> dict[str, DataType] | None:
        """The mirror's columns that source columns are written to, by source name.

        None if there is no mirror.
        """
        if self.mirror.columns is None:
            return None
        known = self.properties.get(SHARD_PROPERTY)
        if self.shard is not None and known is None:
            return None
        users = self.users
        back, columns = {mirror: source for source, mirror in self.rename.items()}, self.settings.columns
        found = {}
        for name, kind in self.mirror.columns.items():
            source = back.get(name, name)
            renamed = name in self.rename and name not in back
            mine = self.shard is None or source in json.loads(known or "[]")
            ours = name == self.soft or name in self.own or name in self.settings.expressions
            ours = ours or name in users
            if mine and not ours and not renamed and (columns is None or columns.keeps(source)):
                found[source] = kind
        return found

    @property
    def lives(self) -> Lives:
        """What is known about the source's columns."""
        return Lives(self.stored_lives, self.fed, cache(self._highest_in), cache(self._holds))

    @property
    def stored_lives(self) -> dict[str, Life]:
        """The lives that the mirror's property holds.

        Marks that an older version stored for a source that shows no lives are left out.
        """
        found = from_text(self.properties.get(COLUMNS_PROPERTY))
        if self.is_feed or self.has_positions or str(self.spec.ordering.by) == GIVEN:
            return found
        return {name: life.without_marks() for name, life in found.items()}

    def awaiting_default(self) -> set[str]:
        """Return the added columns whose default was to be written by a batch that was not committed."""
        return {name for name, life in self.stored_lives.items() if life.given and not self._done(life.given)}

    def _done(self, given: str) -> bool:
        app_id, _, batch = given.rpartition("/")
        last = self.last_batch_of(app_id)
        return last is not None and last >= int(batch)

    @property
    def is_feed(self) -> bool:
        """Whether its events are ordered by the versions of a change feed."""
        return self.spec.source.change_feed is not None and self.spec.order.by == "offset"

    @property
    def of_rows(self) -> bool:
        """Whether its events are rows of files, which are one order whatever folder they are in."""
        files = self.spec.source.files
        return files is not None and files.format != "records"

    @property
    def has_positions(self) -> bool:
        """Whether positions may order its events, and schemas show its columns.

        See `lakemirror.driver.plan.lives`.
        """
        formats = ("debezium", "debezium-flat")
        positions = self.spec.ordering.by in ("auto", "lsn", "binlog")
        streamed = not self.of_rows and self.spec.source.change_feed is None
        return positions and streamed and self.spec.envelope.format in formats

    def _holds(self, log: Log, position: bytes) -> bool:
        rows = self.rows().where(F.col("__origin.topic").isin(*log.topics))
        return not rows.where(F.col("__seq") == F.lit(position)).isEmpty()

    def _highest_in(self, log: Log, epoch: int) -> bytes | None:
        """Return the highest position of the streamed events that it has from a log, in an epoch.

        A delete of a flat record may have had no schema, so that it says nothing about columns.
        """
        if not self.mirror.exists:
            return None
        rows = self.rows().where(F.col("__origin.topic").isin(*log.topics))
        shown: list[str] = [Op.CREATE, Op.UPDATE]
        if self.spec.envelope.format == "debezium":
            shown.append(Op.DELETE)
        places = rows.where(F.col("__op").isin(*shown)).select("__seq")
        if Op.DELETE in shown and self.tombstones.summary.newest is not None:
            gone = self.tombstones.frame().where("kind = 'deleted'")
            places = places.unionByName(
                gone.where(F.col("topic").isin(*log.topics)).select(F.col("seq").alias("__seq"))
            )
        first = beginning_of(epoch)
        here = (F.substring("__seq", 1, 2) == F.lit(first[:2])) & (F.col("__seq") > F.lit(first))
        row = places.where(here).agg(F.max("__seq")).first()
        return as_bytes(row[0]) if row is not None else None

    def highest(self) -> bytes | None:
        """Return the highest sequence of the applied events.

        It is looked up only when needed, and then kept.
        """
        if self._highest is None and self.mirror.exists:
            row = self.rows().agg(F.max("__seq")).first()
            stored = as_bytes(row[0]) if row is not None else None
            newest = self.tombstones.summary.newest if self.properties.get(KEY_PROPERTY) != "[]" else None
            self._highest = max(filter(None, (stored, newest)), default=None)
        return self._highest

    def applied(self, seen: TableOverview) -> None:
        """Record that a batch's events were applied."""
        last = max((each.last_seq for each in seen.groups.values() if each.last_seq), default=b"")
        if seen.unanchored:
            self._highest = None  # an unanchored event may be placed higher than its own sequence
        elif self._highest is not None:
            self._highest = max(self._highest, last)

    def unreported(self, drift: Sequence[Drift]) -> tuple[Drift, ...]:
        """Return the drift that has not been reported yet."""
        return tuple(each for each in drift if each.identity not in self._reported)

    def was_left_out(self, column: str) -> bool:
        """Return whether rows of the mirror were written while it left out a column, given by source name."""
        skipped = self.rename.get(column, column) in self._skipped
        return skipped or selection.missed(self.selections_as_made, column)

    def report(self, drift: Sequence[Drift]) -> None:
        """Record that a drift was reported."""
        self._reported.update(each.identity for each in drift)
        self._skipped.update(each.column for each in drift if each.action is DriftAction.SKIPPED)

    def stored_seqs(self, reading: Reading, version: int | None = None) -> DataFrame:
        """Return the sequence of each row of the mirror, now or at a version. Columns: key, stored."""
        rows = self.rows(version)
        return rows.select(stored_key(reading), T("__seq").alias("stored"))


def _orders_in(places: DataFrame) -> Orders:
    """Return the orders of places: seq, at, topic, partition, offset. Those without a sequence have none."""
    kind = kind_of(Fact(*[F.col(name) for name in Fact._fields])).alias("kind")
    found = places.where("seq IS NOT NULL").select(kind, "topic", "partition").distinct().collect()
    compared = (Kind.OFFSET, Kind.TIME)
    return Orders.of(
        (row["kind"], row["topic"] or "", row["partition"] if row["kind"] in compared else None)
        for row in found
    )


def stored_key(reading: Reading) -> Column:
    """Return the ``key`` of a stored row, in the form that a state has."""
    return F.struct(*[T(name).cast(reading.columns[name]).alias(name) for name in reading.key]).alias("key")
