"""Which batches are done, when records and markers come from different copies or from another driver."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lakemirror.driver.checkpoint import identity
from lakemirror.driver.checkpoint.storage import LocalStorage
from lakemirror.driver.errors import CheckpointInUse, LakemirrorError
from lakemirror.driver.faults import InjectedCrash
from lakemirror.driver.read.files.ledger import InputFile, Ledger
from lakemirror.driver.read.markers import Mark, Markers, pending_of
from lakemirror.driver.read.offset_log import SPARK_FOLDER, OffsetLog

pytestmark = pytest.mark.guarantee(
    "Nothing that is kept on disk is taken for something else if it is missing, older, newer or another "
    "pipeline's"
)

OLD = Mark()
"""What an earlier version wrote."""


def numbered(*marks: tuple[int, Mark]) -> dict[int, Mark]:
    return dict(marks)


def mark(name: str, query: str = "q") -> Mark:
    return Mark(name, query)


@pytest.mark.parametrize(
    ("records", "markers", "pending"),
    [
        pytest.param([(0, mark("a"))], [], {0}, id="begun"),
        pytest.param([(0, mark("a"))], [(0, mark("a"))], set(), id="done"),
        pytest.param([(0, OLD), (1, OLD)], [(0, OLD)], {1}, id="earlier version"),
        pytest.param([(0, mark("a"))], [(0, OLD)], set(), id="done by an earlier version"),
        pytest.param([(0, mark("a"))], [(0, mark("b", "before"))], {0}, id="marker of another record"),
        pytest.param([(0, mark("a"))], [(5, mark("b", "before"))], {0}, id="marker of a former query"),
        pytest.param([(0, mark("a"))], [(5, OLD)], {0}, id="later marker of an earlier version"),
        pytest.param([(0, mark("a")), (1, mark("b"))], [(1, mark("b"))], set(), id="marker lost"),
        pytest.param([(3, mark("a"))], [(5, mark("c"))], set(), id="records from an older copy"),
    ],
)
def test_a_marker_names_its_record(
    records: list[tuple[int, Mark]], markers: list[tuple[int, Mark]], pending: set[int]
) -> None:
    assert pending_of(numbered(*records), numbered(*markers)) == pending


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(tmp_path)


def test_no_batch_gets_the_number_of_a_marker(storage: LocalStorage) -> None:
    markers = Markers(storage, "changes/offsets", "changes/commits")
    assert markers.next() == 0
    markers.record(0, {"until": 4}, "q")
    markers.commit(0)
    storage.write_text("changes/commits/7.json", '{"committedAt": "2026-03-01T12:00:00Z"}')
    assert markers.next() == 8
    markers.record(8, {"until": 5}, "q")
    assert markers.pending() == {8}
    storage.write_text("changes/commits/8.json", '{"id": "another", "query": "before"}')
    assert Markers(storage, "changes/offsets", "changes/commits").pending() == {8}
    markers.commit(8)
    assert markers.pending() == set()
    committed = markers.committed()
    assert committed is not None
    assert committed.batch_id == 8
    with pytest.raises(CheckpointInUse, match=r"batch 8 .* was begun by another driver"):
        markers.record(8, {"until": 6}, "q")


def file(name: str) -> InputFile:
    return InputFile(name, 1, 1, name)


def load(storage: LocalStorage) -> Ledger:
    return Ledger.load(storage, lambda name: "")


@pytest.mark.parametrize("stray", [{"committedAt": "x"}, {"id": "other", "query": "before"}])
def test_files_of_a_batch_whose_number_has_a_marker_already_are_not_lost(
    storage: LocalStorage, stray: dict[str, str]
) -> None:
    ledger = load(storage)
    ledger.record([file("a")], [], "q")
    ledger.commit(0)
    storage.write_text("files/commits/1.json", json.dumps(stray))
    ledger = load(storage)
    ledger.record([file("b")], [], "q")
    assert [number for number, _ in load(storage).pending()] == [2]
    ledger.commit(2)
    assert not load(storage).pending()
    assert set(load(storage).files) == {"a", "b"}


def test_records_and_identity_of_different_copies_are_named(storage: LocalStorage) -> None:
    first = identity.query_id(storage, "files", started=False)
    ledger = load(storage)
    ledger.record([file("a")], [], first)
    load(storage).require_known()
    other = identity.query_id(storage, "kafka", started=False)  # another kind of source, and back again
    again = identity.query_id(storage, "files", started=True)
    assert len({first, other, again}) == 3
    load(storage).require_known()
    storage.delete("metadata.json")
    assert identity.has_progress(storage)
    identity.query_id(storage, "files", started=False)
    with pytest.raises(LakemirrorError, match=r"files/offsets/0.json is of the query .*resetToken"):
        load(storage).require_known()


def offsets(storage: LocalStorage, *numbers: int) -> None:
    for number in numbers:
        text = f'v1\n{{"batchWatermarkMs":0}}\n{{"t":{{"0":{number + 1}}}}}'
        storage.write_text(f"{SPARK_FOLDER}/offsets/{number}", text)


def test_a_batch_of_kafka_does_not_get_the_number_of_a_marker(storage: LocalStorage) -> None:
    log = OffsetLog(storage)
    log.repair()
    offsets(storage, 0, 1)
    for number in (0, 1, 2, 3):
        log.commit(number)
    assert log.position() is None, "where batch 3 ended is not known"
    log.repair()
    assert log.recorded() == log.committed() == {0, 1, 2, 3}
    assert log.position() == {"t": {0: 2}}, "what batches 2 and 3 brought is read again"
    assert log.extent(3) == {}
    before = storage.read_text(f"{SPARK_FOLDER}/offsets/3")
    log.repair()
    assert storage.read_text(f"{SPARK_FOLDER}/offsets/3") == before


def test_offsets_that_are_gone_are_not_taken_for_none(storage: LocalStorage) -> None:
    OffsetLog(storage).commit(3)
    with pytest.raises(LakemirrorError, match=r"spark/offsets has none of them.*resetToken"):
        OffsetLog(storage).repair()


class Dying(LocalStorage):
    """A storage whose driver dies before an operation that changes something."""

    def __init__(self, root: Path, after: int) -> None:
        super().__init__(root)
        self.left = after

    def _step(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise InjectedCrash(str(self.path))

    def write_text(self, name: str, text: str) -> None:
        self._step()
        super().write_text(name, text)

    def delete(self, name: str) -> None:
        self._step()
        super().delete(name)


def test_a_crash_at_any_point_of_a_compaction_loses_no_file_and_no_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakemirror.driver.read.files.ledger.COMPACT_EVERY", 3)
    names = [f"ä.b {number}" for number in range(6)]

    def commit(storage: LocalStorage, number: int) -> None:
        ledger = load(storage)
        for pending, _ in ledger.pending():
            ledger.commit(pending)
        if names[number] not in ledger.files:
            ledger.record([file(names[number])], [], "q")
            ledger.commit(ledger.next_id - 1)

    crashes = 0
    while True:
        folder = tmp_path / f"{crashes}"
        for number in range(5):
            commit(LocalStorage(folder), number)
        try:
            commit(Dying(folder, crashes), 5)
        except InjectedCrash:
            crashes += 1
            commit(LocalStorage(folder), 5)
        else:
            break
        ledger = load(LocalStorage(folder))
        assert (set(ledger.files), ledger.pending()) == (set(names), [])
        assert ledger.next_id == 6
    assert crashes > 5, "the compaction has several steps"
