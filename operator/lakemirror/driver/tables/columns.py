"""The columns that a mirror adds to the source's own, and how expressions refer to stored rows and states.

``t`` is a stored row, and ``s`` a state, which is what the batch has for a key
(`lakemirror.driver.reduce.events`).
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from lakemirror.driver.codes import Op
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

``__column_seq`` lists the columns whose value is older than the row. The source did not send these values, so
they were filled from an older image, with the sequence of that image (empty: nothing is known yet).
``__unrepresentable`` holds the source's text of values that Spark cannot represent, under
``onUnrepresentable: text``.
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
"""The comments on the metadata columns in a catalog."""

SHARD = "__source"
"""In a mirror of several shards, the column that names the shard of a row."""

VERSIONS = {
    "__valid_from": "timestamp",
    "__valid_to": "timestamp",
    "__is_current": "boolean",
    "__is_deleted": "boolean",
    "__delete_seq": "binary",
}
"""Additional metadata columns of a mirror that keeps all versions (mode scd2).

A version is the state of its row from ``__valid_from`` until before ``__valid_to`` (null: until now). A
version that is ``__is_current`` has no end. One that is ``__is_deleted`` is the last version of a deleted
row. ``__is_current OR __is_deleted`` therefore selects one version per key. ``__delete_seq`` is the sequence
of the delete or truncate that ended the version. It is null if another version ended it, or if nothing did.
"""

SENT = ""
"""In ``__column_seq`` of a mirror of versions: the sequence of a change as it was sent.

It is present if the place of the change depends on the snapshot row of its key (see
`lakemirror.driver.reduce.events.anchor`).
"""

UNSEEN = ""
"""In ``__column_seq`` of a row of a soft delete that the mirror never had. Only its presence counts.

Such a row has a key and no values, and gets none when columns are added.
"""

PAYLOAD = ""
"""In ``__column_seq`` of an event list: a hash of the event's payload as it was sent, and of its log.

With the row's ``__seq``, it identifies an event that is sent again. It is missing if only the origin does.
"""

BEGAN = "__valid_from"
"""In ``__column_seq`` of a version that absorbed further changes (``trackedColumns``).

It is the sequence of the change that started the version.
"""


def of_shard(shard: str) -> Column:
    """BOOLEAN: whether the stored row belongs to a shard."""
    return T(SHARD) == F.lit(shard)


def metadata_of(mode: str | None) -> dict[str, str]:
    """Return the metadata columns of a mirror in this mode."""
    return {**METADATA, **VERSIONS} if mode == "scd2" else METADATA


def T(name: str) -> Column:  # noqa: N802
    """Return a column of the stored row."""
    return F.col(f"t.{quoted(name)}")


def seq_of_row() -> Column:
    """Return the sequence of the stored row. A row that was inserted by hand has none: it is below all."""
    return F.coalesce(T("__seq"), F.lit(b""))


def is_unseen() -> Column:
    """BOOLEAN, never null: whether the stored row shows a key only, of a row that was deleted (`UNSEEN`)."""
    marked = (T("__op") == Op.DELETE) & F.map_contains_key(T("__column_seq"), F.lit(UNSEEN))
    return F.coalesce(marked, F.lit(False))


def S(name: str) -> Column:  # noqa: N802
    """Return a value of the state's row."""
    return F.col("s.row")[name]
