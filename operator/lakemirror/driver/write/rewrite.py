"""Writes small files of a mirror anew, with the changes of a batch in them.

One job reads them, folds the batch into them and writes the result, as one task: where there is little to
read, to look up first which rows the batch changes costs three more jobs and gains nothing.
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
"""Of files that are written anew together at most."""
ROWS: Final = 50_000
"""Of these files and of the batch together at most, for one task has them all."""

_PATIENCE: Final = 30.0
"""Seconds that Spark may take to tell what a query has observed; it tells in the background."""


class CountsLost(Exception):
    """Spark did not tell how many rows a write changed. Nothing is committed: it can be tried again."""


def is_little(files: Collection[Any], changes: Changes) -> bool:
    """Whether files are so small that it is best to write them anew."""
    if sum(each.size() for each in files) > BYTES:
        return False
    rows = rows_in(files)
    return rows is not None and rows + changes.keys <= ROWS


def rewritten(
    attempt: Attempt, files: Collection[Any], states: DataFrame, changes: Changes
) -> tuple[list[Any], Written]:
    """The new files that have the rows of ``files`` after the ``changes``, and what these did. Stored rows of
    the batch's keys stand in these files alone, and with ``untouched`` changes all rows do.

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
    """What a query that is done has observed. Other than ``Observation.get`` it does not wait for ever, for
    Spark's listeners may miss an event.
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
