"""The progress report: what a driver says about itself, and what the operator reads.

It is one document (JSON, names in camelCase, times in UTC as ISO 8601). The driver writes it to
``progress.json`` and, shortened, to a ConfigMap. ``Counts`` is the one definition of the counters. The
driver's results, the columns of the audit table, the metrics, the terminal and the status of the resource
derive from it. A counter's description is also its text in the CRD and its help text in Prometheus.

The operator may be older or newer than the driver: ``Report.read`` leaves out what it does not know.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from datetime import datetime
from math import inf
from typing import Annotated, Any, Final, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    field_validator,
)
from pydantic_core import PydanticUseDefault

from lakemirror.api.base import Model
from lakemirror.api.checks import moment
from lakemirror.api.limits import REPORT_BYTES
from lakemirror.api.shown import shown

DriverPhase = Literal["Starting", "Running", "Completed", "Stopped", "Failed"]
"""Completed: run once, and all is applied; Stopped: asked to stop."""

TABLES_SHOWN = 100
DRIFTS_SHOWN = 10
DRIFTS_KEPT = 100
EXPECTATIONS_SHOWN = 10
EXPECTATIONS_KEPT = 50
FINDINGS_SHOWN = 10
KEYS_KEPT = 5
WAITING_SHOWN = 10
TEXT_SHOWN = 512
ERROR_SHOWN = 1024
"""Why a table is refused ends with what to do about it."""
MESSAGE_SHOWN = 8192
"""Why a run ended may name what has to be written into the manifest, such as the epochs of all partitions."""
CUT_OFF = " ... (cut off)"


def cut_off(text: str, most: int) -> str:
    """Return ``text`` in at most that many characters; if something is missing, the end says so."""
    return text if len(text) <= most else f"{text[: most - len(CUT_OFF)]}{CUT_OFF}"


def _cut_to(most: int) -> Callable[[Any], Any]:
    """Return a validator that cuts longer texts and lists, because a report must not fail for its length."""
    return lambda value: value[:most] if isinstance(value, str | list) else value


def _shown_to(most: int) -> Callable[[Any], Any]:
    """Return a validator that does the same with texts of other people's, without control characters."""
    return lambda value: shown(value)[:most] if isinstance(value, str) else value


Time = Annotated[str, Field(max_length=40, json_schema_extra={"format": "date-time"}), AfterValidator(moment)]
Count = Annotated[int, Field(ge=0, le=2**63 - 1)]
Outcome = Annotated[Count, "outcome"]
"""A count of records; each record that was read has exactly one outcome."""
SourceName = Annotated[str, BeforeValidator(_shown_to(767)), Field(max_length=767)]
Word = Annotated[str, BeforeValidator(_cut_to(1024)), Field(max_length=1024)]
"""A word that programs compare, such as a token."""
Phrase = Annotated[str, BeforeValidator(_shown_to(1024)), Field(max_length=1024)]
"""A name or a short text for people, which may have come from anybody: control characters are escapes."""
Text = Annotated[str, BeforeValidator(_shown_to(32768)), Field(max_length=32768)]
"""The same, and longer."""

P = TypeVar("P", bound="Part")
_LENIENT: Final = "lenient"


