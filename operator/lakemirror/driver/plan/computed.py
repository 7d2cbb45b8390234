"""Columns that the manifest computes from others (``columns.expressions``).

Determines their types, and whether the mirror's columns fit the expressions.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from pyspark.sql.types import DataType, StringType

from lakemirror.api import Table
from lakemirror.driver.parse.computed import Computed
from lakemirror.driver.parse.condition import WrongCondition
from lakemirror.driver.plan.columns import with_consequence
from lakemirror.driver.plan.drift import DriftPlan, fits, widened
from lakemirror.driver.plan.mirrored import MirroredTable
from lakemirror.driver.plan.refusal import Refused, new_mirror
from lakemirror.driver.results import Drift, DriftAction, DriftChange
from lakemirror.driver.tables.columns import SHARD


def computed_of(
    table: MirroredTable, alteration: DriftPlan, dropped: Collection[str]
) -> tuple[dict[str, Computed], DriftPlan]:
    """Return a table's expressions and the alteration that also covers their columns.

    Each expression has the type of its column, given the columns after ``alteration``. ``dropped`` are the
    mirror's columns that the source no longer has. Raises Refused for an expression that does not fit the
    columns.
    """
    columns: dict[str, DataType] = dict(alteration.columns)
    if not columns:
        return {}, alteration
    if table.shard is not None:
        columns = {SHARD: StringType(), **columns}
    found = {}
    for name, sql in table.settings.expressions.items():
        place = f"tables[{table.settings.source}].columns.expressions[{name}]"
        each = _checked(table, sql, columns, place)
        gone = next((column for column in each.columns if column in dropped), None)
        if gone is not None:
            raise Refused(
                f"{place} reads {gone}, which the source does not have any more: set "
                f"tables[{table.settings.source}].target to a new place, with a new resyncToken and an "
                "expression without it, or add the column to the source again"
            )
        stored = (table.mirror.columns or {}).get(name)
        found[name] = each if stored is None else _as_stored(each, stored, place, table.settings)
        if stored is not None and found[name].kind != stored:
            alteration = _altered(table, alteration, name, stored, found[name].kind)
    return found, alteration


def _checked(table: MirroredTable, sql: str, columns: Mapping[str, DataType], place: str) -> Computed:
    try:
        return replace(table.computed(sql, columns), place=place)
    except WrongCondition as error:
        raise Refused(
            f"{place} {error}. It is computed of one row of the mirror, which has the columns "
            f"{', '.join(columns)}"
        ) from None


def _as_stored(each: Computed, stored: DataType, place: str, settings: Table) -> Computed:
    """Return the expression with the type that its column has or can get. Raises Refused if there is none."""
    if fits(each.kind, stored):
        return replace(each, kind=stored)
    common = widened(stored, each.kind)
    if common is None:
        raise Refused(
            f"{place} is of type {each.kind.simpleString()} now, because of the types of the columns that it "
            f"reads, and its column is of type {stored.simpleString()}, which cannot hold that: set "
            f"{new_mirror(settings)}"
        )
    return replace(each, kind=common)


def _altered(
    table: MirroredTable, alteration: DriftPlan, name: str, before: DataType, after: DataType
) -> DriftPlan:
    drift = Drift(name, DriftChange.WIDENED, before.simpleString(), after.simpleString(), DriftAction.ALTERED)
    altered = replace(alteration, alter={**alteration.alter, name: after})
    return replace(altered, drift=(*altered.drift, with_consequence(table, altered, drift)))
