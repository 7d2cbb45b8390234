"""Determines which schemas a table's events have in a batch: embedded, or inferred from the values."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, StructType

from lakemirror.driver.parse.envelopes.chooser import metadata
from lakemirror.driver.parse.values.connect import (
    Field,
    connector_of,
    parse_envelope,
    parse_key,
    schemaless,
)
from lakemirror.driver.parse.values.decode import RowDecoder
from lakemirror.driver.parse.values.defaults import is_constant
from lakemirror.driver.parse.values.inference import (
    SHAPE,
    Objects,
    columns,
    members,
    objects_of,
    of_members,
    resolve,
    shape,
)
from lakemirror.driver.plan.drift import grown
from lakemirror.driver.plan.lives import Seen
from lakemirror.driver.plan.mirrored import MirroredTable
from lakemirror.driver.profile.overview import Changes, Group, Shape, TableOverview
from lakemirror.driver.tables.names import TableName

OTHER: Final = "other"
"""Stands for whatever wrote a schema that is not Debezium's."""


@dataclass(frozen=True)
class Schema:
    """The schema of a group of events: the source's columns and their types in Spark.

    ``keys`` are the key columns of its records, the most frequent first; there are several if records differ.
    ``connector`` wrote an embedded schema (None: unknown).
    """

    group: Group
    fields: Sequence[Field]
    types: Mapping[str, DataType]
    keys: Sequence[Sequence[str]] = ()
    connector: str | None = None

    def changes(self, *, feed: bool) -> list[Changes]:
        """Return the streamed changes that show their columns and are ordered by positions of a log.

        ``feed`` says that they come from a change feed, whose versions are such positions.
        """
        if self.group.schema_id is None:
            return []
        if feed:
            return [each._replace(log=each.topic) for each in self.group.changes]
        return [each for each in self.group.changes if each.log is not None]

    def says(self, column: str, changes: Sequence[Changes]) -> Seen:
        """Return what the events of this schema say about a column of the source.

        ``changes`` are those among them that may say that it is there or not. Events without a schema say
        nothing.
        """
        if self.group.schema_id is None:
            return Seen()
        last = max((each.last for each in changes), default=None)
        found = next((each for each in self.fields if each.name == column), None)
        if found is None:
            return Seen(absent=last)
        constant = is_constant(found, self.connector)
        return Seen(present=last, defaults=((self.group.first_seq or b"", found),) if constant else ())


@dataclass(frozen=True)
class _Told:
    """What records without a schema say: types and key columns."""

    types: Mapping[str, DataType]
    keys: Sequence[Sequence[str]]


class Schemas:
    """The schemas of one table. Each embedded schema is parsed once."""

    def __init__(self, table: MirroredTable) -> None:
        self._table = table
        self._is_metadata = metadata(table.spec.envelope)
        self._of_debezium = table.spec.envelope.format in ("debezium", "debezium-flat")
        self._parsed: dict[tuple[int | None, int | None], Schema] = {}

    def reads_values(self, seen: TableOverview) -> bool:
        """Return whether `of` reads values of a batch that `shown_by_values` can read for many tables."""
        if not _lacks_schemas(seen) or self._table.settings.mode == "append":
            return False
        return self._shaped(seen) is None and not objects_of(self._table.fed or {})

    def of(
        self,
        changes: DataFrame,
        seen: TableOverview,
        documents: Mapping[int, str],
        shown: Row | None = None,
    ) -> list[Schema]:
        """Return the schemas of a batch's changes, oldest first.

        ``documents`` are the embedded schemas, by ID, and ``shown`` is what `shown_by_values` has found, if
        it was asked.
        """
        told = _Told({}, ())
        if _lacks_schemas(seen):
            told = self._shaped(seen) or self._told(changes, shown)
        found = []
        for identity, group in sorted(seen.groups.items(), key=lambda item: item[1].first_seq or b""):
            schema = self._parsed.get(identity)
            if schema is None or None in identity:
                schema = self._parsed[identity] = self._parse(group, documents, told)
            found.append(replace(schema, group=group))
        return found

    def _parse(self, group: Group, documents: Mapping[int, str], told: _Told) -> Schema:
        if group.schema_id is not None:
            document = parse_envelope(documents[group.schema_id])
            fields: Sequence[Field] = [each for each in document if not self._is_metadata(each.name)]
            types: Mapping[str, DataType] = RowDecoder(fields).types
            connector = connector_of(documents[group.schema_id]) if self._of_debezium else OTHER
        else:
            types = told.types
            fields = [schemaless(name) for name in types]
            connector = None
        keys: Sequence[Sequence[str]] = told.keys
        if group.key_schema_id is not None:
            keys = [[each.name for each in parse_key(documents[group.key_schema_id])]]
        return Schema(group, fields, types, keys, connector)

    def _shaped(self, seen: TableOverview) -> _Told | None:
        """Return what the shapes of records without a schema say, or None if the values must be read.

        The values must be read if there is a new column, and if there are objects, which may have new
        members.
        """
        table, existing = self._table, self._table.fed
        if existing is None:
            return None
        if any(map(_has_members, existing.values())):
            return None
        shapes: list[Shape] = []
        for group in seen.groups.values():
            if group.shapes is None:
                return None
            shapes += group.shapes
        settings = table.settings.columns
        names = {name for each in shapes for name in each.names or () if not self._is_metadata(name)}
        if any(name not in existing and (settings is None or settings.keeps(name)) for name in names):
            return None
        return _Told(existing, _keys_of(shapes))

    def _told(self, changes: DataFrame, shown: Row | None) -> _Told:
        """Return the columns and keys of the records without a schema.

        A column's type is the mirror's (plus any new members of objects), otherwise the manifest's, otherwise
        the one that the values show. While all of its values are null, it has no type.
        """
        table = self._table
        existing = table.fed or {}
        objects = objects_of(existing)
        with_keys = table.settings.mode == "append"
        row = None if objects or with_keys else shown
        if row is None:
            row = changes.agg(*_aggregates(objects, keys=with_keys)).first()
        assert row is not None
        inferred = columns(*(row[each] for each in SHAPE))
        inferred = {name: kind for name, kind in inferred.items() if not self._is_metadata(name)}
        types = {**existing, **resolve(inferred, existing, table.declared)}
        for name in existing.keys() & inferred.keys() - table.declared.keys():
            types[name] = grown(existing[name], inferred[name] or existing[name])
        for number, where in enumerate(objects):
            name, found = where.path[0], of_members(row[f"members_{number}"], where)
            if found is not None and name not in table.declared:
                types[name] = grown(types[name], found)
        return _Told(types, _keys(row))


