"""A reference model of how a CUDA GPU samples textures, in numpy, which the software GPU's texture unit is tested against.

The rules are those of NVIDIA's CUDA C++ Programming Guide, "Texture Fetching", and for the gather those of the PTX ISA's tld4. Where these are silent
the model chooses: a coordinate that is not a number counts as 0, a border colour is cut to the channels of the format and to integers where the
texture yields integers, and a tie between two weights or levels goes up.

Coordinates are worked out in float32, as the hardware gets them, colours in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Single = NDArray[np.float32]
Double = NDArray[np.float64]
Integer = NDArray[np.int64]
Real = TypeVar("Real", np.float32, np.float64)

DIMENSIONS = {"1d": 1, "2d": 2, "3d": 3, "a1d": 1, "a2d": 2, "cube": 2, "acube": 2}  # that have coordinates within a layer or face
LAYERED = ("a1d", "a2d", "acube")
CUBES = ("cube", "acube")
MODES = ("wrap", "clamp", "mirror", "border")
GATHERED = ((0, 1), (1, 1), (1, 0), (0, 0))  # how far from texel (i, j) each of tld4's four is, in x and y


@dataclass(frozen=True)
class Sampler:
    """How a texture is read. The level of detail is clamp(lod + mip_bias, mip_min, mip_max), then clamped to the levels there are."""

    modes: tuple[str, str, str] = ("clamp",) * 3
    linear: bool = False
    normalized: bool = False
    integers: bool = False  # CU_TRSF_READ_AS_INTEGER
    srgb: bool = False  # unsigned 8 bit texels are sRGB, but for the fourth channel
    border: tuple[float, float, float, float] = (0, 0, 0, 0)
    mip_linear: bool = False
    mip_bias: float = 0
    mip_min: float = 0
    mip_max: float = 0


@dataclass(frozen=True)
class Tap:
    """For each sample: a texel's index along one dimension, whether it is in the texture (else it is border), and its weight."""

    index: Integer
    inside: NDArray[np.bool_]
    weight: Double


Axis = list[Tap]  # one tap, or two where the dimension is filtered


@dataclass(frozen=True)
class Colours:
    """A texture's texels as a fetch yields them, with four channels, and its border colour likewise."""

    texels: Array
    border: Array

    def at(self, x: Tap, y: Tap, z: Tap) -> Array:
        inside = x.inside & y.inside & z.inside
        return np.where(inside[:, None], self.texels[z.index, y.index, x.index], self.border)


def fetch(texels: Array, kind: str, coords: Array, sampler: Sampler, layers: Array | None = None) -> Array:
    """What tex yields, (n, 4): float64, or int64 where the texture yields integers."""
    linear = sampler.linear and yields_floats(texels, sampler) and not _are_indices(coords)
    x, y, z = _axes(texels, kind, coords, sampler, layers, linear)
    colours = _colours(texels, sampler)
    if not linear:
        return colours.at(x[0], y[0], z[0])
    result: Double = np.zeros((len(coords), 4))
    with np.errstate(invalid="ignore"):  # an infinite texel of weight 0
        for a, b, c in product(x, y, z):
            result += (a.weight * b.weight * c.weight)[:, None] * colours.at(a, b, c)
    return result


def fetch_level(levels: list[Array], kind: str, coords: Array, lod: Array, sampler: Sampler, layers: Array | None = None) -> Array:
    """What tex.level yields of a mipmap, whose coordinates are normalised."""
    each = np.stack([fetch(level, kind, coords, replace(sampler, normalized=True), layers) for level in levels])
    sample = np.arange(len(coords))
    lod = np.clip(lod.astype(np.float64) + sampler.mip_bias, sampler.mip_min, sampler.mip_max)
    lod = np.clip(_number(lod), 0, len(levels) - 1)
    if not (sampler.mip_linear and yields_floats(levels[0], sampler)):
        return np.asarray(each[_whole(lod + 0.5), sample])
    low = _whole(lod)
    high = np.minimum(low + 1, len(levels) - 1)
    weight = _fixed(lod - low)[:, None]
    with np.errstate(invalid="ignore"):  # an infinite texel of weight 0
        return np.asarray((1 - weight) * each[low, sample] + weight * each[high, sample])


def gather(texels: Array, coords: Array, component: int, sampler: Sampler, kind: str = "2d", layers: Array | None = None) -> Array:
    """What tld4 yields: one component of the four texels that linear filtering would use."""
    if DIMENSIONS[kind] != 2 or _are_indices(coords):
        raise ValueError("a gather takes two coordinates, which are floats")
    x, y, z = _axes(texels, kind, coords, sampler, layers, linear=True)
    colours = _colours(texels, sampler)
    return np.stack([colours.at(x[right], y[down], z[0])[:, component] for right, down in GATHERED], axis=1)


def yields_floats(texels: Array, sampler: Sampler) -> bool:
    """8 and 16 bit integers are promoted to floats unless they are to be read as integers; 32 bit integers never are."""
    return texels.dtype.kind == "f" or (texels.dtype.itemsize < 4 and not sampler.integers)


# Colours


def _colours(texels: Array, sampler: Sampler) -> Colours:
    values = _promoted(texels, sampler)
    channels = texels.shape[3]
    complete = np.zeros((*texels.shape[:3], 4), values.dtype)
    complete[..., 3] = 1
    complete[..., :channels] = values
    border = np.array([0, 0, 0, 1], values.dtype)
    border[:channels] = np.array(sampler.border[:channels]).astype(values.dtype)
    return Colours(complete, border)


