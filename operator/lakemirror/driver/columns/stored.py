"""Rows and tombstones of a mirror in columns, and the same as the rules have them.

A stored row has the columns of the mirror, its metadata (``__seq``, ``__op``, ``__event_time``, ``__origin``,
``__column_seq``, ``__unrepresentable``), and the column ``soft`` if deletes are soft. A tombstone has the
columns of the key, ``__seq``, ``__event_time`` and ``__origin``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from lakemirror.driver.codes import Op
from lakemirror.driver.columns.changes import MOMENT, Kinds, key_of
from lakemirror.driver.columns.kinds import arrow_type, to_arrow, to_values
from lakemirror.driver.rules.keys import micros_of
from lakemirror.driver.rules.positions import NO_ORIGIN, Origin
from lakemirror.driver.rules.values import Key, Row, Tombstone

ORIGIN: Final = pa.struct([("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())])
METADATA: Final = (
    ("__seq", pa.binary()),
    ("__op", pa.string()),
    ("__event_time", MOMENT),
    ("__origin", ORIGIN),
    ("__column_seq", pa.map_(pa.string(), pa.binary())),
    ("__unrepresentable", pa.map_(pa.string(), pa.string())),
)
_MAPS: Final = METADATA[4:]
"""Maps, which are null where they would be empty."""
UNSEEN: Final = ""
"""In ``__column_seq`` of a softly deleted row that the mirror never had."""


def rows_schema(kinds: Kinds, *, soft: str | None) -> pa.Schema:
    """Return the schema of stored rows. ``soft`` is the column with the time of a soft delete, if any."""
    more = [(soft, MOMENT)] if soft else []
    return pa.schema([*((name, arrow_type(kind)) for name, kind in kinds.items()), *METADATA, *more])


def tombstones_schema(kinds: Kinds, key: Sequence[str]) -> pa.Schema:
    """Return the schema of tombstones."""
    of_key = [(name, arrow_type(kinds[name])) for name in key]
    return pa.schema([*of_key, ("__seq", pa.binary()), ("__event_time", MOMENT), ("__origin", ORIGIN)])


def as_rows(stored: pa.RecordBatch, kinds: Kinds, key: Sequence[str], *, soft: str | None) -> dict[Key, Row]:
    """Return stored rows by their key."""
    columns = {name: to_values(stored.column(name), kind) for name, kind in kinds.items()}
    meta = {name: stored.column(name).to_pylist() for name, _ in METADATA}
    gone = stored.column(soft).to_pylist() if soft else None
    rows = {}
    for i in range(stored.num_rows):
        values = {name: column[i] for name, column in columns.items()}
        seqs = dict(meta["__column_seq"][i] or ())
        unseen = seqs.pop(UNSEEN, None) is not None
        rows[key_of([values[name] for name in key])] = Row(
            meta["__seq"][i] or b"",
            meta["__op"][i] or str(Op.CREATE),
            _micros(meta["__event_time"][i]),
            _origin(meta["__origin"][i]),
            {**values, **dict.fromkeys(key)} if unseen else values,
            seqs,
            dict(meta["__unrepresentable"][i] or ()),
            None if gone is None else _micros(gone[i]),
            unseen,
        )
    return rows


def of_rows(
    found: Mapping[Key, Row], kinds: Kinds, key: Sequence[str], *, soft: str | None
) -> pa.RecordBatch:
    """Return rows of the rules as stored ones. Its key says which one the mirror never had."""
    rows = list(found.values())
    values = [
        {**each.values, **dict(zip(key, mine, strict=True))} if each.unseen else each.values
        for mine, each in found.items()
    ]
    columns = [to_arrow([each.get(name) for each in values], kind) for name, kind in kinds.items()]
    columns += [
        pa.array([each.seq for each in rows], pa.binary()),
        pa.array([str(each.op) for each in rows], pa.string()),
        _moments([each.at for each in rows]),
        _origins([each.origin for each in rows]),
        pa.array([_memory(each) for each in rows], pa.map_(pa.string(), pa.binary())),
        pa.array([list(each.texts.items()) or None for each in rows], pa.map_(pa.string(), pa.string())),
    ]
    columns += [_moments([each.deleted_at for each in rows])] if soft else []
    return pa.RecordBatch.from_arrays(columns, schema=rows_schema(kinds, soft=soft))


def of_changes(changes: pa.RecordBatch, kinds: Kinds, *, soft: str | None) -> pa.RecordBatch:
    """Return the stored rows that plain changes make: each value is as new as its row."""
    number = changes.num_rows
    columns = [changes.column(name) for name in kinds]
    columns += [changes.column("__seq").cast(pa.binary()), changes.column("__op")]
    columns += [changes.column("__event_time"), origins(changes)]
    columns += [pa.nulls(number, kind) for _, kind in _MAPS]
    columns += [pa.nulls(number, MOMENT)] if soft else []
    return pa.RecordBatch.from_arrays(columns, schema=rows_schema(kinds, soft=soft))


def as_tombstones(found: pa.RecordBatch, kinds: Kinds, key: Sequence[str]) -> dict[Key, Tombstone]:
    """Return tombstones by the key of their row."""
    keys = zip(*(to_values(found.column(name), kinds[name]) for name in key), strict=True)
    meta = zip(
        *(found.column(name).to_pylist() for name in ("__seq", "__event_time", "__origin")), strict=True
    )
    return {
        key_of(mine): Tombstone(seq, _micros(at), _origin(origin))
        for mine, (seq, at, origin) in zip(keys, meta, strict=True)
    }


def of_tombstones(found: Mapping[Key, Tombstone], kinds: Kinds, key: Sequence[str]) -> pa.RecordBatch:
    """Return tombstones of the rules in columns."""
    columns = [to_arrow([each[i] for each in found], kinds[name]) for i, name in enumerate(key)]
    columns += [
        pa.array([each.seq for each in found.values()], pa.binary()),
        _moments([each.at for each in found.values()]),
        _origins([each.origin for each in found.values()]),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=tombstones_schema(kinds, key))


def of_deletes(deletes: pa.RecordBatch, kinds: Kinds, key: Sequence[str]) -> pa.RecordBatch:
    """Return the tombstones of deletes."""
    columns = [deletes.column(name) for name in key]
    columns += [deletes.column("__seq").cast(pa.binary()), deletes.column("__event_time"), origins(deletes)]
    return pa.RecordBatch.from_arrays(columns, schema=tombstones_schema(kinds, key))


def origins(changes: pa.RecordBatch) -> pa.Array:
    """Return where changes were read, as stored rows have it."""
    parts = [changes.column(name) for name in ("__topic", "__partition", "__offset")]
    return pa.StructArray.from_arrays(parts, fields=list(ORIGIN))


def _memory(row: Row) -> list[tuple[str, bytes]] | None:
    mark = [(UNSEEN, b"")] if row.unseen else []
    return [*row.seqs.items(), *mark] or None


def _moments(micros: Sequence[int | None]) -> pa.Array:
    return pa.array(micros, pa.int64()).view(MOMENT)


def _origins(found: Sequence[Origin]) -> pa.Array:
    return pa.array([None if each == NO_ORIGIN else each._asdict() for each in found], ORIGIN)


def _micros(moment: Any) -> int | None:
    return None if moment is None else micros_of(moment)


def _origin(found: Mapping[str, Any] | None) -> Origin:
    return NO_ORIGIN if found is None else Origin(found["topic"], found["partition"], found["offset"])
