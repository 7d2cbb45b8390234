"""The columns of a mirror beside the source's own, and how expressions name stored rows and states.

``t`` is a stored row, and ``s`` what the batch has for a key, a state (`lakemirror.driver.reduce.events`).
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from lakemirror.driver.tables.delta import quoted

METADATA = {
    "__seq": "binary",
    "__op": "string",
    "__event_time": "timestamp",
    "__origin": "struct<topic: string, partition: int, offset: bigint>",
    "__column_seq": "map<string, binary>",
    "__unrepresentable": "map<string, string>",
}
"""Metadata columns of a mirror.

``__column_seq`` names the columns whose value is older than the row: a value that the source did not send,
filled from an older image, with the sequence of that image (empty: nothing is known yet).
``__unrepresentable`` holds the source's text of values for which Spark has none, under ``onUnrepresentable:
text``.
"""


def T(name: str) -> Column:  # noqa: N802
    """A column of the stored row."""
    return F.col(f"t.{quoted(name)}")


def S(name: str) -> Column:  # noqa: N802
    """A value of the state's row."""
    return F.col("s.row")[name]
