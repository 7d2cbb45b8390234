"""The change feed of a Delta table as a source.

A batch is a range of versions, read with ``readChangeFeed``. The first batch of a new checkpoint is the whole
table, unless the manifest says where to start. (https://docs.delta.io/latest/delta-change-data-feed.html) If
a table keeps no feed but tracks its rows (``delta.enableRowTracking``), its changes are computed when they
are read: by Spark's ``CHANGES``, which Delta supports from 4.4 on, behind a setting of its own.

Besides the query ID (``metadata.json``), the checkpoint holds::

    changes/offsets/<N>.json  written before batch N is applied: its versions, the table's ID, and the hash of
                              the last commit
    changes/commits/<N>.json  written after batch N was applied (`lakemirror.driver.read.markers`)

A row of the feed becomes a change event in Debezium's form. Its offset consists of the version, a bit, and a
hash. The version is the high part. The bit is 0 if the row is gone, because a key that a version both deletes
and inserts exists afterwards. The hash distinguishes the rows of a version.

A row that was added to a list of events (a mirror of mode ``append``) is such an event: it keeps its op and
its time. A copy without a key is a list again, in which events also keep their sequence, and in which their
offset is a hash of what the list knows of them, so that they are the same whenever they are read. If the
manifest declares a key, the order is that of versions, and within a version that of the list: instead of the
bit, the number of truncates before an event and its number among those of its row follow the version.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial, reduce
from typing import Any, Final, NoReturn

from delta import DeltaTable
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructField

from lakemirror.api.source import ChangeFeedSource, Source
from lakemirror.api.tables import parts_of
from lakemirror.driver import faults
from lakemirror.driver.checkpoint import identity
from lakemirror.driver.checkpoint.storage import Storage, numbered, open_storage
from lakemirror.driver.codes import Op
from lakemirror.driver.errors import LakemirrorError
from lakemirror.driver.read import rows
from lakemirror.driver.read.base import RAW_NAMES, Batch, ChangesLost, Committed, Lag, Standing
from lakemirror.driver.read.markers import Markers
from lakemirror.driver.read.watch import SourceWatch
from lakemirror.driver.sequence import DELTA
from lakemirror.driver.tables.delta import configuration, path_of, quoted, snapshot
from lakemirror.driver.tables.mirror import (
    CHANGE_FEED_PROPERTY,
    KEY_PROPERTY,
    MAPPING_PROPERTY,
    MODE_PROPERTY,
    SOURCE_PROPERTY,
)
from lakemirror.driver.tables.names import TableName
from lakemirror.driver.waiting import pause

_MOST_VERSIONS: Final = 1000
"""The maximum number of versions in one batch."""
_OFFSETS, _COMMITS = "changes/offsets", "changes/commits"
_FEED_COLUMNS: Final = ("_change_type", "_commit_version", "_commit_timestamp")
_ROW_IDS: Final = "_metadata"
"""The column with the row IDs that Spark computes changes from."""
_OFFERS_CHANGES: Final = "spark.databricks.delta.changelogV2.enabled"
_SCHEMA_AS_OF: Final = "spark.databricks.delta.changeDataFeed.allowTimeTravelOptionsForSchema"
_ROW_TRACKING: Final = "delta.enableRowTracking"
_GONE: Final = ("delete", "update_preimage")
_OPS: Final = {
    "insert": Op.CREATE,
    "update_postimage": Op.UPDATE,
    "delete": Op.DELETE,
    "update_preimage": Op.DELETE,
    "snapshot": Op.READ,
}
_LOST: Final = re.compile(
    r"DELTA_CHANGE_DATA_FILE_NOT_FOUND|DELTA_VERSION_NOT_FOUND|DELTA_TRUNCATED_TRANSACTION_LOG"
    r"|DELTA_LOG_FILE_NOT_FOUND"
)
_NO_FILE: Final = re.compile(r"FileNotFound|FAILED_READ_FILE.FILE_NOT_EXIST")
_AUTHORITY: Final = re.compile(r"^[A-Za-z][\w+.-]*:(//[^/]*)?")
"""What comes before the path in a URI. ``urlsplit`` would also cut off what follows a # in the path."""
_NOT_COMPUTED: Final = re.compile(r"DELTA_CHANGELOG_\w+")
_OTHER_TYPES: Final = re.compile(
    r"TYPE_MISMATCH|INCOMPATIBLE_(DATA_)?SCHEMA|INCOMPATIBLE_DATA_TYPE|SchemaColumnConvertNotSupported"
    r"|ClassCastException|UnsupportedOperationException|FAILED_READ_FILE|DELTA_SCHEMA_CHANGED"
)
"""How errors say that files cannot be read with the columns of a later version."""
_HASH_BITS: Final = 32
_NUMBER_BITS: Final = 16
_STAGE_BITS: Final = 8
"""The bits of an event's number in a version of a list, and of the number of truncates before it."""


