"""The last safety net of a batch: finds the records that make its evaluation fail, by bisection.

The content of a record should never make Spark throw. If it does anyway, only that record may be affected.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lakemirror.driver.errors import cause_of

AT_MOST: Final = 32
"""Maximum number of failing records in one batch; if more fail, records are not the cause."""

Probe = Callable[[DataFrame], object]
Item = TypeVar("Item")

_ENVIRONMENT_CLASS = re.compile(
    r"^java\.io\.(?!CharConversion|UTFDataFormat)|^java\.net\.|^java\.nio\.file\.|^java\.nio\.channels\."
    r"|^org\.apache\.(hadoop|kafka)\.|^software\.amazon\.|^com\.(azure|google\.(api|cloud)|microsoft)\."
    r"|OutOfMemory|InterruptedException|MemoryError"
)
_ENVIRONMENT_TEXT = re.compile(
    r"ExecutorLostFailure|FetchFailed|SparkContext|No space left|cancel+ed|[Cc]heckpoint block|TaskKilled"
    r"|Python worker|java\.io\.(IO|FileNotFound|EOF)Exception|java\.net\.|OutOfMemoryError|not find block"
)


def origin() -> Column:
    """Return a hash of a record's place in its source, which identifies the record (BIGINT).

    It works for raw records and classified events.
    """
    return F.xxhash64("topic", "partition", "offset", "file", "row")


def poisoned(frame: DataFrame, probe: Probe, error: Exception) -> dict[int, str]:
    """Return the records of ``frame`` (by `origin`) for which ``probe`` fails, with one-line causes.

    ``error`` is what the probe raised for the whole frame. It is raised again if no record is to blame:
    because the environment failed (see `is_poison`), or because more than `AT_MOST` records fail.
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
    """Return the items for which ``fails`` returns an error, each with that error.

    All items together are known to fail with ``error``, which is raised if more than `AT_MOST` items fail.
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
    """Return the records that are not at ``places``."""
    return frame.where(~origin().isin(list(places)))


def reason(places: Mapping[int, str]) -> Column:
    """Return why a record cannot be read (STRING); null if it can."""
    found = F.lit(None).cast("string")
    for place, why in places.items():
        found = F.when(origin() == place, F.lit(f"the record cannot be read: {why}")).otherwise(found)
    return found


def as_bad(raw: DataFrame, places: Mapping[int, str]) -> DataFrame:
    """Turn the unclassifiable RAW records at ``places`` into bad events, with what is known about them."""
    return raw.where(origin().isin(list(places))).select(
        F.lit("bad").alias("kind"),
        reason(places).alias("reason"),
        *map(F.col, ("topic", "partition", "offset", "timestamp", "file", "row")),
        *(F.col(name).alias(f"raw_{name}") for name in ("key", "value", "headers")),
    )


def is_poison(error: BaseException) -> bool:
    """Return whether data may be to blame: not for a lost executor, a stopped context or an I/O error."""
    head = "\n".join(str(error).splitlines()[:5])
    if isinstance(error, OSError) or _ENVIRONMENT_TEXT.search(head):
        return False
    return not any(map(_ENVIRONMENT_CLASS.search, _classes(error)))


def _classes(error: BaseException) -> Iterator[str]:
    """Yield the class names of the error and of its causes, including those in Java."""
    yield type(error).__name__
    java: Any = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    for _ in range(20):
        if java is None:
            break
        yield str(java.getClass().getName())
        java = java.getCause()
    if error.__cause__ is not None:
        yield from _classes(error.__cause__)