class Part(Model):
    """A part of the report. Fields that are not known are ignored."""

    model_config = ConfigDict(extra="ignore")

    @classmethod
    def read(cls, document: Any) -> Self | None:
        """Return what this version understands of ``document``; values that do not fit are left out.

        Returns None if it is not a mapping or lacks required fields.
        """
        try:
            return cls.model_validate(document, context=_LENIENT)
        except ValidationError:
            return None

    def document(self) -> dict[str, Any]:
        """Return the part as JSON has it."""
        return self.model_dump(mode="json", by_alias=True)

    @field_validator("*", mode="wrap")
    @classmethod
    def _leniently(cls, value: Any, handler: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
        try:
            return handler(value)
        except ValidationError as error:
            if info.context != _LENIENT:
                raise
            wrong = {e["loc"][0] for e in error.errors() if e["loc"]}
        if isinstance(value, list):
            return handler([each for index, each in enumerate(value) if index not in wrong])
        raise PydanticUseDefault


class Counts(Part):
    """What became of records, and what that did to rows. A record that is read again counts again, but not
    one that is tried again from the quarantine in vain.
    """

    records: Count = 0
    """Records read: the sum of all outcomes, from applied to refused."""
    applied: Outcome = 0
    """Records whose change is visible in the mirror, or was when it was written."""
    superseded: Outcome = 0
    """Records superseded by a newer record of the same row in the same batch."""
    stale: Outcome = 0
    """Records without effect because the mirror already had a newer state of the row."""
    duplicates: Outcome = 0
    """Redelivered records."""
    no_row_change: Outcome = 0
    """Records that change no row, such as Kafka tombstones, heartbeats and records of excluded tables."""
    quarantined: Outcome = 0
    """Records that could not be applied and were written to the quarantine table."""
    refused: Outcome = 0
    """Records of refused tables, held in the quarantine table and applied later."""
    inserted: Count = 0
    """Rows inserted."""
    updated: Count = 0
    """Rows updated."""
    deleted: Count = 0
    """Rows deleted."""
    tombstone_records: Count = 0
    """Kafka tombstones, which are included in the records that change no row."""
    late_after_collection: Count = 0
    """Records applied after the key's tombstone was collected. Deleted rows may have reappeared."""
    out_of_order: Count = 0
    """Stale records older than the mirror's state of the row by more than ordering.toleranceMs."""
    absent_rows: Count = 0
    """Rows that came with an update, and that the mirror never had."""
    violations: Count = 0
    """Rows that did not meet an expectation, in records that were applied or quarantined."""
    records_in_columns: Count = 0
    """Records processed in columns (docs/performance.md). Spark's own plans processed all others."""

    @property
    def unaccounted(self) -> int:
        """Records minus the sum of the outcomes: 0 unless a record was lost or counted twice."""
        counts = self.values()
        return counts["records"] - sum(counts[name] for name in OUTCOMES)

    def __add__(self, other: Counts) -> Counts:
        return Counts(**{name: getattr(self, name) + getattr(other, name) for name in COUNTERS})

    @classmethod
    def sum_of(cls, many: Iterable[Counts]) -> Counts:
        """Return the sum of ``many``; zeros if there is nothing to add."""
        return sum(many, start=Counts())

    def values(self) -> dict[str, int]:
        """Return the counters alone, by their names in Python."""
        return {name: getattr(self, name) for name in COUNTERS}


NONE: Final = Counts()
"""All zero."""
COUNTERS: Final = tuple(Counts.model_fields)
"""Names of the counters; all add up over batches and tables."""
OUTCOMES: Final = tuple(name for name, field in Counts.model_fields.items() if "outcome" in field.metadata)
"""Names of those counters of which each record increases exactly one."""


class Totals(Counts):
    """Counts since the checkpoint began, in which a repeated batch counts once, and current numbers."""

    tombstones_retained: Count = 0
    """Tombstones currently retained."""
    quarantined_open: Count = 0
    """Records in quarantine that are neither held nor replayed. Apply them with `lakemirror replay`."""
    held: Count = 0
    """Records held for refused tables. The driver applies them automatically once the cause is resolved."""


GAUGES: Final = tuple(name for name in Totals.model_fields if name not in COUNTERS)
"""Names of the numbers of a table that say what there is now."""


_TO_ROWS = {
    "added": "the source's default written to",
    "added-without-values": "no values until their next change in",
}


class DriftReport(Part):
    """A column that changed, and what was done about it. Types are those of Spark SQL."""

    column: Phrase
    """The column's name in the mirror."""
    change: Phrase
    """added, widened, dropped, incompatible, returned, finer, taken-in or renamed."""
    from_: Annotated[Phrase | None, Field(alias="from")] = None
    """The type before."""
    to: Phrase | None = None
    """The type after."""
    action: Phrase | None = None
    """added, altered, rewritten, kept, skipped, quarantined, stored-as-text, cleared, rounded or
    added-without-values.
    """
    feature: Phrase | None = None
    """The Delta reader feature that the table has needed since: programs without it cannot read the table."""
    rows: Count | None = None
    """Rows that got its default, lost a value, or lack one."""
    since: Time | None = None
    """When the source made the first change that had it."""
    seen: Time | None = None
    """When the driver saw it."""

    @property
    def done(self) -> str:
        """What was done about it, and what that means for those who read the table."""
        action = self.action or "seen"
        if self.rows is not None:
            rows = f"{self.rows} {'row' if self.rows == 1 else 'rows'}"
            action = f"{action}, {_TO_ROWS.get(action, 'values removed from')} {rows}"
        return f"{action}, readers now need the Delta feature {self.feature}" if self.feature else action


class ExpectationReport(Part):
    """An expectation that was not met."""

    name: Phrase
    """The name of the expectation in the manifest."""
    on_violation: Phrase | None = None
    """What was done: warn or quarantine."""
    violations: Count = 0
    """The number of records that did not meet it."""


class TableReport(Totals):
    """One table's mirror."""

    source: SourceName
    """Its name in the source: database.schema.table."""
    target: Phrase | None = None
    """Where its mirror is: a path or the name of a table."""
    version: Count | None = None
    """The version of the Delta table."""
    last_event_time: Time | None = None
    """When the source made the newest change that is applied."""
    drift: Annotated[
        list[DriftReport], BeforeValidator(_cut_to(DRIFTS_KEPT)), Field(max_length=DRIFTS_KEPT)
    ] = Field(default_factory=list)
    """Changed columns, the newest first; in the status those that nobody has acknowledged."""
    expectations: Annotated[
        list[ExpectationReport],
        BeforeValidator(_cut_to(EXPECTATIONS_KEPT)),
        Field(max_length=EXPECTATIONS_KEPT),
    ] = Field(default_factory=list)
    """Expectations that were not met since the checkpoint began, the most frequent first."""
    error: Text | None = None
    """Why the table is refused and what to do about it; its records are held."""


class CheckpointReport(Part):
    """The progress of the pipeline."""

    batch_id: Count | None = None
    """The last batch that was committed."""
    committed_at: Time | None = None
    """When that batch was committed."""
    maintained_at: Time | None = None
    """When this run last compacted or vacuumed a table (``spec.maintenance``)."""
    lag_records: Count | None = None
    """Records of the source that are not applied yet. Absent if unknown."""
    lag_seconds: Annotated[float, Field(ge=0, le=1e12)] | None = None
    """The age of the newest change that is applied; 0 when nothing is left to apply."""
    event_time: Time | None = None
    """When the source made the newest change that is applied."""
    caught_up: bool | None = None
    """Whether everything that the source has is applied. What waits counts as not applied."""
    waiting: (
        Annotated[list[Phrase], BeforeValidator(_cut_to(WAITING_SHOWN)), Field(max_length=WAITING_SHOWN)]
        | None
    ) = None
    """The first of the files that the source has and that cannot be read, each with the reason. The driver
    reads each of them as soon as it can."""
    complete_position: Phrase | None = None
    """The position of the source up to which all changes of all tables are applied. Absent if unknown. See
    docs/consistent-reads.md.
    """
    complete_time: Time | None = None
    """When the source made the change at completePosition."""
    observed_at: Time | None = None
    """When the driver reported this; it does so at least every 30 s. Old figures make Ready unknown."""


class CompleteReport(Part):
    """Up to where a log of the source is applied."""

    log: Word
    """What the connector calls itself (``source.name``)."""
    below: Word
    """All changes before this position are applied: ``__seq``, or what comes next after one, as hexadecimal
    digits."""
    time: Time | None = None
    """When the source made the change there."""


class SourceReport(Part):
    """Whether a driver can reach its source."""

    reached_at: Time | None = None
    """When this run reached the source first; nothing until it has."""
    lost_since: Time | None = None
    """Since when the source cannot be reached; nothing while it can."""
    error: Text | None = None
    """Why it cannot be reached, in the words of the source's client."""


class VerifiedTable(Part):
    """A table that was compared with its source, and is not equal to it."""

    source: SourceName
    """The name of the table in the source."""
    missing: Count = 0
    """Keys that the mirror lacks."""
    extra: Count = 0
    """Keys that the source does not have."""
    differing: Count = 0
    """Keys whose rows differ."""
    arriving: Count = 0
    """Keys that differ, perhaps because their changes have not arrived."""
    keys: Annotated[list[Phrase], BeforeValidator(_cut_to(KEYS_KEPT)), Field(max_length=KEYS_KEPT)] = Field(
        default_factory=list
    )
    """Some of the keys that are wrong: in verified.json beside the checkpoint, not in the status."""
    error: Text | None = None
    """Why the table could not be compared."""


class Verification(Part):
    """The result of the last comparison of the mirrors with their source (``spec.verify``)."""

    began_at: Time | None = None
    """When it began."""
    ended_at: Time | None = None
    """When the driver ended."""
    equal: bool | None = None
    """Whether all tables were compared and are equal."""
    tables: Count = 0
    """How many tables were compared."""
    rows: Count = 0
    """How many rows their mirrors had."""
    unequal: Count = 0
    """How many of the tables are not equal, or could not be compared."""
    findings: Annotated[
        list[VerifiedTable], BeforeValidator(_cut_to(FINDINGS_SHOWN)), Field(max_length=FINDINGS_SHOWN)
    ] = Field(default_factory=list)
    """The first of those tables."""
    error: Text | None = None
    """Why nothing could be compared."""


class Report(CheckpointReport):
    """What a driver says of itself at one moment."""

    pipeline: Word = ""
    run_id: Word | None = None
    pod: Word | None = None
    """The uid of the pod that it runs in; nothing from drivers that have none or do not tell."""
    revision: Word | None = None
    """The revision of the spec that it runs, as the operator counts revisions."""
    started_at: Time | None = None
    phase: DriverPhase | None = None
    source: SourceReport | None = None
    """Whether it can reach the source; nothing from drivers that do not tell."""
    overdue_seconds: Annotated[float, Field(ge=0, le=1e12)] | None = None
    """For how long more than ``trigger.interval`` a change may have been waiting. Absent if unknown."""
    batches: Count = 0
    """How many batches of the source and of resyncs this run has applied."""
    batch_seconds: Annotated[float, Field(ge=0, le=1e12)] = 0.0
    """How long they took together."""
    totals: Totals = Totals()
    complete: list[CompleteReport] = Field(default_factory=list)
    """Up to where each log of the source is applied, as far as that is known."""
    verified: Verification | None = None
    """What came of the last comparison with the source; nothing before the first."""
    tables_total: Count = 0
    """How many tables there are, also where ``tables`` has fewer."""
    tables: list[TableReport] = Field(default_factory=list)
    resyncing: list[Word] = Field(default_factory=list)
    """Sources of tables, as the manifest lists them, that are being read again."""
    source_restarted: Text | None = None
    """Why the source's positions that started again ended the run: of drivers of earlier versions."""
    positions_restarted: Text | None = None
    """Which tables wait because the source's positions started again, and what to declare."""
    source_lost: Text | None = None
    """The message of the ChangesLost that ended the run."""
    table_failed: Text | None = None
    """The message of the TableFailed that ended the run."""
    failure: Text | None = None
    """What ended the run."""
    warnings: list[Phrase] = Field(default_factory=list)
    """The last messages that a person should see."""
    shortened_by: Phrase | None = None
    """What was left out so that the report fits; progress.json beside the checkpoint has all of it."""

    def shortened(self, most: int = REPORT_BYTES) -> Report:
        """Return a report that fits in a ConfigMap: of at most that many bytes, and without keys of rows.

        Whatever the names and texts are, totals stay, and so do the tables that a person should see first.
        """
        cut = {name: cut_off(value, _most(name)) for name, value in self if isinstance(value, str)}
        verified = None if self.verified is None else without_keys(self.verified)
        tables = shown_tables(self.tables)
        whole = self.model_copy(update={**cut, "tables": tables, "verified": verified})
        for step in _STEPS:
            if whole.size <= most:
                break
            whole = step(whole)
        return whole

    @property
    def size(self) -> int:
        """The number of bytes of the report as JSON."""
        return len(self.text().encode(errors="surrogatepass"))

    def text(self) -> str:
        """Return the report as JSON, without spaces."""
        return json.dumps(self.document(), separators=(",", ":"), ensure_ascii=False)


def shown_tables(tables: Iterable[TableReport], most: int = TABLES_SHOWN) -> list[TableReport]:
    """Return the tables that a person should see first: errors, the newest drift, the least recently updated.

    There are at most ``most``; long texts and long lists of columns are cut.
    """
    return [_short(table) for table in sorted(tables, key=_rank)[:most]]


def _rank(table: TableReport) -> tuple[bool, float, str, str]:
    """Return the sort key: smaller is more important. A table without events yet has nothing to wait for.

    The newest drift comes first, because nobody has acknowledged it yet: tables whose drift is old must not
    hide it.
    """
    seen = (datetime.fromisoformat(each.seen).timestamp() if each.seen else 0.0 for each in table.drift)
    newest = -max(seen, default=-inf)
    return table.error is None, newest, table.last_event_time or "9", table.source


def _short(table: TableReport) -> TableReport:
    drift = [_cut(each) for each in table.drift[:DRIFTS_SHOWN]]
    expectations = [_cut(each) for each in table.expectations[:EXPECTATIONS_SHOWN]]
    return _cut(table).model_copy(update={"drift": drift, "expectations": expectations})


def without_keys(verified: Verification) -> Verification:
    """Return a comparison without keys of rows, which not everybody may see who may see the status."""
    findings = [_cut(each).model_copy(update={"keys": []}) for each in verified.findings]
    return _cut(verified).model_copy(update={"findings": findings})


def _cut(part: P, most: int = MESSAGE_SHOWN) -> P:
    return part.model_copy(update={n: cut_off(v, min(most, _most(n))) for n, v in part if isinstance(v, str)})


def _most(name: str) -> int:
    """Return how many characters of a text a person needs to see, by the name of its field."""
    if name in ("source_restarted", "positions_restarted", "source_lost", "table_failed", "failure"):
        return MESSAGE_SHOWN
    return ERROR_SHOWN if name == "error" else TEXT_SHOWN


def _lists(most: int, characters: int) -> Callable[[Report], Report]:
    """Return a step that shortens lists, and the texts of tables, which a driver writes itself."""

    def step(report: Report) -> Report:
        tables = [
            _cut(table, characters).model_copy(
                update={
                    "drift": [_cut(each, characters) for each in table.drift[:most]],
                    "expectations": [_cut(each, characters) for each in table.expectations[:most]],
                }
            )
            for table in report.tables
        ]
        warnings = [cut_off(each, characters) for each in report.warnings[-most:]] if most else []
        lists = {"tables": tables, "complete": report.complete[: 10 * most], "warnings": warnings}
        return report.model_copy(update={**lists, "shortened_by": _said(report, tables)})

    return step


def _tables(most: int) -> Callable[[Report], Report]:
    """Return a step that leaves out the tables that matter less: the first ones are those that failed."""

    def step(report: Report) -> Report:
        tables = report.tables[:most]
        return report.model_copy(update={"tables": tables, "shortened_by": _said(report, tables)})

    return step


def _without_rest(report: Report) -> Report:
    """Leave out all lists but that of tables that are read again, by which the operator knows tokens."""
    kept: dict[str, Any] = {name: cut_off(text, 256) for name, text in report if isinstance(text, str)}
    gone: dict[str, Any] = {"complete": [], "warnings": [], "tables": [], "verified": None, "waiting": None}
    return report.model_copy(update={**kept, **gone, "shortened_by": _said(report, [])})


def _said(report: Report, tables: list[TableReport]) -> str:
    return (
        f"the report was too long, so that it has {len(tables)} of {report.tables_total} tables, and shorter "
        "lists and texts: progress.json beside the checkpoint has all of it"
    )


_STEPS: Final = (
    *(_lists(*each) for each in ((5, 512), (2, 256), (0, 128))),
    *(_tables(TABLES_SHOWN * each // 8) for each in (6, 4, 3, 2, 1)),
    _without_rest,
)
"""What is done, one after the other, until a report fits: first what matters least."""
