"""Turns wrong rows into change events in Debezium's form, with the schema of the mirror's columns."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pyspark.sql.types import StructField

from lakemirror.driver.codes import Op
from lakemirror.driver.read import rows as wire
from lakemirror.driver.sequence import epoch_of
from lakemirror.driver.tables.names import TableName
from lakemirror.driver.verify.verdict import Difference


@dataclass(frozen=True)
class Event:
    """A change event as a record: key and value as JSON with schemas.

    ``epoch`` is the epoch of its position.
    """

    key: str
    value: str
    epoch: int = 0


def events(
    name: TableName,
    key: Sequence[StructField],
    fields: Sequence[StructField],
    wrong: Sequence[Difference],
    gone: Mapping[str, str],
    source: Mapping[str, Any],
    epoch: int = 0,
) -> list[Event]:
    """Return the events that correct wrong rows, in the ``epoch`` of the table or a higher one (`epoch_for`).

    This is a read of each row that the source has, and a delete of each other row. ``fields`` are the columns
    of a row by their names in the source, and ``key`` those of its key. ``gone`` has the key of each row that
    the source lacks, in the form of a change event. ``source`` has, by the key of the difference, the fields
    of the source block with the position of the change.
    """
    row = wire.schema_of(fields)
    images = [{**row, "field": "before"}, {**row, "field": "after"}]
    envelope = {"type": "struct", "fields": images, "optional": False, "name": "lakemirror.Envelope"}
    key_schema = wire.schema_of(key, optional=False)
    now = datetime.now(UTC)
    about = {
        "connector": "lakemirror",
        "name": "lakemirror",
        "ts_ms": int(now.timestamp() * 1000),
        "db": name.database,
        "schema": name.schema,
        "table": name.table,
    }
    found = []
    for each in wrong:
        after = None if each.image is None else json.loads(each.image)
        key_values = json.loads(gone[each.key]) if after is None else {f.name: after[f.name] for f in key}
        payload = {
            "before": key_values if after is None else None,
            "after": after,
            "source": {**about, "snapshot": "false" if after is None else "true", **source[each.key]},
            "op": Op.DELETE if after is None else Op.READ,
            "ts_ms": about["ts_ms"],
        }
        texts = _document(key_schema, key_values), _document(envelope, payload)
        found.append(Event(*texts, epoch_for(epoch, each.seq)))
    return found


def epoch_for(epoch: int, seq: bytes | None) -> int:
    """Return the epoch in which a row is written whose last change in the mirror is at ``seq``.

    This is the ``epoch`` of the table, unless that of the change is higher: its partition is in that epoch,
    so that later changes of the row are, too, and in a lower one the row would be stale.
    """
    return epoch if seq is None else max(epoch, epoch_of(seq))


def _document(schema: Mapping[str, Any], payload: Mapping[str, Any]) -> str:
    return json.dumps({"schema": schema, "payload": payload}, ensure_ascii=False, separators=(",", ":"))
