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

from lakemirror.driver.parse.values.connect import Field
from lakemirror.driver.rules.lives import is_constant_default


def is_constant(field: Field, connector: str | None) -> bool:
    """Return whether a field has a default that the rows have that were there when the column was added.

    ``connector`` wrote the schema. If it is unknown (None), any connector may have.
    """
    if field.items is not None or field.fields:
        return False
    return is_constant_default(field.default, field.semantic_name, connector, optional=field.optional)
