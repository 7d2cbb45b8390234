"""Builds the versions of a table's rows from its change events: fetch, fold, put.

Everything here is a pure function from frames to frames. What happened to a key is a set of *facts*, each at
a place in the source's order. The facts of the batch are its events. The facts of the mirror are the stored
versions (their images, and the deletes that ended them). The facts of the tombstones are deletes that ended
no version. The history is a function of this set alone, so it does not depend on the order of delivery:

1. *Settle*: of the facts at one place of a key, one counts. An event that says what is already stored is a
   duplicate; otherwise, the later arrival counts. Values that it did not carry are those of the arrival
   before it.
2. *Fold*: in the order of sequence, each image makes a version. The version is valid from its event's time,
   but never from before the beginning of the previous version, to the time from which the next fact is valid:
   [from, to). Values that the source left out are taken from the previous version, as
   `lakemirror.driver.reduce.events` describes for states.
3. *Put*: versions that are new or differ from the stored ones are written, and stored versions that no longer
   exist are removed.

What is fetched is sufficient: a fact changes what comes after it in its key, and the end of the one version
before it. So, for each key, everything that is stored from the batch's first fact on is fetched, and the
version below it (the *anchor*, whose values and beginning are right as stored). Truncates affect all keys,
and a snapshot row may change the place of changes whose own place is unknown (`events.anchor`). In these
cases, all versions are fetched, and there is no anchor.

A *fact* frame has the columns

    key STRUCT, kind, op, seq, base, unanchored, event_time, topic, partition, offset, row STRUCT, seqs
    MAP<STRING, BINARY>, texts MAP<STRING, STRING>, own BIGINT, was STRUCT, anchored BOOLEAN, told BIGINT

``kind`` is ``event``, ``image`` (a stored version), ``end`` (a stored delete), ``merged`` (a stored change
that was merged into another version) or ``began`` (the beginning of a version, if the change that began it is
forgotten). ``seqs`` has the sequences of values that the fact did not carry itself; a sequence is empty if
nothing is known about the value. ``base`` is the sequence before the fact is placed. ``own`` is the number of
records that the fact stands for. ``told`` is the batch that wrote a tombstone. ``was`` is what is stored
about an image's version (`WAS`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from lakemirror.driver.codes import Op
from lakemirror.driver.parse.values.expressions import same_value
from lakemirror.driver.reduce.bounds import Bound
from lakemirror.driver.reduce.changes import Changes, Clause
from lakemirror.driver.reduce.events import ARRIVAL, anchor, older_seqs, texts_of, with_values
from lakemirror.driver.sequence import MISSING, event_part, own, sent_of
from lakemirror.driver.tables.columns import BEGAN, SENT, S, T
from lakemirror.driver.tables.delta import quoted

WAS: Final = (
    "STRUCT<seq: BINARY, valid_from: TIMESTAMP, valid_to: TIMESTAMP, is_current: BOOLEAN, "
    "is_deleted: BOOLEAN, delete_seq: BINARY, began: BINARY>"
)
"""What is stored about a version besides its image. ``began`` is the sequence of the change that began it."""

HIDDEN: Final = ("merged", "began")
"""Kinds of facts that stand for changes that began no version."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
"""The beginning of a version that has no time, if no version before it has one either."""

_NO_SEQS: Final = "map<string, binary>"


@dataclass(frozen=True)
class Truncate:
    """All rows of a table were deleted at ``seq``. ``told`` says that a tombstone records this already.

    ``topic`` and ``partition`` are where it came from.
    """

    seq: bytes
    event_time: datetime | None
    told: bool = False
    topic: str | None = None
    partition: int | None = None


def moment(micros: int | None) -> datetime | None:
    """Convert microseconds since 1970, as Spark returns them, to a time."""
    return None if micros is None else _EPOCH + timedelta(microseconds=micros)


@dataclass(frozen=True)
class Scd2:
    """How the facts of one table are folded.

    ``columns`` are all columns of the mirror without metadata, ``key`` those of the key. ``tracked`` are
    those that may hold values older than their version. ``truncates`` are those that come after some fact, in
    their order. ``placed`` says that facts are yet to be placed (`events.anchor`). ``whole`` says that the
    images themselves may have changed, so that all are put. ``compared`` are the columns whose changes begin
    versions (`_runs`), or None if every change does. ``initial`` is since when a row is valid that existed
    before its first fact. ``corrects`` says that an event replaces the image of its own origin.
    """

    columns: Mapping[str, DataType]
    key: Sequence[str]
    tracked: Sequence[str] = ()
    truncates: Sequence[Truncate] = field(default=())
    placed: bool = False
    whole: bool = False
    compared: Sequence[str] | None = None
    initial: datetime | None = None
    corrects: bool = False


