"""A rival without Spark: Polars parses in this process, and delta-rs merges."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession

from benchmarks.columns import names_of, types_of
from benchmarks.events import FILES_A_BATCH, Load

_KINDS = {"string": pl.String, "bigint": pl.Int64, "timestamp": pl.String}
_TIME = "%Y-%m-%dT%H:%M:%S%.fZ"


class Polars:
    """Parses with Polars, keeps the newest event of each key, and merges with delta-rs.

    The table stays open between batches, and the merge may skip files by the statistics of the batch.
    """

    right_when_odd = False

    def __init__(self, spark: SparkSession, folder: Path, load: Load) -> None:
        self._path, self._load = str(folder / "table"), load
        self._columns = list(names_of(load.columns))
        self._opened: DeltaTable | None = None

    def load(self, snapshot: Sequence[Path]) -> None:
        for start in range(0, len(snapshot), FILES_A_BATCH):
            rows = self._latest(snapshot[start : start + FILES_A_BATCH]).select(self._columns)
            write_deltalake(self._path, rows.to_arrow(), mode="append")
        self._opened = DeltaTable(self._path)

    def apply(self, batch: Path) -> None:
        assert self._opened is not None
        values = {name: f"s.{name}" for name in self._columns}
        changes = self._latest([batch], self._load.schemas).to_arrow()
        merging = self._opened.merge(changes, "t.id = s.id", "s", "t", streamed_exec=False)
        merging = merging.when_matched_delete("s.op = 'd'").when_matched_update(values)
        merging.when_not_matched_insert(values, "s.op <> 'd'").execute()

    def table(self, spark: SparkSession) -> DataFrame:
        return spark.read.format("delta").load(self._path).select(*self._columns)

    def close(self) -> None:
        """Nothing runs between batches."""

    def _latest(self, files: Sequence[Path], schemas: bool = False) -> pl.DataFrame:
        """Return the newest event of each key: `op`, and the row's columns."""
        lines = pl.scan_ndjson([str(path) for path in files], schema={"value": pl.String})
        events = lines.filter(pl.col("value").is_not_null()).select(self._event(schemas).alias("event"))
        row, op = pl.col("after").struct, pl.col("op")
        key = pl.coalesce(row.field("id"), pl.col("before").struct.field("id"))
        rest = [self._value(name, kind) for name, kind in types_of(self._load.columns).items()]
        lsn = pl.col("source").struct.field("lsn")
        found = events.unnest("event").select(lsn.alias("lsn"), op, key.alias("id"), *rest)
        return found.sort("lsn").unique("id", keep="last").drop("lsn").collect()

    def _event(self, schemas: bool) -> pl.Expr:
        kinds = {name: _KINDS[kind] for name, kind in types_of(self._load.columns).items()}
        image = pl.Struct({"id": pl.Int32, **kinds})
        source = pl.Struct({"lsn": pl.Int64})
        event = pl.Struct({"op": pl.String, "before": image, "after": image, "source": source})
        if schemas:
            whole = pl.col("value").str.json_decode(pl.Struct({"payload": event}))
            return whole.struct.field("payload")
        return pl.col("value").str.json_decode(event)

    def _value(self, name: str, kind: str) -> pl.Expr:
        value = pl.col("after").struct.field(name)
        return value.str.to_datetime(_TIME, time_unit="us", time_zone="UTC") if kind == "timestamp" else value
