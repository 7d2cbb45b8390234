"""Changes of rows in columns, and the same as events of the rules.

A block of changes has the columns of the mirror, and beside them:

=================  =====================================================================================
``__seq``          the sequence, 26 bytes
``__op``           c, u, r or d
``__event_time``   when the source made the change
``__topic``        where it was read, with ``__partition`` and ``__offset``
``__log``          what tells it from other changes at its position (`rules.positions.identity`), as JSON
=================  =====================================================================================

The row of a delete has its key alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from lakemirror.driver.codes import Op
from lakemirror.driver.columns.kinds import arrow_type, to_values
from lakemirror.driver.rules.keys import micros_of
from lakemirror.driver.rules.kinds import Kind
from lakemirror.driver.rules.positions import WIDTH, Origin
from lakemirror.driver.rules.values import NOTHING, Event, Key, Values

MOMENT: Final = pa.timestamp("us", "UTC")
METADATA: Final = (
    ("__seq", pa.binary(WIDTH)),
    ("__op", pa.string()),
    ("__event_time", MOMENT),
    ("__topic", pa.string()),
    ("__partition", pa.int32()),
    ("__offset", pa.int64()),
    ("__log", pa.string()),
)
Kinds = Mapping[str, Kind]


def schema_of(kinds: Kinds) -> pa.Schema:
    """Return the schema of changes of a mirror with these columns."""
    return pa.schema([*((name, arrow_type(kind)) for name, kind in kinds.items()), *METADATA])


def none(kinds: Kinds) -> pa.RecordBatch:
    """Return a block without changes."""
    return pa.RecordBatch.from_pylist([], schema_of(kinds))


def as_events(changes: pa.RecordBatch, kinds: Kinds, key: Sequence[str]) -> list[Event]:
    """Return changes as events of the rules. ``key`` are the columns of the key."""
    columns = {name: to_values(changes.column(name), kind) for name, kind in kinds.items()}
    meta = {name: changes.column(name).to_pylist() for name, _ in METADATA}
    events = []
    for i in range(changes.num_rows):
        row = {name: column[i] for name, column in columns.items()}
        op, log = meta["__op"][i], meta["__log"][i]
        origin = Origin(meta["__topic"][i], meta["__partition"][i], meta["__offset"][i])
        mine = NOTHING if op == Op.DELETE else row
        event = Event(
            tuple(row[name] for name in key),
            op,
            meta["__seq"][i],
            micros_of(meta["__event_time"][i]),
            origin,
            mine,
            digest=digest(log, op, mine, origin),
        )
        events.append(event)
    return events


def digest(log: str | None, op: str, row: Values, origin: Origin) -> object:
    """Return what two events at one position share if they are one that was sent twice.

    Where nothing but its origin identifies a change, ``log`` is None.
    """
    return (origin if log is None else log, str(op), tuple((name, alike(row[name])) for name in sorted(row)))


def alike(value: Any) -> Any:
    """Return a value that equals those that are the same (`rules.values.is_same`), and can be in a set."""
    if isinstance(value, float):
        return "NaN" if value != value else value
    if isinstance(value, Mapping):
        return frozenset((alike(name), alike(each)) for name, each in value.items())
    if isinstance(value, (list, tuple)):
        return tuple(map(alike, value))
    return value


def key_of(values: Sequence[Any]) -> Key:
    """Return a key in which values that are the same are equal: also NaN, which differs from itself."""
    return tuple(_NAN if isinstance(each, float) and each != each else each for each in values)


_NAN: Final = float("nan")
