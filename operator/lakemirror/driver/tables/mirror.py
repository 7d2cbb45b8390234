"""A mirror: a Delta table that holds the current rows of one source table."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any

from delta.tables import DeltaTable, IdentityGenerator
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    MapType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from lakemirror.driver.checkpoint.storage import delete_folder
from lakemirror.driver.java import java_class
from lakemirror.driver.tables import commits
from lakemirror.driver.tables.columns import COMMENTS, SHARD, metadata_of
from lakemirror.driver.tables.commits import Commit
from lakemirror.driver.tables.creation import create
from lakemirror.driver.tables.delta import (
    MIRROR_LOG,
    append,
    applied,
    applied_at,
    clear_unfinished,
    configuration,
    ddl,
    is_table,
    path_of,
    quoted,
    seen,
    snapshot,
    sql_text,
    unlimited,
)
from lakemirror.driver.tables.names import Location
from lakemirror.driver.tables.store import Unfit
from lakemirror.driver.tables.tombstones import DeltaFacts, folder_of

_NEEDS_MAPPING = re.compile(r"[ ,;{}()\n\t=]")
_RANGED = (NumericType, DateType, TimestampType, TimestampNTZType)
_NESTED = (StructType, ArrayType)
_COMMENT = "comment"
"""Where the metadata of a field has its comment."""
_MOST_STATISTICS = 32
MOST_COLUMNS = 1_600
"""The maximum number of columns of a mirror, without metadata.

A wider table can be created, but Spark cannot compile or plan its updates.
"""
SOURCE_PROPERTY = "lakemirror.source"
CHECKPOINT_PROPERTY = "lakemirror.checkpoint"
"""The checkpoint that the mirror belongs to (`lakemirror.driver.checkpoint.possession.Possessor`)."""
KEY_PROPERTY = "lakemirror.key"
MODE_PROPERTY = "lakemirror.mode"
COLUMNS_PROPERTY = "lakemirror.columns"
DELETE_PROPERTY = "lakemirror.delete"
SELECTION_PROPERTY = "lakemirror.selection"
RENAMING_PROPERTY = "lakemirror.renaming"
"""Columns that are still to get the values that rows have under a former name: new names by former ones."""
FILTER_PROPERTY = "lakemirror.filter"
TRACKED_PROPERTY = "lakemirror.trackedColumns"
INITIAL_PROPERTY = "lakemirror.initialValidFrom"
OWN_PROPERTY = "lakemirror.ownColumns"
EXPRESSIONS_PROPERTY = "lakemirror.expressions"
AGED_PROPERTY = "lakemirror.expressionsAged"
"""Whether stored rows may have values that were computed from columns of another type: true or false."""
SHARD_PROPERTY = "lakemirror.shard"
"""In a mirror of several shards: true. Facts about one shard have its name in the name of their property."""
SENT_PROPERTY = "lakemirror.sourceColumns"
"""The columns that the source has sent, as JSON. Others are the manifest's, or were added by hand."""
ORDER_PROPERTY = "lakemirror.ordering"
ORDERS_PROPERTY = "lakemirror.orders"
"""The orders that the mirror's rows and tombstones come from (`lakemirror.driver.orders.Orders`)."""
TOPICS_PROPERTY = "lakemirror.topics"
"""The topics whose offsets order changes: the ID of each, and the highest epoch that is declared for it."""
GAPS_PROPERTY = "lakemirror.gaps"
TOMBSTONES_PROPERTY = "lakemirror.tombstones"
"""Whether there are tombstones beside the mirror, so that their loss is noticed: true, or not set."""

_OWN_CATALOG = "spark_catalog"
"""The catalog that a session has by itself."""

MAPPING_PROPERTY = "delta.columnMapping.mode"
WIDENING_PROPERTY = "delta.enableTypeWidening"
VECTORS_PROPERTY = "delta.enableDeletionVectors"
CHANGE_FEED_PROPERTY = "delta.enableChangeDataFeed"
MAPPING, WIDENING, VECTORS = "columnMapping", "typeWidening", "deletionVectors"
"""Delta reader features that a mirror may have (Delta's PROTOCOL.md)."""
_ZONELESS = {"delta.feature.timestampNtz": "supported"}
"""What a table needs for times without a zone. Delta enables it automatically only in new tables."""
_MAPPED = {MAPPING_PROPERTY: "name", **_ZONELESS}
"""Column mapping, and a feature that every program can read.

With that feature, the protocol lists features, so programs without column mapping refuse the table. Column
mapping alone is reader version 2, and delta-rs then reads only nulls.
"""


