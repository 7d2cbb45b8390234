"""What is measured: ours, the floor below any apply, and the textbook's way. All read the same files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from benchmarks.events import SPARK_TYPES
from lakemirror.api import CdcPipeline
from lakemirror.driver.runner import run

COLUMNS = ("id", *SPARK_TYPES)
"""The table's columns, without what a contender adds."""
_LINE = "topic STRING, partition INT, offset BIGINT, timestamp BIGINT, key STRING, value STRING"
_IMAGE = "struct<id: int, owner: string, balance: bigint, tier: string, updated_at: timestamp>"
_ENVELOPE = f"op string, before {_IMAGE}, after {_IMAGE}, source struct<lsn: bigint, snapshot: string>"


class Contender(Protocol):
    """Keeps a table in its own folder."""

    name: str

    def load(self, snapshot: Sequence[Path]) -> None:
        """Mirror the first rows; not measured."""

    def apply(self, batch: Path) -> None:
        """Apply one batch; measured."""

    def table(self) -> DataFrame:
        """The rows as they are now."""


class Ours:
    """Lakemirror, whole: `lakemirror.driver.runner.run` over one more file each time.

    Checkpoint, ownership, quarantine and audit are part of what is measured.
    """

    name = "lakemirror"

    def __init__(self, spark: SparkSession, folder: Path, schemas: bool) -> None:
        self._spark, self._folder = spark, folder
        self._input = folder / "input"
        self._input.mkdir(parents=True)
        self._pipeline = CdcPipeline.from_yaml(_manifest(folder))

    def load(self, snapshot: Sequence[Path]) -> None:
        for path in snapshot:
            self._offer(path)
        run(self._pipeline, once=True, spark=self._spark)

    def apply(self, batch: Path) -> None:
        self._offer(batch)
        run(self._pipeline, once=True, spark=self._spark)

    def table(self) -> DataFrame:
        return self._spark.read.format("delta").load(f"{self._folder}/lake/accounts").select(*COLUMNS)

    def _offer(self, path: Path) -> None:
        number = sum(1 for _ in self._input.iterdir())
        (self._input / f"{number:06d}.jsonl").hardlink_to(path)


def _manifest(folder: Path) -> str:
    types = ", ".join(f"{name}: {kind}" for name, kind in {"id": "int", **SPARK_TYPES}.items())
    return f"""
apiVersion: lakemirror.io/v1alpha1
kind: CdcPipeline
metadata: {{name: bench}}
spec:
  source: {{files: {{path: "{folder}/input", format: records, maxFilesPerBatch: 1000}}}}
  envelope: {{format: debezium, encoding: json}}
  target: {{path: "{folder}/lake/{{table}}"}}
  tables: [{{source: public.accounts, columns: {{types: {{{types}}}}}}}]
  checkpoint: "{folder}/checkpoint"
  trigger: {{availableNow: true}}
"""


class Textbook:
    """What Delta's documentation shows for change data: parse, keep the newest event of a key, MERGE."""

    name = "textbook"

    def __init__(self, spark: SparkSession, folder: Path, schemas: bool) -> None:
        self._spark, self._path, self._schemas = spark, str(folder / "table"), schemas

    def load(self, snapshot: Sequence[Path]) -> None:
        rows = _changes(self._spark, snapshot, schemas=False).select("after.*")
        rows.repartition(4).write.format("delta").save(self._path)

    def apply(self, batch: Path) -> None:
        newest = Window.partitionBy("key.id").orderBy(F.desc("source.lsn"))
        latest = (
            _changes(self._spark, [batch], self._schemas)
            .withColumn("nth", F.row_number().over(newest))
            .where("nth = 1")
            .select("op", "key.id", F.struct(*(f"after.{name}" for name in SPARK_TYPES)).alias("row"))
            .select("op", "id", "row.*")
        )
        values: dict[str, str | Column] = {name: F.col(f"s.{name}") for name in COLUMNS}
        (
            DeltaTable.forPath(self._spark, self._path)
            .alias("t")
            .merge(latest.alias("s"), "t.id = s.id")
            .whenMatchedDelete("s.op = 'd'")
            .whenMatchedUpdate(set=values)
            .whenNotMatchedInsert("s.op <> 'd'", values)
            .execute()
        )

    def table(self) -> DataFrame:
        return self._spark.read.format("delta").load(self._path)


class Floor:
    """No apply at all: parse the events and append them. Nothing that stores them can be faster."""

    name = "floor"

    def __init__(self, spark: SparkSession, folder: Path, schemas: bool) -> None:
        self._spark, self._path, self._schemas = spark, str(folder / "table"), schemas

    def load(self, snapshot: Sequence[Path]) -> None:
        self._append(snapshot[0], schemas=False)

    def apply(self, batch: Path) -> None:
        self._append(batch, self._schemas)

    def _append(self, batch: Path, schemas: bool) -> None:
        _changes(self._spark, [batch], schemas).write.format("delta").mode("append").save(self._path)

    def table(self) -> DataFrame:
        return self._spark.read.format("delta").load(self._path)


def _changes(spark: SparkSession, files: Sequence[Path], schemas: bool) -> DataFrame:
    """The change events of saved records, whose values embed their schema or don't."""
    lines = spark.read.schema(_LINE).json([str(path) for path in files]).where("value IS NOT NULL")
    if schemas:
        value = F.from_json("value", f"payload struct<{_ENVELOPE}>")["payload"]
        key = F.from_json("key", "payload struct<id: int>")["payload"]
    else:
        value, key = F.from_json("value", _ENVELOPE), F.from_json("key", "id int")
    return lines.select(value.alias("v"), key.alias("key")).select("key", "v.*")
