"""Lives of columns: what is remembered does not depend on the order or the batches of delivery."""

from __future__ import annotations

import itertools
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from lakemirror.driver.parse.values.connect import Field
from lakemirror.driver.plan.lives import PLAIN, Life, Lives, Seen, from_text, to_text, together

Event = tuple[int, bool]
"""Its place, and whether it has the column."""


@st.composite
def deliveries(draw: st.DrawFn) -> tuple[list[Event], list[list[Event]]]:
    """A history of one column, and batches of its events in any order."""
    presence = draw(st.lists(st.booleans(), min_size=1, max_size=9))
    history = list(enumerate(presence, start=1))
    events = draw(st.permutations(history))
    cuts = sorted(draw(st.sets(st.integers(1, len(events)), max_size=4)))
    ends = [0, *cuts, len(events)]
    batches = [events[one:other] for one, other in itertools.pairwise(ends)]
    return history, [batch for batch in batches if batch]


def delivered(batches: list[list[Event]]) -> tuple[Life, dict[int, bool]]:
    """What is remembered of the column after the batches, each with one group of events a schema; and of the
    row that each event wrote, whether it has the event's value.
    """
    lives: dict[str, Life] = {}
    columns: set[str] | None = None
    highest: bytes | None = None
    rows: dict[int, bool] = {}
    for batch in batches:
        told = [Seen(present=_seq(place)) if has else Seen(absent=_seq(place)) for place, has in batch]
        life = PLAIN
        if (columns is not None and "c" in columns) or any(has for _, has in batch):
            before = Lives(lives, columns, lambda highest=highest: highest)  # type: ignore[misc]
            life = before.after(together({"c": each} for each in told))["c"].life
            lives = from_text(to_text({"c": life}))
        ended = b"" if life.dropped else life.absent or b""
        rows |= {place: has and _seq(place) > ended for place, has in batch}
        if life.fill:
            rows = {place: held and _seq(place) > ended for place, held in rows.items()}
            lives = {"c": replace(life, fill=False)}
        columns = (columns or set()) | ({"c"} if any(has for _, has in batch) else set())
        highest = max(filter(None, (highest, *(_seq(place) for place, _ in batch))))
    return lives.get("c", PLAIN), rows


def _seq(place: int) -> bytes:
    return place.to_bytes(26, "big")


@settings(deadline=None, max_examples=300)
@given(deliveries())
def test_the_marks_are_those_of_the_whole_history(case: tuple[list[Event], list[list[Event]]]) -> None:
    history, batches = case
    if not any(has for _, has in history):
        return
    absent = max((place for place, has in history if not has), default=0)
    present = max(place for place, has in history if has)
    life, rows = delivered(batches)
    assert life.dropped == (absent > present)
    if not life.dropped:
        assert life.absent == (_seq(absent) if absent else None)
        assert rows == {place: place > absent for place, _ in history}


def test_a_table_whose_columns_stay_needs_no_memory_and_no_look_up() -> None:
    def never() -> bytes:
        raise AssertionError("looked up")

    turns = Lives({}, {"c"}, never).after({"c": Seen(present=_seq(1))})
    assert turns["c"].life == PLAIN
    assert to_text({"c": PLAIN}) == to_text({})


def test_one_json_object_without_a_column_says_nothing() -> None:
    """It may be broken; two are a schema."""

    def after(before: Life, *, absent: int, alone: int) -> Life:
        seen = Seen(absent=_seq(absent), present=_seq(9), alone=_seq(alone))
        return Lives({"c": before}, {"c"}, lambda: _seq(9)).after({"c": seen})["c"].life

    once = after(PLAIN, absent=5, alone=5)
    assert once == Life(alone=_seq(5))
    assert after(once, absent=5, alone=5) == once
    assert after(once, absent=3, alone=3).absent == _seq(5)
    assert after(PLAIN, absent=5, alone=3).absent == _seq(5)


def test_a_life_has_the_default_of_its_oldest_schema() -> None:
    three, five, seven = (Field("c", "int32", default=number) for number in (3, 5, 7))
    lives = Lives({}, {"c"}, lambda: _seq(40))
    first = lives.after({"c": Seen(present=_seq(20), defaults=((_seq(20), three),))})["c"].life
    assert (first.default, first.default_at) == (three, _seq(20))
    later = Seen(absent=_seq(30), present=_seq(50), defaults=((_seq(50), seven), (_seq(45), five)))
    again = Lives({"c": first}, {"c"}, lambda: _seq(40)).after({"c": later})["c"].life
    assert (again.absent, again.default, again.fill) == (_seq(30), five, True)
    assert from_text(to_text({"c": again})) == {"c": again}


def test_a_column_of_nulls_is_there_before_it_has_a_type() -> None:
    """So what it held earlier, or at the same place of a snapshot, is no value of a former life."""

    def after(before: Life, columns: set[str] | None, seen: Seen) -> Life:
        life = Lives({"c": before}, columns, lambda: _seq(9)).after({"c": seen})["c"].life
        assert from_text(to_text({"c": life})).get("c", PLAIN) == life
        return life

    nulls = after(PLAIN, None, Seen(present=_seq(9), typed=False))
    assert nulls == Life(nulls=True)
    assert after(nulls, {"k"}, Seen(present=_seq(9), typed=False)) == nulls
    assert after(nulls, {"k"}, Seen(present=_seq(9))) == PLAIN
    late = after(PLAIN, {"k"}, Seen(present=_seq(12), typed=False))
    assert (late.absent, late.nulls) == (_seq(9), True)
    assert after(late, {"k"}, Seen(present=_seq(13))).absent == _seq(9)
    dropped = Lives({"c": nulls}, {"k"}, lambda: _seq(9)).after({"c": Seen(absent=_seq(12), typed=False)})
    assert dropped["c"].life.dropped
    assert not dropped["c"].dropped, "the mirror has no such column"
