"""Spark's Python daemon, which has imported what the tasks of the engine need before it forks a worker.

Spark ends workers that have had no task for a minute, and a new one would import it all again: two thirds of
what a batch costs then (docs/decisions/engine-job.md). What it has imported is also left out of Python's
garbage collection, which each worker does after each task. Nothing else is done here: what is opened or
started before a fork would be shared by all workers. Spark starts this module if
``spark.python.daemon.module`` names it.
"""

from __future__ import annotations

import gc
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy would start threads, and a task has one core

import pyarrow as pa
from pyspark.daemon import manager

from lakemirror.driver.engine import buckets, saved_records

__all__ = ["buckets", "saved_records"]

if __name__ == "__main__":
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    gc.collect()
    gc.freeze()
    manager()
