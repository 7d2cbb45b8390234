"""Conditions on rows: filters and expectations. What they say about a row is evaluated elsewhere.

A filter (``tables[].filter``) leaves rows out of a mirror. An event that shows such a row acts as a delete at
its position, so that a row that stops meeting the filter goes, and no older event brings it back.

An expectation (``expectations``) is what rows should meet: a row that does not is counted, or its record goes
to the quarantine, or its table is held.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import Enum, auto
from typing import NamedTuple

from lakemirror.driver.codes import WITH_ROW, Op
from lakemirror.driver.rules.merge import is_above
from lakemirror.driver.rules.table import Table
from lakemirror.driver.rules.values import NOTHING, Event, Row, Tombstone


class Evidence(NamedTuple):
    """What is known about the row of an event.

    ``gaps`` are columns that the source did not send, ``lacks`` those that a row without a schema does not
    show: whether such a value is null, or the source has no such column any more, nobody can tell.
    """

    gaps: Collection[str] = ()
    lacks: Collection[str] = ()


class Undecided(Enum):
    """Why nobody can tell whether a row meets a condition."""

    GAPS = auto()
    """The source did not send the columns of `Evidence.gaps`."""
    LACKS = auto()
    """The record lacks some of `Evidence.lacks`."""


def filter_decides(reads: Collection[str], evidence: Evidence, *, keyed: bool) -> Undecided | None:
    """Return why a filter that reads some columns cannot be evaluated. None if it can.

    If rows have a key, no value at all may be missing: the row may enter the mirror with this event, and then
    a value that the source did not send stays unknown.
    """
    missing = evidence.gaps if keyed else [name for name in reads if name in evidence.gaps]
    if missing:
        return Undecided.GAPS
    return Undecided.LACKS if any(name in evidence.lacks for name in reads) else None


def filtered(event: Event, *, meets: bool | None, keyed: bool) -> Event | None:
    """Return the event as a filter leaves it; None if it changes no row (a table without a key).

    ``meets`` is what the condition says about the row: false and null are the same.
    """
    if event.op not in WITH_ROW or meets:
        return event
    return event._replace(op=Op.DELETE, row=NOTHING, texts=NOTHING, old_key=None) if keyed else None


class Judged(Enum):
    """What an expectation says about the row of an event."""

    MET = auto()
    VIOLATED = auto()
    NOT_JUDGED = auto()
    """The event carries none of the columns that the expectation reads: an earlier one had them."""
    UNDECIDED = auto()
    """It carries some of them, and the value of the others is not known."""


def judged(reads: Collection[str], evidence: Evidence, *, meets: bool | None) -> Judged:
    """Return what an expectation that reads some columns says about a row that shows them.

    An expectation is judged by the columns that an event carries: by all that it reads, or not at all.
    """
    if any(name in evidence.lacks for name in reads):
        return Judged.UNDECIDED
    missing = [name for name in reads if name in evidence.gaps]
    if missing:
        return Judged.NOT_JUDGED if len(missing) == len(set(reads)) else Judged.UNDECIDED
    return Judged.MET if meets else Judged.VIOLATED


def shown_violation(
    events: Sequence[Event],
    stored: Row | None,
    tombstone: Tombstone | None,
    table: Table,
    failing: Collection[str],
) -> Event | None:
    """Return the event of a key whose row would be shown and violates an expectation that holds its table.

    A violation that a newer change of the row has overtaken, in the batch or in the mirror, is visible
    nowhere: the table is not held by it, so that held records are applied once the source has corrected its
    rows. Where every event is kept (versions, append), each one counts.
    """
    last = max(events, key=lambda each: each.arrival, default=None)
    if last is None or not any(name in failing for name in last.violates):
        return None
    return last if is_above(last, stored, tombstone, table) else None
