"""What a refusal for a key advises."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lakemirror.api import Table
from lakemirror.driver.plan.key import check_key, check_key_columns, key_of
from lakemirror.driver.plan.refusal import Refused

NEW_MIRROR = ", and tables[s.t].target to a new place with a new resyncToken"


TEXTS: Any = SimpleNamespace(group=SimpleNamespace(events=2, last_seq=b""), keys=[])
"""Records whose keys are texts."""


def seen(*, keyed: int) -> Any:
    """Two records, as many of them with a key."""
    return SimpleNamespace(keyed=keyed, events=2)


def mirrored(*, exists: bool = False, keeps_events: bool = True, asks: bool = False) -> Any:
    """A table without settings, whose mirror has no key if it ``exists``."""
    return SimpleNamespace(
        name="db.s.t",
        settings=Table(source="s.t"),
        mirror=SimpleNamespace(exists=exists, keeps_events=keeps_events, location="/lake/t"),
        properties={"lakemirror.key": "[]"} if exists else {},
        rename={},
        mode="scd1",
        asks_for_key=asks,
    )


def said(table: Any, asks: Any) -> str:
    with pytest.raises(Refused) as refused:
        asks(table)
    return str(refused.value)


@pytest.mark.parametrize("asks", [True, False])
def test_a_target_that_keeps_no_events_is_not_told_to(asks: bool) -> None:
    table = mirrored(keeps_events=False, asks=asks)
    assert said(table, lambda table: check_key(table, [])).endswith("set tables[s.t].primaryKey")


def test_a_list_of_events_is_offered_where_it_can_be_kept() -> None:
    assert said(mirrored(asks=True), lambda table: check_key(table, [])).endswith(", or mode: append")


@pytest.mark.parametrize("exists", [True, False])
def test_a_mirror_that_is_there_has_another_key_only_at_a_new_place(exists: bool) -> None:
    table, more = mirrored(exists=exists), NEW_MIRROR if exists else ""

    def of_texts(table: Any) -> Any:
        return key_of(table, seen(keyed=2), [TEXTS])

    def of_nothing(table: Any) -> None:
        check_key_columns(table, ["a"], {"b": "b"}, [TEXTS])

    assert said(table, of_texts).endswith(f"set tables[s.t].primaryKey{more}")
    assert said(table, of_nothing).endswith(f"set tables[s.t].primaryKey to columns of the rows{more}")


def test_records_without_a_key_make_a_list_that_the_others_cannot_join() -> None:
    key, reason = key_of(mirrored(), seen(keyed=1), [TEXTS])
    assert key == []
    assert str(reason).endswith(f"set tables[s.t].primaryKey{NEW_MIRROR}")