def _promoted(texels: Array, sampler: Sampler) -> Array:
    if not yields_floats(texels, sampler):
        return texels.astype(np.int64)
    values = texels.astype(np.float64)
    if texels.dtype.kind == "f":
        return values
    values = np.maximum(values / np.iinfo(texels.dtype).max, -1)
    if sampler.srgb and texels.dtype == np.uint8:
        values[..., :3] = _linear_light(values[..., :3])
    return values


def _linear_light(srgb: Double) -> Double:
    return np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)


# Coordinates


def _axes(texels: Array, kind: str, coords: Array, sampler: Sampler, layers: Array | None, linear: bool) -> tuple[Axis, Axis, Axis]:
    """The texels to read along x, y and z, where z is the layer or face if there are such."""
    depth, height, width, _ = texels.shape
    if coords.shape[1:] != (3 if kind in CUBES else DIMENSIONS[kind],) or (layers is None) == (kind in LAYERED):
        raise ValueError(f"wrong coordinates for {kind}")
    still: Integer = np.zeros(len(coords), np.int64)
    layer = still if layers is None else np.clip(layers, 0, depth // (6 if kind == "acube" else 1) - 1).astype(np.int64)
    if kind in CUBES:
        face, coords = _cube_face(coords)
        layer = 6 * layer + face
        sampler = replace(sampler, modes=("clamp",) * 3, normalized=True)
    axes = [[_whole_tap(still)], [_whole_tap(still)], [_whole_tap(layer)]]
    for d in range(DIMENSIONS[kind]):
        axes[d] = _axis(coords[:, d], (width, height, depth)[d], sampler.modes[d], sampler.normalized, linear)
    return axes[0], axes[1], axes[2]


def _cube_face(coords: Array) -> tuple[Integer, Single]:
    """Each direction's face, and where on it, from 0 to 1."""
    direction = coords.astype(np.float32)
    x, y, z = direction.T
    along_x, along_y, along_z = np.abs(direction).T
    major = np.where((along_x >= along_y) & (along_x >= along_z), 0, np.where(along_y >= along_z, 1, 2))
    face = 2 * major + (direction[np.arange(len(major)), major] < 0)
    s = np.choose(face, [-z, z, x, x, x, -x])
    t = np.choose(face, [-y, -y, z, -z, -y, -y])
    with np.errstate(invalid="ignore", divide="ignore"):  # direction (0, 0, 0)
        m = np.max(np.abs(direction), axis=1)
        return face, np.stack([(s / m + 1) / 2, (t / m + 1) / 2], axis=1)


def _axis(coords: Array, size: int, mode: str, normalized: bool, linear: bool) -> Axis:
    if mode not in MODES:
        raise ValueError(mode)
    if _are_indices(coords):
        return [_tap(coords.astype(np.float64), size, "border" if mode == "border" else "clamp")]
    if not normalized and mode in ("wrap", "mirror"):
        mode = "clamp"
    position = _position(coords.astype(np.float32), size, mode, normalized)
    return _two_taps(position, size, mode) if linear else [_nearest_tap(position, size, mode)]


def _position(coords: Single, size: int, mode: str, normalized: bool) -> Single:
    """In texels."""
    if not normalized:
        return _number(coords)
    with np.errstate(over="ignore", invalid="ignore"):  # infinity is a coordinate too
        return _number(REDUCED.get(mode, _same)(coords) * np.float32(size))


def _same(x: Single) -> Single:
    return x


def _wrapped(x: Single) -> Single:
    return x - np.floor(x)


def _mirrored(x: Single) -> Single:
    return np.where(np.floor(x) % 2 == 0, _wrapped(x), 1 - _wrapped(x))


REDUCED: dict[str, Callable[[Single], Single]] = {"wrap": _wrapped, "mirror": _mirrored}


def _nearest_tap(position: Single, size: int, mode: str) -> Tap:
    # A fraction close to 1 can round to 1, which is past the last texel, not at the first.
    return _tap(np.floor(position).astype(np.float64), size, "clamp" if mode == "wrap" else mode)


def _two_taps(position: Single, size: int, mode: str) -> Axis:
    shifted = (position - np.float32(0.5)).astype(np.float64)
    first = np.floor(shifted)
    with np.errstate(invalid="ignore"):  # infinity
        weight = _fixed(_number(shifted - first))
    return [replace(_tap(first, size, mode), weight=1 - weight), replace(_tap(first + 1, size, mode), weight=weight)]


def _tap(texel: Double, size: int, mode: str) -> Tap:
    """The address mode is applied to a texel's index, a whole number."""
    index = _whole(texel % size if mode == "wrap" else np.clip(texel, 0, size - 1))
    tap = _whole_tap(index)
    return replace(tap, inside=(texel >= 0) & (texel < size)) if mode == "border" else tap


def _whole_tap(index: Integer) -> Tap:
    return Tap(index, np.ones(len(index), np.bool_), np.ones(len(index)))


# Numbers


def _are_indices(coords: Array) -> bool:
    return coords.dtype.kind == "i"


def _number(values: NDArray[Real]) -> NDArray[Real]:
    return np.where(np.isnan(values), values.dtype.type(0), values)


def _whole(values: Double) -> Integer:
    return np.floor(values).astype(np.int64)


def _fixed(fraction: Double) -> Double:
    """To 8 bits after the point; 1 can occur."""
    return np.floor(fraction * 256 + 0.5) / 256
