"""A server with the API of S3, and a session that has the jars for it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from lakemirror.api.object_stores import STORES
from lakemirror.driver.java import java_class
from lakemirror.driver.runtime import jars, log_store
from tests.support.object_store import Bucket, Store, start_store

[S3] = [store for store in STORES if store.name == "s3"]


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with start_store(tmp_path_factory.mktemp("store")) as running:
        yield running


@pytest.fixture(scope="session")
def s3(store: Store, spark: SparkSession) -> SparkSession:
    """The session of all tests, with the jars of S3 as LAKEMIRROR_OBJECT_STORES=s3 would bring them."""
    if not log_store.knows(spark, S3.file_system):
        loader = java_class(spark, "java.lang.Thread").currentThread().getContextClassLoader()
        for jar in jars.ensure_store(S3):
            loader.addURL(java_class(spark, "java.io.File")(str(jar)).toURI().toURL())
    log_store.install(spark)
    return spark


@pytest.fixture
def bucket(store: Store, s3: SparkSession) -> Bucket:
    """A bucket that the session can use."""
    made = store.bucket(f"lake-{uuid.uuid4().hex[:8]}")
    settings = s3.sparkContext._jsc.hadoopConfiguration()  # type: ignore[union-attr]
    for name, value in made.hadoop().items():
        settings.set(name, value)
        s3.conf.set(name, value)  # the session's own settings were made before
    return made
