"""What is measured: ours, the floor below any apply, and the textbook's way. All read the same files."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from benchmarks.events import SPARK_TYPES
from lakemirror.api import CdcPipeline
from lakemirror.driver.runtime.runner import BatchDone, Event, run

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

    def close(self) -> None:
        """Stop what still runs."""


class Ours:
    """Lakemirror, whole: `runner.run` goes on in a thread and takes each file as it comes.

    Checkpoint, ownership, quarantine and audit are part of what is measured.
    """

    name = "lakemirror"

    def __init__(self, spark: SparkSession, folder: Path, schemas: bool) -> None:
        self._spark, self._folder = spark, folder
        self._input = folder / "input"
        self._input.mkdir(parents=True)
        self._pipeline = CdcPipeline.from_yaml(_manifest(folder))
        self._batches: queue.Queue[BatchDone | BaseException] = queue.Queue()
        self._stop = threading.Event()
        self._runner = threading.Thread(target=self._run, name="lakemirror-run")

    def load(self, snapshot: Sequence[Path]) -> None:
        for path in snapshot:
            self._offer(path)
        self._runner.start()
        self._wait()

    def apply(self, batch: Path) -> None:
        self._offer(batch)
        self._wait()

    def table(self) -> DataFrame:
        return self._spark.read.format("delta").load(f"{self._folder}/lake/accounts").select(*COLUMNS)

    def close(self) -> None:
        self._stop.set()
        if self._runner.is_alive():
            self._runner.join()

    def _run(self) -> None:
        try:
            run(self._pipeline, spark=self._spark, stopping=self._stop.is_set, on_event=self._told)
        except BaseException as error:
            self._batches.put(error)

    def _told(self, event: Event) -> None:
        if isinstance(event, BatchDone):
            self._batches.put(event)

    def _wait(self) -> None:
        done = self._batches.get()
        if isinstance(done, BaseException):
            raise done

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
  trigger: {{interval: 50ms}}
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

    def close(self) -> None:
        """Nothing runs between batches."""


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

    def close(self) -> None:
        """Nothing runs between batches."""


def _changes(spark: SparkSession, files: Sequence[Path], schemas: bool) -> DataFrame:
    """The change events of saved records, whose values embed their schema or don't."""
    lines = spark.read.schema(_LINE).json([str(path) for path in files]).where("value IS NOT NULL")
    if schemas:
        value = F.from_json("value", f"payload struct<{_ENVELOPE}>")["payload"]
        key = F.from_json("key", "payload struct<id: int>")["payload"]
    else:
        value, key = F.from_json("value", _ENVELOPE), F.from_json("key", "id int")
    return lines.select(value.alias("v"), key.alias("key")).select("key", "v.*")
