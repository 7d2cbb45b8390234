"""The last net under a batch: which records make its evaluation fail, found by bisection.

What a record holds should never make Spark throw; where it does all the same, only that record may suffer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lakemirror.driver.errors import cause_of

AT_MOST: Final = 32
"""Records found in one batch; where more fail, it is not a record that is wrong."""

Probe = Callable[[DataFrame], object]
Item = TypeVar("Item")

_ENVIRONMENT_CLASS = re.compile(
    r"^java\.io\.(?!CharConversion|UTFDataFormat)|^java\.net\.|^java\.nio\.file\.|^java\.nio\.channels\."
    r"|^org\.apache\.(hadoop|kafka)\.|OutOfMemory|InterruptedException|MemoryError|ConnectionError|TimeoutError"
)
_ENVIRONMENT_TEXT = re.compile(
    r"ExecutorLostFailure|FetchFailed|SparkContext|No space left|cancel+ed|[Cc]heckpoint block|TaskKilled"
    r"|Python worker|java\.io\.(IO|FileNotFound|EOF)Exception|java\.net\.|OutOfMemoryError|not find block"
)


def origin() -> Column:
    """BIGINT: tells records from each other by where they stood; for raw records and classified events."""
    return F.xxhash64("topic", "partition", "offset", "file", "row")


def poisoned(frame: DataFrame, probe: Probe, error: Exception) -> dict[int, str]:
    """The records of ``frame`` (by `origin`) for which ``probe`` fails, with the first line of their errors.

    ``error`` is what the probe raised for the whole frame; it is raised again where no record is to blame:
    the environment failed (see `is_poison`), or more than `AT_MOST` records.
    """
    if not is_poison(error):
        raise error
    places = sorted(row[0] for row in frame.select(origin()).distinct().collect())

    def fails(some: Sequence[int]) -> Exception | None:
        try:
            probe(frame.where(origin().between(some[0], some[-1])))
        except Exception as raised:
            if not is_poison(raised):
                raise
            return raised
        return None

    found = bisect(places, fails, error)
    if not found:
        raise error
    return {place: cause_of(each) for place, each in found.items()}


def bisect(
    items: Sequence[Item], fails: Callable[[Sequence[Item]], Exception | None], error: Exception
) -> dict[Item, Exception]:
    """The items for which ``fails``, each with its error; the whole is known to fail with ``error``.

    Raises ``error`` when they are more than `AT_MOST`.
    """
    found: dict[Item, Exception] = {}
    failing = [(items, error)] if items else []
    while failing:
        part, why = failing.pop()
        if len(part) == 1:
            found[part[0]] = why
            if len(found) > AT_MOST:
                raise error
            continue
        middle = len(part) // 2
        for half in (part[middle:], part[:middle]):
            raised = fails(half)
            if raised is not None:
                failing.append((half, raised))
    return found


def without(frame: DataFrame, places: Mapping[int, str]) -> DataFrame:
    """The other records."""
    return frame.where(~origin().isin(list(places)))


def reason(places: Mapping[int, str]) -> Column:
    """STRING: why a record cannot be read; null for those that can."""
    found = F.lit(None).cast("string")
    for place, why in places.items():
        found = F.when(origin() == place, F.lit(f"the record cannot be read: {why}")).otherwise(found)
    return found


def as_bad(raw: DataFrame, places: Mapping[int, str]) -> DataFrame:
    """RAW records that cannot be classified as bad events, with what is known of them."""
    return raw.where(origin().isin(list(places))).select(
        F.lit("bad").alias("kind"),
        reason(places).alias("reason"),
        *map(F.col, ("topic", "partition", "offset", "timestamp", "file", "row")),
        *(F.col(name).alias(f"raw_{name}") for name in ("key", "value", "headers")),
    )


def is_poison(error: BaseException) -> bool:
    """Whether data can be to blame: not for a lost executor, a stopped context, or input and output."""
    head = "\n".join(str(error).splitlines()[:5])
    return not (_ENVIRONMENT_TEXT.search(head) or any(map(_ENVIRONMENT_CLASS.search, _classes(error))))


def _classes(error: BaseException) -> Iterator[str]:
    """Names of the error's class and of those that caused it, Java's too."""
    yield type(error).__name__
    java: Any = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    for _ in range(20):
        if java is None:
            break
        yield str(java.getClass().getName())
        java = java.getCause()
    if error.__cause__ is not None:
        yield from _classes(error.__cause__)
