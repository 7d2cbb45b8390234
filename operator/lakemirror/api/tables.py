"""What becomes of each table: where it goes, how it is kept, and which settings belong to which table."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, field_validator, model_validator

from lakemirror.api.base import IS_SET, ColumnName, Matching, Model, NewColumnName, Token, rules, wrong
from lakemirror.api.checks import sql_type
from lakemirror.api.source import first_twice

PLACEHOLDERS = ("db", "schema", "table")

Mode = Literal["append", "scd1", "scd2"]
Reader = Literal["all", "delta-rs", "duckdb", "polars", "spark", "trino"]

LACKING: dict[str, frozenset[str]] = {
    "delta-rs": frozenset({"columnMapping", "deletionVectors", "typeWidening"}),
    "duckdb": frozenset(),
    "polars": frozenset({"columnMapping", "typeWidening"}),
    "spark": frozenset(),
    "trino": frozenset({"typeWidening"}),
}
"""Reader features of Delta that a mirror may get and that a program does not read, by program: delta-rs 1.6,
DuckDB 1.5, Polars 2.1 (tested), Spark with Delta 4.0, Trino (``SUPPORTED_READER_FEATURES`` of its connector).
"""


_PART = r'([^."\s]([^."]*[^."\s])?|"([^"]|"")+")'


@lru_cache(maxsize=10_000)
def parts_of(name: str) -> tuple[str, ...]:
    """The parts of a dotted name; one in double quotes may have dots itself."""
    return tuple(_unquoted(part[0]) for part in re.finditer(r'"(?:[^"]|"")*"|[^."]+', name))


def _unquoted(part: str) -> str:
    return part[1:-1].replace('""', '"') if part.startswith('"') else part


class AmbiguousTable(ValueError):
    """Two of the listed sources match the same table."""


def matches(source: str, table: str) -> bool:
    """Whether ``source`` is the dotted name ``table`` or whole parts at its end: public.t of shop.public.t.
    Parts with a dot of their own are in double quotes in both.
    """
    parts = parts_of(source)
    return parts_of(table)[-len(parts) :] == parts


def match_table(sources: Iterable[str], table: str) -> str | None:
    """The one of ``sources`` that means ``table`` (database.schema.table); AmbiguousTable if two do."""
    found = [source for source in sources if matches(source, table)]
    if len(found) > 1:
        raise AmbiguousTable(
            f"table {table} is matched by both {found[0]} and {found[1]}: keep one, or write longer names"
        )
    return found[0] if found else None


def _template(text: str) -> str:
    rest = text
    for name in re.findall(r"\{([^{}]*)\}", text):
        if name not in PLACEHOLDERS:
            raise wrong(
                f"unknown placeholder {{{name}}}: the placeholders are {{db}}, {{schema}} and {{table}}"
            )
        rest = rest.replace(f"{{{name}}}", "")
    if "{" in rest or "}" in rest:
        raise wrong(f"{text!r} has an unmatched brace: the placeholders are {{db}}, {{schema}} and {{table}}")
    return text


_HOLE = r"\{(db|schema|table)\}"
_NAME = rf"([A-Za-z0-9_]|{_HOLE})+"


class Target(Model):
    """Where the mirror of a table stands: a path or a table's name. Placeholders: {db} {schema} {table}."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            ("has(self.path) != has(self.table)", "exactly one of path and table is needed")
        )
    )

    path: (
        Annotated[
            str,
            Field(max_length=1024),
            Matching(
                rf"^([^{{}}\s]|{_HOLE})(([^{{}}]|{_HOLE})*([^{{}}\s]|{_HOLE}))?$", "is not a valid path"
            ),
        ]
        | None
    ) = None
    """A path on any file system that Hadoop knows, like s3a://lake/{schema}/{table}."""
    table: (
        Annotated[
            str,
            Field(max_length=767),
            Matching(
                rf"^{_NAME}(\.{_NAME}){{0,2}}$",
                "is not a valid table name: up to three words of letters, digits and '_', separated by dots",
            ),
        ]
        | None
    ) = None
    """The name of a table in the catalog, like lake.{schema}.{table}."""
    compatibility: (
        Annotated[
            list[Reader],
            Field(min_length=1, max_length=6, json_schema_extra=IS_SET),
        ]
        | None
    ) = None
    """Programs that must be able to read the mirror. It gets no feature of Delta that one of them lacks, so
    that the table is rewritten when a column is widened, and refused when a name needs column mapping.
    """

    @field_validator("path", "table", mode="before")
    @classmethod
    def _placeholders(cls, value: object) -> object:
        return _template(value) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _one(self) -> Self:
        twice = first_twice([*(self.compatibility or ())])
        if twice is not None:
            raise wrong(f"{twice} is listed twice", "compatibility")
        if self.path is None and self.table is None:
            raise wrong("one of path and table is required")
        if self.path is not None and self.table is not None:
            raise wrong("path is given already: give only one of the two", "table")
        return self

    def place(self, source: str) -> str | None:
        """Where the mirror of the table ``source`` stands, so that the same place is the same text; None
        where the manifest alone cannot tell. Names that differ in case only are one place.
        """
        *schema, table = parts_of(source)
        known = {"table": table} | ({"schema": schema[-1]} if schema else {})
        known |= {"db": schema[0]} if len(schema) == 2 else {}
        text = re.sub(r"\{(\w+)\}", lambda hole: known.get(hole[1], hole[0]), self.template)
        return None if "{" in text else text.rstrip("/").casefold()

    @property
    def avoided(self) -> dict[str, list[str]]:
        """Reader features of Delta that the mirror must not have, each with the programs that lack it."""
        asked = set(self.compatibility or ())
        readers = sorted(LACKING if "all" in asked else asked)
        features = sorted({feature for reader in readers for feature in LACKING[reader]})
        return {feature: [r for r in readers if feature in LACKING[r]] for feature in features}

    @property
    def template(self) -> str:
        """The one that is given."""
        return self.path if self.path is not None else self.table or ""


