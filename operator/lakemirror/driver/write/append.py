"""Writes change events as rows of an append-only mirror, each event once."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Literal

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from lakemirror.driver.codes import Op
from lakemirror.driver.parse.values.expressions import same_value
from lakemirror.driver.sequence import is_snapshot, position
from lakemirror.driver.tables.columns import PAYLOAD, SHARD, S, T
from lakemirror.driver.tables.delta import quoted
from lakemirror.driver.tables.mirror import Mirror
from lakemirror.driver.write.own import Own
from lakemirror.driver.write.writer import Written, merged

Correcting = Literal["by origin", "by origin and kind", "by position"]
"""How the row of a line of a file is found that is read again, perhaps with other bytes.

Where positions order the changes, a line of another file may have the same event, so that the position is
compared as well. ``kind``: an update that changed its row's key has two rows of one origin, of which one ends
the former row.
"""


def append(
    mirror: Mirror,
    events: DataFrame,
    columns: Mapping[str, DataType],
    own: Own,
    session: SparkSession | None = None,
    *,
    correcting: Correcting | None = None,
) -> Written:
    """Add the rows of an event frame that are not in the mirror yet, in one commit.

    The commit is made in the events' session, or in ``session`` if given. An event that was sent again has
    the origin of the first delivery, or its position in the same log and its payload as sent. Changes at the
    same position may differ: PostgreSQL gives all rows of a COPY the same LSN, and Oracle gives the same
    position to all changes of an SCN. All rows of a snapshot share one position and may be equal, so only
    their origin tells them apart, as it does for events without a position.

    With ``correcting``, an event with a stored origin and another payload replaces that row.
    """
    once, corrects = _once(events), correcting is not None
    values = {name: S(name) for name in columns}
    meta = {
        "__seq": F.col("s.seq"),
        "__op": F.col("s.op"),
        "__event_time": F.col("s.event_time"),
        "__origin": F.col("s.origin"),
        "__column_seq": F.when(
            F.col("s.place").isNull() | F.lit(corrects), F.create_map(F.lit(PAYLOAD), F.col("s.sent"))
        ),
        "__unrepresentable": F.col("s.texts"),
    }
    rows = {**values, **meta, **own.values(meta, values)}
    inserts: dict[str, str | Column] = {quoted(name): value for name, value in rows.items()}
    result = (
        mirror.delta(session or events.sparkSession)
        .alias("t")
        .merge(once.alias("s"), _is_known(columns, correcting))
        .whenNotMatchedInsert(values=inserts)
    )
    if corrects:
        result = result.whenMatchedUpdate(_is_of_origin() & ~_is_alike(columns), inserts)
    return merged(result, mirror.location)


def new_events(events: DataFrame, columns: Mapping[str, DataType], stored: DataFrame | None) -> DataFrame:
    """Return the events of an event frame that are not among the ``stored`` rows, each once."""
    once = _once(events).alias("s")
    return once if stored is None else once.join(stored.alias("t"), _is_same(columns), "left_anti")


def _once(events: DataFrame) -> DataFrame:
    """Return each event once, with its origin, its payload (sent) and its place if that identifies it."""
    origin = F.struct("topic", "partition", "offset")
    alone = is_snapshot(F.col("seq")) | ~F.col("placed")
    place = F.when(alone, origin)
    marked = events.withColumns({"origin": origin, "place": place, "sent": _as_bytes(F.col("digest"))})
    return marked.dropDuplicates(["seq", "op", "digest", "place"])


def _is_known(columns: Mapping[str, DataType], correcting: Correcting | None) -> Column:
    """BOOLEAN: whether an event is the one of a stored row, or corrects it."""
    if correcting == "by origin":
        return _is_of_origin()
    if correcting == "by origin and kind":
        return _is_of_origin() & ((T("__op") == Op.DELETE) == (F.col("s.op") == Op.DELETE))
    return _is_same(columns)


def _is_of_origin() -> Column:
    """BOOLEAN: whether an event has the origin of a stored row."""
    return T("__origin").eqNullSafe(F.col("s.origin"))


def _is_same(columns: Mapping[str, DataType]) -> Column:
    """BOOLEAN: whether an event is the one of a stored row."""
    return (
        _is_of_shard(columns)
        & (position(T("__seq")) == position(F.col("s.seq")))
        & (T("__op") == F.col("s.op"))
        & (_is_of_origin() | (F.col("s.place").isNull() & _is_alike(columns)))
    )


def _is_of_shard(columns: Mapping[str, DataType]) -> Column:
    """BOOLEAN: whether a stored row is of the event's shard. Positions of two shards say nothing."""
    return T(SHARD) == S(SHARD) if SHARD in columns else F.lit(True)


def _is_alike(columns: Mapping[str, DataType]) -> Column:
    """BOOLEAN: whether the event of a stored row at the same position was sent with the same payload.

    Rows of earlier versions have only their values.
    """
    alike = reduce(Column.__and__, [same_value(T(name), S(name), kind) for name, kind in columns.items()])
    stored = T("__column_seq")[F.lit(PAYLOAD)]
    return F.when(stored.isNull(), alike).otherwise(stored == F.col("s.sent"))


def _as_bytes(number: Column) -> Column:
    return F.unhex(F.lpad(F.hex(number), 16, "0"))
