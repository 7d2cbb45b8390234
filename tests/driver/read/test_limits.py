"""What a file may hold, and where it may be, decided without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakemirror.driver.checkpoint.storage import LocalStorage
from lakemirror.driver.read.files import limits
from lakemirror.driver.read.files.limits import (
    Parts,
    Text,
    beyond,
    beyond_header,
    beyond_parts,
    fits,
    header_names,
    most_text,
)
from lakemirror.driver.read.files.listing import impossible_name, real_path_outside
from lakemirror.driver.read.files.texts import suffix_of

LINE, ANY, RATIO, ALL = limits.LONGEST_LINE, limits.ANY_RATIO, limits.LARGEST_RATIO, limits.LARGEST_TEXT
BIG = 10 * 2**30
"""The size of a file whose text is not limited by its ratio alone."""


@pytest.mark.guarantee(
    "A file whose lines, header, parts or compression are beyond a limit is set aside by name, also "
    "if a batch of an earlier run has it"
)
@pytest.mark.parametrize(
    ("text", "size", "compressed", "limit"),
    [
        (Text(100, 100), 100, False, None),
        (Text(LINE, LINE), LINE, False, None),
        (Text(LINE + 1, LINE + 1), LINE + 1, False, "one of its lines has more than 32 MiB"),
        (Text(ANY, 10), 1, True, None),  # a small file may hold any multiple
        (Text(ANY + 1, 10), 1, True, "more than 200 times its own size, and more than 256 MiB"),
        (Text(RATIO * ANY, 10), ANY, True, None),
        (Text(RATIO * ANY + 1, 10), ANY, True, "more than 200 times its own size"),
        (Text(RATIO * ANY + 1, 10), ANY, False, None),  # what is not compressed has no ratio
        (Text(ALL, 10), BIG, True, None),
        (Text(ALL + 1, 10), BIG, True, "more than 64 GiB of text"),
        (Text(ALL + 1, LINE + 1), BIG, True, "one of its lines"),
    ],
)
def test_a_file_beyond_a_limit_is_named_with_it(
    text: Text, size: int, compressed: bool, limit: str | None
) -> None:
    found = beyond(text, size, compressed=compressed)
    if limit is None:
        assert found is None
        return
    assert found is not None
    assert found.startswith(limits.BEYOND)
    assert limit in found


def test_no_file_is_decompressed_further_than_shows_that_it_is_beyond() -> None:
    assert [most_text(size) for size in (1, ANY // RATIO, ANY, BIG)] == [ANY, ANY, RATIO * ANY, ALL]
    for size in (1, ANY, BIG):
        assert beyond(Text(most_text(size), 1), size, compressed=True) is None
        assert beyond(Text(most_text(size) + 1, 1), size, compressed=True) is not None


@pytest.mark.guarantee(
    "A file whose lines, header, parts or compression are beyond a limit is set aside by name, also "
    "if a batch of an earlier run has it"
)
@pytest.mark.parametrize(
    ("parts", "limit"),
    [
        (Parts(ALL), None),
        (Parts(ALL + 1), "its rows hold more than 64 GiB"),
        (Parts(1, largest=limits.ANY_PART + 1), "one of its pages holds more than 200 times its own size"),
        (Parts(1, largest=limits.LARGEST_PART + 1), "one of its pages holds more than 512 MiB"),
        (Parts(1, crowded=True), "one of its pages has more rows than bytes"),
    ],
)
def test_pages_and_blocks_have_limits(parts: Parts, limit: str | None) -> None:
    found = beyond_parts(parts, "page")
    assert (found is None) == (limit is None)
    assert found is None or limit is None or found.startswith(f"{limits.BEYOND}{limit}")


@pytest.mark.guarantee(
    "A file whose lines, header, parts or compression are beyond a limit is set aside by name, also "
    "if a batch of an earlier run has it"
)
def test_a_header_has_a_limit_of_bytes_and_of_columns() -> None:
    names = [f"c{number}" for number in range(limits.MOST_COLUMNS)]
    assert beyond_header(",".join(names).encode(), ",") is None
    found = beyond_header(",".join([*names, "more"]).encode(), ",")
    assert found is not None
    assert "more than 10,000 columns" in found
    quoted = f'"{",".join(names)}",b'  # two columns, one with delimiters in its name
    assert beyond_header(quoted.encode(), ",") is None
    assert beyond_header(b"a" * limits.LONGEST_HEADER, ",") is None
    found = beyond_header(b"a" * (limits.LONGEST_HEADER + 1), ",")
    assert found is not None
    assert "its header has more than 1 MiB" in found
    assert len(header_names("a" * 200_000 + ";b", ";")) == 2  # more than Python's csv takes


def test_the_suffix_says_how_a_file_is_compressed() -> None:
    """A file called gz is not compressed, and says nothing about those that are."""
    uris = {"in/a.csv.gz": ".gz", "in/.gz": ".gz", "in/gz": "", "in.gz/a": "", "a": "", "in/a.": "."}
    assert {uri: suffix_of(uri) for uri in uris} == uris


def test_a_batch_takes_so_many_sets_of_columns() -> None:
    full = {str(number) for number in range(limits.MOST_LAYOUTS)}
    assert fits("another", set())
    assert fits("0", full)
    assert not fits("another", full)


@pytest.mark.guarantee("A link out of the folder of a source is not read")
def test_links_stay_in_the_folder(tmp_path: Path) -> None:
    """Also as Kubernetes mounts a ConfigMap, and where the folder itself is a link."""
    outside, real = tmp_path / "secret", tmp_path / "real"
    (real / "..2026").mkdir(parents=True)
    (real / "sub").mkdir()
    outside.mkdir()
    (outside / "password").write_text("hidden")
    (real / "..2026" / "a.csv").write_text("a")
    (real / "..data").symlink_to("..2026")
    (real / "a.csv").symlink_to("..data/a.csv")
    (real / "plain.csv").write_text("a")
    (real / "sub" / "back.csv").symlink_to("../plain.csv")
    (real / "absolute.csv").symlink_to(real / "plain.csv")
    (real / "password.csv").symlink_to(outside / "password")
    (real / "twice.csv").symlink_to("password.csv")
    (real / "away").symlink_to(outside)
    (real / "lost.csv").symlink_to("../nothing")
    (tmp_path / "real-too").mkdir()
    (tmp_path / "real-too" / "b.csv").write_text("b")
    (real / "beside.csv").symlink_to("../real-too/b.csv")  # its path begins with that of the folder
    (real / "circle.csv").symlink_to("circle.csv")
    (real / "into.csv").symlink_to("plain.csv/file")
    (tmp_path / "folder").symlink_to("real")
    for folder in (real, tmp_path / "folder"):
        for name in ("a.csv", "..data/a.csv", "plain.csv", "sub/back.csv", "absolute.csv", "no such file"):
            assert real_path_outside(folder, name) is None, name
        for name in ("password.csv", "twice.csv", "away/password"):
            assert real_path_outside(folder, name) == outside / "password", name
        assert real_path_outside(folder, "beside.csv") == tmp_path / "real-too" / "b.csv"
        assert real_path_outside(folder, "lost.csv") == tmp_path / "nothing"
        assert real_path_outside(folder, "circle.csv") is None
    # What has no file behind it stops no listing.
    assert [entry.name for entry in LocalStorage(real).list()] == [
        *("a.csv", "absolute.csv", "beside.csv", "password.csv", "plain.csv", "twice.csv")
    ]


@pytest.mark.guarantee("A file in a landing folder is read, or named, whatever its name, and harms no other")
def test_a_name_that_hadoop_cannot_take_is_known() -> None:
    local = {"a:b.csv", "x/a:b.csv", "file:a.csv", "a[1]:b.csv", "x:y/a[1].csv", "a\udcff.csv"}
    names = (*local, "x:y/a.csv", "a b.csv", "a[1].csv", "é.csv", "a\n.csv", "x/a.csv")
    assert {name for name in names if impossible_name(name, local=True)} == local
    remote = {"a[1]:b.csv", "x:y/a[1].csv", "a\udcff.csv"}
    assert {name for name in names if impossible_name(name, local=False)} == remote
