"""Runs a pipeline over deliveries of records, in a folder of its own, and reads what it wrote."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from lakemirror.api import CdcPipeline
from lakemirror.driver.runtime.runner import run
from lakemirror.driver.runtime.summary import RunSummary
from lakemirror.driver.tables.delta import quoted
from tests.support import delivery

Settings = Mapping[str, Any]


class Mirroring:
    """A pipeline with its input, its lake and its checkpoint under one folder.

    `settings` go into the manifest's spec. Each batch that is delivered becomes one file and one micro-batch.
    """

    def __init__(self, folder: Path, settings: Settings | None = None, *, name: str = "test") -> None:
        self.folder, self.input, self.lake = folder, folder / "input", folder / "lake"
        self.checkpoint: Any = folder / "checkpoint"
        self.manifest = folder / "pipeline.yaml"
        spec = {
            "source": {"files": {"path": str(self.input), "format": "records", "maxFilesPerBatch": 1}},
            "envelope": {"format": "debezium", "encoding": "json"},
            "target": {"path": f"{self.lake}/{{db}}/{{schema}}/{{table}}"},
            "checkpoint": str(self.checkpoint),
            "trigger": {"availableNow": True},
            **(settings or {}),
        }
        document = {
            "apiVersion": "lakemirror.io/v1alpha1",
            "kind": "CdcPipeline",
            "metadata": {"name": name},
            "spec": spec,
        }
        folder.mkdir(parents=True, exist_ok=True)
        self.manifest.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")

    @property
    def pipeline(self) -> CdcPipeline:
        return CdcPipeline.from_yaml(self.manifest.read_text(encoding="utf-8"))

    def deliver(self, batches: delivery.Batches) -> Mirroring:
        """Put batches after those that are there."""
        delivery.write(batches, self.input)
        return self

    def run(self, spark: SparkSession) -> RunSummary:
        """Apply all that is there."""
        return run(self.pipeline, once=True, spark=spark)

    def path(self, db: str, schema: str | None, table: str) -> str:
        """Where a mirror stands."""
        return f"{self.lake}/{db}/{schema or db}/{table}"

    def versions(self) -> dict[str, int]:
        """The newest version of every Delta log of the pipeline, by path: mirrors and their side tables."""
        logs = sorted(self.folder.glob("lake/**/_delta_log"))
        return {
            str(log.parent): max(int(f.stem) for f in log.glob("*.json") if f.stem.isdigit()) for log in logs
        }


def rows(table: DataFrame) -> DataFrame:
    """A mirror's rows without its metadata columns."""
    return table.select([quoted(name) for name in table.columns if not name.startswith("__")])


def at(spark: SparkSession, path: str, version: int | None = None) -> DataFrame:
    """A mirror's rows, now or at a version."""
    reader = spark.read.format("delta")
    return rows((reader if version is None else reader.option("versionAsOf", version)).load(path))


def commits(spark: SparkSession, path: str) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Version, operation and our own note of each commit of a table, oldest first."""
    history = DeltaTable.forPath(spark, path).history().select("version", "operation", "userMetadata")
    for version, operation, note in sorted(history.collect()):
        yield version, operation, json.loads(note) if note else {}


def audited(spark: SparkSession, mirroring: Mirroring, counts: Sequence[str]) -> dict[str, dict[str, int]]:
    """Sums of ``counts`` by table, from the audit table."""
    audit = spark.read.format("delta").load(f"{mirroring.checkpoint}/audit")
    rows = audit.where("source IS NOT NULL").groupBy("source").sum(*counts).collect()
    return {row["source"]: {name: row[f"sum({name})"] for name in counts} for row in rows}
