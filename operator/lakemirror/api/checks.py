"""Checks that no CRD can make: regular expressions, cron, points in time, Spark's types."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from itertools import accumulate

from croniter import CroniterBadDateError, croniter

from lakemirror.api.base import wrong


def regular_expression(text: str) -> str:
    """Check a Java regular expression, as far as Python can judge: the two differ in rarely used features."""
    python = re.sub(r"\\Q(.*?)(\\E|$)", lambda quoted: re.escape(quoted[1]), text)
    python = re.sub(r"\\[pP](\{\w+\}|[A-Z])", "x", python)
    python = python.replace("(?<", "(?P<").replace("(?P<=", "(?<=").replace("(?P<!", "(?<!")
    try:
        re.compile(python)
    except (re.error, RecursionError, OverflowError) as e:
        raise wrong(f"{text!r} is not a valid regular expression: {e}") from None
    return text


def cron(text: str) -> str:
    """Check a schedule of a Kubernetes CronJob: five fields, or one of the @ names."""
    five = len(text.split()) == 5 and not re.search(r"[lLrR#]|\bH\b", re.sub(r"[A-Za-z]{3}", "", text))
    if not (five and croniter.is_valid(text)) and text not in CRON_NAMES:
        raise wrong(f"{text!r} is not a valid cron schedule: write five fields, like '0 * * * *'")
    try:
        croniter(text, datetime(2000, 1, 1, tzinfo=UTC)).get_next(datetime)
    except CroniterBadDateError:
        raise wrong(f"{text!r} never comes: give it a day that one of its months has") from None
    return text


CRON_NAMES = ("@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly")


def moment(text: str) -> str:
    """Check a time with its time zone, like 2026-03-01T00:00:00Z."""
    try:
        zoned = datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        zoned = False
    if not zoned:
        raise wrong(f"{text!r} is not a valid time: write date, time and zone, like 2026-03-01T00:00:00Z")
    return text


QUOTED = re.compile(r"'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.|\"\")*\"|`(?:[^`]|``)*`", re.DOTALL)
"""A text or a name in quotes, in Spark's SQL."""


def sql_condition(text: str) -> str:
    """Check a Spark SQL condition, as far as possible without Spark.

    Quotes and brackets must be closed, and it must be one expression without a subquery.
    """
    return _sql(text, "condition", "status = 'active'")


def sql_expression(text: str) -> str:
    """Check a Spark SQL expression of any type, in the same way."""
    return _sql(text, "expression", "price * quantity")


def _sql(text: str, what: str, such_as: str) -> str:
    bare = QUOTED.sub("x", text)
    if not bare.strip():
        raise wrong(f"is empty: write one such as {such_as}")
    if any(mark in bare for mark in "'\"`"):
        raise wrong(f"{text!r} is not a valid {what}: a quote is not closed")
    depths = list(accumulate((char == "(") - (char == ")") for char in bare))
    if min(depths) < 0 or depths[-1] != 0:
        raise wrong(f"{text!r} is not a valid {what}: its brackets do not match")
    if ";" in bare:
        raise wrong(f"{text!r} is not a valid {what}: it is one expression, without ;")
    if re.search(r"\(\s*(select|with|from|values)\b", bare, re.IGNORECASE):
        raise wrong(f"{text!r} is not a valid {what}: it sees one row, and can have no subquery")
    return text


SIMPLE_TYPE = re.compile(
    r"\s*(boolean|byte|tinyint|short|smallint|int|integer|long|bigint|float|real|double|decimal|numeric"
    r"|date|timestamp|timestamp_ltz|timestamp_ntz|string|binary|variant)\b"
)


def sql_type(text: str) -> str:
    """Check a Spark SQL type such as ``decimal(10,2)`` or ``array<struct<a: int, b: string>>``."""
    rest = _after_type(text.strip().lower())
    if rest is None or rest.strip():
        raise wrong(
            f"{text!r} is not a valid Spark SQL type: write one like bigint, decimal(10,2) or array<string>"
        )
    return text


def _after_type(text: str) -> str | None:
    """Return what follows the type at the start of ``text``; None if it does not start with one."""
    if (
        sized := re.match(r"\s*(decimal|numeric)\s*\(\s*(\d{1,2})\s*(?:,\s*(\d{1,2})\s*)?\)", text)
    ) is not None:
        precision, scale = int(sized[2]), int(sized[3] or 0)
        return text[sized.end() :] if 1 <= precision <= 38 and scale <= precision else None
    if (char := re.match(r"\s*(var)?char\s*\(\s*[1-9]\d{0,8}\s*\)", text)) is not None:
        return text[char.end() :]
    if (nested := re.match(r"\s*(array|map|struct)\s*<", text)) is not None:
        return _after_arguments(nested[1], text[nested.end() :])
    word = SIMPLE_TYPE.match(text)
    return text[word.end() :] if word is not None else None


def _after_arguments(kind: str, text: str) -> str | None:
    """Return what follows the arguments of array, map or struct and their closing ``>``; None if invalid."""
    rest: str | None = text
    count = 0
    while rest is not None:
        if kind == "struct":
            field = re.match(r"\s*(`[^`]+`|\w+)\s*[:\s]", rest)
            rest = rest[field.end() :] if field is not None else None
        rest = _after_type(rest) if rest is not None else None
        count += 1
        if rest is None or (end := re.match(r"\s*([,>])", rest)) is None:
            return None
        rest = rest[end.end() :]
        if end[1] == ">":
            return rest if kind == "struct" or count == {"array": 1, "map": 2}[kind] else None
    return None
