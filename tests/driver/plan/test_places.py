"""How mirrors were left, and up to which version it is known who has changed them. Without Spark."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from lakemirror.driver.plan.places import Places, alone_since
from lakemirror.driver.results import Left, TableResult
from lakemirror.driver.tables.commits import Commit, parse

RESTORED = Commit(4, changes=True, replaces=True)


def table(version: int, *commits: Commit) -> Any:
    """A table with its mirror at a version, and the commits up to that."""

    def between(after: int, until: int) -> list[Commit]:
        return [each for each in commits if after < each.version <= until]

    return SimpleNamespace(
        location="/lake/items",
        name="demo.public.items",
        kept_as="demo.public.items",
        settings=SimpleNamespace(source="*"),
        mirror=SimpleNamespace(version=version, commits=between),
        lacks_tombstones=lambda: False,
        checked=None,
    )


def at(version: int, checked: int | None = None) -> dict[str, Left]:
    """How batches left the mirror."""
    return {"/lake/items": Left(version, version if checked is None else checked)}


def written(places: Places, mirror: Any, version: int, since: int | None = None) -> TableResult:
    """What the audit gets of a batch that left a mirror at a version."""
    return places.written(mirror, TableResult("demo.public.items", "/lake/items", version), since)


def test_a_table_knows_up_to_where_changes_by_others_were_looked_for() -> None:
    places = Places(at(3), dict)
    left = table(5, Commit(4, ours=True, changes=True), Commit(5, changes=True))
    assert places.look(left) is None
    assert left.checked == 5
    assert len(written(places, left, 6).drift) == 1
    restored = table(7, Commit(6, ours=True, changes=True), Commit(7, changes=True, replaces=True))
    assert "was restored" in (places.look(restored) or "")
    assert restored.checked is None
    reloaded = Places({}, dict, ["demo.public.items"])
    assert reloaded.look(restored) is None
    assert restored.checked == 7


def test_a_restore_while_a_batch_was_written_is_noticed_after_it() -> None:
    """The batch had looked at the mirror before. So had an earlier driver, whose audit says so."""
    audit = at(3)
    places = Places(audit, lambda: audit)
    assert places.look(table(3)) is None
    mirror = table(5, RESTORED, Commit(5, ours=True, changes=True))
    left = written(places, mirror, 5, alone_since(4, 5)).left
    assert left == Left(5, checked=3)
    audit["/lake/items"] = left
    for each in (places, Places(audit, lambda: audit)):
        for _ in range(2):
            assert "was restored" in (each.look(mirror) or "")


def test_a_restore_while_a_batch_had_nothing_to_write_is_noticed_after_it() -> None:
    """The only commit since the batch has looked at the mirror is not its own."""
    places = Places(at(3), dict)
    assert places.look(table(3)) is None
    left = written(places, table(4, RESTORED), 4, alone_since(4, 4)).left
    assert left == Left(4, checked=3)
    for each in (places, Places({"/lake/items": left}, dict)):
        assert "was restored" in (each.look(table(4, RESTORED)) or "")


def test_a_mirror_that_was_restored_while_a_batch_was_written_may_be_accepted() -> None:
    """A reload that finds nothing to change notes in the audit that the mirror is right as it is."""
    audit = at(3)
    places = Places(audit, lambda: audit)
    assert places.look(table(3)) is None
    mirror = table(5, RESTORED, Commit(5, ours=True, changes=True))
    written(places, mirror, 5)
    audit.update(at(5))
    assert places.look(mirror) is None


def test_a_copy_from_before_the_last_batch_is_noticed() -> None:
    """The batch had looked at a version that the copy has."""
    places = Places(at(3), lambda: at(5))
    assert places.look(table(3)) is None
    written(places, table(5), 5, alone_since(3, 5))
    assert "has version 4, and the driver left it at version 5" in (places.look(table(4)) or "")


def test_a_copy_to_which_a_batch_has_written_is_noticed() -> None:
    """It came after the batch had looked at the mirror."""
    places = Places(at(7), dict)
    assert places.look(table(7)) is None
    left = written(places, table(6), 6, alone_since(5, 6)).left
    assert left == Left(6, checked=7)
    for each in (places, Places({"/lake/items": left}, dict)):
        assert "has version 6, and the driver left it at version 7" in (each.look(table(6)) or "")


def test_a_mirror_that_another_batch_has_written_since_is_where_that_left_it() -> None:
    """Those of a reload write beside this one, and note it in the audit."""
    places = Places(at(3), lambda: at(6))
    assert places.look(table(3)) is None
    written(places, table(4), 4)
    assert places.look(table(6, Commit(5, changes=True, replaces=True), Commit(6, ours=True))) is None


def test_nobody_else_has_committed_if_a_batch_made_the_only_commit() -> None:
    assert [alone_since(before, 5) for before in (None, 3, 4, 5, 6)] == [None, None, 4, 5, None]
    places, mirror = Places(at(3), dict), table(3)
    assert places.look(mirror) is None
    mirror.mirror.commits = None
    assert written(places, mirror, 4, alone_since(3, 4)).left == Left(4, 4)
    mirror.mirror.version = 4
    assert places.look(mirror) is None


def test_commits_of_the_engine_are_not_read_again() -> None:
    """It makes one in each batch, and Spark may not look at the table for months."""
    places, asked = Places(at(3), dict), list[tuple[int, int]]()
    mirror = table(5)
    mirror.mirror.commits = lambda *between: asked.append(between) or []
    assert places.look(mirror) is None
    for version in range(6, 900):
        assert written(places, mirror, version, mirror.checked).left == Left(version, version)
    mirror.mirror.version = 901
    assert places.look(mirror) is None
    assert asked == [(3, 5), (899, 901)]


def test_nor_are_those_to_a_mirror_that_this_run_has_made() -> None:
    """A later driver would have to read them, too."""
    places, mirror = Places({}, dict), table(-1)
    assert places.look(mirror) is None
    for version in range(1, 900):
        assert written(places, mirror, version, mirror.checked).left == Left(version, version)


def test_a_commit_changes_data_whatever_characters_its_statistics_have() -> None:
    """Spark's JSON has them as they are, and Python takes them for the ends of lines."""
    stats = json.dumps({"minValues": {"name": "a\u2028b\x85"}}, ensure_ascii=False)
    added = json.dumps({"add": {"path": "p", "dataChange": True, "stats": stats}}, ensure_ascii=False)
    assert parse(1, f'{{"commitInfo":{{"operation":"DELETE"}}}}\n{added}\n').changes
