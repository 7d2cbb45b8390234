"""The decisions between what is known of tables and what to read of them."""

from __future__ import annotations

import pytest

from lakemirror.driver.consistent.answer import (
    History,
    Moment,
    NotOneLog,
    ReadAt,
    TableAt,
    dated_spans,
    first_waiting,
    one_log,
    query,
    require_positions,
    why_none,
)
from lakemirror.driver.consistent.cuts import Commit, Cut, Span
from lakemirror.driver.consistent.reach import BEGIN, END
from lakemirror.driver.errors import LakemirrorError

NOTHING = History(None, (), frozenset(), None)


def history(*commits: Commit, logs: tuple[str | None, ...] = ("shop",), gap: str | None = None) -> History:
    return History("/lake/a", commits, frozenset(logs), gap)


def test_the_log_of_tables_is_told_or_chosen() -> None:
    a, b, empty = history(), history(logs=("bank",)), NOTHING
    assert one_log({"a": a, "empty": empty}, ["a", "empty"], None) == ("shop", ["a", "empty"])
    assert one_log({"empty": empty}, ["empty"], None) == (None, ["empty"])
    assert one_log({"a": a, "b": b}, ["a", "b"], "bank") == ("bank", ["b"])
    with pytest.raises(NotOneLog, match=r"several logs \(bank, shop\)"):
        one_log({"a": a, "b": b}, ["a", "b"], None)
    with pytest.raises(NotOneLog, match=r"shp is not a log .* these are: bank, shop"):
        one_log({"a": a, "b": b}, ["a", "b"], "shp")


@pytest.mark.parametrize(
    "told", [history(logs=("shop", "bank")), history(Commit(1, "a", END)), history(Commit(1, BEGIN, END))]
)
def test_a_table_without_positions_in_one_log_is_refused(told: History) -> None:
    with pytest.raises(LakemirrorError, match=r"public\.a"):
        require_positions("public.a", told)
    require_positions("public.a", history(Commit(1, "a", "b"), logs=("shop", None)))


@pytest.mark.parametrize(
    ("open_counts", "gap", "waits"),
    [
        ({}, "07", END),
        ({"a": {"record": 0}}, "07", END),
        ({"b": {"record": 1}}, "07", END),
        ({"a": {"record": 1}}, "07", "07"),
        ({"a": {"record": 1}}, None, BEGIN),
        ({"a": {"order": 1}}, "07", BEGIN),
        ({"": {"record": 1}}, "07", BEGIN),
    ],
)
def test_open_records_hold_up_what_lies_after_them(
    open_counts: dict[str, dict[str, int]], gap: str | None, waits: str
) -> None:
    assert first_waiting("a", history(gap=gap), open_counts) == waits


def test_rows_that_are_dated_are_filtered_from_the_end_of_what_was_read_on() -> None:
    commits = [Commit(1, BEGIN, "03"), Commit(2, "05", "06"), Commit(3, "08", "09")]
    assert dated_spans("append", commits, "20", BEGIN) == ([Span("03", "20", 3)], "03")
    read = [Span("03", "05", 1), Span("06", "07", 2), Span("07", "20", 3)]
    assert dated_spans("scd2", commits, "20", "07") == (read, "07")
    assert dated_spans("scd2", commits, "02", BEGIN) == ([], "03")


@pytest.mark.parametrize(
    ("seq", "below", "waiting", "word"),
    [
        ("09", "09", END, "--settled"),
        ("08", "09", "08", "lakemirror replay"),
        ("01", "09", END, "begins after"),
        ("06", "09", END, "before and after it"),
    ],
)
def test_a_table_without_a_version_says_why(seq: str, below: str, waiting: str, word: str) -> None:
    said = why_none("a", seq, history(Commit(1, "02", "07")), below=below, waiting=waiting)
    assert said.startswith("a: ")
    assert word in said


def test_queries() -> None:
    place = "delta.`/lake/a` VERSION AS OF 4"
    assert query(place, "scd1", [], None) == f"SELECT * FROM {place}"
    assert query(place, "scd2", ["`id`"], None) == f"SELECT * FROM {place} WHERE __is_current"
    assert query(place, "append", [], "0a") == f"SELECT * FROM {place} WHERE __seq <= X'0a'"
    assert "PARTITION BY `a b`, `id` ORDER BY __seq DESC" in query(place, "scd2", ["`a b`", "`id`"], "0a")


def test_no_text_names_a_position_of_a_former_epoch() -> None:
    """It would be taken for one of the newest."""
    cut = Cut(f"0001{7:020x}{7:020x}{1:08x}", END, {"a": 4})
    told = [Moment.of(cut, "0/1", epoch) for epoch in (1, 2)]
    assert [each and each.text for each in told] == ["0/8", None]


def test_an_answer_without_nearest_positions_as_json() -> None:
    found = ReadAt("0/17", "00", "shop", None, (TableAt("a", "/lake/a", 4, "SELECT 1"),))
    document = found.to_document()
    assert (document["found"], document["before"], document["after"]) == (True, None, None)
    assert Moment.of(None, "0/17") is None