def distinct(events: DataFrame, tracked: Sequence[str]) -> DataFrame:
    """Reduce an event frame to one event per place of a key, the last that arrived.

    Values of ``tracked`` columns that it did not carry are those of the event before it. Returns a state
    frame (see `lakemirror.driver.reduce.events`) that keeps ``gaps``, ``new_key`` and ``old_key``. ``begun``
    are the gaps with which a new life of the row begins: a create left them.
    """
    place = Window.partitionBy("key", "seq")
    last = place.orderBy(*ARRIVAL)
    whole = last.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    again = (F.lag("digest").over(last) == F.col("digest")) & F.col("key").isNotNull()
    marked = events.withColumn("_again", F.coalesce(again, F.lit(False)))
    so_far = last.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    folded = marked.withColumns(
        {
            "_records": F.sum("records").over(whole),
            "_duplicates": F.sum(F.when(F.col("_again"), F.col("records")).otherwise(0)).over(whole),
            "_last": F.lead("seq").over(last).isNull(),
            **{f"_{i}": F.last(_told(name), ignorenulls=True).over(so_far) for i, name in enumerate(tracked)},
        }
    )
    return folded.where("_last OR key IS NULL").select(
        *("key", "op", "seq", "unanchored", "event_time", *ARRIVAL),
        *_completed(tracked),
        *("new_key", "old_key"),
        F.when(F.col("key").isNull(), F.col("records"))
        .otherwise(F.col("_records"))
        .cast("bigint")
        .alias("records"),
        F.col("records").cast("bigint").alias("own"),
        F.when(F.col("key").isNull(), 0).otherwise(F.col("_duplicates")).cast("bigint").alias("duplicates"),
        *[F.lit(False).alias(name) for name in ("known", "renewed", "repeated", "stale", "born")],
    )


def _told(name: str) -> Column:
    """STRUCT<value, text, begins, ends>: what an event says about a column; null if it says nothing.

    ``begins`` says that it is a create that left the value out: nothing older fills it except what its row
    had under another key. ``ends`` says that it is a delete.
    """
    gap, nothing = F.coalesce(F.array_contains("gaps", name), F.lit(False)), F.lit(None)

    def said(value: Column, text: Column, *, begins: bool = False, ends: bool = False) -> Column:
        marks = F.lit(begins).alias("begins"), F.lit(ends).alias("ends")
        return F.struct(value.alias("value"), text.alias("text"), *marks)

    return (
        F.when(F.col("op") == Op.DELETE, said(nothing, nothing, ends=True))
        .when(~gap, said(F.col("row")[name], F.col("texts")[name]))
        .when(F.col("op") == Op.CREATE, said(nothing, nothing, begins=True))
    )


def _completed(tracked: Sequence[str]) -> list[Column]:
    """Return ``row``, ``gaps``, ``texts`` and ``begun`` with what the events at one place say together."""
    if not tracked:
        none = F.array().cast("array<string>").alias("begun")
        return [F.col("row"), F.col("gaps"), F.col("texts"), none]
    told = {name: F.col(f"_{i}") for i, name in enumerate(tracked)}
    live = F.col("op") != Op.DELETE
    values = {name: F.when(live, each["value"]) for name, each in told.items()}
    open_ = [F.when(each.isNull() | each["begins"] | each["ends"], name) for name, each in told.items()]
    begun = [F.when(each["begins"], name) for name, each in told.items()]
    texts = texts_of(F.col("texts"), {name: each["text"] for name, each in told.items()})
    return [
        F.when(live, with_values("row", values)).otherwise(F.col("row")).alias("row"),
        F.when(live, F.array_compact(F.array(*open_))).otherwise(F.col("gaps")).alias("gaps"),
        F.when(live, texts).otherwise(F.col("texts")).alias("texts"),
        F.array_compact(F.array(*begun)).alias("begun"),
    ]


def of_events(state: DataFrame, tracked: Sequence[str]) -> DataFrame:
    """Return the facts of a batch. ``state`` is the result of `distinct`."""
    gap = [F.coalesce(F.array_contains("gaps", name), F.lit(False)) for name in tracked]
    # A create begins a new life: nothing older fills it except what its row had under another key.
    seqs = {
        name: F.when(
            (F.col("op") != Op.DELETE) & left_out,
            F.when(F.array_contains("begun", name), F.col("seq")).otherwise(F.lit(MISSING)),
        ).otherwise(own(F.col("seq")))
        for name, left_out in zip(tracked, gap, strict=True)
    }
    return state.select(
        "key",
        F.lit("event").alias("kind"),
        *("op", "seq"),
        F.col("seq").alias("base"),
        *("unanchored", "event_time", *ARRIVAL, "row"),
        older_seqs(seqs, F.col("seq")).alias("seqs"),
        *("texts", "own"),
        F.lit(None).cast(WAS).alias("was"),
        F.lit(False).alias("anchored"),
        F.lit(None).cast("bigint").alias("told"),
    )


