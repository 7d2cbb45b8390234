"""Changes of several partitions and logs: what compares is placed, the rest waits, as in the reference."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from lakemirror.driver.rules.merge import merge
from lakemirror.driver.rules.orders import Change, Orders, Place, waiting
from lakemirror.driver.rules.positions import Origin, Source, sequence
from lakemirror.driver.rules.table import Table
from lakemirror.driver.rules.values import Event, Row, Tombstone
from tests.properties.test_orders import KINDS, MOST, _history, _in_order_of_logs
from tests.support.reference import Arrived, OrderedMirror

pytestmark = pytest.mark.guarantee(
    "Sequences compare only inside one order: between two, a change waits, a truncate removes nothing, and a "
    "reload gives each row a place in its own"
)

COLUMNS = ("id", "v", "n", "w")
LOGS = {f"log{n}": f"log{n}" for n in range(3)}


def source_of(arrived: Arrived, by: str) -> Source:
    if by == "auto":
        return Source("postgresql", lsn=arrived.seq[0], sequence=f'["{arrived.seq[0]}","{arrived.seq[0]}"]')
    return Source(ts_us=time_of(arrived) if by == "timestamp" else None)


def time_of(arrived: Arrived) -> int:
    return 1_600_000_000_000_000 + arrived.at * 1_000_000


def event(arrived: Arrived, by: str) -> Event:
    origin = Origin(*arrived.place)
    order = "offset" if by == "offset" else "auto"
    seq = sequence(source_of(arrived, by), origin, snapshot=False, by=order)  # type: ignore[arg-type]
    at = None if by == "offset" else time_of(arrived)
    return Event((arrived.key,), arrived.op, seq, at, origin, arrived.row or {}, digest=arrived.place)


class Mirror:
    """Rows and tombstones, and the changes that wait."""

    def __init__(self, orders: Orders) -> None:
        self._orders, self._table = orders, Table(COLUMNS)
        self.rows: dict[int, Row] = {}
        self.tombstones: dict[int, Tombstone] = {}
        self.waiting: dict[tuple[object, ...], Event] = {}

    def apply(self, events: Iterable[Event]) -> None:
        by_key: dict[int, list[Event]] = {}
        for each in events:
            by_key.setdefault(each.key[0], []).append(each)
        for key, mine in by_key.items():
            changes = [Change(each.op, Place(each.seq, each.at, each.origin)) for each in mine]
            whys = waiting(changes, self._stood(key), self._orders)
            for each, why in zip(mine, whys, strict=True):
                if why is not None:
                    self.waiting[each.origin] = each
            placed = [each for each, why in zip(mine, whys, strict=True) if why is None]
            found = merge(placed, self.rows.get(key), self.tombstones.get(key), self._table)
            self.rows.pop(key, None)
            if found.row is not None:
                self.rows[key] = found.row
            if found.tombstone is not None:
                self.tombstones[key] = max(
                    found.tombstone, self.tombstones.get(key, found.tombstone), key=lambda each: each.seq
                )

    def retry(self) -> None:
        again, self.waiting = self.waiting, {}
        self.apply(again.values())

    def _stood(self, key: int) -> Place | None:
        known: list[Row | Tombstone] = []
        known += [self.rows[key]] if key in self.rows else []
        known += [self.tombstones[key]] if key in self.tombstones else []
        newest = max(known, key=lambda each: each.seq, default=None)
        return None if newest is None else Place(newest.seq, newest.at, newest.origin)


@pytest.mark.parametrize("by", ["offset", "timestamp", "auto"])
def test_changes_of_several_orders_are_placed_or_wait(by: str) -> None:
    _, make, ordered = KINDS[by]
    orders = Orders(logs=LOGS if by == "auto" else {}, tolerance=MOST * 1000)
    for seed in range(60):
        sent = [make(each, offset + 1) for offset, each in enumerate(_history(seed))]
        random.Random(seed).shuffle(sent)
        if by == "auto":  # a connector sends its log in order, or else it has restarted
            sent = _in_order_of_logs(sent)
        third = -(-len(sent) // 3)
        model, mirror = OrderedMirror(ordered), Mirror(orders)
        for batch in (sent[i : i + third] for i in range(0, len(sent), third)):
            model.apply(arrived for _, arrived in batch)
            mirror.apply(event(arrived, by) for _, arrived in batch)
        model.retry()
        mirror.retry()
        assert set(mirror.waiting) == model.waiting
        assert {key: dict(row.values) for key, row in mirror.rows.items()} == model.rows
