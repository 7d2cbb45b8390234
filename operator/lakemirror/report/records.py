"""Reads the Delta tables of a checkpoint with delta-rs, which needs no Java.

These are the audit (`lakemirror.driver.record.audit`), including what is pending, and the open records of the
quarantine.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError
from deltalake.fs import DeltaStorageHandler
from pyarrow import fs

from lakemirror.api.report import COUNTERS, Counts

SCHEMES = ("", "file", "s3", "s3a", "gs", "abfs", "abfss", "az", "adl", "memory")
_COLUMNS = (
    *("committed_at", "query_id", "batch_id", "source", *COUNTERS),
    *("tombstones_retained", "last_event_time", "drift", "error", "seconds", "since"),
)
_PENDING = "audit-pending"
_SUMMED = (
    "Batches until {:%Y-%m-%d %H:%M:%S} UTC are summed up (spec.retention.audit). Totals include them, and "
    "plots over time begin after them."
)


class ReportError(Exception):
    """The records cannot be read; the message says why and what to do."""


@dataclass(frozen=True)
class Drifted:
    """A column that changed, when that was seen, and what was done about it."""

    source: str
    column: str
    change: str
    from_type: str | None
    to_type: str | None
    action: str
    seen: datetime


@dataclass(frozen=True)
class TableBatch:
    """What one batch did to one table, or all batches ``since`` a moment, which are summed up."""

    at: datetime
    source: str
    counts: Counts
    tombstones: int | None
    newest: datetime | None
    error: str | None
    since: datetime | None = None


@dataclass(frozen=True)
class WholeBatch:
    """A batch: when it was committed, how many seconds it took, and the time of its newest change.

    With ``since``, it is several batches that are summed up, the first of which was committed then.
    """

    at: datetime
    query_id: str
    batch_id: int
    counts: Counts
    seconds: float | None
    newest: datetime | None
    since: datetime | None = None

    @property
    def lag(self) -> float | None:
        """The age of its newest change when it was committed, in seconds."""
        return None if self.newest is None else max(0.0, (self.at - self.newest).total_seconds())


@dataclass(frozen=True)
class Open:
    """The number of a table's open records in quarantine, by reason and scope (record, table or order)."""

    source: str
    reason: str
    scope: str
    records: int


@dataclass(frozen=True)
class Records:
    """Everything that a report covers, in order of time. ``notes`` say what could not be read."""

    batches: list[WholeBatch]
    tables: list[TableBatch]
    drift: list[Drifted]
    quarantine: list[Open] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def single(self) -> list[WholeBatch]:
        """The batches that are not summed up."""
        return [each for each in self.batches if each.since is None]


def read(checkpoint: str) -> Records:
    """Read what is recorded at a checkpoint.

    The checkpoint is a local path, or a URI of an object store that delta-rs supports, with credentials from
    the environment. Raises ReportError if there is no audit, or if it cannot be read.
    """
    root = _root(checkpoint)
    try:
        waiting, notes = _pending(root)
        rows = _with_pending(_audit(root), waiting)
    except (DeltaError, OSError, pa.ArrowException) as error:
        raise ReportError(f"the audit of {checkpoint} cannot be read: {_words(error)}") from error
    if not rows:
        raise ReportError(f"{checkpoint} has no audit: no batch with a record has been applied so far")
    try:
        aside = _quarantine(root)
    except (DeltaError, OSError, pa.ArrowException) as error:
        aside = []
        notes.append(f"The quarantine cannot be read: {_words(error)}")
    return records_of(rows, aside, notes)


def records_of(rows: Iterable[Mapping[str, Any]], aside: list[Open], notes: list[str]) -> Records:
    """Build the records from rows of the audit. Columns that earlier versions did not have may be missing."""
    ordered = sorted(rows, key=lambda row: (_utc(row["committed_at"]), row["batch_id"]))
    newest: dict[tuple[str, int], datetime] = {}
    tables: list[TableBatch] = []
    drift: list[Drifted] = []
    for row in ordered:
        if row["source"] is None:
            continue
        event = _moment(row.get("last_event_time"))
        batch = row["query_id"], row["batch_id"]
        if event is not None:
            newest[batch] = max(event, newest.get(batch, event))
        at, source = _utc(row["committed_at"]), row["source"]
        told = row.get("tombstones_retained"), event, row.get("error"), _moment(row.get("since"))
        tables.append(TableBatch(at, source, _counts(row), *told))
        drift += _drift(source, row.get("drift"), at)
    batches = [
        WholeBatch(
            _utc(row["committed_at"]),
            row["query_id"],
            row["batch_id"],
            _counts(row),
            row.get("seconds"),
            newest.get((row["query_id"], row["batch_id"])),
            _moment(row.get("since")),
        )
        for row in ordered
        if row["source"] is None
    ]
    summed = [each.at for each in batches if each.since is not None]
    if summed:
        notes = [*notes, _SUMMED.format(max(summed))]
    return Records(batches, tables, sorted(drift, key=lambda each: each.seen), aside, notes)


