"""What is asked of Delta's own objects for logs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakemirror.driver.java import java_class
from lakemirror.driver.tables.delta import append, applied_at, snapshot

pytestmark = pytest.mark.long


def test_transactions_are_read_from_a_checkpoint_in_a_new_thread(spark: SparkSession, tmp_path: Path) -> None:
    """No session is active there. Commits of the engine leave no checksum files, which would tell, too."""
    path = str(tmp_path / "t")
    for _ in range(3):
        append(spark.range(1), path, {"delta.checkpointInterval": "1"})
    log = Path(path, "_delta_log")
    assert list(log.glob("*.checkpoint.parquet"))
    for each in log.glob("*.crc"):
        each.unlink()
    java_class(spark, "org.apache.spark.sql.delta.DeltaLog").clearCache()
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: applied_at(snapshot(spark, path), "q")).result() is None