def of_versions(stored: DataFrame, *, placed: bool = False) -> DataFrame:
    """Return the facts of stored versions: their images, and the deletes that ended them.

    ``stored`` has the columns key, row, seq, op, event_time, origin, seqs, texts, was and anchored.
    ``placed`` says that the facts are going to be placed again.
    """
    sent = F.col("seqs")[F.lit(SENT)]
    images = stored.select(
        "key",
        F.lit("image").alias("kind"),
        "op",
        (F.coalesce(sent, F.col("seq")) if placed else F.col("seq")).alias("seq"),
        F.col("seq").alias("base"),
        sent.isNotNull().alias("unanchored"),
        "event_time",
        *[F.col("origin")[name].alias(name) for name in ARRIVAL],
        "row",
        _of_values("seqs").alias("seqs"),
        "texts",
        F.lit(0).cast("bigint").alias("own"),
        *("was", "anchored"),
        F.lit(None).cast("bigint").alias("told"),
    )
    ended = stored.where("was.delete_seq IS NOT NULL")
    ends = ended.select(
        "key", F.col("was.delete_seq").alias("seq"), F.col("was.valid_to").alias("event_time")
    )
    return images.unionByName(_ends(ends, images))


def of_merged(merged: DataFrame, like: DataFrame, *, placed: bool = False) -> DataFrame:
    """Return the facts of changes that began no version.

    ``merged`` has the columns key, seq, op, event_time, topic, partition, offset, row, seqs, texts and batch.
    """
    sent = F.col("seqs")[F.lit(SENT)]
    given = {
        "kind": F.lit("merged"),
        "base": F.col("seq"),
        "unanchored": sent.isNotNull(),
        "seqs": _of_values("seqs"),
        "own": F.lit(0),
        "anchored": F.lit(False),
        "told": F.col("batch"),
        **{name: F.col(name) for name in ("key", "op", "event_time", *ARRIVAL, "row", "texts")},
        "seq": F.coalesce(sent, F.col("seq")) if placed else F.col("seq"),
    }
    return _like(merged, given, like)


def beginnings(images: DataFrame) -> DataFrame:
    """Return, as facts, the beginnings of versions that further changes were merged into.

    They stand for the changes that began these versions if those are forgotten. In the columns that are not
    compared, they have later values.
    """
    longer = images.where("kind = 'image' AND NOT anchored AND was.began < seq")
    given = {
        **{name: F.col(name) for name in images.columns},
        "kind": F.lit("began"),
        **{name: F.col("was.began") for name in ("seq", "base")},
        "unanchored": F.lit(False),
        "event_time": F.col("was.valid_from"),
        **{name: F.lit(None) for name in (*ARRIVAL, "was", "seqs")},
    }
    return _like(longer, given, images)


def _of_values(seqs: str) -> Column:
    """Only the sequences of values."""
    return F.map_filter(seqs, lambda name, _: ~name.isin(SENT, BEGAN))


def of_tombstones(deleted: DataFrame, like: DataFrame, *, placed: bool = False) -> DataFrame:
    """Return the facts of tombstones (key, seq, event_time, topic, partition, offset, seqs, batch)."""
    sent = F.col("seqs")[F.lit(SENT)]
    return _ends(
        deleted.select(
            "key",
            (F.coalesce(sent, F.col("seq")) if placed else F.col("seq")).alias("seq"),
            F.col("seq").alias("base"),
            sent.isNotNull().alias("unanchored"),
            *("event_time", *ARRIVAL),
            F.col("batch").alias("told"),
        ),
        like,
    )


def _ends(rows: DataFrame, like: DataFrame) -> DataFrame:
    """Convert deletes to facts, with the types of another fact frame."""
    given = {
        "kind": F.lit("end"),
        "op": F.lit(Op.DELETE),
        "base": F.col("seq"),
        "unanchored": F.lit(False),
        "own": F.lit(0),
        "anchored": F.lit(False),
        **{name: F.col(name) for name in rows.columns},
    }
    return _like(rows, given, like)


def _like(rows: DataFrame, given: Mapping[str, Column], like: DataFrame) -> DataFrame:
    """Return rows with the columns of another frame: those that are ``given``, and nulls for the others."""
    return rows.select(
        [
            given.get(each.name, F.lit(None)).cast(each.dataType).alias(each.name)
            for each in like.schema.fields
        ]
    )


