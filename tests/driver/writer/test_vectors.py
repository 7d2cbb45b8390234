"""Deletion vectors in the log and in files."""

from __future__ import annotations

from uuid import UUID

import pytest
from pyroaring import BitMap64

from lakemirror.driver.writer import vectors
from lakemirror.driver.writer.vectors import Damaged, Descriptor

NUMBER = UUID("d2c639aa-8816-431a-aaf6-d3fe2512ff61")


def test_the_descriptors_of_the_protocol() -> None:
    """The examples of PROTOCOL.md, JSON Example 1 and 3 of Deletion Vectors."""
    on_disk = {
        "storageType": "u",
        "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^",
        "offset": 4,
        "sizeInBytes": 40,
        "cardinality": 6,
    }
    found = Descriptor.parse(on_disk)
    assert found.file == f"ab/deletion_vector_{NUMBER}.bin"
    assert found.action == on_disk
    assert found.unique == "uab^-aqEH.-t@S}K{vb[*k^@4"
    inline = Descriptor("i", "wi5b=000010000siXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L", 40, 6)
    with pytest.raises(Damaged):  # it is in the older, native format
        vectors.read(inline, lambda _: b"")
    rows = BitMap64([3, 4, 7, 11, 18, 29])
    assert vectors.read(vectors.inline(rows), lambda _: b"") == rows
    assert inline.action.keys() == {"storageType", "pathOrInlineDv", "sizeInBytes", "cardinality"}


@pytest.mark.parametrize("rows", [[], [0], [3, 4, 7, 11, 18, 29], range(100_000), [2**31, 2**32, 2**40]])
def test_what_is_written_is_read(rows: list[int]) -> None:
    bits = BitMap64(rows)
    described = vectors.inline(bits)
    assert vectors.read(described, lambda _: b"") == bits
    content, found = vectors.file_of(NUMBER, [bits, BitMap64([5]), bits])
    assert [each.offset for each in found] == sorted({each.offset for each in found})
    assert [vectors.read(each, {found[0].file: content}.__getitem__) for each in found] == [
        bits,
        BitMap64([5]),
        bits,
    ]


def test_damage_is_found() -> None:
    content, [found] = vectors.file_of(NUMBER, [BitMap64(range(0, 1000, 3))])
    for index in range(len(content)):
        damaged = content[:index] + bytes([content[index] ^ 1]) + content[index + 1 :]
        with pytest.raises(Damaged):
            vectors.read(found, lambda _, damaged=damaged: damaged)
        with pytest.raises(Damaged):
            vectors.read(found, lambda _, index=index: content[:index])


def test_other_formats_are_refused() -> None:
    for text in ("wi5b=", "not of the alphabet:\"'"):
        with pytest.raises(Damaged):
            vectors.read(Descriptor("i", text, 4, 0), lambda _: b"")
    with pytest.raises(Damaged):
        vectors.read(Descriptor("i", vectors.inline(BitMap64([1])).place, 34, 2), lambda _: b"")
