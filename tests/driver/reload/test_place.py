"""The place of a snapshot lies between all that it shows and all that came later."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lakemirror.driver.reload.place import NOWHERE, Places, after, at_position
from lakemirror.driver.sequence import WIDTH, in_epoch

PARTS = st.tuples(
    st.integers(0, 3), st.integers(0, 2**64), st.integers(0, 2**64), st.integers(0, 2**31)
)  # epoch, major, minor, tie


def seq(parts: tuple[int, int, int, int]) -> bytes:
    return b"".join(
        number.to_bytes(width, "big") for number, width in zip(parts, (2, 10, 10, 4), strict=True)
    )


@given(PARTS, PARTS)
def test_it_lies_above_what_it_shows_and_below_each_later_position(
    shown: tuple[int, int, int, int], other: tuple[int, int, int, int]
) -> None:
    place = after(seq(shown))
    assert len(place) == WIDTH
    assert place > seq(shown)
    changed = (*other[:3], other[3] + 1)  # a change of a source never has the tie of a snapshot row
    if other[:3] > shown[:3]:
        assert seq(changed) > place
    else:
        assert seq(changed) < place


def test_nothing_lies_below_a_snapshot_of_which_nothing_is_known() -> None:
    assert bytes(WIDTH) == NOWHERE


def test_a_position_of_a_database_is_the_same_in_each_epoch() -> None:
    position = seq((3, 7, 8, 0))
    places = at_position(position, 1, [1, 3])
    assert places.own == in_epoch(position, 1)
    assert places.higher == {3: position}
    assert places.newest == position


def test_the_place_at_a_moment_is_above_all_that_the_mirror_has_up_to_an_epoch() -> None:
    first, third = seq((0, 9, 9, 0)), seq((3, 7, 8, 0))
    places = Places(2, {0: first, 3: third})
    assert [places.at(epoch) for epoch in (0, 2, 3, 4)] == [first, first, third, third]
    assert (places.own, places.higher, places.newest) == (first, {3: third}, third)
    late = Places(0, {3: third})
    assert (late.own, late.higher) == (NOWHERE, {3: third})
    assert (Places(0, {}).own, Places(0, {}).newest) == (NOWHERE, NOWHERE)
