"""A topic that was made again, whose offsets order changes, needs an epoch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lakemirror.api.spec import Epoch, Ordering
from lakemirror.driver.orders import Orders
from lakemirror.driver.plan.mirrored import MirroredTable
from lakemirror.driver.plan.refusal import Refused
from lakemirror.driver.reduce.waiting import require_same_topics
from lakemirror.driver.rules.orders import Kind


def _table(known: dict[str, tuple[str, int]], *epochs: int) -> Any:
    declared = [Epoch.model_validate({"epoch": each, "from": {"t": {"0": 0}}}) for each in epochs]
    table = SimpleNamespace(
        topics=known,
        spec=SimpleNamespace(order=Ordering.model_validate({"by": "offset", "epochs": declared})),
    )
    table.declared_for = lambda topic: MirroredTable.declared_for(table, topic)  # type: ignore[arg-type]
    return table


def _plan(identity: str, *, keyed: bool = True) -> Any:
    orders = Orders.of([(Kind.OFFSET, "t", 0), (Kind.OFFSET, "t", 2)])
    seen = SimpleNamespace(topic_ids={"t": identity}, orders=orders)
    return SimpleNamespace(seen=seen, reading=SimpleNamespace(key=["id"] if keyed else []))


@pytest.mark.parametrize(
    ("known", "epochs", "identity"),
    [
        ({}, (), "a"),
        ({"t": ("a", 0)}, (), "a"),
        ({"t": ("a", 1)}, (1,), "a"),
        ({"t": ("a", 0)}, (1,), "b"),
        ({"t": ("a", 1)}, (1, 2), "b"),
        ({"u": ("a", 0)}, (), "b"),
    ],
)
def test_a_topic_goes_on(known: dict[str, tuple[str, int]], epochs: tuple[int, ...], identity: str) -> None:
    require_same_topics(_table(known, *epochs), _plan(identity))


@pytest.mark.parametrize(("known", "epochs"), [({"t": ("a", 0)}, ()), ({"t": ("a", 1)}, (1,))])
def test_a_topic_that_was_made_again_is_refused(
    known: dict[str, tuple[str, int]], epochs: tuple[int, ...]
) -> None:
    """The message has the epoch to declare, from offset 0 of each partition."""
    with pytest.raises(Refused, match=r'"from": \{"t": \{"0": 0, "2": 0\}\}') as refused:
        require_same_topics(_table(known, *epochs), _plan("b"))
    assert "made again (its id was a, now it is b)" in str(refused.value)
    require_same_topics(_table(known, *epochs), _plan("b", keyed=False))
