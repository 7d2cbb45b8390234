"""Evaluates expressions of the manifest so that a row for which one fails is marked, and fails nothing else.

Spark has functions that return null instead of failing, one for each operation (``try_divide``). What they
are made of, the expression ``TryEval``, takes any expression. It is not a function of SQL, and Spark may
compute a subexpression that occurs twice in advance, outside of it. It therefore stands in a function of
``transform``, out of which nothing is moved (``CodegenFallback`` in Spark's ``EquivalentExpressions``), and
in a branch of a CASE, where no constant is folded (``ConstantFolding``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from pyspark import SparkContext
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lakemirror.driver.errors import cause_of
from lakemirror.driver.java import java_class

_ROW = "__lakemirror_row"


@dataclass(frozen=True)
class Fallible:
    """An expression that may fail for a row: its ``sql``, and its ``place`` in the manifest."""

    sql: str
    place: str

    @property
    def reason(self) -> str:
        """Why a record goes to the quarantine for whose row the expression fails."""
        return f"{self.place}, {self.sql}, fails for the row"


def attempted(value: Column, where: Column) -> Column:
    """STRUCT<value>: what an expression evaluates to where ``where`` is true; null elsewhere and if it fails.

    ``where`` is a BOOLEAN that is not null.
    """
    return F.transform(F.array(where), lambda wanted: F.when(wanted, _tried(value))).getItem(0)


def _tried(value: Column) -> Column:
    """STRUCT<value>: what an expression evaluates to; null if it fails."""
    context, whole = SparkContext._active_spark_context, F.struct(value.alias("value"))
    assert context is not None
    trees = java_class(context, "org.apache.spark.sql.classic.ExpressionUtils")
    try_eval = java_class(context, "org.apache.spark.sql.catalyst.expressions.TryEval")
    tried = try_eval(trees.expression(cast(Any, whole)._jc))
    return cast(Column, cast(Any, type(whole))(trees.column(tried)))


def causes(events: DataFrame, fallible: Sequence[Fallible]) -> dict[str, str]:
    """Return what Spark says of a row for which an expression fails, by the ``problem`` of such events.

    One job takes a row for each of the ``fallible`` expressions, which the driver evaluates itself.
    """
    reasons = {each.reason: each.sql for each in fallible}
    failing = events.where(F.col("problem").isin(*reasons)) if reasons else None
    if failing is None:
        return {}
    sampled: Any = failing.groupBy("problem").agg(F.first("row").alias(_ROW))._jdf
    session = events.sparkSession
    local = session._jsparkSession.createDataFrame(sampled.collectAsList(), sampled.schema())
    samples = DataFrame(local, session)
    return {reason: why for reason, sql in reasons.items() if (why := _cause(samples, reason, sql))}


def _cause(samples: DataFrame, reason: str, sql: str) -> str | None:
    row = samples.where(F.col("problem") == reason).select(f"{_ROW}.*")
    try:
        row.select(F.expr(sql).alias("value")).collect()
    except Exception as error:
        return cause_of(error)
    return None


def explained(reasons: Mapping[str, str]) -> Column:
    """STRING: the ``problem`` of an event, with what Spark says of it, if ``reasons`` (`causes`) know it."""
    found = F.col("problem")
    for reason, why in reasons.items():
        told = f"{reason}; Spark says of one such row: {why}"
        found = F.when(F.col("problem") == reason, F.lit(told)).otherwise(found)
    return found
