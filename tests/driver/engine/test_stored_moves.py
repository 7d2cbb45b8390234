"""Images of moved rows beside a mirror, as facts and back."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakemirror.driver.columns.changes import key_of
from lakemirror.driver.columns.kinds import to_arrow
from lakemirror.driver.engine.commits import Author
from lakemirror.driver.engine.stored_ends import TOMBSTONES, TombstoneFiles, recorded, texts_of_keys
from lakemirror.driver.engine.stored_moves import as_facts, stored_images
from lakemirror.driver.rules.keys import encode
from lakemirror.driver.rules.kinds import (
    BIGINT,
    BINARY,
    DATE,
    DOUBLE,
    INT,
    STRING,
    TIMESTAMP,
    Arrays,
    Decimals,
    Kind,
)
from lakemirror.driver.rules.moves import Image, Move
from lakemirror.driver.rules.positions import NO_ORIGIN, Origin, own
from lakemirror.driver.rules.values import Said
from lakemirror.driver.writer.data_files import Layout
from lakemirror.driver.writer.stores import LocalDisk
from tests.driver.engine.test_stages import _ENDS, made

KINDS: dict[str, Kind] = {
    "b": BIGINT,
    "a": STRING,
    "note": STRING,
    "amounts": Arrays(Decimals(10, 2)),
    "at": TIMESTAMP,
}
KEY = ["b", "a"]
TRACKED = ["note", "amounts", "at"]
SEEN = datetime(2026, 1, 2, 3, 4, 5, 6, UTC)


def seq(number: int) -> bytes:
    return number.to_bytes(26, "big")


def image(former: int, number: int, new: int, note: str | None, **of_move: Any) -> Image:
    said = {
        "note": Said(note, own(seq(number - 1))),
        "amounts": Said([Decimal("1.50"), None], own(seq(1))),
        "at": Said(SEEN),
    }
    return Image(Move((former, f"k{former}"), seq(number), (new, f"k{new}"), **of_move), said)


def stored(folder: Path, batches: Sequence[Sequence[Image]], batch: int | None = None) -> TombstoneFiles:
    """A table of tombstones with images, one file for each batch."""
    table = made(folder / TOMBSTONES, _ENDS, hides=False)
    for number, images in enumerate(batches):
        rows = recorded(as_facts(images, KINDS, KEY), 7, number)
        table.append(rows, Author("test", number, {}), 2000)
    state = table.state
    assert state is not None
    return TombstoneFiles(Layout.of(state.snapshot), tuple(state.snapshot.files.values()), batch)


def found(folder: Path, ends: TombstoneFiles, *keys: int, tracked: Sequence[str] = TRACKED) -> list[Image]:
    of = {"b": to_arrow(list(keys), BIGINT), "a": to_arrow([f"k{each}" for each in keys], STRING)}
    files = LocalDisk().files(str(folder / TOMBSTONES))
    return stored_images(files, ends, pa.RecordBatch.from_pydict(of), KINDS, KEY, tracked)


def shown(images: Sequence[Image]) -> list[tuple[Move, Any]]:
    return sorted(((each.move, dict(each.said)) for each in images), key=lambda each: each[0].seq)


def test_images_are_read_back_as_they_were(tmp_path: Path) -> None:
    images = [image(1, 5, 2, "żółw"), image(3, 6, 1, None, unanchored=True, origin=Origin("t", 1, 9))]
    read = found(tmp_path, stored(tmp_path, [images]), 1)
    assert shown(read) == shown(images)
    assert not any(each.is_new for each in read)


def test_only_an_image_of_an_open_transaction_keeps_its_origin(tmp_path: Path) -> None:
    ends = stored(tmp_path, [[image(1, 5, 2, "x", origin=Origin("t", 1, 9))]])
    [read] = found(tmp_path, ends, 1)
    assert read.move.origin == NO_ORIGIN


def test_images_are_found_over_any_number_of_moves(tmp_path: Path) -> None:
    chain = [image(each, 10 + each, each + 1, "x") for each in range(1, 6)]
    others = [image(20, 40, 21, "y"), image(6, 50, 1, "round")]
    ends = stored(tmp_path, [chain[::2], [others[0]], chain[1::2], [others[1]]])
    for key in range(1, 7):
        assert shown(found(tmp_path, ends, key)) == shown([*chain, others[1]])
    assert shown(found(tmp_path, ends, 21, 99)) == shown([others[0]])
    assert found(tmp_path, ends, 99) == []
    assert found(tmp_path, ends) == []


def test_a_move_may_have_several_images(tmp_path: Path) -> None:
    images = [image(1, 5, 2, "x"), image(1, 5, 2, "y")]
    assert len(found(tmp_path, stored(tmp_path, [images[:1], images[1:]]), 2)) == 2


def test_a_column_that_an_image_lacks_was_null(tmp_path: Path) -> None:
    """As Spark reads it: the column was added since."""
    made_before = image(1, 5, 2, "x")
    less = Image(made_before.move, {"note": made_before.said["note"]})
    [read] = found(tmp_path, stored(tmp_path, [[less]]), 1)
    assert read.said == {
        "note": made_before.said["note"],
        "amounts": Said(None, own(seq(5))),
        "at": Said(None, own(seq(5))),
    }


def test_images_of_the_batch_itself_are_for_spark(tmp_path: Path) -> None:
    """It failed after it had written them."""
    ends = stored(tmp_path, [[image(1, 5, 2, "x")], [image(7, 6, 8, "x")]], batch=1)
    assert len(found(tmp_path, ends, 2)) == 1
    with pytest.raises(ValueError, match="has written its tombstones before"):
        found(tmp_path, ends, 8)


VALUES: dict[Kind, st.SearchStrategy[Any]] = {
    INT: st.integers(-(2**31), 2**31 - 1),
    BIGINT: st.integers(-(2**63), 2**63 - 1),
    STRING: st.text(st.characters(exclude_categories=["Cs"])) | st.text('a"\\\x00\x1f\x7f\u2028'),
    DOUBLE: st.sampled_from([0.0, -0.0, 1.5, float("nan"), 42.0]),
    Decimals(10, 2): st.sampled_from([Decimal("1.50"), Decimal("-0.10")]),
    DATE: st.dates(date(1, 1, 1)),
    BINARY: st.binary(),
}


@settings(deadline=None)
@given(st.data())
def test_the_texts_of_keys_are_those_of_the_rules(data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from("abcd"), min_size=1, max_size=3, unique=True))
    kinds = {name: data.draw(st.sampled_from(sorted(VALUES, key=str))) for name in names}
    rows = data.draw(st.lists(st.tuples(*(VALUES[kinds[name]] for name in names)), max_size=5))
    columns = {name: to_arrow([each[i] for each in rows], kinds[name]) for i, name in enumerate(names)}
    texts = texts_of_keys(pa.RecordBatch.from_pydict(columns), kinds, names)
    assert texts.to_pylist() == [encode(dict(zip(names, key_of(each), strict=True)), kinds) for each in rows]
