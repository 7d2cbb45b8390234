"""Handles key changes: values missing from the create half come from the row under its former key.

The source did not send these values. Debezium sends a key change as a delete (with the new key) and a create
(with the old key), both at the same sequence. An *image* is the row under its former key just before a move:
STRUCT key, seq of the move, new_key, and one value and one sequence per tracked column. Late events for the
former key still improve the image. What it gains is passed on to the new key as a *patch*, through any number
of further moves. Patches only fill columns; they never create a row.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial, reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from lakemirror.driver.codes import Op
from lakemirror.driver.reduce.events import unless_empty
from lakemirror.driver.sequence import (
    MISSING,
    WIDTH,
    are_of_one_epoch,
    beside_stored,
    event_part,
    is_reread,
    is_snapshot,
    minor,
    moved,
    own,
    placed,
    sent_of,
)
from lakemirror.driver.tables.tombstones import ORIGIN

ROUNDS = 64
"""Maximum number of moves that one value is passed through in a batch.

A longer chain is not a chain of one batch.
"""

_MOVE = ("key", "seq", "new_key", "opened", *ORIGIN)
"""The columns that tell of a move."""


def told(events: DataFrame, stored: DataFrame | None, *, opened: bool = False) -> DataFrame:
    """Return every known move: key, seq, new_key, opened, topic, partition, offset.

    ``opened`` says that the move is a change of a transaction that was open during the snapshot: ``seq`` is
    its LSN, as it was sent, and the origin that of its delete, if that came. See `images` for the arguments.
    """
    halves = events.where(F.col("new_key").isNotNull() | F.col("old_key").isNotNull())
    unanchored = F.col("unanchored") if opened else F.lit(False)
    sent = {"seq": F.when(unanchored, sent_of(F.col("seq"))).otherwise(F.col("seq")), "opened": unanchored}
    halves = halves.withColumns(sent)
    left = halves.where(f"op = '{Op.DELETE}' AND new_key IS NOT NULL").select(*_MOVE)
    nowhere = [F.lit(None).cast(events.schema[name].dataType).alias(name) for name in ORIGIN]
    right = halves.where(f"old_key IS NOT NULL AND op <> '{Op.DELETE}'").select(
        F.col("old_key").alias("key"), "seq", F.col("key").alias("new_key"), "opened", *nowhere
    )
    found = left.union(right)
    if stored is not None:
        found = found.union(stored.select(*_MOVE))
    origin = F.max(F.struct(*ORIGIN)).alias("origin")
    known = found.groupBy("key", "seq").agg(
        F.first("new_key").alias("new_key"), F.max("opened").alias("opened"), origin
    )
    return known.select("key", "seq", "new_key", "opened", "origin.*")


def with_origins(moves: DataFrame, deleted: DataFrame) -> DataFrame:
    """Return moves of open transactions with the origin of their delete, if only its tombstone is known."""
    place = F.max(F.struct(*ORIGIN)).alias("_gone")
    known = deleted.groupBy("key", sent_of(F.col("seq")).alias("seq")).agg(place)
    joined = moves.join(known, ["key", "seq"], "left")
    mine = F.col("opened") & F.col("topic").isNull() & F.col("_gone").isNotNull()
    origin = {name: F.when(mine, F.col("_gone")[name]).otherwise(F.col(name)) for name in ORIGIN}
    return joined.withColumns(origin).select(*_MOVE)


def of_moves(rows: DataFrame, moves: DataFrame) -> DataFrame:
    """Return the rows whose key is the former or the new one of a move."""
    keys = moves.select("key").union(moves.select("new_key")).distinct()
    return rows.join(keys, "key", "left_semi")


def images(
    moves: DataFrame,
    events: DataFrame,
    stored_images: DataFrame | None,
    stored_rows: DataFrame | None,
    deleted: Sequence[DataFrame],
    *,
    tracked: Sequence[str],
    truncates: Collection[bytes] = (),
    opened: bool = False,
) -> DataFrame:
    """Return the image of every known move, and what is to be written of them.

    Columns: those of ``moves``, row STRUCT of tracked, seqs MAP. ``new`` says that no image of the move is
    stored, and ``changed`` that none is or that a value is newer than the stored ones: it is to be written.

    ``moves`` is what `told` returns. ``events`` is the table's event frame; with ``opened`` False, unanchored
    events have their place already.
    ``stored_images`` are key, seq, new_key, opened, topic, partition, offset, row, seqs, one or more for each
    stored move. ``stored_rows`` are the mirror's rows as key STRUCT, row STRUCT, seq, seqs, and their origin.
    ``deleted`` are tombstones and rows that are softly deleted, as key STRUCT, seq, and their origin.
    ``truncates`` are the sequences of the table's truncates: a move brings nothing from before the last one
    that precedes it.
    """
    carried = _from_events(events, tracked)
    if opened:
        carried = _in_place(carried, stored_rows, deleted, stored_images, tracked)
    said = [carried.drop("unanchored")]
    if stored_images is not None:
        said.append(_said(stored_images, tracked, bound=F.col("seq")))
    if stored_rows is not None:
        said.append(_said(stored_rows.join(moves.select("key").distinct(), "key", "left_semi"), tracked))
    ends = [gone.select("key", own(F.col("seq")).alias("at")) for gone in deleted]
    if truncates:
        ends.append(_truncated(moves, truncates))
    said.extend(_blank(each, tracked, events) for each in ends)
    facts = reduce(partial(DataFrame.unionByName, allowMissingColumns=True), said)
    found = _fold(moves, facts, tracked).localCheckpoint()
    for _ in range(ROUNDS):
        passed = patches(found, tracked)
        if found.join(passed.select("key"), "key", "left_semi").isEmpty():
            break
        again = _improved(found, passed, tracked).localCheckpoint()
        if _digest(again, tracked) == _digest(found, tracked):
            break
        found = again
    return found.withColumn("changed", _is_changed(tracked)).drop("stored")


def patches(found: DataFrame, tracked: Sequence[str]) -> DataFrame:
    """Convert images to what each move passes on to its new key: key, seq, row, seqs."""
    seqs = [
        F.when(_seq_of(name) != F.lit(MISSING), moved(F.col("seq"), _seq_of(name))).otherwise(F.lit(MISSING))
        for name in tracked
    ]
    return found.select(F.col("new_key").alias("key"), "seq", "row", _seqs(seqs, tracked).alias("seqs"))


def _newest(
    inherited: DataFrame, state: DataFrame, stored: DataFrame | None, tracked: Sequence[str]
) -> DataFrame:
    """Return one patch per key, with the newest value of each column: key, _row, _seqs.

    A value that a later move brings waits for the create half; until then, the row keeps its own value. A
    deleted row of a soft delete has none from after its last event with a row.
    """
    told = state.select(
        "key",
        F.coalesce("row_seq", "seq").alias("_last"),
        F.col("seq").alias("_seq"),
        F.col("seqs").alias("_of"),
    )
    known = inherited.join(told, "key", "left")
    last, creates = F.coalesce("_last", F.lit(MISSING)), [("_seq", "_of")]
    if stored is not None:
        kept = stored.select("key", F.col("seq").alias("_stored"), F.col("seqs").alias("_of_stored"))
        known = known.join(kept, "key", "left")
        last = F.greatest(last, F.coalesce("_stored", F.lit(MISSING)))
        creates.append(("_stored", "_of_stored"))
    newest = []
    for i, name in enumerate(tracked):
        value = F.col("seqs")[name]
        placed = F.greatest(value, *[at_create(value, _of_column(seq, seqs, name)) for seq, seqs in creates])
        usable = F.when((placed != F.lit(MISSING)) & (event_part(placed, last) <= last), placed)
        entry = F.struct(usable.alias("s"), F.col("row")[name].alias("v"))
        newest.append(F.max_by(entry, usable).alias(f"_{i}"))
    values = [F.col(f"_{i}.v").alias(name) for i, name in enumerate(tracked)]
    seqs = [F.col(f"_{i}.s") for i in range(len(tracked))]
    return (
        known.groupBy("key")
        .agg(*newest)
        .select("key", F.struct(*values).alias("_row"), _seqs(seqs, tracked).alias("_seqs"))
    )


def _of_column(seq: str, seqs: str, name: str) -> Column:
    """The sequence of a column by the names of its row's ``seq`` and ``seqs``. MISSING without a row."""
    return F.coalesce(F.col(seqs)[F.lit(name)], own(F.col(seq)), F.lit(MISSING))


