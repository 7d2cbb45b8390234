"""``onUnrepresentable: text``: the kept text of a value belongs to the value, wherever that comes from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.mirroring import Mirroring
from tests.support.records import UNAVAILABLE, Column, Record, Row
from tests.support.shop import Shop, table, timestamp

V, UNTIL = Column("v", "int32", optional=True), timestamp("until")
INFINITY, FAR = 9223372036825200000, 2147483647


@dataclass(frozen=True)
class Dates(Column):
    """An array of dates, as days."""

    def field(self) -> Row:
        item = {"type": "int32", "optional": True, "name": "io.debezium.time.Date", "version": 1}
        return {"type": "array", "items": item, "optional": True, "field": self.name}


def apart(events: Sequence[list[Record]]) -> list[list[Record]]:
    """Batches that each have at most one event of a row."""
    lives: dict[tuple[str, str | None], list[list[Record]]] = {}
    for event in events:
        lives.setdefault((event[0]["topic"], event[0]["key"]), []).append(event)
    rounds = zip_longest(*lives.values(), fillvalue=[])
    return [[record for event in round_ for record in event] for round_ in rounds]


@pytest.mark.long
@pytest.mark.parametrize(
    "at_once", [True, pytest.param(False, marks=pytest.mark.thorough)], ids=["at once", "apart"]
)
def test_a_text_stays_as_long_as_its_value(spark: SparkSession, tmp_path: Path, at_once: bool) -> None:
    """A change that leaves the value out keeps it; one that brings another value, or none, does not."""
    shop, of = Shop(), table("times", V, Dates("at", "string", optional=True), UNTIL)
    soft, versions = (
        table(name, V, Dates("at", "string", optional=True), UNTIL) for name in ("soft", "versions")
    )
    odd: dict[str, Any] = {"at": [FAR], "until": INFINITY}
    gap: dict[str, Any] = {"at": list(UNAVAILABLE.encode()), "until": None}
    first = [record for n in (1, 2, 3, 4) for record in shop.create(of, id=n, v=1, **odd)]
    first += [*shop.create(soft, id=1, v=1, **odd), *shop.create(soft, id=2, v=1, **odd)]
    first += [record for n in (1, 2, 3) for record in shop.create(versions, id=n, v=1, **odd)]
    events = [
        shop.update(of, id=1, v=2, **gap),
        shop.update(of, id=2, v=2, at=[1], until=INFINITY),
        shop.delete(of, id=3, v=1, **odd),
        shop.create(of, id=3, v=2, **gap),
        shop.create(of, id=5, v=1, **odd),
        shop.update(of, id=5, v=2, **gap),
        shop.update(soft, id=1, v=2, **gap),
        shop.delete(soft, id=1, v=2),
        shop.delete(soft, id=2, v=1),
        shop.update(versions, id=1, v=2, **gap),
        shop.update(versions, id=1, v=3, **gap),
        shop.update(versions, id=2, v=2, at=[1], until=INFINITY),
        shop.update(versions, id=2, v=3, **gap),
        shop.delete(versions, id=3, v=1),
        shop.create(versions, id=3, v=2, **gap),
    ]
    batches = [[record for event in events for record in event]] if at_once else apart(events)
    deleted = {"source": "soft", "delete": {"type": "soft", "column": "gone"}}
    named = {"tables": [deleted, {"source": "versions", "mode": "scd2"}]}
    mirroring = Mirroring(tmp_path, {"onUnrepresentable": "text", **named}).deliver([first, *batches])
    assert mirroring.run(spark).counts.quarantined == 0

    def texts(name: str, *by: str) -> dict[Any, set[str]]:
        stored = spark.read.format("delta").load(mirroring.path("demo", "public", name))
        return {
            tuple(row[each] for each in by) if by else row["id"]: set(row["__unrepresentable"] or ())
            for row in stored.collect()
        }

    both = {"at", "until"}
    assert texts("times") == {1: {"at"}, 2: {"until"}, 3: set(), 4: both, 5: {"at"}}
    assert texts("soft") == {1: {"at"}, 2: both}
    assert texts("versions", "id", "v") == {
        **{(1, 1): both, (1, 2): {"at"}, (1, 3): {"at"}},
        **{(2, 1): both, (2, 2): {"until"}, (2, 3): set()},
        **{(3, 1): both, (3, 2): set()},
    }


@pytest.mark.long
def test_a_truncate_takes_the_text_of_a_value_along_with_it(spark: SparkSession, tmp_path: Path) -> None:
    """The truncate comes late: the row that it left has a value from before it."""
    shop, of = Shop(), table("times", V, Dates("at", "string", optional=True), UNTIL)
    first = shop.create(of, id=1, v=1, at=[FAR], until=INFINITY)
    wiped = shop.truncate(of)
    later = shop.update(of, id=1, v=2, at=list(UNAVAILABLE.encode()), until=INFINITY)
    mirroring = Mirroring(tmp_path, {"onUnrepresentable": "text"}).deliver([first, later, wiped])
    assert mirroring.run(spark).counts.quarantined == 0
    [row] = spark.read.format("delta").load(mirroring.path("demo", "public", "times")).collect()
    assert (row["v"], row["at"], set(row["__unrepresentable"] or ())) == (2, None, {"until"})
