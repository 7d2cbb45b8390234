"""What is known to be applied of a source that is never at rest."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

from lakemirror.driver.read.kafka import KafkaFeed


def test_a_source_that_is_never_at_rest_is_past_what_it_had_before() -> None:
    """New records come before each question; what was there at the first one is read by the third."""
    ends: dict[str, dict[int, int]] = {}
    feed: Any = KafkaFeed.__new__(KafkaFeed)
    feed._ends = feed._had_all_at = None
    feed._admin = SimpleNamespace(end_offsets=lambda topics: {**ends})
    feed._asking, feed._described = nullcontext, lambda: None

    def asked(position: int, end: int) -> Any:
        feed._position, ends["t"] = {"t": {0: position}}, {0: end}
        return feed.lag()

    assert asked(5, 7).had_all_at is None
    first = feed._ends[0]
    assert asked(6, 9).had_all_at is None
    assert asked(7, 12).had_all_at == first
    last = asked(12, 12)
    assert last.caught_up
    assert last.had_all_at > first
