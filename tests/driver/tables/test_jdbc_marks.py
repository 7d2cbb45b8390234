"""The marks that mirrors in a database keep of their batches, in a small database of SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any

import pytest

from lakemirror.driver.tables.jdbc_marks import EVERY, KEPT, Mark, Marks

pytestmark = pytest.mark.guarantee(
    "A mirror in a database keeps the same guarantees as one in Delta, with one transaction per batch"
)


class Session:
    """What the database of a mirror is asked through."""

    def __init__(self) -> None:
        self._database = sqlite3.connect(":memory:")
        self._database.execute(
            "CREATE TABLE marks (name, app_id, batch, version, note, PRIMARY KEY (name, app_id, batch))"
        )

    def query(self, sql: str, *values: int | str | None) -> list[tuple[Any, ...]]:
        return self._database.execute(sql, values).fetchall()

    def execute(self, sql: str, *values: int | str | None) -> int:
        return self._database.execute(sql, values).rowcount

    def close(self) -> None:
        self._database.close()


@pytest.fixture
def session() -> Iterator[Session]:
    made = Session()
    yield made
    made.close()


def commits(session: Session, marks: Marks, *batches: tuple[str, int], since: int = 0) -> int:
    """A commit of the mirror for each batch; the version that it has come to."""
    for version, (app_id, batch) in enumerate(batches, start=since + 1):
        marks.add(session, Mark(app_id, batch, f"note of {batch}"), version)
        marks.forget(session, version)
    return since + len(batches)


def count(session: Session, name: str) -> int:
    [(found,)] = session.query("SELECT count(*) FROM marks WHERE name = ?", name)
    return int(found)


STORIES = {
    "replays, each with an id of its own": [(f"replay-{n}", 0) for n in range(1000)],
    "batches none of whose numbers is divisible by anything": [("query", n * 50 + 1) for n in range(1000)],
    "one batch a run, and a replay after each": [
        each for n in range(500) for each in (("query", 2 * n + 1), (f"replay-{n}", 0))
    ],
    "a new checkpoint for each batch": [(f"query-{n}", 0) for n in range(1000)],
}


@pytest.mark.parametrize("story", STORIES)
def test_marks_stay_few_whatever_batches_come(session: Session, story: str) -> None:
    marks, other = Marks("marks", "items"), Marks("marks", "orders")
    commits(session, other, ("query", 0))
    for version, batch in enumerate(STORIES[story]):
        commits(session, marks, batch, since=version)
        assert count(session, "items") < KEPT + EVERY
    assert count(session, "items") >= KEPT
    assert count(session, "orders") == 1, "those of other mirrors are not touched"


def test_a_batch_is_known_while_few_others_have_come_since(session: Session) -> None:
    """The source's newest one, while records are replayed; and each of these."""
    marks = Marks("marks", "items")
    replays = [(f"replay-{n}", 0) for n in range(KEPT - 1)]
    version = commits(session, marks, ("query", 7), *replays)
    assert marks.newest(session, "query") == 7
    assert marks.of(session, "query", 7) == (1, "note of 7")
    assert all(marks.of(session, *each) is not None for each in replays)
    commits(session, marks, *((f"late-{n}", 0) for n in range(EVERY)), since=version)
    assert marks.newest(session, "query") is None
    assert marks.newest(session, f"late-{EVERY - 1}") == 0


def test_a_cleaning_that_a_crash_has_left_out_is_made_up_for(session: Session) -> None:
    marks = Marks("marks", "items")
    version = commits(session, marks, *(("query", n) for n in range(KEPT + EVERY - 1)))
    marks.add(session, Mark("query", version, "{}"), version + 1)  # and then the driver is killed
    commits(session, marks, *(("query", version + 1 + n) for n in range(EVERY)), since=version + 1)
    assert count(session, "items") == KEPT
    marks.clear(session)
    assert count(session, "items") == 0
