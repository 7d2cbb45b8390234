"""The page of guarantees is what the tests say."""

from __future__ import annotations

import pytest

from tests.support.guarantees import PAGE, guarantees, marks, page


def test_the_page_is_what_the_tests_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "stale: scripts/guarantees makes it"


def test_each_guarantee_stands_on_the_page_once() -> None:
    named = guarantees()
    assert len(named) > 100
    rows = [line.split(" | ")[0].removeprefix("| ") for line in page().splitlines()]
    assert sorted(row for row in rows if row in named) == sorted(named)


def test_marks_are_found_wherever_they_stand() -> None:
    source = """
pytestmark = [pytest.mark.sources, pytest.mark.guarantee("of the module")]

@pytest.mark.guarantee("of " "a class")
class TestThis:
    @pytest.mark.guarantee("of a test")
    def test_that(self): ...

@pytest.mark.parametrize("of", [pytest.param(1, marks=pytest.mark.guarantee("of a case"))])
def test_other(of): ...
"""
    assert set(marks(source)) == {"of the module", "of a class", "of a test", "of a case"}


def test_a_mark_whose_text_is_made_elsewhere_is_refused() -> None:
    with pytest.raises(ValueError, match="line 1: a guarantee is one literal text"):
        list(marks("pytestmark = pytest.mark.guarantee(TEXT)"))
