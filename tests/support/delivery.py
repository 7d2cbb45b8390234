"""How records can reach a mirror: each function makes another delivery of a list of records.

Nothing here changes a record, but for the offset and the connector's clock of those that a restarted
connector sends again. The first group gives records in another order or number; `whole`, `cut` and `parts`
make the batches, `write` their files.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.support.records import Record
from tests.support.records import write as write_records

Batches = list[list[Record]]
Partition = tuple[str, int]


def by_partition(records: Iterable[Record]) -> dict[Partition, list[Record]]:
    """The records of each topic partition, in their order."""
    partitions: dict[Partition, list[Record]] = {}
    for record in records:
        partitions.setdefault((record["topic"], record["partition"]), []).append(record)
    return partitions


def doubled(records: Sequence[Record]) -> list[Record]:
    """Each record twice, as after a consumer's rewind: same offset, same bytes."""
    return [record for record in records for _ in range(2)]


def restarted(records: Sequence[Record], *, back: int, every: int) -> list[Record]:
    """A connector that dies after each `every` records and sends the last `back` again, with new offsets.

    Later offsets move up accordingly. The connector's own clock has moved on; the source's times have not.
    """
    sent: list[Record] = []
    for start in range(0, len(records), every):
        if start:
            sent.extend(_sent_again(record) for record in records[max(0, start - back) : start])
        sent.extend(records[start : start + every])
    return _renumbered(sent)


def _sent_again(record: Record) -> Record:
    value = record["value"]
    if value is not None:
        parsed = json.loads(value)
        change = parsed["payload"] if parsed.keys() == {"schema", "payload"} else parsed
        if isinstance(change.get("ts_ms"), int) and "source" in change:
            change["ts_ms"] += 60_000
            value = json.dumps(parsed, ensure_ascii=False, separators=(",", ":"))
    return {**record, "value": value, "timestamp": record["timestamp"] + 60_000}


def _renumbered(records: Iterable[Record]) -> list[Record]:
    nexts: dict[Partition, int] = {}
    renumbered = []
    for record in records:
        partition = record["topic"], record["partition"]
        offset = nexts.get(partition, 0)
        nexts[partition] = offset + 1
        renumbered.append({**record, "offset": offset})
    return renumbered


def interleaved(records: Iterable[Record], seed: int) -> list[Record]:
    """The partitions merged otherwise; the order within each is kept."""
    rnd = random.Random(seed)
    partitions = [records[::-1] for records in by_partition(records).values()]
    merged: list[Record] = []
    while partitions:
        partition = rnd.choice(partitions)
        merged.extend(partition.pop() for _ in range(min(rnd.randint(1, 9), len(partition))))
        partitions = [p for p in partitions if p]
    return merged


def shuffled(records: Sequence[Record], seed: int) -> list[Record]:
    """Every record anywhere."""
    return random.Random(seed).sample(records, len(records))


def whole(records: Sequence[Record]) -> Batches:
    """One batch."""
    return [list(records)]


def cut(records: Sequence[Record], size: int) -> Batches:
    """Batches of `size` records, the last with what is left."""
    return [list(records[start : start + size]) for start in range(0, len(records), size)]


def parts(records: Sequence[Record], number: int) -> Batches:
    """At most `number` batches of about equal size."""
    return cut(records, math.ceil(len(records) / number) or 1)


def write(batches: Batches, folder: Path) -> None:
    """One file a batch, named so that their order is the batches' order, after the files that are there."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, batch in enumerate(batches, start=sum(1 for _ in folder.iterdir())):
        write_records(folder / f"part-{number:05d}.jsonl", batch)
