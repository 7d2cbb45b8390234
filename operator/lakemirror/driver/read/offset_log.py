"""The offsets of each batch of Kafka records, from the checkpoint of the streaming query."""

from __future__ import annotations

import json
from typing import Final

from lakemirror.api import CdcPipeline
from lakemirror.driver.checkpoint import identity
from lakemirror.driver.checkpoint.storage import Storage, numbered
from lakemirror.driver.document import from_millis
from lakemirror.driver.read.base import Committed

Offsets = dict[str, dict[int, int]]
"""topic -> partition -> offset of the next record."""

SPARK_FOLDER: Final = "spark"
"""The query's folder in the checkpoint."""


_MARKER: Final = 'v1\n{"nextBatchWatermarkMs":0}\n'
"""What Spark writes for a batch that is done (CommitLog)."""

TOPICS: Final = "kafka/topics.json"
"""The file of a checkpoint that has what is known about each topic."""


def partitions_of(pipeline: CdcPipeline, storage: Storage) -> dict[str, set[int]]:
    """Return the partitions of each topic as far as the checkpoint knows them, if the source is Kafka."""
    return OffsetLog(storage).partitions() if pipeline.spec.source.kafka is not None else {}


def topic_ids(pipeline: CdcPipeline, storage: Storage) -> dict[str, str]:
    """Return the IDs that Kafka gave to the topics when they were made, if the source is Kafka."""
    if pipeline.spec.source.kafka is None:
        return {}
    try:
        topics = json.loads(storage.read_text(TOPICS))["topics"]
        return {name: str(each["id"]) for name, each in topics.items()}
    except (FileNotFoundError, ValueError, TypeError, KeyError):  # the feed itself reports a damaged file
        return {}


class OffsetLog:
    """The files of a streaming query's checkpoint that record the offsets of each batch.

    These are ``offsets/<N>`` (a version, a line of metadata, and a line of JSON: the offsets that batch N
    ends before), ``commits/<N>``, and ``sources/0/0`` with the offsets that batch 0 begins at (Structured
    Streaming's OffsetSeqLog, CommitLog and the Kafka source's initial offsets).
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def repair(self) -> None:
        """Give each marker that follows the last record a record, so that no new batch gets its number.

        Spark counts on from the last record. A batch whose marker is there already, because it was copied
        later than the records or a driver that has lost the checkpoint wrote it, would be lost in a crash.
        The records that are made are of batches without input. Raises LakemirrorError if there is no record.
        """
        recorded, done = self.recorded(), max(self.committed(), default=-1)
        if not recorded and done >= 0:
            raise identity.damaged(
                self._storage,
                f"{SPARK_FOLDER}/commits has batches, and {SPARK_FOLDER}/offsets has none of them",
            )
        last = max(recorded, default=-1)
        for number in range(last + 1, done + 1):
            text = self._storage.read_text(f"{SPARK_FOLDER}/offsets/{last}").rstrip()
            self._storage.write_text_new(f"{SPARK_FOLDER}/offsets/{number}", f"{text}\n")

    def commit(self, batch_id: int) -> None:
        """Mark a batch as done, as Spark does."""
        self._storage.write_text_new(f"{SPARK_FOLDER}/commits/{batch_id}", _MARKER)

    def recorded(self) -> set[int]:
        return self._numbers("offsets")

    def committed(self) -> set[int]:
        return self._numbers("commits")

    def last(self) -> Committed | None:
        """Return the last batch that is done."""
        done = self.committed()
        if not done:
            return None
        written = self._storage.stat(f"{SPARK_FOLDER}/commits/{max(done)}").mtime
        return Committed(max(done), from_millis(written))

    def until(self, batch_id: int) -> Offsets:
        """Return where the batch ends, or for -1, where the first batch begins.

        Raises FileNotFoundError if that is not recorded.
        """
        name = f"offsets/{batch_id}" if batch_id >= 0 else "sources/0/0"
        last_line = self._storage.read_text(f"{SPARK_FOLDER}/{name}").rstrip().rpartition("\n")[2]
        return {topic: {int(p): o for p, o in part.items()} for topic, part in json.loads(last_line).items()}

    def position(self) -> Offsets | None:
        """Return where the last completed batch ends, or None before the query is first started."""
        try:
            return self.until(max(self.committed(), default=-1))
        except FileNotFoundError:
            return None

    def partitions(self) -> dict[str, set[int]]:
        """Return the partitions of each topic, also those without records, as the newest batch knows them."""
        try:
            offsets = self.until(max(self.recorded(), default=-1))
        except FileNotFoundError:
            return {}
        return {topic: set(numbers) for topic, numbers in offsets.items()}

    def extent(self, batch_id: int) -> dict[str, dict[str, list[int]]]:
        """Return what the batch covers. Partitions without records are left out."""
        begin, end = self.until(batch_id - 1), self.until(batch_id)
        extent: dict[str, dict[str, list[int]]] = {}
        for topic, partitions in sorted(end.items()):
            for partition, until in sorted(partitions.items()):
                # A partition that has appeared since is read from its beginning.
                start = begin.get(topic, {}).get(partition, 0)
                if start != until:
                    extent.setdefault(topic, {})[str(partition)] = [start, until]
        return extent

    def left_out(self, batch_id: int) -> set[str]:
        """Return the topics that the previous batch had and this one lacks."""
        return self.until(batch_id - 1).keys() - self.until(batch_id).keys()

    def forget(self, batch_id: int) -> None:
        """Delete the batch, so that the query records it again."""
        for name in (str(batch_id), f".{batch_id}.crc"):  # a checksum, written if the file system has none
            self._storage.delete(f"{SPARK_FOLDER}/offsets/{name}")

    def _numbers(self, folder: str) -> set[int]:
        return numbered(self._storage, f"{SPARK_FOLDER}/{folder}")
