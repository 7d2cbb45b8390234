"""Frames whose rows are kept once they have been computed."""

from __future__ import annotations

from pyspark.sql import DataFrame

_LOST = "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND"
"""Spark's error class for rows that were lost with their executor, or were released."""


def materialised(frame: DataFrame) -> DataFrame:
    """Return a frame with the same rows, which stay in memory or on disk once they have been read.

    Unlike a persisted frame, this frame is a leaf: Spark does not analyze its origin with every query on top
    of it, and does not convert its rows to columnar form. Lost rows are not computed again (see `is_lost`).
    """
    return frame.localCheckpoint(eager=False)


def release(frame: DataFrame) -> None:
    """Release the rows of a frame from `materialised`.

    Otherwise they are freed when nothing refers to them any more.
    """
    context = frame.sparkSession.sparkContext._jsc.sc()
    context.unpersistRDD(frame._jdf.logicalPlan().rdd().id(), False)


def is_lost(error: BaseException) -> bool:
    """Return whether the error reports rows that were lost with an executor.

    The batch must then be read again.
    """
    return _LOST in str(error)
