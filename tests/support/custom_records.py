"""Histories as records of a custom envelope: the same changes that Debezium would send, in another form.

The source sends whole rows. A change of a key is one update, whose before image has the former key.
"""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tests.support.histories import Change, History
from tests.support.records import Record, Row

BEGAN = 1_790_000_000_000
"""The time of the first change, in milliseconds."""
OPS: Mapping[str, str] = {
    **{"create": "c", "update": "u", "move": "u", "delete": "d", "read": "r", "truncate": "t"},
}
WORDS: Mapping[str, str] = {"c": "I", "u": "U", "d": "D", "r": "", "t": "T"}
"""What flat records call their ops."""


@dataclass(frozen=True)
class Form:
    """How records are written.

    ``nested`` records have their parts at paths, flat ones are the row itself. ``changed`` says that a before
    image has only the columns that changed, ``schemas`` that records have their schema with them. In each
    ``pause`` milliseconds there is one change.
    """

    layout: Literal["nested", "flat"] = "nested"
    changed: bool = False
    schemas: bool = False
    partitions: int = 1
    pause: int = 1000

    @property
    def fields(self) -> Mapping[str, str]:
        """``envelope.fields`` for these records, without the time."""
        if self.layout == "flat":
            return {"op": "Op"}
        return {"op": "meta.op", "table": "meta.table", "key": "key", "before": "old", "after": "new"}

    @property
    def timestamp(self) -> str:
        """Where the time of a change is."""
        return "at" if self.layout == "flat" else "meta.at"

    @property
    def op_map(self) -> Mapping[str, str] | None:
        """``envelope.opMap`` for these records."""
        return {word: op for op, word in WORDS.items()} if self.layout == "flat" else None


def records(history: History, form: Form) -> list[Record]:
    """The changes of a history in the order of the source, one record each."""
    changes = [each for transaction in history.transactions for each in transaction.changes]
    sent = [_record(history, form, number, each) for number, each in enumerate(changes)]
    return list(numbered(sent))


def numbered(sent: Iterable[Record]) -> Iterator[Record]:
    """Records with their offsets, in the order of each partition."""
    offsets: Counter[tuple[str, int]] = Counter()
    for record in sent:
        place = record["topic"], record["partition"]
        yield {**record, "offset": offsets[place]}
        offsets[place] += 1


def _record(history: History, form: Form, number: int, change: Change) -> Record:
    row = change.row if change.row is not None else change.before
    at = BEGAN + number * form.pause
    name = history.shape.name
    value = _flat(form, change, at) if form.layout == "flat" else _nested(form, change, name, at)
    key = {each: row[each] for each in history.shape.table.key} if row is not None else None
    partition = zlib.crc32(json.dumps(row and row["h"]).encode()) % form.partitions
    return {
        "topic": f"demo.public.{name}",
        "partition": partition,
        "offset": number,
        "timestamp": at + 5,
        "key": None if key is None else json.dumps(key),
        "value": json.dumps(_with_schema(history, form, value), ensure_ascii=False),
        "headers": [],
    }


def _nested(form: Form, change: Change, name: str, at: int) -> Row:
    row = change.row if change.row is not None else change.before
    before = change.before
    if form.changed and before is not None and change.row is not None:
        before = {name: each for name, each in before.items() if change.row[name] != each}
    found: Row = {"meta": {"op": OPS[change.verb], "table": f"public.{name}", "at": at}}
    found["key"] = None if row is None else {"h": row["h"], "id": row["id"]}
    return {**found, "old": before, "new": None if change.verb == "delete" else change.row}


def _flat(form: Form, change: Change, at: int) -> Row:
    row = change.row if change.row is not None else change.before
    return {"Op": WORDS[OPS[change.verb]], "at": at, **(row or {})}


def _with_schema(history: History, form: Form, value: Row) -> Any:
    if not form.schemas:
        return value
    table = history.shape.table
    row = [each.field() for each in table.columns]
    key = [each.field() for each in table.columns if each.name in table.key]
    names = {"op": "string", "table": "string", "at": "int64"}
    meta = [{"field": name, "type": kind, "optional": False} for name, kind in names.items()]
    parts = {"meta": (meta, False), "key": (key, True), "old": (row, True), "new": (row, True)}
    fields = [
        {"field": name, "type": "struct", "optional": optional, "fields": inner}
        for name, (inner, optional) in parts.items()
    ]
    return {"schema": {"type": "struct", "optional": False, "fields": fields}, "payload": value}
