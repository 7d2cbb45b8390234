"""What all tests share: one Spark session, one Kafka broker."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from lakemirror.api.spark_settings import ENGINE
from lakemirror.driver import faults
from lakemirror.driver.java import java_class
from lakemirror.driver.runtime.session import create_session
from tests.support import engines
from tests.support.kafka_broker import Broker, start_broker
from tests.support.skips import pytest_runtest_makereport

__all__ = ["pytest_runtest_makereport"]  # a hook: that it is here is enough

# Short runs: what the JVM gains by compiling well is less than what the compiler takes.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m")


INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""A test's tables are tiny and all different: to interpret a plan is faster than to compile it. With
LAKEMIRROR_TESTS_COMPILE set plans are compiled, as users' are; CI has a lane of tests that does so. With
LAKEMIRROR_TESTS_ENGINE=spark, changes are applied by Spark's own plans, and not in columns as by default.
"""


@pytest.fixture(autouse=True)
def nothing_armed() -> Iterator[None]:
    """A test that failed leaves no crash behind for the next one."""
    yield
    faults._armed.clear()


@pytest.fixture(autouse=True)
def no_tables_of_tests_before() -> Iterator[None]:
    """Delta keeps the state of each table for an hour: that of many tests together fills the JVM's memory."""
    yield
    session = SparkSession.getActiveSession()
    if session is not None:
        java_class(session, "org.apache.spark.sql.delta.DeltaLog").clearCache()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A small local session; one for the whole test process."""
    warehouse = tmp_path_factory.mktemp("warehouse")
    session = create_session(
        "lakemirror-tests",
        {
            "spark.master": "local[2]",
            "spark.sql.shuffle.partitions": "2",
            "spark.driver.memory": "3g",
            "spark.sql.warehouse.dir": str(warehouse),
            # VACUUM lists folders with so many tasks, by default 10,000.
            "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
            **({} if os.environ.get("LAKEMIRROR_TESTS_COMPILE") else INTERPRETED),
            **({ENGINE: engine} if (engine := os.environ.get("LAKEMIRROR_TESTS_ENGINE")) else {}),
        },
    )
    yield session
    session.stop()


@pytest.fixture
def stages_of_spark(spark: SparkSession) -> Iterator[None]:
    """The test is about what happens in them: nothing is applied in columns."""
    with engines.by_spark(spark):
        yield


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A Kafka broker of the test run's own; skips where none can be started."""
    with start_broker(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker
