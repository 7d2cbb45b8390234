"""XXH64, as Spark's ``xxhash64`` chains it over columns: what tells two events at one position apart.

It is stored with the rows of event lists (mode append), so that it has to stay what it is.
(xxHash fast digest algorithm, XXH64.)
"""

from __future__ import annotations

import struct
from typing import Final

_SEED: Final = 42
_MASK: Final = 2**64 - 1
_P1, _P2, _P3, _P4, _P5 = (
    0x9E3779B185EBCA87,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)


def xxhash64(*values: str | bytes | int | None) -> int:
    """Return Spark's ``xxhash64`` of values as a signed number; integers are of type BIGINT."""
    found = _SEED
    for value in values:
        if isinstance(value, int):
            found = _of_long(value & _MASK, found)
        elif value is not None:
            found = xxh64(value.encode() if isinstance(value, str) else value, found)
    return found - 2**64 if found >= 2**63 else found


def xxhash64_of_int(value: int, seed: int = _SEED) -> int:
    """Return the hash of an INT with a seed, unsigned."""
    found = (seed + _P5 + 4) & _MASK
    found ^= ((value & 0xFFFFFFFF) * _P1) & _MASK
    return _mixed((_turned(found, 23) * _P2 + _P3) & _MASK)


def xxh64(data: bytes, seed: int) -> int:
    """Return the XXH64 of bytes with a seed, unsigned."""
    size = len(data)
    if size >= 32:
        found, at = _of_stripes(data, seed)
    else:
        found, at = (seed + _P5) & _MASK, 0
    found = (found + size) & _MASK
    while at + 8 <= size:
        found ^= _round(0, int.from_bytes(data[at : at + 8], "little"))
        found = (_turned(found, 27) * _P1 + _P4) & _MASK
        at += 8
    if at + 4 <= size:
        found ^= (int.from_bytes(data[at : at + 4], "little") * _P1) & _MASK
        found = (_turned(found, 23) * _P2 + _P3) & _MASK
        at += 4
    for each in data[at:]:
        found ^= (each * _P5) & _MASK
        found = (_turned(found, 11) * _P1) & _MASK
    return _mixed(found)


def _of_stripes(data: bytes, seed: int) -> tuple[int, int]:
    """Return the hash of all whole stripes of 32 bytes, and where the rest begins."""
    a, b = (seed + _P1 + _P2) & _MASK, (seed + _P2) & _MASK
    c, d = seed & _MASK, (seed - _P1) & _MASK
    end = len(data) // 32 * 32
    for one, two, three, four in struct.iter_unpack("<4Q", data[:end]):
        a, b, c, d = _round(a, one), _round(b, two), _round(c, three), _round(d, four)
    found = (_turned(a, 1) + _turned(b, 7) + _turned(c, 12) + _turned(d, 18)) & _MASK
    for each in (a, b, c, d):
        found = ((found ^ _round(0, each)) * _P1 + _P4) & _MASK
    return found, end


def _of_long(value: int, seed: int) -> int:
    found = (seed + _P5 + 8) & _MASK
    found ^= _round(0, value)
    return _mixed((_turned(found, 27) * _P1 + _P4) & _MASK)


def _round(found: int, value: int) -> int:
    return (_turned((found + value * _P2) & _MASK, 31) * _P1) & _MASK


def _turned(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (64 - bits))) & _MASK


def _mixed(found: int) -> int:
    found = ((found ^ (found >> 33)) * _P2) & _MASK
    found = ((found ^ (found >> 29)) * _P3) & _MASK
    return found ^ (found >> 32)
