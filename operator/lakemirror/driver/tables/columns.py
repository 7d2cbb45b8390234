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

COMMENTS = {
    "__source": "The shard that the row is of",
    "__seq": "Position of the row's change in the order of its source; compares bytewise",
    "__op": "Operation of the change that the row is from: c create, u update, r snapshot read, d delete",
    "__event_time": "When the source made the change",
    "__origin": "Where the change was read: topic, partition and offset",
    "__column_seq": "Columns whose value is older than the row, with the position of that value",
    "__unrepresentable": "The source's text of values that the column's type cannot hold",
    "__valid_from": "Start of the version's validity",
    "__valid_to": "End of the version's validity, exclusive; null while it is current",
    "__is_current": "Whether the version is the current row",
    "__is_deleted": "Whether the row was deleted at the end of this version, and has not come back",
    "__delete_seq": "Position of the delete that ended the version; null if another version did",
}
"""What a catalog shows of the metadata columns."""

SHARD = "__source"
"""The column of a mirror of several shards that names the shard a row is of."""

VERSIONS = {
    "__valid_from": "timestamp",
    "__valid_to": "timestamp",
    "__is_current": "boolean",
    "__is_deleted": "boolean",
    "__delete_seq": "binary",
}
"""Further metadata columns of a mirror that keeps all versions (mode scd2).

A version is what its row was from ``__valid_from`` until before ``__valid_to`` (null: until now). One that
is ``__is_current`` has no end; one that ``__is_deleted`` is the last version of a row that is deleted. So
``__is_current OR __is_deleted`` is one version a key. ``__delete_seq`` is the sequence of the delete or
truncate that ended the version; null where another version did, or nothing.
"""

SENT = ""
"""In ``__column_seq`` of a mirror of that mode: the sequence of a change as it was sent, where its place is a
matter of the snapshot row of its key (see `lakemirror.driver.reduce.events.anchor`).
"""

BEGAN = "__valid_from"
"""In ``__column_seq`` of a version that has taken in further changes (``trackedColumns``): the sequence of
the change that began it.
"""


def of_shard(shard: str) -> Column:
    """BOOLEAN: the stored row is one of a shard."""
    return T(SHARD) == F.lit(shard)


def metadata_of(mode: str | None) -> dict[str, str]:
    """The metadata columns of a mirror of this mode."""
    return {**METADATA, **VERSIONS} if mode == "scd2" else METADATA


def T(name: str) -> Column:  # noqa: N802
    """A column of the stored row."""
    return F.col(f"t.{quoted(name)}")


def S(name: str) -> Column:  # noqa: N802
    """A value of the state's row."""
    return F.col("s.row")[name]
