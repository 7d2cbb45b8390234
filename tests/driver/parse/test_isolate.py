"""The records that make an evaluation fail are found, and nothing else is taken for one."""

from __future__ import annotations

import random
from collections.abc import Sequence
from types import SimpleNamespace

import pytest
from pyspark.sql import DataFrame, SparkSession

from lakemirror.driver.parse.isolate import AT_MOST, as_bad, bisect, is_poison, poisoned, without
from lakemirror.driver.read.base import RAW

pytestmark = pytest.mark.guarantee("No record makes a batch fail")

WHOLE = ValueError("somewhere")


@pytest.mark.parametrize("count", [1, 2, 5, AT_MOST])
def test_bisection_finds_each_poisoned_item(count: int) -> None:
    poison = set(random.Random(count).sample(range(1000), count))
    probes = 0

    def fails(items: Sequence[int]) -> Exception | None:
        nonlocal probes
        probes += 1
        bad = poison.intersection(items)
        return ValueError(str(min(bad))) if bad else None

    found = bisect(range(1000), fails, WHOLE)
    assert {item: str(error) for item, error in found.items()} == {item: str(item) for item in poison}
    assert probes <= 2 * 10 * count


def test_too_many_are_no_poison() -> None:
    with pytest.raises(ValueError, match="somewhere"):
        bisect(range(AT_MOST + 1), lambda items: ValueError("each"), WHOLE)
    assert bisect([], lambda items: None, WHOLE) == {}


@pytest.mark.parametrize(
    ("message", "poison"),
    [
        ("[ARITHMETIC_OVERFLOW] overflow", True),
        ("Job aborted: Lost task 0.0 (TID 7) (host executor driver): java.lang.StackOverflowError", True),
        ("Job aborted due to stage failure: ExecutorLostFailure (executor 1 exited)", False),
        ("Cannot call methods on a stopped SparkContext", False),
        ("Lost task 0.0 (TID 7): java.io.IOException: No space left on device", False),
        ("Job 7 cancelled by the user", False),
        ("Checkpoint block rdd_3_0 not found", False),
    ],
)
def test_the_environment_is_not_to_blame(message: str, poison: bool) -> None:
    assert is_poison(RuntimeError(message)) == poison


@pytest.mark.parametrize("error", [OSError("the disk is full"), PermissionError("denied"), MemoryError()])
def test_no_record_is_to_blame_for_what_the_driver_itself_lacks(error: Exception) -> None:
    assert not is_poison(error)


@pytest.mark.parametrize(
    ("name", "poison"),
    [
        ("software.amazon.awssdk.services.s3.model.S3Exception", False),
        ("com.azure.storage.blob.models.BlobStorageException", False),
        ("com.google.cloud.storage.StorageException", False),
        ("com.google.common.base.VerifyException", True),
        ("org.apache.spark.SparkArithmeticException", True),
    ],
)
def test_no_record_is_to_blame_for_a_store(name: str, poison: bool) -> None:
    thrown = SimpleNamespace(getClass=lambda: SimpleNamespace(getName=lambda: name), getCause=lambda: None)
    error = RuntimeError("failed")
    error.java_exception = thrown  # type: ignore[attr-defined]
    assert is_poison(error) == poison


def test_poisoned_records_are_found_by_their_origin(spark: SparkSession) -> None:
    records = [
        ("t", 0, i, None, b"k", b"x" if i in (3, 40) else b"1", None, None, None, None) for i in range(50)
    ]
    raw = spark.createDataFrame(records, RAW)

    def probe(frame: DataFrame) -> object:
        return frame.selectExpr("sum(CAST(CAST(value AS STRING) AS INT))").collect()

    with pytest.raises(Exception, match="CAST_INVALID_INPUT") as raised:
        probe(raw)
    found = poisoned(raw, probe, raised.value)
    assert without(raw, found).count() == 48
    probe(without(raw, found))
    bad = {row["offset"]: row for row in as_bad(raw, found).collect()}
    assert bad.keys() == {3, 40}
    assert all("CAST_INVALID_INPUT" in row["reason"] for row in bad.values())
    assert all((row["kind"], bytes(row["raw_value"])) == ("bad", b"x") for row in bad.values())
