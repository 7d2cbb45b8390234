"""Limits of names, and a report that fits whatever there is to report."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from lakemirror.api.limits import LIMITS, REPORT_BYTES, SCHEMAS, Limit, beyond
from lakemirror.api.report import (
    CompleteReport,
    Counts,
    DriftReport,
    Report,
    TableReport,
    Totals,
    Verification,
    VerifiedTable,
)
from lakemirror.driver.profile.admission import rarest
from lakemirror.driver.profile.overview import Group

pytestmark = pytest.mark.guarantee(
    "What records may name has limits, and what exceeds one is quarantined with its name"
)

PAGE = Path(__file__).parents[2] / "docs" / "limits.md"
THREE = Limit("three", 3, "names")


@pytest.mark.parametrize(
    ("known", "names", "expected"),
    [
        ("", "cab", []),
        ("", "dcab", ["d"]),
        ("", "", []),
        ("xyz", "xyz", []),
        ("xyz", "xa", ["a"]),
        ("xy", "xcab", ["b", "c"]),
        ("vwxyz", "vab", ["a", "b"]),  # there were more before the limit: what is there goes on
    ],
)
def test_what_is_known_has_room_and_then_the_first_names(known: str, names: str, expected: list[str]) -> None:
    assert beyond(set(known), names, THREE) == expected


def test_the_rarest_schemas_of_a_table_exceed_their_limit() -> None:
    groups = [Group(number, None, events=1 + number % 7) for number in range(SCHEMAS.most + 7)]
    assert rarest(groups[: SCHEMAS.most]) == []
    assert len(rarest(groups)) == 7
    assert {group.events for group in rarest(groups)} == {1}
    assert rarest(groups) == rarest(groups[::-1])


def test_the_page_has_each_limit() -> None:
    rows = re.findall(r"^ *\| `(\w+)` \| ([0-9,]+) (.+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert [(each.name, f"{each.most:,}", each.of) for each in LIMITS] == rows


def drift(number: int) -> DriftReport:
    """The change of a struct with many members."""
    members = ",".join(f"member_{n}:string" for n in range(400))
    return DriftReport(column=f"c{number}", change="widened", from_=f"struct<{members}>", to=members)


def failed(number: int) -> TableReport:
    return TableReport(source=f"s.failed{number}", error="it is full: " + "é" * 2000)


def sized(report: Report) -> int:
    return len(json.dumps(report.document(), separators=(",", ":"), ensure_ascii=False).encode())


LONG = "😀" * 1000
TABLES = [
    TableReport(source=f"s.{'é' * 700}{n}", target=LONG, drift=[drift(k) for k in range(10)], error=LONG * 30)
    for n in range(100)
]
HUGE: dict[str, dict[str, Any]] = {
    "three thousand logs": {
        "complete": [CompleteReport(log=f"{'x' * 900}{n}", below="0" * 60) for n in range(3000)],
        "complete_position": "x" * 100_000,
    },
    "ten changed structs in each of a hundred tables": {
        "tables": [TableReport(source=f"s.t{n}", drift=[drift(k) for k in range(10)]) for n in range(100)]
    },
    "everything at once": {
        "tables": TABLES * 20,
        "complete": [CompleteReport(log="é" * 1024, below="0" * 60)] * 3000,
        "warnings": [LONG] * 20,
        "failure": LONG * 30,
        "source_restarted": LONG * 30,
        "table_failed": LONG * 30,
        "source_lost": LONG * 30,
        "waiting": [LONG] * 10,
        "resyncing": ["é" * 255] * 500,
        "verified": Verification(
            findings=[VerifiedTable(source="é" * 700, error=LONG * 30, keys=["k"] * 5) for _ in range(10)],
            error=LONG * 30,
        ),
    },
}


@pytest.mark.guarantee("A report fits into its ConfigMap, whatever it has to tell")
@pytest.mark.parametrize("name", HUGE)
def test_a_report_fits_whatever_it_has_to_tell(name: str) -> None:
    totals = Totals(records=7, applied=7)
    whole = Report(pipeline="p", totals=totals, tables_total=9999, phase="Running", **HUGE[name])
    whole = whole.model_copy(update={"tables": [*whole.tables, *map(failed, range(3))]})
    short = whole.shortened()
    assert sized(whole) > 1 << 20 or sized(short) == short.size
    assert short.size == sized(short) <= REPORT_BYTES
    assert (short.totals, short.tables_total, short.phase) == (totals, 9999, "Running")
    assert short == whole.shortened()
    assert Report.read(json.loads(short.text())) == short
    assert short.resyncing == whole.resyncing  # by these the operator knows which tokens are open
    assert short.tables[0].error is not None


def test_a_report_says_that_it_was_shortened_and_keeps_the_failed_tables() -> None:
    good = [TableReport(source=f"s.t{n:03}", target="t" * 500) for n in range(90)]
    whole = Report(pipeline="p", tables=[*good, *map(failed, range(5))], tables_total=95)
    assert whole.shortened().shortened_by is None
    short = whole.shortened(20_000)
    assert short.size <= 20_000
    assert 5 < len(short.tables) < 95
    assert [each.source for each in short.tables[:5]] == [f"s.failed{n}" for n in range(5)]
    assert f"{len(short.tables)} of 95 tables" in (short.shortened_by or "")
    assert "progress.json" in (short.shortened_by or "")
    least = whole.shortened(0)
    assert (least.tables, least.totals) == ([], Totals())
    assert least.size < 3000


def test_what_a_report_shortens_is_in_order_of_what_matters() -> None:
    """Lists and texts before tables, and each step leaves less than the one before."""
    whole = Report(tables=[*TABLES[:90], *map(failed, range(9))], tables_total=99)
    sizes = [whole.shortened(most).size for most in (10**9, 600_000, 300_000, 100_000, 50_000, 0)]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) > 3


@pytest.mark.guarantee("The status and the report's ConfigMap have no keys of rows")
def test_counts_of_a_comparison_stay_and_keys_of_rows_do_not() -> None:
    finding = VerifiedTable(source="s.t", missing=3, extra=1, keys=["secret"])
    whole = Report(verified=Verification(equal=False, findings=[finding]), totals=Totals(**Counts().values()))
    assert "secret" in whole.text()
    short = whole.shortened()
    assert short.verified is not None
    assert "secret" not in short.text()
    [told] = short.verified.findings
    assert (told.source, told.missing, told.extra, told.keys) == ("s.t", 3, 1, [])
