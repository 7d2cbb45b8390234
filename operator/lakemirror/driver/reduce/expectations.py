"""Determines how many of a batch's events violate a table's expectations.

Also decides whether one of the violations holds the table (``onViolation: fail``).

In mode scd1, a violation that a newer change of the same row has overtaken, in the batch or in the mirror, is
visible nowhere. It therefore does not hold the table: held records are applied automatically once the source
has corrected its rows, whether or not both changes come in the same batch. If every event is kept, each one
counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lakemirror.driver.codes import WITH_ROW
from lakemirror.driver.parse.expectations import VIOLATIONS, Expected
from lakemirror.driver.plan.mirrored import MirroredTable
from lakemirror.driver.plan.refusal import Refused
from lakemirror.driver.plan.table import TablePlan
from lakemirror.driver.reduce.events import ARRIVAL
from lakemirror.driver.reduce.scd1 import is_newer
from lakemirror.driver.reduce.table import Reduced, bounded, merging
from lakemirror.driver.results import Violated
from lakemirror.driver.tables.columns import T


def violations(table: MirroredTable, plan: TablePlan, reduced: Reduced) -> tuple[Violated, ...]:
    """Return what the events of a batch violate. Raises Refused if that holds the table."""
    expected = plan.reading.expectations
    if not expected or reduced.events is None:
        return ()
    counts = reduced.events.agg(
        *[
            F.coalesce(
                F.sum(F.when(F.array_contains(VIOLATIONS, each.name), F.col("records"))), F.lit(0)
            ).alias(f"_{i}")
            for i, each in enumerate(expected)
        ]
    ).first()
    assert counts is not None
    found = {each: int(counts[i]) for i, each in enumerate(expected) if counts[i]}
    failing = [each for each in found if each.on_violation == "fail"]
    if failing:
        _refuse(table, plan, reduced, failing)
    return tuple(
        Violated(each.name, each.on_violation, records)
        for each, records in found.items()
        if each.on_violation != "fail"
    )


def _refuse(table: MirroredTable, plan: TablePlan, reduced: Reduced, failing: Sequence[Expected]) -> None:
    """Raise Refused if a row that would be shown violates one of these expectations."""
    bad = _shown(table, plan, reduced, [each.name for each in failing])
    place = F.struct("seq", "topic", "partition", "offset")
    for each in failing:
        mine = bad.where(F.array_contains(VIOLATIONS, each.name))
        row = mine.agg(
            F.count("*").alias("records"),
            F.min(place).alias("first"),
        ).first()
        if row is None or not row["records"]:
            continue
        at = row["first"]  # and not the row's key, which not everybody may see who may see the status
        first = f"the record {at['topic']}/{at['partition']}/{at['offset']}"
        overtaken = "when a later change of these rows meets it, or " if plan.mode == "scd1" else ""
        raise Refused(
            f"{row['records']} record(s) of {table.name} do not meet the expectation {each.name}, "
            f"{each.condition.sql}, the first of them {first}, and {each.place}.onViolation is fail: the "
            f"table's records are held. They are applied by themselves {overtaken}when the manifest's "
            "condition lets them through; to apply them as they are, set onViolation: warn"
        )


def _shown(table: MirroredTable, plan: TablePlan, reduced: Reduced, names: Sequence[str]) -> DataFrame:
    """Return the events that have one of these violations and whose row would be shown."""
    assert reduced.events is not None
    violates = F.arrays_overlap(VIOLATIONS, F.array(*map(F.lit, names)))
    bad = reduced.events.where("problem IS NULL").where(violates)
    bad = bad.select("key", "seq", *ARRIVAL, VIOLATIONS)
    if plan.mode != "scd1":
        return bad
    written = _written(table, plan, reduced).select(
        F.col("key").alias("_key"), F.struct(*ARRIVAL).alias("_place")
    )
    is_it = (F.col("key") == F.col("_key")) & (F.struct(*ARRIVAL) == F.col("_place"))
    return bad.join(written, is_it, "left_semi")


def _written(table: MirroredTable, plan: TablePlan, reduced: Reduced) -> DataFrame:
    """Return the states whose row the mirror shows after the batch: key, and where their event was read."""
    assert reduced.state is not None
    states = reduced.state.frame.where(F.col("key").isNotNull() & F.col("op").isin(*WITH_ROW))
    if plan.seen.floor is not None:  # if deletes are soft, the truncate leaves a deleted row
        states = states.where(F.col("seq") > F.lit(plan.seen.floor))
    if not table.mirror.exists:
        return states.select("key", *ARRIVAL)
    stored = bounded(table.rows(), plan, reduced)
    kinds = {each.name: each.dataType for each in stored.schema}
    same_key = [T(name) == F.col("s.key")[name] for name in plan.reading.key]
    both = states.alias("s").join(stored, reduce(Column.__and__, same_key), "left")
    columns = {name: kind for name, kind in plan.reading.columns.items() if kinds.get(name) == kind}
    newer = is_newer(replace(merging(plan, reduced), columns=columns))
    shown = both.where(T(plan.reading.key[0]).isNull() | newer)
    return shown.select("s.key", *[f"s.{name}" for name in ARRIVAL])
