"""Evaluates the filters of tables in Spark, for the rows that the first stage of the job hands on.

A filter is resolved once, beside the columns that it reads. What comes of that is an expression that knows
its columns by their IDs. In each batch, the slots of the rows get these IDs, whatever the columns are called:
tables may have columns of one name with different types, and nothing is parsed or resolved again.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, reduce
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructField, StructType

from lakemirror.driver.engine.believed import Filter
from lakemirror.driver.engine.blocks import SCHEMA
from lakemirror.driver.engine.filters import MEETS, Questions
from lakemirror.driver.java import java_class
from lakemirror.driver.parse.attempt import attempted

_EXPRESSIONS = "org.apache.spark.sql.catalyst.expressions"
_MOST_FILTERS = 2_000
_ROW, _FILTER = "row", "filter"
_TYPES = {pa.int32(): IntegerType(), pa.string(): StringType(), pa.binary(): BinaryType()}


def schema_of(questions: Questions) -> StructType:
    """Return the schema of what the first stage hands on if Spark is asked about rows (`blocks.PARCELS`)."""
    found = StructType()
    for each in SCHEMA:
        found.add(each.name, _TYPES[each.type])
    for name in (_ROW, _FILTER):
        found.add(name, IntegerType())
    for slot in questions.slots:
        found.add(slot.name, slot.type)
    return found


def judged(parcels: DataFrame, questions: Questions) -> DataFrame:
    """Return parcels with the answers: whether each row among them meets its filter, in `MEETS`."""
    slots = tuple((each, tuple(names.items())) for each, names in questions.filters)
    columns, meets = _expressions(parcels.sparkSession, slots)
    kept = [F.col(name) for name in (*SCHEMA.names, _ROW)]
    return parcels.select(*kept, _FILTER, *columns).select(*kept, meets.alias(MEETS))


_Slots = tuple[tuple[str, str], ...]
"""The columns that a filter reads, each with its slot."""


@lru_cache(maxsize=4)
def _expressions(
    spark: SparkSession, filters: tuple[tuple[Filter, _Slots], ...]
) -> tuple[list[Column], Column]:
    """Return the columns that filters read, under any names, and whether a row meets the filter it names.

    Only the filter of a row is evaluated for it: null if that fails (`parse.attempt`).
    """
    columns, cases = list[Column](), list[tuple[Column, Column]]()
    for number, (each, slots) in enumerate(filters):
        tree, identities = _resolved(spark, each)
        columns += [
            _named(spark, F.col(slot), f"column_{number}_{i}", identities[name])
            for i, (name, slot) in enumerate(slots)
        ]
        mine = F.col(_FILTER) == number
        found = attempted(F.coalesce(_column(spark, tree), F.lit(False)), F.coalesce(mine, F.lit(False)))
        cases.append((mine, found["value"]))
    (first, value), *others = cases
    return columns, reduce(lambda chosen, each: chosen.when(*each), others, F.when(first, value))


@lru_cache(maxsize=_MOST_FILTERS)
def _resolved(spark: SparkSession, of: Filter) -> tuple[Any, Mapping[str, Any]]:
    """Return the expression of a filter, and the IDs of the columns that it reads, by name."""
    schema = StructType([StructField(name, kind) for name, kind in of.columns])
    empty: DataFrame = spark.createDataFrame([], schema)
    plan = empty.select(F.expr(of.sql).alias(MEETS))._jdf.queryExecution().analyzed()
    found = plan.child().output()
    columns = [found.apply(i) for i in range(found.size())]
    return plan.projectList().apply(0).child(), {each.name(): each.exprId() for each in columns}


def _named(spark: SparkSession, column: Column, name: str, identity: Any) -> Column:
    """Return a column under a name, as the one that an expression knows by this ID."""
    nothing = java_class(spark, "scala.collection.immutable.Nil$").__getattr__("MODULE$")
    none = java_class(spark, "scala.None$").__getattr__("MODULE$")
    expression = _trees(spark).expression(cast(Any, column)._jc)
    alias = java_class(spark, f"{_EXPRESSIONS}.Alias")
    return _column(spark, alias(expression, name, identity, nothing, none, nothing))


def _column(spark: SparkSession, tree: Any) -> Column:
    return cast(Column, cast(Any, type(F.lit(None)))(_trees(spark).column(tree)))


def _trees(spark: SparkSession) -> Any:
    return java_class(spark, "org.apache.spark.sql.classic.ExpressionUtils")
