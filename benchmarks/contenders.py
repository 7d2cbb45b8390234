"""The contenders on Spark: ours, the textbook's way, and the floor below any apply."""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Protocol

from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from benchmarks.columns import all_types_of, names_of, types_of
from benchmarks.events import FILES_A_BATCH, Load
from lakemirror.api import CdcPipeline
from lakemirror.driver.runtime.runner import BatchDone, Event, run

_DELETED_AT = "deleted_at"
_LINE = "topic STRING, partition INT, offset BIGINT, timestamp BIGINT, key STRING, value STRING"


class Contender(Protocol):
    """Keeps tables in its own folder."""

    right_when_odd: bool
    """Whether its tables are right even if events come late, lack values or cannot be read."""

    def load(self, snapshot: Sequence[Path]) -> None:
        """Mirror the initial rows; not measured."""

    def apply(self, batch: Path) -> None:
        """Apply one batch; measured."""

    def table(self, spark: SparkSession) -> DataFrame | None:
        """Return the current rows; None if they are not meant to be the source's."""

    def close(self) -> None:
        """Stop what is still running."""


class Ours:
    """The whole of Lakemirror: `run` keeps going in a thread and takes each file as it comes.

    Checkpoint, ownership, quarantine and audit are part of what is measured. `settings` are Spark's, for a
    session of its own.
    """

    right_when_odd = True

    def __init__(
        self, spark: SparkSession, folder: Path, load: Load, settings: Mapping[str, str] | None = None
    ) -> None:
        self._session, self._folder, self._load = spark.newSession(), folder, load
        for name, value in (settings or {}).items():
            self._session.conf.set(name, value)
        self._input = folder / "input"
        self._input.mkdir(parents=True)
        self._offered = 0
        self._pipeline = CdcPipeline.from_yaml(manifest(folder, load))
        self._batches: queue.Queue[BatchDone | BaseException] = queue.Queue()
        self._prepare()

    def load(self, snapshot: Sequence[Path]) -> None:
        for path in snapshot:
            self._offer(path)
        self._runner.start()
        for _ in range(0, len(snapshot), FILES_A_BATCH):
            self._wait()

    def apply(self, batch: Path) -> None:
        self._offer(batch)
        self._wait()

    def restart(self, batch: Path) -> None:
        """Start again with one more batch, after `close`."""
        self._prepare()
        self._offer(batch)
        self._runner.start()
        self._wait()

    def table(self, spark: SparkSession) -> DataFrame:
        tables = [spark.read.format("delta").load(f"{self._folder}/lake/{name}") for name in self._load.names]
        if self._load.soft:
            tables = [table.where(F.col(_DELETED_AT).isNull()) for table in tables]
        columns = names_of(self._load.columns)
        return reduce(DataFrame.unionAll, [table.select(*columns) for table in tables])

    def close(self) -> None:
        self._stop.set()
        if self._runner.is_alive():
            self._runner.join()

    def _prepare(self) -> None:
        self._stop = threading.Event()
        self._runner = threading.Thread(target=self._run, name="lakemirror-run")

    def _run(self) -> None:
        try:
            run(self._pipeline, spark=self._session, stopping=self._stop.is_set, on_event=self._told)
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
        (self._input / f"{self._offered:06d}.jsonl").hardlink_to(path)
        self._offered += 1


def manifest(folder: Path, load: Load) -> str:
    """Return the manifest of a pipeline that mirrors a load's tables from the files in `folder`/input."""
    types = ", ".join(f"{name}: {kind}" for name, kind in all_types_of(load.columns).items())
    columns = f"columns: {{types: {{{types}}}}}"
    filters = [load.filter_of(number) for number in range(load.tables)]
    told = ["" if each is None else f', filter: "{each}"' for each in filters]
    delete = f"{{type: soft, column: {_DELETED_AT}}}" if load.soft else "{type: hard}"
    tables = "\n".join(
        f"    - {{source: public.{name}, {columns}{more}}}"
        for name, more in zip(load.names, told, strict=True)
    )
    return f"""
apiVersion: lakemirror.io/v1alpha1
kind: CdcPipeline
metadata: {{name: bench}}
spec:
  source: {{files: {{path: "{folder}/input", format: records, maxFilesPerBatch: {FILES_A_BATCH}}}}}
  envelope: {{format: debezium, encoding: json}}
  target: {{path: "{folder}/lake/{{table}}"}}
  checkpoint: "{folder}/checkpoint"
  trigger: {{interval: 50ms}}
  defaults: {{delete: {delete}}}
  tables:
{tables}
"""