class Mirror:
    """The Delta table at a location (`lakemirror.driver.tables.store.Store`).

    Reads its schema and properties once. Only one driver writes it.
    """

    keeps_events = True
    updates = True
    impossible = None

    def __init__(
        self,
        spark: SparkSession,
        location: Location,
        append_beside: Callable[[DataFrame, str], None] = append,
    ) -> None:
        """``append_beside`` appends rows to a table that belongs to this one."""
        self._spark = spark
        self._append_beside = append_beside
        self.location = location
        self.path = location.path or (self._catalog_path() if self._in_catalog() or self._adopt() else None)
        self.columns: dict[str, DataType] | None = None
        self.properties: dict[str, str] = {}
        self.features: frozenset[str] = frozenset()
        self.writer_features: frozenset[str] = frozenset()
        self.partitioned = False
        self.numbered = False
        """Whether there is an identity column, which Delta fills with numbers."""
        self.refresh()

    @property
    def exists(self) -> bool:
        return self.columns is not None

    def refresh(self) -> None:
        """Read schema and properties again."""
        newest = self._snapshot() if self.path is not None else None
        if newest is None or int(newest.version()) < 0:
            self.columns = None
            return
        about = newest.metadata()
        schema = StructType.fromJson(json.loads(about.schemaString()))
        self.properties = configuration(newest)
        metadata = {*metadata_of(self.properties.get(MODE_PROPERTY))}
        if SHARD_PROPERTY in self.properties:
            metadata.add(SHARD)
        self.columns = {field.name: field.dataType for field in schema.fields if field.name not in metadata}
        self.partitioned = not about.partitionColumns().isEmpty()
        self.numbered = any("delta.identity.step" in field.metadata for field in schema.fields)
        protocol = newest.protocol()
        self.features = _reader_features(protocol, self.properties)
        self.writer_features = frozenset(_listed(protocol.writerFeatures()))

    def create(
        self,
        columns: Mapping[str, DataType],
        properties: Mapping[str, str],
        key: Sequence[str] = (),
        *,
        avoided: Collection[str] = (),
        comments: Mapping[str, str] = MappingProxyType({}),
        comment: str | None = None,
        identities: Collection[str] = (),
    ) -> None:
        """Create the table, and its schema in the catalog, unless they exist.

        The table gets none of the features that are to be ``avoided``. ``comments`` are those of columns, and
        ``comment`` is that of the table. ``identities`` are columns in which Delta numbers the rows.
        """
        mapping = _MAPPED if needs_mapping(columns) else {}
        vectors = {VECTORS_PROPERTY: "false"} if VECTORS in avoided else {}
        settings = {**MIRROR_LOG, **mapping, **vectors, **_statistics(columns, key), **properties}
        fields = [
            *(_field(name, kind, comments.get(name)) for name, kind in columns.items()),
            *_metadata_fields(properties.get(MODE_PROPERTY)),
        ]
        if self.location.path and not identities and not any(map(_is_limited, columns.values())):
            create(self._spark, self.location.path, StructType(fields), settings, comment=comment)
        else:
            self._create_by_command(fields, settings, comment, identities)
        if self.path is None:
            self.path = self._catalog_path()
        self.refresh()

    def _create_by_command(
        self,
        fields: Sequence[StructField],
        properties: Mapping[str, str],
        comment: str | None,
        identities: Collection[str],
    ) -> None:
        """Create the table with the command of Spark SQL, which enters it in the catalog, too.

        It also prepares columns of kinds that Delta stores in a way of its own.
        """
        self._create_schema()
        place = self.location.path or self._default_path()
        if place is not None:
            clear_unfinished(self._spark, place)
        builder = DeltaTable.createIfNotExists(self._spark)
        builder = (
            builder.location(self.location.path)
            if self.location.path
            else builder.tableName(self.location.sql)
        )
        for each in fields:
            number = IdentityGenerator() if each.name in identities else None
            about = each.metadata.get(_COMMENT)
            builder = builder.addColumn(each.name, each.dataType, comment=about, generatedAlwaysAs=number)
        if comment is not None:
            builder = builder.comment(comment)
        for name, value in properties.items():
            builder = builder.property(name, value)
        builder.execute()

    def alter(
        self,
        add: Mapping[str, DataType],
        widen: Mapping[str, DataType],
        properties: Mapping[str, str],
        *,
        avoided: Collection[str] = (),
        comments: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Add and widen columns and set properties. Repeating this changes nothing.

        ``comments`` are those of columns that are added. Delta features that not every reader knows are
        enabled when they are first needed. If type widening is to be ``avoided``, the whole table is
        rewritten instead.
        """
        present = self.columns or {}
        new = {name: kind for name, kind in add.items() if name not in present}
        wider = {name: kind for name, kind in widen.items() if present.get(name) != kind}
        grown = {name: wider.pop(name) for name in list(wider) if isinstance(wider[name], _NESTED)}
        features: dict[str, str] = {}
        if needs_mapping({**new, **grown}) and self.properties.get(MAPPING_PROPERTY, "none") == "none":
            features |= _MAPPED
        if wider and WIDENING not in avoided:
            features[WIDENING_PROPERTY] = "true"
        if _has_zoneless({**new, **grown, **wider}) and "timestampNtz" not in self.features:
            features |= _ZONELESS
        self._set(features)
        changed = self._set(properties)  # first, so that they tell what a driver that dies now leaves undone
        if new:
            listed = ", ".join(_column(name, kind, comments.get(name)) for name, kind in new.items())
            self._spark.sql(f"ALTER TABLE {self.location.sql} ADD COLUMNS ({listed})")
        members = [each for name in grown for each in _added(present[name], grown[name], quoted(name))]
        if members:
            listed = ", ".join(f"{place} {ddl(kind)}" for place, kind in members)
            self._spark.sql(f"ALTER TABLE {self.location.sql} ADD COLUMNS ({listed})")
        if wider and WIDENING in avoided:
            self._rewrite(wider)
        else:
            for name, kind in wider.items():
                altered = f"ALTER COLUMN {quoted(name)} TYPE {ddl(kind)}"
                self._spark.sql(f"ALTER TABLE {self.location.sql} {altered}")
        if features or new or grown or wider or changed:
            self.refresh()

    def update(self, when: Column, values: Mapping[str, Column]) -> None:
        """Change values of stored rows, in one commit."""
        made: dict[str, str | Column] = {quoted(name): value for name, value in values.items()}
        self.delta().update(when, made)

    def unfit(self, columns: Mapping[str, DataType], key: Sequence[str]) -> Unfit | None:
        """Return what is too much. Any name can be stored, because column mapping allows it."""
        new = columns.keys() - (self.columns or {}).keys()
        if len(columns) <= MOST_COLUMNS or not new:
            return None
        return Unfit(f"more than {MOST_COLUMNS:,} columns (there would be {len(columns):,})", "columns")

    def needs(self, added: Mapping[str, DataType], *, wider: bool = False) -> str | None:
        """Return the Delta reader feature that the table needs once columns are added, or made ``wider``."""
        if wider:
            return WIDENING
        return MAPPING if needs_mapping(added) else None

    def _rewrite(self, kinds: Mapping[str, DataType]) -> None:
        """Rewrite all rows with columns of other types, in one commit."""
        frame = self.frame()
        wider = [
            F.col(quoted(name)).cast(kinds[name]).alias(name) if name in kinds else F.col(quoted(name))
            for name in frame.columns
        ]
        writer = frame.select(wider).write.format("delta").mode("overwrite").option("overwriteSchema", "true")
        writer.save(self.required_path)

    def _set(self, properties: Mapping[str, str]) -> bool:
        """Set properties, and return whether anything had to be set."""
        changed = {key: value for key, value in properties.items() if self.properties.get(key) != value}
        if changed:
            listed = ", ".join(f"{sql_text(key)} = {sql_text(value)}" for key, value in changed.items())
            self._spark.sql(f"ALTER TABLE {self.location.sql} SET TBLPROPERTIES ({listed})")
        return bool(changed)

    def show_current(self) -> None:
        """Create or replace the view in the catalog that shows the current rows of a mirror of versions.

        Raises Spark's AnalysisException if the catalog has no views, or has a table of that name.
        """
        view = Location(name=f"{self.location.name}__current")
        shard = [SHARD] if SHARD_PROPERTY in self.properties else []
        columns = ", ".join(map(quoted, [*shard, *(self.columns or ())]))
        rows = f"SELECT {columns} FROM {self.location.sql} WHERE __is_current"
        self._spark.sql(f"CREATE OR REPLACE VIEW {view.sql} AS {rows}")

    def drop(self) -> None:
        """Delete the table with its files, and remove it from the catalog if it is there."""
        if self.location.name is not None:
            self._spark.sql(f"DROP TABLE IF EXISTS {self.location.sql}")
        if self.path is not None:
            delete_folder(self._spark, self.path)

    def delta(self, spark: SparkSession | None = None) -> DeltaTable:
        return DeltaTable.forPath(spark or self._spark, self.required_path)

    def frame(self, version: int | None = None) -> DataFrame:
        """Return the table's rows with metadata columns, now or at a version."""
        reader = self._spark.read.format("delta")
        if version is not None:
            reader = reader.option("versionAsOf", version)
        return reader.load(self.required_path)

    @property
    def version(self) -> int | None:
        """The newest version, or None without a table. Notes which checkpoint that version belongs to."""
        if not self.exists:
            return None
        newest = self._snapshot()
        possessor = newest.metadata().configuration().get(CHECKPOINT_PROPERTY)
        if possessor.isDefined():
            self.properties[CHECKPOINT_PROPERTY] = str(possessor.get())
        return int(newest.version())

    @property
    def version_seen(self) -> int | None:
        return int(seen(self._spark, self.required_path).version()) if self.exists else None

    def commits(self, after: int, until: int) -> list[Commit]:
        """Return the commits after one version, up to another, except for those that Delta has cleaned up."""
        return commits.between(self._spark, self.required_path, after, until)

    def applied(self, app_id: str) -> int | None:
        """Return the newest transaction version in the log for ``app_id``."""
        return applied(self._spark, self.required_path, app_id)

    def applied_seen(self, app_id: str) -> int | None:
        return applied_at(seen(self._spark, self.required_path), app_id)

    def side(self, name: str) -> str:
        """Return the path of a table that belongs to this one. Vacuum ignores folders with an underscore."""
        return f"{self.required_path}/_{name}"

    def facts(self, shard: str | None) -> DeltaFacts:
        """Return what `lakemirror.driver.tables.tombstones` keeps beside the table."""
        return DeltaFacts(self._spark, self.side(folder_of(shard)), self._append_beside)

    @property
    def required_path(self) -> str:
        """The path of the table. Raises ValueError if the table does not exist."""
        if self.path is None:
            raise ValueError(f"table {self.location} does not exist")
        return self.path

    def _snapshot(self) -> Any:
        return snapshot(self._spark, self.required_path)

    def _in_catalog(self) -> bool:
        return self.location.name is not None and self._spark.catalog.tableExists(self.location.sql)

    def _adopt(self) -> bool:
        """Enter a table that an earlier process left into the session's catalog, if that is in memory.

        Such a catalog forgets its tables with the process, and their files stay where it puts new ones. The
        table's properties say whose it is, as they do at a path. Returns whether there is a table.
        """
        if not self._forgets():
            return False
        place = self._default_path()
        if place is None or not is_table(self._spark, place):
            return False
        self._create_schema()
        entry = f"CREATE TABLE IF NOT EXISTS {self.location.sql} USING delta LOCATION {sql_text(place)}"
        self._spark.sql(entry)
        return True

    def _forgets(self) -> bool:
        """Return whether the name belongs to a catalog that is in memory."""
        settings = self._spark.conf
        kept = settings.get("spark.sql.catalogImplementation", "in-memory") != "in-memory"
        return self.location.name is not None and not kept

    def _create_schema(self) -> None:
        """Create the table's schema in the catalog, unless it exists.

        A user without the right to create a schema can have it created in advance.
        """
        schema = self.location.parts[:-1]
        if schema:
            named = ".".join(map(quoted, schema))
            if not self._spark.catalog.databaseExists(named):
                self._spark.sql(f"CREATE SCHEMA IF NOT EXISTS {named}")

    def _default_path(self) -> str | None:
        """Return where the session's own catalog puts a new table, or None for other catalogs.

        Its schema may not exist yet.
        """
        state: Any = self._spark._jsparkSession.sessionState()
        identifier = state.sqlParser().parseTableIdentifier(self.location.sql)
        named, schema = identifier.catalog(), identifier.database()
        if (named.get() if named.isDefined() else self._spark.catalog.currentCatalog()) != _OWN_CATALOG:
            return None
        path = java_class(self._spark, "org.apache.hadoop.fs.Path")
        if schema.isDefined() and not state.catalog().databaseExists(schema.get()):
            place = [f"{schema.get().lower()}.db", self.location.parts[-1].lower()]  # SessionCatalog
            return "/".join([str(path(state.conf().warehousePath()).toString()).rstrip("/"), *place])
        return str(path(state.catalog().defaultTablePath(identifier)).toString())

    def _catalog_path(self) -> str:
        return path_of(DeltaTable.forName(self._spark, self.location.sql))


@cache
def _metadata_fields(mode: str | None) -> list[StructField]:
    kinds = ", ".join(f"{name} {kind}" for name, kind in metadata_of(mode).items())
    found = DataType.fromDDL(kinds)
    assert isinstance(found, StructType)
    return [_field(each.name, each.dataType, COMMENTS.get(each.name)) for each in found.fields]


def _field(name: str, kind: DataType, comment: str | None) -> StructField:
    return StructField(name, kind, metadata={} if comment is None else {_COMMENT: comment})


def _is_limited(kind: DataType) -> bool:
    """Return whether a type is or contains a text of a limited length."""
    return unlimited(kind) != kind


def _has_zoneless(kinds: Mapping[str, DataType]) -> bool:
    """Return whether a type is or contains TIMESTAMP_NTZ."""
    return any("timestamp_ntz" in kind.simpleString() for kind in kinds.values())


def _reader_features(protocol: Any, properties: Mapping[str, str]) -> frozenset[str]:
    """Return the features that a reader of the table needs. Reader version 2 stands for column mapping."""
    mapped = properties.get(MAPPING_PROPERTY, "none") != "none"
    return frozenset([*_listed(protocol.readerFeatures()), *([MAPPING] if mapped else [])])


def _listed(features: Any) -> list[str]:
    """Return the names in a Scala Option of a Set."""
    text = str(features.get().mkString(",")) if features.isDefined() else ""
    return text.split(",") if text else []


def _column(name: str, kind: DataType, comment: str | None) -> str:
    """Return a column definition for ADD COLUMNS."""
    return f"{quoted(name)} {ddl(kind)}" + (f" COMMENT {sql_text(comment)}" if comment else "")


def needs_mapping(columns: Mapping[str, DataType]) -> bool:
    """Return whether a name requires column mapping in Delta. These are names that Parquet once refused."""
    return any(_NEEDS_MAPPING.search(name) or _nested(kind) for name, kind in columns.items())


def _nested(kind: DataType) -> bool:
    if isinstance(kind, ArrayType):
        return _nested(kind.elementType)
    if isinstance(kind, MapType):
        return _nested(kind.keyType) or _nested(kind.valueType)
    if isinstance(kind, StructType):
        return needs_mapping({field.name: field.dataType for field in kind.fields})
    return False


def _added(before: DataType, after: DataType, place: str) -> Iterator[tuple[str, DataType]]:
    """Return the members that were added to structs, as paths below ``place``, with their types."""
    if isinstance(before, ArrayType) and isinstance(after, ArrayType):
        yield from _added(before.elementType, after.elementType, f"{place}.element")
    elif isinstance(before, StructType) and isinstance(after, StructType):
        kinds = {each.name: each.dataType for each in before.fields}
        for each in after.fields:
            inner = f"{place}.{quoted(each.name)}"
            if each.name in kinds:
                yield from _added(kinds[each.name], each.dataType, inner)
            else:
                yield inner, each.dataType


def _statistics(columns: Mapping[str, DataType], key: Sequence[str]) -> dict[str, str]:
    """Return the property that selects the columns with minimum and maximum values for each file.

    These are the key, which batches use to skip files, and numbers and times, which people use to do so.
    Other texts and metadata are left out, because their statistics took a fifth of the writing time.
    """
    texts = [name for name in key if isinstance(columns.get(name), StringType)]
    plain = [name for name, kind in columns.items() if isinstance(kind, _RANGED)]
    ordered = sorted(plain, key=lambda name: name not in key)
    listed = (texts + ordered)[:_MOST_STATISTICS]
    if not listed:
        return {"delta.dataSkippingNumIndexedCols": "0"}
    return {"delta.dataSkippingStatsColumns": ",".join(map(quoted, listed))}
