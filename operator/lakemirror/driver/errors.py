"""Errors that end a batch or a run. Each message names the object and says what to do."""

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

from lakemirror.driver.raised import LakemirrorError as LakemirrorError

_LONGEST, _LONGEST_CONTEXT = 600, 240
"""Maximum number of characters of a cause, and of an enclosing message that is shown in its place."""
_DEEPEST = 30
_ENDING_SECONDS = 3.0
_NO_ANSWER = (Py4JNetworkError, ConnectionError)
_OF_ANSI = re.compile(r'(?i) *If necessary set "?spark\.sql\.ansi\.enabled"? to "?false"? [^.]*\.')
"""Advice of Spark's that Lakemirror does not allow, because values would silently be others."""
_LOST_TASK = re.compile(r"most recent failure: Lost task \S+ in stage \S+ \(TID \d+\) \([^)]*\): ([^\n]+)")
"""How Spark quotes the failure of a task (DAGScheduler)."""
_QUOTED = "\nCaused by: "
_PACKAGE = re.compile(r"^(?:\w+\.)+(?=[A-Z])")


class PipelineStopped(LakemirrorError):
    """Base class of errors that stop the whole pipeline. Any other error concerns one table or one record."""


class CheckpointInUse(PipelineStopped):
    """Another driver owns the checkpoint."""


class ShardsDiffer(LakemirrorError):
    """Another shard has altered the mirror since a batch was planned for it."""


class CommittedBefore(LakemirrorError):
    """A table's log already has a batch with the number of the one that was about to be written."""


class OffsetsTaken(PipelineStopped):
    """Rows of files that a table lacks have offsets below those of rows that it has from before this query.

    They would count as older. The feed gives their files offsets after the ``highest`` one.
    """

    def __init__(self, table: str, highest: int) -> None:
        super().__init__(
            f"{table} has rows of files up to offset {highest}, and newer files begin below that"
        )
        self.highest = highest


class BatchMismatch(PipelineStopped):
    """A batch was committed earlier with another range of input.

    The checkpoint therefore does not belong to the table.
    """


class SchemaDriftRefused(PipelineStopped):
    """A schema changed under ``schemaEvolution: fail``."""


class BadRecordRefused(PipelineStopped):
    """A record cannot be applied under ``onBadRecord: fail``."""


class RecordsUnaccounted(PipelineStopped):
    """The outcomes of a batch do not add up to its records. This is a bug in Lakemirror."""


class SourceUnreachable(LakemirrorError):
    """The source cannot be reached, and a one-time run does not wait for it."""


class NotAnswered(LakemirrorError):
    """The source, or something needed to read it, cannot be reached or refuses the driver.

    Time or a person can fix this; restarting the driver cannot.
    """


class TableFailed(LakemirrorError):
    """A table could not be written, not even when it was retried on its own."""


def stops_pipeline(error: Exception, spark: SparkSession) -> bool:
    """Return whether no table can continue after ``error``.

    That is the case if the error says so, or if the Spark session is gone.
    """
    return isinstance(error, PipelineStopped) or not is_alive(spark)


def cause_of(error: BaseException) -> str:
    """Return why something failed, as one line for people.

    For one of our own errors, this is its message. For a Java error, it is the innermost cause with its
    class, plus anything that an enclosing error adds, such as the host that refused a connection.
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
            except (Py4JError, OSError):  # the JVM that knows the cause is gone
                return _ending_of_jvm() or _cut(_first_line(str(error)))
    return _cut(_python_cause(error))


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and the errors that it was raised from."""
    each: BaseException | None = error
    while each is not None:
        yield each
        each = each.__cause__


def _python_cause(error: BaseException) -> str:
    name, said = type(error).__name__, _first_line(str(error))
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, PySparkException):  # its message already begins with a code that names it
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
    """Describe a Java exception in one line. If it has no message, say where it was raised."""
    name, said = str(innermost.getClass().getSimpleName()), _said(innermost)
    message = str(innermost.getMessage() or "")
    failed = _LOST_TASK.search(message)
    if failed is not None:  # a failure in an executor arrives only as text
        return _PACKAGE.sub("", said if _QUOTED in message else failed[1])
    if said:
        return f"{name}: {said}"
    trace = innermost.getStackTrace()
    return f"{name} at {trace[0].toString()}" if len(trace) else name


def _said(java: Any) -> str:
    """Return the first line of a Java exception's message.

    If the message quotes the stack trace of another exception, return the last cause in that trace.
    """
    message = str(java.getMessage() or "")
    return _first_line(message.rpartition(_QUOTED)[2])


def _ending_of_jvm() -> str | None:
    """Return how Spark's JVM ended.

    Returns None while it is running, or if this process did not start it.
    """
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
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return _OF_ANSI.sub("", line)


def is_alive(spark: SparkSession) -> bool:
    """Return whether a session is still usable."""
    try:
        return not spark.sparkContext._jsc.sc().isStopped()
    except Exception:
        return False