class FeedLost(ChangesLost):
    """The feed does not have the next changes, or belongs to another table."""


@dataclass(frozen=True)
class Versions:
    """The versions of a batch, both inclusive, of the table with this ID.

    Without ``first``, the batch is the whole table as of ``until``. ``commit`` is the hash of the commit that
    made version ``until``, or None if that is not known.
    """

    table_id: str
    until: int
    first: int | None = None
    commit: str | None = None

    @property
    def extent(self) -> dict[str, Any]:
        return {"changes": [self.first, self.until], "table": self.table_id}


@dataclass(frozen=True)
class _Newest:
    """The table's ID, its newest version, the schema of that version, and the place of the table's log."""

    table_id: str
    version: int
    schema: str
    log: str


class ChangeFeed:
    """See ``base.Feed``.

    ``key`` returns the columns that the manifest declares as the key of the table's rows. If it declares none
    and the table is a mirror made by Lakemirror, the mirror's key is used.
    """

    def __init__(
        self,
        spark: SparkSession,
        source: ChangeFeedSource,
        storage: Storage,
        *,
        key: Callable[[TableName], Sequence[str]] = lambda name: (),
        interval_seconds: float = 10.0,
        watch: SourceWatch | None = None,
        standing: Standing | None = None,
    ) -> None:
        self._spark, self._source, self._storage = spark, source, storage
        self._standing = standing or Standing()
        self._markers = Markers(storage, _OFFSETS, _COMMITS)
        self._declared, self._interval = key, interval_seconds
        self._watch = watch or SourceWatch()
        self._caught_up = False
        self._had_all_at: float | None = None
        self._schema: str | None = None
        """The schema that all remaining versions, up to the newest one, were known to have."""
        self.name = name_of(source)
        self.query_id = identity.query_id(storage, "changeFeed", started=self._started())
        self._markers.require_known()

    def run(
        self,
        apply: Callable[[DataFrame, Batch], None],
        *,
        once: bool,
        stopping: Callable[[], bool],
    ) -> None:
        goal = None
        for number, versions in self._pending():
            if stopping():
                return
            self._go_on(apply, number, versions)
        while not stopping():
            looked, newest = time.monotonic(), self._latest()
            goal = goal if goal is not None else newest.version
            following, found = self._next(newest, min(goal, newest.version) if once else newest.version)
            self._caught_up = found is None
            if self._caught_up and not once:  # a run with ``once`` has a goal
                self._had_all_at = looked
            if found is not None:
                self._record(following, found)
                self._apply(apply, following, found)
            elif once:
                return
            else:
                pause(self._interval, stopping)

    def lag(self) -> Lag:
        return Lag(0 if self._caught_up else None, self._caught_up, self._had_all_at)

    def from_its_beginning(self) -> Source:
        """Return the source as a new checkpoint would read it."""
        return Source(change_feed=self._source)

    def committed(self) -> Committed | None:
        return self._markers.committed()

    def pending(self) -> Iterator[Batch]:
        return (self._batch(number, versions) for number, versions in self._pending())

    def close(self) -> None:
        """Do nothing: the feed holds no resources."""

    # -- which versions ---------------------------------------------------------------------------

    def _started(self) -> bool:
        """Return whether batches are recorded.

        Raises LakemirrorError if they were, and are not any more: nothing tells which version comes next.
        """
        if self._markers.recorded():
            return True
        if self._markers.next() > 0:
            raise identity.damaged(self._storage, f"{_COMMITS} has batches, and {_OFFSETS} has none of them")
        return False

    def _pending(self) -> list[tuple[int, Versions]]:
        """Return the batches that are recorded but not done.

        Markers of batches that were done are kept only for the last one, so a later marker counts for all.
        """
        return [(number, self._recorded(number)) for number in sorted(self._markers.pending())]

    def _recorded(self, number: int) -> Versions:
        name = f"{_OFFSETS}/{number}.json"
        try:
            document = json.loads(self._storage.read_text(name))
            return Versions(
                document["table_id"], document["until"], document["first"], document.get("commit")
            )
        except (ValueError, TypeError, KeyError) as error:
            raise LakemirrorError(
                f"{self._storage.uri}/{name} is damaged ({error}): restore it from a copy"
            ) from None

    def _latest(self) -> _Newest:
        with self._watch.asking():
            newest = self._snapshot()
            about = newest.metadata()
        log = str(newest.path().toString())
        return _Newest(str(about.id()), int(newest.version()), str(about.schemaString()), log)

    def _next(self, newest: _Newest, latest: int) -> tuple[int, Versions | None]:
        """Return the number of the next batch and its versions.

        The versions are None if there are none up to ``latest``.
        """
        table_id = newest.table_id
        numbers = numbered(self._storage, _OFFSETS)
        if not numbers:
            start = self._start(latest)
            if start is None:
                return self._markers.next(), Versions(table_id, latest, None, self._commit_at(latest, newest))
            first = start
        else:
            before = self._recorded(max(numbers))
            self._require_same(before, newest)
            first = before.until + 1
        if first > latest:
            return 0, None
        until = self._of_one_schema(first, min(latest, first + _MOST_VERSIONS - 1), newest)
        return self._markers.next(), Versions(table_id, until, first, self._commit_at(until, newest))

    def _require_same(self, read: Versions, newest: _Newest) -> None:
        """Raise FeedLost if versions that were read are not those that the table has now.

        This is the case for another table of this name or place, and for one that was restored from a copy:
        its next commits get numbers that were read already.
        """
        if read.table_id != newest.table_id:
            self._raise_other(f"was deleted and made again since version {read.until} was read")
        if newest.version < read.until:
            self._raise_other(f"has version {newest.version} now, and version {read.until} was read")
        now = self._commit_at(read.until, newest) if read.commit is not None else None
        if now is not None and now != read.commit:
            self._raise_other(f"has another version {read.until} than the one that was read")

    def _raise_other(self, what: str) -> NoReturn:
        raise FeedLost(
            f"{self._place} {what}: its changes do not follow those that were applied. {self._anew}. Numbers "
            "of versions are used again, so in the same edit add an epoch to spec.ordering.epochs (1, or the "
            f'next one): {{epoch: 1, from: {{{self.name}: {{"0": 0}}}}}}. Otherwise rows of the mirror stay '
            "as they are until the versions are higher than before. Rows that the table no longer has stay "
            "in the mirror: `lakemirror reload` removes them"
        )

    def _commit_at(self, version: int, newest: _Newest) -> str | None:
        """Return the hash of the commit that made a version, or None if Delta has cleaned it up."""
        try:
            return open_storage(newest.log, self._spark).sha256(f"{version:020d}.json")
        except FileNotFoundError:
            return None

    def _of_one_schema(self, first: int, until: int, newest: _Newest) -> int:
        """Return the last version up to ``until`` before the table's columns change.

        Delta reads changes with one schema. It reads none from before a column was renamed, changed its type,
        or was dropped.
        """
        if self._schema == newest.schema:
            return until
        self._schema = None
        try:
            schema = self._schema_at(first)
            if self._schema_at(until) == schema:
                self._schema = newest.schema if until == newest.version else None
                return until
            same, other = first, until
            while other - same > 1:
                middle = (same + other) // 2
                same, other = (middle, other) if self._schema_at(middle) == schema else (same, middle)
            return same
        except PySparkException:  # a version is gone: reading its changes will report it
            return until

    def _schema_at(self, version: int) -> str:
        reader = self._spark.read.format("delta").option("versionAsOf", version)
        return self._load(reader).schema.json()

    def _start(self, latest: int) -> int | None:
        """Return the first version that a new checkpoint reads.

        None means the whole table, followed by its changes.
        """
        asked = self._source.starting_version
        if asked is not None and asked > latest + 1:
            raise FeedLost(
                f"source.changeFeed.startingVersion: {self._place} has no version {asked}, the newest is "
                f"{latest}: give one of its versions, or {latest + 1} for the next one"
            )
        if asked is not None:
            return asked
        if self._source.starting_timestamp is None:
            return None
        moment = datetime.fromisoformat(self._source.starting_timestamp).astimezone(UTC)
        later = self._table().history().where(F.col("timestamp") >= F.lit(moment))
        row = later.agg(F.min("version")).first()
        return latest + 1 if row is None or row[0] is None else int(row[0])

    def _record(self, number: int, versions: Versions) -> None:
        self._markers.record(number, asdict(versions), self.query_id)

    # -- their contents ---------------------------------------------------------------------------

    def _apply(self, apply: Callable[[DataFrame, Batch], None], number: int, versions: Versions) -> None:
        batch = self._batch(number, versions)
        with batch.explained():
            records = self._records(versions)
        apply(records, batch)
        faults.reach("before-checkpoint-commit")
        self._commit(number)

    def _go_on(self, apply: Callable[[DataFrame, Batch], None], number: int, versions: Versions) -> None:
        """Apply a batch that was begun. If its changes are gone, it is done if all tables have it."""
        try:
            self._require_same(versions, self._latest())
            self._apply(apply, number, versions)
        except FeedLost:
            if self._standing.applied(self.query_id) < number:
                raise
            self._commit(number)

    def _commit(self, number: int) -> None:
        self._standing.check()
        self._markers.commit(number)
        # A batch without its commit would be applied again: the commit goes last.
        for folder in (_OFFSETS, _COMMITS):
            for old in numbered(self._storage, folder):
                if old < number:
                    self._storage.delete(f"{folder}/{old}.json")

    def _batch(self, number: int, versions: Versions) -> Batch:
        explain = partial(self._explained, versions=versions)
        return Batch(self.query_id, number, versions.extent, explain=explain)

    def _records(self, versions: Versions) -> DataFrame:
        """Return the changes as RAW records."""
        reader = self._spark.read.format("delta")
        if versions.first is None:
            whole = self._load(reader.option("versionAsOf", versions.until))
            return self._as_records(self._as_changes(whole, versions.until))
        bounds = {"startingVersion": str(versions.first), "endingVersion": str(versions.until)}
        properties = configuration(self._snapshot())
        if _keeps_feed(properties):
            changes = self._told(
                reader.option("readChangeFeed", "true").options(**bounds), versions, properties
            )
        else:
            changes = self._computed(bounds)
        return self._as_records(changes, net=self._source.net_changes)

    def _told(self, reader: DataFrameReader, versions: Versions, properties: Mapping[str, str]) -> DataFrame:
        """Return the changes from the feed, with the columns of the last of the ``versions``.

        If columns are mapped, Delta uses these on its own. Otherwise it would use the newest ones.
        """
        if self._schema is not None or properties.get(MAPPING_PROPERTY, "none") != "none":
            return self._load(reader)
        with self._set(_SCHEMA_AS_OF):
            return self._load(reader.option("versionAsOf", versions.until))

    @contextmanager
    def _set(self, name: str) -> Iterator[None]:
        """Turn on a Spark setting for the duration of the context."""
        before = self._spark.conf.get(name, "false")
        self._spark.conf.set(name, "true")
        try:
            yield
        finally:
            self._spark.conf.set(name, str(before))

    def _computed(self, bounds: Mapping[str, str]) -> DataFrame:
        """Return the changes that Spark computes from files and row IDs."""
        name = self._source.table or f"delta.{quoted(str(self._source.path))}"
        with self._set(_OFFERS_CHANGES):
            reader = self._spark.read.options(computeUpdates="true", **bounds)
            return reader.changes(name).drop(_ROW_IDS)

    def _as_changes(self, whole: DataFrame, version: int) -> DataFrame:
        """Return the rows of a version in the form of the feed."""
        made = self._table().history().where(F.col("version") == version).select("timestamp").first()
        return whole.withColumns(
            {
                "_change_type": F.lit("snapshot"),
                "_commit_version": F.lit(version).cast("bigint"),
                "_commit_timestamp": F.lit(made[0] if made is not None else None).cast("timestamp"),
            }
        )

    def _as_records(self, changes: DataFrame, *, net: bool = False) -> DataFrame:
        properties = configuration(self._snapshot())
        ours, known = SOURCE_PROPERTY in properties, json.loads(properties.get(KEY_PROPERTY, "[]"))
        fields = [
            field
            for field in changes.schema.fields
            if field.name not in _FEED_COLUMNS
            and not (ours and field.name.startswith("__") and field.name not in known)
        ]
        key = self._key(fields, known)
        mode = properties.get(MODE_PROPERTY) if ours else None
        if mode == "scd2":
            changes = _of_current_rows(changes, key)
        if mode == "append":
            kept = self._listed(changes, key, net=net)
        else:
            kept = self._net(changes, fields, key) if net else _without_preimages(changes, key)
        told = _told(listed=mode == "append")
        payload = _payload(fields, self.name, told, F.hex("__seq") if mode == "append" and not key else None)
        value = rows.document(self._envelope(fields), payload)
        key_text = rows.document(rows.schema_of(key, optional=False), rows.wire(key)) if key else F.lit(None)
        if mode == "append":
            key_text = F.when(told.op != Op.TRUNCATE, key_text)
        record = {
            "topic": F.lit(str(self.name)),
            "partition": F.lit(0),
            "gone": _is_gone(),
            "place": _place_in_list() if mode == "append" and key else F.lit(None).cast("bigint"),
            "same": _hash_of_event() if mode == "append" and not key else F.lit(None).cast("bigint"),
            "version": F.col("_commit_version"),
            "timestamp": F.col("_commit_timestamp"),
            "key": key_text.cast("string").cast("binary"),
            "value": value.cast("binary"),
            "headers": F.lit(None).cast("array<struct<key: string, value: binary>>"),
            "file": F.lit(None).cast("string"),
            "problem": F.lit(None).cast("string"),
        }
        found = kept.select(*[each.alias(name) for name, each in record.items()])
        return found.withColumn("row", _told_apart()).withColumn("offset", _offset()).select(*RAW_NAMES)

    def _listed(self, changes: DataFrame, key: Sequence[StructField], *, net: bool) -> DataFrame:
        """Return the events that were added to a list, with a key with their place in their version.

        An event that was removed from the list, such as an old one, did happen nevertheless.
        """
        if net:
            raise LakemirrorError(
                f"source.changeFeed.netChanges: {self._place} is a list of events (mode append), which have "
                "no net effect: leave netChanges out"
            )
        added = changes.where(F.col("_change_type").isin("insert", "update_postimage", "snapshot"))
        truncates = added.where(F.col("__op") == Op.TRUNCATE).groupBy(F.col("_commit_version").alias("_in"))
        cuts = F.broadcast(truncates.agg(F.collect_set("__seq").alias("_cuts")))
        before = F.size(F.filter("_cuts", lambda cut: cut < F.col("__seq")))
        stage = F.when(F.col("_cuts").isNull(), 0).otherwise(2 * before)
        names = [F.col(quoted(field.name)) for field in key]
        of_row = Window.partitionBy("_commit_version", *names).orderBy("__seq", "__origin.offset")
        number = F.row_number().over(of_row) - 1
        if not key:
            return added
        placed = added.join(cuts, F.col("_commit_version") == F.col("_in"), "left")
        return placed.withColumns(
            {
                "_stage": F.least(
                    stage + (F.col("__op") == Op.TRUNCATE).cast("int"), F.lit(2**_STAGE_BITS - 1)
                ),
                "_number": F.least(number, F.lit(2**_NUMBER_BITS - 1)),
            }
        )

    def _net(
        self, changes: DataFrame, fields: Sequence[StructField], key: Sequence[StructField]
    ) -> DataFrame:
        """Return the net change of each key.

        There is none if the row is the same as before, or exists neither before nor after.
        """
        if not key:
            raise LakemirrorError(
                f"source.changeFeed.netChanges: nothing says what the key of {self._place} is: declare "
                f"tables[{self.name}].primaryKey, or leave netChanges out"
            )
        row = F.struct(*[F.col(quoted(name)) for name in changes.columns])
        place = F.struct("_commit_version", (~_is_gone()).alias("there"))
        ends = changes.groupBy(*[F.col(quoted(each.name)) for each in key]).agg(
            F.min_by(row, place).alias("_first"), F.max_by(row, place).alias("_last")
        )
        before, gone = _is_gone("_first._change_type"), _is_gone("_last._change_type")
        first, last = (rows.text(rows.wire(fields, of=end)) for end in ("_first", "_last"))
        kind = F.when(gone, "delete").when(before, "update_postimage").otherwise("insert")
        others = [name for name in changes.columns if name != "_change_type"]
        return ends.where(F.when(before, gone | (first != last)).otherwise(~gone)).select(
            *[F.col(f"_last.{quoted(name)}") for name in others], kind.alias("_change_type")
        )

    def _key(self, fields: Sequence[StructField], known: Sequence[str]) -> list[StructField]:
        """Return the fields of the key, ``known`` unless the manifest declares another. Empty if unknown."""
        names = self._declared(self.name) or known
        by_name = {field.name: field for field in fields}
        missing = [name for name in names if name not in by_name]
        if missing:
            raise LakemirrorError(
                f"tables[{self.name}].primaryKey: {self._place} has no column {missing[0]}; its columns are "
                f"{', '.join(by_name)}"
            )
        return [by_name[name] for name in names]

    def _envelope(self, fields: Sequence[StructField]) -> dict[str, Any]:
        row = rows.schema_of(fields)
        images = [{**row, "field": "before"}, {**row, "field": "after"}]
        return {"type": "struct", "fields": images, "optional": False, "name": "lakemirror.Envelope"}

    # -- the table --------------------------------------------------------------------------------

    @property
    def _place(self) -> str:
        return self._source.table or self._source.path or ""

    @property
    def _anew(self) -> str:
        """Return what to do so that a new checkpoint reads the whole table, as it does without a start."""
        starts = {
            "startingVersion": self._source.starting_version,
            "startingTimestamp": self._source.starting_timestamp,
        }
        given = next((name for name, start in starts.items() if start is not None), None)
        without = f"Take {given} out of spec.source.changeFeed and give" if given else "Give"
        return f"{without} spec.spark.resetToken a new value, so that the whole table is read anew"

    def _table(self) -> DeltaTable:
        if self._source.table is not None:
            return DeltaTable.forName(self._spark, self._source.table)
        return DeltaTable.forPath(self._spark, str(self._source.path))

    def _load(self, reader: Any) -> DataFrame:
        found: DataFrame = (
            reader.table(self._source.table) if self._source.table else reader.load(self._source.path)
        )
        return found

    def _snapshot(self) -> Any:
        """Return the newest snapshot. Raises AnalysisException if there is no Delta table."""
        return snapshot(self._spark, path_of(self._table()))

    def _explained(self, error: Exception, versions: Versions) -> FeedLost | None:
        """Return a FeedLost that explains the error, or None if the error does not mean missing changes."""
        whole = versions.first is None
        which = f"version {versions.until}" if whole else f"versions {versions.first} to {versions.until}"
        if "DELTA_MISSING_CHANGE_DATA" in str(error):
            return FeedLost(
                f"{self._place} has no change feed for all of the {which}: ALTER TABLE ... SET TBLPROPERTIES "
                f"(delta.enableChangeDataFeed = true) makes it keep one from then on. {self._anew}; or "
                "give it a new value and let source.changeFeed.startingVersion be the first version with one"
            )
        if (found := _NOT_COMPUTED.search(str(error))) is not None:
            return FeedLost(
                f"{self._place} keeps no change feed, and its changes of the {which} cannot be computed "
                f"({found[0]}): ALTER TABLE ... SET TBLPROPERTIES (delta.enableChangeDataFeed = true) makes "
                f"it keep one from then on. {self._anew}"
            )
        if _LOST.search(str(error)) or self._lacks_file(error):
            return FeedLost(
                f"{self._place}: changes of the {which} were gone before they were read, most likely by "
                f"VACUUM. {self._anew}, and let VACUUM keep files for longer than this pipeline may be away"
            )
        if not whole and _OTHER_TYPES.search(str(error)):
            return self._overwritten(versions)
        return None

    def _overwritten(self, versions: Versions) -> FeedLost | None:
        """Return an error that names a column with another type than before ``versions``, or None."""
        try:
            former = self._schema_of(max((versions.first or 0) - 1, 0))
            later = self._schema_of(versions.until)
        except PySparkException:  # a version is gone: the error says so itself
            return None
        changed = next((name for name in former if name in later and former[name] != later[name]), None)
        if changed is None:
            return None
        return FeedLost(
            f"{self._place} was overwritten with columns of other types after version "
            f"{(versions.first or 0) - 1}: {changed} was {former[changed]} and is {later[changed]}. Delta "
            f"cannot read these changes. {self._anew}; give the mirror another target in the same edit, "
            "because its columns have the former types"
        )

    def _schema_of(self, version: int) -> dict[str, str]:
        reader = self._spark.read.format("delta").option("versionAsOf", version)
        return {each.name: each.dataType.simpleString() for each in self._load(reader).schema.fields}

    def _lacks_file(self, error: Exception) -> bool:
        """Return whether an error says that a file of this table is missing. Mirrors have files, too."""
        if _NO_FILE.search(str(error)) is None:
            return False
        try:
            place = path_of(self._table())
        except PySparkException:  # the table does not exist either
            return True
        return _AUTHORITY.sub("", place) in str(error)


