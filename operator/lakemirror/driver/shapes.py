"""Converts texts that a record's producer chose to numbers and moments, once they have the shape of one.

A text of a few characters can cost minutes: the JVM writes a decimal out to its last digit before it finds
that a type cannot hold it (``1e-100000000``), and takes quadratic time for many digits. What is converted
here therefore has a limited number of digits, and an exponent of at most four. Spark's casts to whole numbers
know no exponents, and take linear time.

No other module casts a text to a number, a date or a time: `tests/driver/parse/test_casts` looks for casts.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DoubleType, FloatType

LONGEST_NUMBER: Final = 1000
"""The longest text that is a number."""
LONGEST_MOMENT: Final = 200
"""The longest text that is a date or a time."""
NUMBER: Final = r"^\s*[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d{1,4})?\s*$"
"""Matches a number, such as those of JSON. Java's BigDecimal writes small ones with an exponent: 0E-10."""
_SPECIAL: Final = r"^\s*([nN][aA][nN]|[-+]?[iI][nN][fF]([iI][nN][iI][tT][yY])?)\s*$"
"""Matches what a cast takes for a float that is no number."""


def is_number(text: Column) -> Column:
    """Return whether a text is a number that can be converted (BOOLEAN)."""
    return (F.length(text) <= LONGEST_NUMBER) & text.rlike(NUMBER)


def number(text: Column, kind: DataType | str) -> Column:
    """Convert a number's text to ``kind``, a decimal or a float; null if it is none, or does not fit.

    Floats also have NaN and infinities.
    """
    fine = is_number(text)
    if isinstance(kind, (DoubleType, FloatType)) or kind in ("double", "float"):
        fine = fine | ((F.length(text) <= LONGEST_NUMBER) & text.rlike(_SPECIAL))
    return F.when(fine, text).try_cast(kind)


def whole(text: Column, kind: DataType | str = "bigint") -> Column:
    """Convert the text of a whole number to ``kind``, an integer; null for other text.

    The cast itself takes digits and a sign only, and each digit once.
    """
    return text.try_cast(kind)


def moment(text: Column, kind: str) -> Column:
    """Convert the text of a date or a time to ``kind``; null if it is none."""
    return F.when(F.length(text) <= LONGEST_MOMENT, text).try_cast(kind)
