"""Rows of the quarantine (`record.quarantine`) for records that the engine cannot apply. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, NamedTuple
from urllib.parse import unquote

import pyarrow as pa

from lakemirror.driver.columns.changes import MOMENT
from lakemirror.driver.engine.blocks import RawRecord
from lakemirror.driver.record.aside import BadRecord
from lakemirror.driver.rules.keys import to_json
from lakemirror.driver.writer.features import may_be_written
from lakemirror.driver.writer.schema import arrow_schema, parse
from lakemirror.driver.writer.snapshot import Snapshot

ROWS: Final = pa.schema(
    [
        *((name, pa.string()) for name in ("id", "source", "reason", "state")),
        ("quarantined_at", MOMENT),
        ("query_id", pa.string()),
        ("batch_id", pa.int64()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", MOMENT),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))),
        ("file", pa.string()),
        ("row", pa.int64()),
        ("problem", pa.string()),
        ("scope", pa.string()),
    ]
)
"""The schema of the table (`record.quarantine.COLUMNS`)."""
PLACE: Final = ("offset", "row", "partition", "topic", "file")
"""Where a record is from. What differs most comes first, so that a search reads little of the rest."""
OPEN: Final = "open"
_RECORD: Final = "record"
"""The scope of records that are bad themselves; null means the same."""


class AsideRecord(NamedTuple):
    """A record that cannot be applied, and what it has beside its place; None if that is not at hand."""

    bad: BadRecord
    raw: RawRecord | None


def reason_against(snapshot: Snapshot) -> str | None:
    """Return why a table is not one whose rows are read and added here, or None."""
    found = {each.name: each.type for each in arrow_schema(parse(snapshot.metadata.schema))}
    if found != {each.name: each.type for each in ROWS}:
        return "it has other columns"
    if snapshot.metadata.partitions != ("state",):
        return "its open records have no files of their own"
    return may_be_written(snapshot)


def rows_of(records: Iterable[tuple[BadRecord, RawRecord]], query: str, batch: int, now: int) -> pa.Table:
    """Return the rows of records that a batch of a query keeps aside ``now`` (microseconds since 1970)."""
    rows = [
        {
            **bad._asdict(),
            **raw._asdict(),
            **{"id": identity(bad, raw), "state": OPEN, "scope": _RECORD, "problem": None},
            **{"quarantined_at": now, "query_id": query, "batch_id": batch},
        }
        for bad, raw in records
    ]
    return pa.Table.from_arrays(
        [_column(each, [row[each.name] for row in rows]) for each in ROWS], schema=ROWS
    )


def _column(field: pa.Field, values: Sequence[object]) -> pa.Array:
    if field.type == MOMENT:
        return pa.array(values, pa.int64()).view(MOMENT)
    return pa.array(values, field.type)


def identity(bad: BadRecord, raw: RawRecord) -> str:
    """Return the ``id`` of a record (`record.quarantine._identity`), which must stay what it is."""
    place = {"topic": bad.topic, "partition": bad.partition, "offset": bad.offset}
    bodies = {name: None if body is None else sha256(body).hexdigest() for name, body in _bodies(raw)}
    return sha256(to_json({**place, "file": raw.file, "row": raw.row, **bodies}).encode()).hexdigest()


def _bodies(raw: RawRecord) -> Iterable[tuple[str, bytes | None]]:
    return ("key", raw.key), ("value", raw.value)


@dataclass(frozen=True)
class OpenRows:
    """What is remembered of the open records in a data file.

    ``counts`` is their number by source ("" if it is unknown) and scope, and ``names`` are those of the files
    that they are lines of, without the folders.
    """

    counts: Mapping[tuple[str, str], int]
    names: frozenset[str]

    COLUMNS = ("source", "scope", "file")
    """The columns that it is made of."""

    @classmethod
    def of(cls, blocks: Iterable[pa.RecordBatch]) -> OpenRows:
        """Return what is remembered of rows."""
        counts: Counter[tuple[str, str]] = Counter()
        files: set[str] = set()
        for block in blocks:
            groups = pa.Table.from_batches([block]).group_by(["source", "scope"])
            for row in groups.aggregate([([], "count_all")]).to_pylist():
                counts[row["source"] or "", row["scope"] or _RECORD] += row["count_all"]
            files.update(block.column("file").drop_null().unique().to_pylist())
        return cls(counts, frozenset(unquote(each).rpartition("/")[2] for each in files))


def added_up(parts: Iterable[OpenRows]) -> dict[str, dict[str, int]]:
    """Return the number of open records by source and scope (`record.quarantine.OpenRecords`)."""
    found: dict[str, dict[str, int]] = {}
    for part in parts:
        for (source, scope), number in part.counts.items():
            scopes = found.setdefault(source, {})
            scopes[scope] = scopes.get(scope, 0) + number
    return found
