"""What is stored and left of a change: which files, what errors leave, and what other changes it may join."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path

import pytest
from pyroaring import BitMap64

from lakemirror.driver.engine import table_change
from lakemirror.driver.engine.file_rows import FileRows
from lakemirror.driver.engine.table_change import (
    NeedsVectors,
    TableChange,
    discard,
    is_untidy,
    tidied,
    together,
)
from lakemirror.driver.writer.actions import Add, Remove
from lakemirror.driver.writer.data_files import File
from lakemirror.driver.writer.stores import LocalFiles
from lakemirror.driver.writer.transaction import Change as Commit
from lakemirror.driver.writer.transaction import prepare
from tests.driver.engine.mirrors import Change, Form, OnDisk
from tests.driver.engine.test_table_change import Limits, limits

PLAIN = Form(values=("v", "w"))


def puts(keys: Sequence[int], place: int) -> list[Change]:
    return [Change((key,), place + i, place + i, {"v": 1.0, "w": f"{key}"}) for i, key in enumerate(keys)]


def deletes(keys: Sequence[int], place: int) -> list[Change]:
    return [Change((key,), place + i, place + i, None) for i, key in enumerate(keys)]


def stored(table: OnDisk) -> set[str]:
    return {each.name for each in table.path.glob("*.parquet")}


# -- ways of writing --------------------------------------------------------------------------------------


def test_small_files_that_are_touched_are_rewritten_and_others_stay(tmp_path: Path) -> None:
    table = OnDisk.of(tmp_path / "t", Form(hides=False))
    table.apply(puts([1, 2], 1))
    table.apply(puts([3], 10))
    change = table.apply(puts([2], 20))
    assert (len(change.added), len(change.removed), len(change.hidden)) == (1, 1, 0)
    assert len(table.snapshot.files) == 2
    table.require_equal()


def test_rows_of_large_files_are_hidden(tmp_path: Path) -> None:
    table = OnDisk.of(tmp_path / "t", PLAIN)
    with limits(Limits(little=0)):
        table.apply(puts(range(10), 1))
        (path,) = (each.path for each in table.snapshot.files.values())
        change = table.apply([*puts([2], 20), *deletes([3], 21)])
        assert {name: list(rows) for name, rows in change.hidden.items()} == {path: [2, 3]}
        assert not change.removed
        change = table.apply(deletes([4], 30))
        assert {name: list(rows) for name, rows in change.hidden.items()} == {path: [2, 3, 4]}
        assert not change.added
    table.require_equal()


def test_a_file_with_more_hidden_rows_than_others_is_rewritten(tmp_path: Path) -> None:
    table = OnDisk.of(tmp_path / "t", PLAIN)
    with limits(Limits(little=0)):
        table.apply(puts(range(10), 1))
        table.apply(deletes(range(5), 20))
        change = table.apply(deletes([5], 30))
    assert (len(change.added), len(change.removed), len(change.hidden)) == (1, 1, 0)
    (add,) = table.snapshot.files.values()
    assert add.rows == 4
    table.require_equal()


def test_a_file_without_rows_is_taken_out_and_a_mirror_may_lose_all(tmp_path: Path) -> None:
    for little in (0, 1 << 20):
        table = OnDisk.of(tmp_path / f"t{little}", PLAIN)
        with limits(Limits(little=little)):
            table.apply(puts(range(4), 1))
            change = table.apply(deletes(range(4), 20), buckets=2)
            assert change.deleted == 4
            assert not table.snapshot.files
            assert not table.apply(deletes(range(4), 30))
            table.apply(puts([2], 40))
        table.require_equal()


def test_many_scraps_become_one_file(tmp_path: Path) -> None:
    table = OnDisk.of(tmp_path / "t", PLAIN)
    for number in range(25):
        assert not is_untidy(table.mirror)
        table.apply(puts([number], number + 1))
    assert is_untidy(table.mirror)
    change = table.apply(puts([100], 100))
    assert (len(change.added), len(change.removed)) == (1, 25)
    assert len(table.snapshot.files) == 1
    table.require_equal()


def test_what_is_rewritten_is_written_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = OnDisk.of(tmp_path / "t", Form(hides=False))
    table.apply(puts(range(1000), 1))
    monkeypatch.setattr("lakemirror.driver.engine.file_rows._MANY", 100)
    monkeypatch.setattr("lakemirror.driver.engine.file_rows._FEW_COLUMNS", 0)
    monkeypatch.setattr(table_change, "_IN_MEMORY", 20_000)
    change = table.apply(puts([5], 2000))
    assert len(change.added) > 2
    assert sum(each.rows or 0 for each in change.added) == 1000
    table.require_equal()


@pytest.mark.parametrize(("fit", "combined"), [(1, 0), (2, 2), (3, 3), (4, 4)])
def test_scraps_are_combined_as_far_as_memory_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fit: int, combined: int
) -> None:
    table = OnDisk.of(tmp_path / "t", PLAIN)
    with limits(Limits(few=3)):
        for number in range(4):
            first = 100 * number
            table.apply(puts(range(first, first + 10 * (number + 1)), first + 1))
        mirror = table.mirror
        files = sorted(mirror.files, key=lambda each: each.size)
        sizes = [2 * FileRows(table.files, each, mirror.layout).unpacked for each in files]
        monkeypatch.setattr(table_change, "_IN_MEMORY", sum(sizes[:fit]))
        change = tidied(table.files, mirror, 3000)
        assert change.removed == {each.path for each in files[:combined]}
        assert sum(each.rows or 0 for each in change.added) == sum(
            each.rows or 0 for each in files[:combined]
        )


@pytest.mark.parametrize("known", ["when they are written", "by their columns"])
def test_files_whose_rows_take_much_memory_are_no_scraps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: str
) -> None:
    """However small they are: combined, they would be as many files again, in each batch."""
    table = OnDisk.of(tmp_path / "t", PLAIN)
    monkeypatch.setattr(table_change, "_IN_MEMORY", 40_000 if known == "when they are written" else 1 << 30)
    with limits(Limits(little=0, few=3)):
        for number in range(3):
            table.apply(puts(range(1000 * number, 1000 * number + 300), 1000 * number + 1))
        large = {each.path for each in table.snapshot.files.values()}
        if known == "by their columns":
            monkeypatch.setattr(table_change, "_IN_MEMORY", 30_000)
        for number in range(4):
            assert not is_untidy(table.mirror)
            made = [*puts([10_000 + number], 9000 + number), *deletes([5 + number], 9100)]
            assert not table.apply(made).removed
        assert is_untidy(table.mirror)
        change = table.apply(puts([10_004], 9200))
    assert (len(change.added), len(change.removed)) == (1, 4)
    assert {each.path for each in table.snapshot.files.values()} > large
    table.require_equal()


def test_rows_of_a_small_file_that_take_much_memory_are_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = OnDisk.of(tmp_path / "t", PLAIN)
    monkeypatch.setattr(table_change, "_IN_MEMORY", 40_000)
    table.apply(puts(range(300), 1))
    change = table.apply(puts([5], 1000))
    assert (len(change.removed), len(change.hidden)) == (0, 1)
    table.require_equal()


def test_whole_rows_are_read_in_small_parts(tmp_path: Path) -> None:
    """Their texts may be long, and in the file only once."""
    table = OnDisk.of(tmp_path / "t", PLAIN)
    table.apply(puts(range(9000), 1))
    (add,) = table.mirror.files
    file = FileRows(table.files, add, table.mirror.layout)
    assert [each.num_rows for each in file.shown(["k0"], BitMap64())] == [9000]
    assert max(each.num_rows for each in file.shown(table.schema.names, BitMap64())) <= 4096


# -- several buckets, and commits of their own ------------------------------------------------------------


def test_buckets_do_what_one_bucket_does(tmp_path: Path) -> None:
    made = [[*puts(range(40), 1)], [*puts(range(10, 20), 100), *deletes(range(5), 200)], deletes([30], 300)]
    tables = [OnDisk.of(tmp_path / f"t{buckets}", PLAIN) for buckets in (1, 7)]
    with limits(Limits(little=0)):
        for batch in made:
            one, other = (table.apply(batch, buckets) for table, buckets in zip(tables, (1, 7), strict=True))
            assert (one.inserted, one.updated, one.deleted) == (other.inserted, other.updated, other.deleted)
    for table in tables:
        table.require_equal()


def test_only_buckets_of_one_version_that_take_no_file_out_join() -> None:
    one = TableChange(3, inserted=1)
    assert together([one, TableChange(3, inserted=2)]).inserted == 3
    assert together([TableChange(3, removed=frozenset("a"))]).removed == {"a"}
    with pytest.raises(ValueError, match="one version"):
        together([one, TableChange(4)])
    with pytest.raises(ValueError, match="one version"):
        together([])
    with pytest.raises(ValueError, match="one bucket"):
        together([one, TableChange(3, removed=frozenset("a"))])


def test_tidying_changes_no_rows_for_readers_of_changes(tmp_path: Path) -> None:
    table = OnDisk.of(tmp_path / "t", PLAIN)
    with limits(Limits(little=0)):
        table.apply(puts(range(10), 1))
        table.apply(deletes(range(9), 20), buckets=2)
        assert is_untidy(table.mirror)
        change = tidied(table.files, table.mirror, 3000)
        actions = prepare(table.snapshot, change.commit([]), 3000).actions
        assert {type(each) for each in actions} == {Add, Remove}
        assert not any(each.changes for each in actions if isinstance(each, (Add, Remove)))
        table.commit(change)
    (add,) = table.snapshot.files.values()
    assert (add.rows, add.vector) == (1, None)
    assert not is_untidy(table.mirror)
    table.require_equal()


def test_a_commit_takes_files_that_are_stored_and_rows(tmp_path: Path) -> None:
    table = OnDisk.of(tmp_path / "t", PLAIN)
    change, _ = table.change(puts([1], 1), whole=True)
    prepared = prepare(table.snapshot, Commit(added=change.added), 2000)
    assert prepared.files == ()
    assert prepared.actions == change.added
    assert change.added[0].changes


# -- what must not be done, and errors --------------------------------------------------------------------


def test_a_mirror_without_vectors_asks_for_them_before_anything_is_written(tmp_path: Path) -> None:
    table = OnDisk.of(tmp_path / "t", Form(hides=False))
    table.apply(puts(range(10), 1))
    before = stored(table)
    with pytest.raises(NeedsVectors):
        table.change(puts([3], 20), whole=False)
    with limits(Limits(small=10)), pytest.raises(NeedsVectors):
        table.change(puts([3], 20), whole=True)
    assert stored(table) == before
    assert table.apply(puts([11], 30), buckets=3), "new rows need none"
    table.require_equal()


def test_files_of_any_size_are_rewritten_where_vectors_are_avoided(tmp_path: Path) -> None:
    table = OnDisk.of(tmp_path / "t", PLAIN, avoided=("deletionVectors",))
    table.apply(puts(range(10), 1))
    with limits(Limits(small=10, little=10)):
        assert len(table.apply(puts([3], 20)).removed) == 1
        with pytest.raises(ValueError, match="one bucket"):
            table.change(puts([3], 30), whole=False)
    table.require_equal()


class Failing(LocalFiles):
    """Fails when it has written some files, and half of the next one."""

    def __init__(self, table: Path, left: int) -> None:
        super().__init__(table)
        self._left = left

    def write(self, file: File) -> None:
        self._left -= 1
        if self._left < 0:
            super().write(File(file.path, bytes(file.content)[:10]))
            raise OSError("the disk is full")
        super().write(file)


@pytest.mark.parametrize("left", [0, 2])
def test_an_error_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: int) -> None:
    table = OnDisk.of(tmp_path / "t", Form(hides=False))
    table.apply(puts(range(1000), 1))
    before = stored(table)
    monkeypatch.setattr("lakemirror.driver.engine.file_rows._FEW_COLUMNS", 0)
    monkeypatch.setattr("lakemirror.driver.engine.file_rows._MANY", 100)
    monkeypatch.setattr(table_change, "_IN_MEMORY", 20_000)
    table.store = Failing(table.path, left)
    with pytest.raises(OSError, match="full"):
        table.change(puts([5], 2000), whole=True)
    assert stored(table) == before


def test_changes_that_are_not_committed_are_discarded(tmp_path: Path) -> None:
    table = OnDisk.of(tmp_path / "t", PLAIN)
    table.apply(puts(range(10), 1))
    before = stored(table)
    changes = [table.change(puts([number], 20 + number), whole=False)[0] for number in range(3)]
    assert len(stored(table)) == len(before) + 3
    discard(table.files, changes)
    discard(table.files, changes)
    assert stored(table) == before
    assert uuid.UUID(next(iter(before)).removeprefix("part-").removesuffix(".parquet"))


def test_a_file_that_cannot_be_deleted_does_not_hide_what_has_happened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_away(self: LocalFiles, path: str) -> None:
        raise OSError("the store is away")

    table = OnDisk.of(tmp_path / "t", PLAIN)
    change, _ = table.change(puts([1], 1), whole=False)
    monkeypatch.setattr(LocalFiles, "delete", is_away)
    discard(table.files, [change])
    table.store = Failing(table.path, 0)
    with pytest.raises(OSError, match="full"):
        table.change(puts([5], 2000), whole=True)
