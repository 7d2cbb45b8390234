"""Expressions that are made once and used in each batch.

To build an expression takes a call to the JVM for each of its parts, 0.1 ms each: seconds for a wide table.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import wraps
from typing import ParamSpec, TypeVar

from pyspark import SparkContext

_AT_MOST = 1000
"""Results of one function that are kept."""

Given = ParamSpec("Given")
Made = TypeVar("Made")


def kept(make: Callable[Given, Made]) -> Callable[Given, Made]:
    """Keep what a function makes of its arguments, which have to be hashable. Expressions belong to a JVM."""
    made: dict[Hashable, Made] = {}

    @wraps(make)
    def get(*args: Given.args, **options: Given.kwargs) -> Made:
        key = (id(SparkContext._gateway), args, tuple(sorted(options.items())))
        if key not in made:
            if len(made) >= _AT_MOST:
                made.clear()
            made[key] = make(*args, **options)
        return made[key]

    return get
