"""What blocks of changes say about positions is what the rule says of their points, however they are cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from lakemirror.driver.columns.changes import MOMENT, schema_of
from lakemirror.driver.columns.places import Streams
from lakemirror.driver.engine.seen import Alone, Seen, merged, seen
from lakemirror.driver.profile.positions import Stream
from lakemirror.driver.rules.restarts import Point, merge, summary, trusted

NOW = 1_800_000_000_000_000
DAY = 86_400_000_000


@st.composite
def changes(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Changes of a table in two partitions, of two logs or of none, in the order of their offsets."""
    number = draw(st.integers(1, 12))
    return [
        {
            "seq": bytes(2) + draw(st.integers(0, 5)).to_bytes(24, "big"),
            "op": draw(st.sampled_from("cudr")),
            "time": NOW + draw(st.sampled_from([-5, 0, 3, 2 * DAY])),
            "recorded": draw(st.sampled_from([None, NOW - 4, NOW, NOW + 3 * DAY])),
            "partition": draw(st.integers(0, 1)),
            "offset": offset,
            "stream": draw(st.sampled_from([None, "one", "two"])),
            "server": draw(st.sampled_from([None, "1", "2"])),
        }
        for offset in range(number)
    ]


def block(found: list[dict[str, Any]], alone: Sequence[dict[str, Any]] = (), *, closer: bool = False) -> Seen:
    rows = {
        "__seq": pa.array([each["seq"] for each in found], pa.binary(26)),
        "__op": pa.array([each["op"] for each in found]),
        "__event_time": pa.array([each["time"] for each in found], pa.int64()).view(MOMENT),
        "__topic": pa.array(["t"] * len(found)),
        "__partition": pa.array([each["partition"] for each in found], pa.int32()),
        "__offset": pa.array([each["offset"] for each in found], pa.int64()),
        "__log": pa.nulls(len(found), pa.string()),
    }
    batch = pa.RecordBatch.from_arrays(list(rows.values()), schema=schema_of({}))
    streams = Streams(
        *[pa.array([each[name] for each in found], pa.string()) for name in ("stream", "server")]
    )
    recorded = pa.array([each["recorded"] for each in found], pa.int64()).view(MOMENT)
    others = [
        Alone(("t", each["partition"], each["stream"]), point(each), each["time"], recorded_at(each))
        for each in alone
    ]
    return seen("demo.t", batch, streams, recorded, NOW, alone=others, closer=closer)


def recorded_at(each: dict[str, Any]) -> int:
    return NOW if each["recorded"] is None else int(min(each["recorded"], NOW))


def point(each: dict[str, Any]) -> Point:
    time = trusted(each["time"], recorded_at(each))
    return Point("demo.t", each["offset"], each["op"], each["seq"], time, each["server"])


@settings(deadline=None)
@given(changes(), st.integers(0, 12))
def test_blocks_say_of_streams_what_the_rule_says(found: list[dict[str, Any]], cut: int) -> None:
    blocks = [part for part in (found[:cut], found[cut:]) if part]
    told = merged(block(part) for part in blocks)
    for stream in {(each["partition"], each["stream"]) for each in found if each["stream"] is not None}:
        expected = None
        for part in blocks:
            points = [point(each) for each in part if (each["partition"], each["stream"]) == stream]
            if points:
                mine = summary(points)
                expected = mine if expected is None else merge(expected, mine)
        assert told.streams[Stream("t", *stream)] == expected
    assert told.records == len(found)
    assert told.ends == (min(each["seq"] for each in found), max(each["seq"] for each in found))


@settings(deadline=None)
@given(changes(), st.integers(0, 12), st.randoms())
def test_the_order_of_blocks_and_changes_means_nothing(
    found: list[dict[str, Any]], cut: int, random: Any
) -> None:
    shuffled = random.sample(found, len(found))
    blocks = [block(part) for part in (shuffled[:cut], shuffled[cut:]) if part]
    assert merged(iter(blocks)) == merged(reversed(blocks))
    whole, told = block(found), merged(iter(blocks))
    assert (whole.parts, whole.latest, whole.ends) == (told.parts, told.latest, told.ends)
    assert {each: whole.streams[each].seen().tables for each in whole.streams} == {
        each: told.streams[each].seen().tables for each in told.streams
    }


@settings(deadline=None)
@given(changes())
def test_what_is_beside_a_stream_is_told_apart(found: list[dict[str, Any]]) -> None:
    told = block(found)
    for place, each in told.parts.items():
        mine = [c for c in found if (c["partition"], c["stream"]) == place[1:]]
        streamed = [c["seq"] for c in mine if place[2] is not None and c["op"] != "r"]
        beside = [c["seq"] for c in mine if place[2] is None or c["op"] == "r"]
        assert each.streamed == ((min(streamed), max(streamed)) if streamed else None)
        assert each.beside == ((min(beside), max(beside)) if beside else None)
        assert each.strays == any(place[2] is None and c["op"] != "r" for c in mine)


@settings(deadline=None)
@given(changes(), st.data())
def test_changes_that_are_not_in_columns_are_seen_like_the_others(
    found: list[dict[str, Any]], data: st.DataObject
) -> None:
    """Between others, they do not make positions look as if these fell back."""
    alone = [each for each in found if data.draw(st.booleans())]
    told = block([each for each in found if each not in alone], alone, closer=True)
    whole = block(found, closer=True)
    for name in ("records", "streams", "parts", "latest", "ends"):
        assert getattr(told, name) == getattr(whole, name), name
    assert listed(told) == listed(whole)


def listed(found: Seen) -> dict[Stream, list[Point]]:
    return {
        stream: [each for block in blocks for each in block.listed("demo.t")]
        for stream, blocks in found.points.items()
    }
