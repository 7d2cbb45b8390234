"""How long the files of a table stay after it has stopped needing them, by its properties."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

FILE_RETENTION: Final = "delta.deletedFileRetentionDuration"
_DEFAULT: Final = "interval 1 week"
_MILLIS: Mapping[str, float] = MappingProxyType(
    {
        **{"week": 604_800_000, "day": 86_400_000, "hour": 3_600_000, "minute": 60_000},
        **{"second": 1_000, "millisecond": 1, "microsecond": 0.001},
    }
)
_PART: Final = r"(\d+(?:\.\d+)?)\s+([a-z]+?)s?"
_INTERVAL: Final = re.compile(rf"\s*(?:interval\s+)?{_PART}(?:\s+{_PART})*\s*")


def of_files(properties: Mapping[str, str]) -> int | None:
    """Return for how many ms VACUUM keeps files that no version needs, or None if that cannot be told."""
    return milliseconds(properties.get(FILE_RETENTION, _DEFAULT))


def milliseconds(interval: str) -> int | None:
    """Return the length of an interval such as ``interval 1 week``, rounded down, or None if it is none.

    Delta allows neither months nor years in properties, whose length varies (``parseCalendarInterval``).
    """
    text = interval.lower()
    if _INTERVAL.fullmatch(text) is None:
        return None
    parts = [(float(number), _MILLIS.get(unit)) for number, unit in re.findall(_PART + r"\b", text)]
    lengths = [number * unit for number, unit in parts if unit is not None]
    return int(sum(lengths)) if len(lengths) == len(parts) else None
