"""A model of a mirror, one page: Debezium records replayed on dicts, in the order of the source.

It knows no batch, no file and no lateness: what it holds after the last record is what the mirror must hold.
`SoftMirror` is the same for soft deletes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Self

from tests.support.records import UNAVAILABLE, Record, Row, payload

Key = tuple[Any, ...]
TableName = str


class Mirror:
    """`tables`: the rows by table and key. `states`: every row a key ever showed, oldest first."""

    def __init__(self) -> None:
        self.tables: dict[TableName, dict[Key, Row]] = {}
        self.states: dict[TableName, dict[Key, list[Row]]] = {}
        self._moved: dict[tuple[TableName, Key], Row] = {}

    def replay(self, records: Iterable[Record]) -> Self:
        """Apply records in the order of the source; what is no change of a row or table is passed over."""
        for record in records:
            change = payload(record["value"]) if record["value"] else {}
            if change.get("op") in ("c", "u", "d", "r", "t") and "source" in change:
                self._apply(record, change)
        return self

    def _apply(self, record: Record, change: Row) -> None:
        table = table_name(change["source"])
        rows = self.tables.setdefault(table, {})
        if change["op"] == "t":
            rows.clear()
            return
        key = key_of(record["key"])
        headers = {
            name: key_of(text) for name, text in record["headers"] if name.endswith(("newkey", "oldkey"))
        }
        if change["op"] == "d":
            gone = rows.pop(key, None)
            if gone is not None and "__debezium.newkey" in headers:
                self._moved[table, headers["__debezium.newkey"]] = gone
            return
        older = rows.get(key) if change["op"] == "u" else None
        if "__debezium.oldkey" in headers:
            older = self._moved.pop((table, key), None)
        rows[key] = {name: _known(name, value, older) for name, value in change["after"].items()}
        self.states.setdefault(table, {}).setdefault(key, []).append(rows[key])


class SoftMirror(Mirror):
    """A mirror with soft deletes, and perhaps a filter (`meets`).

    `shown`: by table and key, the last row that met the filter (None: there was none), and when it was
    deleted or left, in microseconds (None: it is there).
    """

    def __init__(self, meets: Callable[[Row], bool] = lambda _: True) -> None:
        super().__init__()
        self.shown: dict[TableName, dict[Key, tuple[Row | None, int | None]]] = {}
        self._meets = meets

    def _apply(self, record: Record, change: Row) -> None:
        super()._apply(record, change)
        table = table_name(change["source"])
        there, shown = self.tables[table], self.shown.setdefault(table, {})
        for key in list(shown) if change["op"] == "t" else [key_of(record["key"])]:
            row, (last, gone) = there.get(key), shown.get(key, (None, None))
            if row is not None and self._meets(row):
                shown[key] = row, None
            elif gone is None:
                shown[key] = last, change["source"]["ts_us"]


def _known(name: str, value: Any, older: Row | None) -> Any:
    if value != UNAVAILABLE:
        return value
    return None if older is None else older[name]  # a row never seen before: waiting for its value


def key_of(text: str) -> Key:
    """The values of a record's key, in the order of its fields."""
    return tuple(payload(text).values())


def table_name(source: Row) -> TableName:
    """`schema.table`, or `db.table` where the source has no schemas."""
    return f"{source.get('schema') or source['db']}.{source['table']}"


def position(source: Row) -> tuple[int, ...] | None:
    """Where a change stood in its source, comparable as numbers; None where nothing says so.

    PostgreSQL: (max(last commit, lsn), lsn), snapshot rows (lsn, -1); binlogs: (file number, pos, row).
    """
    if source.get("file"):
        row = -1 if source["snapshot"] != "false" else source["row"]
        return int(source["file"].rpartition(".")[2]), source["pos"], row
    commit, own = (int(text or 0) for text in json.loads(source["sequence"]))
    if source["snapshot"] != "false":
        return own, -1
    return max(commit, own), own


def in_source_order(records: Iterable[Record]) -> list[Record]:
    """The row changes among `records`, by position; ties in the order of their partition, deletes first.

    A change that was sent again is there once.
    """

    def order(record: Record) -> tuple[Any, ...]:
        change = payload(record["value"])
        return position(change["source"]), change["op"] != "d", record["offset"]

    changes = [r for r in records if r["value"] and "source" in payload(r["value"]) and _is_change(r)]
    once: dict[str, Record] = {}
    for record in sorted(changes, key=order):
        once.setdefault(_identity(record), record)
    return list(once.values())


def _identity(record: Record) -> str:
    """What is the same when a change is sent again: all but the connector's own clock."""
    change = {name: value for name, value in payload(record["value"]).items() if not name.startswith("ts_")}
    return json.dumps([record["topic"], record["key"], change])


def _is_change(record: Record) -> bool:
    return payload(record["value"]).get("op") in ("c", "u", "d", "r", "t")


@dataclass(frozen=True)
class Arrived:
    """A change as a mirror gets it: ``seq`` is what it compares by, within ``order`` (a partition or a log).

    ``at`` is the source's time. The whole row is replaced, so that a member that is not there is null.
    """

    key: int
    op: str
    row: Row | None
    seq: tuple[int, ...]
    order: Any
    at: int = 0
    place: tuple[str, int, int] = ("", 0, 0)


class OrderedMirror:
    """A mirror of changes of several orders, batch by batch. ``ordered`` says whether two changes compare.

    What does not compare with the newest change of its key waits, in any batch, and what does not compare
    with an earlier change of its key in the same batch that does not wait. What waits may be older than
    what has come meanwhile: `retry` tries it again.
    """

    def __init__(self, ordered: Callable[[Arrived, Arrived], bool]) -> None:
        self._ordered = ordered
        self._newest: dict[int, Arrived] = {}
        self._waiting: dict[tuple[str, int, int], Arrived] = {}

    @property
    def waiting(self) -> set[tuple[str, int, int]]:
        return set(self._waiting)

    @property
    def rows(self) -> dict[int, Row]:
        return {key: each.row for key, each in self._newest.items() if each.row is not None}

    def apply(self, batch: Iterable[Arrived]) -> None:
        by_key: dict[int, list[Arrived]] = {}
        for each in batch:
            by_key.setdefault(each.key, []).append(each)
        for key, events in by_key.items():
            self._apply(key, events)

    def retry(self) -> None:
        again, self._waiting = self._waiting, {}
        self.apply(again.values())

    def _apply(self, key: int, events: list[Arrived]) -> None:
        first = min(events, key=lambda each: (each.op not in "cr", *each.place[:2], each.seq))
        stood = self._newest.get(key, first)
        before: list[Arrived] = []
        for each in sorted(events, key=lambda each: (each.seq, each.place)):
            compares = self._ordered(each, stood)
            if not compares or not all(self._ordered(each, other) for other in before):
                self._waiting[each.place] = each
                continue
            before.append(each)
            if key not in self._newest or each.seq > self._newest[key].seq:
                self._newest[key] = each
