"""Errors that end a batch or a run; each message names the object and says what to do."""

from __future__ import annotations

import itertools
import re
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

_LONGEST, _LONGEST_CONTEXT = 600, 240
"""Characters of a cause; and of what an enclosing error says, for that to be shown in its place."""
_DEEPEST = 30
_ENDING_SECONDS = 3.0
_NO_ANSWER = (Py4JNetworkError, ConnectionError)
_LOST_TASK = re.compile(r"most recent failure: Lost task \S+ in stage \S+ \(TID \d+\) \([^)]*\): ([^\n]+)")
"""How Spark quotes the failure of a task (DAGScheduler)."""
_QUOTED = "\nCaused by: "
_PACKAGE = re.compile(r"^(?:\w+\.)+(?=[A-Z])")


class LakemirrorError(Exception):
    """Base of every error that Lakemirror raises on purpose."""


class PipelineStopped(LakemirrorError):
    """Base of the errors that stop the whole pipeline; any other concerns one table, or one record."""


class CheckpointInUse(PipelineStopped):
    """Another driver owns the checkpoint."""


class SourceRestarted(PipelineStopped):
    """Positions of the source start again: a new epoch has to be declared in ``ordering.epochs``."""


class ShardsDiffer(LakemirrorError):
    """Another shard has altered the mirror that a batch was planned for."""


class BatchMismatch(PipelineStopped):
    """A batch was committed before with another range of input: the checkpoint is not the table's."""


class SchemaDriftRefused(PipelineStopped):
    """A schema changed under ``schemaEvolution: fail``."""


class BadRecordRefused(PipelineStopped):
    """A record cannot be applied under ``onBadRecord: fail``."""


class RecordsUnaccounted(PipelineStopped):
    """The outcomes of a batch do not add up to its records: a mistake of Lakemirror's own."""


class SourceUnreachable(LakemirrorError):
    """The source cannot be reached, and a run once does not wait for it."""


class NotAnswered(LakemirrorError):
    """The source, or what it is read with, refuses or cannot be asked: time or a person heals that, and a
    driver that is started anew does not.
    """


class TableFailed(LakemirrorError):
    """A table could not be written, also when retried alone."""


def stops_pipeline(error: Exception, spark: SparkSession) -> bool:
    """Whether no table can go on after ``error``: it says so, or the Spark session is gone."""
    return isinstance(error, PipelineStopped) or not is_alive(spark)


def cause_of(error: BaseException) -> str:
    """Why something failed, in one line for people.

    Of one of our own errors what it says, of an error of Java the innermost cause with its class, and what an
    enclosing one adds to it, such as the host of a connection that was refused.
    """
    if isinstance(error, LakemirrorError):
        return " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, _NO_ANSWER) and (ending := _ending_of_jvm()) is not None:
        return ending
    for each in _causes(error):
        java: Any = getattr(each, "java_exception", None) or getattr(each, "_origin", None)
        if java is not None:
            try:
                return _cut(_java_cause(java))
            except (Py4JError, OSError):  # the JVM that could tell is gone
                return _ending_of_jvm() or _cut(_first_line(str(error)))
    return _cut(_python_cause(error))


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and what it was raised from."""
    each: BaseException | None = error
    while each is not None:
        yield each
        each = each.__cause__


def _python_cause(error: BaseException) -> str:
    name, said = type(error).__name__, _first_line(str(error))
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, PySparkException):  # such a message begins with a code that names it
        return said or name
    return f"{name}: {said}" if said else name


def _java_cause(java: Any) -> str:
    chain = [java]
    while (cause := chain[-1].getCause()) is not None and len(chain) < _DEEPEST:
        chain.append(cause)
    told, said = _told(chain[-1]), _said(chain[-1])
    for inner, outer in itertools.pairwise(reversed(chain)):
        message = _first_line(str(outer.getMessage() or ""))
        adds = said and said in message and message != _first_line(str(inner.toString()))
        name = str(outer.getClass().getName())
        if adds and len(message) <= _LONGEST_CONTEXT and not name.startswith("org.apache.spark."):
            told = f"{outer.getClass().getSimpleName()}: {message}"
    return told


def _told(innermost: Any) -> str:
    """A Java exception in one line; where it says nothing, where it arose."""
    name, said = str(innermost.getClass().getSimpleName()), _said(innermost)
    message = str(innermost.getMessage() or "")
    failed = _LOST_TASK.search(message)
    if failed is not None:  # what happened in an executor comes as text only
        return _PACKAGE.sub("", said if _QUOTED in message else failed[1])
    if said:
        return f"{name}: {said}"
    trace = innermost.getStackTrace()
    return f"{name} at {trace[0].toString()}" if len(trace) else name


def _said(java: Any) -> str:
    """What a Java exception says; of one that quotes the trace of another, the last cause in it."""
    message = str(java.getMessage() or "")
    return _first_line(message.rpartition(_QUOTED)[2])


def _ending_of_jvm() -> str | None:
    """How Spark's JVM ended; None while it runs, and where this process has not started it."""
    process = getattr(SparkContext._gateway, "proc", None)
    if process is None:
        return None
    try:
        code = process.wait(timeout=_ENDING_SECONDS)
    except subprocess.TimeoutExpired:
        return None
    if code == -signal.SIGKILL:
        return (
            "Spark's JVM was killed, most likely because the memory of its container was used up: raise "
            "spec.spark.driver.memory"
        )
    return f"Spark's JVM ended with exit code {code}: the lines before this one in the driver's log say why"


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def is_alive(spark: SparkSession) -> bool:
    """Whether a session can still be worked with."""
    try:
        return not spark.sparkContext._jsc.sc().isStopped()
    except Exception:
        return False
