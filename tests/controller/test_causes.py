"""Why a driver ended, from what containers leave behind. The traces are those of real runs, shortened."""

from __future__ import annotations

import pytest

from lakemirror.controller.causes import exit_code, innermost, why
from lakemirror.controller.values import Ending

pytestmark = pytest.mark.guarantee(
    "Every failure is named; a refused edit touches nothing and blocks nothing"
)

DEAD_BROKER = """\
pyspark.errors.exceptions.captured.StreamingQueryException: [STREAM_FAILED] Query [id = 4c2a, runId = 8d1f] \
terminated with exception: Failed to create new KafkaAdminClient SQLSTATE: XXKST

JVM stacktrace:
org.apache.spark.sql.streaming.StreamingQueryException
\tat org.apache.spark.sql.execution.streaming.runtime.StreamExecution.runStream(StreamExecution.scala:356)
Caused by: org.apache.kafka.common.KafkaException: Failed to create new KafkaAdminClient
\tat org.apache.kafka.clients.admin.KafkaAdminClient.createInternal(KafkaAdminClient.java:552)
\t... 23 more
Caused by: org.apache.kafka.common.config.ConfigException: No resolvable bootstrap urls given in \
bootstrap.servers
\tat org.apache.kafka.clients.ClientUtils.parseAndValidateAddresses(ClientUtils.java:103)
\t... 30 more
"""
TAIL = """\
\tat org.apache.spark.sql.execution.streaming.runtime.StreamExecution$$anon$1.run(StreamExecution.scala:233)
Caused by: java.util.concurrent.ExecutionException: org.apache.kafka.common.errors.TimeoutException: \
Timed out waiting for a node assignment. Call: describeTopics
\tat java.base/java.util.concurrent.CompletableFuture.reportGet(CompletableFuture.java:396)
Caused by: org.apache.kafka.common.errors.TimeoutException: Timed out waiting for a node assignment. \
Call: describeTopics
"""
PY4J = """\
Traceback (most recent call last):
  File "/opt/lakemirror/lib/python3.11/site-packages/lakemirror/pod/__main__.py", line 80, in <module>
py4j.protocol.Py4JJavaError: An error occurred while calling o52.load.
: java.nio.file.AccessDeniedException: s3a://lake/_delta_log: getFileStatus: Status Code: 403
\tat org.apache.hadoop.fs.s3a.S3AUtils.translateException(S3AUtils.java:273)
"""
PYTHON = """\
Traceback (most recent call last):
  File "/opt/lakemirror/lib/python3.11/site-packages/lakemirror/driver/runner.py", line 12, in run
    raise ValueError("x")
ValueError: checkpoint is not a directory
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            DEAD_BROKER,
            "org.apache.kafka.common.config.ConfigException: No resolvable bootstrap urls given in "
            "bootstrap.servers",
        ),
        (
            TAIL,
            "org.apache.kafka.common.errors.TimeoutException: Timed out waiting for a node assignment. "
            "Call: describeTopics",
        ),
        (
            PY4J,
            "java.nio.file.AccessDeniedException: s3a://lake/_delta_log: getFileStatus: Status Code: 403",
        ),
        (PYTHON, "ValueError: checkpoint is not a directory"),
        (
            "another driver owns the checkpoint\nstop it first\n",
            "another driver owns the checkpoint\nstop it first",
        ),
        ("", ""),
    ],
)
def test_of_a_trace_the_innermost_cause_is_told_in_one_line(text: str, expected: str) -> None:
    assert innermost(text) == expected


def test_a_long_text_keeps_its_end() -> None:
    assert innermost("x" * 2000 + "end") == ("x" * 2000 + "end")[-1024:]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (1, "exit code 1"),
        (137, "exit code 137 (SIGKILL)"),
        (143, "exit code 143 (SIGTERM)"),
        (139, "exit code 139 (SIGSEGV)"),
        (255, "exit code 255"),
    ],
)
def test_exit_codes_have_their_meaning(code: int, expected: str) -> None:
    assert exit_code(code) == expected


def test_an_oom_kill_tells_the_limit_and_what_to_raise() -> None:
    """Whatever the log said last has nothing to do with it."""
    killed = Ending(137, "OOMKilled", "Connection refused", None)
    said = why(killed, "896Mi")
    assert "its limit of 896Mi" in said
    assert "spec.spark.driver.memory" in said
    assert "Connection refused" not in said


def test_a_signal_is_told_beside_what_was_said() -> None:
    assert why(Ending(143, "Error", "stopping", None)) == "stopping (exit code 143 (SIGTERM))"
    assert why(Ending(1, "Error", "no topic", None)) == "no topic"
    assert why(Ending(1, "Error", "", None)).startswith("exit code 1; its log")
