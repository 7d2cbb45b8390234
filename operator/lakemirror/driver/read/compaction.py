"""Topics that Kafka compacts, so that records may be gone before they are read.

Compaction keeps the newest record of each key. For a deleted row, that is Kafka's tombstone, which changes no
row on its own. If the delete event is compacted away, the row therefore stays in the mirror. A record is safe
until it is older than the topic's ``min.compaction.lag.ms`` (Kafka documentation, topic configs).
"""

from __future__ import annotations

from collections.abc import Mapping

from lakemirror.driver.read.offset_log import Offsets


def overdue(position: Offsets, safe: Offsets, ends: Offsets) -> list[str]:
    """Return the topics that have unread records which are no longer safe.

    ``safe`` is the first offset of each partition whose record is recent enough, or -1 if there is none.
    """
    return [
        topic
        for topic, partitions in safe.items()
        if any(
            position.get(topic, {}).get(partition, 0) < (ends[topic][partition] if first < 0 else first)
            for partition, first in partitions.items()
        )
    ]


def is_read(position: Mapping[int, int], ends: Mapping[int, int]) -> bool:
    """Return whether everything that a topic had is read."""
    return all(position.get(partition, 0) >= end for partition, end in ends.items())


def warning(topic: str, lag_ms: int) -> str:
    """Return the warning about a topic that is overdue."""
    return (
        f"topic {topic} is compacted and has records that are older than its min.compaction.lag.ms "
        f"({lag_ms}) and not read yet: deletes among them may have been compacted away, which leaves their "
        "rows in the mirror. Compare the mirror with its source by `lakemirror verify`, and give the topic a "
        "min.compaction.lag.ms that is longer than the driver may ever be behind"
    )
