"""JSON in which numbers keep their digits, such as those of decimals."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


class Number(str):
    """A number as JSON spells it."""

    __slots__ = ()


def loads(text: str) -> Any:
    """Return the value of a JSON text, with each number as `Number`. Raises ValueError if it is none."""
    return json.loads(text, parse_int=Number, parse_float=Number)


def dumps(value: Any) -> str:
    """Return a value as JSON, on one line, in ASCII. Numbers may be `Number` or int."""
    if isinstance(value, Number):
        return str(value)
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{json.dumps(name)}:{dumps(each)}" for name, each in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(dumps, value)) + "]"
    return json.dumps(value)
