"""Days and times as Delta's texts have them, from numbers: Arrow knows more of them than Python."""

from __future__ import annotations

from datetime import datetime

from lakemirror.driver.rules.moments import DAY_SECONDS, MICROS, is_outside, moment


def _moment(micros: int) -> datetime | None:
    """Return a time of the years 1 to 9999. Others have no text that every reader understands."""
    return None if is_outside(micros, MICROS) else moment(micros)


def day_text(days: int) -> str | None:
    """Return a day, given in days since 1970, as ``2020-01-31``, or None beyond the years 1 to 9999."""
    found = _moment(days * DAY_SECONDS * MICROS.per_second)
    return None if found is None else found.date().isoformat()


def micro_text(micros: int, between: str, zone: str) -> str | None:
    """Return a time, given in microseconds since 1970, with six digits after the second, or None."""
    found = _moment(micros)
    return None if found is None else found.isoformat(between, "microseconds") + zone


def milli_text(millis: int, zone: str) -> str | None:
    """Return a time, given in milliseconds since 1970, with three digits after the second, or None."""
    found = _moment(millis * 1_000)
    return None if found is None else found.isoformat("T", "milliseconds") + zone
