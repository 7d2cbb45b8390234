"""Files of saved records on a local disk: each line is read once, by one task."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from lakemirror.driver.engine import saved_files
from lakemirror.driver.engine.saved_files import Piece, lines_of, pieces
from lakemirror.driver.engine.saved_records import NotRecords


def read(tasks: list[list[Piece]]) -> list[bytes]:
    return [line for task in tasks for piece in task for block, _ in lines_of(piece) for line in block]


def written(folder: Path, contents: list[bytes]) -> list[tuple[str, int]]:
    files = []
    for number, content in enumerate(contents):
        path = folder / f"{number} ż%20.jsonl"
        path.write_bytes(content)
        files.append((str(path), len(content)))
    return files


@pytest.mark.parametrize("seed", range(30))
def test_each_line_is_read_once(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rnd = random.Random(seed)
    monkeypatch.setattr(saved_files, "_LEAST", rnd.randint(1, 20))
    monkeypatch.setattr(saved_files, "_MOST", rnd.randint(1, 60))
    monkeypatch.setattr(saved_files, "_AT_A_TIME", rnd.randint(1, 30))
    some = [b"", b" ", b"\r", b"{}", b"{1}\r", "ż".encode() * 9, b"x" * 40]
    contents = [
        b"\n".join(rnd.choices(some, k=rnd.randint(0, 12))) + rnd.choice((b"", b"\n")) for _ in range(4)
    ]
    files = written(tmp_path, contents)
    expected = [line for content in contents for line in content.split(b"\n") if line.strip()]
    assert read(pieces(files, rnd.randint(1, 5))) == expected


def test_tasks_read_about_as_much_as_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved_files, "_LEAST", 10)
    monkeypatch.setattr(saved_files, "_MOST", 100)

    def sizes(files: list[tuple[str, int]]) -> list[int]:
        return [sum(each.end - each.begin for each in task) for task in pieces(files, 2)]

    assert sizes([]) == sizes([("empty", 0)]) == []
    assert sizes([("a", 7)]) == [7]
    assert sizes([("a", 30), ("b", 5), ("c", 65)]) == [50, 50]
    assert sizes([("a", 201)]) == [50, 50, 50, 51]


def test_what_is_added_to_a_file_is_not_read_and_what_is_gone_is_noticed(tmp_path: Path) -> None:
    [(path, size)] = written(tmp_path, [b"{1}\n{2}\n"])
    Path(path).write_bytes(b"{1}\n{2}\n{3}\n")
    assert read(pieces([(path, size)], 1)) == [b"{1}", b"{2}"]
    Path(path).write_bytes(b"{1}\n")
    with pytest.raises(NotRecords, match="is shorter than 8 bytes"):
        read(pieces([(path, size)], 1))
