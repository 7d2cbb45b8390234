"""Records as Maxwell writes them, by its documentation and its source (``RowMap``, ``RowIdentity``).

`History` is a database that changes: its tables keep what a mirror has to show in the end.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

from tests.support.records import Record, Row

FOLDER = Path(__file__).parents[1] / "fixtures" / "maxwell"


def dumps(document: Any) -> str:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


def key_of(change: dict[str, Any]) -> str:
    """Kafka's key of a record that has ``primary_key_columns``: ``kafka_key_format=hash``."""
    row, names = change.get("data") or {}, change.get("primary_key_columns") or []
    key = {f"pk.{name.lower()}": row.get(name) for name in names}
    return dumps({"database": change["database"], "table": change["table"], **key})


def sent(lines: Iterable[str], topic: str = "maxwell", partitions: int = 3) -> list[Record]:
    """What Maxwell's Kafka producer makes of lines that it printed, partitioned by primary key."""
    offsets = [0] * partitions
    records = []
    for number, line in enumerate(lines):
        change = json.loads(line)
        key = key_of(change)
        partition = crc32(key.encode()) % partitions
        records.append(
            {
                "topic": topic,
                "partition": partition,
                "offset": offsets[partition],
                "timestamp": change["ts"] * 1000 + number,
                "key": key,
                "value": line,
                "headers": [],
            }
        )
        offsets[partition] += 1
    return records


def captured(database: str = "shop") -> list[Record]:
    """What Maxwell 1.22.6 printed of a shop in MariaDB, for a database of another name."""
    path = FOLDER / "inventory" / "maxwell.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8") as file:
        lines = [line.strip().replace('"database":"shop"', f'"database":"{database}"') for line in file]
    return sent([line for line in lines if '"database":"maxwell"' not in line], topic=database)


class History:
    """A table (``id``, ``v``) of a database; each statement is a transaction of its rows.

    Without ``places``, records lack ``xoffset`` and ``commit``, so those of a statement have one position.
    """

    def __init__(
        self, database: str, table: str = "items", *, position: bool = True, places: bool = True
    ) -> None:
        self.database, self.table, self._position, self._places = database, table, position, places
        self.rows: dict[int, Row] = {}
        self.lines: list[str] = []
        self._at, self._xid = 4, 100

    def insert(self, id: int, v: str | None) -> None:
        self.rows[id] = {"id": id, "v": v}
        self._transaction([("insert", self.rows[id], None)])

    def update(self, id: int, v: str | None) -> None:
        old = {name: was for name, was in self.rows[id].items() if name == "v" and was != v}
        self.rows[id] = {"id": id, "v": v}
        self._transaction([("update", self.rows[id], old)])

    def delete(self, id: int) -> None:
        self._transaction([("delete", self.rows.pop(id), None)])

    def move(self, ids: Sequence[int], by: int) -> None:
        """``UPDATE items SET id = id + by``, so ordered that no key is taken: one event for all rows."""
        changes = []
        for id in sorted(ids, reverse=by > 0):
            row = self.rows[id + by] = {**self.rows.pop(id), "id": id + by}
            changes.append(("update", row, {"id": id}))
        self._transaction(changes)

    def bootstrap(self) -> None:
        """``maxwell-bootstrap`` of the table as it is now."""
        self._write("bootstrap-start", {}, None)
        for row in self.rows.values():
            self._write("bootstrap-insert", row, None)
        self._write("bootstrap-complete", {}, None)

    def _transaction(self, changes: Sequence[tuple[str, Row, Row | None]]) -> None:
        self._at, self._xid = self._at + 300, self._xid + 7
        for offset, (kind, row, old) in enumerate(changes):
            last = offset == len(changes) - 1
            place: Row = {"xid": self._xid}
            if self._places:
                place |= {"commit": True} if last else {"xoffset": offset}
            if self._position:
                place["position"] = f"binlog.000001:{self._at}"
            self._write(kind, row, old, **place)

    def _write(self, kind: str, row: Row, old: Row | None, **place: Any) -> None:
        change = {
            **{"database": self.database, "table": self.table, "type": kind},
            **{"ts": 1_790_000_000 + self._xid // 20, **place},
            **{"primary_key": [row.get("id")], "primary_key_columns": ["id"], "data": row},
            **({"old": old} if old else {}),
        }
        self.lines.append(dumps(change))
