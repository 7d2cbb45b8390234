"""Settings of each table: where it goes, how it is kept, and which settings belong to which table."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, field_validator, model_validator

from lakemirror.api.base import (
    IS_SET,
    ColumnName,
    Matching,
    Model,
    NewColumnName,
    PlainHost,
    Token,
    TopicName,
    rules,
    wrong,
)
from lakemirror.api.checks import sql_condition, sql_expression, sql_type
from lakemirror.api.jdbc import JdbcUrl
from lakemirror.api.logins import WithoutLogin
from lakemirror.api.source import Moment, first_twice

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
    """Split a dotted name into its parts. A part in double quotes may contain dots."""
    return tuple(_unquoted(part[0]) for part in re.finditer(r'"(?:[^"]|"")*"|[^."]+', name))


def _unquoted(part: str) -> str:
    return part[1:-1].replace('""', '"') if part.startswith('"') else part


class AmbiguousTable(ValueError):
    """Two of the listed sources match the same table."""


def is_pattern(source: str) -> bool:
    """Return whether ``source`` is a regular expression between slashes, and not a name."""
    return len(source) > 2 and source.startswith("/") and source.endswith("/")


@lru_cache(maxsize=1_000)
def pattern_of(source: str) -> re.Pattern[str]:
    """Compile the regular expression of an `is_pattern` source. Named groups may be written as in Java."""
    return re.compile(_JAVA_GROUP.sub("(?P<", source[1:-1]))


_JAVA_GROUP = re.compile(r"(?<!\\)\(\?<(?=[A-Za-z_])")


def groups_of(source: str, table: str) -> dict[str, str]:
    """Return what a pattern's named groups capture of the name ``table``; nothing if ``source`` is a name."""
    if not is_pattern(source):
        return {}
    found = pattern_of(source).fullmatch(table)
    return {name: text or "" for name, text in found.groupdict().items()} if found else {}


def matches(source: str, table: str) -> bool:
    """Return whether ``source`` is ``table`` or whole parts at its end: public.t of shop.public.t.

    Both are dotted names. Parts that contain a dot are in double quotes in both. A pattern must match the
    whole name.
    """
    if is_pattern(source):
        return pattern_of(source).fullmatch(table) is not None
    parts = parts_of(source)
    return parts_of(table)[-len(parts) :] == parts


def match_table(sources: Iterable[str], table: str) -> str | None:
    """Return the one of ``sources`` that matches ``table`` (database.schema.table), if any.

    Names come before patterns. Raises AmbiguousTable if two match.
    """
    found = [source for source in sources if source == table or matches(source, table)]
    found = [source for source in found if not is_pattern(source)] or found
    if len(found) > 1:
        remedy = (
            "list it by its name, which comes before patterns, or let one of the two match less"
            if is_pattern(found[0])
            else "keep one, or write longer names"
        )
        raise AmbiguousTable(f"table {table} is matched by both {found[0]} and {found[1]}: {remedy}")
    return found[0] if found else None


def _template(text: str) -> str:
    rest = re.sub(_HOLE, "", text)
    if "{" in rest or "}" in rest:
        raise wrong(f"{text!r} has an unmatched brace: the placeholders are {{db}}, {{schema}} and {{table}}")
    return text


_HOLE = r"\{[A-Za-z_][A-Za-z0-9_]*\}"
_NAME = rf"([A-Za-z0-9_]|{_HOLE})+"


