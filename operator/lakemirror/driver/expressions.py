"""Expressions that are built once and reused in every batch, and parts that are planned once and reused.

Building an expression takes a JVM call for each of its parts, 0.1 ms each: seconds for a wide table.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import wraps
from typing import ParamSpec, TypeVar

from pyspark import SparkContext
from pyspark.sql import Column
from pyspark.sql import functions as F

_AT_MOST = 1000
"""Maximum number of results kept per function."""

Given = ParamSpec("Given")
Made = TypeVar("Made")


def kept(make: Callable[Given, Made]) -> Callable[Given, Made]:
    """Cache a function's results by its arguments, which must be hashable, and by JVM.

    The JVM is part of the key because expressions belong to one.
    """
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


def shared(value: Column, use: Callable[[Column], Column]) -> Column:
    """Return what ``use`` makes of a value, which is planned once, however often it is used.

    An expression is a tree: a part that is used four times is there four times, and so is each of its own
    parts, whose number multiplies with each level.
    """
    return F.get(F.transform(F.array(value), use), 0)
