"""Joins with materialized rows, whose number is known to the driver but not to Spark."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

_FEW: Final = 500_000
"""Maximum number of rows that are sent to all tasks. Joins with more rows are shuffled."""


def hinted(frame: DataFrame, rows: int) -> DataFrame:
    """Return a frame of so many rows for a join, with a hint to broadcast it if they are few."""
    return F.broadcast(frame) if rows <= _FEW else frame
