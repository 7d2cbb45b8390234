"""What all batches did, in one small file of the checkpoint: ``history.json``.

Later batches need the totals, the positions, the targets and the versions of earlier ones. The file has them
for all batches that are in the audit table. Whoever adds batches to the table writes the file anew. The table
itself is for people. Its old rows may be deleted, and nothing depends on them.

The file is for the table at one version. If it is for another one, the rows that it lacks are added to it:
those of batches after the last one of their query (`AuditHistory.has`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

from lakemirror.api.report import COUNTERS, DRIFTS_KEPT, NONE, Counts
from lakemirror.driver.checkpoint.storage import FileCutOff, Storage
from lakemirror.driver.consistent.reach import BEGIN, END
from lakemirror.driver.profile.positions import Memory, Place, Stream, from_json, newest, to_json
from lakemirror.driver.results import Drift, Left, TableResult, Violated, add
from lakemirror.driver.times import possible_time

FILE: Final = "history.json"
_MOST_QUERIES: Final = 1_000
"""The number of queries that are remembered, the newest ones. Each replay is a query of its own."""
_STATES: Final = ("target", "version", "checked", "tombstones_retained", "error", "gap")


class HistoryDamaged(ValueError):
    """The file is not one that a driver has written to its end."""


@dataclass(frozen=True)
class AuditHistory:
    """What earlier batches did, in total and by source table.

    It also has the last batch of each query, and what the query remembers of the source's positions.
    """

    whole: Counts = NONE
    tables: Mapping[str, TableResult] = field(default_factory=dict)
    last_batches: Mapping[str, int] = field(default_factory=dict)
    memories: Mapping[str, Memory] = field(default_factory=dict)
    gap: bool = False
    """Whether records were kept aside whose table is unknown."""
    version: int = -1
    """A version of the audit table that contains no more than this history."""
    written: Mapping[str, datetime] = field(default_factory=dict)
    """When the mirror of each source table was last written."""
    logs: Mapping[str, frozenset[str] | None] = field(default_factory=dict)
    """The logs that each source table's changes came from. None if some came from none or from several."""
    committed: Mapping[str, datetime] = field(default_factory=dict)
    """When the last batch of each query was done."""
    places: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """All targets into which each source table was written."""
    former: Memory = field(default_factory=dict)
    """What queries remembered that are no longer listed."""
    forgotten: datetime | None = None
    """When the last batch of those queries was done."""

    def positions(self, query_id: str | None = None) -> dict[Stream, Place]:
        """Return what a query remembers of the source's positions, or without ``query_id``, what all do."""
        if query_id is not None:
            return newest([self.memories.get(query_id, {})])
        return newest([self.former, *self.memories.values()])

    def queries_since(self, moment: datetime) -> list[str]:
        """Return the queries that have done a batch since a moment."""
        return [query for query, at in self.committed.items() if at >= moment]

    def left_since(self, moment: datetime) -> dict[str, Left]:
        """Return how batches since a moment left the mirrors, by target.

        Several tables may have one mirror: the last batch of all of them counts.
        """
        since = {source: at for source, at in self.written.items() if at >= moment}
        found: dict[str, Left] = {}
        for source in sorted(since, key=since.__getitem__):
            table = self.tables[source]
            if table.target and table.left is not None:
                found[table.target] = table.left
        return found

    def targets_since(self, moment: datetime) -> dict[str, str]:
        """Return the targets of the source tables whose mirrors were written since a moment."""
        return {
            source: self.tables[source].target or ""
            for source, at in self.written.items()
            if at >= moment and self.tables[source].target
        }

    def has(self, query_id: str, batch_id: int, at: datetime) -> bool:
        """Return whether a batch, done ``at`` a moment, is one of those that this history is of.

        The batches of a query are added in their order.
        """
        if query_id in self.last_batches:
            return batch_id <= self.last_batches[query_id]
        return self.forgotten is not None and at <= self.forgotten

    def after(self, rows: Iterable[Mapping[str, Any]], version: int | None = None) -> AuditHistory:
        """Return the history after more rows of the audit, which all belong to batches that it lacks.

        ``version`` is that of the table which has the rows.
        """
        found = _Growing(self)
        for row in sorted(rows, key=lambda row: (moment_of(row["committed_at"]), row["batch_id"])):
            found.add(row)
        return bounded(replace(found.history(), version=self.version if version is None else version))


