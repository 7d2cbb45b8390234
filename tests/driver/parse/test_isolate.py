"""The records that make an evaluation fail are found, and nothing else is taken for one."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from types import SimpleNamespace

import pytest
from pyspark.sql import DataFrame, SparkSession

from lakemirror.driver.parse import isolate
from lakemirror.driver.parse.isolate import (
    ATTEMPTS,
    SUSPECT,
    aside,
    bisect,
    is_poison,
    poisoned,
    without,
    without_content,
)
from lakemirror.driver.read.base import RAW

pytestmark = pytest.mark.guarantee("No record makes a batch fail")

WHOLE = ValueError("somewhere")


def failing(poison: set[int]) -> Callable[[Sequence[int]], Exception | None]:
    def fails(items: Sequence[int]) -> Exception | None:
        bad = poison.intersection(items)
        return ValueError(str(min(bad))) if bad else None

    return fails


def others_fail() -> Exception | None:
    return ValueError("others")


@pytest.mark.parametrize("count", [1, 2, 5, SUSPECT, SUSPECT + 1])
def test_bisection_finds_each_poisoned_item(count: int) -> None:
    poison = set(random.Random(count).sample(range(1000), count))
    found, rest = bisect(range(1000), failing(poison), WHOLE, others_fail)
    assert {item: str(error) for item, error in found.items()} == {item: str(item) for item in poison}
    assert rest == []


@pytest.mark.parametrize("count", [40, 200, 2000])
def test_however_many_fail_the_others_are_told_from_them_or_few_wait(count: int) -> None:
    """Each round finds some, and what is left is tried again until there is nothing."""
    poison = set(random.Random(count).sample(range(10_000), count))
    left, rounds, found = list(range(10_000)), 0, set[int]()
    attempts, inner = 0, failing(poison)

    def fails(items: Sequence[int]) -> Exception | None:
        nonlocal attempts
        attempts += 1
        return inner(items)

    while left:
        attempts = 0
        some, rest = bisect(left, fails, WHOLE, others_fail)
        assert attempts <= ATTEMPTS + 1
        assert poison.issuperset(some)
        assert all(inner(part) is not None for part, _ in rest)
        assert found.isdisjoint(some)
        found |= some.keys()
        waiting = {each for part, _ in rest for each in part}
        assert poison.intersection(left) == poison.intersection(waiting) | some.keys()
        left, rounds = sorted(waiting), rounds + 1
        assert rounds <= 1 + count // SUSPECT
    assert found == poison


def test_if_all_fail_records_are_to_blame_only_if_something_else_passes() -> None:
    many = range(SUSPECT + 1)
    with pytest.raises(ValueError, match="somewhere"):
        bisect(many, failing(set(many)), WHOLE, others_fail)
    assert bisect(many, failing(set(many)), WHOLE, lambda: None)[0].keys() == set(many)
    assert bisect([], lambda items: None, WHOLE, others_fail) == ({}, [])


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


def raw_of(spark: SparkSession, bad: Collection[int], number: int) -> DataFrame:
    records = [
        ("t", 0, i, None, b"k", b"x" if i in bad else b"1", None, None, None, None) for i in range(number)
    ]
    return spark.createDataFrame(records, RAW)


def summed(frame: DataFrame) -> object:
    return frame.selectExpr("sum(CAST(nullif(CAST(value AS STRING), '') AS INT))").collect()


def test_poisoned_records_are_found_by_their_origin(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = raw_of(spark, {3, 40}, 50)
    with pytest.raises(Exception, match="CAST_INVALID_INPUT") as raised:
        summed(raw)
    found = poisoned(raw, summed, raised.value)
    assert without(raw, found).count() == 48
    summed(without(raw, found))
    bad = {row["offset"]: row for row in aside(raw, found).collect()}
    assert bad.keys() == {3, 40}
    assert all("CAST_INVALID_INPUT" in row["reason"] for row in bad.values())
    assert all((row["kind"], bytes(row["raw_value"])) == ("bad", b"x") for row in bad.values())

    monkeypatch.setattr(isolate, "SUSPECT", 0)
    monkeypatch.setattr(isolate, "ATTEMPTS", 4)
    found = poisoned(raw, summed, raised.value, blank=without_content)
    summed(without(raw, found))
    kinds = {row["offset"]: (row["kind"], row["reason"]) for row in aside(raw, found).collect()}
    assert kinds.keys() >= {3, 40}
    assert len(kinds) == len(found.records) + sum(part.records for part in found.parts) < 50
    assert all(
        (kind == "held") == reason.startswith("undecided: it is one of") for kind, reason in kinds.values()
    )
    assert "held" in {kind for kind, _ in kinds.values()}

    everything = raw_of(spark, {0, 1}, 2)
    assert len(poisoned(everything, summed, raised.value, blank=without_content).records) == 2
    with pytest.raises(Exception, match="CAST_INVALID_INPUT"):
        poisoned(everything, summed, raised.value)
