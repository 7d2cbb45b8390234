"""JSON in which numbers keep their digits, such as those of decimals."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

_LINE_ENDS: Final = str.maketrans({each: f"\\u{ord(each):04x}" for each in "\x85\u2028\u2029"})
"""What some programs take for the end of a line, and JSON does not escape."""


class Number(str):
    """A number as JSON spells it."""

    __slots__ = ()


def loads(text: str) -> Any:
    """Return the value of a JSON text, with each number as `Number`. Raises ValueError if it is none."""
    return json.loads(text, parse_int=Number, parse_float=Number)


def dumps(value: Any) -> str:
    """Return a value as JSON, on one line. Numbers may be `Number` or int.

    Characters beyond 16 bits stand for themselves: delta-rs 1.6 reads wrong ones from their escapes.
    """
    if isinstance(value, Number):
        return str(value)
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{_text(name)}:{dumps(each)}" for name, each in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(dumps, value)) + "]"
    return _text(value) if isinstance(value, str) else json.dumps(value)


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False).translate(_LINE_ENDS)
