"""Clauses of `lakemirror.driver.reduce.changes` as column expressions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField

from lakemirror.driver.reduce.changes import Changes, Clause
from lakemirror.driver.tables.columns import T
from lakemirror.driver.tables.delta import quoted


def first_of(clauses: Sequence[Clause]) -> Column:
    """INT: the index of the first clause that holds; null if none does."""
    found = F.lit(None).cast("int")
    for i, each in reversed(list(enumerate(clauses))):
        found = F.when(each.when, i).otherwise(found)
    return found


def value_of(name: str, clauses: Sequence[Clause], kept: Column) -> Column:
    """Return a column's value after the clause ``choice``, or ``kept`` if that clause does not set it."""
    value = kept
    for i, each in enumerate(clauses):
        if each.values is not None and name in each.values:
            value = F.when(F.col("choice") == i, each.values[name]).otherwise(value)
    return value


def typed(value: Column, field: StructField) -> Column:
    return value.cast(field.dataType).alias(field.name)


def same_key(changes: Changes) -> Column:
    """BOOLEAN: whether the stored row has the state's key.

    Names are qualified, because a table may have columns of any name.
    """
    return reduce(Column.__and__, [T(name) == F.col(f"s.key.{quoted(name)}") for name in changes.key])


def resolved(
    joined: DataFrame, fields: Sequence[StructField], changes: Changes, matched: Column, *kept: str
) -> DataFrame:
    """Return what happens to stored rows ``t`` and states ``s``, which are side by side where ``matched``.

    The result has the columns that are ``kept``, ``gone`` for a row that is deleted, and the row itself as
    ``n``.
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
    gone = (matched & F.col("choice").isin(_deletes(changes.matched))).alias("gone")
    chosen = joined.withColumn("choice", choice).where("choice IS NOT NULL")
    return chosen.select(*kept, gone, F.struct(*values).alias("n"))


def folded(joined: DataFrame, fields: Sequence[StructField], changes: Changes) -> DataFrame:
    """Return what happens to all rows, given stored rows ``t`` and states ``s`` joined by their keys.

    ``t`` or ``s`` is null if only the other one exists. In the result, ``n`` is the row afterwards, and
    ``fate`` is what the batch does to it: ``inserted``, ``updated``, ``deleted``, or null.
    """
    stored, state = F.col("t").isNotNull(), F.col("s.key").isNotNull()
    kinds = [(stored & state, changes.matched), (stored, changes.untouched), (F.lit(True), changes.unmatched)]
    choice = F.coalesce(*[F.when(when, F.coalesce(first_of(clauses), F.lit(-1))) for when, clauses in kinds])
    values = [
        typed(
            F.when(stored & state, value_of(each.name, changes.matched, T(each.name)))
            .when(stored, value_of(each.name, changes.untouched, T(each.name)))
            .otherwise(value_of(each.name, changes.unmatched, F.lit(None))),
            each,
        )
        for each in fields
    ]
    fate = (
        F.when(F.col("choice") < 0, None)
        .when(~stored, "inserted")
        .when(state & F.col("choice").isin(_deletes(changes.matched)), "deleted")
        .when(~state & F.col("choice").isin(_deletes(changes.untouched)), "deleted")
        .otherwise("updated")
    )
    chosen = joined.withColumn("choice", choice).where(stored | (F.col("choice") >= 0))
    return chosen.select(fate.alias("fate"), F.struct(*values).alias("n"))


def _deletes(clauses: Sequence[Clause]) -> list[int]:
    return [i for i, each in enumerate(clauses) if each.values is None]
