"""Tombstones of what a batch takes away; they stand before its rows are committed."""

from __future__ import annotations

from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from lakemirror.driver.plan.mirrored import MirroredTable
from lakemirror.driver.plan.table import TablePlan
from lakemirror.driver.read.base import Batch
from lakemirror.driver.reduce.table import Reduced, State
from lakemirror.driver.tables import tombstones
from lakemirror.driver.tables.keys import encode_row
from lakemirror.driver.write.log import append


def write_tombstones(table: MirroredTable, plan: TablePlan, reduced: Reduced, batch: Batch) -> None:
    """Write tombstones of deletes, of a truncate and of rows that moved, as one commit."""
    state, floor, facts = reduced.state, plan.seen.floor, []
    deletes = moved = 0
    if state is not None and plan.soft is None:
        deletes = reduced.counts.deletes - reduced.counts.known
        if deletes:
            facts.append(_deleted(state, batch))
    if floor is not None:
        nothing = table.spark.range(1)
        facts.append(tombstones.fact(nothing, "truncated", batch=batch.batch_id, seq=F.lit(floor)))
    if state is not None and state.images is not None:
        moved = state.images.count()
        if moved:
            facts.append(_moved(state.images, batch))
    if facts:
        summary = tombstones.raised(
            table.tombstones.summary,
            deletes=deletes,
            last_delete=reduced.counts.last_delete,
            moved=moved,
            floor=floor,
        )
        append(reduce(DataFrame.unionByName, facts), table.tombstones.path)
        table.tombstones.summary = summary


def _deleted(state: State, batch: Batch) -> DataFrame:
    gone = state.frame.where("key IS NOT NULL AND op = 'd' AND NOT known")
    place = {name: F.col(name) for name in ("seq", "event_time", "topic", "partition", "offset")}
    return tombstones.fact(gone, "deleted", batch=batch.batch_id, key=tombstones.encoded_key(gone), **place)


def _moved(images: DataFrame, batch: Batch) -> DataFrame:
    row = images.schema["row"].dataType
    assert isinstance(row, StructType)
    return tombstones.fact(
        images,
        "moved",
        batch=batch.batch_id,
        key=tombstones.encoded_key(images),
        seq=F.col("seq"),
        new_key=tombstones.encoded_key(images, "new_key"),
        image=encode_row(F.col("row"), row),
        seqs=F.col("seqs"),
    )
