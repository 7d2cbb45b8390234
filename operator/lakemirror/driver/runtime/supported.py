"""Makes the driver refuse what is not supported (`lakemirror.api.supported`)."""

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
    """The manifest asks for something that this version does not do, or that would have no effect."""


class WrongFilter(LakemirrorError):
    """A table's filter or expectation is not a valid condition on a row, or an expression is not valid."""


def require_conditions(pipeline: CdcPipeline, spark: SparkSession) -> None:
    """Raise WrongFilter for the first filter, expectation or expression that Spark cannot parse.

    The column names in it are checked when the table's columns are known.
    """
    for path, sql, what in _sql(pipeline):
        try:
            condition.parse(spark, sql, what)
        except WrongCondition as error:
            raise WrongFilter(line(path, f"{sql!r} {error}")) from None


def _sql(pipeline: CdcPipeline) -> Iterator[tuple[str, str, str]]:
    """Yield the path of each condition and expression in the manifest, its SQL, and what it is."""
    for table in pipeline.spec.tables:
        place = f"spec.tables[{table.source}]"
        if table.filter is not None:
            yield f"{place}.filter", table.filter, "a condition"
        for each in table.expectations or ():
            yield f"{place}.expectations[{each.name}].condition", each.condition, "a condition"
        for name, sql in table.expressions.items():
            yield f"{place}.columns.expressions[{name}]", sql, "an expression"


def require_supported(pipeline: CdcPipeline) -> None:
    """Raise NotSupported if fields are refused. The message names all of them."""
    found = not_supported(pipeline.spec)
    if found:
        raise NotSupported("; ".join(line(path, message) for path, message in found))
