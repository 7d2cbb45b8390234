"""``onConflict: fail``: detects creates of rows that exist already, which no database makes of its own rows.

They come from a second source that writes to the same table, from a delete that was lost, or from a delete
that is still to come. The table is therefore held in this batch, and its records are retried like all held
records. If the delete arrives in the meantime, they are applied automatically.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from lakemirror.driver.codes import Op
from lakemirror.driver.orders import Fact, Floor
from lakemirror.driver.plan.mirrored import MirroredTable, stored_key
from lakemirror.driver.plan.refusal import Refused
from lakemirror.driver.plan.table import TablePlan
from lakemirror.driver.reduce.bounds import within
from lakemirror.driver.reduce.table import Reduced
from lakemirror.driver.reduce.waiting import floor_of
from lakemirror.driver.tables.columns import T
from lakemirror.driver.tables.tombstones import encoded_key


def refuse_conflicts(table: MirroredTable, plan: TablePlan, reduced: Reduced) -> None:
    """Raise Refused if a create of the batch meets a live row and the manifest says ``fail``."""
    if table.settings.on_conflict != "fail" or reduced.events is None or not plan.reading.key:
        return
    deleted = table.tombstones.deleted() if table.mirror.exists else None
    order = floor_of(table, plan.seen)
    former = plan.former_floor if order is None else None
    floors = [floor for floor in (plan.seen.floor, former) if floor is not None]
    found = conflicts(reduced.events, stored_rows(table, plan, reduced), deleted, floors, order)
    first = found.orderBy("seq").select("topic", "partition", "offset").first()
    if first is None:
        return
    place = f"tables[{table.settings.source}].onConflict"
    raise Refused(
        f"the record {first['topic']}/{first['partition']}/{first['offset']} creates a row of {table.name} "
        f"that is there already, and {place} is fail: the table's records are held. The quarantine has the "
        "record with the row's key. "
        f"They are applied by themselves if a delete of that row arrives; to take the new row, set {place}: "
        "replace"
    )


def conflicts(
    events: DataFrame,
    stored: DataFrame | None,
    deleted: DataFrame | None,
    floors: list[bytes],
    order: Floor | None = None,
) -> DataFrame:
    """Return the creates of an event frame that meet a live row: key, seq, topic, partition, offset.

    ``stored`` are rows of the mirror: key, stored, live. ``deleted`` are tombstones, with their key as text.
    ``floors`` are the sequences of truncates, ``order`` is a truncate that does not compare with all events.

    The newest fact known from before the create says whether its row is live. A create that is not newer than
    what is stored is a duplicate or stale. Keys with changes of transactions that were open during a snapshot
    are skipped, because their sequences are inconclusive.
    """
    facts = F.max_by(F.struct("op", "event_time", "topic", "partition", "offset"), "offset").alias("last")
    open_too = F.max("unanchored").alias("unanchored")
    once = events.where("key IS NOT NULL").groupBy("key", "seq").agg(facts, open_too)
    by_key = Window.partitionBy("key")
    steps = once.select(
        "key",
        "seq",
        "last.*",
        F.lag(F.struct("seq", F.col("last.op").alias("op"))).over(by_key.orderBy("seq")).alias("before"),
        F.max("unanchored").over(by_key).alias("unanchored"),
    )
    creates = steps.where(f"op = '{Op.CREATE}' AND NOT coalesce(unanchored, false)")
    known = [_fact(F.col("before.seq"), F.col("before.op") == Op.DELETE)]
    if stored is not None:
        rows = stored.select(F.col("key").alias("_key"), "stored", "live")
        creates = creates.join(rows, F.col("key") == F.col("_key"), "left").drop("_key")
        known.append(_fact(F.col("stored"), ~F.col("live")))
    if deleted is not None:
        gone = deleted.select(F.col("key").alias("_key"), F.col("seq").alias("gone"))
        creates = creates.join(gone, encoded_key(creates) == F.col("_key"), "left").drop("_key")
        known.append(_fact(F.col("gone"), F.lit(True)))
    known += [_fact(F.lit(floor), F.lit(True)) for floor in floors]
    if order is not None:
        known.append(_fact(F.when(order.compares(Fact.of_event()), F.lit(order.seq)), F.lit(True)))
    newest = known[0] if len(known) == 1 else F.greatest(*known)
    late = reduce(Column.__or__, [F.coalesce(each["seq"] >= F.col("seq"), F.lit(False)) for each in known])
    return creates.where(~late & newest.isNotNull() & ~newest["gone"]).select(
        "key", "seq", "topic", "partition", "offset"
    )


def _fact(seq: Column, gone: Column) -> Column:
    """STRUCT<seq, gone>: what is known about a key at a sequence; null if nothing is known."""
    return F.when(seq.isNotNull(), F.struct(seq.alias("seq"), gone.alias("gone")))


def stored_rows(table: MirroredTable, plan: TablePlan, reduced: Reduced) -> DataFrame | None:
    """Return the mirror's rows in the batch's range of keys: key, stored, live."""
    if not table.mirror.exists:
        return None
    rows = table.rows().alias("t")
    seq, live = T("__seq"), T("__op") != Op.DELETE
    if plan.mode == "scd2":
        rows = rows.where(T("__is_current") | T("__is_deleted"))
        seq, live = F.greatest(T("__seq"), T("__delete_seq")), T("__is_current")
    rows = rows.select(stored_key(plan.reading), seq.alias("stored"), live.alias("live"))
    for name, (low, high) in reduced.counts.bounds.items():
        if low is not None:
            rows = rows.where(within(F.col("key")[name], plan.reading.columns[name], low, high))
    return rows
