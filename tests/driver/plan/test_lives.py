"""Lives of columns: what is remembered does not depend on the order or the batches of delivery, and nothing
is remembered that the order of a log does not show.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakemirror.driver.parse.values.connect import Field, connector_of
from lakemirror.driver.parse.values.defaults import is_constant
from lakemirror.driver.plan.lives import (
    GIVING,
    PLAIN,
    SEVERAL,
    Life,
    Lives,
    Log,
    Seen,
    Turn,
    from_text,
    to_text,
    together,
)
from lakemirror.driver.sequence import in_epoch

pytestmark = pytest.mark.guarantee(
    "What a record lacks says nothing about other rows: only the log of a database ends a column; a column "
    "that is added again begins a new life, in any order of delivery; a constant default goes to all rows, a "
    "placeholder of a moment or a UUID to none"
)

LOG = Log("demo", frozenset({"demo.public.t"}))
OTHER = Log("other", frozenset({"other.public.t"}))

Event = tuple[int, bool]
"""Its place, and whether it has the column."""


@st.composite
def deliveries(draw: st.DrawFn) -> tuple[list[Event], list[list[Event]]]:
    """A history of one column, and batches of its events in any order."""
    presence = draw(st.lists(st.booleans(), min_size=1, max_size=9))
    history = list(enumerate(presence, start=1))
    events = draw(st.permutations(history))
    cuts = sorted(draw(st.sets(st.integers(1, len(events)), max_size=4)))
    ends = [0, *cuts, len(events)]
    batches = [events[one:other] for one, other in itertools.pairwise(ends)]
    return history, [batch for batch in batches if batch]


def delivered(batches: list[list[Event]]) -> tuple[Life, dict[int, bool]]:
    """What is remembered of the column after the batches, each with one group of events a schema; and of the
    row that each event wrote, whether it has the event's value.
    """
    lives: dict[str, Life] = {}
    columns: set[str] | None = None
    highest: bytes | None = None
    rows: dict[int, bool] = {}
    for batch in batches:
        told = [Seen(present=_seq(place)) if has else Seen(absent=_seq(place)) for place, has in batch]
        life = PLAIN
        if (columns is not None and "c" in columns) or any(has for _, has in batch):
            before = Lives(lives, columns, lambda _log, _epoch, highest=highest: highest)  # type: ignore[misc]
            life = before.after(together({"c": each} for each in told), LOG)["c"].life
            lives = from_text(to_text({"c": life}))
        ended = b"" if life.dropped else life.absent or b""
        rows |= {place: has and _seq(place) > ended for place, has in batch}
        if life.fill:
            rows = {place: held and _seq(place) > ended for place, held in rows.items()}
            lives = {"c": replace(life, fill=False)}
        columns = (columns or set()) | ({"c"} if any(has for _, has in batch) else set())
        highest = max(filter(None, (highest, *(_seq(place) for place, _ in batch))))
    return lives.get("c", PLAIN), rows


def _seq(place: int) -> bytes:
    return place.to_bytes(26, "big")


@settings(deadline=None, max_examples=300)
@given(deliveries())
def test_the_marks_are_those_of_the_whole_history(case: tuple[list[Event], list[list[Event]]]) -> None:
    history, batches = case
    if not any(has for _, has in history):
        return
    absent = max((place for place, has in history if not has), default=0)
    present = max(place for place, has in history if has)
    life, rows = delivered(batches)
    assert life.dropped == (absent > present)
    if not life.dropped:
        assert life.begins == (_seq(absent) if absent else None)
        assert rows == {place: place > absent for place, _ in history}


def turned(
    before: Life, seen: Seen, log: Log | None = LOG, highest: int | None = 9, there: bool = True
) -> Turn:
    """What a batch makes of the column of a mirror, whose streamed events end at ``highest``."""
    found = None if highest is None else _seq(highest)
    lives = Lives({"c": before}, {"c"} if there else {"k"}, lambda _log, _epoch: found)
    return lives.after({"c": seen}, log)["c"]


def test_a_table_whose_columns_stay_needs_no_memory_and_no_look_up() -> None:
    def never(_log: Log, _epoch: int) -> bytes:
        raise AssertionError("looked up")

    turns = Lives({}, {"c"}, never).after({"c": Seen(present=_seq(1))}, LOG)
    assert turns["c"].life == PLAIN
    assert to_text({"c": PLAIN}) == to_text({})


@pytest.mark.parametrize(
    "before", [PLAIN, Life(_seq(3), log="demo"), Life(_seq(3), dropped=True, log="demo")]
)
def test_what_no_log_orders_says_nothing(before: Life) -> None:
    for seen in (Seen(absent=_seq(5)), Seen(present=_seq(5)), Seen(_seq(5), _seq(7)), Seen()):
        assert turned(before, seen, None) == Turn(before)


def test_a_column_that_only_a_snapshot_shows_is_kept() -> None:
    """PostgreSQL's generated columns: read, and not streamed."""
    kept = turned(PLAIN, Seen(absent=_seq(5)), highest=None)
    assert kept.dropped
    assert (kept.life.dropped, kept.life.begins) == (True, None)
    assert turned(kept.life, Seen(absent=_seq(7))) == Turn(kept.life)
    assert turned(kept.life, Seen()) == Turn(kept.life), "read again by another snapshot"


