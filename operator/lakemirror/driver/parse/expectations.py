"""``tables[].expectations``: conditions that the rows of a table should meet.

Each event that shows a row is judged on its own, before events are reduced. A verdict therefore does not
depend on batches or on the order of delivery. As with a CHECK constraint of Delta, a row meets a condition
only if the condition is true; null does not count.

A condition that fails for a row is not met by it if violations are only counted. Otherwise, nobody can tell,
and the record goes to the quarantine.

A value that an event did not carry (`gaps`) was judged with the event that did carry it. An event that
carries none of the columns that a condition reads is therefore not judged. If it carries only some of them,
or if a row without a schema lacks one of them, the condition cannot be decided: the event goes to the
quarantine, unless violations are only counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lakemirror.api.tables import Violation
from lakemirror.driver.codes import WITH_ROW
from lakemirror.driver.parse.attempt import Fallible, attempted
from lakemirror.driver.parse.condition import LACKS, MEETS, Condition, lacking

VIOLATIONS: Final = "violations"
"""The column of an event frame with the names of the expectations that the event's row does not meet.

It is null if the row meets all of them.
"""
_WHOLE: Final = "__lakemirror_event"


@dataclass(frozen=True)
class Expected:
    """An expectation with a checked condition; ``place`` is its place in the manifest."""

    name: str
    condition: Condition
    on_violation: Violation
    place: str


def judged(events: DataFrame, expected: Sequence[Expected], remedy: str) -> DataFrame:
    """Add the column `VIOLATIONS` to an event frame, and a ``problem`` to records that go to the quarantine.

    ``remedy`` says how the source is made to send whole rows.

    Only events that show a row, can be applied, and meet the filter (`MEETS`), if there is one, are judged.
    """
    kept = F.coalesce(F.col(MEETS), F.lit(False)) if MEETS in events.columns else F.lit(True)
    shown = F.col("op").isin(*WITH_ROW) & F.col("problem").isNull() & kept
    can_tell = {
        f"_can{i}": shown & _sent(each.condition)[0] & ~_lacks(each) for i, each in enumerate(expected)
    }
    events = events.withColumns({"_shown": shown, **can_tell})
    whole, event = F.struct(*[F.col(name) for name in events.columns]).alias(_WHOLE), F.col(_WHOLE)
    meets = [
        attempted(F.coalesce(F.expr(each.condition.sql), F.lit(False)), event[f"_can{i}"]).alias(f"_e{i}")
        for i, each in enumerate(expected)
    ]
    marked = events.select(whole, "row.*").select(f"{_WHOLE}.*", *meets)
    shown = F.col("_shown")
    violated, reasons = [], []
    for i, each in enumerate(expected):
        sent, left_out = _sent(each.condition)
        bad = F.col(f"_can{i}") & ~F.coalesce(F.col(f"_e{i}.value"), F.lit(False))
        fails = F.col(f"_can{i}") & F.col(f"_e{i}").isNull()
        violated.append(F.when(bad & ~fails if each.on_violation == "fail" else bad, F.lit(each.name)))
        if each.on_violation != "warn":
            reasons.append(F.when(fails, F.lit(Fallible(each.condition.sql, each.place).reason)))
        if each.on_violation == "quarantine":
            reasons.append(F.when(bad, _violated(each)))
        if each.on_violation != "warn":
            reasons.append(F.when(shown & _lacks(each), lacking(each.condition, each.place)))
            reasons.append(F.when(shown & ~sent & ~left_out, _undecided(each, remedy)))
    names = F.array_compact(F.array(*violated))
    found = marked.withColumn(VIOLATIONS, F.when(F.size(names) > 0, names))
    problem = F.coalesce("problem", *reasons)
    return found.withColumns({"problem": problem, "key": F.when(problem.isNull(), F.col("key"))}).drop(
        "_shown", *can_tell, *[f"_e{i}" for i in range(len(expected))]
    )


def _sent(condition: Condition) -> tuple[Column, Column]:
    """Return whether an event carries all columns that a condition reads, and whether it carries none."""
    gaps = F.coalesce("gaps", F.array().cast("array<string>"))
    left_out = [F.array_contains(gaps, name) for name in condition.columns]
    sent, nothing = F.lit(True), F.lit(bool(left_out))
    for each in left_out:
        sent, nothing = sent & ~each, nothing & each
    return sent, nothing


def _lacks(each: Expected) -> Column:
    """Return whether an event without a schema does not show a column that a condition reads (BOOLEAN)."""
    read = F.array(*map(F.lit, each.condition.columns)).cast("array<string>")
    return F.coalesce(F.arrays_overlap(LACKS, read), F.lit(False))


def _violated(each: Expected) -> Column:
    return F.lit(f"the row does not meet the expectation {each.name}, {each.condition.sql} ({each.place})")


def _undecided(each: Expected, remedy: str) -> Column:
    return F.concat(
        F.lit("the source did not send "),
        F.concat_ws(", ", F.col("gaps")),
        F.lit(
            f", so that nobody can tell whether the row meets the expectation {each.name}, "
            f"{each.condition.sql} ({each.place}): {remedy}, or onViolation: warn"
        ),
    )
