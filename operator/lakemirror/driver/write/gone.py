"""Writes the tombstones of what a batch removes. They are written before its rows are committed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from lakemirror.driver.codes import Op
from lakemirror.driver.plan.mirrored import MirroredTable
from lakemirror.driver.plan.table import TablePlan
from lakemirror.driver.read.base import Batch
from lakemirror.driver.reduce.history import History, to_remember
from lakemirror.driver.reduce.table import Reduced, State
from lakemirror.driver.sequence import as_bytes
from lakemirror.driver.tables import tombstones
from lakemirror.driver.tables.columns import SENT
from lakemirror.driver.tables.keys import encode_row


def write_tombstones(table: MirroredTable, plan: TablePlan, reduced: Reduced, batch: Batch) -> None:
    """Write the tombstones of deletes, of a truncate and of moved rows, in one commit."""
    state, floor, facts = reduced.state, plan.seen.floor, []
    deletes = 0
    if state is not None and plan.soft is None:
        deletes = reduced.counts.deletes - reduced.counts.known
        if deletes or reduced.counts.renewed:
            facts.append(_deleted(state, batch))
    if floor is not None:
        nothing = table.spark.range(1)
        topic, partition = plan.seen.floor_from
        place = {"seq": F.lit(floor), "topic": F.lit(topic), "partition": F.lit(partition)}
        facts.append(tombstones.fact(nothing, "truncated", batch=batch.batch_id, **place))
    moved, raised = _changed(state.images if state is not None else None, batch)
    last = reduced.counts.last_delete
    _append(table, [*facts, *moved], deletes=deletes, last_delete=last, floor=floor, **raised)


def write_ends(table: MirroredTable, told: History, batch: Batch) -> None:
    """Write the tombstones for a mirror that keeps versions.

    These are all deletes and truncates, because each may end a version that arrives later.
    """
    facts, deletes = [], told.outcomes.deletes
    moved, by_moves = _changed(told.images, batch)
    if deletes:
        facts.append(_ended(told.versions, batch))
    for each in told.truncates:
        place = {
            "seq": F.lit(each.seq),
            "event_time": F.lit(each.event_time),
            "topic": F.lit(each.topic),
            "partition": F.lit(each.partition),
        }
        facts.append(tombstones.fact(table.spark.range(1), "truncated", batch=batch.batch_id, **place))
    facts.extend(moved)
    if told.outcomes.merged:
        facts.append(_merged(told.versions, batch))
    raised = {
        "deletes": deletes,
        "last_delete": told.outcomes.last_delete,
        "latest": told.outcomes.latest,
        **by_moves,
        "floor": max((each.seq for each in told.truncates), default=None),
        "merged": told.outcomes.merged > 0,
    }
    _append(table, facts, **raised)


def _append(table: MirroredTable, facts: Sequence[DataFrame], **raised: Any) -> None:
    """Write facts, if there are any, together with their effect on the summary (``tombstones.raised``)."""
    if facts:
        summary = tombstones.raised(table.tombstones.summary, **raised)
        table.tombstones.add(reduce(DataFrame.unionByName, facts), summary)


def _ended(versions: DataFrame, batch: Batch) -> DataFrame:
    gone = versions.where(f"kind = 'event' AND op = '{Op.DELETE}'")
    named = ("seq", "event_time", "topic", "partition", "offset", "seqs")
    place = {name: F.col(name) for name in named}
    return tombstones.fact(gone, "deleted", batch=batch.batch_id, key=tombstones.encoded_key(gone), **place)


def _merged(versions: DataFrame, batch: Batch) -> DataFrame:
    rows = versions.where(to_remember()).withColumn("_image", F.struct("op", "texts", "row"))
    image = rows.schema["_image"].dataType
    assert isinstance(image, StructType)
    place = {name: F.col(name) for name in ("seq", "event_time", "topic", "partition", "offset", "seqs")}
    return tombstones.fact(
        rows,
        "merged",
        batch=batch.batch_id,
        key=tombstones.encoded_key(rows),
        image=encode_row(F.col("_image"), image),
        **place,
    )


def _deleted(state: State, batch: Batch) -> DataFrame:
    gone = state.frame.where(f"key IS NOT NULL AND op = '{Op.DELETE}' AND (renewed OR NOT known)")
    place = {name: F.col(name) for name in ("seq", "event_time", "topic", "partition", "offset")}
    return tombstones.fact(gone, "deleted", batch=batch.batch_id, key=tombstones.encoded_key(gone), **place)


def _changed(images: DataFrame | None, batch: Batch) -> tuple[list[DataFrame], dict[str, Any]]:
    """Return the facts of moves that are new or improved, and their effect on the summary."""
    if images is None:
        return [], {}
    changed = images.where("changed")
    found = changed.agg(F.count("*"), F.count_if("new"), F.max("seq")).first()
    assert found is not None
    if not found[0]:
        return [], {}
    return [_moved(changed, batch)], {
        "moved": found[0],
        "new_moves": found[1],
        "last_move": as_bytes(found[2]),
    }


def _moved(images: DataFrame, batch: Batch) -> DataFrame:
    row = images.schema["row"].dataType
    assert isinstance(row, StructType)
    origin = {name: F.when(F.col("opened"), F.col(name)) for name in tombstones.ORIGIN}
    sent = F.when(F.col("opened"), F.create_map(F.lit(SENT), F.col("seq")))
    return tombstones.fact(
        images,
        "moved",
        batch=batch.batch_id,
        key=tombstones.encoded_key(images),
        seq=F.col("seq"),
        new_key=tombstones.encoded_key(images, "new_key"),
        image=encode_row(F.col("row"), row),
        seqs=F.coalesce(F.map_concat("seqs", sent), F.col("seqs")),
        **origin,
    )