def fold(facts: DataFrame, plan: Scd2, batch: int, patches: DataFrame | None = None) -> DataFrame:
    """Return the facts that count, each with the version that it makes.

    ``patches`` are values that rows had under their former keys (`lakemirror.driver.reduce.moves`): key, seq,
    row, seqs. ``batch`` is the number of the batch: a tombstone that the batch itself wrote before it failed
    does not make an event a duplicate.

    These columns are added to each fact:

    - ``valid_from``, ``valid_to``, ``is_current``, ``is_deleted``, ``delete_seq`` and ``began``
    - ``end``: the sequence of the fact or truncate that ends the version
    - ``put``: the version must be written
    - ``merged``: the change is merged into another version
    - ``replaces``: the sequence of the stored version that this version continues
    - ``gone``: the version stored at ``was.seq`` no longer exists
    - ``applied``, ``stale`` and ``repeated``: numbers of records
    """
    if plan.placed:
        facts = placed(facts)
    if plan.compared is not None:
        above = F.max(F.when(F.col("anchored"), F.col("seq"))).over(Window.partitionBy("key"))
        kept = ~F.col("kind").isin(*HIDDEN) | F.col("_above").isNull() | (F.col("seq") > F.col("_above"))
        facts = facts.withColumn("_above", above).where(kept).drop("_above")
    settled = _settled(facts, plan, batch)
    if patches is not None:
        settled = _patched(settled, patches, plan.tracked)
    return _versions(settled, plan)


def placed(facts: DataFrame) -> DataFrame:
    """Move facts to their places.

    Sequences of values that were set at these very facts move along with them. So does what a version knows
    of the delete that ended it, while the delete itself is known.
    """
    end, here = F.col("kind") == "end", Window.partitionBy("key", "base")
    itself = F.first(
        F.when(end & F.col("unanchored"), F.struct("seq", "event_time", *ARRIVAL)), ignorenulls=True
    )
    known = facts.withColumn("_itself", itself.over(here))
    told = end & ~F.col("unanchored") & F.col("_itself").isNotNull()
    there = {
        name: F.when(told, F.col("_itself")[name]).otherwise(F.col(name))
        for name in ("seq", "event_time", *ARRIVAL)
    }
    known = known.withColumns({**there, "unanchored": F.col("unanchored") | told}).drop("_itself")
    lifted = anchor(known)
    at, seq = event_part(F.col("base"), F.col("seq")), F.col("seq")
    moved = F.transform_values(
        "seqs",
        lambda _, value: F.when(
            event_part(value, seq) == at,
            F.concat(seq, F.substr(value, F.length(seq) + 1)),
        ).otherwise(value),
    )
    return lifted.withColumn("seqs", moved)


def _settled(facts: DataFrame, plan: Scd2, batch: int) -> DataFrame:
    """Return the fact that counts at each place of a key."""
    place = Window.partitionBy("key", "seq")
    image, event = F.col("kind") == "image", F.col("kind") == "event"
    what = F.struct("row", "op", "seqs", "was", "told", *ARRIVAL)
    stored = F.first(F.when(image, what), ignorenulls=True).over(place)
    if plan.compared is not None:
        merged = F.when(F.col("kind") == "merged", what)
        stored = F.coalesce(stored, F.first(merged, ignorenulls=True).over(place))
    ends = F.collect_list(F.when(F.col("kind") == "end", F.struct("told", *ARRIVAL))).over(place)
    seen = facts.withColumns({"_stored": stored, "_ends": ends})
    alike = [
        same_value(F.col("row")[name], F.col("_stored.row")[name], kind) | _left_out(name, plan)
        for name, kind in plan.columns.items()
    ]
    gaps = [_left_out(name, plan) == _left_out(name, plan, "_stored.seqs") for name in plan.tracked]
    # A delete that is stored does not count any more if the row came back there after it.
    ended = F.array_max(
        F.transform("_ends", lambda end: F.struct(*[end[name].alias(name) for name in ARRIVAL]))
    )
    back = F.col("_stored").isNotNull() & (
        F.struct(*[F.col(f"_stored.{name}").alias(name) for name in ARRIVAL]) >= ended
    )
    again = F.when(F.col("op") == Op.DELETE, (F.size("_ends") > 0) & ~back).otherwise(
        F.col("_stored").isNotNull()
        & (F.col("op") == F.col("_stored.op"))
        & reduce(Column.__and__, alike + gaps)
    )
    mine = F.exists(
        "_ends",
        lambda end: (
            ~(
                (F.coalesce(end["told"], F.lit(-2)) == batch)
                & reduce(Column.__and__, [end[name].eqNullSafe(F.col(name)) for name in ARRIVAL])
            )
        ),
    )
    told = (F.coalesce(F.col("_stored.told"), F.lit(-2)) == batch) & F.col("_stored.was").isNull()
    here = reduce(Column.__and__, [F.col(f"_stored.{name}").eqNullSafe(F.col(name)) for name in ARRIVAL])
    counted = seen.withColumns(
        {
            "_again": event & F.coalesce(again, F.lit(False)),
            "_known": F.when(F.col("op") == Op.DELETE, mine).otherwise(~(told & here)),
        }
    )
    arrival = F.struct(*ARRIVAL)
    last = F.col("kind") == "event" if plan.corrects else F.lit(False)
    order = place.orderBy(F.col("_again"), arrival.desc_nulls_last(), last.desc(), F.col("kind").desc())
    arrived = place.orderBy(arrival.asc_nulls_first(), last.asc(), F.col("kind").asc())
    so_far = arrived.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    said = {
        f"_v{i}": F.last(_carried_here(name), ignorenulls=True).over(so_far)
        for i, name in enumerate(plan.tracked)
    }
    ranked = counted.withColumns({"_rank": F.row_number().over(order), **said})
    lost = event & ~F.col("_again") & (F.col("_rank") > 1)
    whole = {
        "applied": F.when(event & ~lost & (~F.col("_again") | ~F.col("_known")), F.col("own")),
        "repeated": F.when(F.col("_again") & F.col("_known"), F.col("own")),
        "stale": F.when(lost, F.col("own")),
    }
    sums = {name: F.coalesce(F.sum(each).over(place), F.lit(0)) for name, each in whole.items()}
    return (
        ranked.withColumns(sums)
        .where("_rank = 1")
        .withColumn("was", F.col("_stored.was"))
        .withColumns(_together(plan))
        .drop("_rank", "_stored", "_ends", "_again", "_known", *said)
    )


