"""Spark's Python daemon of the engine."""

from __future__ import annotations

import subprocess
import sys

_STARTED = """
import gc, runpy, sys
sys.argv = ["daemon", "pyspark.worker"]
import pyspark.daemon
module = "lakemirror.driver.engine.blocks"
pyspark.daemon.manager = lambda: print(gc.get_freeze_count(), len(gc.get_objects()), module in sys.modules)
runpy.run_module("lakemirror.driver.engine.daemon", run_name="__main__")
"""


def test_workers_do_not_collect_what_was_imported_before_them() -> None:
    """They collect garbage after each task, and there are a hundred thousand objects."""
    said = subprocess.run([sys.executable, "-c", _STARTED], capture_output=True, text=True, check=True).stdout
    frozen, left, is_imported = said.split()
    assert int(frozen) > 50_000
    assert int(left) < 1_000
    assert is_imported == "True"
