"""Frames whose rows are kept once they are computed."""

from __future__ import annotations

from pyspark.sql import DataFrame

_LOST = "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND"
"""Spark's error class for rows that went with their executor, or were released."""


def materialised(frame: DataFrame) -> DataFrame:
    """The same rows, which stay in memory or on disk when they are first read.

    Unlike a persisted frame this one is a leaf: Spark neither analyses what it was made of with every query
    on top of it, nor brings its rows into columns. Rows that are lost are not computed again: `is_lost`.
    """
    return frame.localCheckpoint(eager=False)


def release(frame: DataFrame) -> None:
    """Forget the rows of a frame that `materialised` gave; otherwise they go when nothing refers to them."""
    context = frame.sparkSession.sparkContext._jsc.sc()
    context.unpersistRDD(frame._jdf.logicalPlan().rdd().id(), False)


def is_lost(error: BaseException) -> bool:
    """Whether rows were to be read that a lost executor had kept: the batch has to be read again."""
    return _LOST in str(error)
