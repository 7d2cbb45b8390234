"""The last safety net of a batch: finds the records that make its evaluation fail, by bisection.

The content of a record should never make Spark throw. If it does anyway, only that record may be affected.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import Any, Final, NamedTuple, TypeVar

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lakemirror.driver.errors import cause_of

SUSPECT: Final = 32
"""If more records than this fail, and nothing else of the batch does not, records may not be the cause."""
ATTEMPTS: Final = 400
"""Maximum number of attempts to find the failing records of one batch. Each of them is a query."""

Probe = Callable[[DataFrame], object]
Blank = Callable[[DataFrame], DataFrame]
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


class Undecided(NamedTuple):
    """Records between two origins that fail together, and why. They were not tried one by one."""

    first: int
    last: int
    records: int
    why: str


@dataclass(frozen=True)
class Poison:
    """Records, by `origin`, that make an evaluation fail, each with a one-line cause.

    Records of the ``parts`` may be good: there were too many to find those that fail.
    """

    records: Mapping[int, str] = field(default_factory=dict)
    parts: Sequence[Undecided] = ()

    def all(self) -> Column:
        """BOOLEAN: whether a record is one of them."""
        some = [origin().between(part.first, part.last) for part in self.parts]
        return reduce(or_, some, origin().isin(list(self.records)))


def poisoned(frame: DataFrame, probe: Probe, error: Exception, *, blank: Blank | None = None) -> Poison:
    """Return the records of ``frame`` for which ``probe`` fails.

    ``error`` is what the probe raised for the whole frame. It is raised again if no record is to blame:
    because the environment failed (see `is_poison`), or because everything that is tried fails, even a frame
    that ``blank`` returns for one record of it (by default, nothing else is tried).
    """
    if not is_poison(error):
        raise error
    places = sorted(row[0] for row in frame.select(origin()).distinct().collect())

    def attempt(some: DataFrame) -> Exception | None:
        try:
            probe(some)
        except Exception as raised:
            if not is_poison(raised):
                raise
            return raised
        return None

    def fails(some: Sequence[int]) -> Exception | None:
        return attempt(frame.where(origin().between(some[0], some[-1])))

    def others() -> Exception | None:
        return error if blank is None else attempt(blank(frame.where(origin() == places[0])))

    found, rest = bisect(places, fails, error, others)
    if not found and not rest:
        raise error
    parts = [Undecided(some[0], some[-1], len(some), cause_of(why)) for some, why in rest]
    return Poison({place: cause_of(why) for place, why in found.items()}, parts)


def bisect(
    items: Sequence[Item],
    fails: Callable[[Sequence[Item]], Exception | None],
    error: Exception,
    others: Callable[[], Exception | None],
) -> tuple[dict[Item, Exception], list[tuple[Sequence[Item], Exception]]]:
    """Return the items for which ``fails`` returns an error, each with that error.

    All items together are known to fail with ``error``. It is raised if more than `SUSPECT` items fail while
    none passes, and ``others`` fails, too. After `ATTEMPTS`, the parts that still contain failing items are
    returned as well, as small as they are then, each with its error.
    """
    found: dict[Item, Exception] = {}
    failing = [(items, error)] if items else []
    attempts, passed = 0, False
    while failing:
        # Some are found for certain. Then, parts become smaller, so that few good items are among the rest.
        largest = max(range(len(failing)), key=lambda at: len(failing[at][0]))
        part, why = failing.pop(-1 if len(found) <= SUSPECT else largest)
        if len(part) == 1:
            found[part[0]] = why
            if len(found) == SUSPECT + 1 and not passed and others() is not None:
                raise error
            continue
        if attempts >= ATTEMPTS:
            return found, [(part, why), *failing]
        middle = len(part) // 2
        for half in (part[middle:], part[:middle]):
            raised = fails(half)
            attempts += 1
            if raised is not None:
                failing.append((half, raised))
            passed = passed or raised is None
    return found, []


def without_content(raw: DataFrame) -> DataFrame:
    """Return RAW records with nothing in them that a producer chose but their topic."""
    empty = {name: F.substring(name, 1, 0) for name in ("key", "value")}
    return raw.withColumns({**empty, "headers": F.slice("headers", 1, 0)})


def without(frame: DataFrame, poison: Poison) -> DataFrame:
    """Return the other records."""
    return frame.where(~poison.all())


def reason(poison: Poison) -> Column:
    """Return why a record cannot be read (STRING); null if it can, or if that is undecided."""
    return F.coalesce(
        F.lit(None).cast("string"),
        *[
            F.when(origin() == place, f"the record cannot be read: {why}")
            for place, why in poison.records.items()
        ],
    )


def aside(raw: DataFrame, poison: Poison) -> DataFrame:
    """Turn unclassifiable RAW records into bad events, with what is known about them.

    Those that were not tried one by one wait (kind ``held``): the driver tries them again.
    """
    why = reason(poison)
    undecided = [F.when(origin().between(part.first, part.last), _undecided(part)) for part in poison.parts]
    return raw.where(poison.all()).select(
        F.when(why.isNotNull(), "bad").otherwise("held").alias("kind"),
        F.coalesce(why, *undecided).alias("reason"),
        *map(F.col, ("topic", "partition", "offset", "timestamp", "file", "row")),
        *(F.col(name).alias(f"raw_{name}") for name in ("key", "value", "headers")),
    )


def _undecided(part: Undecided) -> str:
    return (
        f"undecided: it is one of {part.records} records, some of which cannot be read, and the batch has "
        f"too many of these to find each. It is tried again by the driver: {part.why}"
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