def test_a_copy_at_the_same_position_begins_nothing() -> None:
    assert turned(PLAIN, Seen(absent=_seq(5), present=_seq(5)), highest=5) == Turn(PLAIN)
    assert turned(PLAIN, Seen(present=_seq(9)), there=False) == Turn(PLAIN)
    assert turned(PLAIN, Seen(absent=_seq(9))) == Turn(PLAIN)
    held = Lives({}, {"c"}, lambda _log, _epoch: _seq(9), lambda _log, position: position == _seq(5))
    assert held.after({"c": Seen(absent=_seq(5))}, LOG)["c"] == Turn(PLAIN), "not the newest event"
    dropped = Life(_seq(9), dropped=True, log="demo", topics=LOG.topics)
    assert turned(dropped, Seen(present=_seq(9))) == Turn(dropped)


def test_marks_of_another_log_or_epoch_do_not_compare() -> None:
    mine = turned(PLAIN, Seen(_seq(5), _seq(7))).life
    assert (mine.begins, mine.log, mine.topics) == (_seq(5), "demo", LOG.topics)
    assert turned(mine, Seen(present=_seq(3)), OTHER).life == PLAIN
    moved = turned(mine, Seen(_seq(8), _seq(9)), OTHER, None).life
    assert (moved.begins, moved.log, moved.topics) == (_seq(8), "other", OTHER.topics)
    late = in_epoch(_seq(1), 1)
    assert turned(PLAIN, Seen(_seq(5), late)) == Turn(PLAIN), "absent before the failover, present after it"
    gone = turned(PLAIN, Seen(late, _seq(7)), highest=None)
    assert (gone.life.dropped, gone.life.absent) == (True, late)
    again = turned(gone.life, Seen(present=in_epoch(_seq(2), 1)), highest=None).life
    assert (again.begins, again.first) == (late, in_epoch(_seq(0), 1))


def test_several_logs_decide_nothing_for_good() -> None:
    """The marks of a column that they show differently would have no order."""
    several = turned(PLAIN, Seen(_seq(5), _seq(7)), Log(SEVERAL)).life
    assert (several.log, several.begins, several.dropped) == (SEVERAL, None, False)
    assert turned(several, Seen(_seq(8), _seq(9))) == Turn(several)
    assert turned(PLAIN, Seen(present=_seq(7)), Log(SEVERAL)) == Turn(PLAIN)
    assert from_text(to_text({"c": several})) == {"c": several}


def test_marks_of_an_older_version_count_once_a_log_vouches_for_them() -> None:
    stored = from_text(
        '{"c": {"absent": "%s", "alone": "%s", "fill": true, "nulls": true}}' % ((_seq(5).hex(),) * 2)
    )
    assert stored["c"].begins is None
    adopted = turned(stored["c"], Seen(present=_seq(9))).life
    assert (adopted.begins, adopted.fill) == (_seq(5), True)
    assert stored["c"].without_marks() == PLAIN