def _carried_here(name: str) -> Column:
    """STRUCT<said, ends>: what a fact itself says about a column, and whether it is a delete; or null."""
    said, deletes = _carried(name), F.col("op") == Op.DELETE
    known = (F.col("kind") != "began") & (deletes | said.isNotNull())
    return F.when(known, F.struct(F.when(~deletes, said).alias("said"), deletes.alias("ends")))


def _together(plan: Scd2) -> dict[str, Column]:
    """Return a fact with the values that it did not carry, but those that arrived before it at its place.

    ``patched`` says that it has any.
    """
    seq, row, texts, seqs, newer = F.col("seq"), F.col("row"), {}, {}, F.lit(False)
    for i, name in enumerate(plan.tracked):
        told, mine = F.col(f"_v{i}.said"), event_part(_seq_of(name), F.col("seq")) == F.col("seq")
        use = F.coalesce(~mine & ~F.col("anchored") & told.isNotNull(), F.lit(False))
        row = row.withField(quoted(name), F.when(use, told["value"]).otherwise(F.col("row")[name]))
        texts[name] = F.when(use, told["text"]).otherwise(F.col("texts")[name])
        seqs[name] = F.when(use, told["seq"]).otherwise(_seq_of(name))
        newer = newer | use
    use = (F.col("op") != Op.DELETE) & newer
    return {
        "row": F.when(use, row).otherwise(F.col("row")),
        "texts": F.when(use, texts_of(F.col("texts"), texts)).otherwise(F.col("texts")),
        "seqs": F.when(use, older_seqs(seqs, seq)).otherwise(F.col("seqs")),
        "patched": use,
    }


def _left_out(name: str, plan: Scd2, seqs: str = "seqs") -> Column:
    """BOOLEAN: whether an event did not carry the column itself."""
    if name not in plan.tracked:
        return F.lit(False)
    return F.coalesce(F.map_contains_key(F.col(seqs), F.lit(name)), F.lit(False))


def _patched(facts: DataFrame, patches: DataFrame, tracked: Sequence[str]) -> DataFrame:
    """Return facts with the values that their rows had under their former keys, if these are newer.

    A move of an open transaction has its sequence as it was sent. Its create half may have another place.
    """
    mine = patches.select("key", F.col("seq").alias("_sent"), F.struct("row", "seqs").alias("_patch"))
    sent = F.when(F.col("unanchored"), sent_of(F.col("seq"))).otherwise(F.col("seq"))
    joined = facts.withColumn("_sent", sent).join(
        mine.dropDuplicates(["key", "_sent"]), ["key", "_sent"], "left"
    )
    row, seqs, newer = F.col("row"), {}, F.lit(False)
    for name in tracked:
        have, theirs = _seq_of(name), F.col("_patch.seqs")[F.lit(name)]
        brought = F.concat(F.col("seq"), F.substr(theirs, F.length("seq") + 1))
        given = F.when(theirs != F.lit(MISSING), brought).otherwise(F.lit(MISSING))
        row = row.withField(
            quoted(name), F.when(given > have, F.col("_patch.row")[name]).otherwise(F.col("row")[name])
        )
        seqs[name] = F.greatest(have, given)
        newer = newer | (given > have)
    use = (F.col("op") != Op.DELETE) & F.col("_patch").isNotNull()
    return joined.withColumns(
        {
            "row": F.when(use, row).otherwise(F.col("row")),
            "seqs": F.when(use, older_seqs(seqs, F.col("seq"))).otherwise(F.col("seqs")),
            "patched": F.col("patched") | F.coalesce(use & newer, F.lit(False)),
        }
    ).drop("_sent", "_patch")


def _seq_of(name: str) -> Column:
    return F.coalesce(F.col("seqs")[F.lit(name)], own(F.col("seq")))


