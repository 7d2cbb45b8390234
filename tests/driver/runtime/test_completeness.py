"""What a driver tells of the position up to which all tables are complete."""

from __future__ import annotations

from lakemirror.api.report import NONE, Counts
from lakemirror.driver.consistent.complete import Mark, Top
from lakemirror.driver.consistent.reach import after
from lakemirror.driver.record.history import AuditHistory
from lakemirror.driver.results import BatchResult, TableResult
from lakemirror.driver.runtime.completeness import Completeness, complete_report

ASIDE = Counts(records=2, applied=1, quarantined=1)


def batch(*tops: Top, rest: Counts = NONE, **gaps: str) -> BatchResult:
    tables = {name: TableResult(name, counts=ASIDE, gap=gap) for name, gap in gaps.items()}
    return BatchResult(1, rest, tables, tops)


def told(of: Completeness, counted: int = 0, *, again: bool = False, **open_records: int) -> dict[str, Mark]:
    scopes = {name: {"record": number} for name, number in open_records.items()}
    return dict(of.told(scopes, counted, again=again))


def test_each_log_for_itself() -> None:
    found = Completeness(0)
    found.batch_done(batch(Top("a", "20", 2_000_000), Top("a", "30", 3), Top("b", "99", 9)), 0, again=False)
    found.had_all(0)
    assert told(found) == {"a": Mark(after("30"), 3), "b": Mark(after("99"), 9)}
    report = complete_report(told(found))
    assert report["complete_position"].startswith("a ")
    assert report["complete_time"] == "1970-01-01T00:00:00.000Z"
    assert complete_report({})["complete_position"] is None


def test_a_position_is_complete_once_nothing_older_can_be_on_its_way() -> None:
    found = Completeness(30)
    found.batch_done(batch(Top("a", "20", 2), Top("a", None, None)), 100, again=False)
    found.had_all(129)
    assert told(found) == {}
    found.had_all(130)
    assert told(found) == {"a": Mark(after("20"), 2)}


def settled(*results: BatchResult) -> Completeness:
    found = Completeness(0)
    for number, each in enumerate(results):
        found.batch_done(each, number, again=False)
        found.had_all(number)
    return found


def test_records_kept_aside_end_what_is_complete_until_they_are_applied() -> None:
    found = settled(batch(Top("a", "20", 2)))
    assert told(found) == {"a": Mark(after("20"), 2)}
    found.batch_done(batch(Top("a", "50", 5), t="25"), 10, again=False)
    found.had_all(10)
    assert told(found, counted=0) == {"a": Mark(after("20"), 2)}, "what was kept aside is not counted yet"
    assert told(found, counted=1, t=1) == {"a": Mark("25")}
    assert told(found, counted=1) == {"a": Mark(after("50"), 5)}, "all were applied"
    assert told(found, counted=1, again=True) == {}, "a table is being read again"


def test_records_of_unknown_tables_or_places_hide_everything() -> None:
    found = settled(batch(Top("a", "20", 2), rest=Counts(records=1, quarantined=1)))
    assert told(found, counted=1, t=1) == {}
    assert told(found, counted=1) == {"a": Mark(after("20"), 2)}
    assert dict(found.told({"t": {"order": 1}}, 1, again=False)) == {}


def test_what_earlier_runs_kept_aside_counts() -> None:
    found = settled(batch(Top("a", "20", 2)))
    found.kept_aside_before(AuditHistory(tables={"t": TableResult("t", gap="15")}))
    assert told(found, t=1) == {"a": Mark("15")}
    assert told(found, unheard_of=1) == {}


def test_what_a_resync_reads_is_no_news_of_the_source() -> None:
    found = Completeness(0)
    found.batch_done(batch(Top("a", "20", 2)), 0, again=True)
    found.had_all(0)
    assert told(found) == {}