class Target(Model):
    """Where the mirror is stored: a path or the name of a table. Placeholders: {db} {schema} {table}, and the
    named groups of the pattern in tables[].source.
    """

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
            WithoutLogin(),
            PlainHost(),
        ]
        | None
    ) = None
    """A path in an object store, on HDFS or on a local disk, such as s3a://lake/{schema}/{table}."""
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
    """The name of a table in the catalog, such as lake.{schema}.{table}."""
    compatibility: (
        Annotated[
            list[Reader],
            Field(min_length=1, max_length=6, json_schema_extra=IS_SET),
        ]
        | None
    ) = None
    """Programs that must be able to read the mirror. It gets no Delta feature that one of them lacks:
    widening a column rewrites the table, and a name that needs column mapping is refused.
    """
    change_feed: bool | None = None
    """Whether mirrors record Delta's change data feed."""

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

    def check(self, *at: str, groups: Iterable[str] = ()) -> None:
        """Raise an error for a placeholder that is neither known nor one of a pattern's ``groups``.

        ``at`` is the path of the target's field.
        """
        known = dict.fromkeys((*PLACEHOLDERS, *groups))
        for name in re.findall(r"\{(\w+)\}", self.template):
            if name not in known:
                listed = ", ".join(f"{{{each}}}" for each in known)
                raise wrong(
                    f"unknown placeholder {{{name}}}: the placeholders are {listed}",
                    *at,
                    "path" if self.path is not None else "table",
                )

    def place(self, source: str) -> str | None:
        """Return where the mirror of the table ``source`` is, with the same text for the same place.

        Names that differ only in case are one place. Returns None if the manifest alone cannot tell.
        """
        if is_pattern(source):
            return None
        *schema, table = parts_of(source)
        known = {"table": table} | ({"schema": schema[-1]} if schema else {})
        known |= {"db": schema[0]} if len(schema) == 2 else {}
        text = re.sub(r"\{(\w+)\}", lambda hole: known.get(hole[1], hole[0]), self.template)
        return None if "{" in text else text.rstrip("/").casefold()

    @property
    def avoided(self) -> dict[str, list[str]]:
        """Delta reader features that the mirror must not have, each with the programs that lack it."""
        asked = set(self.compatibility or ())
        readers = sorted(LACKING if "all" in asked else asked)
        features = sorted({feature for reader in readers for feature in LACKING[reader]})
        return {feature: [r for r in readers if feature in LACKING[r]] for feature in features}

    @property
    def template(self) -> str:
        """The path or the table, whichever is given."""
        return self.path if self.path is not None else self.table or ""