def _carried(name: str) -> Column:
    """STRUCT<value, seq, text>: what a fact says about a column; null if an earlier fact has filled it."""
    seq, live = _seq_of(name), F.col("op") != Op.DELETE
    known = F.col("anchored") | (event_part(seq, F.col("seq")) == F.col("seq"))
    value, text = F.when(live, F.col("row")[name]), F.when(live, F.col("texts")[name])
    said = F.struct(value.alias("value"), seq.alias("seq"), text.alias("text"))
    return F.when(~live | known, said)


def _versions(facts: DataFrame, plan: Scd2) -> DataFrame:
    """Return the facts of each key in order, each with the version that it makes.

    A version depends on the facts before and after it.
    """
    key = Window.partitionBy("key")
    in_order = key.orderBy("seq")
    so_far = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    listed = _listed(plan.truncates)
    seq = F.col("seq")
    above = F.filter(listed, lambda t: t["seq"] >= seq)
    below = F.filter(listed, lambda t: t["seq"] < seq)
    values = {name: F.last(_carried(name), ignorenulls=True).over(so_far) for name in plan.tracked}
    following = facts.withColumns(
        {
            "_cut": F.try_element_at(above, F.lit(1)),
            "_floor": F.try_element_at(below, F.lit(-1))["seq"],
            "_next": F.lead(F.struct("seq", "op")).over(in_order),
            "_newest": F.max(F.when(F.col("op") != Op.DELETE, seq)).over(key),
            **{f"_v{i}": value for i, value in enumerate(values.values())},
        }
    )
    cut = F.col("_cut").isNotNull() & (F.col("_next").isNull() | (F.col("_cut.seq") < F.col("_next.seq")))
    filled = _filled(following.withColumn("_ends", F.coalesce(cut, F.lit(False))), plan)
    timed = _timed(_parted(filled, plan), plan, F.array_max(F.transform(below, _time)))
    cut, after = F.col("_ends"), F.lead("_from").over(in_order)
    deleted = cut | F.coalesce(F.col("_next.op") == Op.DELETE, F.lit(False))
    ended = timed.withColumns(
        {
            "valid_to": F.when(cut, F.greatest("_from", "_cut.time")).otherwise(after),
            "is_current": ~cut & F.col("_next").isNull(),
            "is_deleted": deleted & (F.col("_newest") == seq),
            "delete_seq": F.when(cut, F.col("_cut.seq")).when(deleted, F.col("_next.seq")),
            "end": F.when(cut, F.col("_cut.seq")).otherwise(F.col("_next.seq")),
        }
    )
    filled = _runs(ended, plan)
    other = [
        ~F.col(f"was.{name}").eqNullSafe(F.col(name))
        for name in ("seq", "valid_from", "valid_to", "is_current", "is_deleted", "delete_seq", "began")
    ]
    changed = reduce(
        Column.__or__,
        [
            F.col("kind").isin("event", *HIDDEN),
            F.col("patched"),
            F.lit(plan.whole),
            *other,
            *[F.col(f"_c{i}") for i in range(len(plan.tracked))],
        ],
    )
    shown = (F.col("op") != Op.DELETE) & ~F.col("merged")
    found = filled.withColumns(
        {
            "put": shown & changed,
            "gone": F.col("was").isNotNull() & (~shown | (F.col("was.seq") != seq)),
        }
    ).drop(
        *("_cut", "_floor", "_from", "_newest", "_next", "_ends", "_begins"),
        *[f"_c{i}" for i in range(len(plan.tracked))],
    )
    return _replaced(found, plan)


def _parted(facts: DataFrame, plan: Scd2) -> DataFrame:
    """Add ``_begins`` to facts: whether a change begins a version.

    One in which all compared columns have the same values as before does not.
    """
    live = F.col("op") != Op.DELETE
    if plan.compared is None:
        return facts.withColumn("_begins", live)
    before = F.lag(F.struct("op", "row", "_ends")).over(Window.partitionBy("key").orderBy("seq"))
    alike = [
        same_value(F.col("row")[name], F.col("_before.row")[name], plan.columns[name])
        for name in plan.compared
    ]
    goes_on = (F.col("_before.op") != Op.DELETE) & ~F.col("_before._ends") & reduce(Column.__and__, alike)
    parted = facts.withColumn("_before", before)
    return parted.withColumn("_begins", live & ~F.coalesce(goes_on, F.lit(False))).drop("_before")


