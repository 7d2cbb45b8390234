"""Handles key changes: values missing from the create half come from the row under its former key.

The source did not send these values. Debezium sends a key change as a delete (with the new key) and a create
(with the old key), both at the same sequence. An *image* is the row under its former key just before a move:
STRUCT key, seq of the move, new_key, and one value and one sequence per tracked column. Late events for the
former key still improve the image. What it gains is passed on to the new key as a *patch*, through any number
of further moves. Patches only fill columns; they never create a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from lakemirror.driver.codes import Op
from lakemirror.driver.sequence import MISSING, event_part, moved, own
from lakemirror.driver.tables.delta import quoted

ROUNDS = 64
"""Maximum number of moves that one value is passed through in a batch.

A longer chain is not a chain of one batch.
"""


def images(
    events: DataFrame,
    stored_images: DataFrame | None,
    stored_rows: DataFrame | None,
    deleted: DataFrame | None,
    *,
    tracked: Sequence[str],
    floor: bytes | None,
) -> DataFrame:
    """Return the image of every known move, and what is to be written of them.

    Columns: key, seq, new_key, row STRUCT of tracked, seqs MAP. ``new`` says that no image of the move is
    stored, and ``changed`` that none is or that a value is newer than the stored ones: it is to be written.

    ``events`` is the table's event frame. ``stored_images`` are key, seq, new_key, row, seqs, one or more for
    each stored move. ``stored_rows`` are the mirror's rows as key STRUCT, row STRUCT, seq, seqs. ``deleted``
    are tombstones as key STRUCT, seq.
    """
    moves = _moves(events, stored_images).localCheckpoint()
    said = [_from_events(events, tracked)]
    if stored_images is not None:
        said.append(_said(stored_images, tracked, bound=F.col("seq")))
    if stored_rows is not None:
        said.append(_said(stored_rows.join(moves.select("key").distinct(), "key", "left_semi"), tracked))
    if deleted is not None:
        said.append(_blank(deleted.select("key", own(F.col("seq")).alias("at")), tracked, events))
    if floor is not None:
        said.append(_blank(moves.select("key", own(F.lit(floor)).alias("at")), tracked, events))
    facts = reduce(DataFrame.unionByName, said)
    found = _fold(moves, facts, tracked).localCheckpoint()
    for _ in range(ROUNDS):
        passed = patches(found, tracked)
        if found.join(passed.select("key"), "key", "left_semi").isEmpty():
            break
        again = _fold(moves, facts.unionByName(_said(passed, tracked)), tracked).localCheckpoint()
        if _digest(again, tracked) == _digest(found, tracked):
            break
        found = again
    return found


def patches(found: DataFrame, tracked: Sequence[str]) -> DataFrame:
    """Convert images to what each move passes on to its new key: key, seq, row, seqs."""
    seqs = [
        F.when(_seq_of(name) != F.lit(MISSING), moved(F.col("seq"), _seq_of(name))).otherwise(F.lit(MISSING))
        for name in tracked
    ]
    return found.select(F.col("new_key").alias("key"), "seq", "row", _seqs(seqs, tracked).alias("seqs"))


def _newest(inherited: DataFrame, tracked: Sequence[str]) -> DataFrame:
    """Return one patch per key, with the newest value of each column: key, _row, _seqs."""
    entry = [F.struct(F.col("seqs")[name].alias("s"), F.col("row")[name].alias("v")) for name in tracked]
    newest = [
        F.max_by(each, F.col("seqs")[name]).alias(f"_{i}")
        for i, (name, each) in enumerate(zip(tracked, entry, strict=True))
    ]
    values = [F.col(f"_{i}.v").alias(name) for i, name in enumerate(tracked)]
    seqs = [F.col(f"_{i}.s") for i in range(len(tracked))]
    return (
        inherited.groupBy("key")
        .agg(*newest)
        .select("key", F.struct(*values).alias("_row"), _seqs(seqs, tracked).alias("_seqs"))
    )


def inherit(state: DataFrame, inherited: DataFrame, tracked: Sequence[str]) -> DataFrame:
    """Merge patches into a state frame. A key that has only a patch gets op ``p``."""
    joined = state.join(_newest(inherited, tracked), "key", "full_outer")
    blank = F.coalesce(F.col("seq"), F.lit(MISSING))
    row_type = state.schema["row"].dataType
    assert isinstance(row_type, StructType)
    nothing = [F.lit(None).cast(field.dataType).alias(field.name) for field in row_type.fields]
    row = F.coalesce(F.col("row"), F.struct(*nothing))
    seqs: dict[str, Column] = {}
    for name in tracked:
        mine = F.when(F.col("seq").isNull(), F.lit(MISSING)).otherwise(
            F.coalesce(F.col("seqs")[F.lit(name)], own(F.col("seq")))
        )
        # A value that a later move brings waits for the create half; until then, the row keeps its own value.
        # A deleted row of a soft delete has none from after its last event with a row.
        last = F.coalesce("row_seq", "seq")
        due = F.col("seq").isNull() | (event_part(F.col("_seqs")[F.lit(name)], F.col("seq")) <= last)
        theirs = F.coalesce(F.when(due, F.col("_seqs")[F.lit(name)]), F.lit(MISSING))
        row = row.withField(
            quoted(name), F.when(theirs > mine, F.col("_row")[name]).otherwise(F.col("row")[name])
        )
        seqs[name] = F.greatest(mine, theirs)
    entries = F.map_filter(
        _seqs(list(seqs.values()), list(seqs)),
        lambda _, value: F.col("seq").isNull() | (value != own(F.col("seq"))),
    )
    return (
        joined.withColumns(
            {
                "row": row,
                "seqs": F.when(F.size(entries) > 0, entries),
                "op": F.coalesce("op", F.lit(Op.PASSED)),
                "unanchored": F.coalesce("unanchored", F.lit(False)),
                "records": F.coalesce("records", F.lit(0)),
                "own": F.coalesce("own", F.lit(0)),
                "duplicates": F.coalesce("duplicates", F.lit(0)),
            }
        )
        .withColumn("seq", blank)
        .drop("_row", "_seqs")
    )


def _moves(events: DataFrame, stored: DataFrame | None) -> DataFrame:
    """Return key, seq and new_key of every known move."""
    halves = events.where(F.col("new_key").isNotNull() | F.col("old_key").isNotNull())
    left = halves.where(f"op = '{Op.DELETE}'").select("key", "seq", "new_key")
    right = halves.where(f"old_key IS NOT NULL AND op <> '{Op.DELETE}'").select(
        F.col("old_key").alias("key"), "seq", F.col("key").alias("new_key")
    )
    found = left.where("new_key IS NOT NULL").union(right)
    if stored is not None:
        found = found.union(stored.select("key", "seq", "new_key"))
    return found.dropDuplicates(["key", "seq"])


def _from_events(events: DataFrame, tracked: Sequence[str]) -> DataFrame:
    """Return what each event says about each tracked column, as facts.

    Columns: key, bound, and one STRUCT<s, v> per tracked column.
    """
    columns = []
    for i, name in enumerate(tracked):
        gap = F.coalesce(F.array_contains("gaps", name), F.lit(False))
        nothing = F.lit(None)
        columns.append(
            F.when(F.col("op") == Op.DELETE, F.struct(own(F.col("seq")).alias("s"), nothing.alias("v")))
            .when(gap & (F.col("op") == Op.CREATE), F.struct(F.col("seq").alias("s"), nothing.alias("v")))
            .when(~gap, F.struct(own(F.col("seq")).alias("s"), F.col("row")[name].alias("v")))
            .alias(f"_{i}")
        )
    return events.select("key", F.lit(None).cast("binary").alias("bound"), *columns)


def _said(rows: DataFrame, tracked: Sequence[str], bound: Column | None = None) -> DataFrame:
    """Convert stored rows, images or patches to facts. ``bound`` ties a fact to the image of one move."""
    columns = [
        F.struct(_seq_of(name).alias("s"), F.col("row")[name].alias("v")).alias(f"_{i}")
        for i, name in enumerate(tracked)
    ]
    tied = F.lit(None).cast("binary") if bound is None else bound
    return rows.select("key", tied.alias("bound"), *columns)


def _blank(keys: DataFrame, tracked: Sequence[str], like: DataFrame) -> DataFrame:
    """Convert deletes to facts: null for every column."""
    row = like.schema["row"].dataType
    columns = [
        F.struct(F.col("at").alias("s"), F.lit(None).cast(row[name].dataType).alias("v")).alias(f"_{i}")  # type: ignore[index]
        for i, name in enumerate(tracked)
    ]
    return keys.select("key", F.lit(None).cast("binary").alias("bound"), *columns)


def _fold(moves: DataFrame, facts: DataFrame, tracked: Sequence[str]) -> DataFrame:
    """For each move, return the newest value of each column from before it, and the marks of `images`.

    A fact that is bound to a move is a stored image of it.
    """
    said = facts.select(F.col("key").alias("_key"), "bound", *[f"_{i}" for i in range(len(tracked))])
    joined = moves.join(
        said,
        (F.col("key") == F.col("_key")) & (F.col("bound").isNull() | (F.col("bound") == F.col("seq"))),
        "left",
    )
    newest, is_stored = [], F.col("bound").isNotNull()
    for i in range(len(tracked)):
        usable = F.when(F.col(f"_{i}.s") < F.col("seq"), F.col(f"_{i}.s"))
        newest.append(F.max_by(F.when(usable.isNotNull(), F.col(f"_{i}")), usable).alias(f"_{i}"))
        newest.append(F.max(F.when(is_stored, usable)).alias(f"_{i}_stored"))
    return (
        joined.groupBy("key", "seq")
        .agg(F.first("new_key").alias("new_key"), F.count_if(is_stored).alias("_images"), *newest)
        .select(
            "key",
            "seq",
            "new_key",
            F.struct(*[F.col(f"_{i}.v").alias(name) for i, name in enumerate(tracked)]).alias("row"),
            _seqs([F.coalesce(F.col(f"_{i}.s"), F.lit(MISSING)) for i in range(len(tracked))], tracked).alias(
                "seqs"
            ),
            (F.col("_images") == 0).alias("new"),
            _is_changed(tracked).alias("changed"),
        )
    )


def _is_changed(tracked: Sequence[str]) -> Column:
    """BOOLEAN: whether a move has no stored image, or a value newer than those of its stored images."""
    newer = [F.col(f"_{i}.s") > F.coalesce(f"_{i}_stored", F.lit(MISSING)) for i in range(len(tracked))]
    return reduce(Column.__or__, [F.coalesce(each, F.lit(False)) for each in newer], F.col("_images") == 0)


def _seq_of(name: str) -> Column:
    """A column's sequence in a frame with ``seq`` and ``seqs``."""
    return F.coalesce(F.col("seqs")[F.lit(name)], own(F.col("seq")))


def _seqs(values: Sequence[Column], names: Sequence[str]) -> Column:
    return F.map_from_arrays(F.array(*map(F.lit, names)), F.array(*values))


def _digest(found: DataFrame, tracked: Sequence[str]) -> int:
    """Return a number that changes if any sequence of any image changes."""
    image = F.xxhash64("key", "seq", *[_seq_of(name) for name in tracked])
    row = found.agg(F.sum(image.cast("decimal(38,0)"))).first()
    return int(row[0]) if row is not None and row[0] is not None else 0
