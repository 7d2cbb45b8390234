"""Remembers the last result of a pure function for each pipeline, and forgets it with the pipeline.

Most passes find what the pass before them found. Whatever the number of edits, there is one entry for each
pipeline that exists, so memory does not grow with time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Generic, Protocol, TypeVar


class OfPipeline(Protocol):
    """An argument that belongs to a pipeline."""

    @property
    def pipeline(self) -> tuple[str, str]:
        """The namespace and the name of the pipeline."""


A = TypeVar("A", bound=OfPipeline)
R = TypeVar("R")


class _Last(Generic[A, R]):
    def __init__(self, function: Callable[[A], R]) -> None:
        self._function = function
        self.entries: dict[tuple[str, str], tuple[A, R]] = {}

    def __call__(self, argument: A) -> R:
        known = self.entries.get(argument.pipeline)
        if known is not None and known[0] == argument:
            return known[1]
        result = self._function(argument)
        self.entries[argument.pipeline] = argument, result
        return result


_functions: list[_Last[Any, Any]] = []


def last(function: Callable[[A], R]) -> Callable[[A], R]:
    """Decorate a pure function, so that it remembers its last result for each pipeline."""
    remembering = _Last(function)
    _functions.append(remembering)
    return wraps(function)(lambda argument: remembering(argument))


def forget(pipeline: tuple[str, str]) -> None:
    """Forget a pipeline that is no longer managed."""
    for function in _functions:
        function.entries.pop(pipeline, None)


def count() -> int:
    """Return how many results are remembered."""
    return sum(len(function.entries) for function in _functions)