def test_a_life_has_the_default_of_its_oldest_schema() -> None:
    three, five, seven = (Field("c", "int32", default=number) for number in (3, 5, 7))
    first = (
        Lives({}, {"c"}, lambda _log, _epoch: _seq(40))
        .after({"c": Seen(present=_seq(20), defaults=((_seq(20), three),))}, LOG)["c"]
        .life
    )
    assert (first.default, first.default_at) == (three, _seq(20))
    later = Seen(absent=_seq(30), present=_seq(50), defaults=((_seq(50), seven), (_seq(45), five)))
    again = turned(first, later, highest=40).life
    assert (again.absent, again.default, again.fill) == (_seq(30), five, True)
    assert from_text(to_text({"c": again})) == {"c": again}


def test_without_the_order_of_a_log_the_first_default_stays() -> None:
    three, five = (Field("c", "int32", default=number) for number in (3, 5))
    first = turned(PLAIN, Seen(defaults=((_seq(20), three),)), None).life
    assert turned(first, Seen(defaults=((_seq(2), five),)), None).life == first
    assert (first.default, first.begins) == (three, None)


def test_the_batch_that_writes_a_default_is_remembered_by_its_name() -> None:
    text = to_text({"c": Life(given=GIVING), "d": PLAIN}, "app/7")
    assert from_text(text) == {"c": Life(given="app/7")}


def _of_time(name: str, kind: str, default: object, optional: bool = False) -> Field:
    return Field("c", kind, name, optional=optional, default=default)


UUID = _of_time("io.debezium.data.Uuid", "string", "00000000-0000-0000-0000-000000000000")
TIMESTAMP = _of_time("io.debezium.time.ZonedTimestamp", "string", "1970-01-01T00:00:00.000000Z")
MICROS = _of_time("io.debezium.time.MicroTimestamp", "int64", 0)
DAY = _of_time("io.debezium.time.Date", "int32", 0)
NUMBER, NULLABLE = Field("c", "int32", optional=False, default=0), Field("c", "int32", default=5)


@pytest.mark.parametrize(
    ("field", "connector", "constant"),
    [
        (NUMBER, "postgresql", True),
        (NULLABLE, "postgresql", True),
        (replace(NUMBER, default=None), "postgresql", False),
        (UUID, "postgresql", False),
        (TIMESTAMP, "postgresql", False),
        (MICROS, "postgresql", False),
        (DAY, "postgresql", False),
        (replace(MICROS, default=1), "postgresql", True),
        (replace(TIMESTAMP, default="2020-01-01T00:00:00Z"), "postgresql", True),
        (replace(UUID, default="00000000-0000-0000-0000-000000000001"), "postgresql", True),
        (MICROS, "mysql", False),
        (TIMESTAMP, "mariadb", False),
        (DAY, "mysql", True),
        (MICROS, None, False),
        (MICROS, "sqlserver", True),
        (MICROS, "other", True),
        (NULLABLE, "sqlserver", False),
        (NUMBER, "sqlserver", True),
        (NULLABLE, "oracle", True),
    ],
)
def test_placeholders_are_no_defaults(field: Field, connector: str | None, constant: bool) -> None:
    assert is_constant(field, connector) is constant


@pytest.mark.parametrize(
    ("source", "added", "connector"),
    [
        ("io.debezium.connector.sqlserver.Source", "__lsn", "sqlserver"),
        ("io.other.Source", "__lsn", None),
        (None, "__lsn", "postgresql"),
        (None, "__source_commit_lsn", "sqlserver"),
        (None, "__file", "mysql"),
        (None, "__op", None),
        (None, "lsn", None),
    ],
)
def test_a_schema_shows_its_connector(source: str | None, added: str, connector: str | None) -> None:
    """An envelope by its source, a flat record (whose row becomes ``after``) by the position it adds."""
    row = {"type": "struct", "fields": [{"type": "int64", "field": added}], "field": "after"}
    block = [] if source is None else [{"type": "struct", "name": source, "fields": [], "field": "source"}]
    whole = {"type": "struct", "fields": [row, *block]}
    assert connector_of(json.dumps(whole)) == connector
    assert connector_of(json.dumps({"path": [], "record": whole})) == connector
    assert connector_of(json.dumps({"path": ["after"], "record": whole})) is None