def _timed(facts: DataFrame, plan: Scd2, truncated: Column) -> DataFrame:
    """Add to facts ``_from``, since when they hold, and ``valid_from``, the beginning of their version.

    No fact holds from before the beginning of the version before it, or from before the time ``truncated``. A
    change that is merged into a version moves no beginning: of an anchor, nothing tells the time of such a
    change. For the same reason, a version that was there from the beginning (``initial``) begins then for the
    version after it, if changes may be merged into it.
    """
    in_order = Window.partitionBy("key").orderBy("seq")
    so_far = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    stored = F.when(F.col("anchored"), F.col("was.valid_from"))
    merges = plan.compared is not None
    first = F.lit(False)
    if plan.initial is not None:
        first = F.lag("op").over(in_order).isNull() & F.col("_floor").isNull() & ~F.col("anchored")
        first = first & F.col("op").isin(Op.READ, Op.UPDATE) & (F.col("kind") != "began")
    initial = F.lit(plan.initial).cast("timestamp")
    begun = F.least(initial, F.coalesce("event_time", F.lit(_EPOCH)))
    own = F.greatest("event_time", stored)
    if merges:
        own = F.when(F.col("_first"), begun).when(F.col("anchored"), stored).otherwise(F.col("event_time"))
        own = F.when(F.col("_begins") | (F.col("op") == Op.DELETE), own)
    found = facts.withColumn("_first", first).withColumn("_time", F.greatest(own, truncated))
    since = found.withColumn("_from", F.coalesce(F.max("_time").over(so_far), F.lit(_EPOCH)))
    valid = stored if merges else F.coalesce(stored, F.when(F.col("_first"), F.least(initial, "_from")))
    return since.withColumn("valid_from", F.coalesce(valid, "_from")).drop("_first", "_time")


def _runs(facts: DataFrame, plan: Scd2) -> DataFrame:
    """Add ``began`` and ``merged`` to facts. A change that begins no version is merged into the existing one.

    A version therefore stands for a run of changes: it has the values of the last one, and the beginning of
    the first one. The other changes are kept beside the mirror (``merged``), because a late change may split
    the run.
    """
    if plan.compared is None:
        return facts.withColumns({"began": F.col("seq"), "merged": F.lit(False)})
    in_order = Window.partitionBy("key").orderBy("seq")
    so_far = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    live = F.col("op") != Op.DELETE
    first = F.struct(
        F.when(F.col("anchored"), F.coalesce("was.began", "seq")).otherwise(F.col("seq")).alias("seq"),
        "valid_from",
    )
    after = F.lead(F.struct("op", "_begins")).over(in_order)
    begun = facts.withColumns(
        {
            "_run": F.last(F.when(F.col("_begins"), first), ignorenulls=True).over(so_far),
            "merged": live
            & ~F.col("_ends")
            & F.coalesce((after["op"] != Op.DELETE) & ~after["_begins"], F.lit(False)),
        }
    )
    return begun.withColumns(
        {
            "began": F.when(live, F.col("_run.seq")).otherwise(F.col("seq")),
            "valid_from": F.when(live, F.col("_run.valid_from")).otherwise(F.col("valid_from")),
        }
    ).drop("_run")


def _replaced(facts: DataFrame, plan: Scd2) -> DataFrame:
    """Name the stored versions that new versions continue.

    These are updated, instead of being removed and written again.
    """
    if plan.compared is None:
        return facts.withColumn("replaces", F.lit(None).cast("binary"))
    run = Window.partitionBy("key", "began")
    left = F.max(F.when(F.col("gone") & F.col("merged"), F.col("was.seq"))).over(run)
    new = F.max(F.col("put") & F.col("was").isNull()).over(run)
    taken = facts.withColumn("_left", F.when(new, left))
    return taken.withColumns(
        {
            "replaces": F.when(F.col("put") & F.col("was").isNull(), F.col("_left")),
            "gone": F.col("gone") & ~F.coalesce(F.col("was.seq") == F.col("_left"), F.lit(False)),
        }
    ).drop("_left")


def _listed(truncates: Sequence[Truncate]) -> Column:
    """ARRAY<STRUCT<seq, time>> in the order of sequence."""
    items = [
        F.struct(F.lit(each.seq).alias("seq"), F.lit(each.event_time).cast("timestamp").alias("time"))
        for each in sorted(truncates, key=lambda each: each.seq)
    ]
    return F.array(*items) if items else F.array().cast("array<struct<seq: binary, time: timestamp>>")


def _time(truncate: Column) -> Column:
    return truncate["time"]