def _keeps_feed(properties: Mapping[str, str]) -> bool:
    """Return whether changes are read from a table's feed. They are, unless they can only be computed."""
    return _is_on(properties, CHANGE_FEED_PROPERTY) or not _is_on(properties, _ROW_TRACKING)


def _is_on(properties: Mapping[str, str], name: str) -> bool:
    return properties.get(name, "false").lower() == "true"


def name_of(source: ChangeFeedSource) -> TableName:
    """Return the table's name in ``tables`` and in the target: the last parts of its name or path."""
    if source.table is not None:
        *schema, table = parts_of(source.table)
        padded = [None, None, *schema]
        return (
            TableName(padded[-2], padded[-1], table)
            if len(schema) > 1
            else TableName(padded[-1], None, table)
        )
    parts = [part for part in re.split(r"[/\\]+", str(source.path)) if part and not part.endswith(":")]
    return TableName(parts[-2] if len(parts) > 1 else None, None, parts[-1])


@dataclass(frozen=True)
class _Told:
    """What a change says besides its row: its op, whether the row is gone, and its time."""

    op: Column
    gone: Column
    time: Column


def _told(*, listed: bool) -> _Told:
    """Return what the changes of a table say. With ``listed``, its rows are events themselves."""
    kind, time = F.col("_change_type"), F.col("_commit_timestamp")
    if listed:
        return _Told(F.col("__op"), F.col("__op") == Op.DELETE, F.coalesce("__event_time", time))
    op = reduce(
        lambda found, each: F.when(kind == each[0], each[1]).otherwise(found), _OPS.items(), F.lit("")
    )
    return _Told(op, _is_gone(), time)


