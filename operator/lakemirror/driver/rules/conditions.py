"""Conditions on rows: filters and expectations. They are evaluated elsewhere (`Condition.evaluate`).

A filter (``tables[].filter``) leaves rows out of a mirror. An event that shows such a row acts as a delete at
its position, so that a row that stops meeting the filter goes, and no older event brings it back.

An expectation (``expectations``) is what rows should meet: a row that does not is counted, or its record goes
to the quarantine, or its table is held.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from enum import Enum, auto
from typing import Final, Literal, NamedTuple

from lakemirror.driver.codes import WITH_ROW, Op
from lakemirror.driver.rules.merge import shown
from lakemirror.driver.rules.table import Table
from lakemirror.driver.rules.values import NOTHING, Event, Row, Tombstone, Values

FULL_IDENTITY: Final = "set REPLICA IDENTITY FULL on the table"
"""What makes PostgreSQL send whole rows."""


class Fails(Exception):
    """A condition fails for a row, as by a division by zero: it tells nothing about the row."""


class Condition(NamedTuple):
    """A condition of the manifest, at a ``place`` there, that reads some columns.

    ``evaluate`` says what it is for a row. Raises Fails.
    """

    sql: str
    place: str
    reads: Sequence[str]
    evaluate: Callable[[Values], bool | None]

    @property
    def fails(self) -> str:
        """Why a record goes to the quarantine for whose row the condition fails."""
        return f"{self.place}, {self.sql}, fails for the row"


class Expected(NamedTuple):
    """An expectation: its name, its condition, and what becomes of a record whose row does not meet it."""

    name: str
    condition: Condition
    on_violation: Literal["warn", "quarantine", "fail"] = "warn"

    @property
    def shown(self) -> str:
        """The expectation as messages have it."""
        return f"the expectation {self.name}, {self.condition.sql} ({self.condition.place})"


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


def filtered_or_why(
    event: Event,
    condition: Condition,
    evidence: Evidence,
    *,
    keyed: bool,
    remedy: str = FULL_IDENTITY,
) -> Event | str | None:
    """Return the event as a filter leaves it (`filtered`), or why nothing tells whether its row meets it.

    ``remedy`` says how the source is made to send whole rows.
    """
    if event.op not in WITH_ROW:
        return event
    undecided = filter_decides(condition.reads, evidence, keyed=keyed)
    if undecided is Undecided.GAPS:
        gaps = ", ".join(evidence.gaps)
        return f"the source did not send {gaps}, and {condition.place} needs the whole row: {remedy}"
    if undecided is Undecided.LACKS:
        return _lacking(condition, evidence)
    try:
        return filtered(event, meets=condition.evaluate(event.row), keyed=keyed)
    except Fails:
        return condition.fails


def _lacking(condition: Condition, evidence: Evidence) -> str:
    names = ", ".join(name for name in evidence.lacks if name in condition.reads)
    return (
        f"the record lacks {names}, which {condition.place} reads: send null if the value is null, or change "
        "the condition if the source no longer has the column, and run `lakemirror replay`"
    )


class Judged(Enum):
    """What an expectation says about the row of an event."""

    MET = auto()
    VIOLATED = auto()
    NOT_JUDGED = auto()
    """The event carries none of the columns that the expectation reads: an earlier one had them."""
    UNDECIDED = auto()
    """It carries some of them, and the value of the others is not known."""
    FAILS = auto()
    """The condition fails for the row."""


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


class Verdict(NamedTuple):
    """What the expectations say about an event: the names of those that its row does not meet, and why its
    record goes to the quarantine (None: it does not).
    """

    violates: tuple[str, ...] = ()
    problem: str | None = None


def verdict(
    event: Event, expected: Iterable[Expected], evidence: Evidence, remedy: str = FULL_IDENTITY
) -> Verdict:
    """Return what expectations say about an event. Deletes pass."""
    if event.op not in WITH_ROW:
        return Verdict()
    found = [(each, _judged(event, each.condition, evidence)) for each in expected]
    violates = tuple(each.name for each, judgement in found if _counts(each, judgement))
    problems = (_problem(each, judgement, evidence, remedy) for each, judgement in found)
    return Verdict(violates, next((each for each in problems if each is not None), None))


def _judged(event: Event, condition: Condition, evidence: Evidence) -> Judged:
    unknown = judged(condition.reads, evidence, meets=True)
    if unknown is not Judged.MET:
        return unknown
    try:
        return judged(condition.reads, evidence, meets=condition.evaluate(event.row))
    except Fails:
        return Judged.FAILS


def _counts(expected: Expected, judgement: Judged) -> bool:
    """Return whether an expectation is counted as not met. A condition that fails holds no table."""
    if judgement is Judged.FAILS:
        return expected.on_violation != "fail"
    return judgement is Judged.VIOLATED


def _problem(expected: Expected, judgement: Judged, evidence: Evidence, remedy: str) -> str | None:
    """Return why the record of an event goes to the quarantine; None if the expectation is no reason."""
    condition = expected.condition
    if expected.on_violation == "warn" or judgement in (Judged.MET, Judged.NOT_JUDGED):
        return None
    if judgement is Judged.FAILS:
        return condition.fails
    if judgement is Judged.VIOLATED:
        is_kept_aside = expected.on_violation == "quarantine"
        return f"the row does not meet {expected.shown}" if is_kept_aside else None
    if any(name in evidence.lacks for name in condition.reads):
        return _lacking(condition, evidence)
    return (
        f"the source did not send {', '.join(evidence.gaps)}, so that nobody can tell whether the row meets "
        f"{expected.shown}: {remedy}, or onViolation: warn"
    )


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
    event = shown(events, stored, tombstone, table)
    return event if event is not None and any(name in failing for name in event.violates) else None
