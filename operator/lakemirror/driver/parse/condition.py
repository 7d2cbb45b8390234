"""``tables[].filter``: an SQL condition on the rows of a table, with the columns as the mirror names them.

A row for which the condition is false or null does not belong in the mirror. An event that shows such a row
acts as a delete at its sequence or, if events are appended, is not a row change at all. A row that stops
meeting the condition is therefore removed, and an older event does not bring it back. Deletes and truncates
pass. An event for whose row the condition fails goes to the quarantine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, DataType, StructField, StructType

from lakemirror.driver.codes import WITH_ROW, Op
from lakemirror.driver.parse.attempt import Fallible, attempted

LACKS: Final = "lacks"
"""The column of an event frame with the columns that its row, which has no schema, does not show."""
MEETS: Final = "meets"
"""The column of an event frame that says whether a row meets the filter (BOOLEAN); null if none is shown."""
LEFT_OUT: Final = "n"
"""The op of an event that is not appended."""
_WHOLE: Final = "__lakemirror_event"
_OF_THE_MOMENT: Final = ("Now", "LocalTimestamp")
_SUBQUERIES: Final = ("ListQuery", "Exists")
_SUCH_AS: Final = {"a condition": "status = 'active'", "an expression": "price * quantity"}


class WrongCondition(ValueError):
    """An invalid condition on a row; the message says why, as the end of a sentence."""


@dataclass(frozen=True)
class Condition:
    """A checked condition: its SQL, and the columns that it reads."""

    sql: str
    columns: tuple[str, ...]


def parse(spark: SparkSession, sql: str, what: str = "a condition") -> None:
    """Raise WrongCondition if ``sql`` is not a Spark expression, or needs more than one row.

    Messages call it ``what``. Whether its columns and functions exist is not checked.
    """
    parser: Any = spark._jsparkSession.sessionState().sqlParser()
    try:
        tree = parser.parseExpression(sql)
    except ParseException as error:
        raise WrongCondition(f"cannot be parsed: {_first(error)}") from None
    for node in _nodes(tree):
        name = _name(node)
        if _is_subquery(name):
            raise WrongCondition(f"has a subquery: {what} sees one row only")
        if name.startswith("Window"):
            raise WrongCondition(f"has a window function: {what} sees one row only")
        if name in ("UnresolvedStar", "Alias"):
            raise WrongCondition(f"is not {what}: write one such as {_SUCH_AS[what]}")


def checked(spark: SparkSession, sql: str, columns: Mapping[str, DataType]) -> Condition:
    """Check a condition on rows with these columns; raises WrongCondition."""
    kind, read = resolved(spark, sql, columns)
    if not isinstance(kind, BooleanType):
        raise WrongCondition(f"is of type {kind.simpleString()}: a condition is true or false")
    return Condition(sql, read)


def resolved(
    spark: SparkSession, sql: str, columns: Mapping[str, DataType], what: str = "a condition"
) -> tuple[DataType, tuple[str, ...]]:
    """Return the type of an expression on rows with these columns, and the columns that it reads.

    Raises WrongCondition if the expression needs more than one row, or has a different value each time.
    """
    parse(spark, sql, what)
    schema = StructType([StructField(name, kind) for name, kind in columns.items()])
    empty: DataFrame = spark.createDataFrame([], schema)
    try:
        found = empty.select(F.expr(sql).alias("found"))
    except AnalysisException as error:
        raise WrongCondition(f"cannot be evaluated: {_first(error)}") from None
    plan = found._jdf.queryExecution().analyzed()
    if _name(plan) != "Project" or not plan.child().children().isEmpty():
        raise WrongCondition(f"has an aggregate or generator: {what} sees one row only")
    [tree] = _items(plan.expressions())
    for node in _nodes(tree):
        name = _name(node)
        if name.startswith("Current") or name in _OF_THE_MOMENT or _is_random(node):
            what = node.prettyName()
            raise WrongCondition(f"has {what}, whose value is not the same each time a record is read")
    read = {str(each.name()).casefold() for each in _items(tree.references().toSeq())}
    named = tuple(sorted(name for name in columns if name.casefold() in read))
    return found.schema["found"].dataType, named


def without_gaps(
    events: DataFrame, condition: Condition, place: str, remedy: str, *, keyed: bool
) -> DataFrame:
    """Add a ``problem`` to the records of an event frame whose row is not known well enough.

    If rows have a key, no value may be missing: the row may enter the mirror with this event, and then the
    value that the source did not send stays unknown. Otherwise only the columns that the condition reads must
    be present. A row without a schema must show these columns in any case: that a member is absent does not
    tell whether its value is null, or the source has no such column any more.
    """
    read = F.array(*map(F.lit, condition.columns)).cast("array<string>")
    missing = F.size("gaps") > 0 if keyed else F.arrays_overlap("gaps", read)
    listed = F.concat_ws(", ", F.col("gaps"))
    reason = F.concat(
        F.lit("the source did not send "), listed, F.lit(f", and {place} needs the whole row: {remedy}")
    )
    problem = F.coalesce(
        "problem",
        F.when(F.coalesce(missing, F.lit(False)), reason),
        F.when(F.arrays_overlap(LACKS, read), lacking(condition, place)),
    )
    return events.withColumns({"problem": problem, "key": F.when(problem.isNull(), F.col("key"))})


def lacking(condition: Condition, place: str) -> Column:
    """Return the reason why a condition cannot be decided for a row without a schema (STRING)."""
    read = F.array(*map(F.lit, condition.columns)).cast("array<string>")
    return F.concat(
        F.lit("the record lacks "),
        F.concat_ws(", ", F.array_intersect(F.col(LACKS), read)),
        F.lit(
            f", which {place} reads: send null if the value is null, or change the condition if the source "
            "no longer has the column, and run `lakemirror replay`"
        ),
    )


def decided(events: DataFrame, condition: Condition, place: str) -> DataFrame:
    """Add `MEETS` to an event frame, and a ``problem`` to records for whose row the condition fails."""
    whole, event = F.struct(*[F.col(name) for name in events.columns]).alias(_WHOLE), F.col(_WHOLE)
    shown = event["op"].isin(*WITH_ROW) & event["problem"].isNull()
    found = attempted(F.coalesce(F.expr(condition.sql), F.lit(False)), shown)
    marked = events.select(whole, "row.*").select(f"{_WHOLE}.*", shown.alias("_shown"), found.alias("_found"))
    fails = F.col("_shown") & F.col("_found").isNull()
    problem = F.coalesce("problem", F.when(fails, F.lit(Fallible(condition.sql, place).reason)))
    changed = {
        "problem": problem,
        "key": F.when(problem.isNull(), F.col("key")),
        MEETS: F.col("_found.value"),
    }
    return marked.withColumns(changed).drop("_shown", "_found")


def applied(events: DataFrame, *, keyed: bool) -> DataFrame:
    """Leave out the events whose row does not meet the condition or, if rows have a key, make them deletes.

    In the latter case, the column ``was`` has the original op of each event.
    """
    shows_row = F.col("op").isin(*WITH_ROW) & F.col("problem").isNull()
    out = shows_row & ~F.coalesce(F.col(MEETS), F.lit(False))
    if not keyed:
        return events.withColumn("op", F.when(out, LEFT_OUT).otherwise(F.col("op"))).drop(MEETS)
    changed = {"was": F.col("op"), "op": F.when(out, Op.DELETE).otherwise(F.col("op"))}
    row = events.schema["row"].dataType
    assert isinstance(row, StructType)
    nothing = F.struct(*[F.lit(None).cast(each.dataType).alias(each.name) for each in row.fields])
    blank = {"row": nothing, "texts": F.lit(None), "old_key": F.lit(None)}
    for name, value in blank.items():
        changed[name] = F.when(out, value.cast(events.schema[name].dataType)).otherwise(F.col(name))
    return events.withColumns(changed).drop(MEETS)


def _nodes(tree: Any) -> Iterator[Any]:
    yield tree
    for child in _items(tree.children()):
        yield from _nodes(child)


def _is_random(node: Any) -> bool:
    """Return whether the node itself, rather than one of its parts, has a different value each time."""
    return not node.deterministic() and all(child.deterministic() for child in _items(node.children()))


def _items(items: Any) -> list[Any]:
    return [items.apply(i) for i in range(items.size())]


def _name(node: Any) -> str:
    return str(node.getClass().getSimpleName()).removesuffix("$")


def _is_subquery(name: str) -> bool:
    return "Subquery" in name or name in _SUBQUERIES


def _first(error: Exception) -> str:
    """Return Spark's message in one line, without the error code and the plan."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = lines[0] if lines else type(error).__name__
    return said.partition("] ")[2].partition(" SQLSTATE")[0] or said