class PipelineTarget(Target):
    """Where mirrors are stored. Placeholders: {db} {schema} {table}."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            ("has(self.path) != has(self.table)", "exactly one of path and table is needed"),
            ("!has(self.jdbc) || has(self.table)", "with jdbc, table is needed: schema.table"),
        )
    )

    jdbc: JdbcUrl | None = None
    """A database whose tables are the mirrors, instead of Delta tables."""

    @model_validator(mode="after")
    def _of_database(self) -> Self:
        if self.jdbc is not None and self.path is not None:
            raise wrong("is no place in a database: with jdbc, give table", "path")
        if self.jdbc is not None and self.table is not None and self.table.count(".") > 1:
            raise wrong("has three parts, and with jdbc a table has two at most: schema.table", "table")
        return self


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
    """Settings of all tables that do not override them."""

    mode: Mode = "scd1"
    """append: one row per event; scd1: the current rows; scd2: every version of every row."""
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


_IS_ENCODED = re.compile(r"\b(decimal|dec|numeric|binary)\b", re.IGNORECASE)

MetadataColumn = Literal["sourceTime", "op", "topic", "partition", "offset", "loadTime", "pipeline", "batch"]
OwnColumn = Literal[MetadataColumn, "rowHash", "keyHash", "identity"]
"""What a column has that the manifest adds to a mirror."""

TextEncoding = Literal["text", "base64", "base64url", "hex"]
"""How a text stands for a number or for bytes."""


class Columns(Model):
    """Which columns a mirror has, and their names and types. Fields refer to columns by their names in the
    source.
    """

    model_config = ConfigDict(
        json_schema_extra=rules(
            ("!(has(self.include) && has(self.exclude))", "only one of include and exclude can be given"),
        )
    )

    include: ColumnList | None = None
    """Only these columns."""
    exclude: ColumnList | None = None
    """All columns except these."""
    rename: Annotated[dict[ColumnName, NewColumnName], Field(max_length=500)] | None = None
    """Maps names in the source to names in the mirror."""
    types: Annotated[dict[ColumnName, SqlType], Field(max_length=2000)] | None = None
    """Spark SQL types of columns, instead of those found in the events."""
    encodings: Annotated[dict[ColumnName, TextEncoding], Field(min_length=1, max_length=2000)] | None = None
    """How texts are encoded in columns that are decimal or binary by types: text is the number as it is
    written, or the bytes of the text in UTF-8; base64, base64url and hex encode bytes, which in a decimal are
    its unscaled value. Without an encoding, text that has several meanings goes to quarantine.
    """
    metadata: Annotated[dict[NewColumnName, MetadataColumn], Field(min_length=1, max_length=32)] | None = None
    """Additional columns with metadata of the change that a row was written for (sourceTime, op, topic,
    partition, offset) or of the write (loadTime, pipeline, batch). To change it, set a new target and
    resyncToken.
    """
    row_hash: NewColumnName | None = None
    """An additional column with the SHA-256 of the row's values. To change it, set a new target and
    resyncToken.
    """
    key_hash: NewColumnName | None = None
    """An additional column with the SHA-256 of the key's values. To change it, set a new target and
    resyncToken.
    """
    identity: NewColumnName | None = None
    """An additional column with a number that each row gets when it is inserted. To change it, set a new
    target and resyncToken.
    """
    expressions: (
        Annotated[
            dict[
                NewColumnName,
                Annotated[str, Field(min_length=1, max_length=4096), AfterValidator(sql_expression)],
            ],
            Field(min_length=1, max_length=100),
        ]
        | None
    ) = None
    """Additional columns, each computed by a Spark SQL expression on the columns of the mirror. To change it,
    set a new target and resyncToken.
    """

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.include is not None and self.exclude is not None:
            raise wrong("include is given already: give only one of the two", "exclude")
        for name in ("include", "exclude"):
            twice = first_twice(getattr(self, name) or [])
            if twice is not None:
                raise wrong(f"{twice} is listed twice", name)
        own = first_twice([name.casefold() for name in self._own_names()])
        if own is not None:
            raise wrong(f"two columns would be called {own}", "metadata")
        names = {source: source for source in self.include or []} | (self.rename or {})
        taken = {name.casefold() for name in names.values()}
        lost = next((name for name in self._own_names() if name.casefold() in taken), None)
        if lost is not None:
            raise wrong(f"{lost} is a column of the table already: choose another name", "metadata")
        folded = first_twice([name.casefold() for name in names.values()])
        if folded is not None:
            one, other = [name for name in names.values() if name.casefold() == folded][:2]
            both = one if one == other else f"{one} and {other}, which is one name to Delta"
            raise wrong(f"two columns would be called {both}", "rename")
        for name in ("rename", "types"):
            lost = next((c for c in getattr(self, name) or {} if not self.keeps(c)), None)
            if lost is not None:
                raise wrong(f"{lost} is left out by include or exclude", name)
        for column in self.encodings or {}:
            if not _IS_ENCODED.search((self.types or {}).get(column, "")):
                raise wrong(f"{column} is not declared in types as decimal or binary", "encodings")
        return self

    def _own_names(self) -> list[str]:
        others = (self.row_hash, self.key_hash, self.identity)
        named = [name for name in others if name is not None]
        return [*(self.metadata or {}), *named, *(self.expressions or {})]

    @property
    def own(self) -> dict[str, OwnColumn]:
        """The columns that are added, and what each contains."""
        found: dict[str, OwnColumn] = {**(self.metadata or {})}
        if self.row_hash is not None:
            found[self.row_hash] = "rowHash"
        if self.key_hash is not None:
            found[self.key_hash] = "keyHash"
        if self.identity is not None:
            found[self.identity] = "identity"
        return found

    def keeps(self, column: str) -> bool:
        """Return whether the source's ``column`` is part of the mirror."""
        if self.include is not None:
            return column in self.include
        return column not in (self.exclude or [])


