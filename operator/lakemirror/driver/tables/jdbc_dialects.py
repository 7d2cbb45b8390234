"""How a mirror is stored in a database: the types of its columns, and the SQL that differs between servers.

Values are transferred through a staging table or a query, in a form that no driver and no time zone changes:
dates and times as text; arrays, maps and structs as JSON; all others as they are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    CharType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
)

from lakemirror.driver import jdbc
from lakemirror.driver.errors import LakemirrorError

_TEXTS: Final = (StringType, CharType, VarcharType)
_NESTED: Final = (ArrayType, MapType, StructType)
_TIMES: Final = (DateType, TimestampType, TimestampNTZType)
_JSON: Final = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "maxStringLen": str(2**31 - 1),
    "maxNestingDepth": str(2**31 - 1),
}
_STRICT: Final = "sql_mode = 'STRICT_ALL_TABLES,NO_BACKSLASH_ESCAPES,NO_ENGINE_SUBSTITUTION'"
"""Set regardless of the server's own mode: without it, values that do not fit would be truncated."""
_ESCAPED_NUL: Final = r"(?<!\\)(\\\\)*\\u0000"
"""The NUL character in JSON."""

Query = Callable[[str], list[tuple[Any, ...]]]


class Dialect(ABC):
    """A kind of database that can have mirrors."""

    title: str
    """The name of the database in messages."""
    own_columns: frozenset[str] = frozenset()
    """The names of columns that the database itself adds to each table."""
    longest: int
    """The maximum length of a name, in characters or bytes."""
    here: str
    """SQL for the schema of a name that has none."""
    settings: str
    types: Mapping[type[DataType], str]
    staging: str
    """The statement that creates a staging table."""
    writing: Mapping[str, str]
    """JDBC parameters of connections that fill a staging table. These do not run ``settings``."""

    @abstractmethod
    def quoted(self, name: str) -> str:
        """Quote a name for SQL."""

    def length(self, name: str) -> int:
        """Return the length of a name in the units of ``longest``."""
        return len(name)

    def as_text(self, kind: DataType) -> bool:
        """Return whether values can be stored only as text."""
        return False

    def type_of(self, kind: DataType, keys: int = 0) -> str | None:
        """Return the type of a column, or None if there is none.

        ``keys`` is the number of key columns if the column is one of them, else 0.
        """
        if isinstance(kind, DecimalType):
            return f"decimal({kind.precision},{kind.scale})"
        if isinstance(kind, _NESTED):
            return self.types[StructType] if not keys else None
        return self.types[StringType] if isinstance(kind, _TEXTS) else self.types.get(type(kind))

    def staged(self, kind: DataType, keys: int = 0) -> str | None:
        """Return the type of a staging table's column."""
        if isinstance(kind, (*_TIMES, *_NESTED)):
            return self.types[StringType]
        return self.type_of(DoubleType() if isinstance(kind, FloatType) else kind, keys)

    @abstractmethod
    def into(self, kind: DataType, staged: str) -> str:
        """Return SQL that converts a staged value to that of a column."""

    @abstractmethod
    def out(self, kind: DataType, column: str) -> str:
        """Return SQL that converts a column to the form that Spark reads."""

    @abstractmethod
    def options(self, query: Query) -> str:
        """Return the end of a CREATE TABLE statement."""

    @abstractmethod
    def delete(self, table: str, staging: str, same: str) -> str:
        """Return SQL that deletes rows of a table.

        These are the rows ``t`` that are the ``same`` as a row ``s`` of a staging table whose ``what`` is d.
        """

    @abstractmethod
    def update(self, table: str, staging: str, same: str, values: Mapping[str, str]) -> str:
        """Return SQL that sets the rows whose ``what`` is u to ``values``, by column."""

    @abstractmethod
    def impossible(self, value: Column, kind: DataType, keys: int = 0) -> list[tuple[Column, str]]:
        """Return the conditions under which the database cannot hold a value, each with what is then wrong.

        The reason is phrased as a statement about the column. ``keys`` is as for `type_of`.
        """

    def unheld(self, value: Column, kind: DataType, keys: int = 0) -> list[tuple[Column, str]]:
        """Return the same with the name of the database (`lakemirror.driver.tables.store.Impossible`)."""
        found = self.impossible(value, kind, keys)
        return [(wrong, f"{why}, which {self.title} cannot hold") for wrong, why in found]

    def refused(self, value: Column, kind: DataType, keys: int = 0) -> list[tuple[Column, str]]:
        """Return the conditions of `impossible`, and those under which the value may have been refused."""
        return self.impossible(value, kind, keys)

    @abstractmethod
    def retype(self, column: str, kind: str) -> str:
        """Return the ALTER TABLE clause that changes a column's type. ``kind`` includes its constraints."""

    def sent(self, value: Column, kind: DataType) -> Column:
        """Return a value in the form in which it is staged."""
        if isinstance(kind, TimestampType):
            seconds = (F.unix_micros(value).cast("decimal(20,0)") / 1_000_000).cast("decimal(18,6)")
            epoch = F.lit("1970-01-01 00:00:00").cast("timestamp_ntz")
            return (epoch + F.make_dt_interval(secs=seconds)).cast("string")
        if isinstance(kind, _NESTED):
            return F.to_json(value, _JSON)
        if isinstance(kind, FloatType):
            return value.cast("double")
        return value.cast("string") if isinstance(kind, _TIMES) or self.as_text(kind) else value

    def received(self, value: Column, kind: DataType) -> Column:
        """Return a value from the form in which it is read."""
        if isinstance(kind, TimestampType):
            value = F.concat(value, F.lit("Z"))
        if isinstance(kind, _NESTED):
            return F.from_json(value, kind, {**_JSON, "mode": "FAILFAST"})  # type: ignore[arg-type]
        return value.cast(kind)


