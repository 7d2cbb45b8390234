"""What is certainly wrong with a condition is said without Spark, and nothing that Spark takes is refused."""

from __future__ import annotations

import pytest

from lakemirror.api.sql import mistake


@pytest.mark.parametrize(
    "sql",
    [
        "status = 'active' AND total > 0",
        "NOT deleted",
        "id",
        "- -id > +3",
        "!done OR ~flags = 1",
        "a <=> b AND c !< d",
        "v % 3 <> 0 AND (note LIKE 'note%' ESCAPE '!' OR big > '')",
        "a LIKE ANY ('x', 'y') AND b RLIKE r'\\d+'",
        "CASE WHEN a THEN 1 WHEN b IS NOT NULL THEN 2 ELSE 3 END > 1",
        "ordered >= DATE'2001-01-01' AND at < TIMESTAMP '2026-03-01 12:00:00 UTC'",
        "at > made + INTERVAL 3 DAYS 2 HOURS AND made < at - INTERVAL '1-2' YEAR TO MONTH",
        "extract(epoch FROM at) > 1e5 AND substring(name FROM 2 FOR 3) = trim(BOTH 'x' FROM name)",
        "cast(about AS struct<a int, b: array<string>>).a > 1",
        "CAST(price AS decimal(10, 2)) BETWEEN 1.5BD AND 10L",
        "price::decimal(10,2) > 3",
        "exists(tags, x -> x = 'a') AND aggregate(ns, 0, (a, b) -> a + b) > 1",
        "tags[0] = 'a' AND about.city = `first name` AND about:zip = 1",
        "concat_ws(' ', zip, city) = 'a' 'b'",
        "x'1A2B' = hash AND user = 'ada' AND now > 3 AND source.current_date = 'x'",
        "`current_date` > 3 AND `count` = 1 AND name = 'now()' AND note = 'rand() +'",
        "count = 1 AND sum > 2 AND first <> last",
        "to_json(struct(a.*)) <> '{}'",
        "a IS DISTINCT FROM b AND c COLLATE UTF8_LCASE = 'x'",
        "unix_timestamp(at) > 3 AND date_format(at, 'y') = '2026'",
        "id > 1 -- the first is a test",
        "1abc = 3",
        "a.b.c = .5",
    ],
)
def test_what_may_be_right_passes(sql: str) -> None:
    assert mistake(sql, "a condition") is None


@pytest.mark.guarantee(
    "A condition or expression that is certainly wrong is refused without Spark, and none that Spark takes"
)
@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("id >", "nothing stands behind >"),
        ("id *", "nothing stands behind *"),
        ("(a = ) OR b", "nothing stands behind ="),
        ("= 3", "nothing stands before ="),
        ("id = = 3", "nothing stands before ="),
        ("f(a, , b)", "nothing stands before ,"),
        ("f(a, )", "nothing stands behind ,"),
        ("status 'active'", "no operator stands between status and 'active'"),
        ("total 100", "between total and 100"),
        ("a b = 3", "between a and b"),
        ("f(a) b", "between ) and b"),
        ("d < now() - INTERVAL 1 DAY", "has now, whose value is not the same each time a record is read"),
        ("d < NOW ()", "has now,"),
        ("rand() < 0.5", "has rand,"),
        ("uuid() = a", "has uuid,"),
        ("d < current_date", "write `current_date` in backquotes"),
        ("d < current_timestamp()", "has current_timestamp,"),
        ("d = date 'today'", "has 'today', whose value"),
        ("unix_timestamp() > at", "has unix_timestamp,"),
        ("count(*) > 1", "has an aggregate or generator (count): a condition sees one row only"),
        ("max(id) = id", "(max)"),
        ("explode(tags) = 'x'", "(explode)"),
        ("row_number() OVER (ORDER BY id) = 1", "has a window function: a condition sees one row only"),
    ],
)
def test_what_is_certainly_wrong_is_said(sql: str, why: str) -> None:
    assert why in (mistake(sql, "a condition") or "")