class Delete(Model):
    """What a delete in the source does to the row."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            ("(self.type == 'soft') == has(self.column)", "column is needed with soft, and only there")
        )
    )

    type: Literal["hard", "soft"]
    """hard removes the row; soft keeps it and records when it was deleted."""
    column: NewColumnName | None = None
    """The column that a soft delete adds: the time of the delete, null while the row exists."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.type == "soft" and self.column is None:
            raise wrong("is required with a soft delete: the column for the time of the delete", "column")
        if self.type == "hard" and self.column is not None:
            raise wrong("belongs to a soft delete; a hard delete removes the row", "column")
        return self


class Defaults(Model):
    """Settings of every table that does not say otherwise."""

    mode: Mode = "scd1"
    """append: every event a row; scd1: the current rows; scd2: every version of every row."""
    delete: Delete = Field(default_factory=lambda: Delete(type="hard"))


ColumnList = Annotated[
    list[ColumnName],
    Field(min_length=1, max_length=2000, json_schema_extra=IS_SET),
]
KeyList = Annotated[list[ColumnName], Field(min_length=1, max_length=32, json_schema_extra=IS_SET)]
SqlType = Annotated[
    str,
    Field(max_length=1024),
    Matching(
        r"^[A-Za-z][A-Za-z0-9_`<>:,() ]*$",
        "is not a valid Spark SQL type: write one like bigint or decimal(10,2)",
    ),
    AfterValidator(sql_type),
]


