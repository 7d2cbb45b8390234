"""The place of a snapshot in the order of changes: pure functions on sequences."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from pyspark.sql import Column
from pyspark.sql import functions as F

from lakemirror.driver.reload.reading import RELOAD_TOPIC
from lakemirror.driver.sequence import WIDTH, in_epoch

NOWHERE = bytes(WIDTH)
"""The place of a snapshot whose place is unknown.

Its rows fill only keys that are absent and have no tombstone, and it deletes nothing.
"""


@dataclass(frozen=True)
class Place:
    """The place of a snapshot.

    If its keys have places of their own, ``of_key`` is that of a key (BINARY), given what the mirror has of
    the key: ``last.seq``, ``last.at`` and ``last.topic`` are the sequence, time and topic of its last change,
    which may be a delete. Then ``newest`` is at least as high as each of them.
    """

    newest: bytes
    of_key: Column | None = None


def after(newest: bytes) -> bytes:
    """Return the place of a snapshot that shows the change at ``newest`` and none that comes later.

    It is above all changes at that position, because the tie of their sequences
    (`lakemirror.driver.sequence`) no longer counts. It is below every change at a later position, because a
    snapshot row yields to a change at its own position.
    """
    minor = int.from_bytes(newest[12:22], "big") + 1
    return newest[:12] + minor.to_bytes(10, "big") + bytes(4)


def right_after(seq: Column) -> Column:
    """BINARY: the same as `after`, for a column of sequences."""
    high, low = (F.conv(F.hex(F.substring(seq, at, 5)), 16, 10).cast("bigint") for at in (13, 18))
    carried = (low == 2**40 - 1).cast("bigint")
    halves = (high + carried, F.pmod(low + 1, F.lit(2**40)))
    minor = F.unhex(F.concat(*[F.lpad(F.hex(each), 10, "0") for each in halves]))
    return F.concat(F.substring(seq, 1, 12), minor, F.lit(bytes(4)))


def at_position(position: bytes, epoch: int, declared: Collection[int] = ()) -> Place:
    """Return the place of a snapshot that a database has at a position, for a table in ``epoch``.

    A row whose last change is of a higher ``declared`` epoch has its place in that one: its partition is in
    that epoch, so that later changes of the row are, too, and in a lower one the snapshot's row would be
    stale.
    """
    higher = sorted(each for each in declared if each > epoch)
    place = F.lit(in_epoch(position, epoch))
    for each in higher:
        is_there = F.col("last.seq") >= F.lit(each.to_bytes(2, "big"))
        place = F.when(is_there, F.lit(in_epoch(position, each))).otherwise(place)
    return Place(in_epoch(position, max(epoch, *declared, 0)), place if higher else None)


def at_moment(newest: bytes, moment: datetime, truncated: bytes | None, *, untimed: bool = False) -> Place:
    """Return the place of a snapshot that shows the source at a moment, where partitions do not compare.

    ``newest`` is above all changes that the mirror has and that are not later. Later changes of another
    partition may lie below it, so that a row with this place would never change again. The place for a key
    is therefore above the last change of that key only. Keys of which the mirror has nothing yield to
    everything that the stream delivers after the last truncate before the moment (``truncated``).
    ``untimed`` says whether changes without a time are not later than the moment.
    """
    base = F.lit(NOWHERE if truncated is None else after(truncated))
    seq = F.col("last.seq")
    # If another reload had the same moment, the later one wins.
    shown = F.when(F.col("last.topic") == RELOAD_TOPIC, seq).otherwise(right_after(seq))
    known = seq.isNotNull() & F.coalesce(F.col("last.at") <= F.lit(moment), F.lit(untimed))
    return Place(newest, F.when(known, F.greatest(shown, base)).otherwise(base))
