"""What copies, fills, kernels and host functions do to bytes, in NumPy: the sequential model. interpreter/kernels.h and work.h say the same."""

from __future__ import annotations

from typing import Any

import numpy as np

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
MASK = 0xFFFFFFFF
KERNELS = ("mix", "axpy", "gather", "count", "iterate")
READS_INPUT = ("axpy", "gather", "count")
HOST_WORK = ("fill", "add", "xor", "sleep", "signal")

_COUNTING = np.arange(1 << 22, dtype=np.uint32)
_PATTERN = (_COUNTING * np.uint32(7) + (_COUNTING >> np.uint32(8))).astype(np.uint8)


def fill(to: Bytes, offset: int, width: int, value: int, pitch: int, count: int, rows: int) -> None:
    element = np.frombuffer((value & ((1 << 8 * width) - 1)).to_bytes(width, "little"), np.uint8)
    row = np.tile(element, count)
    for i in range(rows):
        to[offset + i * pitch : offset + i * pitch + count * width] = row


def copy(to: Bytes, offset: int, pitch: int, source: Bytes, source_offset: int, source_pitch: int, size: int, rows: int) -> None:
    for i in range(rows):
        start, read = offset + i * pitch, source_offset + i * source_pitch
        to[start : start + size] = source[read : read + size]


def iterated(k: int, c: int, times: int) -> tuple[int, int]:
    """x * k + c, `times` times, as one x * a + b."""
    a, b = 1, 0
    for bit in bin(times)[2:]:
        a, b = a * a & MASK, (a * b + b) & MASK
        if bit == "1":
            a, b = a * k & MASK, (b * k + c) & MASK
    return a, b


def kernel(name: str, to: Bytes, offset: int, source: Bytes | None, source_offset: int, n: int, k: int, c: int, m: int) -> None:
    words = m if name == "count" else n
    out = to[offset : offset + 4 * words].view(np.uint32)
    given = source[source_offset : source_offset + 4 * n].view(np.uint32) if source is not None else out
    if name == "mix":
        out *= np.uint32(k)
        out += np.uint32(c)
        out += _COUNTING[:n]
    elif name == "axpy":
        out += given * np.uint32(k)
    elif name == "gather":
        out[:] = given[(_COUNTING[:n] * np.uint32(k)) % np.uint32(n)] + np.uint32(c)
    elif name == "count":
        out += np.bincount(given % np.uint32(m), minlength=m).astype(np.uint32) * np.uint32(k)
    elif name == "iterate":
        a, b = iterated(k, c, m)
        out *= np.uint32(a)
        out += np.uint32(b)


def host(what: str, to: Bytes, offset: int, source: Bytes | None, source_offset: int, size: int, value: int) -> None:
    part = to[offset : offset + size]
    if what == "fill":
        part[:] = _PATTERN[:size] + np.uint8(value & 255)
    elif what == "add":
        part += np.uint8(value & 255)
    elif what == "xor" and source is not None:
        part ^= source[source_offset : source_offset + size]
