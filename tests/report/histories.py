"""Checkpoints made by hand, with the audit's and the quarantine's real schemas."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

from lakemirror.api.report import Counts
from lakemirror.driver.record import audit, quarantine

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOSTILE = "<script>window.hit=1</script><img src=x onerror=alert(1)>\"'&`{{7*7}}"
_KINDS = {
    "TIMESTAMP": pa.timestamp("us", tz="UTC"),
    "STRING": pa.string(),
    "BIGINT": pa.int64(),
    "DOUBLE": pa.float64(),
    "BINARY": pa.binary(),
    "INT": pa.int32(),
}
Row = dict[str, Any]


def schema(columns: str) -> pa.Schema:
    """A list of columns as Spark's DDL has it, as Arrow has it."""
    split = re.split(r",\s*(?![^<]*>)", columns)
    pairs = [each.strip().split(None, 1) for each in split]
    return pa.schema([(name.strip("`"), _KINDS.get(kind, pa.string())) for name, kind in pairs])


def whole(batch: int, **values: Any) -> Row:
    """The row of a batch as a whole."""
    values.setdefault("seconds", 2.0 + batch)
    return _row(batch, None, values)


def table(batch: int, source: str, **values: Any) -> Row:
    """The row of a table in a batch."""
    return _row(batch, source, values)


def _row(batch: int, source: str | None, values: Row) -> Row:
    at = NOON + timedelta(minutes=batch)
    counts = {name: values.pop(name) for name in Counts.model_fields if name in values}
    common = {"committed_at": at, "query_id": "q", "batch_id": batch, "source": source, "extent": "{}"}
    return {**common, **Counts(**counts).values(), **values}


def drift(column: str, change: str, batch: int, **values: Any) -> Row:
    """A change of a column, as the audit tells it."""
    seen = (NOON + timedelta(minutes=batch)).isoformat()
    told = {"column": column, "change": change, "from_type": None, "to_type": "int", "action": "added"}
    return {**told, "since": None, "seen": seen, "feature": None, **values}


def write_audit(checkpoint: Path, rows: list[Row]) -> None:
    """As the driver's table has them."""
    write_deltalake(
        str(checkpoint / "audit"), pa.Table.from_pylist(rows, schema(audit.COLUMNS)), mode="append"
    )


def write_pending(checkpoint: Path, rows: list[Row]) -> None:
    """As the driver keeps them until they are in the table."""
    folder = checkpoint / "audit-pending"
    folder.mkdir(parents=True, exist_ok=True)
    told = [{name: value for name, value in row.items() if value is not None} for row in rows]
    text = json.dumps(told, default=str)
    (folder / f"q-{rows[0]['batch_id']}.json").write_text(text + "\n")


def write_quarantine(checkpoint: Path, rows: list[Row]) -> None:
    """As the driver's table has them."""
    written = pa.Table.from_pylist(rows, schema(quarantine.COLUMNS))
    write_deltalake(str(checkpoint / "quarantine"), written)


def shop(checkpoint: Path) -> None:
    """Four batches of three tables, of which the last batch is pending; one table's name is hostile."""
    event = {"last_event_time": NOON - timedelta(seconds=90)}
    grown = json.dumps([drift("note", "added", 0), drift(HOSTILE, "dropped", 0, action="kept")])
    rows = [
        whole(0, records=9, applied=8, quarantined=1),
        table(
            0,
            "public.orders",
            records=9,
            applied=8,
            inserted=6,
            updated=2,
            quarantined=1,
            drift=grown,
            **event,
        ),
        whole(1, records=4, applied=4),
        table(1, "public.orders", records=3, applied=3, deleted=3, tombstones_retained=3, **event),
        table(1, HOSTILE, records=1, applied=1, inserted=1, tombstones_retained=0, **event),
        whole(2, records=2, refused=2),
        table(2, "public.odd", records=2, refused=2, error="public.odd: give it a key"),
    ]
    write_audit(checkpoint, rows)
    last = [
        whole(3, records=5, applied=5),
        table(3, "public.orders", records=5, applied=5, updated=5, tombstones_retained=2, **event),
    ]
    write_pending(checkpoint, last)
    open_record = {"state": "open", "quarantined_at": NOON, "query_id": "q", "batch_id": 0}
    write_quarantine(
        checkpoint,
        [
            {
                **open_record,
                "id": "1",
                "source": "public.orders",
                "reason": "total: not a number",
                "scope": "record",
            },
            {**open_record, "id": "2", "source": None, "reason": HOSTILE, "scope": None},
            {**open_record, "id": "3", "source": "public.odd", "reason": "no key", "scope": "table"},
            {**open_record, "id": "4", "source": "public.odd", "reason": "no key", "scope": "table"},
            {**open_record, "id": "5", "source": "public.odd", "reason": "old", "state": "replayed"},
        ],
    )
