"""How mirrors were left, and up to which version it is known who has changed them. Without Spark."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from lakemirror.driver.plan.places import Places
from lakemirror.driver.tables.commits import Commit, parse


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


def test_a_table_knows_up_to_where_changes_by_others_were_looked_for() -> None:
    places = Places({"/lake/items": 3}, dict)
    left = table(5, Commit(4, ours=True, changes=True), Commit(5, changes=True))
    assert places.look(left) is None
    assert left.checked == 5
    assert len(places.written(left, 6)) == 1
    restored = table(7, Commit(6, ours=True, changes=True), Commit(7, changes=True, replaces=True))
    assert "was restored" in (places.look(restored) or "")
    assert restored.checked is None
    reloaded = Places({}, dict, ["demo.public.items"])
    assert reloaded.look(restored) is None
    assert restored.checked == 7


def test_a_restore_while_a_batch_was_written_is_noticed_after_it() -> None:
    """The batch had looked at the mirror before, and the audit has the version that the batch left."""
    places = Places({"/lake/items": 3}, lambda: {"/lake/items": 5})
    assert places.look(table(3)) is None
    commits = Commit(4, changes=True, replaces=True), Commit(5, ours=True, changes=True)
    places.written(table(5, *commits), 5)
    for _ in range(2):
        assert "was restored" in (places.look(table(5, *commits)) or "")


def test_a_copy_from_before_the_last_batch_is_noticed() -> None:
    """The batch had looked at a version that the copy has."""
    places = Places({"/lake/items": 3}, lambda: {"/lake/items": 5})
    assert places.look(table(3)) is None
    places.written(table(5), 5)
    assert "has version 4, and the driver left it at version 5" in (places.look(table(4)) or "")


def test_a_mirror_that_another_batch_has_written_since_is_where_that_left_it() -> None:
    """Those of a reload write beside this one, and note it in the audit."""
    places = Places({"/lake/items": 3}, lambda: {"/lake/items": 6})
    assert places.look(table(3)) is None
    places.written(table(4), 4)
    assert places.look(table(6, Commit(5, changes=True, replaces=True), Commit(6, ours=True))) is None


def test_commits_of_the_engine_are_not_read_again() -> None:
    """It makes one in each batch, and Spark may not look at the table for months."""
    places, asked = Places({"/lake/items": 3}, dict), list[tuple[int, int]]()
    mirror = table(5)
    mirror.mirror.commits = lambda *between: asked.append(between) or []
    assert places.look(mirror) is None
    for version in range(6, 900):
        places.written(mirror, version, alone=True)
    mirror.mirror.version = 901
    assert places.look(mirror) is None
    assert asked == [(3, 5), (899, 901)]


def test_a_commit_changes_data_whatever_characters_its_statistics_have() -> None:
    """Spark's JSON has them as they are, and Python takes them for the ends of lines."""
    stats = json.dumps({"minValues": {"name": "a\u2028b\x85"}}, ensure_ascii=False)
    added = json.dumps({"add": {"path": "p", "dataChange": True, "stats": stats}}, ensure_ascii=False)
    assert parse(1, f'{{"commitInfo":{{"operation":"DELETE"}}}}\n{added}\n').changes