class Columns(Model):
    """Which columns a mirror has, and how they are called and typed. Names are those of the source."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            ("!(has(self.include) && has(self.exclude))", "only one of include and exclude can be given"),
        )
    )

    include: ColumnList | None = None
    """These columns and no others."""
    exclude: ColumnList | None = None
    """All columns but these."""
    rename: Annotated[dict[ColumnName, NewColumnName], Field(max_length=500)] | None = None
    """From the source's name to the mirror's."""
    types: Annotated[dict[ColumnName, SqlType], Field(max_length=2000)] | None = None
    """Spark SQL types of columns, instead of those found in the events."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.include is not None and self.exclude is not None:
            raise wrong("include is given already: give only one of the two", "exclude")
        for name in ("include", "exclude"):
            twice = first_twice(getattr(self, name) or [])
            if twice is not None:
                raise wrong(f"{twice} is listed twice", name)
        names = {source: source for source in self.include or []} | (self.rename or {})
        folded = first_twice([name.casefold() for name in names.values()])
        if folded is not None:
            one, other = [name for name in names.values() if name.casefold() == folded][:2]
            both = one if one == other else f"{one} and {other}, which is one name to Delta"
            raise wrong(f"two columns would be called {both}", "rename")
        for name in ("rename", "types"):
            lost = next((c for c in getattr(self, name) or {} if not self.keeps(c)), None)
            if lost is not None:
                raise wrong(f"{lost} is left out by include or exclude", name)
        return self

    def keeps(self, column: str) -> bool:
        """Whether the source's ``column`` is part of the mirror."""
        if self.include is not None:
            return column in self.include
        return column not in (self.exclude or [])


class Table(Model):
    """Settings of one table; what is left out follows ``defaults``."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                "!(has(self.mode) && self.mode == 'append' && (has(self.delete) || has(self.primaryKey)))",
                "delete and primaryKey have no effect with mode append",
            ),
        )
    )

    source: Annotated[
        str,
        Field(max_length=255),
        Matching(
            rf"^{_PART}(\.{_PART}){{0,2}}$",
            "is not a valid name of a table: write table, schema.table or database.schema.table, each part "
            "that has a dot or a double quote itself in double quotes",
        ),
    ]
    """Which table: its dotted name in the events, or as many of its last parts as make it clear.
    A part that has a dot itself stands in double quotes, as in public."v1.orders".
    """
    primary_key: KeyList | None = None
    """Columns that identify a row; default: the key of the record. No effect with mode append."""
    mode: Mode | None = None
    """append: every event a row; scd1: the current rows; scd2: every version of every row."""
    target: Target | None = None
    columns: Columns | None = None
    delete: Delete | None = None
    on_conflict: Literal["replace", "fail"] = "replace"
    """What a create does to a row that exists already."""
    filter: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    """An SQL condition on the row; events whose row does not meet it are left out."""
    suspend: bool = False
    """Pause the table; the others continue. Its records are held and applied when it resumes."""
    resync_token: Token = ""
    """A new value makes the driver read the table again, once."""

    def column_names(self) -> list[str]:
        """The columns of the mirror that the manifest names, as they are called there."""
        columns = self.columns or Columns()
        rename = columns.rename or {}
        named = [*(self.primary_key or []), *(columns.include or []), *rename, *(columns.types or {})]
        return [rename.get(name, name) for name in named]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        twice = first_twice(self.primary_key or [])
        if twice is not None:
            raise wrong(f"{twice} is listed twice", "primaryKey")
        if self.mode == "append" and self.delete is not None:
            raise wrong("has no effect with mode append, which keeps every event as a row", "delete")
        lost = next((c for c in self.primary_key or [] if self.columns and not self.columns.keeps(c)), None)
        if lost is not None:
            raise wrong(f"{lost} is left out by columns, but a key column must be kept", "primaryKey")
        return self


def same_name(one: str, other: str | None) -> bool:
    """Whether two names are those of one column: Spark and Delta do not tell capitals from small letters."""
    return other is not None and one.casefold() == other.casefold()


def ambiguous_pair(sources: list[str]) -> tuple[str, str] | None:
    """Two of ``sources`` of which the second means a part of the tables that the first means."""
    known = {parts_of(source): source for source in sources}
    for source in sources:
        parts = parts_of(source)
        for i in range(1, len(parts)):
            if (shorter := known.get(parts[i:])) is not None:
                return shorter, source
    return None
