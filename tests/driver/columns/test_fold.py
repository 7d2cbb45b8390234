"""Generated changes of few keys at few places: a fold makes of them what the rules make of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakemirror.driver.columns import stored
from lakemirror.driver.columns.changes import digest, key_of, schema_of
from lakemirror.driver.columns.fold import OUTCOMES, Bucket, Mirrored, RepeatedKey, fold
from lakemirror.driver.columns.key_codes import key_codes
from lakemirror.driver.rules.batch import Mirror, apply
from lakemirror.driver.rules.kinds import DOUBLE, STRING, TIMESTAMP, Decimals, Kind
from lakemirror.driver.rules.orders import Truncated
from lakemirror.driver.rules.positions import Origin
from lakemirror.driver.rules.table import Table
from lakemirror.driver.rules.values import Event
from tests.support.columnar import GONE, shown

pytestmark = pytest.mark.guarantee(
    "What becomes of a row depends on what happened to it, not on the order in which its events "
    "arrive or how they are cut into batches"
)

NAN = float("nan")
KEYS: dict[Kind, list[Any]] = {
    STRING: ["a", "ż", ""],
    Decimals(10, 2): [Decimal("1.00"), Decimal("-0.50")],
    DOUBLE: [0.0, -0.0, 1.5, NAN],
    TIMESTAMP: [datetime(2026, 1, 1, tzinfo=UTC), datetime(1, 1, 1, tzinfo=UTC)],
}
TOPICS = ("t", "s")


def seq_of(number: int, *, snapshot: bool) -> bytes:
    minor = 0 if snapshot else number
    return (
        bytes(4)
        + number.to_bytes(8, "big")
        + bytes(2)
        + minor.to_bytes(8, "big")
        + bytes(3)
        + (b"\0" if snapshot else b"\1")
    )


@st.composite
def events(draw: st.DrawFn, kind: Kind) -> list[Event]:
    """Changes, some of which share a place, and some of which only the rules know: gaps."""
    made = []
    used: set[Origin] = set()
    for _ in range(draw(st.integers(0, 8))):
        key = draw(st.sampled_from(KEYS[kind]))
        op = draw(st.sampled_from("ccuudr"))
        origin = Origin(draw(st.sampled_from(TOPICS)), draw(st.integers(0, 1)), draw(st.integers(0, 9)))
        if origin in used:
            continue
        used.add(origin)
        v = draw(st.sampled_from([None, 1.5, NAN, 0.0, -0.0]))
        row = {} if op == "d" else {"k": key, "v": v, "w": draw(st.sampled_from(["x", "y"]))}
        log = draw(st.sampled_from([None, "[1]"]))
        gaps = frozenset({"w"}) if op == "u" and draw(st.integers(0, 5)) == 0 else frozenset[str]()
        seq = seq_of(draw(st.integers(1, 4)), snapshot=op == "r")
        row = {name: each for name, each in row.items() if name not in gaps}
        told = digest(log, op, row, origin)
        made.append(Event(key_of([key]), op, seq, 5, origin, row, gaps, digest=(told, log, bool(gaps))))
    return made


def changes_of(made: Sequence[Event], kinds: dict[str, Kind]) -> pa.RecordBatch:
    rows = [
        {
            **{"k": each.key[0], "v": None, "w": None, **each.row},
            "__seq": each.seq,
            "__op": each.op,
            "__event_time": datetime.fromtimestamp(0, UTC).replace(microsecond=5),
            "__topic": each.origin.topic,
            "__partition": each.origin.partition,
            "__offset": each.origin.offset,
            "__log": each.digest[1],  # type: ignore[index]
        }
        for each in made
    ]
    return pa.RecordBatch.from_pylist(rows, schema_of(kinds))


@pytest.mark.parametrize("kind", KEYS, ids=str)
@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_fold_is_what_the_rules_make_of_the_same_changes(kind: Kind, data: st.DataObject) -> None:
    kinds: dict[str, Kind] = {"k": kind, "v": DOUBLE, "w": STRING}
    soft, former = data.draw(st.booleans()), data.draw(st.sampled_from([None, 2]))
    floor = None if former is None else Truncated(seq_of(former, snapshot=False))
    table = Table(["k", "v", "w"], ("v", "w"), soft, former=floor, now=7)
    mirror = Mirror(truncated=floor)
    rows, ends = stored.of_rows({}, kinds, ["k"], soft=GONE if soft else None), {}
    for _ in range(data.draw(st.integers(1, 4))):
        batch = data.draw(events(kind))
        plain = data.draw(st.permutations([each for each in batch if not each.gaps]))
        odd = [each for each in batch if each.gaps]
        told = [each._replace(key=_unsigned(each.key), digest=each.digest[0]) for each in [*plain, *odd]]  # type: ignore[index]
        expected = apply(mirror, told, table)
        of_ends = stored.of_tombstones(ends, kinds, ["k"])
        bucket = Bucket(changes_of(plain, kinds), rows, of_ends, told[len(plain) :])
        folded = fold(bucket, Mirrored(kinds, ["k"], table, GONE if soft else None))
        mine = [*(OUTCOMES[each] for each in folded.outcomes), *folded.of_odd]
        assert mine == list(expected.events)
        kept = sorted(set(range(rows.num_rows)) - set(folded.hidden.tolist()))
        rows = pa.concat_batches([rows.take(pa.array(kept, pa.int64())), folded.rows])
        ends |= stored.as_tombstones(folded.tombstones, kinds, ["k"])
        mirror = expected.mirror
        found = stored.as_rows(rows, kinds, ["k"], soft=GONE if soft else None)
        assert len(found) == rows.num_rows
        assert _counted(shown({_unsigned(key): each for key, each in found.items()})) == _counted(
            shown(mirror.rows)
        )
        assert shown({_unsigned(key): each for key, each in ends.items()}) == shown(
            {_unsigned(key): each for key, each in mirror.tombstones.items()}
        )


def _unsigned(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """A key in which zero has no sign: equal keys are one, whichever was there first."""
    return tuple(each + 0.0 if isinstance(each, float) and each == 0 else each for each in key)


def _counted(rows: dict[str, str]) -> Counter[str]:
    return Counter(rows.values())


def test_rows_with_the_same_key_are_not_told_apart() -> None:
    """Somebody has added one by hand. A change of the key concerns both."""
    kinds: dict[str, Kind] = {"k": DOUBLE, "v": DOUBLE, "w": STRING}
    seq, origin, digest = seq_of(1, snapshot=False), Origin("t", 0, 1), ("", None, False)
    change = Event(key_of([0.0]), "c", seq, 5, origin, {"k": 0.0, "v": 1.5}, digest=digest)
    nothing = stored.of_tombstones({}, kinds, ["k"])
    mirrored = Mirrored(kinds, ["k"], Table(["k", "v", "w"], ("v", "w")))
    given = Bucket(changes_of([change], kinds), stored.of_rows({}, kinds, ["k"], soft=None), nothing)
    row = fold(given, mirrored).rows
    twice = Bucket(given.changes, pa.concat_batches([row, row]), nothing)
    with pytest.raises(RepeatedKey):
        fold(twice, mirrored)


@pytest.mark.parametrize("tracked", [(), ("v", "w")])
def test_a_row_that_was_added_by_hand_is_older_than_any_change(tracked: tuple[str, ...]) -> None:
    """It has no sequence. Where values have sequences of their own, its values are older, too."""
    kinds: dict[str, Kind] = {"k": DOUBLE, "v": DOUBLE, "w": STRING}
    seq, origin, digest = seq_of(1, snapshot=False), Origin("t", 0, 1), ("", None, False)
    change = Event(key_of([1.5]), "u", seq, 5, origin, {"k": 1.5, "v": 2.5}, digest=digest)
    columns = stored.of_rows({}, kinds, ["k"], soft=None).schema
    added = pa.RecordBatch.from_pylist([{"k": 1.5, "v": 77.0, "w": "mine"}], columns)
    nothing = stored.of_tombstones({}, kinds, ["k"])
    given = Bucket(changes_of([change], kinds), added, nothing)
    [row] = fold(given, Mirrored(kinds, ["k"], Table(["k", "v", "w"], tracked))).rows.to_pylist()
    assert (row["v"], row["w"], row["__seq"], row["__column_seq"]) == (2.5, None, seq, None)


def test_codes_of_keys_are_equal_where_keys_are() -> None:
    one = [pa.array([1.0, 0.0, NAN, None]), pa.array(["a", "b", "c", "d"])]
    other = [pa.array([NAN, -0.0, 1.0, None, 1.0]), pa.array(["c", "b", "b", "d", "a"])]
    (mine, theirs), size = key_codes([one, other])
    pairs = {(i, j) for i in range(4) for j in range(5) if mine[i] == theirs[j]}
    assert pairs == {(2, 0), (1, 1), (3, 3), (0, 4)}
    assert size == 5
    assert math.isnan(key_of([NAN])[0])
