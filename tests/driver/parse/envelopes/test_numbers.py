"""Numbers that Spark's JSON parsers would change are found at the cost of one look at each character."""

from __future__ import annotations

import re

from hypothesis import example, given
from hypothesis import strategies as st

from lakemirror.driver.parse.envelopes import base
from lakemirror.driver.parse.values import temporal

MANY_DIGITS = r"(?<!\d)(?=[\d.]{17})\d+\.\d"
SUSPECT = r"[\d.]{39}|[\d.]{16}[eE]|\d[eE][-+]?\d{3}"
MAY_BE_FINER = r":\d{2}\.\d{6}0*[1-9]|[:,\[]-?\d{18,19}[,}\]]"

PARTS = st.one_of(
    st.integers(0, 45).map(lambda count: ("1234567890" * 5)[:count]),
    st.sampled_from(
        [".", "e", "E", "e+", "e-", "E100", "e10", ":12.123456", ":", ",", "[", "]", "}", '"', "-", "x"]
    ),
)
TEXTS = st.lists(PARTS, max_size=6).map("".join)


@given(TEXTS)
@example("1." + "2" * 37)
@example("1." + "2" * 38)
@example("123456789.123456E1")
@example("1e5e100")
def test_what_is_found_is_what_a_plain_search_finds(text: str) -> None:
    pairs = (
        (base._MANY_DIGITS, MANY_DIGITS),
        (base._SUSPECT, SUSPECT),
        (temporal._MAY_BE_FINER, MAY_BE_FINER),
    )
    for fast, plain in pairs:
        assert bool(re.search(fast, text, re.ASCII)) == bool(re.search(plain, text, re.ASCII)), (fast, text)
