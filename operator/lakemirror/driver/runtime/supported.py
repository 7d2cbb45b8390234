"""The driver's refusal of what is not supported (`lakemirror.api.supported`)."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql import SparkSession

from lakemirror.api import CdcPipeline
from lakemirror.api.errors import line
from lakemirror.api.supported import not_supported
from lakemirror.driver.errors import LakemirrorError
from lakemirror.driver.parse import condition
from lakemirror.driver.parse.condition import WrongCondition


class NotSupported(LakemirrorError):
    """The manifest asks for what this version does not do, or for what would have no effect."""


class WrongFilter(LakemirrorError):
    """The filter or an expectation of a table is no condition on a row, or an expression is none of one."""


def require_conditions(pipeline: CdcPipeline, spark: SparkSession) -> None:
    """Raises WrongFilter for the first filter, expectation or expression that Spark cannot parse. Which
    columns it names is judged when the table's are known.
    """
    for path, sql, what in _sql(pipeline):
        try:
            condition.parse(spark, sql, what)
        except WrongCondition as error:
            raise WrongFilter(line(path, f"{sql!r} {error}")) from None


def _sql(pipeline: CdcPipeline) -> Iterator[tuple[str, str, str]]:
    """Where conditions and expressions stand in the manifest, their SQL, and what they are."""
    for table in pipeline.spec.tables:
        place = f"spec.tables[{table.source}]"
        if table.filter is not None:
            yield f"{place}.filter", table.filter, "a condition"
        for each in table.expectations or ():
            yield f"{place}.expectations[{each.name}].condition", each.condition, "a condition"
        for name, sql in table.expressions.items():
            yield f"{place}.columns.expressions[{name}]", sql, "an expression"


def require_supported(pipeline: CdcPipeline) -> None:
    """Raises NotSupported, which names every field that is refused."""
    found = not_supported(pipeline.spec)
    if found:
        raise NotSupported("; ".join(line(path, message) for path, message in found))
