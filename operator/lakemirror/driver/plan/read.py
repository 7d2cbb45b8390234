"""Refuses tables whose conditions read a column that the source no longer has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from lakemirror.driver.parse.decode import Reading
from lakemirror.driver.plan.lives import Turn
from lakemirror.driver.plan.mirrored import MirroredTable
from lakemirror.driver.plan.refusal import Refused, new_mirror
from lakemirror.driver.plan.schemas import Schema


def refuse_dropped(
    table: MirroredTable, reading: Reading, versions: Sequence[Schema], turns: Mapping[str, Turn]
) -> None:
    """Raise Refused if the schemas of a batch lack a column that a filter or an expectation reads.

    Nothing says what such rows are worth to the condition: as null, the absent value would take all rows that
    change out of a filtered mirror. A schema from before the column was added says that its value is null.
    Expectations that only warn are left alone. (A row without a schema is judged by its own members, see
    `lakemirror.driver.parse.condition`.)
    """
    back = {mirror: source for source, mirror in reading.names.items()}
    for place, columns, changed in _conditions(table, reading):
        for column in columns:
            source = back.get(column)
            if source is None or column in reading.defaults or column in reading.key:
                continue
            if _is_gone(source, versions, turns.get(source)):
                raise Refused(
                    f"{place} reads {column}, which the source's schema no longer has: nothing tells which "
                    f"rows meet it. Add the column to the source again, or {changed}"
                )


def _conditions(table: MirroredTable, reading: Reading) -> Iterator[tuple[str, Sequence[str], str]]:
    """Yield the conditions that decide about rows.

    Each is its place in the manifest, the columns that it reads, and how it is changed.
    """
    if reading.condition is not None:
        yield reading.place, reading.condition.columns, f"change the filter, and {new_mirror(table.settings)}"
    for each in reading.expectations:
        if each.on_violation != "warn":
            yield each.place, each.condition.columns, "change the expectation"


def _is_gone(source: str, versions: Sequence[Schema], turn: Turn | None) -> bool:
    """Return whether a schema of the batch lacks a column, and is not known to be older than the column."""
    whole = [each for each in versions if each.group.schema_id is not None]
    there = [each for each in whole if any(field.name == source for field in each.fields)]
    newest = max((each.group.last_seq or b"" for each in there), default=None)
    for each in whole:
        if each in there:
            continue
        last = each.group.last_seq or b""
        begins = turn.life.begins if turn is not None else None
        older = (begins is not None and last <= begins) or (newest is not None and last <= newest)
        if not older:
            return True
    return False
