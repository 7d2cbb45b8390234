"""Expressions that are made once and used in each batch.

To build an expression takes a call to the JVM for each of its parts, 0.1 ms each: seconds for a wide table.
To select columns takes a call for each of them, and then Spark analyses the whole plan.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import wraps
from typing import Any, Final, ParamSpec, TypeVar

from pyspark import SparkContext
from pyspark.sql import Column, DataFrame, SparkSession

from lakemirror.driver.java import java_class

_AT_MOST = 1000
"""Results of one function that are kept."""

Given = ParamSpec("Given")
Made = TypeVar("Made")


def kept(make: Callable[Given, Made]) -> Callable[Given, Made]:
    """Keep what a function makes of its arguments, which have to be hashable. Expressions belong to a JVM."""
    made: dict[Hashable, Made] = {}

    @wraps(make)
    def get(*args: Given.args, **options: Given.kwargs) -> Made:
        key = (id(SparkContext._gateway), args, tuple(sorted(options.items())))
        if key not in made:
            if len(made) >= _AT_MOST:
                made.clear()
            made[key] = make(*args, **options)
        return made[key]

    return get


_CLASSIC: Final = "org.apache.spark.sql.classic"
_PLANS: Final = "org.apache.spark.sql.catalyst.plans.logical"


class Selections:
    """Lists of columns to select one after the other, as many calls of ``DataFrame.select`` would, and
    conditions to filter by in between.

    Spark analyses them together, once a frame, and Python calls it once for each list instead of each column.
    """

    def __init__(self, steps: Sequence[Sequence[Column] | Column]) -> None:
        self._steps = steps
        self._session: SparkSession | None = None
        self._made: list[tuple[str, Any]] = []

    def of(self, frame: DataFrame) -> DataFrame:
        """What the steps make of a frame. Raises AnalysisException where they do not fit it."""
        spark = frame.sparkSession
        if self._session is not spark:  # whose settings may say what an expression means
            self._made = [_node(spark, step) for step in self._steps]
            self._session = spark
        plan = frame._jdf.logicalPlan()
        for kind, given in self._made:
            plan = java_class(spark, f"{_PLANS}.{kind}")(given, plan)
        datasets = java_class(spark, f"{_CLASSIC}.Dataset")
        return DataFrame(datasets.ofRows(spark._jsparkSession, plan), spark)


def _node(spark: SparkSession, step: Sequence[Column] | Column) -> tuple[str, Any]:
    """The node of a plan that a step is, and what is in it."""
    if isinstance(step, Column):
        return "Filter", spark._jsparkSession.expression(step._jc)
    return "Project", _named(spark, step)


def _named(spark: SparkSession, columns: Sequence[Column]) -> Any:
    """The Scala sequence of columns as expressions with a name."""
    utils = java_class(spark, f"{_CLASSIC}.ExpressionUtils")
    listed = java_class(spark, "java.util.ArrayList")()
    for column in columns:
        listed.add(utils.toNamed(spark._jsparkSession.expression(column._jc)))
    return java_class(spark, "org.apache.spark.api.python.PythonUtils").toSeq(listed)
