"""Spark's `local-cluster`, whose executors are processes of their own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pyspark.find_spark_home import _find_spark_home

MASTER = "local-cluster[2,1,1024]"
"""Two executors with a core and 1 GiB each."""
_WORK = Path(_find_spark_home(), "work")


@contextmanager
def no_jars_left() -> Iterator[None]:
    """Delete what workers of a local cluster leave: they copy the jars to where Spark is."""
    before = {*_WORK.glob("*")}
    yield
    for folder in {*_WORK.glob("*")} - before:
        shutil.rmtree(folder, ignore_errors=True)


def executors_seen() -> set[str]:
    """Return the IDs of all executors that left a folder."""
    return {folder.name for folder in _WORK.glob("*/*") if folder.is_dir()}


def kill_executor(running: subprocess.Popen[str]) -> str | None:
    """Kill the newest executor of a driver, and return its ID; None if there is none."""
    found = sorted(_executors(running.pid))
    if not found:
        return None
    number, process = found[-1]
    os.kill(process, signal.SIGKILL)
    return str(number)


def _executors(group: int) -> Iterator[tuple[int, int]]:
    """Yield the number and the process ID of each executor in a process group."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):
            process = int(folder.name)
            words = (folder / "cmdline").read_text().split("\0")
            if "--executor-id" in words and os.getpgid(process) == group:
                yield int(words[words.index("--executor-id") + 1]), process
