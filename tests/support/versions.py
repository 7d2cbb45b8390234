"""A model of a mirror that keeps versions (mode scd2): Debezium records replayed on dicts, in order.

It knows no batch and no lateness: after the last record of a delivery in the order of the source it holds
what any other delivery of the same records must end in.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import Row as SparkRow
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from lakemirror.driver.tables.delta import quoted
from tests.support.records import UNAVAILABLE, Record, Row, payload
from tests.support.reference import Key, key_of, position


@dataclass(frozen=True)
class Version:
    """A row as it was from `start` until before `end`."""

    row: Row
    start: datetime
    end: datetime | None = None
    is_current: bool = True
    is_deleted: bool = False
    begins: bool = field(default=True, compare=False)
    """Whether the row was not there just before."""


def of_tracked(versions: Iterable[Version], tracked: Iterable[str]) -> list[Version]:
    """The versions of a key when only changes of some columns begin one."""
    found: list[Version] = []
    names = list(tracked)
    for each in versions:
        if found and not each.begins and all(each.row[n] == found[-1].row[n] for n in names):
            each = replace(each, start=found.pop().start)
        found.append(each)
    return found


class History:
    """`keys`: the versions of each key, oldest first, of the records of one table."""

    def __init__(self) -> None:
        self.keys: dict[Key, list[Version]] = {}
        self._moved: dict[Key, Row] = {}
        self._latest: dict[Key, datetime] = {}
        self._truncated: datetime | None = None
        self._last: dict[Key, tuple[int, ...] | None] = {}

    def replay(self, records: Iterable[Record]) -> History:
        """Apply records in the order of the source."""
        for record in records:
            change = payload(record["value"]) if record["value"] else {}
            if change.get("op") in ("c", "u", "d", "r", "t") and "source" in change:
                self._apply(record, change)
        return self

    def _apply(self, record: Record, change: Row) -> None:
        time = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=change["source"]["ts_us"])
        if change["op"] == "t":
            for key in self.keys:
                self._end(key, time, deleted=True)
            self._truncated = max(filter(None, (self._truncated, time)))
            return
        key = key_of(record["key"])
        headers = {
            name: key_of(text) for name, text in record["headers"] if name.endswith(("newkey", "oldkey"))
        }
        before = self._open(key)
        if change["op"] == "d":
            if before is not None and "__debezium.newkey" in headers:
                self._moved[headers["__debezium.newkey"]] = before.row
            self._end(key, time, deleted=True)
            return
        older = before.row if before is not None and change["op"] in ("u", "r") else None
        if "__debezium.oldkey" in headers:
            older = self._moved.pop(key, None)
        row = {
            name: value if value != UNAVAILABLE else (older or {}).get(name)
            for name, value in change["after"].items()
        }
        if self._last.get(key) == position(change["source"]):
            self.keys[key].pop()  # the same place in the order: the later one counts
            if self.keys[key]:
                self.keys[key][-1] = replace(self.keys[key][-1], end=None, is_current=True)
        self._last[key] = position(change["source"])
        begins = self._open(key) is None
        self._end(key, time, deleted=False)
        versions = [replace(each, is_deleted=False) for each in self.keys.get(key, [])]
        self.keys[key] = [*versions, Version(row, self._latest[key], begins=begins)]

    def _open(self, key: Key) -> Version | None:
        last = (self.keys.get(key) or [None])[-1]
        return last if last is not None and last.is_current else None

    def _end(self, key: Key, time: datetime, *, deleted: bool) -> None:
        """The open version of a key, if there is one, ends; times never go back."""
        now = max(filter(None, (self._latest.get(key), self._truncated, time)))
        self._latest[key] = now
        if (last := self._open(key)) is not None:
            self.keys[key][-1] = replace(last, end=now, is_current=False, is_deleted=deleted)


def mirrored(
    spark: SparkSession, path: str, key: Iterable[str], version: int | None = None, where: str = "true"
) -> dict[Key, list[Version]]:
    """What a mirror holds, in the same form."""
    reader = spark.read.format("delta")
    frame = (reader if version is None else reader.option("versionAsOf", version)).load(path)
    columns = [name for name in frame.columns if not name.startswith("__")]
    rows = (
        frame.where(where)
        .orderBy("__seq")
        .select(
            F.struct(*map(quoted, columns)).alias("row"),
            F.unix_micros("__valid_from").alias("start"),
            F.unix_micros("__valid_to").alias("end"),
            "__is_current",
            "__is_deleted",
        )
    )
    found: dict[Key, list[Version]] = {}
    for each in rows.collect():
        row = each["row"].asDict()
        found.setdefault(tuple(row[name] for name in key), []).append(_version(row, each))
    return found


def _version(row: dict[str, Any], each: SparkRow) -> Version:
    start = _moment(each["start"])
    assert start is not None
    return Version(row, start, _moment(each["end"]), each["__is_current"], each["__is_deleted"])


def _moment(micros: int | None) -> datetime | None:
    return None if micros is None else datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)
