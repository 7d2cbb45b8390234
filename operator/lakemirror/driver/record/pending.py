"""Audit rows that are durable and not in the audit's table yet: one small JSON file a batch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lakemirror.driver.checkpoint.storage import FileCutOff, Storage
from lakemirror.driver.errors import LakemirrorError, cause_of

FOLDER = "audit-pending"

AuditRow = Mapping[str, Any]
"""A row of the audit as JSON has it; all rows of a batch have its query_id and batch_id."""


class PendingDamaged(LakemirrorError):
    """A pending file does not hold the audit rows of a batch."""


@dataclass(frozen=True)
class Pending:
    """The audit rows of a batch, which stand in the file ``name``."""

    name: str
    rows: Sequence[AuditRow]

    @property
    def query_id(self) -> str:
        """The query whose batch it is."""
        return str(self.rows[0]["query_id"])

    @property
    def batch_id(self) -> int:
        """The batch's number in its query."""
        return int(self.rows[0]["batch_id"])


def keep(storage: Storage, rows: Sequence[AuditRow]) -> None:
    """Make the rows of a batch durable, as a whole or not at all. A batch that is done again is left as it
    was kept first; a damaged file is replaced.
    """
    name = f"{FOLDER}/{rows[0]['query_id']}-{rows[0]['batch_id']}.json"
    try:
        kept = _read(storage, name)
    except PendingDamaged:
        kept = None
    if kept is None:
        storage.write_text(name, json.dumps(rows, default=str) + "\n")


def count(storage: Storage) -> int:
    """How many batches are pending."""
    return len(_names(storage))


def read(storage: Storage) -> tuple[list[Pending], list[str]]:
    """What is pending, each query's batches in order; and what is wrong with files that cannot be used."""
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
    """A batch's rows; None when the file is not there (any more)."""
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
    """The batch of a row, with the types that the table has."""
    query_id, batch_id = row["query_id"], row["batch_id"]
    if not (isinstance(query_id, str) and isinstance(batch_id, int)):
        raise TypeError("query_id has to be a text and batch_id a number")
    return query_id, batch_id
