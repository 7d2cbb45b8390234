"""Which schemas a table's events have in a batch: embedded, or told from the values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from lakemirror.driver.overview import Group, TableOverview
from lakemirror.driver.table.mirrored import MirroredTable
from lakemirror.driver.values.connect import Field, parse_envelope, parse_key, schemaless
from lakemirror.driver.values.decode import RowDecoder
from lakemirror.driver.values.inference import infer, resolve


@dataclass(frozen=True)
class Schema:
    """The schema of a group of events: the source's columns, their types in Spark, and the names of key
    columns.
    """

    group: Group
    fields: Sequence[Field]
    types: Mapping[str, DataType]
    key: Sequence[str]


class Schemas:
    """The schemas of one table; an embedded one is parsed once."""

    def __init__(self, table: MirroredTable) -> None:
        self._table = table
        self._parsed: dict[tuple[int | None, int | None], Schema] = {}

    def of(self, changes: DataFrame, seen: TableOverview, documents: Mapping[int, str]) -> list[Schema]:
        """The schemas of a batch's changes, oldest first; ``documents`` are the embedded ones by id."""
        found = []
        for identity, group in sorted(seen.groups.items(), key=lambda item: item[1].first_seq or b""):
            schema = self._parsed.get(identity)
            if schema is None or group.schema_id is None:
                schema = self._parsed[identity] = self._parse(changes, group, documents)
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
            key = [each.name for each in parse_key(documents[group.key_schema_id])]
        else:
            key = _names_of_key(changes)
        return Schema(group, fields, types, key)

    def _inferred(self, changes: DataFrame) -> dict[str, DataType]:
        """Types of columns without schema: the mirror's, then those of the manifest, then what the values
        say.
        """
        table = self._table
        texts = F.coalesce("row_text", "before_text").alias("text")
        images = changes.where("schema_id IS NULL").select("table", texts)
        back = {mirror: source for source, mirror in table.rename.items()}
        existing = {back.get(name, name): kind for name, kind in (table.mirror.columns or {}).items()}
        found = resolve(infer(images).get(table.name.table, {}), existing, table.declared)
        return {**{name: kind for name, kind in existing.items() if name != table.soft}, **found}


def _names_of_key(changes: DataFrame) -> list[str]:
    """The key columns of records without key schema, as the first of them has them."""
    keyed = changes.where("key_text IS NOT NULL AND key_schema_id IS NULL")
    first = keyed.select(F.json_object_keys("key_text")).first()
    return [] if first is None else list(first[0] or ())
