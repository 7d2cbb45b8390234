"""Determines the range of a batch's keys, so that only files that may contain them are read.

Delta stores the minimum and maximum of columns for each file (PROTOCOL.md, Per-file Statistics; long texts
are truncated, outwards). In a MERGE, Delta itself skips a file if the condition compares a column with
constants (https://docs.delta.io/optimizations-oss/).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import Any, Final

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ByteType,
    DataType,
    DateType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
)

_BITS: Final[dict[type[DataType], int]] = {
    ByteType: 8,
    ShortType: 16,
    IntegerType: 32,
    LongType: 64,
    DateType: 32,
}
_PARTS: Final = 8


def has_bounds(kind: DataType) -> bool:
    """Return whether files can be skipped by the range of a column of this type."""
    return type(kind) in _BITS or isinstance(kind, StringType)


def ends(column: Column, kind: DataType) -> tuple[Column, Column]:
    """Return the minimum and the maximum of a column, as aggregates.

    Dates are converted to days since 1970, because Python supports fewer dates.
    """
    comparable = F.unix_date(column) if isinstance(kind, DateType) else column
    return F.min(comparable), F.max(comparable)


@dataclass(frozen=True)
class Bound:
    """The range of the values of a key column of type ``kind``: between two values from `ends`."""

    kind: DataType
    low: Any
    high: Any

    def meets(self, least: Any, greatest: Any) -> bool:
        """Return whether a file may contain such a value, according to its statistics.

        ``least`` and ``greatest`` are None if the statistics do not say.
        """
        try:
            least, greatest = (_comparable(each, self.kind) for each in (least, greatest))
        except ValueError:
            return True
        return not (
            (least is not None and self.high < least) or (greatest is not None and greatest < self.low)
        )


def _comparable(statistic: Any, kind: DataType) -> Any:
    """Convert a value of a file's statistics to the form that `ends` uses.

    Texts need no conversion, because code points order them as their UTF-8 does.
    """
    if statistic is None or not isinstance(kind, DateType):
        return statistic
    return (date.fromisoformat(statistic) - date(1970, 1, 1)).days


def within(column: Column, kind: DataType, low: Any, high: Any) -> Column:
    """BOOLEAN: whether the column lies between two values from `ends`, or not far outside of them."""
    if not isinstance(kind, StringType):
        low, high = rounded(low, high, _BITS[type(kind)])
    return column.between(_constant(low, kind), _constant(high, kind))


def _constant(value: Any, kind: DataType) -> Column:
    return F.date_from_unix_date(F.lit(value)) if isinstance(kind, DateType) else F.lit(value).cast(kind)


def rounded(low: int, high: int, bits: int) -> tuple[int, int]:
    """Return bounds around ``low`` and ``high`` that are the same for most batches of a table.

    The bounds are signed numbers of ``bits`` bits. Numbers become part of the code that Spark generates, and
    new code runs slowly at first. With the exact bounds in each batch, MERGE took a fifth longer on a table
    of 1 million rows. The bounds are therefore moved outwards to multiples of an eighth of the range, or
    more.
    """
    step = 1 << ((high - low) // _PARTS).bit_length()
    limit = 1 << (bits - 1)
    return max(low // step * step, -limit), min((high // step + 1) * step, limit) - 1
