"""Histories in the order of a column of their rows: any delivery ends in the rows of the source.

And histories of several partitions and logs: each change is placed in its own order, or waits.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from lakemirror.driver.record import quarantine
from tests.support.delivery import doubled, parts, restarted, shuffled
from tests.support.histories import Shape, key_of, many, play
from tests.support.mirroring import Mirroring, at
from tests.support.records import Record
from tests.support.reference import Arrived, OrderedMirror

ORDERED = {"ordering": {"by": "columns", "columns": ["h", "v"]}}


@pytest.mark.thorough
@pytest.mark.guarantee(
    "A mirror equals its source after any delivery, also when columns of the rows define the order"
)
@pytest.mark.timeout(900)
def test_any_delivery_in_the_order_of_a_column_ends_in_the_rows_of_the_source(
    spark: SparkSession, tmp_path: Path
) -> None:
    """``v`` grows with each change of a history; positions are not looked at. Sent again by a connector that
    restarts, doubled and shuffled over two batches, rows that move, go and return end as in the source.
    """
    rnd = random.Random(5)
    history = play(many(range(24), rnd), Shape(full=True, name="items"))
    records = restarted(history.records, back=20, every=150)
    mirroring = Mirroring(tmp_path, ORDERED).deliver(parts(shuffled(doubled(records), 11), 2))
    summary = mirroring.run(spark)
    found = at(spark, mirroring.path("demo", "public", "items")).collect()
    assert {key_of(row.asDict()): row.asDict() for row in found} == history.rows
    assert len(found) > 10
    assert sum(table.counts.quarantined for table in summary.tables.values()) == 0


# Several orders

Made = tuple[int, str, int, int, bool]
"""A generated change: its key, op, order (a partition, or a log), time, and whether it has the member w."""


def _history(seed: int) -> list[Made]:
    """Changes of few keys. (Lists that Hypothesis draws begin with 120 equal changes, and take long.)"""
    rnd = random.Random(seed)
    return [
        (rnd.randrange(40), rnd.choice("cuud"), rnd.randrange(3), rnd.randrange(7), rnd.random() < 0.5)
        for _ in range(rnd.randrange(120, 160))
    ]


CUSTOM = {"format": "custom", "fields": {"op": "op", "after": "new", "key": "key", "table": "t"}}
MOST = 86_400_000
"""How far clocks may differ (milliseconds) where no database may count as moved."""


def by_offset(one: Arrived, other: Arrived) -> bool:
    return one.order == other.order


def by_time(one: Arrived, other: Arrived) -> bool:
    return one.at != other.at or one.order == other.order


def by_log(one: Arrived, other: Arrived) -> bool:
    """Positions of two logs compare where times agree."""
    if one.order == other.order or one.seq == other.seq:
        return True
    return one.at >= other.at if one.seq > other.seq else one.at <= other.at


def by_column(one: Arrived, other: Arrived) -> bool:
    return True


def _record(topic: str, partition: int, offset: int, body: dict[str, Any]) -> Record:
    place = {"topic": topic, "partition": partition, "offset": offset, "timestamp": 1_700_000_000_000}
    return {**place, "key": None, "value": json.dumps(body), "headers": []}


def _custom(made: Made, offset: int, seq: Callable[[Made, int], tuple[int, ...]]) -> tuple[Record, Arrived]:
    """A record without a position: ordered by its time, its offset or a column of its row."""
    key, op, partition, time, member = made
    row = {"id": key, "v": offset, "n": time, "w": "w" if member else None}
    shown = {name: each for name, each in row.items() if each is not None}
    images = {"old": {**shown}} if op == "d" else {"new": shown}
    body = {"op": op, "t": "s.items", "key": {"id": key}, "at": 1_600_000_000_000 + time * 1000, **images}
    arrived = Arrived(
        key, op, None if op == "d" else row, seq(made, offset), partition, time, ("items", partition, offset)
    )
    return _record("items", partition, offset, body), arrived


def _positioned(made: Made, offset: int) -> tuple[Record, Arrived]:
    """A change in Debezium's form at a position of one of three logs, each with a topic of its own."""
    key, op, log, _, member = made
    lsn = 1000 + offset * (7, 11, 5)[log]
    time = (lsn, 2 * lsn - 1500, lsn // 2 + 700)[log]  # within a log, times do not go back
    row = {"id": key, "v": offset, "n": time, "w": "w" if member else None}
    shown = {name: each for name, each in row.items() if each is not None}
    source = {
        **{"connector": "postgresql", "name": f"log{log}", "db": "d", "schema": "s", "table": "items"},
        **{
            "lsn": lsn,
            "sequence": json.dumps([str(lsn), str(lsn)]),
            "ts_ms": 1_600_000_000_000 + time * 1000,
        },
    }
    images = {"before": shown, "after": None} if op == "d" else {"before": None, "after": shown}
    record = _record(f"log{log}", 0, offset, {"op": op, "source": source, **images})
    arrived = Arrived(key, op, None if op == "d" else row, (lsn, 0), log, time, (f"log{log}", 0, offset))
    return {**record, "key": json.dumps({"id": key})}, arrived


def _in_order_of_logs(sent: list[tuple[Record, Arrived]]) -> list[tuple[Record, Arrived]]:
    """The same changes, with those of each log in order at the places that its changes have."""
    ordered = {
        log: iter(sorted((each for each in sent if each[1].order == log), key=lambda each: each[1].seq))
        for log in {arrived.order for _, arrived in sent}
    }
    return [next(ordered[arrived.order]) for _, arrived in sent]


KINDS: dict[str, tuple[dict[str, Any], Callable[[Made, int], tuple[Record, Arrived]], Any]] = {
    "offset": (
        {"envelope": CUSTOM, "ordering": {"by": "offset"}},
        lambda made, offset: _custom(made, offset, lambda made, offset: (offset,)),
        by_offset,
    ),
    "timestamp": (
        {
            "envelope": {**CUSTOM, "fields": {**CUSTOM["fields"], "timestamp": "at"}},
            "ordering": {"by": "timestamp"},
        },
        lambda made, offset: _custom(made, offset, lambda made, offset: (made[3], offset)),
        by_time,
    ),
    "columns": (
        {
            "envelope": {**CUSTOM, "fields": {**CUSTOM["fields"], "before": "old"}},
            "ordering": {"by": "columns", "columns": ["new.n"]},
        },
        lambda made, offset: _custom(made, offset, lambda made, offset: (made[3], offset)),
        by_column,
    ),
    "auto": ({"ordering": {"toleranceMs": MOST}}, _positioned, by_log),
}


_OFTEN = ("offset", "auto")
"""What each change is tested with; the others follow in the night."""


@pytest.mark.thorough
@pytest.mark.guarantee(
    "Sequences compare only inside one order: between two, a change waits, a truncate removes nothing, and a "
    "reload gives each row a place in its own"
)
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("by", "examples"),
    [
        *[pytest.param(by, 2, marks=[] if by in _OFTEN else pytest.mark.thorough) for by in KINDS],
        *[pytest.param(by, 8, marks=pytest.mark.thorough) for by in KINDS],
    ],
)
def test_changes_of_several_orders_are_placed_or_wait(
    by: str, examples: int, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The mirror has the rows of the model, and the same records wait, in three batches."""
    given_settings, make, ordered = KINDS[by]

    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.integers(0, 9999))
    def holds(seed: int) -> None:
        sent = [make(each, offset + 1) for offset, each in enumerate(_history(seed))]
        random.Random(seed).shuffle(sent)
        if by == "auto":  # a connector sends its log in order, or else it has restarted
            sent = _in_order_of_logs(sent)
        third = -(-len(sent) // 3)
        batches = [sent[i : i + third] for i in range(0, len(sent), third)]
        model = OrderedMirror(ordered)
        for batch in batches:
            model.apply(arrived for _, arrived in batch)
        model.retry()
        folder = tmp_path_factory.mktemp("orders")
        mirroring = Mirroring(folder, given_settings).deliver([[r for r, _ in batch] for batch in batches])
        summary = mirroring.run(spark)
        mirroring.run(spark)  # begins by trying again what waits
        [log] = folder.glob("lake/**/items/_delta_log")
        names = ("id", "v", "n", "w")
        found = {
            row["id"]: {name: row.asDict().get(name) for name in names}
            for row in at(spark, str(log.parent)).collect()
        }
        aside = quarantine.read(spark, str(mirroring.checkpoint))
        waits = [] if aside is None else aside.where("state = 'open' AND scope = 'order'").collect()
        places = {(row["topic"], row["partition"], row["offset"]) for row in waits}
        assert places <= model.waiting  # how often the driver has tried again depends on the time
        assert by != "offset" or places == model.waiting
        assert found == model.rows
        assert summary.counts.unaccounted == 0

    holds()
