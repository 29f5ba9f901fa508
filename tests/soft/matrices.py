"""Matrices of small elements, and how their fragments lie in a warp's registers, by the definition of mma and mma.sp."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

rng = np.random.default_rng(3)
LANE = np.arange(32)
G, T = LANE // 4, LANE % 4
FOURS = {"s4": lambda x: (x.astype(np.int64) ^ 8) - 8, "u4": lambda x: x.astype(np.int64)}


class Kind(NamedTuple):
    """Elements of one kind: how many bits they have, some of them as bits, and what bits mean."""

    bits: int
    draw: Callable[[tuple[int, int]], Any]
    value: Callable[[Any], Any]


def small(shape: tuple[int, int]) -> Any:
    """Numbers whose products of a row are exact in any order."""
    return rng.integers(-8, 9, shape).astype(np.float32) / 4


def eights(fraction: int, bias: int) -> Any:
    """The values of all codes of an 8-bit format."""
    codes = np.arange(256)
    exponent, part = codes >> fraction & (0x7F >> fraction), codes & (1 << fraction) - 1
    size = np.where(exponent == 0, part * 2.0 ** (1 - bias - fraction), (1 + part / (1 << fraction)) * 2.0 ** (exponent - bias))
    return np.where(codes & 0x80, -size, size).astype(np.float32)


def of_codes(values: Any) -> tuple[Callable[[tuple[int, int]], Any], Callable[[Any], Any]]:
    near = np.flatnonzero((np.abs(values) <= 4) & ((np.abs(values) >= 0.25) | (values == 0)))
    return lambda shape: rng.choice(near, shape).astype(np.uint8), lambda x: values[x]


BF16 = (lambda s: (small(s).view(np.uint32) >> 16).astype(np.uint16), lambda x: (x.astype(np.uint32) << 16).view(np.float32))
KINDS = {
    "f16": Kind(16, lambda s: small(s).astype(np.float16).view(np.uint16), lambda x: x.view(np.float16).astype(np.float32)),
    "bf16": Kind(16, *BF16),
    "tf32": Kind(32, lambda s: small(s).view(np.uint32) | 0x1ABC & 0x1FFF, lambda x: (x & ~np.uint32(0x1FFF)).view(np.float32)),
    "e4m3": Kind(8, *of_codes(eights(3, 7))),
    "e5m2": Kind(8, *of_codes(eights(2, 15))),
    "s8": Kind(8, lambda s: rng.integers(0, 256, s).astype(np.uint8), lambda x: x.view(np.int8).astype(np.int64)),
    "u8": Kind(8, lambda s: rng.integers(0, 256, s).astype(np.uint8), lambda x: x.astype(np.int64)),
}


def bits_of(kind: str) -> int:
    return 4 if kind in FOURS else KINDS[kind].bits


def draw(kind: str, shape: tuple[int, int]) -> Any:
    return rng.integers(0, 16, shape).astype(np.uint8) if kind in FOURS else KINDS[kind].draw(shape)


def value(kind: str, x: Any) -> Any:
    return FOURS[kind](x) if kind in FOURS else KINDS[kind].value(x)


def thinned(rows: int, k: int, bits: int) -> tuple[Any, Any]:
    """For each chunk of a row the elements that are there, in order, and the four bits that say so."""
    if bits == 32:
        one = rng.integers(0, 2, (rows, k // 2))
        return one[..., None], np.where(one, 0b1110, 0b0100)
    pairs = np.array([(a, b) for a in range(4) for b in range(a + 1, 4)])
    chosen = pairs[rng.integers(0, 6, (rows, k // (8 if bits == 4 else 4)))]
    nibbles = chosen[..., 0] | chosen[..., 1] << 2
    return (np.stack([2 * chosen[..., 0], 2 * chosen[..., 0] + 1, 2 * chosen[..., 1], 2 * chosen[..., 1] + 1], -1) if bits == 4 else chosen), nibbles


def metadata(nibbles: Any, bits: int, selector: int) -> Any:
    """The words of all lanes; those that have none have ones."""
    words = np.full(32, 0xFFFFFFFF, np.uint32)
    chunks = nibbles.shape[1]
    word = lambda row, first, count: sum(int(nibbles[row, first + i]) << 4 * i for i in range(count))  # noqa: E731
    for g in range(8):
        if bits >= 16:
            lanes = chunks // 4
            for i in range(lanes):
                words[4 * g + selector * lanes + i] = word(g, 4 * i, 4) | word(g + 8, 4 * i, 4) << 16
        else:
            lanes = chunks // 4
            for i in range(lanes):
                words[4 * g + selector * lanes + i] = word(g + 8 * (i % 2), i // 2 * 8, 8)
    return words


def fragments(matrix: Any, bits: int, rows: int) -> Any:
    """Registers of a factor of `rows` by 32 * registers / ... columns, as mma has them: [register, lane]."""
    per = 32 // bits
    registers = matrix.shape[1] // (4 * per) * (rows // 8)
    out = np.zeros((registers, 32), np.uint32)
    for i in range(registers):
        half, block = (i % 2, i // 2) if rows == 16 else (0, i)
        for j in range(per):
            out[i] |= matrix[G + 8 * half, block * 4 * per + T * per + j].astype(np.uint32) << bits * j
    return out