def at_create(value: Column, create: Column) -> Column:
    """Return the sequence of a value that was passed on, in the place of the create half of its move.

    ``create`` is any sequence of the column. The create of an unanchored move may have its place after a row
    of the snapshot. It keeps its LSN.
    """
    unanchored = (F.length(value) > WIDTH) & (F.substring(value, 3, 10) == minor(value))
    halves = unanchored & are_of_one_epoch(create, value) & (minor(create) == minor(value))
    placed = F.concat(F.substring(create, 1, WIDTH), F.substring(value, WIDTH + 1, 1_000_000))
    return F.when(halves, F.greatest(value, placed)).otherwise(value)


def inherit(
    state: DataFrame,
    inherited: DataFrame,
    tracked: Sequence[str],
    stored: DataFrame | None = None,
    *,
    opened: bool = False,
) -> DataFrame:
    """Merge patches into a state frame. A key that has only a patch gets op ``p``.

    ``stored`` are the mirror's rows: key, seq, seqs, origin. ``opened`` says that the batch has unanchored
    events.
    """
    if opened and stored is not None:
        state = _beside_rows(state, stored, tracked)
    joined = state.join(_newest(inherited, state, stored, tracked), "key", "full_outer")
    blank = F.coalesce(F.col("seq"), F.lit(MISSING))
    row_type = state.schema["row"].dataType
    assert isinstance(row_type, StructType)
    values = {field.name: F.col("row")[field.name] for field in row_type.fields}
    seqs: dict[str, Column] = {}
    for name in tracked:
        mine = F.when(F.col("seq").isNull(), F.lit(MISSING)).otherwise(
            F.coalesce(F.col("seqs")[F.lit(name)], own(F.col("seq")))
        )
        theirs = F.coalesce(F.col("_seqs")[F.lit(name)], F.lit(MISSING))
        values[name] = F.when(theirs > mine, F.col("_row")[name]).otherwise(values[name])
        seqs[name] = F.greatest(mine, theirs)
    entries = F.map_filter(
        _seqs(list(seqs.values()), list(seqs)),
        lambda _, value: F.col("seq").isNull() | (value != own(F.col("seq"))),
    )
    return (
        joined.withColumns(
            {
                "row": F.struct(*[value.alias(name) for name, value in values.items()]),
                "seqs": unless_empty(entries),
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


def _beside_rows(state: DataFrame, stored: DataFrame, tracked: Sequence[str]) -> DataFrame:
    """Place what unanchored changes say beside the stored row: what a move brings is compared with it there.

    ``opened`` of a column is the offset of the change that said it, in the partition of the state.
    """
    place = F.struct("seq", "seqs", *ORIGIN).alias("_there")
    joined = state.join(stored.select("key", place), "key", "left")
    row, topic, partition = F.col("_there.seq"), F.col("_there.topic"), F.col("_there.partition")
    here = (F.col("topic") == topic) & (F.col("partition") == partition)
    found = []
    for name in tracked:
        offset = F.col("opened")[F.lit(name)]
        sent = F.coalesce(F.col("seqs")[F.lit(name)], own(F.col("seq")))
        column = _of_column("_there.seq", "_there.seqs", name)
        later = here & (offset > F.col("_there.offset"))
        value = beside_stored(sent, column, row, unanchored=offset.isNotNull(), later=later)
        found.append(F.when(row.isNotNull(), F.greatest(sent, value)).otherwise(sent))
    entries = F.map_filter(_seqs(found, tracked), lambda _, value: value != own(F.col("seq")))
    return joined.withColumn("seqs", unless_empty(entries)).drop("_there")


def _from_events(events: DataFrame, tracked: Sequence[str]) -> DataFrame:
    """Return what each event says about each tracked column, as facts.

    Columns: key, bound, unanchored, the origin, and one STRUCT<s, v> per tracked column.
    """
    columns = []
    for i, name in enumerate(tracked):
        gap = F.coalesce(F.array_contains("gaps", name), F.lit(False))
        nothing, begins = F.lit(None), F.col("op") == Op.CREATE
        if "begun" in events.columns:
            begins = F.array_contains("begun", name)
        columns.append(
            F.when(F.col("op") == Op.DELETE, F.struct(own(F.col("seq")).alias("s"), nothing.alias("v")))
            .when(gap & begins, F.struct(F.col("seq").alias("s"), nothing.alias("v")))
            .when(~gap, F.struct(own(F.col("seq")).alias("s"), F.col("row")[name].alias("v")))
            .alias(f"_{i}")
        )
    bound = F.lit(None).cast("binary").alias("bound")
    return events.select("key", bound, "unanchored", *ORIGIN, *columns)


def _in_place(
    told: DataFrame,
    rows: DataFrame | None,
    deleted: Sequence[DataFrame],
    images: DataFrame | None,
    tracked: Sequence[str],
) -> DataFrame:
    """Place what unanchored events say among all else that is known of their key.

    It comes behind what has a lower LSN, and behind a row of a snapshot that it follows in its partition.
    Images do not tell where their values came in a partition.
    """
    beside: list[list[Column]] = [[] for _ in tracked]
    places = [*([] if rows is None else [rows]), *deleted]
    for number, known in enumerate(places):
        mark = f"_place{number}"
        seqs = "seqs" if "seqs" in known.columns else F.lit(None).cast("map<string, binary>").alias("seqs")
        place = F.struct("seq", seqs, *ORIGIN).alias(mark)
        told = told.join(known.select("key", place), "key", "left")
        for i, name in enumerate(tracked):
            column, row = _of_column(f"{mark}.seq", f"{mark}.seqs", name), F.col(f"{mark}.seq")
            opened, later = F.col("unanchored"), _is_later("", f"{mark}.")
            beside[i].append(beside_stored(F.col(f"_{i}.s"), column, row, unanchored=opened, later=later))
    if images is not None:
        known = images.groupBy("key").agg(F.collect_list("seqs").alias("_images"))
        told = told.join(known, "key", "left")
        for i, name in enumerate(tracked):
            beside[i].append(_beside_images(F.col(f"_{i}.s"), name))
    newest = {
        f"_{i}": F.when(
            F.col(f"_{i}").isNotNull(),
            F.struct(
                F.greatest(F.col(f"_{i}.s"), F.lit(MISSING), *each).alias("s"), F.col(f"_{i}.v").alias("v")
            ),
        )
        for i, each in enumerate(beside)
    }
    return told.withColumns(newest).drop("_images", *(f"_place{number}" for number in range(len(places))))


def _beside_images(value: Column, name: str) -> Column:
    """Return the sequence of a value next to those that the images of its key have of the column."""
    opened, nowhere = F.col("unanchored"), F.lit(False)

    def beside(seqs: Column) -> Column:
        base = F.substring(seqs[F.lit(name)], 1, WIDTH)
        return placed(value, base, unanchored=opened, follows=nowhere)

    return F.array_max(F.transform("_images", beside))


def _is_later(one: str, other: str) -> Column:
    """BOOLEAN, never null: whether one origin comes after another in its partition, by their prefixes."""
    topic, partition, offset = ((F.col(one + name), F.col(other + name)) for name in ORIGIN)
    later = (topic[0] == topic[1]) & (partition[0] == partition[1]) & (offset[0] > offset[1])
    return F.coalesce(later, F.lit(False))


def _said(rows: DataFrame, tracked: Sequence[str], bound: Column | None = None) -> DataFrame:
    """Convert stored rows, images or patches to facts. ``bound`` ties a fact to the image of one move."""
    columns = [
        F.struct(_seq_of(name).alias("s"), F.col("row")[name].alias("v")).alias(f"_{i}")
        for i, name in enumerate(tracked)
    ]
    tied = F.lit(None).cast("binary") if bound is None else bound
    origin = ORIGIN if bound is None and set(ORIGIN) <= set(rows.columns) else ()
    return rows.select("key", tied.alias("bound"), *origin, *columns)


def _blank(keys: DataFrame, tracked: Sequence[str], like: DataFrame) -> DataFrame:
    """Convert deletes to facts: null for every column."""
    row = like.schema["row"].dataType
    columns = [
        F.struct(F.col("at").alias("s"), F.lit(None).cast(row[name].dataType).alias("v")).alias(f"_{i}")  # type: ignore[index]
        for i, name in enumerate(tracked)
    ]
    return keys.select("key", F.lit(None).cast("binary").alias("bound"), *columns)


def _truncated(moves: DataFrame, truncates: Collection[bytes]) -> DataFrame:
    """Return the column sequence of the last truncate before each move that has one: key, at."""
    ends = F.array(*map(F.lit, truncates))
    before = F.filter(ends, lambda each: _follows(own(each), F.lit(False)))
    return moves.select("key", own(F.array_max(before)).alias("at")).where("at IS NOT NULL")


def _fold(moves: DataFrame, facts: DataFrame, tracked: Sequence[str]) -> DataFrame:
    """For each move, return the newest value of each column from before it, and the marks of `images`.

    A fact that is bound to a move is a stored image of it: ``stored`` has the sequences of its values.
    """
    origin = [F.col(name).alias(f"_{name}") for name in ORIGIN]
    said = facts.select(F.col("key").alias("_key"), "bound", *origin, *[f"_{i}" for i in range(len(tracked))])
    joined = moves.join(
        said,
        (F.col("key") == F.col("_key")) & (F.col("bound").isNull() | (F.col("bound") == F.col("seq"))),
        "left",
    )
    newest, is_stored = [], F.col("bound").isNotNull()
    for i in range(len(tracked)):
        seq = F.col(f"_{i}.s")
        usable = F.when(is_stored | _follows(seq, _is_later("_", "")), seq)
        place = F.when(usable.isNotNull(), F.struct(usable, *_arrival(F.col(f"_{i}.v"))))
        newest.append(F.max_by(F.col(f"_{i}"), place).alias(f"_{i}"))
        newest.append(F.max(F.when(is_stored, usable)).alias(f"_{i}_stored"))
    stored = [F.coalesce(f"_{i}_stored", F.lit(MISSING)) for i in range(len(tracked))]
    return (
        joined.groupBy("key", "seq")
        .agg(
            *[F.first(name).alias(name) for name in ("new_key", "opened", *ORIGIN)],
            F.count_if(is_stored).alias("_images"),
            *newest,
        )
        .select(
            *_MOVE,
            F.struct(*[F.col(f"_{i}.v").alias(name) for i, name in enumerate(tracked)]).alias("row"),
            _seqs([F.coalesce(F.col(f"_{i}.s"), F.lit(MISSING)) for i in range(len(tracked))], tracked).alias(
                "seqs"
            ),
            (F.col("_images") == 0).alias("new"),
            _seqs(stored, tracked).alias("stored"),
        )
    )


def _arrival(value: Column) -> list[Column]:
    """Return what orders facts at one place: the arrival of their records, null if that is not known.

    If several rows exchange their keys at one position, a key has a delete and a create there. Where it is
    not known when one of them arrived, a value counts for more than the delete.
    """
    origin = [F.col(f"_{name}") for name in ORIGIN]
    is_placed = reduce(Column.__or__, [each.isNotNull() for each in origin])
    return [F.when(is_placed, 1).when(value.isNotNull(), 2).otherwise(0), *origin]


def _follows(value: Column, later: Column) -> Column:
    """BOOLEAN: whether a move comes after a value. ``later`` says that the value's record came after it.

    A move in a transaction that was open during the snapshot comes after the row that the snapshot read, and
    has only its LSN to compare with other changes.
    """
    before = F.when(is_snapshot(value), ~later).otherwise(minor(value) < minor(F.col("seq")))
    by_lsn = F.col("opened") & (F.length(value) >= WIDTH) & are_of_one_epoch(value, F.col("seq"))
    by_lsn = by_lsn & ~is_reread(value)
    return F.when(by_lsn, before).otherwise(value < F.col("seq"))


def _improved(found: DataFrame, passed: DataFrame, tracked: Sequence[str]) -> DataFrame:
    """Improve images by what earlier moves passed on to their rows."""
    theirs = passed.select(
        F.col("key").alias("_key"), F.col("row").alias("_row"), F.col("seqs").alias("_seqs")
    )
    newest = []
    for i, name in enumerate(tracked):
        mine = F.col("seqs")[name]
        seq = at_create(F.col("_seqs")[name], mine)
        usable = F.when((seq > mine) & _follows(seq, F.lit(False)), seq)
        entry = F.when(usable.isNotNull(), F.struct(usable.alias("s"), F.col("_row")[name].alias("v")))
        newest.append(F.max_by(entry, usable).alias(f"_{i}"))
    others = [name for name in found.columns if name not in ("key", "seq")]
    improved = (
        found.join(theirs, F.col("key") == F.col("_key"), "left")
        .groupBy("key", "seq")
        .agg(*[F.first(name).alias(name) for name in others], *newest)
    )
    better = [F.col(f"_{i}") for i in range(len(tracked))]
    values = [
        F.when(each.isNotNull(), each["v"]).otherwise(F.col("row")[name]).alias(name)
        for name, each in zip(tracked, better, strict=True)
    ]
    seqs = [F.coalesce(each["s"], F.col("seqs")[name]) for name, each in zip(tracked, better, strict=True)]
    made = {"row": F.struct(*values), "seqs": _seqs(seqs, tracked)}
    return improved.select(*[made.get(name, F.col(name)).alias(name) for name in found.columns])


def _is_changed(tracked: Sequence[str]) -> Column:
    """BOOLEAN: whether a move has no stored image, or a value newer than those of its stored images."""
    newer = [F.col("seqs")[name] > F.col("stored")[name] for name in tracked]
    return reduce(Column.__or__, newer, F.col("new"))


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
