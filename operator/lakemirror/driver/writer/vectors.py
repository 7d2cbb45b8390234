"""Deletion vectors: which rows of a data file are hidden (PROTOCOL.md, Deletion Vectors).

Bitmaps are in the format for which Delta writes "portable": a magic number, and then a 64-bit Roaring bitmap
as RoaringFormatSpec has it, which is what pyroaring's BitMap64 writes. The older "native" format, in which
the protocol's example of an inline vector is, is refused.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from pyroaring import BitMap64

_MAGIC: Final = struct.pack("<I", 1681511377)
_FORMAT: Final = b"\1"
"""The version of the format, which a file starts with."""
_SIZE: Final = struct.Struct(">I")

_B85: Final = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_Z85: Final = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_TO_Z85, _FROM_Z85 = bytes.maketrans(_B85, _Z85), bytes.maketrans(_Z85, _B85)
_UUID_LENGTH: Final = 20
"""How many characters a UUID has in Z85."""

IN_FOLDER, ABSOLUTE, INLINE = "u", "p", "i"
"""Where a vector is: in a file in the table's folder, in a file anywhere, or in the log itself."""


class Damaged(ValueError):
    """What is stored as a deletion vector is none, or not the one that the log describes."""


@dataclass(frozen=True)
class Descriptor:
    """Where a deletion vector is, its size in bytes and the number of rows that it hides."""

    storage: str
    place: str
    size: int
    rows: int
    offset: int | None = None

    @property
    def unique(self) -> str:
        """What tells it from other vectors of a file (PROTOCOL.md, Derived Fields)."""
        start = self.storage + self.place
        return start if self.offset is None else f"{start}@{self.offset}"

    @property
    def action(self) -> dict[str, Any]:
        offset = {} if self.offset is None else {"offset": self.offset}
        return {
            **{"storageType": self.storage, "pathOrInlineDv": self.place},
            **{**offset, "sizeInBytes": self.size, "cardinality": self.rows},
        }

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Descriptor:
        return cls(
            given["storageType"],
            given["pathOrInlineDv"],
            int(given["sizeInBytes"]),
            int(given["cardinality"]),
            None if given.get("offset") is None else int(given["offset"]),
        )

    @property
    def file(self) -> str:
        """The path of its file, relative to the table's folder for one in it. Raises Damaged."""
        if self.storage == ABSOLUTE:
            return self.place
        if self.storage != IN_FOLDER:
            raise Damaged(f"a deletion vector of storage type {self.storage} has no file")
        prefix, name = self.place[:-_UUID_LENGTH], _from_z85(self.place[-_UUID_LENGTH:])
        return file_name(UUID(bytes=name), prefix)


def file_name(number: UUID, prefix: str = "") -> str:
    """Return the path of a file of deletion vectors in a table's folder."""
    return f"{prefix}/deletion_vector_{number}.bin" if prefix else f"deletion_vector_{number}.bin"


def encode(rows: BitMap64) -> bytes:
    """Return the indexes of hidden rows in the portable format."""
    return _MAGIC + bytes(rows.serialize())


def decode(data: bytes) -> BitMap64:
    """Return the indexes of hidden rows. Raises Damaged."""
    if not data.startswith(_MAGIC):
        raise Damaged("a deletion vector does not begin with the number of the portable format")
    try:
        return BitMap64.deserialize(data[len(_MAGIC) :])
    except (ValueError, RuntimeError) as error:
        raise Damaged(f"a deletion vector is no bitmap: {error}") from error


def file_of(number: UUID, vectors: Iterable[BitMap64]) -> tuple[bytes, list[Descriptor]]:
    """Return the content of a file with deletion vectors, and the descriptor of each."""
    content, described, place = bytearray(_FORMAT), [], _to_z85(number.bytes)
    for rows in vectors:
        data = encode(rows)
        described.append(Descriptor(IN_FOLDER, place, len(data), len(rows), len(content)))
        content += _SIZE.pack(len(data)) + data + _SIZE.pack(zlib.crc32(data))
    return bytes(content), described


def inline(rows: BitMap64) -> Descriptor:
    """Return the descriptor of a deletion vector in the log itself."""
    data = encode(rows)
    return Descriptor(INLINE, _to_z85(data + b"\0" * (-len(data) % 4)), len(data), len(rows))


def hidden_by(descriptor: Descriptor | None, read_file: Callable[[str], bytes]) -> BitMap64:
    """Return the indexes of a file's hidden rows: none without a vector. Raises as `read` does."""
    return BitMap64() if descriptor is None else read(descriptor, read_file)


def read(descriptor: Descriptor, read_file: Callable[[str], bytes]) -> BitMap64:
    """Return the indexes of hidden rows. ``read_file`` returns the content of a `Descriptor.file`.

    Raises Damaged if that is not what the log describes.
    """
    if descriptor.storage == INLINE:
        data = _from_z85(descriptor.place)[: descriptor.size]
    else:
        data = _stored(read_file(descriptor.file), descriptor)
    rows = decode(data)
    if len(rows) != descriptor.rows:
        raise Damaged(f"a deletion vector hides {len(rows)} rows, and {descriptor.rows} in the log")
    return rows


def _stored(content: bytes, descriptor: Descriptor) -> bytes:
    start = descriptor.offset or 0
    end = start + _SIZE.size + descriptor.size
    if content[:1] != _FORMAT or len(content) < end + _SIZE.size:
        raise Damaged(f"{descriptor.file} is no file of deletion vectors, or was cut off")
    data = content[start + _SIZE.size : end]
    if _SIZE.unpack_from(content, start)[0] != descriptor.size:
        raise Damaged(f"{descriptor.file} has a vector of another size at {start}")
    if _SIZE.unpack_from(content, end)[0] != zlib.crc32(data):
        raise Damaged(f"{descriptor.file} is damaged at {start}")
    return data


def _to_z85(data: bytes) -> str:
    """Return bytes, a multiple of four of them, as text (ZeroMQ RFC 32)."""
    return base64.b85encode(data).translate(_TO_Z85).decode("ascii")


def _from_z85(text: str) -> bytes:
    try:
        return base64.b85decode(text.encode("ascii").translate(_FROM_Z85))
    except ValueError as error:
        raise Damaged(f"a deletion vector is no Z85: {error}") from error