class Postgres(jdbc.Postgres, Dialect):
    """PostgreSQL. JSON is stored as jsonb."""

    title = "PostgreSQL"
    own_columns = frozenset({"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"})
    longest = 63
    here = "current_schema()"
    settings = f"{jdbc.Postgres.settings}; SET lock_timeout = '60s'"
    staging = "CREATE UNLOGGED TABLE"
    writing: Mapping[str, str] = {"reWriteBatchedInserts": "true"}
    types: Mapping[type[DataType], str] = {
        ByteType: "smallint",
        ShortType: "smallint",
        IntegerType: "integer",
        LongType: "bigint",
        FloatType: "real",
        DoubleType: "double precision",
        StringType: "text",
        BinaryType: "bytea",
        BooleanType: "boolean",
        DateType: "date",
        TimestampType: "timestamptz",
        TimestampNTZType: "timestamp",
        StructType: "jsonb",
    }
    _indexed_bytes = 2600
    """Size of an index entry that always fits. Longer ones fit if they can be compressed."""

    def length(self, name: str) -> int:
        return len(name.encode())

    def into(self, kind: DataType, staged: str) -> str:
        if isinstance(kind, TimestampType):
            return f"({staged} || '+00')::timestamptz"
        return f"{staged}::{self.type_of(kind)}"

    def out(self, kind: DataType, column: str) -> str:
        if isinstance(kind, TimestampType):
            return f"({column} AT TIME ZONE 'UTC')::text"
        if isinstance(kind, _TEXTS):  # filters that Spark pushes down then use Spark's order
            return f'{column} COLLATE "C"'
        return f"{column}::text" if isinstance(kind, (*_TIMES, *_NESTED)) else column

    def options(self, query: Query) -> str:
        return ""

    def delete(self, table: str, staging: str, same: str) -> str:
        return f"DELETE FROM {table} AS t USING {staging} AS s WHERE s.what = 'd' AND {same}"

    def update(self, table: str, staging: str, same: str, values: Mapping[str, str]) -> str:
        given = ", ".join(f"{column} = {value}" for column, value in values.items())
        return f"UPDATE {table} AS t SET {given} FROM {staging} AS s WHERE s.what = 'u' AND {same}"

    def impossible(self, value: Column, kind: DataType, keys: int = 0) -> list[tuple[Column, str]]:
        why = "has a text with the character NUL"
        if isinstance(kind, _TEXTS):
            return [(F.contains(value, F.lit("\0")), why)]
        if isinstance(kind, _NESTED):
            return [(F.to_json(value, _JSON).rlike(_ESCAPED_NUL), why)]
        return []

    def refused(self, value: Column, kind: DataType, keys: int = 0) -> list[tuple[Column, str]]:
        found = self.impossible(value, kind, keys)
        if keys and isinstance(kind, (*_TEXTS, BinaryType)):
            most = self._indexed_bytes // keys
            found.append((F.octet_length(value) > most, f"has a key of more than {most} bytes"))
        return found

    def retype(self, column: str, kind: str) -> str:
        return f"ALTER COLUMN {column} TYPE {kind.removesuffix(' NOT NULL')}"


