"""Determines when a mirror has passed a position of its source."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime

from pyspark.sql import functions as F

from lakemirror.driver.codes import OWN_TOPICS
from lakemirror.driver.plan.mirrored import MirroredTable
from lakemirror.driver.sequence import as_bytes, is_snapshot
from lakemirror.driver.verify.sources import SourceTables
from lakemirror.driver.verify.verdict import Reading

Place = tuple[str | None, int | None]
"""A topic and one of its partitions."""

_LOOK_SECONDS = 5.0


class Arrivals:
    """Determines when a mirror has passed a position of its source.

    There are two ways to find out. First, if positions and sequences are ordered in the same way, the mirror
    itself may show a later change from each partition. ``newest`` returns what it shows (`shown`), and
    ``partitions`` the partitions of each topic, as far as they are known. Second, the change has reached the
    pipeline, and since then the driver has reported that nothing is left to apply. A change has reached the
    pipeline after ``settle`` seconds, or when the source reports that it has been sent.

    ``caught_up`` returns when the driver last reported this, in UTC, or None if it does not. ``alive`` says
    whether anything will arrive at all. ``settled`` says that nothing changes on either side.
    """

    def __init__(
        self,
        sources: SourceTables,
        newest: Callable[[], Mapping[Place, bytes | None]],
        *,
        caught_up: Callable[[], datetime | None],
        alive: Callable[[], bool],
        settle: float,
        wait: float,
        settled: bool = False,
        partitions: Callable[[], Mapping[str, Collection[int]]] = dict,
        stopping: Callable[[], bool] = lambda: False,
        poll: float = 1.0,
    ) -> None:
        self._sources, self._newest, self._partitions = sources, newest, partitions
        self._caught_up, self._alive = caught_up, alive
        self._settle, self._settled = settle, settled
        self._stopping, self._poll = stopping, poll
        self._wait = wait
        self._until: float | None = None
        """Set by the first wait: what is scanned before may take longer than that."""

    def over(self) -> bool:
        """Return whether there is no time left."""
        return self._stopping() or (self._until is not None and time.monotonic() >= self._until)

    def wait_for(self, reading: Reading) -> bool:
        """Wait until the mirror has passed the position after a reading.

        Also waits for changes that were not committed at the time of the reading and will have an earlier
        position. Returns whether all this was passed in time.
        """
        if self._settled or reading.after is None:
            return True
        position, sent_since, arrived = reading.after, None, None
        look = time.monotonic()
        self._until = look + self._wait if self._until is None else self._until
        while True:
            if self._sources.ordered and time.monotonic() >= look:
                started = time.monotonic()
                if passed(self._newest(), reading.after, self._partitions()):
                    return True
                took = time.monotonic() - started  # a scan of two columns, which may take long
                look = started + max(_LOOK_SECONDS, 5 * took)
            now = datetime.now(UTC)
            if sent_since is None and self._has_ended(reading.unfinished):
                sent_since = now
                if reading.unfinished is not None:
                    position = self._sources.position() or position
            if sent_since is not None and arrived is None:
                settled = (now - sent_since).total_seconds() >= self._settle
                arrived = now if settled or self._sources.sent(position) else None
            said = self._caught_up()
            if arrived is not None and said is not None and said >= arrived:
                return True
            if self.over() or not self._alive():
                return False
            time.sleep(self._poll)

    def _has_ended(self, unfinished: int | None) -> bool:
        return unfinished is None or self._sources.finished(unfinished)


def passed(
    newest: Mapping[Place, bytes | None], position: bytes, partitions: Mapping[str, Collection[int]]
) -> bool:
    """Return whether a mirror has a later change from each partition of the topics that it has rows of.

    A partition from which it has no rows, or only rows of a snapshot, may be the one whose change is still to
    come.
    """
    topics = {topic for topic, _ in newest}
    wanted = {(topic, each) for topic in topics if topic is not None for each in partitions.get(topic, ())}
    shown = {place: seq for place, seq in newest.items() if seq is not None and seq >= position}
    return bool(newest) and wanted | newest.keys() <= shown.keys()


def shown(table: MirroredTable) -> dict[Place, bytes | None]:
    """Return the sequence of the newest change from each partition that a mirror shows.

    It is None if the mirror shows only rows of a snapshot.
    """
    table.mirror.refresh()
    origin, seq = F.col("__origin"), F.col("__seq")
    rows = table.rows().select(
        origin["topic"].alias("topic"),
        origin["partition"].alias("partition"),
        F.when(~is_snapshot(seq), seq).alias("seq"),
    )
    # Rows written by a repair or a reload come from no partition.
    changes = rows.where(~F.coalesce(F.col("topic").startswith(OWN_TOPICS), F.lit(False)))
    found = changes.groupBy("topic", "partition").agg(F.max("seq")).collect()
    return {(row[0], row[1]): as_bytes(row[2]) for row in found}
