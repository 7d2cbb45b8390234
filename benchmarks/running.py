"""Mirrors that processes of their own keep, and when each of their versions came."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from benchmarks.options import Options

_LOOK_SECONDS = 0.005
_START_SECONDS = 300.0


class Watch:
    """Notes when each version of a Delta table becomes visible, which is when its file is in the log."""

    def __init__(self, table: Path) -> None:
        self.table = table
        self.times: dict[int, float] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def until_there_are(self, versions: int) -> None:
        """Wait for the first versions. Raises TimeoutError after five minutes."""
        began = time.time()
        while len(self.times) < versions:
            if time.time() - began > _START_SECONDS:
                raise TimeoutError(f"{self.table} has {len(self.times)} versions, not {versions}")
            time.sleep(0.5)

    def until_quiet(self, seconds: float) -> None:
        """Wait until no version has come for a while."""
        began = time.time()
        while time.time() - max(began, *self.times.values()) < seconds:
            time.sleep(0.5)

    def _look(self) -> None:
        while not self._stop.wait(_LOOK_SECONDS):
            while (self.table / "_delta_log" / f"{len(self.times):020d}.json").exists():
                self.times[len(self.times)] = time.time()


class Ended(Exception):
    """A command ended by itself. The message is the last line that it wrote."""


@contextmanager
def running(command: Sequence[str], log: Path) -> Iterator[None]:
    """Keep a command running in the meantime. Raises Ended if it ends by itself."""
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
        try:
            yield
            if process.poll() is not None:
                raise Ended(log.read_text().strip().rpartition("\n")[2])
        finally:
            process.terminate()
            process.wait()


def lakemirror(
    options: Options,
    name: str,
    kafka: str,
    topics: Sequence[str],
    folder: Path,
    types: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
) -> list[str]:
    """Return the command that mirrors topics to `folder`/lake/TABLE, with an interval of a second.

    `types` are those of columns, by source table.
    """
    source = {"bootstrapServers": kafka, "topics": list(topics), "startingOffsets": "earliest"}
    spec = {
        "source": {"kafka": source},
        "target": {"path": f"{folder}/lake/{{table}}"},
        "checkpoint": f"{folder}/checkpoint",
        "trigger": {"interval": "1s"},
        "tables": [
            {"source": table, "columns": {"types": dict(columns)}} for table, columns in types.items()
        ],
        "spark": {"conf": options.spark_settings},
    }
    head = {"apiVersion": "lakemirror.io/v1alpha1", "kind": "CdcPipeline", "metadata": {"name": name}}
    manifest = folder / "pipeline.json"
    manifest.write_text(json.dumps({**head, "spec": spec}))
    return [sys.executable, "-m", "lakemirror.cli.main", "run", "-f", str(manifest)]
