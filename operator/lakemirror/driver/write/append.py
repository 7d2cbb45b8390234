"""Writes change events as rows of an append-only mirror, each event once."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from lakemirror.driver.parse.values.expressions import same_value
from lakemirror.driver.sequence import is_snapshot
from lakemirror.driver.tables.columns import S, T
from lakemirror.driver.tables.delta import quoted
from lakemirror.driver.tables.mirror import Mirror
from lakemirror.driver.write.own import Own
from lakemirror.driver.write.writer import Written, merged


def append(
    mirror: Mirror,
    events: DataFrame,
    columns: Mapping[str, DataType],
    own: Own,
    session: SparkSession | None = None,
) -> Written:
    """Add the rows of an event frame that are not in the mirror yet, in one commit.

    The commit is made in the events' session, or in ``session`` if given. A change that was sent again has
    the position of the first delivery, and either its payload or its origin. Changes at the same position may
    differ: PostgreSQL gives all rows of a COPY the same LSN, and Oracle gives the same position to all
    changes of an SCN. All rows of a snapshot share one position and may be equal, so only their origin tells
    them apart.
    """
    origin = F.struct("topic", "partition", "offset")
    place = F.when(is_snapshot(F.col("seq")), origin)
    once = events.withColumns({"origin": origin, "place": place}).dropDuplicates(
        ["seq", "op", "digest", "place"]
    )
    alike = reduce(Column.__and__, [same_value(T(name), S(name), kind) for name, kind in columns.items()])
    same = (
        (T("__seq") == F.col("s.seq"))
        & (T("__op") == F.col("s.op"))
        & (T("__origin").eqNullSafe(F.col("s.origin")) | (F.col("s.place").isNull() & alike))
    )
    values = {name: S(name) for name in columns}
    meta = {
        "__seq": F.col("s.seq"),
        "__op": F.col("s.op"),
        "__event_time": F.col("s.event_time"),
        "__origin": F.col("s.origin"),
        "__unrepresentable": F.col("s.texts"),
    }
    rows = {**values, **meta, **own.values(meta, values)}
    inserts: dict[str, str | Column] = {quoted(name): value for name, value in rows.items()}
    result = (
        mirror.delta(session or events.sparkSession)
        .alias("t")
        .merge(once.alias("s"), same)
        .whenNotMatchedInsert(values=inserts)
    )
    return merged(result, mirror.location)