class _Growing:
    """A history to which rows are added in place."""

    def __init__(self, before: AuditHistory) -> None:
        self._before = before
        self._whole, self._gap = before.whole, before.gap
        self._tables, self._last = dict(before.tables), dict(before.last_batches)
        self._memories, self._written = dict(before.memories), dict(before.written)
        self._logs, self._committed = dict(before.logs), dict(before.committed)
        self._places = dict(before.places)

    def add(self, row: Mapping[str, Any]) -> None:
        """Add a row. It is not older than the rows before."""
        if row.get("source") is None:
            self._add_batch(row)
        else:
            self._add_table(row)

    def _add_batch(self, row: Mapping[str, Any]) -> None:
        query, number, at = row["query_id"], int(row["batch_id"]), moment_of(row["committed_at"])
        self._whole += _counts(row)
        self._gap |= row.get("gap") is not None
        self._committed[query] = max(at, self._committed.get(query, at))
        if number >= self._last.get(query, -1):
            self._last[query] = number
            if row.get("positions") is not None:
                self._memories[query] = from_json(row["positions"], until=at)

    def _add_table(self, row: Mapping[str, Any]) -> None:
        source, target, at = row["source"], row.get("target"), moment_of(row["committed_at"])
        now = add(self._tables.get(source), _table(row, at))
        self._tables[source] = replace(now, drift=newest_drift(now.drift))
        if target is not None:
            self._written[source] = max(at, self._written.get(source, at))
            self._places[source] = self._places.get(source, frozenset()) | {target}
        first, log = row.get("first_seq"), row.get("log")
        known = self._logs.get(source, frozenset())
        elsewhere = first is None or (first == BEGIN and row.get("last_seq") == END)
        self._logs[source] = None if known is None or elsewhere else known | ({log} if log else set())

    def history(self) -> AuditHistory:
        """Return the history with all rows that were added."""
        return replace(
            self._before,
            whole=self._whole,
            tables=self._tables,
            last_batches=self._last,
            memories=self._memories,
            gap=self._gap,
            written=self._written,
            logs=self._logs,
            committed=self._committed,
            places=self._places,
        )


def bounded(history: AuditHistory) -> AuditHistory:
    """Return the history without the queries that were done first, if there are too many."""
    ordered = sorted(history.last_batches, key=lambda query: history.committed[query])
    gone = ordered[: max(0, len(ordered) - _MOST_QUERIES)]
    if not gone:
        return history
    return replace(
        history,
        last_batches={q: n for q, n in history.last_batches.items() if q not in gone},
        committed={q: at for q, at in history.committed.items() if q not in gone},
        memories={q: memory for q, memory in history.memories.items() if q not in gone},
        former=newest([history.former, *(history.memories.get(query, {}) for query in gone)]),
        forgotten=history.committed[gone[-1]],
    )


def _counts(row: Mapping[str, Any]) -> Counts:
    return Counts(**{name: int(row.get(name) or 0) for name in COUNTERS})


def _table(row: Mapping[str, Any], at: datetime) -> TableResult:
    event_time, violated = row.get("last_event_time"), row.get("violations_by")
    return TableResult(
        row["source"],
        row.get("target"),
        row.get("version"),
        _counts(row),
        row.get("tombstones_retained") or 0,
        last_event_time=None if event_time is None else possible_time(moment_of(event_time), at),
        drift=drift_of(row.get("drift"), at),
        violated=tuple(Violated(**each) for each in json.loads(violated)) if violated else (),
        error=row.get("error"),
        gap=row.get("gap"),
        checked=row.get("checked"),
    )


def drift_of(text: str | None, committed_at: datetime) -> tuple[Drift, ...]:
    """Return the drift in a row of the audit. Rows of earlier versions do not say when it was seen."""
    found = []
    for entry in json.loads(text) if text else ():
        times = {name: datetime.fromisoformat(entry[name]) for name in ("since", "seen") if entry.get(name)}
        found.append(Drift(**{**entry, "since": None, "seen": committed_at, **times}))
    return tuple(found)


def newest_drift(drift: Iterable[Drift]) -> tuple[Drift, ...]:
    """Return the drift that is remembered: as much as a report shows."""
    return tuple(sorted(drift, key=lambda each: each.seen)[-DRIFTS_KEPT:])


