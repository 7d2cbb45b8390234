"""Rewrites small files of a mirror, with the changes of a batch applied.

One job reads the files, folds the batch into them and writes the result, in one task. If there is little to
read, looking up first which rows the batch changes would cost three more jobs and gain nothing.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any, Final

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

from lakemirror.driver.reduce.changes import Changes
from lakemirror.driver.write.clauses import folded, same_key
from lakemirror.driver.write.log import Attempt, rows_in
from lakemirror.driver.write.writer import Written

BYTES: Final = 8 * 1024 * 1024
"""Maximum total size, in bytes, of files that are rewritten together."""
ROWS: Final = 50_000
"""Maximum number of rows in these files and the batch together, because one task handles them all."""

_PATIENCE: Final = 30.0
"""Seconds that Spark may take to report what a query has observed. It reports in the background."""


class CountsLost(Exception):
    """Spark did not report how many rows a write changed.

    Nothing is committed, so the write can be retried.
    """


def is_little(files: Collection[Any], changes: Changes) -> bool:
    """Return whether files are so small that it is best to rewrite them."""
    if sum(each.size() for each in files) > BYTES:
        return False
    rows = rows_in(files)
    return rows is not None and rows + changes.keys <= ROWS


def rewritten(
    attempt: Attempt, files: Collection[Any], states: DataFrame, changes: Changes
) -> tuple[list[Any], Written]:
    """Return new files with the rows of ``files`` after the ``changes``, and what the changes did.

    Stored rows of the batch's keys must be in these files only. If there are ``untouched`` changes, all rows
    must be.

    Raises CountsLost.
    """
    stored = attempt.rows(files).alias("t").select(F.struct("t.*").alias("t")).coalesce(1)
    one = states.coalesce(1).alias("s").hint("shuffle_hash")
    outcome = folded(stored.join(one, same_key(changes), "full"), attempt.schema.fields, changes)
    told = Observation()
    fates = ("inserted", "updated", "deleted")
    counts = [F.count_if(F.col("fate") == each).alias(each) for each in fates]
    rows = outcome.observe(told, *counts).where("fate IS NULL OR fate <> 'deleted'").select("n.*")
    added = attempt.write(rows)
    try:
        found = _observed(told)
    except CountsLost:
        attempt.discard(added)
        raise
    return added, Written(found["inserted"], found["updated"], found["deleted"])


def _observed(told: Observation) -> dict[str, int]:
    """Return what a finished query has observed.

    Unlike ``Observation.get``, this does not wait forever, because Spark's listeners may miss an event.
    """
    assert told._jo is not None
    until = time.monotonic() + _PATIENCE
    while not told._jo.future().isCompleted():
        if time.monotonic() > until:
            raise CountsLost(
                f"Spark did not tell within {_PATIENCE:.0f} s what a write did; it is tried again"
            )
        time.sleep(0.001)
    return told.get
