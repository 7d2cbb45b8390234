"""The types of a mirror's columns, as plain values.

`str` of a type is its name in Spark's DDL. What a value of it is in Python:

===================  ==================================================================================
BOOLEAN              bool
TINYINT to BIGINT    int
DECIMAL(p, s)        decimal.Decimal
FLOAT, DOUBLE        float; a FLOAT is a number that 32 bits hold
STRING               str
BINARY               bytes
DATE                 datetime.date
TIMESTAMP_NTZ        datetime.datetime without a zone
TIMESTAMP            datetime.datetime in UTC
ARRAY, MAP, STRUCT   list; dict; dict by the names of the fields
VARIANT              whatever JSON says it is (`lakemirror.driver.rules.untyped`)
===================  ==================================================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Plain:
    """A type without parameters."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Decimals:
    """Numbers of at most ``precision`` digits, ``scale`` of them after the point."""

    precision: int
    scale: int

    def __str__(self) -> str:
        return f"DECIMAL({self.precision},{self.scale})"


@dataclass(frozen=True)
class Arrays:
    """Lists of values of one type."""

    item: Kind

    def __str__(self) -> str:
        return f"ARRAY<{self.item}>"


@dataclass(frozen=True)
class Maps:
    """Maps of keys of one type to values of another."""

    key: Kind
    value: Kind

    def __str__(self) -> str:
        return f"MAP<{self.key}, {self.value}>"


@dataclass(frozen=True)
class Structs:
    """Named fields, each of a type."""

    fields: tuple[tuple[str, Kind], ...]

    def __str__(self) -> str:
        named = (f"`{name.replace('`', '``')}`: {kind}" for name, kind in self.fields)
        return f"STRUCT<{', '.join(named)}>"


Kind = Plain | Decimals | Arrays | Maps | Structs

BOOLEAN: Final = Plain("BOOLEAN")
TINYINT, SMALLINT, INT, BIGINT = Plain("TINYINT"), Plain("SMALLINT"), Plain("INT"), Plain("BIGINT")
FLOAT, DOUBLE = Plain("FLOAT"), Plain("DOUBLE")
STRING: Final = Plain("STRING")
BINARY: Final = Plain("BINARY")
DATE, TIMESTAMP, TIMESTAMP_NTZ = Plain("DATE"), Plain("TIMESTAMP"), Plain("TIMESTAMP_NTZ")
VARIANT: Final = Plain("VARIANT")

BITS: Final = {TINYINT: 8, SMALLINT: 16, INT: 32, BIGINT: 64}
"""How many bits the integers of a type have."""

MAX_DIGITS: Final = 38
"""The most digits that a DECIMAL has."""
