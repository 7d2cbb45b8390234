"""Which engine applies the changes of a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from pyspark.sql import SparkSession

from lakemirror.api.spark_settings import BY_SPARK, ENGINE, IN_COLUMNS


@contextmanager
def in_columns(spark: SparkSession) -> Iterator[SparkSession]:
    """Have plain changes applied in columns until the block ends."""
    with _engine(spark, IN_COLUMNS):
        yield spark


@contextmanager
def by_spark(spark: SparkSession) -> Iterator[SparkSession]:
    """Have all changes applied by Spark's own plans until the block ends."""
    with _engine(spark, BY_SPARK):
        yield spark


@contextmanager
def _engine(spark: SparkSession, value: str) -> Iterator[None]:
    former = spark.conf.get(ENGINE, "") or ""
    spark.conf.set(ENGINE, value)
    try:
        yield
    finally:
        spark.conf.set(ENGINE, former)


@pytest.fixture(autouse=True)
def only_stages_of_spark(request: pytest.FixtureRequest) -> None:
    """For the conftest of a folder: nothing is applied in columns in tests that have a session."""
    if "spark" in request.fixturenames:
        request.getfixturevalue("stages_of_spark")
