"""Topics that Kafka compacts: records that may be gone before they were read.

Compaction keeps the newest record of each key. Of a row that was deleted that is Kafka's tombstone, which
changes no row by itself, so that a delete that is compacted away leaves its row in the mirror. A record is
safe until it is older than the topic's ``min.compaction.lag.ms`` (Kafka documentation, topic configs).
"""

from __future__ import annotations

from collections.abc import Mapping

from lakemirror.driver.read.offset_log import Offsets


def overdue(position: Offsets, safe: Offsets, ends: Offsets) -> list[str]:
    """The topics with records that are still to be read and no longer safe.

    ``safe``: the first offset of each partition whose record is young enough, or -1 where there is none.
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
    """Whether all of a topic is read that it had."""
    return all(position.get(partition, 0) >= end for partition, end in ends.items())


def warning(topic: str, lag_ms: int) -> str:
    """What a person should know of a topic that is overdue."""
    return (
        f"topic {topic} is compacted and has records that are older than its min.compaction.lag.ms "
        f"({lag_ms}) and not read yet: deletes among them may have been compacted away, which leaves their "
        "rows in the mirror. Compare the mirror with its source by `lakemirror verify`, and give the topic a "
        "min.compaction.lag.ms that is longer than the driver may ever be behind"
    )
