"""Records of Debezium read for the rules, by a page of its own: what the rules make of them is judged by
`tests.support.reference`, and what reads records in the product is not used.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from lakemirror.driver.rules.batch import (
    Applied,
    AppliedVersions,
    Mirror,
    VersionedMirror,
    apply,
    apply_versions,
)
from lakemirror.driver.rules.orders import Truncated
from lakemirror.driver.rules.positions import Origin, Source, is_unanchored, sequence
from lakemirror.driver.rules.table import Table
from lakemirror.driver.rules.values import Event, Key, Outcome
from lakemirror.driver.rules.versions import Tracking
from tests.support.records import UNAVAILABLE, Record, Row, payload

FIELDS = frozenset(Source.__struct_fields__)


@dataclass(frozen=True)
class Read:
    """What a batch of records has for one table."""

    events: list[Event]
    truncates: list[Truncated]
    others: int = 0


def read(records: Iterable[Record]) -> Read:
    """Read the records of one table: events, truncates, and the number of those that change no row."""
    events, truncates, others = [], [], 0
    for record in records:
        change = payload(record["value"]) if record["value"] else {}
        if change.get("op") == "t":
            truncates.append(_truncate(record, change))
        elif change.get("op") in ("c", "u", "d", "r"):
            events.append(_event(record, change))
        else:
            others += 1
    return Read(events, truncates, others)


def _event(record: Record, change: Row) -> Event:
    source, origin, snapshot = _source(change), _origin(record), change["op"] == "r"
    headers = {name: _key(text) for name, text in record["headers"] if name.endswith("key")}
    row = change["after"] if change["op"] != "d" else {}
    return Event(
        _key(record["key"]),
        change["op"],
        sequence(source, origin, snapshot=snapshot),
        change["source"]["ts_us"],
        origin,
        {name: value for name, value in row.items() if value != UNAVAILABLE},
        frozenset(name for name, value in row.items() if value == UNAVAILABLE),
        old_key=headers.get("__debezium.oldkey"),
        new_key=headers.get("__debezium.newkey"),
        unanchored=is_unanchored(source, snapshot=snapshot, by="auto"),
        digest=json.dumps([change["op"], change["before"], change["after"], change["source"].get("row")]),
    )


def _truncate(record: Record, change: Row) -> Truncated:
    origin = _origin(record)
    seq = sequence(_source(change), origin, snapshot=False)
    return Truncated(seq, origin=origin, at=change["source"]["ts_us"])


def _source(change: Row) -> Source:
    return Source(**{name: value for name, value in change["source"].items() if name in FIELDS})


def _origin(record: Record) -> Origin:
    return Origin(record["topic"], record["partition"], record["offset"])


def _key(text: str) -> Key:
    return tuple(payload(text).values())


@dataclass
class Replayed:
    """A mirror that the rules keep, batch by batch."""

    columns: Sequence[str]
    tracked: Sequence[str] = ()
    soft: bool = False
    mirror: Mirror = field(default_factory=Mirror)
    counts: Counter[Outcome] = field(default_factory=Counter)

    def deliver(self, records: Iterable[Record]) -> Applied:
        """Apply one batch."""
        batch = read(records)
        table = Table(self.columns, self.tracked, self.soft, truncates=batch.truncates)
        applied = apply(self.mirror, batch.events, table)
        self.mirror = applied.mirror
        self.counts += applied.counts(batch.events) + Counter({Outcome.NO_ROW_CHANGE: batch.others})
        return applied

    @property
    def rows(self) -> dict[Key, Row]:
        """The rows that are there."""
        return {key: dict(row.values) for key, row in self.mirror.rows.items() if row.is_live}


@dataclass
class ReplayedVersions:
    """A mirror of versions that the rules keep, batch by batch."""

    columns: Sequence[str]
    tracked: Sequence[str] = ()
    compared: Sequence[str] | None = None
    mirror: VersionedMirror = field(default_factory=VersionedMirror)
    counts: Counter[Outcome] = field(default_factory=Counter)

    def deliver(self, records: Iterable[Record]) -> AppliedVersions:
        """Apply one batch."""
        batch = read(records)
        table = Table(self.columns, self.tracked, truncates=batch.truncates)
        applied = apply_versions(self.mirror, batch.events, Tracking(table, self.compared))
        self.mirror = applied.mirror
        self.counts += applied.counts(batch.events) + Counter({Outcome.NO_ROW_CHANGE: batch.others})
        return applied
