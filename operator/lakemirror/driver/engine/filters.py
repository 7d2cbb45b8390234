"""Filters of tables in the job: the rows that Spark has to judge, and what becomes of their changes then.

Only Spark evaluates a filter, in a projection between the stages (`filter_columns`). The first stage hands on
the rows for it beside its parcels, each with the columns that its filter reads, in slots that all filters
share. The second stage gets the answers with the parcels, and makes deletes of the changes whose row does not
meet the filter of its table (`rules.conditions`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import DataType

from lakemirror.driver.codes import WITH_ROW, Op
from lakemirror.driver.columns.changes import METADATA, as_events, schema_of
from lakemirror.driver.columns.key_codes import key_codes
from lakemirror.driver.columns.kinds import arrow_type, to_arrow
from lakemirror.driver.columns.masks import Indices, Mask, mask_of
from lakemirror.driver.columns.sequences import values_of
from lakemirror.driver.engine.believed import Believed, Filter
from lakemirror.driver.rules.conditions import filtered
from lakemirror.driver.rules.positions import WIDTH
from lakemirror.driver.rules.values import Event

PLAIN_ROW, ODD_ROW = "row", "odd row"
"""What a row is that Spark has to judge: that of a plain change, or of the event of an odd record."""
MEETS: Final = "meets"
"""The column of the answers: whether a row meets its filter (BOOLEAN); null if the filter fails for it."""
_WITH_ROW: Final = pa.array([str(each) for each in WITH_ROW])
_FAILS: Final = -1


class FilterFails(Exception):
    """A filter fails for a row. Spark knows what to say about that."""


class Slot(NamedTuple):
    """A column for values of one type, which the filters that read such a value share."""

    name: str
    type: DataType
    arrow: pa.DataType


@dataclass(frozen=True)
class Questions:
    """What Spark is asked about rows.

    ``filters`` are the distinct filters, each with the slots of the columns that it reads, by name.
    ``numbers`` has the number among them for each table with a filter.
    """

    slots: Sequence[Slot] = ()
    filters: Sequence[tuple[Filter, Mapping[str, str]]] = ()
    numbers: Mapping[int, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.filters)

    @classmethod
    def of(cls, tables: Sequence[Believed]) -> Questions:
        """Return what is asked for some tables."""
        slots: dict[tuple[DataType, int], Slot] = {}
        known: dict[Filter, int] = {}
        filters: list[tuple[Filter, Mapping[str, str]]] = []
        numbers: dict[int, int] = {}
        for number, table in enumerate(tables):
            if table.filter is None:
                continue
            if table.filter not in known:
                known[table.filter] = len(known)
                filters.append((table.filter, _placed(table.filter, table, slots)))
            numbers[number] = known[table.filter]
        return cls(tuple(slots.values()), filters, numbers)

    @cached_property
    def schema(self) -> pa.Schema:
        """The schema of rows: the number in its parcel, that of the filter, and the slots."""
        slots = [(each.name, each.arrow) for each in self.slots]
        return pa.schema([("row", pa.int32()), ("filter", pa.int32()), *slots])

    def of_changes(self, number: int, changes: pa.Table) -> pa.Table:
        """Return the rows that plain changes of a table show."""
        rows = pa.array(np.flatnonzero(_show_rows(changes.column("__op"))), pa.int32())
        values = {name: changes.column(name).take(rows) for name in self._read_by(number)}
        return self._laid_out(number, rows, values)

    def of_events(self, number: int, events: Sequence[Event], table: Believed) -> pa.Table:
        """Return the rows that events of a table show. Raises ArrowException or OverflowError."""
        shown = [(i, each.row) for i, each in enumerate(events) if each.op in WITH_ROW]
        rows = pa.array([i for i, _ in shown], pa.int32())
        names = self._read_by(number)
        values = {name: to_arrow([row[name] for _, row in shown], table.kinds[name]) for name in names}
        return self._laid_out(number, rows, values)

    def _read_by(self, number: int) -> Mapping[str, str]:
        """Return the slots of the columns that the filter of a table reads."""
        return self.filters[self.numbers[number]][1]

    def _laid_out(self, number: int, rows: pa.Array, values: Mapping[str, Any]) -> pa.Table:
        """Return rows with the values of the columns that the filter of a table reads in their slots."""
        names = self._read_by(number)
        by_slot = {names[name]: each for name, each in values.items()}
        slots = [by_slot.get(each.name, pa.nulls(len(rows), each.arrow)) for each in self.slots]
        filters = pa.array(np.full(len(rows), self.numbers[number], np.int32))
        return pa.Table.from_arrays([rows, filters, *slots], schema=self.schema)


def _placed(of: Filter, table: Believed, slots: dict[tuple[DataType, int], Slot]) -> Mapping[str, str]:
    """Return the slot of each column that a filter reads. New ones are added."""
    used: Counter[DataType] = Counter()
    found = {}
    for name, kind in of.columns:
        key = kind, used[kind]
        if key not in slots:
            slots[key] = Slot(f"slot_{len(slots)}", kind, arrow_type(table.kinds[name]))
        used[kind] += 1
        found[name] = slots[key].name
    return found


class Parcelled(NamedTuple):
    """The parcel that rows are from: the number of its table, its bucket, and the task that has made it."""

    number: int
    bucket: int
    task: int


class Answers:
    """What Spark says about the rows of the parcels of a task."""

    def __init__(self) -> None:
        self._parts: list[pa.RecordBatch] = []

    def taken(self, block: pa.RecordBatch) -> pa.RecordBatch:
        """Keep the answers of a block, and return the parcels in it."""
        if MEETS not in block.schema.names:
            return block
        is_answer = pc.is_in(block.column("what"), pa.array([PLAIN_ROW, ODD_ROW]))
        answers = block.filter(is_answer).drop_columns(["content"])
        self._parts += [answers] if answers.num_rows else []
        return block.filter(pc.invert(is_answer))

    def left_out(self, what: str, of: Parcelled, shown: Mask) -> Mask:
        """Return which changes of a parcel show a row that does not meet the filter.

        ``shown`` says which of them show a row at all. Raises FilterFails.
        """
        rows, meets = self._by_parcel.get((what, of), (np.zeros(0, np.int32), np.zeros(0, np.int8)))
        if not np.array_equal(np.sort(rows), np.flatnonzero(shown)):
            raise ValueError("not each row of a parcel was judged once")
        if (meets == _FAILS).any():
            raise FilterFails("the filter fails for a row")
        found = np.zeros(len(shown), np.bool_)
        found[rows[meets == 0]] = True
        return found

    @cached_property
    def _by_parcel(self) -> Mapping[tuple[str, Parcelled], tuple[Indices, Any]]:
        """The numbers of the rows of each parcel, and their answers."""
        if not self._parts:
            return {}
        found = pa.Table.from_batches(self._parts)
        is_odd = mask_of(pc.equal(found.column("what"), ODD_ROW))
        of = [found.column(name).to_numpy() for name in Parcelled._fields]
        rows = found.column("row").to_numpy()
        meets = found.column(MEETS).cast(pa.int8()).fill_null(_FAILS).to_numpy()
        order = np.lexsort([is_odd, *of])
        keys = np.stack([each[order] for each in (*of, is_odd)])
        begins = np.flatnonzero(np.append(True, (keys[:, 1:] != keys[:, :-1]).any(axis=0)))
        parcels = {}
        for at, mine in zip(begins, np.split(order, begins[1:]), strict=True):
            *place, odd = keys[:, at].tolist()
            parcels[ODD_ROW if odd else PLAIN_ROW, Parcelled(*place)] = rows[mine], meets[mine]
        return parcels


def show_rows(changes: pa.RecordBatch) -> Mask:
    """Return which changes leave a row."""
    return _show_rows(changes.column("__op"))


def shown_by(events: Sequence[Event]) -> Mask:
    """Return which events leave a row."""
    return np.fromiter((each.op in WITH_ROW for each in events), np.bool_, len(events))


def as_filtered(
    changes: pa.RecordBatch, out: Mask, events: Sequence[Event], out_of_events: Mask, table: Believed
) -> tuple[pa.RecordBatch, list[Event]]:
    """Return changes and events as a filter leaves them: those that are ``out`` are deletes.

    Two changes at one position are the same if their records are, whatever a filter makes of them: the rules
    look at these, and get them as events.
    """
    kinds, key = table.kinds, table.mirrored.key
    by_rules = _beside_others(changes, out, events, out_of_events, table)
    more = as_events(changes.filter(pa.array(by_rules)), kinds, key)
    told = [
        filtered(each, meets=not gone, keyed=True)
        for each, gone in zip([*events, *more], [*out_of_events, *out[by_rules]], strict=True)
    ]
    plain = changes.filter(pa.array(~by_rules & ~out))
    deletes = _as_deletes(changes.filter(pa.array(~by_rules & out)), table)
    return pa.concat_batches([plain, deletes]), [each for each in told if each is not None]


def _as_deletes(changes: pa.RecordBatch, table: Believed) -> pa.RecordBatch:
    """Return changes as deletes, which have no row but its key."""
    kinds, number = table.kinds, changes.num_rows
    named = {
        name: changes.column(name) if name in table.mirrored.key else pa.nulls(number, arrow_type(kind))
        for name, kind in kinds.items()
    }
    named |= {name: changes.column(name) for name, _ in METADATA}
    named["__op"] = pa.array([str(Op.DELETE)] * number, pa.string())
    return pa.RecordBatch.from_arrays(list(named.values()), schema=schema_of(kinds))


def _beside_others(
    changes: pa.RecordBatch, out: Mask, events: Sequence[Event], out_of_events: Mask, table: Believed
) -> Mask:
    """Return which changes stand where another one of their key does, if one of these is left out."""
    left_out = np.concatenate([out, out_of_events])
    nothing = np.zeros(changes.num_rows, np.bool_)
    if not left_out.any():
        return nothing
    of_events = np.array([each.seq for each in events], f"S{WIDTH}")
    all_seqs = np.concatenate([values_of(changes.column("__seq")), of_events])
    seqs, places = np.unique(all_seqs, return_inverse=True)
    if len(seqs) == len(places):
        return nothing
    key = table.mirrored.key
    of_key = [to_arrow([each.key[i] for each in events], table.kinds[name]) for i, name in enumerate(key)]
    codes, _ = key_codes([[changes.column(name) for name in key], of_key])
    here = np.concatenate(codes) * len(seqs) + places
    _, groups, sizes = np.unique(here, return_inverse=True, return_counts=True)
    among = np.bincount(groups, left_out) > 0
    found: Mask = ((sizes > 1) & among)[groups[: changes.num_rows]]
    return found


def _show_rows(ops: Any) -> Mask:
    return mask_of(pc.is_in(ops, _WITH_ROW))