def _payload(
    fields: Sequence[StructField], name: TableName, told: _Told, sequence: Column | None = None
) -> Column:
    """STRUCT: the change in Debezium's form, with the ``sequence`` that it has in a list."""
    row, millis = rows.wire(fields), F.unix_millis(told.time)
    source = {
        "connector": F.lit(DELTA),
        "name": F.lit("delta"),
        "ts_ms": millis,
        "ts_us": F.unix_micros(told.time),
        "db": F.lit(name.database),
        "schema": F.lit(name.schema),
        "table": F.lit(name.table),
        **({} if sequence is None else {"sequence": sequence}),
    }
    return F.struct(
        F.when(told.gone, row).alias("before"),
        F.when(~told.gone & (told.op != Op.TRUNCATE), row).alias("after"),
        F.struct(*[each.alias(field) for field, each in source.items()]).alias("source"),
        told.op.alias("op"),
        millis.alias("ts_ms"),
    )


def _is_gone(kind: str = "_change_type") -> Column:
    """BOOLEAN: whether the row no longer exists after a change of this type."""
    return F.col(kind).isin(*_GONE)


def _without_preimages(changes: DataFrame, key: Sequence[StructField]) -> DataFrame:
    """Return the changes without preimages of updates, except those whose key no longer exists afterwards."""
    others = changes.where("_change_type <> 'update_preimage'")
    if not key:
        return others
    names = [field.name for field in key]
    after = others.where("_change_type <> 'delete'").alias("a")
    before = changes.where("_change_type = 'update_preimage'").alias("b")
    both = (quoted(name) for name in (*names, "_commit_version"))
    same = [F.col(f"a.{name}").eqNullSafe(F.col(f"b.{name}")) for name in both]
    return others.unionByName(before.join(after, same, "left_anti"))


