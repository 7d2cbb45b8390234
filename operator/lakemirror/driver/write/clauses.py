"""Clauses of `lakemirror.driver.reduce.changes` as columns."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField

from lakemirror.driver.reduce.changes import Changes, Clause
from lakemirror.driver.tables.columns import T


def first_of(clauses: Sequence[Clause]) -> Column:
    """INT: which clause holds first; null where none does."""
    found = F.lit(None).cast("int")
    for i, each in reversed(list(enumerate(clauses))):
        found = F.when(each.when, i).otherwise(found)
    return found


def value_of(name: str, clauses: Sequence[Clause], kept: Column) -> Column:
    """A column after the clause ``choice``; ``kept`` where that does not give it a value."""
    value = kept
    for i, each in enumerate(clauses):
        if each.values is not None and name in each.values:
            value = F.when(F.col("choice") == i, each.values[name]).otherwise(value)
    return value


def typed(value: Column, field: StructField) -> Column:
    return value.cast(field.dataType).alias(field.name)


def resolved(
    joined: DataFrame, fields: Sequence[StructField], changes: Changes, matched: Column, *kept: str
) -> DataFrame:
    """What becomes of stored rows ``t`` and states ``s``, side by side where they are ``matched``: the
    columns that are ``kept``, ``gone`` for a row that is deleted, and the row itself as ``n``.
    """
    choice = F.when(matched, first_of(changes.matched)).otherwise(first_of(changes.unmatched))
    values = [
        typed(
            F.when(matched, value_of(each.name, changes.matched, T(each.name))).otherwise(
                value_of(each.name, changes.unmatched, F.lit(None))
            ),
            each,
        )
        for each in fields
    ]
    deletes = [i for i, each in enumerate(changes.matched) if each.values is None]
    gone = (matched & F.col("choice").isin(deletes)).alias("gone")
    chosen = joined.withColumn("choice", choice).where("choice IS NOT NULL")
    return chosen.select(*kept, gone, F.struct(*values).alias("n"))