def shown_by_values(events: DataFrame, names: Collection[TableName]) -> dict[TableName, Row]:
    """Return what the values of several tables show, in one aggregation, for `Schemas.of`.

    ``events`` are classified. Each table has to be one that `Schemas.reads_values`. Those whose names are
    spelled in several ways are left out.
    """
    changes = events.where(F.col("kind") == "change")
    mine = changes.where(F.col("table").isin(sorted({each.table for each in names})))
    by = [F.col(part).alias(f"of_{part}") for part in ("database", "schema", "table")]
    found = defaultdict[TableName, list[Row]](list)
    for row in mine.groupBy(*by).agg(*_aggregates((), keys=False)).collect():
        found[TableName(row["of_database"], row["of_schema"], row["of_table"])].append(row)
    return {name: found[name][0] for name in names if len(found[name]) == 1}


def _aggregates(objects: Sequence[Objects], *, keys: bool) -> list[Column]:
    """Return the types of records without a schema, the members of ``objects``, and what `_keys` needs.

    ``keys`` says that a record with nothing but a key shows the columns of the key.
    """
    plain = F.col("schema_id").isNull()
    more = [F.when(F.json_object_keys("key_text").isNotNull(), F.col("key_text"))] if keys else []
    images = F.when(plain, F.coalesce("row_text", "before_text", *more))
    key = F.when(F.col("key_schema_id").isNull(), F.json_object_keys("key_text"))
    return [
        *shape(images),
        *(members(images, where).alias(f"members_{number}") for number, where in enumerate(objects)),
        F.mode(F.to_json(key)).alias("key"),
        F.min(F.array_sort(key)).alias("least_key"),
        F.max(F.array_sort(key)).alias("greatest_key"),
    ]


def _lacks_schemas(seen: TableOverview) -> bool:
    """Return whether some events have no schema, of their value or of their key."""
    return any(None in identity for identity in seen.groups)


def _has_members(kind: DataType) -> bool:
    return isinstance(kind, StructType) or (isinstance(kind, ArrayType) and _has_members(kind.elementType))


def _keys_of(shapes: Sequence[Shape]) -> list[list[str]]:
    """Return the key columns of records without a key schema.

    The most frequent ones come first, then others that differ.
    """
    events = Counter[tuple[str, ...]]()
    for each in shapes:
        if each.key is not None:
            events[each.key] += each.events
    found: list[list[str]] = []
    for key, _ in events.most_common():
        if all(set(key) != set(other) for other in found):
            found.append(list(key))
    return found


def _keys(row: Row) -> list[list[str]]:
    """Return the key columns of records without a key schema.

    The most frequent ones come first, then others that differ.
    """
    if row["key"] is None:
        return []
    found: list[list[str]] = [json.loads(row["key"])]
    for other in (row["least_key"], row["greatest_key"]):
        if other is not None and all(set(other) != set(each) for each in found):
            found.append(list(other))
    return found
