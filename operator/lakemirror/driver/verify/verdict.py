"""Decides what a difference means while both sides change: wrong, or only not arrived yet.

A key is examined in this order: the mirror's row, the source's row, and the source's position; then the
mirror has to pass that position; then the mirror's row again. All changes that the source's row shows are
before the position. If the mirror's row differs and did not change in the meantime, it lacks one of them or
is something that the source never was: it is wrong. If it did change, the key is examined again. This
requires no snapshot of both sides, and stops neither.

A change may be in the log, and in the mirror, a moment before the source's rows show it (PostgreSQL and MySQL
may wait for a standby in between). A row that seems to be wrong is therefore read from the source once more.
If it is a different row by then, it counts as one that changed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol


class Verdict(Enum):
    """The verdict on a key that differed."""

    EQUAL = "equal"
    WRONG = "wrong"
    ARRIVING = "arriving"
    """The rows differ, and the mirror was not seen to pass the source's position in time."""
    MOVING = "moving"
    """The row changed each time it was examined."""


@dataclass(frozen=True)
class Stored:
    """A key in the mirror: the digest of its row (None: no row), and the sequence of its last change.

    For a deleted key, the sequence is that of its tombstone (None: nothing is known about it).
    """

    digest: int | None = None
    seq: bytes | None = None


NOTHING = Stored()


@dataclass(frozen=True)
class Reading:
    """Rows of the source: the digest of each key that has one, and the source's positions.

    The positions were taken ``before`` and ``after`` the rows were read (None: the source has none, and
    changes count as arrived at once). If requested, ``images`` are the rows in the form of change events. In
    that case, ``unfinished`` marks the changes that were not committed yet and whose positions may be before
    these (None: none).
    """

    digests: Mapping[str, int]
    before: bytes | None = None
    after: bytes | None = None
    images: Mapping[str, str] = field(default_factory=dict)
    unfinished: int | None = None


@dataclass(frozen=True)
class Difference:
    """A key that is wrong, and which side has a row for it.

    ``position`` is the source's position before its row was read there, and ``image`` is that row in the form
    of a change event (None: deleted, or not requested). ``seq`` is that of the key's last change in the
    mirror.
    """

    key: str
    in_source: bool
    in_mirror: bool
    position: bytes | None = None
    image: str | None = None
    seq: bytes | None = None

    @property
    def what(self) -> str:
        """The difference in one word: missing in the mirror, extra there, or differs."""
        if not self.in_mirror:
            return "missing"
        return "differs" if self.in_source else "extra"


@dataclass(frozen=True)
class Settled:
    """The keys that are wrong, those that are still arriving, and those that kept changing."""

    wrong: tuple[Difference, ...] = ()
    arriving: tuple[str, ...] = ()
    moving: tuple[str, ...] = ()


class Look(Protocol):
    """How to examine the sides."""

    def mirror(self, keys: Collection[str]) -> Mapping[str, Stored]:
        """Return what the mirror has for these keys."""

    def source(self, keys: Collection[str]) -> Reading:
        """Return what the source has for these keys."""

    def wait_for(self, reading: Reading) -> bool:
        """Wait until the mirror has passed the position after a reading.

        Returns whether it did so in time.
        """


def judge(before: Stored, source: int | None, after: Stored, *, passed: bool) -> Verdict:
    """Judge a key by what the mirror had before the source was read, and after it ``passed`` that reading."""
    if after.digest == source:
        return Verdict.EQUAL
    if before != after:
        return Verdict.MOVING
    return Verdict.WRONG if passed else Verdict.ARRIVING


def settle(look: Look, keys: Collection[str], *, over: Callable[[], bool], rounds: int) -> Settled:
    """Examine keys that differed until each is judged.

    Stops earlier if ``over()`` says that no time is left, or after so many ``rounds``.
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
                image = reading.images.get(key)
                wrong.append(Difference(key, *known, reading.before, image, stored.seq))
            elif verdict is not Verdict.EQUAL:
                left[key] = verdict
        open_, before = left, after
    return Settled(
        tuple(sorted(wrong, key=lambda each: each.key)),
        tuple(sorted(key for key, verdict in open_.items() if verdict is Verdict.ARRIVING)),
        tuple(sorted(key for key, verdict in open_.items() if verdict is Verdict.MOVING)),
    )
