"""Makes the driver refuse what is not supported (`lakemirror.api.supported`)."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

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


def require_catalog(pipeline: CdcPipeline, spark: SparkSession) -> None:
    """Raise NotSupported if mirrors would be in a catalog and a folder that are gone with a pod."""
    settings, warehouse = pipeline.spec.spark.conf, "spark.sql.warehouse.dir"
    place = str(spark.conf.get(warehouse, ""))
    named = [table.target for table in pipeline.spec.tables if table.target is not None]
    if not any(target.table is not None for target in (pipeline.spec.target, *named)):
        return
    in_memory = spark.conf.get("spark.sql.catalogImplementation", "in-memory") == "in-memory"
    own = spark.catalog.currentCatalog() == "spark_catalog"
    local = urlsplit(place).scheme in ("", "file") and warehouse not in settings
    if in_memory and own and local and not str(spark.sparkContext.master).startswith("local"):
        raise NotSupported(
            "spec.target.table: the session has only Spark's own catalog, which is in memory, and its "
            f"warehouse {place} is on the disk of the driver's pod: both are gone with the pod. Set another "
            f"catalog in spec.spark.conf (docs/catalogs.md), or {warehouse} to a folder that all pods see, "
            "or use spec.target.path"
        )


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
