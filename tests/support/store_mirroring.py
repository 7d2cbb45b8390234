"""Pipelines whose mirrors and checkpoint stand in an object store."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import Row, SparkSession

from tests.support.mirroring import Mirroring, at
from tests.support.object_store import Bucket


class StoreMirroring(Mirroring):
    """A `Mirroring` that reads files of this machine and writes all into a bucket."""

    def __init__(
        self,
        folder: Path,
        bucket: Bucket,
        settings: Mapping[str, Any] | None = None,
        master: str = "local[2]",
    ) -> None:
        self.bucket = bucket
        conf = {**bucket.conf(), "spark.sql.codegen.wholeStage": "false", "spark.driver.memory": "1g"}
        super().__init__(
            folder,
            {
                "target": {"path": f"{bucket.uri}/lake/{{db}}/{{schema}}/{{table}}"},
                "checkpoint": f"{bucket.uri}/checkpoint",
                "spark": {"conf": {**conf, "spark.master": master}},
                **(settings or {}),
            },
        )
        self.checkpoint = f"{bucket.uri}/checkpoint"

    def path(self, db: str, schema: str | None, table: str) -> str:
        return f"{self.bucket.uri}/lake/{db}/{schema or db}/{table}"

    def told_twice(self, spark: SparkSession) -> list[Row]:
        """What the audit tells of a batch and table more than once."""
        audit = at(spark, f"{self.checkpoint}/audit")
        return audit.groupBy("query_id", "batch_id", "source").count().where("count > 1").collect()

    def logs(self) -> dict[str, list[int]]:
        """The versions in every Delta log, by path in the bucket."""
        return {
            str(log.parent.relative_to(self.bucket.files)): sorted(
                int(file.stem) for file in log.glob("*.json") if file.stem.isdigit()
            )
            for log in sorted(self.bucket.files.rglob("_delta_log"))
        }

    def versions(self) -> dict[str, int]:
        return {path: versions[-1] for path, versions in self.logs().items() if versions}
