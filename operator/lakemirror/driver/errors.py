"""Errors that end a batch or a run; each message names the object and says what to do."""

from __future__ import annotations

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession


class LakemirrorError(Exception):
    """Base of every error that Lakemirror raises on purpose."""


class PipelineStopped(LakemirrorError):
    """Base of the errors that stop the whole pipeline; any other concerns one table, or one record."""


class CheckpointInUse(PipelineStopped):
    """Another driver owns the checkpoint."""


class SourceRestarted(PipelineStopped):
    """Positions of the source start again: a new epoch has to be declared in ``ordering.epochs``."""


class BatchMismatch(PipelineStopped):
    """A batch was committed before with another range of input: the checkpoint is not the table's."""


class SchemaDriftRefused(PipelineStopped):
    """A schema changed under ``schemaEvolution: fail``."""


class BadRecordRefused(PipelineStopped):
    """A record cannot be applied under ``onBadRecord: fail``."""


class RecordsUnaccounted(PipelineStopped):
    """The outcomes of a batch do not add up to its records: a mistake of Lakemirror's own."""


class TableFailed(LakemirrorError):
    """A table could not be written, also when retried alone."""


def stops_pipeline(error: Exception, spark: SparkSession) -> bool:
    """Whether no table can go on after ``error``: it says so, or the Spark session is gone."""
    return isinstance(error, PipelineStopped) or not _is_alive(spark)


def first_line(error: BaseException) -> str:
    """What an error says, without a trace after it; its class where it says nothing."""
    return _first_line(str(error)) or type(error).__name__


def one_line(error: BaseException) -> str:
    """All that an error says, in one line; its class where it says nothing."""
    return " ".join(str(error).split()) or type(error).__name__


def cause_of(error: BaseException) -> str:
    """The innermost cause of an error in one line: its message, with the class of one that Java raised."""
    if isinstance(error, Py4JJavaError):
        return _java_cause(error)
    inner: BaseException = error
    while inner.__cause__ is not None:
        inner = inner.__cause__
    if inner is not error and isinstance(inner, Py4JJavaError):
        return _java_cause(inner)
    return first_line(error)


def _java_cause(error: Py4JJavaError) -> str:
    """Of a Java exception: the last of its chain of causes."""
    try:
        inner = error.java_exception
        while inner.getCause() is not None and inner.getCause() != inner:
            inner = inner.getCause()
        message = _first_line(str(inner.getMessage() or ""))
        name = inner.getClass().getSimpleName()
    except Exception:  # the JVM that could tell is gone
        return _first_line(str(error))
    return f"{name}: {message}" if message else str(name)


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def _is_alive(spark: SparkSession) -> bool:
    try:
        return not spark.sparkContext._jsc.sc().isStopped()
    except Exception:
        return False
