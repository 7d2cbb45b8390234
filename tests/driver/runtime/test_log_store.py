"""The Java classes for object stores are made where a store needs them."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from pyspark.sql import SparkSession

from lakemirror.api.object_stores import CONDITIONAL_FILE_MANAGER, CONDITIONAL_LOG_STORE, STORES
from lakemirror.driver.runtime import log_store


@pytest.mark.parametrize(("name", "needed"), [("azure", False), ("s3", True), ("gcs", True)])
def test_which_stores_need_them(
    name: str, needed: bool, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Delta has a log store for Google's, but Spark's streaming has nothing that creates its files safely."""
    [present] = [store.file_system for store in STORES if store.name == name]

    def compiled(spark: SparkSession) -> dict[str, bytes]:
        raise NotImplementedError

    monkeypatch.setattr(log_store, "knows", lambda spark, wanted: wanted == present)
    monkeypatch.setattr(log_store, "_compiled", compiled)
    with pytest.raises(NotImplementedError) if needed else nullcontext():
        log_store.install(spark)


def test_they_compile_without_the_jars_of_any_store(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = log_store.knows
    monkeypatch.setattr(log_store, "knows", lambda spark, wanted: "GoogleHadoop" in wanted)
    log_store.install(spark)
    assert known(spark, CONDITIONAL_LOG_STORE)
    assert known(spark, CONDITIONAL_FILE_MANAGER)