def moment_of(value: datetime | str) -> datetime:
    """Return a time of an audit row: text with a zone, or a collected value in the zone of this process."""
    return datetime.fromisoformat(value) if isinstance(value, str) else value.astimezone(UTC)


# -- the file ---------------------------------------------------------------------------------------


def write(storage: Storage, history: AuditHistory) -> None:
    """Write the file anew. Only the owner of the checkpoint may."""
    storage.write_text(FILE, to_text(history))


def read(storage: Storage) -> AuditHistory | None:
    """Return what the file has, or None if there is none.

    Checkpoints of earlier versions have none. Raises HistoryDamaged.
    """
    try:
        return from_text(storage.read_text(FILE))
    except FileNotFoundError:
        return None
    except FileCutOff as error:
        raise HistoryDamaged(str(error)) from None


def to_text(history: AuditHistory) -> str:
    """Serialize a history."""
    document = {
        "version": history.version,
        "gap": history.gap,
        "whole": _nonzero(history.whole),
        "queries": {
            query: {
                "last": last,
                "committed": history.committed[query].isoformat(),
                **(
                    {"positions": json.loads(to_json(found))}
                    if (found := history.memories.get(query))
                    else {}
                ),
            }
            for query, last in sorted(history.last_batches.items())
        },
        "former": json.loads(to_json(history.former)),
        "forgotten": None if history.forgotten is None else history.forgotten.isoformat(),
        "tables": {source: _document(history, source) for source in sorted(history.tables)},
    }
    return json.dumps(document) + "\n"


def _document(history: AuditHistory, source: str) -> dict[str, Any]:
    table, logs, written = history.tables[source], history.logs.get(source), history.written.get(source)
    found = {
        **{name: getattr(table, name) for name in _STATES},
        "last_event_time": table.last_event_time and table.last_event_time.isoformat(),
        "counts": _nonzero(table.counts),
        "drift": [json.loads(json.dumps(asdict(each), default=str)) for each in table.drift],
        "violated": [asdict(each) for each in table.violated],
        "written": written and written.isoformat(),
        "logs": None if logs is None else sorted(logs),
        "places": sorted(history.places.get(source, ())),
    }
    return {name: value for name, value in found.items() if value or name in ("version", "checked", "logs")}


def _nonzero(counts: Counts) -> dict[str, int]:
    return {name: value for name, value in counts.values().items() if value}


def from_text(text: str) -> AuditHistory:
    """Read what `to_text` wrote. Raises HistoryDamaged."""
    try:
        return _parsed(json.loads(text))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise HistoryDamaged(str(error)) from None


def _parsed(document: Mapping[str, Any]) -> AuditHistory:
    queries, tables = document["queries"], document["tables"]
    forgotten = document["forgotten"]
    return AuditHistory(
        _known_counts(document["whole"]),
        {source: _table_of(source, each) for source, each in tables.items()},
        {query: int(each["last"]) for query, each in queries.items()},
        {q: from_json(json.dumps(each["positions"])) for q, each in queries.items() if "positions" in each},
        bool(document["gap"]),
        int(document["version"]),
        {source: at for source, each in tables.items() if (at := _moment(each.get("written"))) is not None},
        {s: None if each["logs"] is None else frozenset(each["logs"]) for s, each in tables.items()},
        {query: datetime.fromisoformat(each["committed"]) for query, each in queries.items()},
        {source: frozenset(each["places"]) for source, each in tables.items() if each.get("places")},
        from_json(json.dumps(document["former"])),
        _moment(forgotten),
    )


def _table_of(source: str, document: Mapping[str, Any]) -> TableResult:
    states = {name: document.get(name) for name in _STATES}
    drift = json.dumps(document.get("drift", []))
    return TableResult(
        source,
        **{**states, "tombstones_retained": document.get("tombstones_retained", 0)},
        counts=_known_counts(document.get("counts", {})),
        last_event_time=_moment(document.get("last_event_time")),
        drift=drift_of(drift, datetime.min.replace(tzinfo=UTC)),
        violated=tuple(Violated(**each) for each in document.get("violated", ())),
    )


def _known_counts(document: Mapping[str, int]) -> Counts:
    """Return counters. Those of a newer version are left out."""
    return Counts(**{name: int(value) for name, value in document.items() if name in COUNTERS})


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
