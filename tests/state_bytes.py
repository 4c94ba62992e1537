"""The format of saved states, written a second time: what the tests read and forge files with.

From the description at the head of csrc/state_file.c and csrc/digest.h, in plain Python; nothing of it comes from C.
"""

from __future__ import annotations

import struct

_MASK = 2**64 - 1
_START = (0x9E3779B97F4A7C15, 0x6A09E667F3BCC909, 0xBB67AE8584CAA73B, 0x3C6EF372FE94F82B)
HEADER = 128
MAGIC = b"PNSTATE\n"


def _mix(x: int) -> int:
    x = (x ^ x >> 32) * _START[2] & _MASK
    x = (x ^ x >> 29) * _START[1] & _MASK
    return x ^ x >> 32


def digest(data: bytes) -> int:
    """The 64-bit digest of csrc/digest.h."""
    lanes = list(_START)
    padded = data + bytes(32 - len(data) % 32)
    for at in range(0, len(padded), 8):
        (word,) = struct.unpack_from("<Q", padded, at)
        lane = at // 8 % 4
        product = (lanes[lane] ^ word) * _START[0] & _MASK
        lanes[lane] = (product << 31 | product >> 33) & _MASK
    value = _mix(len(data))
    for lane in lanes:
        value = _mix(value ^ lane)
    return value


def sections(data: bytes, position_bytes: int) -> list[bytes]:
    """Header, ids, cache and logits of a file, without the digests between them."""
    (n,) = struct.unpack_from("<Q", data, 24)
    ends, at = [], 0
    for size in (HEADER, 4 * n, position_bytes * n):
        ends.append(data[at : at + size])
        at += size + 8
    return [*ends, data[at:-8]]


def joined(parts: list[bytes]) -> bytes:
    """A file of these sections, with the digests that belong to them."""
    file, summed = b"", b""
    for part in parts:
        summed += part
        file += part + struct.pack("<Q", digest(summed))
    return file
