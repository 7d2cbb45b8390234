"""Positions as people write them.

=========================== ==========================================================================
text                        changes before it
=========================== ==========================================================================
``16/B374D848``             PostgreSQL: of transactions committed before this LSN
``binlog.000003:1234``      MySQL, MariaDB: before this place in this file of the binary log
``0000002a:00000d40:0002``  SQL Server: of transactions up to and including this commit LSN
``scn:123456``              Oracle: of transactions up to and including this commit SCN
``24023128:24023184``       any: before this major and minor part of ``__seq``, as numbers
``00000000...``             any: up to and including this ``__seq`` (hexadecimal digits)
=========================== ==========================================================================
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from lakemirror.driver.consistent.reach import END
from lakemirror.driver.errors import LakemirrorError
from lakemirror.driver.sequence import WIDTH

_HALF = 20  # hexadecimal digits of each part
_TIE = 8


class PositionUnclear(LakemirrorError):
    """The text is not a position."""


def _digits(epoch: int, major: int, minor: int = 0) -> str:
    """Return the sequence of a snapshot row at a position. Every change at that position comes after it."""
    return f"{epoch:04x}{major:020x}{minor:020x}{0:08x}"


def _up_to(epoch: int, major: int) -> str:
    """Return the last sequence with this major part."""
    return f"{epoch:04x}{major:020x}" + "f" * (_HALF + _TIE)


_FORMS: Final[tuple[tuple[str, Callable[[int, re.Match[str]], str]], ...]] = (
    (
        r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})",
        lambda epoch, found: _digits(epoch, (int(found[1], 16) << 32) + int(found[2], 16)),
    ),
    (
        r"([0-9A-Fa-f]{8}):([0-9A-Fa-f]{8}):([0-9A-Fa-f]{4})",
        lambda epoch, found: _up_to(epoch, int("".join(found.groups()), 16)),
    ),
    (r"scn:(\d{1,18})", lambda epoch, found: _up_to(epoch, int(found[1]))),
    (
        r"(?:[^:/]*\.)?(\d{1,18}):(\d{1,18})",
        lambda epoch, found: _digits(epoch, int(found[1]), int(found[2])),
    ),
    (rf"([0-9A-Fa-f]{{{2 * WIDTH}}})", lambda epoch, found: found[1].lower()),
)


def parse(text: str, epoch: int = 0) -> str:
    """Parse a position. It belongs to the epoch ``epoch`` unless the text contains its own.

    Raises PositionUnclear.
    """
    for form, position in _FORMS:
        found = re.fullmatch(form, text.strip())
        if found is not None:
            return position(epoch, found)
    raise PositionUnclear(
        f"{text!r} is not a position: write an LSN (16/B374D848), a file and place of the binary log "
        f"(binlog.000003:1234), a commit LSN of SQL Server (0000002a:00000d40:0002), an SCN (scn:123456), or "
        f"a value of __seq as {2 * WIDTH} hexadecimal digits"
    )


def parts(position: str) -> tuple[int, int]:
    """Return the major and the minor part of a position."""
    digits = position.ljust(2 * WIDTH, "0")
    return int(digits[4 : 4 + _HALF], 16), int(digits[4 + _HALF : 4 + 2 * _HALF], 16)


def shown(position: str, like: str = "") -> str:
    """Format a position for people: as an LSN if ``like`` is one, and otherwise as major and minor part."""
    major, minor = parts(position)
    if re.fullmatch(_FORMS[0][0], like):
        return f"{major >> 32:X}/{major & 0xFFFFFFFF:X}"
    return f"{major}:{minor}"


def between(since: str, until: str, like: str = "") -> str | None:
    """Return a text that names a position from ``since`` to before ``until``.

    Returns None if only the position itself does.
    """
    epoch, ends = int(since[:4], 16), [(parts(since), 1)]
    if until != END:
        ends.append((parts(until), 0))
    if re.fullmatch(_FORMS[0][0], like):
        candidates = [_digits(epoch, major + more) for (major, _), more in ends]
    else:
        candidates = [_digits(epoch, major, minor + more) for (major, minor), more in ends]
    return next((shown(each, like) for each in candidates if since <= each < until), None)
