"""Names, owners and locations of source tables and their mirrors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from urllib.parse import quote

from pyspark.sql import Column
from pyspark.sql import functions as F

from lakemirror.api.tables import Target

_NEEDS_QUOTES = re.compile(r'[."]')
_TAKEN = (".", "..", "_delta_log", "_files", "_tombstones")
"""Folder names with a meaning to file systems, Delta (`DeltaTableUtils.findDeltaTableRoot`) or mirrors."""


@dataclass(frozen=True, eq=False)
class TableName:
    """A source table as its envelope names it. ``schema`` is None if the source has none.

    Names are equal if they are shown as the same text, which is what identifies a table in manifests, mirrors
    and the audit. A record may call the database what another record of the table calls the schema: a topic
    does not tell what its parts are.
    """

    database: str | None
    schema: str | None
    table: str

    def __str__(self) -> str:
        """The parts, joined by dots. A part that contains a dot or a quote is in double quotes."""
        return ".".join(map(_shown, self.parts))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TableName) and self.parts == other.parts

    def __hash__(self) -> int:
        return hash(self.parts)

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts that there are; an empty part is none."""
        return tuple(part for part in (self.database, self.schema, self.table) if part)

    def spellings(self) -> list[TableName]:
        """Return all names that equal this one, the one with a database first."""
        *above, table = self.parts
        if len(above) != 1:
            return [self]
        return [TableName(above[0], None, table), TableName(None, above[0], table)]


def _shown(part: str) -> str:
    return '"' + part.replace('"', '""') + '"' if _NEEDS_QUOTES.search(part) else part


def name_of(database: Column, schema: Column, table: Column) -> Column:
    """STRING: the same text as of a `TableName`, from columns; null if nothing is known."""
    parts = [
        F.when(
            each.rlike(_NEEDS_QUOTES.pattern),
            F.concat(F.lit('"'), F.replace(each, F.lit('"'), F.lit('""')), F.lit('"')),
        ).when(each != "", each)
        for each in (database, schema, table)
    ]
    return F.nullif(F.concat_ws(".", *parts), F.lit(""))


def owner_of(pipeline: str, table: TableName | str) -> str:
    """Return a mirror's `SOURCE_PROPERTY`: which pipeline owns it, and which source table it mirrors."""
    return f"{pipeline}/{table}"


@dataclass(frozen=True)
class Location:
    """The location of a mirror: a path, or the name of a table in the catalog."""

    path: str | None = None
    name: str | None = None

    def __str__(self) -> str:
        return self.path or self.name or ""

    @property
    def sql(self) -> str:
        """The table's name in SQL."""
        if self.path is not None:
            return f"delta.`{self.path.replace('`', '``')}`"
        return ".".join(f"`{part}`" for part in self.parts)

    @property
    def parts(self) -> list[str]:
        """The parts of a name in the catalog. Empty for a path."""
        return self.name.split(".") if self.name is not None else []


def locate(target: Target, table: TableName, groups: Mapping[str, str] = MappingProxyType({})) -> Location:
    """Fill a target's placeholders. ``groups`` take precedence over the parts of the table's name.

    In a path, all values are percent-encoded.
    """
    parts = {
        "db": table.database or "default",
        "schema": table.schema or table.database or "default",
        "table": table.table,
        **groups,
    }
    if target.path is not None:
        encoded = {name: quote(value, safe="") for name, value in parts.items()}
        return Location(path="/".join(_folder(part, encoded) for part in target.path.split("/")))
    filled = re.sub(r"\{(\w+)\}", lambda placeholder: parts[placeholder[1]], target.table or "")
    return Location(name=filled)


def _folder(part: str, names: Mapping[str, str]) -> str:
    """Fill one part of a target's path with encoded ``names``, and avoid folders with a special meaning."""
    filled = part
    for name, value in names.items():
        filled = filled.replace(f"{{{name}}}", value)
    if filled == part:
        return part
    if not filled:
        return "%"  # unambiguous: encoded names have two digits after it
    return f"%{ord(filled[0]):02X}{filled[1:]}" if filled in _TAKEN else filled