def _filled(facts: DataFrame, plan: Scd2) -> DataFrame:
    """Fill images with the values that they did not carry.

    ``_c0``... say whether a value differs from before.
    """
    if not plan.tracked:
        return facts.withColumn("seqs", _with_sent(F.lit(None).cast(_NO_SEQS)))
    values, texts, seqs, changed = {}, {}, {}, {}
    nothing = F.lit(None)
    for i, name in enumerate(plan.tracked):
        found, floor = F.col(f"_v{i}"), own(F.col("_floor"))
        wiped = F.col("_floor").isNotNull() & (F.coalesce(found["seq"], F.lit(MISSING)) < floor)
        values[name] = F.when(wiped, nothing).otherwise(found["value"])
        texts[name] = F.when(wiped, nothing).otherwise(found["text"])
        seqs[name] = F.when(wiped, floor).otherwise(F.coalesce(found["seq"], F.lit(MISSING)))
        kind = plan.columns[name]
        changed[f"_c{i}"] = (seqs[name] != _seq_of(name)) | ~same_value(
            values[name], F.col("row")[name], kind
        )
    live = F.col("op") != Op.DELETE
    return facts.withColumns(
        {
            **{name: F.coalesce(each, F.lit(True)) for name, each in changed.items()},
            "row": F.when(live, with_values("row", values)).otherwise(F.col("row")),
            "seqs": _with_sent(older_seqs(seqs, F.col("seq"))),
            "texts": F.when(live, texts_of(F.col("texts"), texts)).otherwise(F.col("texts")),
        }
    ).drop(*[f"_v{i}" for i in range(len(plan.tracked))])


def _with_sent(seqs: Column) -> Column:
    """Return the sequences of older values, and the fact's own sequence as it was sent.

    The latter is added if a snapshot row determines the fact's place.
    """
    nothing = F.create_map().cast(_NO_SEQS)
    sent = F.create_map(F.lit(SENT), sent_of(F.col("seq")))
    return F.when(F.col("unanchored"), F.map_concat(F.coalesce(seqs, nothing), sent)).otherwise(seqs)


def puts(versions: DataFrame, key: Sequence[str]) -> DataFrame:
    """Return what `changes` must write: one row per stored version.

    A version is identified by the mirror's key and ``__seq``.
    """
    todo = F.array_compact(F.array(F.when(F.col("put"), F.lit("put")), F.when(F.col("gone"), F.lit("gone"))))
    each = versions.where("put OR gone").withColumn("op_", F.explode(todo))
    at = F.when(F.col("op_") == "gone", F.col("was.seq")).otherwise(F.coalesce("replaces", "seq"))
    nothing = F.create_map().cast(_NO_SEQS)
    seqs = F.when(
        F.col("began") != F.col("seq"),
        F.map_concat(F.coalesce("seqs", nothing), F.create_map(F.lit(BEGAN), F.col("began"))),
    ).otherwise(F.col("seqs"))
    named = F.struct(*[F.col("key")[name].alias(name) for name in key], at.alias("__seq"))
    return each.select(
        named.alias("key"),
        F.col("op_").alias("todo"),
        *("op", "seq", "event_time", *ARRIVAL, "row", seqs.alias("seqs"), "texts"),
        *("valid_from", "valid_to", "is_current", "is_deleted", "delete_seq", "began"),
        F.monotonically_increasing_id().alias("number"),
    )


def changes(
    columns: Mapping[str, DataType],
    key: Sequence[str],
    *,
    keys: int,
    rows: int,
    untouched: Sequence[Clause] = (),
    bounds: Mapping[str, Bound] | None = None,
) -> Changes:
    """Return what a frame of `puts` does to the rows of a mirror."""
    put = F.col("s.todo") == "put"
    values = {
        **{name: S(name) for name in columns},
        "__seq": F.col("s.seq"),
        "__op": F.col("s.op"),
        "__event_time": F.col("s.event_time"),
        "__origin": F.struct(*[F.col(f"s.{name}").alias(name) for name in ARRIVAL]),
        "__column_seq": F.col("s.seqs"),
        "__unrepresentable": F.col("s.texts"),
        "__valid_from": F.col("s.valid_from"),
        "__valid_to": F.col("s.valid_to"),
        "__is_current": F.col("s.is_current"),
        "__is_deleted": F.col("s.is_deleted"),
        "__delete_seq": F.col("s.delete_seq"),
    }
    return Changes(
        key=[*key, "__seq"],
        matched=(Clause(~put), Clause(put, values)),
        unmatched=(Clause(put, values),),
        untouched=tuple(untouched),
        keys=keys,
        rows=rows,
        bounds=bounds or {},
    )


def stored(columns: Mapping[str, Column]) -> list[Column]:
    """Return what `of_versions` needs from a mirror's row, named ``t``, except its key and ``anchored``.

    ``columns`` are the values of the row.
    """
    was = F.struct(
        T("__seq").alias("seq"),
        T("__valid_from").alias("valid_from"),
        T("__valid_to").alias("valid_to"),
        T("__is_current").alias("is_current"),
        T("__is_deleted").alias("is_deleted"),
        T("__delete_seq").alias("delete_seq"),
        F.coalesce(T("__column_seq")[F.lit(BEGAN)], T("__seq")).alias("began"),
    )
    return [
        F.struct(*[value.alias(name) for name, value in columns.items()]).alias("row"),
        T("__seq").alias("seq"),
        T("__op").alias("op"),
        T("__event_time").alias("event_time"),
        T("__origin").alias("origin"),
        T("__column_seq").alias("seqs"),
        T("__unrepresentable").alias("texts"),
        was.cast(WAS).alias("was"),
    ]