class Textbook:
    """Follows Delta's documentation for change data: parse, keep the newest event of each key, MERGE."""

    right_when_odd = False

    def __init__(self, spark: SparkSession, folder: Path, load: Load) -> None:
        self._spark, self._path, self._load = spark, str(folder / "table"), load

    def load(self, snapshot: Sequence[Path]) -> None:
        for start in range(0, len(snapshot), FILES_A_BATCH):
            events = _changes(self._spark, snapshot[start : start + FILES_A_BATCH], self._load.columns)
            rows = events.select("after.*").repartition(4)
            rows.write.format("delta").mode("append").save(self._path)

    def apply(self, batch: Path) -> None:
        events = _changes(self._spark, [batch], self._load.columns, self._load.schemas)
        newest = Window.partitionBy("key.id").orderBy(F.desc("source.lsn"))
        latest = (
            events.withColumn("nth", F.row_number().over(newest))
            .where("nth = 1")
            .select("op", "key.id", *(f"after.{name}" for name in types_of(self._load.columns)))
        )
        values: dict[str, str | Column] = {name: F.col(f"s.{name}") for name in names_of(self._load.columns)}
        (
            DeltaTable.forPath(self._spark, self._path)
            .alias("t")
            .merge(latest.alias("s"), "t.id = s.id")
            .whenMatchedDelete("s.op = 'd'")
            .whenMatchedUpdate(set=values)
            .whenNotMatchedInsert("s.op <> 'd'", values)
            .execute()
        )

    def table(self, spark: SparkSession) -> DataFrame:
        return spark.read.format("delta").load(self._path).select(*names_of(self._load.columns))

    def close(self) -> None:
        """Nothing runs between batches."""


class Floor:
    """Applies nothing: parses the events and appends them. Nothing on Spark that stores them is faster."""

    right_when_odd = False

    def __init__(self, spark: SparkSession, folder: Path, load: Load) -> None:
        self._spark, self._path, self._load = spark, str(folder / "table"), load

    def load(self, snapshot: Sequence[Path]) -> None:
        self._append(snapshot[0], schemas=False)

    def apply(self, batch: Path) -> None:
        self._append(batch, self._load.schemas)

    def _append(self, batch: Path, schemas: bool) -> None:
        events = _changes(self._spark, [batch], self._load.columns, schemas)
        events.write.format("delta").mode("append").save(self._path)

    def table(self, spark: SparkSession) -> None:
        return None

    def close(self) -> None:
        """Nothing runs between batches."""


def _changes(spark: SparkSession, files: Sequence[Path], columns: int, schemas: bool = False) -> DataFrame:
    """Return the change events of saved records, whose values may embed their schema."""
    fields = ", ".join(f"{name}: {kind}" for name, kind in types_of(columns).items())
    image = f"struct<id: int, {fields}>"
    envelope = f"op string, before {image}, after {image}, source struct<lsn: bigint, snapshot: string>"
    lines = spark.read.schema(_LINE).json([str(path) for path in files]).where("value IS NOT NULL")
    if schemas:
        value = F.from_json("value", f"payload struct<{envelope}>")["payload"]
        key = F.from_json("key", "payload struct<id: int>")["payload"]
    else:
        value, key = F.from_json("value", envelope), F.from_json("key", "id int")
    return lines.select(value.alias("v"), key.alias("key")).select("key", "v.*")
