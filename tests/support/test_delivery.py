from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support import delivery
from tests.support.histories import Shape, Step, many, play, steps
from tests.support.records import Record, payload, read
from tests.support.reference import Mirror, in_source_order


def identity(record: Record) -> tuple[str, int, int]:
    return record["topic"], record["partition"], record["offset"]


@pytest.fixture(scope="module")
def records() -> list[Record]:
    return play(many(range(20), random.Random(5)), Shape()).records


def test_doubled_sends_each_record_twice_in_a_row(records: list[Record]) -> None:
    doubled = delivery.doubled(records)
    assert doubled[::2] == doubled[1::2] == records


@given(st.integers(0, 99))
@settings(deadline=None, max_examples=20)
def test_interleaved_keeps_each_partition_and_changes_their_order(records: list[Record], seed: int) -> None:
    merged = delivery.interleaved(records, seed)
    assert merged != records
    assert delivery.by_partition(merged) == delivery.by_partition(records)


def test_shuffled_moves_records_within_partitions_and_loses_none(records: list[Record]) -> None:
    moved = delivery.shuffled(records, 1)
    assert Counter(map(identity, moved)) == Counter(map(identity, records))
    assert delivery.by_partition(moved) != delivery.by_partition(records)
    assert delivery.shuffled(records, 1) == moved != delivery.shuffled(records, 2)


@given(steps(2), st.integers(1, 9), st.integers(10, 30))
@example([*[Step(0, "put")] * 14, Step(0, "swap", 0, 1)], 2, 10).via("half of a move sent again")
@settings(deadline=None, max_examples=50)
def test_a_restart_sends_a_tail_again_with_new_offsets(played: list[Step], back: int, every: int) -> None:
    records = play(played, Shape()).records
    sent = delivery.restarted(records, back=back, every=every)
    for partition in delivery.by_partition(sent).values():
        assert [r["offset"] for r in partition] == list(range(len(partition)))
    assert len(sent) == len(records) + back * ((len(records) - 1) // every if records else 0)
    once = {payload(r["value"])["source"]["ts_us"] for r in records if r["value"]}
    assert {payload(r["value"])["source"]["ts_us"] for r in sent if r["value"]} == once
    assert Mirror().replay(in_source_order(sent)).tables == Mirror().replay(records).tables


def test_batches_are_cut_in_order_and_written_one_file_each(records: list[Record], tmp_path: Path) -> None:
    batches = delivery.cut(records, 7)
    assert {len(batch) for batch in batches[:-1]} == {7}
    assert len(delivery.parts(records, 4)) == 4
    delivery.write(batches, tmp_path)
    files = sorted(tmp_path.iterdir())
    assert len(files) == len(batches)
    assert [record for file in files for record in read(file)] == records
    assert delivery.whole(records) == [records]
