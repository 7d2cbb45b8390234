"""The captured change events and the rows of the databases they were captured from."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tests.support import readers, truth
from tests.support.mirroring import Mirroring, rows
from tests.support.records import Record, read

FOLDER = Path(__file__).parents[1] / "fixtures" / "debezium"
READDED = "readd_column"
SCENARIOS = ("inventory", "pk_change", "composite_pk", "schema_change", "mariadb_inventory")
WIDENED = ("schema_change", READDED)
"""Captures in which columns are widened: of their mirrors alone not every program can read each."""
FIXED_SCHEMA = ("inventory", "pk_change", "composite_pk")
"""Captures that mean something without schemas in their records, once the columns' types are declared."""


@dataclass(frozen=True)
class Capture:
    """One capture in one variant of the converter, mirrored under a database name of its own (`as_db`).

    So several captures, and one capture in several deliveries, fit into one run.
    """

    scenario: str
    variant: str = "jsons"
    as_db: str = ""

    @property
    def db(self) -> str:
        return self.as_db or self.database

    @property
    def database(self) -> str:
        """What the captured database was called."""
        return str(self.about["database"])

    @property
    def about(self) -> dict[str, Any]:
        return _about(self.scenario)

    @property
    def records(self) -> list[Record]:
        """Merged by the time of their arrival, each partition in its order."""
        return [self._renamed(record) for record in _records(self.scenario, self.variant)]

    def _renamed(self, record: Record) -> Record:
        if not self.as_db:
            return record
        value = record["value"] and re.sub(
            rf'("source":\{{[^{{}}]*?"db":)"{self.database}"', rf'\1"{self.db}"', record["value"]
        )
        return {**record, "topic": f"{self.db}.{record['topic']}", "value": value}

    @property
    def tables(self) -> list[str]:
        """`schema.table` of each table of the database."""
        return list(self.about["truth"])

    def declared(self) -> list[dict[str, Any]]:
        """Settings that declare the columns' types, for records without schemas."""
        return [
            {"source": f"{self.db}.{table}", "columns": {"types": _spark_types(about["columns"])}}
            for table, about in self.about["truth"].items()
        ]

    def differences(
        self,
        spark: SparkSession,
        mirroring: Mirroring,
        *,
        only: Collection[str] | None = None,
        by_others: bool = False,
        where: str = "true",
    ) -> dict[str, list[str]]:
        """What is wrong in each mirrored table (or in some, by name); empty where it is equal. With
        ``by_others`` it is read with other programs than Spark, too. ``where`` chooses its rows.
        """
        keys = truth.primary_keys(
            _records(self.scenario, "jsons" if self.variant == "avro" else self.variant)
        )
        return {
            f"{self.db}.{table}": self._difference(spark, mirroring, table, keys[table], by_others, where)
            for table in self.tables
            if only is None or table.rpartition(".")[2] in only
        }

    def _difference(
        self,
        spark: SparkSession,
        mirroring: Mirroring,
        table: str,
        key: Sequence[str],
        by_others: bool,
        where: str,
    ) -> list[str]:
        schema, _, name = table.partition(".")
        path = mirroring.path(self.db, None if schema == self.database else schema, name)
        mirror = rows(spark.read.format("delta").load(path).where(where))
        found = truth.collect(mirror)
        others = readers.differences(path, found) if by_others else []
        if by_others and self.scenario not in WIDENED and readers.features(path) - {"timestampNtz"}:
            others.append(f"it has features that it does not need: {sorted(readers.features(path))}")
        return others + truth.diff(
            found,
            truth.load_truth(FOLDER / self.scenario / self.about["truth"][table]["file"], key),
            truth.source_types(FOLDER / self.scenario)[table],
            mirror.schema,
            key,
            millis=self.variant == "jsonconnect",
        )


@functools.cache
def _about(scenario: str) -> dict[str, Any]:
    about: dict[str, Any] = json.loads((FOLDER / scenario / "scenario.json").read_text(encoding="utf-8"))
    return about


@functools.cache
def _records(scenario: str, variant: str) -> tuple[Record, ...]:
    (path,) = FOLDER.glob(f"{scenario}/{variant}.jsonl*")
    return tuple(_merged(read(path)))


def _merged(records: Iterable[Record]) -> list[Record]:
    """By time of arrival; within a partition by offset, though its times may go back a little."""
    newest: dict[tuple[str, int], int] = {}
    stamped = []
    for record in records:
        partition = record["topic"], record["partition"]
        newest[partition] = max(newest.get(partition, 0), record["timestamp"])
        stamped.append((newest[partition], *partition, record["offset"], record))
    return [record for *_, record in sorted(stamped, key=lambda each: each[:-1])]


_TYPES = {
    "integer": "int",
    "text": "string",
    "character varying": "string",
    "jsonb": "string",
    "uuid": "string",
    "timestamp with time zone": "timestamp",
    "double precision": "double",
    "numeric": "decimal",
}


def _spark_types(columns: Sequence[Mapping[str, str]]) -> dict[str, str]:
    types = {}
    for column in columns:
        base, arguments = re.fullmatch(r"([^(]+)(\(.*\))?", column["type"]).groups()  # type: ignore[union-attr]
        spark = _TYPES.get(base, base)
        types[column["name"]] = spark + (arguments or "") if spark == "decimal" else spark
    return types


def wrong(differences: Mapping[str, Sequence[str]]) -> str:
    """A report of the tables that are wrong; empty when none is."""
    return "\n".join(
        f"{table}:\n  " + "\n  ".join(lines[:5]) for table, lines in differences.items() if lines
    )
