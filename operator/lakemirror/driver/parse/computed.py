"""``columns.expressions``: columns computed from the other columns of their row, as named in the mirror."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from lakemirror.api.checks import QUOTED
from lakemirror.driver.codes import WITH_ROW
from lakemirror.driver.parse.attempt import Fallible, attempted
from lakemirror.driver.parse.condition import WrongCondition, resolved
from lakemirror.driver.tables.delta import quoted
from lakemirror.driver.tables.keys import can_be_key

_WHOLE = "__lakemirror_event"


@dataclass(frozen=True)
class Computed:
    """A checked expression: its SQL, the columns that it reads, its type, and its place in the manifest."""

    sql: str
    columns: tuple[str, ...]
    kind: DataType
    place: str = "columns.expressions"

    def of(self, row: Mapping[str, Column]) -> Column:
        """Return the value for a row.

        Each column that the expression reads is a lambda variable, so that Spark itself resolves the names in
        the SQL, whatever expressions make up the row's values.
        """
        if not self.columns:
            return F.expr(self.sql).cast(self.kind)
        given = "_" * (1 + max(map(len, self.columns)))  # longer than any column name
        # Spark cannot resolve a lambda variable whose name has a dot.
        names = {name: f"{given}{i}" if "." in name else name for i, name in enumerate(self.columns)}
        body = _renamed(self.sql, names)
        for i, name in enumerate(self.columns):
            variable = quoted(names[name])
            body = f"transform(array({given}.v{i}), {variable} -> {body})[0]"
        values = F.struct(*[row[name].alias(f"v{i}") for i, name in enumerate(self.columns)])
        found = F.call_function("transform", F.array(values), F.expr(f"{given} -> {body}"))
        return found.getItem(0).cast(self.kind)


def _renamed(sql: str, names: Mapping[str, str]) -> str:
    """Replace, in an expression, the column names that have a dot; they are in backticks."""
    others = {name.casefold(): other for name, other in names.items() if name != other}

    def each(found: re.Match[str]) -> str:
        text = found[0]
        inside = found.start() > 0 and sql[found.start() - 1] == "."  # a field of a struct
        if not text.startswith("`") or inside:
            return text
        other = others.get(text[1:-1].replace("``", "`").casefold())
        return quoted(other) if other else text

    return QUOTED.sub(each, sql)


def checked(spark: SparkSession, sql: str, columns: Mapping[str, DataType]) -> Computed:
    """Check an expression on rows with these columns; raises WrongCondition."""
    kind, read = resolved(spark, sql, columns, "an expression")
    if not can_be_key(kind):
        raise WrongCondition(
            f"is of type {kind.simpleString()}, which a computed column cannot have: cast it to another one"
        )
    return Computed(sql, read, kind)


def evaluated(events: DataFrame, computed: Sequence[Computed], *, keyed: bool) -> DataFrame:
    """Add a ``problem`` to the records of an event frame for whose row an expression fails.

    A division by zero, or text that is not a number, is thus found before anything is written. If rows have a
    ``key``, values that the source left out are filled in later, and expressions that read one are left out.
    """
    whole, event = F.struct(*[F.col(name) for name in events.columns]).alias(_WHOLE), F.col(_WHOLE)
    shown = event["op"].isin(*WITH_ROW) & event["problem"].isNull()
    fails = []
    for i, each in enumerate(computed):
        mine = shown & ~_lacks(event["gaps"], each) if keyed else shown
        fails.append((mine & attempted(F.expr(each.sql), mine).isNull()).alias(f"_fails{i}"))
    marked = events.select(whole, "row.*").select(f"{_WHOLE}.*", *fails)
    reasons = [
        F.when(F.col(f"_fails{i}"), F.lit(Fallible(each.sql, each.place).reason))
        for i, each in enumerate(computed)
    ]
    problem = F.coalesce("problem", *reasons)
    changed = {"problem": problem, "key": F.when(problem.isNull(), F.col("key"))}
    return marked.withColumns(changed).drop(*[f"_fails{i}" for i in range(len(fails))])


def _lacks(gaps: Column, computed: Computed) -> Column:
    """Return whether the source left out a value that an expression reads (BOOLEAN)."""
    read = F.array(*map(F.lit, computed.columns)).cast("array<string>")
    return F.coalesce(F.arrays_overlap(gaps, read), F.lit(False))
