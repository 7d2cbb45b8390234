"""Which tables of a batch are plain, and what is remembered of their streams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lakemirror.api.limits import CONNECTOR_LENGTH
from lakemirror.api.spec import Ordering
from lakemirror.driver.columns.facts import Facts
from lakemirror.driver.columns.fold import Mirrored
from lakemirror.driver.engine.believed import Believed
from lakemirror.driver.engine.blocks import Aside, Report
from lakemirror.driver.engine.buckets import Counted, Done
from lakemirror.driver.engine.seen import Beside, Points, Seen
from lakemirror.driver.engine.verdicts import Candidate, judge
from lakemirror.driver.profile.positions import At, Began, Place, Stream, Stretch
from lakemirror.driver.rules import restarts
from lakemirror.driver.rules.envelopes.records import TableName as Named
from lakemirror.driver.rules.restarts import Point, summary
from lakemirror.driver.rules.row_keys import KeyOfTable
from lakemirror.driver.rules.table import Table
from lakemirror.driver.rules.values import Outcome
from lakemirror.driver.tables.names import TableName

STREAM = Stream("demo.public.t", 0, "demo")
NAME = TableName("demo", "public", "t")


def seq(number: int) -> bytes:
    return bytes(2) + number.to_bytes(10, "big") + number.to_bytes(10, "big") + b"\0\0\0\1"


def at(number: int, offset: int) -> At:
    return At(seq(number).hex(), offset)


MEMORY = {STREAM: Place(at(10, 5), at(10, 5), 100)}
BELIEVED = Believed(
    NAME,
    STREAM.topic,
    "facts",
    Facts(Named("demo", "public", "t"), {}, KeyOfTable(["id"], {})),
    Mirrored({}, ["id"], Table()),
    frozenset(["demo"]),
    (None, None),
)


def point(number: int, offset: int, server: str | None = None) -> Point:
    return Point(str(NAME), offset, "u", seq(number), 100 + number, server)


def candidate(points: Sequence[Point], **more: Any) -> Candidate:
    ends = min(each.seq for each in points), max(each.seq for each in points)
    ordered = sorted(points, key=lambda each: each.offset)
    listed = Points(
        np.array([each.offset for each in ordered]),
        np.array([each.seq for each in ordered], "S26"),
        [each.op for each in ordered],
        np.array([each.time or -1 for each in ordered]),
        [each.server for each in ordered],
    )
    seen = Seen(len(points), {STREAM: summary(points)}, {}, None, ends, {STREAM: (listed,)})
    report = Report(STREAM.topic, 0, len(points), seen=seen)
    done = [Done(counted=Counted({Outcome.APPLIED: len(points)}))]
    given: dict[str, Any] = {"table": BELIEVED, "report": report, "done": done}
    return Candidate(**{**given, **more})


def left(found: Candidate, memory: Any = MEMORY) -> str | None:
    reason = judge([found], memory, Ordering()).left.get(NAME)
    return None if reason is None else reason.text


PLAIN = candidate([point(11, 6), point(12, 7)])


def test_what_grows_is_plain_and_remembered() -> None:
    verdict = judge([PLAIN], MEMORY, Ordering())
    assert verdict.left == {}
    assert verdict.memory[STREAM].top == at(12, 7)
    assert verdict.memory[STREAM].time == 112


def test_what_is_not_as_believed_is_left_for_spark() -> None:
    odd = PLAIN._replace(report=replace(PLAIN.report, odd="demo.public.t/0/6 (of another schema)"))
    assert left(odd) == "not all of its records are plain: demo.public.t/0/6 (of another schema)"
    aside = Aside(0, 6, "bad", "demo.public.t", True)
    spoilt = replace(PLAIN.report, aside=(aside,))
    assert left(PLAIN._replace(report=spoilt)) == "not each change has exactly one outcome"
    twice = replace(PLAIN.report, aside=(aside._replace(is_change=False),) * 2)
    assert left(PLAIN._replace(report=twice)) == "a record that cannot be applied was sent twice"
    many = tuple(aside._replace(offset=each, is_change=False) for each in range(1_001))
    assert left(PLAIN._replace(report=replace(PLAIN.report, aside=many))) == (
        "many of its records cannot be applied"
    )
    assert left(PLAIN._replace(done=[Done(error="OSError: full")])) == "a task failed: OSError: full"
    assert left(PLAIN._replace(done=())) == "not each change has exactly one outcome"
    assert left(PLAIN, {}) == "it has changes of a new stream"
    elsewhere = replace(BELIEVED, logs=frozenset(["other"]))
    assert left(PLAIN._replace(table=elsewhere)) == "it has changes of another log"
    collected = replace(BELIEVED, collected=seq(11))
    assert left(PLAIN._replace(table=collected)) == "a tombstone that was collected may be newer"
    assert left(PLAIN._replace(table=replace(BELIEVED, collected=seq(9)))) is None
    nowhere = seq(0)[:12] + seq(7)[12:]
    assert left(candidate([point(11, 6), point(12, 7)._replace(seq=nowhere)])) == "a change has no position"
    strays = replace(PLAIN.report.seen, parts={(STREAM.topic, 0, None): Beside(strays=True)})
    of_no_log = PLAIN._replace(report=replace(PLAIN.report, seen=strays))
    assert left(of_no_log) == "a change names no log"
    server = candidate([point(11, 6, "s" * (CONNECTOR_LENGTH.most + 1))])
    assert (left(server) or "").startswith("the name of a server is beyond")


UNDECIDED = Stretch(6, 7, seq(3).hex(), seq(4).hex())


@pytest.mark.parametrize(
    "place",
    [
        replace(MEMORY[STREAM], tail=(UNDECIDED,)),
        replace(MEMORY[STREAM], unread=("demo.public.t",)),
        replace(MEMORY[STREAM], began=Began(6)),
    ],
)
def test_a_log_with_undecided_changes_is_left_for_spark_with_all_of_its_tables(place: Place) -> None:
    other = Stream("demo.public.other", 0, "demo")
    assert left(PLAIN, {**MEMORY, other: place}) == "changes of its log are undecided"
    assert left(PLAIN, {**MEMORY, other._replace(name="elsewhere"): place}) is None


def test_positions_that_fall_back_are_looked_at_one_by_one_the_next_time() -> None:
    again = candidate([point(11, 6), point(9, 7), point(12, 8)])
    reason = judge([again], MEMORY, Ordering()).left[NAME]
    assert reason.falls_back
    closer = again._replace(table=replace(BELIEVED, closer=True))
    verdict = judge([closer], MEMORY, Ordering())
    points = [point(11, 6), point(9, 7), point(12, 8)]
    expected = restarts.judge({STREAM: summary(points)}, lambda _: points, MEMORY, Ordering())
    assert verdict.left == {}
    assert verdict.fell == {NAME}
    assert verdict.memory[STREAM] == expected.memory[STREAM]


def test_positions_that_grow_again_need_no_closer_look() -> None:
    closer = PLAIN._replace(table=replace(BELIEVED, closer=True))
    assert judge([closer], MEMORY, Ordering()).fell == set()


def test_what_ends_below_what_came_before_waits_in_the_hands_of_spark() -> None:
    below = candidate([point(11, 6), point(9, 7)])._replace(table=replace(BELIEVED, closer=True))
    assert left(below) == "its positions may have started again"
