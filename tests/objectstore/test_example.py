"""The example that mirrors into a bucket does so."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakemirror.api import CdcPipeline
from lakemirror.driver.runtime.runner import run
from tests.support.mirroring import at
from tests.support.object_store import Bucket

pytestmark = pytest.mark.sources
ROOT = Path(__file__).parents[2]


@pytest.mark.thorough
def test_the_example_ends_in_a_bucket(
    s3: SparkSession, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    text = (ROOT / "examples/object-store" / "pipeline.yaml").read_text("utf-8")
    pipeline = CdcPipeline.from_yaml(text.replace("s3a://lake/", f"{bucket.uri}/"))
    run(pipeline, once=True, spark=s3)
    tables = {log.parent.name for log in bucket.files.glob("public/*/_delta_log")}
    assert {"customers", "products", "orders"} <= tables
    assert at(s3, f"{bucket.uri}/public/customers").count() > 0
    assert (bucket.files / "_checkpoints" / "inventory" / "audit" / "_delta_log").is_dir()