def _of_current_rows(changes: DataFrame, key: Sequence[StructField]) -> DataFrame:
    """Return the changes of the current rows in a mirror of versions, as a mirror of current rows has them.

    When a version ends, its row is no longer current, and its image from before counts. If another version of
    the key begins at the same time, this is an update of the current row.
    """
    names = [F.col(quoted(field.name)) for field in key]
    ended = F.max(F.col("_change_type") == "update_preimage")
    together = Window.partitionBy("_commit_version", *names)
    kind = F.when(
        (F.col("_change_type") == "insert") & ended.over(together), F.lit("update_postimage")
    ).otherwise(F.col("_change_type"))
    return changes.where("__is_current").withColumn("_change_type", kind)


def _told_apart() -> Column:
    """BIGINT: distinguishes the rows of a version, even equal ones. Each reading gives the same values."""
    alike = Window.partitionBy("version", "gone", "key", "value").orderBy(F.lit(1))
    return F.xxhash64("key", "value", F.row_number().over(alike))


def _offset() -> Column:
    """BIGINT: the version, whether the row exists afterwards or the place in a list, and a hash."""
    rest = _HASH_BITS + 1 - _STAGE_BITS - _NUMBER_BITS
    listed = F.col("place") * F.lit(2**rest) + F.pmod("row", F.lit(2**rest))
    there = F.when(F.col("gone"), 0).otherwise(2**_HASH_BITS) + F.pmod("row", F.lit(2**_HASH_BITS))
    return F.coalesce("same", F.col("version") * F.lit(2 ** (_HASH_BITS + 1)) + F.coalesce(listed, there))


def _hash_of_event() -> Column:
    """BIGINT: identifies an event of a list, whichever version is read. Null for rows added by hand."""
    whole = F.xxhash64(
        "__seq", "__op", "__event_time", "__origin.topic", "__origin.partition", "__origin.offset"
    )
    return F.when(F.col("__seq").isNotNull(), F.pmod(whole, F.lit(2**62)))


def _place_in_list() -> Column:
    """BIGINT: the place of an event among those of its version, which need not be one of its own."""
    return F.col("_stage").cast("bigint") * F.lit(2**_NUMBER_BITS) + F.col("_number")
