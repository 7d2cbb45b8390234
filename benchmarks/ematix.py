"""A rival in one process without Spark: ematix-flow.

`python -m benchmarks.ematix KAFKA TOPIC FOLDER TABLE` merges the records of a topic into a local Delta table,
which has to exist, until it is stopped.

Version 1.0.0 ends with an error where many records without a value are followed by one with an object, as
those of a snapshot, which have no `before`, and a delete. So it is given a table that has the initial rows.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
from deltalake import write_deltalake

from benchmarks import rows
from benchmarks.events import Load

PACKAGE = "ematix-flow"
_SCHEMA = "public"


def is_installed() -> bool:
    """Return whether the package can be imported. It is not among our dependencies."""
    return importlib.util.find_spec("ematix_flow") is not None


def prepare(folder: Path, table: str, load: Load) -> Path:
    """Create the table that it needs, with the load's initial rows, and return its path."""
    path = folder / _SCHEMA / table
    path.mkdir(parents=True)
    keys = pl.int_range(load.rows, eager=True).alias("id").to_frame()
    write_deltalake(str(path), rows.as_table(rows.firsts(keys), load.columns).to_arrow())
    return path


def command(kafka: str, topic: str, folder: Path, table: str) -> list[str]:
    """Return the command that keeps the prepared table."""
    return [sys.executable, "-m", "benchmarks.ematix", kafka, topic, str(folder), table]


def settings(kafka: str, topic: str, folder: str, table: str) -> str:
    """Return its configuration in TOML: the whole topic, as Debezium's events, everything else by default."""
    values: dict[str, dict[str, Any]] = {
        "": {"pipeline_name": table, "source_query": topic},
        "source": {
            "kind": "kafka",
            "bootstrap_servers": kafka,
            "group_id": topic,
            "payload_format": "json",
            "auto_offset_reset": "earliest",
        },
        "target": {"kind": "delta_local", "path": folder},
        "target.table": {"schema": _SCHEMA, "name": table, "primary_key": ["id"]},
        "transform.cdc": {"envelope": "debezium"},
    }
    lines = []
    for section, entries in values.items():
        lines += [f"[{section}]"] if section else []
        lines += [f"{name} = {json.dumps(value)}" for name, value in entries.items()]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run until stopped."""
    from ematix_flow.streaming import run_pipeline

    kafka, topic, folder, table = sys.argv[1:] if arguments is None else arguments
    run_pipeline(config_str=settings(kafka, topic, folder, table))


if __name__ == "__main__":
    main()
