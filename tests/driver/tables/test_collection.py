"""Which tables' tombstones may be collected while records are open in the quarantine."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from lakemirror.driver import batch
from lakemirror.driver.batch import BatchApplier
from lakemirror.driver.profile.positions import At, Memory, Place, Stream, may_be_of

pytestmark = pytest.mark.guarantee(
    "A record whose table is unknown keeps the tombstones of the tables that it may belong to"
)

MEMORY: Memory = {
    Stream("shop.a", 0, "shop"): Place(At("10", 5)),
    Stream("shop.b", 0, "shop"): Place(At("10", 5)),
    Stream("bank.c", 0, "bank"): Place(At("10", 5)),
}
LOGS = {"a": frozenset({"shop"}), "b": frozenset({"shop"}), "c": frozenset({"bank"}), "d": None}


@pytest.mark.parametrize(
    ("topics", "tables"),
    [
        ([], ""),
        (["shop.a"], "abd"),
        (["bank.c"], "cd"),
        (["shop.a", "bank.c"], "abcd"),
        (["unknown"], "abcd"),
        ([None], "abcd"),
    ],
)
def test_a_record_may_be_of_any_table_that_its_topic_feeds(topics: list[str | None], tables: str) -> None:
    found = {name for name, logs in LOGS.items() if may_be_of(MEMORY, logs, topics)}
    assert found == set(tables)


class Table:
    """A table with an old tombstone."""

    def __init__(self, name: str) -> None:
        self.name = name

    def require_readable(self) -> None:
        pass

    def has_tombstones(self, before: datetime) -> bool:
        return True

    def collect_tombstones(self, before: datetime, below: bytes | None) -> int:
        return 1


class Tables(dict[str, Table]):
    """The tables of a batch, of which each step succeeds."""

    @property
    def names(self) -> list[str]:
        return sorted(self)

    def attempted(self, name: str, step: Any) -> Any:
        return step()


@pytest.mark.parametrize(
    ("open_records", "unknown", "collected"),
    [
        ({}, [], 4),
        ({"a": {"record": 1}}, [], 3),
        ({"": {"record": 1}}, ["shop.a"], 1),
        ({"": {"record": 1}}, [None], 0),
        ({"": {"order": 1}, "c": {"table": 2}}, ["shop.b"], 0),
    ],
    ids=["none", "of a table", "of a topic", "of no topic", "of both"],
)
def test_open_records_keep_tombstones(
    open_records: Any, unknown: list[str | None], collected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record that waits for its schema may be a change of a row that was deleted later."""
    applier: Any = BatchApplier.__new__(BatchApplier)
    applier._session, applier._checkpoint, applier._memory, applier._logs = None, "", MEMORY, LOGS
    applier._tables = Tables({name: Table(name) for name in LOGS})
    applier._spec = SimpleNamespace(tombstones=SimpleNamespace(retention="7d"))
    monkeypatch.setattr(batch.quarantine, "open_counts", lambda *_: open_records)
    monkeypatch.setattr(batch.quarantine, "topics_of_unknown", lambda *_: set(unknown))
    monkeypatch.setattr(batch.positions, "committed_by_all", lambda *_: b"")
    assert applier.collect_tombstones(had_all_at=datetime(2026, 3, 1, tzinfo=UTC)) == collected
