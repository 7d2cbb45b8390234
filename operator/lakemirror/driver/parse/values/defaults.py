"""Which defaults in schemas are constants that the source has given to the rows of a column that was added.

Connectors do not evaluate functions. They write a placeholder in their place:

- PostgreSQL: 0, '', {}, false, 1970-01-01 or the zero UUID for the default of a NOT NULL column
  (Debezium, `PostgresDefaultValueConverter`)
- MySQL and MariaDB: 1970-01-01 00:00:00 for CURRENT_TIMESTAMP and NOW (`DefaultValueParserListener`)

Nobody chooses the moment or the UUID as a constant, so they never count. The others cannot be told apart from
constants, and count.

SQL Server leaves null in the rows that are there if the new column is nullable, whatever its default.
"""

from __future__ import annotations

from typing import Final

from lakemirror.driver.parse.values.connect import Field

_DAYS: Final = (
    "io.debezium.time.Date",
    "io.debezium.time.IsoDate",
    "org.apache.kafka.connect.data.Date",
)
_MOMENTS: Final = (
    "io.debezium.time.Timestamp",
    "io.debezium.time.MicroTimestamp",
    "io.debezium.time.NanoTimestamp",
    "io.debezium.time.IsoTimestamp",
    "io.debezium.time.ZonedTimestamp",
    "org.apache.kafka.connect.data.Timestamp",
)
_UUID: Final = "io.debezium.data.Uuid"
_NO_UUID: Final = "00000000-0000-0000-0000-000000000000"
_BINLOGS: Final = ("mysql", "mariadb")


def is_constant(field: Field, connector: str | None) -> bool:
    """Return whether a field has a default that the rows have that were there when the column was added.

    ``connector`` wrote the schema. If it is unknown (None), any connector may have.
    """
    if field.default is None or field.items is not None or field.fields:
        return False
    if connector == "sqlserver" and field.optional:
        return False
    return not _is_placeholder(field, connector)


def _is_placeholder(field: Field, connector: str | None) -> bool:
    """Return whether the default stands for a moment or a UUID that the source determines row by row."""
    name, default = field.semantic_name, field.default
    if connector in (None, "postgresql"):
        return (name == _UUID and default == _NO_UUID) or (name in (*_DAYS, *_MOMENTS) and _is_zero(default))
    return connector in _BINLOGS and name in _MOMENTS and _is_zero(default)


def _is_zero(default: object) -> bool:
    """Return whether a date or time is the beginning of 1970."""
    if isinstance(default, str):
        day, _, time = default.rstrip("Z").partition("T")
        return day == "1970-01-01" and not time.strip("0:.")
    return default == 0
