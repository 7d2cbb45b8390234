"""Days and times as Delta's texts have them, from numbers: Arrow knows more of them than Python."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1)
_LEAST: Final = (datetime(1, 1, 1) - _EPOCH) // timedelta(microseconds=1)
_GREATEST: Final = (datetime(9999, 12, 31, 23, 59, 59, 999_999) - _EPOCH) // timedelta(microseconds=1)
_DAY: Final = 86_400_000_000
"""A day in microseconds."""


def _moment(micros: int) -> datetime | None:
    """Return a time of the years 1 to 9999. Others have no text that every reader understands."""
    return _EPOCH + timedelta(microseconds=micros) if _LEAST <= micros <= _GREATEST else None


def day_text(days: int) -> str | None:
    """Return a day, given in days since 1970, as ``2020-01-31``, or None beyond the years 1 to 9999."""
    found = _moment(days * _DAY)
    return None if found is None else found.date().isoformat()


def micro_text(micros: int, between: str, zone: str) -> str | None:
    """Return a time, given in microseconds since 1970, with six digits after the second, or None."""
    found = _moment(micros)
    return None if found is None else found.isoformat(between, "microseconds") + zone


def milli_text(millis: int, zone: str) -> str | None:
    """Return a time, given in milliseconds since 1970, with three digits after the second, or None."""
    found = _moment(millis * 1_000)
    return None if found is None else found.isoformat("T", "milliseconds") + zone
