"""What a batch did, table by table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum

from lakemirror.api.report import NONE, Counts
from lakemirror.driver.consistent.complete import Top
from lakemirror.driver.consistent.reach import Reach


def _now() -> datetime:
    return datetime.now(UTC)


class DriftChange(StrEnum):
    """What happened to a column."""

    ADDED = "added"
    WIDENED = "widened"
    """The new type holds all values of the old one, or a third type holds both."""
    DROPPED = "dropped"
    INCOMPATIBLE = "incompatible"
    """No type holds the values of both."""
    RETURNED = "returned"
    """The column was dropped and added again, so that rows lost what they had in it."""
    FINER = "finer"
    """Values have digits below the microsecond, for which the type has no place."""
    BY_HAND = "changed-by-hand"
    """Somebody else than Lakemirror changed rows of the mirror. The type after says in which commit."""
    TAKEN_IN = "taken-in"
    """The manifest takes in a column that it, or ``schemaEvolution: skip``, left out until now."""
    RENAMED = "renamed"
    """The manifest gives the column another name in the mirror, and a type that cannot hold its values."""


class DriftAction(StrEnum):
    """How the mirror responded to the change."""

    ADDED = "added"
    ALTERED = "altered"
    """The mirror's column now has a wider type."""
    REWRITTEN = "rewritten"
    """Like ``ALTERED``, and the rows were rewritten for programs that cannot read both types."""
    KEPT = "kept"
    """The mirror keeps the column, which is null in new rows."""
    SKIPPED = "skipped"
    """The mirror stays as it is."""
    QUARANTINED = "quarantined"
    """Records with such values go to the quarantine."""
    STORED_AS_TEXT = "stored-as-text"
    CLEARED = "cleared"
    """Rows got the column's default, or null, instead of values from before it was dropped."""
    ROUNDED = "rounded"
    """Values are rounded down to the microsecond."""
    ADDED_WITHOUT_VALUES = "added-without-values"
    """The mirror has the column now, and a row gets a value with its next change."""


@dataclass(frozen=True)
class Drift:
    """One ``change`` of a column, and the ``action`` that was taken. Types are Spark SQL names.

    ``since`` is the source's time of the first event with the change, and ``seen`` is when the driver saw it.
    ``feature`` is the Delta reader feature that the table has needed since then. ``rows`` is the number of
    stored rows that got the default of an added column, lost a value of a former life, or lack one.
    """

    column: str
    change: DriftChange
    from_type: str | None
    to_type: str | None
    action: DriftAction
    since: datetime | None = None
    seen: datetime = field(default_factory=_now, compare=False)
    feature: str | None = None
    rows: int | None = None

    @property
    def identity(self) -> tuple[str, str, str | None]:
        """What distinguishes one drift from another. A column may return several times."""
        if self.change == DriftChange.RETURNED:
            return self.column, self.change, f"{self.seen}"
        return self.column, self.change, self.to_type


def finer(column: str, kind: str) -> Drift:
    """Return the drift of a column of a type (Spark's name) whose values are rounded to the microsecond."""
    return Drift(column, DriftChange.FINER, None, kind, DriftAction.ROUNDED)


@dataclass(frozen=True)
class Violated:
    """How many ``records`` violated the expectation ``name``, and what was done: warn or quarantine."""

    name: str
    on_violation: str
    records: int


@dataclass(frozen=True)
class Left:
    """How the driver left a mirror: at a ``version``. Up to version ``checked``, all commits are known."""

    version: int
    checked: int


@dataclass(frozen=True)
class TableResult:
    """What one batch did to one table, or what several batches did together.

    ``tombstones_retained``, ``version``, ``rows`` and ``error`` describe the state afterwards. ``error`` says
    why the table is refused (the table, the cause and the remedy) and is None if the table was written.
    ``reach`` says between which positions the new changes lie. ``gap`` (hexadecimal digits) is a position
    below all records that were kept aside. ``checked`` is the version of the mirror up to which all commits
    are known, if that is another than ``version``: others may have committed while the batch was written.
    """

    source: str
    target: str | None = None
    version: int | None = None
    counts: Counts = NONE
    tombstones_retained: int = 0
    rows: int | None = None
    last_event_time: datetime | None = None
    drift: tuple[Drift, ...] = ()
    violated: Sequence[Violated] = ()
    error: str | None = None
    reach: Reach | None = None
    gap: str | None = None
    checked: int | None = None

    @property
    def left(self) -> Left | None:
        """How the mirror was left, or None if it was not written."""
        if self.version is None:
            return None
        return Left(self.version, self.version if self.checked is None else self.checked)

    def counted(self, **counts: int) -> TableResult:
        """Return a copy with some of its counters set."""
        return replace(self, counts=self.counts.model_copy(update=counts))


@dataclass(frozen=True)
class BatchResult:
    """What one batch did.

    ``rest`` counts the records that belong to no table of the pipeline: unreadable records, tombstones and
    heartbeats, and records of tables that the manifest leaves out. ``tops`` says what the source's streams
    have reached. It is None if the batch is not one of the source's own numbered batches. ``corrected`` is
    the number of earlier records in the quarantine that the batch has in another form. ``restarted`` says
    what to do if positions of the source have started again, so that tables wait.
    """

    batch_id: int
    rest: Counts = NONE
    tables: dict[str, TableResult] = field(default_factory=dict)
    tops: tuple[Top, ...] | None = None
    corrected: int = 0
    restarted: str | None = None

    @property
    def counts(self) -> Counts:
        """The counters of the whole batch."""
        return self.rest + Counts.sum_of(table.counts for table in self.tables.values())


def without_open(result: BatchResult) -> BatchResult:
    """Return a replay's result without the records that stay open.

    They were counted when they were first read.
    """
    tables = {source: _without_open(each) for source, each in result.tables.items()}
    return replace(result, rest=_settled(result.rest), tables=tables)


def _without_open(table: TableResult) -> TableResult:
    applied = tuple(each for each in table.violated if each.on_violation != "quarantine")
    counts = _settled(table.counts).model_copy(update={"violations": sum(each.records for each in applied)})
    return replace(table, counts=counts, violated=applied)


def _settled(counts: Counts) -> Counts:
    records = counts.records - counts.quarantined - counts.refused
    return counts.model_copy(update={"records": records, "quarantined": 0, "refused": 0})


def add(before: TableResult | None, now: TableResult) -> TableResult:
    """Combine two results of one table. Counters are added; states are those of ``now`` if it has them."""
    if before is None:
        return now
    kept = {
        name: getattr(before, name) for name in ("target", "version", "rows") if getattr(now, name) is None
    }
    if now.version is None:
        kept["checked"] = before.checked
    drift = {each.identity: each for each in (*now.drift, *before.drift)}
    return replace(
        now,
        counts=before.counts + now.counts,
        last_event_time=_latest(t.last_event_time for t in (before, now)),
        drift=tuple(drift.values()),
        violated=sum_of((*before.violated, *now.violated)),
        gap=min((each.gap for each in (before, now) if each.gap is not None), default=None),
        **kept,
    )


def sum_of(violated: Iterable[Violated]) -> tuple[Violated, ...]:
    """Return each expectation once, with the sum of its records."""
    records: dict[tuple[str, str], int] = {}
    for each in violated:
        name = each.name, each.on_violation
        records[name] = records.get(name, 0) + each.records
    return tuple(Violated(*name, number) for name, number in records.items())


def _latest(moments: Iterable[datetime | None]) -> datetime | None:
    return max((moment for moment in moments if moment is not None), default=None)
