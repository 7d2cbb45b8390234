"""A batch that first has to hide rows of large files turns deletion vectors on. Without Spark."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lakemirror.api.spec import Ordering
from lakemirror.driver.engine import engine, job
from lakemirror.driver.engine.blocks import Dividing, Report
from lakemirror.driver.engine.buckets import Done, StoredMirror
from lakemirror.driver.engine.commits import Author, DeltaTable
from lakemirror.driver.engine.engine import Engine, _Table
from lakemirror.driver.engine.job import JobResult
from lakemirror.driver.engine.verdicts import Candidate, Reason, Verdict
from lakemirror.driver.tables.names import TableName
from lakemirror.driver.writer.transaction import Change
from tests.driver.columns.test_odd import FACTS
from tests.driver.engine.test_beliefs import believed_table, changed
from tests.driver.engine.test_stages import OnDisk

_SEED = 0
"""Of a mirror without vectors."""
_BY_HAND = Author("somebody", 0, {})


@dataclass
class Altered:
    """The mirror in a folder, as Spark alters it; ``meanwhile`` is what somebody else does before that."""

    folder: Path
    meanwhile: Callable[[Path], object] = lambda folder: None
    alters: bool = True

    def alter(self, add: Any, widen: Any, properties: dict[str, str]) -> None:
        assert (add, widen) == ({}, {})
        self.meanwhile(self.folder)
        if self.alters:
            table = DeltaTable.on_disk(self.folder / "t")
            table.refresh()
            table.commit(Change(properties=properties), Author("lakemirror/test", 0, {}), 3000)


def without_vectors(folder: Path, name: str, **more: Any) -> _Table:
    table = believed_table(folder, newest=None, seed=_SEED)
    assert not table.files.may_hide
    about = {"spec": SimpleNamespace(ordering=Ordering()), "soft": None, "avoided": ()}
    vars(table.mirrored).update(about, mirror=Altered(folder, **more))
    topic = f"demo.public.{name}"
    table.believed = replace(table.believed, name=TableName("demo", "public", name), topic=topic)
    return table


class Applying:
    """An engine whose job finds that rows are to be hidden in each table. It notes the tables of each job."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, known: Sequence[_Table]) -> None:
        self.engine, self.known = Engine(cast(Any, None), "lakemirror/test", Ordering()), known
        self.engine._tables = {each.believed.name: each for each in known}
        self.jobs: list[list[str]] = []
        monkeypatch.setattr(self.engine, "_dividing", lambda known: Dividing([1] * len(known), 1))
        monkeypatch.setattr(engine, "stops_pipeline", lambda *_: False)
        monkeypatch.setattr(job, "run", self.run)

    def run(self, _: Any, tables: Sequence[Any], places: Sequence[StoredMirror], *__: Any) -> JobResult:
        self.jobs.append([each.name.table for each in tables])
        reports: dict[str | None, Report] = {}
        for number, each in enumerate(tables):
            reports[each.topic] = Report(each.topic, number, 1, tombstones=1)
        return JobResult(reports, {number: [_done(each)] for number, each in enumerate(places)})

    def read(self) -> frozenset[str]:
        """The topics that are applied in columns."""
        found = self.engine._tried_to_read(cast(Any, None), self.known, _judged)
        assert found is not None, "no other table is to suffer from what happens to one"
        return found.topics


def _done(place: StoredMirror) -> Done:
    return Done() if place.files.may_hide else Done(error="rows are to be hidden", lacks_vectors=True)


def _judged(candidates: Sequence[Candidate]) -> Verdict:
    failed = [each.table.name for each in candidates if any(done.error for done in each.done)]
    return Verdict({name: Reason("a task failed") for name in failed})


def deleted_by_hand(folder: Path) -> None:
    disk = OnDisk(folder / "other", FACTS, random.Random(_SEED))
    disk.rows = DeltaTable.on_disk(folder / "t")
    disk.rows.refresh()
    disk.rows.commit(changed(disk, 20), _BY_HAND, 2000)


def fails(folder: Path) -> None:
    raise RuntimeError("the metadata has changed")


def test_the_batch_is_read_again_with_vectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [table] = known = [without_vectors(tmp_path, "items")]
    applying = Applying(monkeypatch, known)
    assert applying.read() == {"demo.public.items"}
    assert applying.jobs == [["items"], ["items"]]
    assert table.files.may_hide


@pytest.mark.parametrize(
    "more",
    [{"meanwhile": deleted_by_hand}, {"meanwhile": fails}, {"alters": False}],
    ids=["others change its rows", "it cannot be altered", "it stays as it was"],
)
def test_a_table_that_does_not_get_vectors_is_left_for_spark_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]
) -> None:
    """Spark has to say what others have changed. Nothing is tried for ever."""
    known = [without_vectors(tmp_path / "a", "items"), without_vectors(tmp_path / "b", "other", **more)]
    applying = Applying(monkeypatch, known)
    assert applying.read() == {"demo.public.items"}
    assert applying.jobs == [["items", "other"], ["items"]]
    assert applying.engine._tables.keys() == {known[0].believed.name}
    assert applying.engine._unfit == {known[1].believed.name}
    assert not applying.engine._pauses.active