class MySql(jdbc.MySql, Dialect):
    """MySQL and MariaDB. Text is compared bytewise, as in Spark. Instants are stored in UTC."""

    title = "MySQL or MariaDB"
    longest = 64
    here = "DATABASE()"
    settings = (
        "SET time_zone = '+00:00', NAMES utf8mb4, innodb_lock_wait_timeout = 60, lock_wait_timeout = 60, "
        f"{_STRICT}"
    )
    staging = "CREATE TABLE"
    writing: Mapping[str, str] = {"sessionVariables": _STRICT}
    types: Mapping[type[DataType], str] = {
        ByteType: "smallint",
        ShortType: "smallint",
        IntegerType: "int",
        LongType: "bigint",
        FloatType: "double",
        DoubleType: "double",
        StringType: "longtext",
        BinaryType: "longblob",
        BooleanType: "tinyint(1)",
        DateType: "date",
        TimestampType: "datetime(6)",
        TimestampNTZType: "datetime(6)",
        StructType: "longtext",
    }
    _key_bytes, _digits = 2800, 30

    def as_text(self, kind: DataType) -> bool:
        return isinstance(kind, DecimalType) and kind.scale > self._digits

    def type_of(self, kind: DataType, keys: int = 0) -> str | None:
        text = isinstance(kind, _TEXTS) or self.as_text(kind)
        if keys and text:
            return f"varchar({self._key_bytes // 4 // keys})"
        if keys and isinstance(kind, BinaryType):
            return f"varbinary({self._key_bytes // keys})"
        return self.types[StringType] if text else super().type_of(kind, keys)

    def into(self, kind: DataType, staged: str) -> str:
        if isinstance(kind, _TIMES):
            return f"CAST({staged} AS {'DATE' if isinstance(kind, DateType) else 'DATETIME(6)'})"
        return staged

    def out(self, kind: DataType, column: str) -> str:
        if isinstance(kind, BooleanType):
            return f"({column} + 0)"
        return f"CAST({column} AS CHAR)" if isinstance(kind, _TIMES) else column

    def options(self, query: Query) -> str:
        [(version,)] = query("SELECT VERSION()")
        collation = "utf8mb4_nopad_bin" if "MariaDB" in version else "utf8mb4_0900_bin"
        return f" ENGINE InnoDB CHARACTER SET utf8mb4 COLLATE {collation}"

    def delete(self, table: str, staging: str, same: str) -> str:
        return f"DELETE t FROM {table} AS t JOIN {staging} AS s ON {same} WHERE s.what = 'd'"

    def update(self, table: str, staging: str, same: str, values: Mapping[str, str]) -> str:
        given = ", ".join(f"t.{column} = {value}" for column, value in values.items())
        return f"UPDATE {table} AS t JOIN {staging} AS s ON {same} SET {given} WHERE s.what = 'u'"

    def impossible(self, value: Column, kind: DataType, keys: int = 0) -> list[tuple[Column, str]]:
        if isinstance(kind, (FloatType, DoubleType)):
            return [(F.isnan(value) | (F.abs(value) == float("inf")), "is NaN or infinity")]
        if isinstance(kind, _TIMES):
            return [(~F.year(value).between(0, 9999), "has a year that is not between 0 and 9999")]
        if keys and isinstance(kind, _TEXTS):
            most = self._key_bytes // 4 // keys
            return [(F.char_length(value) > most, f"has a key of more than {most} characters")]
        if keys and isinstance(kind, BinaryType):
            most = self._key_bytes // keys
            return [(F.octet_length(value) > most, f"has a key of more than {most} bytes")]
        return []

    def retype(self, column: str, kind: str) -> str:
        return f"MODIFY COLUMN {column} {kind}"


DIALECTS: Final[Sequence[Postgres | MySql]] = (Postgres(), MySql())


def dialect_of(url: str) -> Postgres | MySql:
    """Return the dialect for a URL. Raises LakemirrorError if the database is not supported."""
    found = next((each for each in DIALECTS if url.startswith(each.prefixes)), None)
    if found is None:
        raise LakemirrorError(f"spec.target.jdbc.url: {url.partition('//')[0]} is not a supported database")
    return found
