"""What a difference means while both sides change: wrong, or only not yet arrived.

A key is looked at in this order: the mirror's row, the source's row, the source's position; then the mirror
has to pass that position; then the mirror's row once more. All changes that the source's row shows lie
before the position. So a mirror's row that did not move meanwhile, and differs, lacks one of them or is
something that the source never was: it is wrong. One that moved is looked at again. That needs no snapshot
of both sides and stops neither.

A change may be in the log, and in the mirror, a moment before the source's rows show it (PostgreSQL and MySQL
may wait for a standby in between). So a row that seems to be wrong is read once more from the source, and
counts as one that moved where it is another one by then.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol


class Verdict(Enum):
    """What came of a key that differed."""

    EQUAL = "equal"
    WRONG = "wrong"
    ARRIVING = "arriving"
    """It differs, and the mirror was not seen to pass the source's position in time."""
    MOVING = "moving"
    """It changed each time it was looked at."""


@dataclass(frozen=True)
class Stored:
    """A key in the mirror: the digest of its row (None: no row), and the sequence of its last change, of a
    deleted one that of its tombstone (None: nothing is known of it).
    """

    digest: int | None = None
    seq: bytes | None = None


NOTHING = Stored()


@dataclass(frozen=True)
class Reading:
    """Rows of the source: the digest of each key that has one; and its positions, taken ``before`` the rows
    were read and ``after`` that (None: the source has none, and changes count as arrived at once).
    ``images`` are the rows as change events have them, where they were asked for, and ``unfinished`` tells
    then which changes were not committed yet whose positions may lie before these (None: none).
    """

    digests: Mapping[str, int]
    before: bytes | None = None
    after: bytes | None = None
    images: Mapping[str, str] = field(default_factory=dict)
    unfinished: int | None = None


@dataclass(frozen=True)
class Difference:
    """A key that is wrong: which side has a row of it, the source's position before its row was read there,
    and that row as change events have it (None: deleted, or not asked for).
    """

    key: str
    in_source: bool
    in_mirror: bool
    position: bytes | None = None
    image: str | None = None

    @property
    def what(self) -> str:
        """In one word: missing in the mirror, extra there, or differs."""
        if not self.in_mirror:
            return "missing"
        return "differs" if self.in_source else "extra"


@dataclass(frozen=True)
class Settled:
    """The keys that are wrong, those that are still arriving, and those that kept moving."""

    wrong: tuple[Difference, ...] = ()
    arriving: tuple[str, ...] = ()
    moving: tuple[str, ...] = ()


class Look(Protocol):
    """How the sides are looked at."""

    def mirror(self, keys: Collection[str]) -> Mapping[str, Stored]:
        """What the mirror has of these keys."""

    def source(self, keys: Collection[str]) -> Reading:
        """What the source has of these keys."""

    def wait_for(self, reading: Reading) -> bool:
        """Wait until the mirror has passed the position after a reading; whether it did in time."""


def judge(before: Stored, source: int | None, after: Stored, *, passed: bool) -> Verdict:
    """What a key is, by what the mirror had before the source was read, and after it ``passed`` that."""
    if after.digest == source:
        return Verdict.EQUAL
    if before != after:
        return Verdict.MOVING
    return Verdict.WRONG if passed else Verdict.ARRIVING


def settle(look: Look, keys: Collection[str], *, over: Callable[[], bool], rounds: int) -> Settled:
    """Look at keys that differed until each is judged, ``over()`` says that there is no time left, or so many
    rounds are done.
    """
    before = look.mirror(keys) if keys else {}
    wrong: list[Difference] = []
    open_: dict[str, Verdict] = dict.fromkeys(keys, Verdict.MOVING)
    for number in range(rounds):
        if not open_ or (number and over()):
            break
        reading = look.source(list(open_))
        passed = look.wait_for(reading)
        after = look.mirror(list(open_))
        verdicts = {
            key: judge(
                before.get(key, NOTHING),
                reading.digests.get(key),
                after.get(key, NOTHING),
                passed=passed,
            )
            for key in open_
        }
        suspects = [key for key, verdict in verdicts.items() if verdict is Verdict.WRONG]
        again = look.source(suspects).digests if suspects else {}
        left: dict[str, Verdict] = {}
        for key, verdict in verdicts.items():
            stored, source = after.get(key, NOTHING), reading.digests.get(key)
            if verdict is Verdict.WRONG and again.get(key) != source:
                left[key] = Verdict.MOVING
            elif verdict is Verdict.WRONG:
                known = (source is not None, stored.digest is not None)
                wrong.append(Difference(key, *known, reading.before, reading.images.get(key)))
            elif verdict is not Verdict.EQUAL:
                left[key] = verdict
        open_, before = left, after
    return Settled(
        tuple(sorted(wrong, key=lambda each: each.key)),
        tuple(sorted(key for key, verdict in open_.items() if verdict is Verdict.ARRIVING)),
        tuple(sorted(key for key, verdict in open_.items() if verdict is Verdict.MOVING)),
    )
