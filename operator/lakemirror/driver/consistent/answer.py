"""Determines what to read from mirrors to see one state of the source, or why there is no answer.

This module holds the values and the decisions between them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from lakemirror.driver.consistent import text
from lakemirror.driver.consistent.cuts import Commit, Cut, Span, always, spans
from lakemirror.driver.consistent.epochs import epoch_of
from lakemirror.driver.consistent.reach import BEGIN, END
from lakemirror.driver.document import iso
from lakemirror.driver.errors import LakemirrorError


class NotOneLog(LakemirrorError):
    """The tables follow several logs, whose positions cannot be compared."""


@dataclass(frozen=True)
class TableAt:
    """What to read from a table.

    This is ``version`` of ``target``, as read by ``query`` (Spark SQL). If there is no such version,
    ``reason`` says why.
    """

    source: str
    target: str | None = None
    version: int | None = None
    query: str | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Moment:
    """A position for which all tables have a version. ``text`` is a shorter form of it, if there is one."""

    seq: str
    text: str | None
    versions: Mapping[str, int]

    @classmethod
    def of(cls, cut: Cut | None, like: str, epoch: int = 0) -> Moment | None:
        """Return the first position of a cut, written in the form of ``like``.

        A text belongs to ``epoch``, the newest one, so that no text names a position of another epoch.
        """
        if cut is None:
            return None
        short = text.between(cut.since, cut.until, like) if epoch_of(cut.since) == epoch else None
        return cls(cut.since, short, cut.versions)

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"seq": self.seq, "position": self.text, "versions": dict(self.versions)}


@dataclass(frozen=True)
class ReadAt:
    """The answer for a position.

    ``complete`` is the position, as text, up to which the tables have all changes, or None if that is
    unknown. If not all tables have a version for the position, ``before`` and ``after`` are the nearest
    positions for which all of them have one.
    """

    position: str
    seq: str
    log: str | None
    complete: str | None
    tables: tuple[TableAt, ...]
    before: Moment | None = None
    after: Moment | None = None

    @property
    def found(self) -> bool:
        """Whether all tables can be read as of the position."""
        return all(table.reason is None for table in self.tables)

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "position": self.position,
            "seq": self.seq,
            "log": self.log,
            "found": self.found,
            "complete": self.complete,
            "tables": [
                {
                    "source": each.source,
                    "target": each.target,
                    "version": each.version,
                    "query": each.query,
                    "reason": each.reason,
                }
                for each in self.tables
            ],
            "before": self.before and self.before.to_document(),
            "after": self.after and self.after.to_document(),
        }


@dataclass(frozen=True)
class History:
    """What the audit says about a table.

    This is the versions of its ``target``, the ``logs`` that its changes came from (None if a log is
    unknown), and ``gap``, a position before all of its records that were quarantined or held. The changes up
    to the position ``summed`` came with batches that are summed up, the last of which was done ``summed_at``.
    """

    target: str | None
    commits: tuple[Commit, ...]
    logs: frozenset[str | None]
    gap: str | None
    summed: str = BEGIN
    summed_at: datetime | None = None


def one_log(
    histories: Mapping[str, History], wanted: Sequence[str], log: str | None
) -> tuple[str | None, list[str]]:
    """Return the log that the ``wanted`` tables follow, and the tables that follow it.

    ``log`` chooses one of several. Raises NotOneLog.
    """
    logs = {name for source in wanted for name in histories[source].logs if name is not None}
    if log is not None:
        found = [source for source in wanted if histories[source].logs <= {log, None}]
        if log not in logs or not found:
            there = ", ".join(sorted(logs)) or "none"
            raise NotOneLog(f"{log} is not a log that these tables follow; these are: {there}")
        return log, found
    if len(logs) > 1:
        raise NotOneLog(
            f"the tables follow several logs ({', '.join(sorted(logs))}), and a position means something "
            f"in one of them: choose one, or the tables of one"
        )
    return next(iter(logs), None), list(wanted)


def require_positions(source: str, history: History) -> None:
    """Raise LakemirrorError if a table's changes cannot be placed in one log."""
    if len(history.logs - {None}) > 1 or any(each.last == END for each in history.commits):
        raise LakemirrorError(f"{source}: its changes have no positions in one log of the source")


def first_waiting(source: str, history: History, open_counts: Mapping[str, Mapping[str, int]]) -> str:
    """Return a position before all open records of a table in the quarantine, or END if there are none.

    ``open_counts`` has the number of open records by table ("" if the table is unknown) and scope.
    """
    waiting = [name for name in ("", source) if any(open_counts.get(name, {}).values())]
    if not waiting:
        return END
    if "" in waiting or any(open_counts[name].get("order") for name in waiting):
        return BEGIN
    return history.gap or BEGIN


def dated_spans(
    mode: str, commits: Sequence[Commit], until: str, last_read: str
) -> tuple[Sequence[Span], str]:
    """Return the spans of a table whose rows record when they were valid (modes ``append`` and ``scd2``).

    The second value is the position from which on the newest version can be filtered for any position.
    ``last_read`` is the position of the last row that was read from the source's table rather than from a
    change.
    """
    begins = max(
        (each.last for each in commits if each.first == BEGIN),
        default=min(each.first for each in commits),
    )
    dated = begins if mode == "append" else max(begins, last_read)
    newest = max(each.version for each in commits)
    before = [
        replace(span, until=min(span.until, dated)) for span in spans(commits, until) if span.since < dated
    ]
    return [*before, *always(newest, until, dated)], dated


def why_none(source: str, seq: str, history: History, *, below: str, waiting: str) -> str:
    """Return why a table has no version for a position.

    All changes before ``below`` are applied. From ``waiting`` on, records may be in quarantine.
    """
    if seq >= below:
        return (
            f"{source}: changes from before the position may not have arrived yet: wait until the "
            f"pipeline is complete up to there, or pass --settled if nothing more is on its way"
        )
    if seq >= waiting:
        return (
            f"{source}: records that may lie before the position are in quarantine: apply them "
            f"(`lakemirror replay`)"
        )
    if seq < min((each.first for each in history.commits), default=END):
        return f"{source}: the mirror begins after the position"
    if seq < history.summed and history.summed_at is not None:
        return (
            f"{source}: which version shows the position is no longer known, because batches until "
            f"{iso(history.summed_at)} are summed up (spec.retention.audit)"
        )
    return (
        f"{source}: no version has all changes up to the position and no others: one commit has changes "
        f"from before and after it, or changes came later than those after them"
    )


def query(place: str, mode: str, key: Sequence[str], seq: str | None) -> str:
    """Return the Spark SQL that reads a table's rows.

    ``place`` is its version, and ``key`` its quoted key columns. ``seq`` is the position that rows are
    filtered for, or None if the version itself shows it.
    """
    if seq is None:
        return f"SELECT * FROM {place}" + (" WHERE __is_current" if mode == "scd2" else "")
    if mode == "append":
        return f"SELECT * FROM {place} WHERE __seq <= X'{seq}'"
    newest = f"row_number() OVER (PARTITION BY {', '.join(key)} ORDER BY __seq DESC) AS __newest"
    return (
        f"SELECT * EXCEPT (__newest) FROM (SELECT *, {newest} FROM {place} WHERE __seq <= X'{seq}') "
        f"WHERE __newest = 1 AND (__delete_seq IS NULL OR __delete_seq > X'{seq}')"
    )
