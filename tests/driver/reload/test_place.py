"""The place of a snapshot lies between all that it shows and all that came later."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lakemirror.driver.reload.place import NOWHERE, after
from lakemirror.driver.sequence import WIDTH

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