Violation = Literal["warn", "quarantine", "fail"]


class Expectation(Model):
    """A condition that the rows of a table should meet, and what becomes of a record whose row does not."""

    name: Annotated[
        str,
        Field(min_length=1, max_length=128),
        Matching(
            r"^[A-Za-z0-9_]([A-Za-z0-9_. -]*[A-Za-z0-9_])?$",
            "is not a valid name of an expectation: use letters, digits, spaces, '_', '-' and '.'",
        ),
    ]
    """The name that reports use."""
    condition: Annotated[str, Field(min_length=1, max_length=4096), AfterValidator(sql_condition)]
    """A condition of Spark SQL on the row, with the columns of the mirror, as in a filter. A row for which it
    is false or null does not meet it.
    """
    on_violation: Violation = "warn"
    """warn applies and counts the record; quarantine keeps it aside, and the row stays as it was; fail holds
    the table's records of that batch.
    """


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
            rf"^({_PART}(\.{_PART}){{0,2}}|/.+/)$",
            "is not a valid name of a table: write table, schema.table or database.schema.table, each part "
            "that has a dot or a double quote itself in double quotes, or /a regular expression/",
        ),
    ]
    """Which table: its name, or the last parts of it: orders, public.orders or shop.public.orders.
    A part that has a dot itself stands in double quotes, as in public."v1.orders". Or many tables: a regular
    expression between slashes that matches their whole names, and whose named groups target may use, as in
    /shop_(?<region>\\w+)\\.public\\.(?<table>.+)/. It does not select tables that are listed by name.
    """
    topics: (
        Annotated[list[TopicName], Field(min_length=1, max_length=100, json_schema_extra=IS_SET)] | None
    ) = None
    """The topics of Kafka that may change the table. A record of another topic that names it goes to
    quarantine. Default: source.tableTopics.
    """
    primary_key: KeyList | None = None
    """Columns that identify a row. Default: the key of the record. No effect with mode append."""
    mode: Mode | None = None
    """append: one row per event; scd1: the current rows; scd2: every version of every row."""
    target: Target | None = None
    columns: Columns | None = None
    delete: Delete | None = None
    on_conflict: Literal["replace", "fail"] = "replace"
    """What a create does to a row that exists already: replace takes its row; fail holds the table's records
    of that batch until the missing delete or a later change of the row arrives, or this becomes replace.
    """
    filter: Annotated[str, Field(min_length=1, max_length=4096), AfterValidator(sql_condition)] | None = None
    """A condition of Spark SQL on the row, with the columns of the mirror: rows that meet it are mirrored. An
    event whose row does not meet it (false or null) acts as a delete; with mode append it is left out. No
    subqueries, aggregates, or functions of the moment such as rand and now. PostgreSQL has to send whole
    rows (REPLICA IDENTITY FULL). To change it, set a new target and resyncToken.
    """
    expectations: (
        Annotated[
            list[Expectation],
            Field(
                min_length=1,
                max_length=50,
                json_schema_extra={
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["name"],
                },
            ),
        ]
        | None
    ) = None
    """Conditions that rows should meet. Checked for each change that passes the filter, not for deletes."""
    tracked_columns: ColumnList | None = None
    """With mode scd2: columns whose changes begin a version; a change of others alone is merged into the
    version at its position. Default: every change begins one. To change it, set a new target and resyncToken.
    """
    initial_valid_from: Moment | None = None
    """With mode scd2: the time from which a row is valid that existed before its first change was seen, such
    as 1900-01-01T00:00:00Z. Default: the time of that change. To change it, set a new target and resyncToken.
    """
    merge_shards: bool = False
    """The tables that source selects are shards of one: they share a mirror, whose key begins with the name
    of the shard, in the column __source. What happens in a shard changes its own rows alone. Files of rows
    are not supported. To change it, set a new target and resyncToken.
    """
    suspend: bool = False
    """Pause the table; the others continue. Its records are held and applied when it resumes."""
    snapshot: Literal["source", "jdbc"] = "source"
    """Where rows come from that are older than the stream, at first and with a new resyncToken: from the
    source itself, or from the database of verify.jdbc, for a stream that has not kept all changes.
    """
    resync_token: Token = ""
    """A new value makes the driver read the table again, once."""

    def column_names(self) -> list[str]:
        """Return the columns of the mirror that the manifest names, by their names in the mirror."""
        columns = self.columns or Columns()
        rename = columns.rename or {}
        named = [*(self.primary_key or []), *(columns.include or []), *rename, *(columns.types or {})]
        return [*(rename.get(name, name) for name in named), *columns.own, *self.expressions]

    @property
    def own_columns(self) -> dict[str, OwnColumn]:
        """The columns that the manifest adds to the mirror, and what each contains."""
        return self.columns.own if self.columns is not None else {}

    @property
    def expressions(self) -> dict[str, str]:
        """The columns that are computed from others, with the SQL of each."""
        return (self.columns and self.columns.expressions) or {}

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        groups: Iterable[str] = ()
        if is_pattern(self.source):
            groups = _checked_pattern(self.source).groupindex
        if self.target is not None:
            self.target.check("target", groups=groups)
            if is_pattern(self.source) and "{" not in self.target.template and not self.merge_shards:
                raise wrong(
                    "needs a placeholder: all tables that match source would have one target (or set "
                    "mergeShards: true, if they are shards of one table)",
                    "target",
                )
        twice = first_twice(self.topics or [])
        if twice is not None:
            raise wrong(f"{twice} is listed twice", "topics")
        twice = first_twice(self.primary_key or [])
        if twice is not None:
            raise wrong(f"{twice} is listed twice", "primaryKey")
        twice = first_twice([each.name for each in self.expectations or []])
        if twice is not None:
            raise wrong(f"{twice} is listed twice: give each expectation a name of its own", "expectations")
        if self.mode == "append" and self.delete is not None:
            raise wrong("has no effect with mode append, which keeps every event as a row", "delete")
        lost = next((c for c in self.primary_key or [] if self.columns and not self.columns.keeps(c)), None)
        if lost is not None:
            raise wrong(f"{lost} is left out by columns, but a key column must be kept", "primaryKey")
        twice = first_twice(self.tracked_columns or [])
        if twice is not None:
            raise wrong(f"{twice} is listed twice", "trackedColumns")
        lost = next(
            (c for c in self.tracked_columns or [] if self.columns and not self.columns.keeps(c)), None
        )
        if lost is not None:
            raise wrong(f"{lost} is left out by columns, but a tracked column must be kept", "trackedColumns")
        return self


def _checked_pattern(source: str) -> re.Pattern[str]:
    try:
        return pattern_of(source)
    except (re.error, RecursionError, OverflowError) as error:
        raise wrong(f"{source!r} is not a valid regular expression: {error}", "source") from None


def same_name(one: str, other: str | None) -> bool:
    """Return whether two names mean the same column: Spark and Delta ignore case."""
    return other is not None and one.casefold() == other.casefold()


def ambiguous_pair(sources: list[str]) -> tuple[str, str] | None:
    """Return two of ``sources`` where the second matches a part of the tables that the first matches."""
    names = [source for source in sources if not is_pattern(source)]
    known = {parts_of(source): source for source in names}
    for source in names:
        parts = parts_of(source)
        for i in range(1, len(parts)):
            if (shorter := known.get(parts[i:])) is not None:
                return shorter, source
    return None
