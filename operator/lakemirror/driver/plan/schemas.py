"""Determines which schemas a table's events have in a batch: embedded, or inferred from the values."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, StructType

from lakemirror.driver.parse.envelopes.chooser import metadata
from lakemirror.driver.parse.values.connect import Field, parse_envelope, parse_key, schemaless
from lakemirror.driver.parse.values.decode import RowDecoder
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
from lakemirror.driver.profile.overview import Group, Shape, TableOverview
from lakemirror.driver.sequence import as_bytes


@dataclass(frozen=True)
class Schema:
    """The schema of a group of events: the source's columns and their types in Spark.

    ``keys`` are the key columns of its records, the most frequent first; there are several if records differ.
    ``told`` says when records without a schema had a column and when they did not. An embedded schema has all
    columns.
    """

    group: Group
    fields: Sequence[Field]
    types: Mapping[str, DataType]
    keys: Sequence[Sequence[str]] = ()
    told: Mapping[str, Seen] = field(default_factory=dict)

    def says(self, column: str) -> Seen:
        """Return what the events of this schema say about a column of the source."""
        if self.group.schema_id is None:
            return self.told.get(column, Seen(typed=False))
        first, last = self.group.first_seq or b"", self.group.last_seq or b""
        found = next((each for each in self.fields if each.name == column), None)
        if found is None:
            return Seen(absent=last, typed=False)
        scalar = found.items is None and not found.fields
        return Seen(present=last, defaults=((first, found),) if scalar and found.default is not None else ())


@dataclass(frozen=True)
class _Told:
    """What records without a schema say: types, key columns, and when a column was present."""

    types: Mapping[str, DataType]
    keys: Sequence[Sequence[str]]
    columns: Mapping[str, Seen]


class Schemas:
    """The schemas of one table. Each embedded schema is parsed once."""

    def __init__(self, table: MirroredTable) -> None:
        self._table = table
        self._is_metadata = metadata(table.spec.envelope)
        self._parsed: dict[tuple[int | None, int | None], Schema] = {}

    def of(self, changes: DataFrame, seen: TableOverview, documents: Mapping[int, str]) -> list[Schema]:
        """Return the schemas of a batch's changes, oldest first.

        ``documents`` are the embedded schemas, by ID.
        """
        told = _Told({}, (), {})
        if any(None in identity for identity in seen.groups):
            told = self._shaped(seen) or self._told(changes)
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
        else:
            types = told.types
            fields = [schemaless(name) for name in types]
        keys: Sequence[Sequence[str]] = told.keys
        if group.key_schema_id is not None:
            keys = [[each.name for each in parse_key(documents[group.key_schema_id])]]
        return Schema(group, fields, types, keys, told.columns)

    def _shaped(self, seen: TableOverview) -> _Told | None:
        """Return what the shapes of records without a schema say, or None if the values must be read.

        The values must be read if there is a new column or a first null, and if there are objects, which may
        have new members.
        """
        table, existing = self._table, self._table.fed
        if existing is None or (seen.nulls and not table.writes_nulls):
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
        rows = [each for each in shapes if each.row and each.names is not None]
        told = {name: _of_shapes(name, rows) for name in existing}
        told |= {name: replace(_of_shapes(name, rows), typed=False) for name in table.lives.untyped}
        if not table.writes_nulls:
            told = {name: each.without_absence() for name, each in told.items()}
        return _Told(existing, _keys_of(shapes), told)

    def _told(self, changes: DataFrame) -> _Told:
        """Return the columns and keys of the records without a schema.

        A column's type is the mirror's (plus any new members of objects), otherwise the manifest's, otherwise
        the one that the values show. While all of its values are null, it has no type.
        """
        table = self._table
        existing = table.fed or {}
        known = [*existing, *(name for name in table.lives.untyped if name not in existing)]
        objects = objects_of(existing)
        events = table.settings.mode == "append"
        row = _aggregated(changes, known, nulls=not table.writes_nulls, objects=objects, keys=events)
        inferred = columns(*(row[each] for each in SHAPE))
        inferred = {name: kind for name, kind in inferred.items() if not self._is_metadata(name)}
        types = {**existing, **resolve(inferred, existing, table.declared)}
        for name in existing.keys() & inferred.keys() - table.declared.keys():
            types[name] = grown(existing[name], inferred[name] or existing[name])
        for number, where in enumerate(objects):
            name, shown = where.path[0], of_members(row[f"members_{number}"], where)
            if shown is not None and name not in table.declared:
                types[name] = grown(types[name], shown)
        table.writes_nulls = table.writes_nulls or bool(row["nulls"])
        seen = _seen(row, known)
        new = [name for name in inferred if name not in known]
        if new:
            seen |= _seen(_aggregated(changes, new, shapes=False), new)
        if not table.writes_nulls:
            seen = {name: each.without_absence() for name, each in seen.items()}
        seen = {name: replace(each, typed=name in types) for name, each in seen.items()}
        return _Told(types, _keys(row), seen)


def _aggregated(
    changes: DataFrame,
    names: Collection[str],
    *,
    shapes: bool = True,
    nulls: bool = False,
    objects: Sequence[Objects] = (),
    keys: bool = False,
) -> Row:
    """Compute what `_seen` and `_keys` need, in one pass over the records without a schema.

    ``objects`` are those whose members are wanted. ``keys`` says that a record with nothing but a key shows
    the columns of the key.
    """
    plain = F.col("schema_id").isNull()
    image = F.when(plain, F.col("row_text"))
    there = F.json_object_keys(image)
    aggregates: list[Column] = []
    more = [F.when(F.json_object_keys("key_text").isNotNull(), F.col("key_text"))] if keys else []
    for number, name in enumerate(names):
        has = F.array_contains(there, name)
        aggregates += [
            F.max(F.when(has, F.col("seq"))).alias(f"present_{number}"),
            F.max(F.when(~has, F.col("seq"))).alias(f"absent_{number}"),
            F.min(F.when(~has, F.col("seq"))).alias(f"alone_{number}"),
        ]
    if shapes:
        images = F.when(plain, F.coalesce("row_text", "before_text", *more))
        key = F.when(F.col("key_schema_id").isNull(), F.json_object_keys("key_text"))
        aggregates += [
            *shape(images),
            *(members(images, where).alias(f"members_{number}") for number, where in enumerate(objects)),
            F.mode(F.to_json(key)).alias("key"),
            F.min(F.array_sort(key)).alias("least_key"),
            F.max(F.array_sort(key)).alias("greatest_key"),
            (F.max(_has_null(image)) if nulls else F.lit(False)).alias("nulls"),
        ]
    row = changes.agg(*aggregates).first()
    assert row is not None
    return row


def _has_members(kind: DataType) -> bool:
    return isinstance(kind, StructType) or (isinstance(kind, ArrayType) and _has_members(kind.elementType))


def _has_null(image: Column) -> Column:
    """BOOLEAN: whether a JSON object contains a null value."""
    return F.exists(F.map_values(F.from_json(image, "map<string,string>")), lambda value: value.isNull())


def _seen(row: Row, names: Collection[str]) -> dict[str, Seen]:
    return {
        name: Seen(
            absent=as_bytes(row[f"absent_{number}"]),
            present=as_bytes(row[f"present_{number}"]),
            alone=as_bytes(row[f"alone_{number}"]),
        )
        for number, name in enumerate(names)
    }


def _of_shapes(name: str, rows: Sequence[Shape]) -> Seen:
    """Return what rows of these shapes say about a column."""
    there = [each for each in rows if name in (each.names or ())]
    absent = [each for each in rows if name not in (each.names or ())]
    return Seen(
        absent=max((each.last_seq for each in absent), default=None),
        present=max((each.last_seq for each in there), default=None),
        alone=min((each.first_seq for each in absent), default=None),
    )


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
