"""What is told of an error: its cause, in one line."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from lakemirror.driver.errors import CheckpointInUse, cause_of
from lakemirror.driver.read.brokers import why_away


@dataclass
class Class:
    name: str

    def getName(self) -> str:  # noqa: N802
        return self.name

    def getSimpleName(self) -> str:  # noqa: N802
        return self.name.rpartition(".")[2]


@dataclass
class Throwable:
    """A Java exception, as py4j shows it."""

    name: str
    message: str | None = None
    cause: Throwable | None = None
    trace: list[str] = field(default_factory=list)

    def getClass(self) -> Class:  # noqa: N802
        return Class(self.name)

    def getMessage(self) -> str | None:  # noqa: N802
        return self.message

    def getCause(self) -> Throwable | None:  # noqa: N802
        return self.cause

    def getStackTrace(self) -> list[Throwable]:  # noqa: N802
        return [Throwable(at) for at in self.trace]

    def toString(self) -> str:  # noqa: N802
        return self.name if self.message is None else f"{self.name}: {self.message}"


def raised(*chain: Throwable) -> Exception:
    """The error that Python sees, ``chain`` from the outermost cause to the innermost."""
    for outer, inner in itertools.pairwise(chain):
        outer.cause = inner
    error = Exception("An error occurred while calling o97.get.\n: a trace\n\tat of many lines")
    error.java_exception = chain[0]  # type: ignore[attr-defined]
    return error


def wrapped(inner: Throwable, name: str = "java.util.concurrent.ExecutionException") -> Throwable:
    return Throwable(name, inner.toString())


TIMEOUT = Throwable(
    "org.apache.kafka.common.errors.TimeoutException",
    "Timed out waiting for a node assignment. Call: listTopics",
)
REFUSED = Throwable("java.net.ConnectException", "Connection refused")
CONNECT = Throwable(
    "software.amazon.awssdk.thirdparty.org.apache.http.conn.HttpHostConnectException",
    "Connect to minio:9000 [minio/10.0.0.5] failed: Connection refused",
)
CLIENT = Throwable(
    "software.amazon.awssdk.core.exception.SdkClientException",
    f"Unable to execute HTTP request: {CONNECT.message} (SDK Attempt Count: 6)",
)
STORE = Throwable(
    "org.apache.hadoop.fs.s3a.AWSClientIOException",
    f"getFileStatus on s3a://lake/_checkpoints/shop: {CLIENT.toString()}: {CLIENT.message}",
)
HANDSHAKE = Throwable(
    "sun.security.provider.certpath.SunCertPathBuilderException",
    "unable to find valid certification path to requested target",
)
PATH = Throwable(
    "sun.security.validator.ValidatorException", f"PKIX path building failed: {HANDSHAKE.toString()}"
)
LOST = (
    "Job aborted due to stage failure: Task 3 in stage 7.0 failed 4 times, most recent failure: Lost task "
    "3.3 in stage 7.0 (TID 41) (10.1.2.3 executor 2): java.lang.OutOfMemoryError: Java heap space\n\tat x\n"
)
FULL = (
    f"{LOST.partition('java')[0]}java.io.IOException: a\n\tat x\nCaused by: java.io.IOException: disk full\n"
)


@pytest.mark.parametrize(
    ("chain", "expected"),
    [
        (
            [wrapped(TIMEOUT), TIMEOUT],
            "TimeoutException: Timed out waiting for a node assignment. Call: listTopics",
        ),
        (
            [STORE, CLIENT, CONNECT, REFUSED],
            "SdkClientException: Unable to execute HTTP request: Connect to minio:9000 [minio/10.0.0.5] "
            "failed: Connection refused (SDK Attempt Count: 6)",
        ),
        (
            [
                Throwable("org.apache.kafka.common.errors.SslAuthenticationException", "handshake failed"),
                PATH,
                HANDSHAKE,
            ],
            f"ValidatorException: {PATH.message}",
        ),
        ([Throwable("org.apache.spark.SparkException", LOST)], "OutOfMemoryError: Java heap space"),
        ([Throwable("org.apache.spark.SparkException", FULL)], "IOException: disk full"),
        (
            [
                Throwable("org.apache.spark.SparkException", "[X] Query failed: none. SQLSTATE: 1"),
                Throwable("a.B", "none"),
            ],
            "B: none",
        ),
        (
            [Throwable("java.lang.NullPointerException", None, None, ["a.B.c(B.java:1)"])],
            "NullPointerException at a.B.c(B.java:1)",
        ),
    ],
)
def test_the_innermost_cause_of_a_java_error_and_what_others_add_to_it(
    chain: list[Throwable], expected: str
) -> None:
    assert cause_of(raised(*chain)) == expected


def test_errors_of_python() -> None:
    ours = CheckpointInUse("another driver\n owns it")
    ours.__cause__ = raised(TIMEOUT)
    assert cause_of(ours) == "another driver owns it"
    assert cause_of(KeyError("a")) == "KeyError: 'a'"
    assert cause_of(KeyboardInterrupt()) == "KeyboardInterrupt"
    assert cause_of(PermissionError(13, "Permission denied", "/in")) == "/in: Permission denied"
    outer = RuntimeError("batch 3 failed")
    outer.__cause__ = raised(wrapped(TIMEOUT), TIMEOUT)
    assert cause_of(outer).startswith("TimeoutException: ")


def test_what_spark_says_itself(spark: SparkSession) -> None:
    with pytest.raises(Exception, match=r".") as casting:
        spark.sql("SELECT CAST(concat('x', id) AS INT) FROM range(1)").collect()
    assert cause_of(casting.value).startswith(
        "SparkNumberFormatException: [CAST_INVALID_INPUT] The value 'x0'"
    )
    with pytest.raises(Exception, match=r".") as missing:
        spark.read.text("/nothing/here")
    assert "[PATH_NOT_FOUND] Path does not exist: file:/nothing/here" in cause_of(missing.value)
    with pytest.raises(Py4JJavaError) as refused:
        spark._jvm.java.net.Socket("127.0.0.1", 1)  # type: ignore[union-attr]
    assert cause_of(refused.value) == "ConnectException: Connection refused"
    assert not any("\n" in cause_of(each.value) for each in (casting, missing, refused))


def test_why_brokers_are_away() -> None:
    away = raised(wrapped(TIMEOUT), TIMEOUT)
    assert why_away("127.0.0.1:1", away) == "127.0.0.1:1: connection refused"
    assert "nowhere.invalid:9092: unknown host" in why_away("nowhere.invalid:9092, 127.0.0.1:1", away)
    failed = raised(Throwable("org.apache.kafka.common.errors.SaslAuthenticationException", "bad password"))
    assert why_away("kafka:9092", failed).startswith(
        "kafka:9092: SaslAuthenticationException: bad password: the brokers refuse the login: check username"
    )
    refused = raised(
        Throwable("javax.net.ssl.SSLHandshakeException", "Received fatal alert: certificate_unknown")
    )
    for ends, remedy in (
        (None, "the brokers refuse the driver's certificate: check tls.crt and tls.key in a secret"),
        (datetime(9999, 1, 1, tzinfo=UTC), "the brokers refuse the driver's certificate: check tls.crt"),
        (datetime(2026, 3, 1, 12, tzinfo=UTC), "tls.crt in a secret expired at 2026-03-01T12:00:00Z: renew"),
    ):
        said = why_away("kafka:9092", refused, certificate_ends=lambda ends=ends: ends)
        assert f"certificate_unknown: {remedy}" in said
    other = raised(Throwable("org.apache.kafka.common.errors.InvalidTopicException", "t"))
    assert why_away("kafka:9092", other) == "kafka:9092: InvalidTopicException: t"