def _audit(root: str) -> list[dict[str, Any]]:
    if not DeltaTable.is_deltatable(f"{root}/audit"):
        return []
    table = DeltaTable(f"{root}/audit")
    there = {each.name for each in table.schema().fields}
    return _asked(table, f"SELECT {', '.join(name for name in _COLUMNS if name in there)} FROM t")


def _quarantine(root: str) -> list[Open]:
    if not DeltaTable.is_deltatable(f"{root}/quarantine"):
        return []
    table = DeltaTable(f"{root}/quarantine")
    scope = "scope" if "scope" in {each.name for each in table.schema().fields} else "'record'"
    rows = _asked(
        table,
        f"SELECT source, reason, coalesce({scope}, 'record') AS scope, count(*) AS records FROM t "
        "WHERE state = 'open' GROUP BY 1, 2, 3 ORDER BY records DESC, reason",
    )
    return [
        Open(row["source"] or "no table", row["reason"] or "", row["scope"], row["records"]) for row in rows
    ]


def _asked(table: DeltaTable, query: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pa.table(
        QueryBuilder().register("t", table).execute(query).read_all()
    ).to_pylist()
    return found


def _pending(root: str) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the rows of batches that are pending, and notes about files that cannot be read."""
    rows: list[dict[str, Any]] = []
    notes: list[str] = []
    files = fs.PyFileSystem(DeltaStorageHandler(root)) if urlsplit(root).scheme else fs.LocalFileSystem()
    folder = _PENDING if urlsplit(root).scheme else f"{root}/{_PENDING}"
    for info in files.get_file_info(fs.FileSelector(folder, allow_not_found=True)):
        if not info.path.endswith(".json"):
            continue
        try:
            with files.open_input_file(info.path) as file:
                found = json.loads(file.read())
            rows += [
                {
                    "source": None,
                    **row,
                    "batch_id": int(row["batch_id"]),
                    "committed_at": _utc(row["committed_at"]),
                }
                for row in found
            ]
        except FileNotFoundError:  # its rows are in the table by now, which is read afterwards
            continue
        except (ValueError, TypeError, KeyError) as error:
            notes.append(f"{_PENDING}/{info.base_name} does not hold the audit of a batch: {error}")
    return rows, notes


def _with_pending(rows: list[dict[str, Any]], waiting: list[dict[str, Any]]) -> list[dict[str, Any]]:
    stored = {(row["query_id"], row["batch_id"]) for row in rows}
    return rows + [row for row in waiting if (row["query_id"], row["batch_id"]) not in stored]


def _drift(source: str, text: str | None, at: datetime) -> Iterator[Drifted]:
    for each in json.loads(text) if text else []:
        kinds = each.get("from_type"), each.get("to_type")
        seen = _moment(each.get("seen")) or at
        yield Drifted(source, each["column"], each["change"], *kinds, each["action"], seen)


def _counts(row: Mapping[str, Any]) -> Counts:
    return Counts(**{name: int(row.get(name) or 0) for name in COUNTERS})


def _moment(value: datetime | str | None) -> datetime | None:
    return None if value is None else _utc(value)


def _utc(value: datetime | str) -> datetime:
    moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)


def _root(checkpoint: str) -> str:
    parts = urlsplit(checkpoint)
    if parts.scheme not in SCHEMES:
        raise ReportError(
            f"{checkpoint} cannot be read without Spark: copy its folders audit, {_PENDING} and quarantine "
            "to a local folder, and name that with --set checkpoint=FOLDER"
        )
    if parts.scheme in ("", "file"):
        path = unquote(parts.path) if parts.scheme else checkpoint
        return str(Path(path).absolute())
    return checkpoint.rstrip("/")


def _words(error: Exception) -> str:
    """Return the first line of an error's message."""
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
