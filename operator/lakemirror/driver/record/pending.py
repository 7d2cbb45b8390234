"""Audit rows that are durable but not yet in the audit table: one small JSON file per batch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from lakemirror.driver.checkpoint.storage import FileCutOff, Storage
from lakemirror.driver.errors import LakemirrorError, cause_of

FOLDER = "audit-pending"

AuditRow = Mapping[str, Any]
"""A row of the audit as JSON. All rows of a batch have its query_id and batch_id."""


class PendingDamaged(LakemirrorError):
    """A pending file does not contain the audit rows of a batch."""


@dataclass(frozen=True)
class Pending:
    """The audit rows of a batch, stored in the file ``name``."""

    name: str
    rows: Sequence[AuditRow]

    @property
    def query_id(self) -> str:
        """The query that the batch belongs to."""
        return str(self.rows[0]["query_id"])

    @property
    def batch_id(self) -> int:
        """The batch's number in its query."""
        return int(self.rows[0]["batch_id"])

    @property
    def committed_at(self) -> datetime:
        """When the batch was done."""
        return datetime.fromisoformat(self.rows[0]["committed_at"])


def keep(storage: Storage, rows: Sequence[AuditRow]) -> None:
    """Store the rows of a batch durably, either completely or not at all.

    If a batch is repeated, its first file is kept. A damaged file is replaced.
    """
    name = f"{FOLDER}/{rows[0]['query_id']}-{rows[0]['batch_id']}.json"
    try:
        kept = _read(storage, name)
    except PendingDamaged:
        kept = None
    if kept is None:
        storage.write_text(name, json.dumps(rows, default=str) + "\n")


def count(storage: Storage) -> int:
    """Return the number of pending batches."""
    return len(_names(storage))


def read(storage: Storage) -> tuple[list[Pending], list[str]]:
    """Return the pending batches, in order for each query, and the problems of files that cannot be used."""
    found: list[Pending] = []
    damaged: list[str] = []
    for name in _names(storage):
        try:
            pending = _read(storage, name)
        except PendingDamaged as error:
            damaged.append(str(error))
            continue
        if pending is not None:
            found.append(pending)
    return sorted(found, key=lambda each: (each.query_id, each.batch_id)), damaged


def _names(storage: Storage) -> list[str]:
    return [f"{FOLDER}/{entry.name}" for entry in storage.list(FOLDER) if entry.name.endswith(".json")]


def _read(storage: Storage, name: str) -> Pending | None:
    """Return a batch's rows, or None if the file does not exist (any longer)."""
    try:
        rows = json.loads(storage.read_text(name))
        if not (isinstance(rows, list) and rows and len({_batch(row) for row in rows}) == 1):
            raise ValueError("the rows of one batch are expected")
        return Pending(name, rows)
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError, FileCutOff) as error:
        raise PendingDamaged(
            f"{storage.uri}/{name} does not hold the audit of a batch ({cause_of(error)}): restore it from a "
            "copy, or delete it, so that the audit does without this batch"
        ) from None


def _batch(row: AuditRow) -> tuple[str, int]:
    """Return the batch of a row. Raises TypeError if its values do not have the table's types."""
    query_id, batch_id = row["query_id"], row["batch_id"]
    if not (isinstance(query_id, str) and isinstance(batch_id, int)):
        raise TypeError("query_id has to be a text and batch_id a number")
    return query_id, batch_id
