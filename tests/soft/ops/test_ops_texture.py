"""Textures and surfaces against a model in NumPy (texture_model.py): every format, geometry, address mode and filter, in kernels of PTX."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from soft import texture_model as model
from soft.kernels import Kernels, LaunchError
from soft.texture_model import Sampler

Array = npt.NDArray[Any]
FORMATS = {"uint8": 0x01, "uint16": 0x02, "uint32": 0x03, "int8": 0x08, "int16": 0x09, "int32": 0x0A, "float16": 0x10, "float32": 0x20}
MODES = ("wrap", "clamp", "mirror", "border")
LAYERED = ("a1d", "a2d", "acube", "cube")
COORDINATES = {"1d": 1, "2d": 2, "3d": 3, "cube": 3, "a1d": 1, "a2d": 2, "acube": 3}
OPERANDS = {
    "1d": "{%x}", "2d": "{%x, %y}", "3d": "{%x, %y, %z, %z}", "cube": "{%x, %y, %z, %z}", "a1d": "{%l, %x}", "a2d": "{%l, %x, %y, %y}",
    "acube": "{%l, %x, %y, %z}",
}  # fmt: skip
POINT = Sampler()
IMAGE, SURFACE = 1, 2  # kinds of struct soft_texture (native/backend/soft/engine/texture.h)
N = 512
TYPES = {"u": "u32", "i": "s32", "f": "f32"}  # what is asked for, by NumPy's kind
SURFACES = ("1d", "2d", "3d", "a1d", "a2d")
FOUR = "{%d0, %d1, %d2, %d3}"
FETCH = "tex.{kind}.v4.{type}.f32 {four}, [%t, {at}];"
FETCH_RESIDENT = "tex.{kind}.v4.f32.f32 {four}|%p, [%t, {at}];"
FETCH_TEXEL = "tex.{kind}.v4.s32.s32 {four}, [%t, {at}];"
FETCH_LEVEL = "tex.level.{kind}.v4.f32.f32 {four}, [%t, {at}], %e0;"
FETCH_BASE = "tex.base.{kind}.v4.f32.f32 {four}, [%t, {at}];"
FETCH_GRADIENT = "tex.grad.2d.v4.f32.f32 {four}, [%t, {at}], {{%e0, %e1}}, {{%e2, %e3}};"
GATHER = "tld4.{component}.{kind}.v4.{type}.f32 {four}, [%t, {at}];"
LOAD = "suld.b.{kind}.v2.b32.{mode} {{%d0, %d1}}, [%t, {at}]; mov.u32 %d2, 0; mov.u32 %d3, 0;"
STORE = "sust.b.{kind}.v2.b32.{mode} [%t, {at}], {{%e0, %e1}}; mov.u32 %d0, 0;"
MOVE = "suld.b.1d.v4.b32.trap {four}, [%t, {{%x}}]; sust.b.1d.v4.b32.trap [%t, {{%y}}], {four};"
WIDE_LOAD = "suld.b.1d.b{bits}.trap {{%w}}, [%t, {{%x}}];"
WIDE_STORE = "not.b{register} %w, %w; sust.b.1d.b{bits}.trap [%t, {{%x}}], {{%w}};"
REDUCE = "sured.b.{operation}.{kind}.{type}.trap [%t, {at}], {value};"
REDUCTIONS = [("add", "u32", 5, 5 + N * 3), ("min", "s32", 5, -3), ("max", "u32", 5, 0xFFFFFFFD), ("max", "s32", 5, 5), ("and", "b32", 7, 3), ("or", "b32", 4, 7),
              ("add", "u64", 5, 5 + N * 3), ("add", "s64", -5, -5 + N * 3)]  # fmt: skip


def text(template: str, kind: str = "", **what: Any) -> str:
    return template.format(kind=kind, at=OPERANDS.get(kind, ""), four=FOUR, **what)


# For test_coverage.py: what the tests below run.
TEXTS = [
    *(text(FETCH, kind, type=t) for kind in COORDINATES for t in TYPES.values()), *(text(t, k) for t in (FETCH_LEVEL, FETCH_BASE) for k in COORDINATES),
    text(FETCH_GRADIENT, "2d"), *(text(GATHER, kind, component=c, type=t) for kind in ("2d", "a2d") for c in "rgba" for t in TYPES.values()),
    *(text(t, kind, mode=mode) for t in (LOAD, STORE) for kind in SURFACES for mode in ("zero", "clamp")), text(MOVE),
    *(text(t, bits=bits, register=bits) for t in (WIDE_LOAD, WIDE_STORE) for bits in (8, 16, 64)),
    *(text(REDUCE, kind, operation=o, type=t, value="%e0") for o, t, *_ in REDUCTIONS for kind in SURFACES),
]  # fmt: skip


def texture(levels: list[Array], kind: str, sampler: Sampler = POINT, *, surface: bool = False) -> tuple[Array, Array]:
    """A descriptor as the backend writes it, and the texels that it is of, which have to stay."""
    base = levels[0]
    depth, height, width, channels = base.shape
    memory = np.concatenate([np.ascontiguousarray(level).reshape(-1).view(np.uint8) for level in levels])
    layered = kind in LAYERED
    flags = sampler.integers | sampler.normalized << 1 | sampler.srgb << 4
    raw = struct.pack(
        "4I2Q6I7f4IQ16x",
        *(0x58745664, FORMATS[base.dtype.name], channels, flags, memory.ctypes.data, width, SURFACE if surface else IMAGE, sampler.linear),
        *(*(MODES.index(m) for m in sampler.modes), sampler.mip_linear, sampler.mip_bias, sampler.mip_min, sampler.mip_max, *sampler.border),
        *(height, 1 if layered else depth, depth if layered else 0, len(levels), width * channels * base.itemsize),
    )  # fmt: skip
    assert len(raw) == 128
    return np.frombuffer(raw, np.uint64).copy(), memory


def kernels(instruction: str) -> Kernels:
    """One thread for each fetch: coordinates c[3][N] and layers come from memory, and so do numbers that the instruction names %e0, %e1 ..."""
    return Kernels(f""".version 8.0
.target sm_80
.address_size 64
.visible .entry f(.param .u64 texture, .param .u64 coordinates, .param .u64 layers, .param .u64 extra, .param .u64 out) {{
.reg .b32 %i, %x, %y, %z, %l, %e<8>, %d<4>; .reg .b64 %t, %c, %o, %n, %s; .reg .pred %p;
mov.u32 %i, %ctaid.x; mov.u32 %x, %ntid.x; mov.u32 %y, %tid.x; mad.lo.u32 %i, %i, %x, %y;
ld.param.u64 %t, [texture];
ld.param.u64 %c, [coordinates]; mul.wide.u32 %n, %i, 4; add.u64 %c, %c, %n;
ld.global.b32 %x, [%c]; ld.global.b32 %y, [%c+{4 * N}]; ld.global.b32 %z, [%c+{8 * N}];
ld.param.u64 %c, [layers]; add.u64 %c, %c, %n; ld.global.b32 %l, [%c];
ld.param.u64 %c, [extra]; add.u64 %c, %c, %n;
{" ".join(f"ld.global.b32 %e{k}, [%c+{4 * N * k}];" for k in range(8))}
{instruction}
ld.param.u64 %o, [out]; mul.wide.u32 %n, %i, 16; add.u64 %o, %o, %n;
st.global.v4.b32 [%o], {{%d0, %d1, %d2, %d3}};
ret; }}""")


FETCHES: dict[str, Kernels] = {}


def run(instruction: str, descriptor: Array, coordinates: Array, layers: Array | None = None, extra: Array | None = None) -> Array:
    """The four components of each fetch, as bits."""
    code = FETCHES.get(instruction) or FETCHES.setdefault(instruction, kernels(instruction))
    rows = np.zeros((3, N), coordinates.dtype)
    rows[: coordinates.shape[1]] = coordinates.T
    more = np.zeros((8, N), np.float32)
    if extra is not None:
        more[: len(extra)] = extra
    out = np.zeros((N, 4), np.uint32)
    which = np.zeros(N, np.uint32) if layers is None else layers.astype(np.uint32)
    code.launch("f", N // 64, 64, descriptor, rows, which, more, out)
    return out


def same(bits: Array, want: Array, texels: Array, sampler: Sampler, tolerance: float = 0) -> None:
    if model.yields_floats(texels, sampler):
        got = bits.view(np.float32)
        assert np.allclose(got, want, rtol=1e-6, atol=max(1e-6, tolerance)), np.abs(got - want).max()
    else:
        assert (bits.view(np.int32).astype(np.int64) == want.astype(np.int64).astype(np.uint32).view(np.int32)).all()


def texels_of(rng: np.random.Generator, kind: str, dtype: str, channels: int) -> Array:
    depth, height, width = {"1d": (1, 1, 13), "2d": (1, 7, 13), "3d": (5, 7, 13), "cube": (6, 8, 8)}.get(kind, (12, 8, 8) if kind == "acube" else (4, 7, 13))
    height = 1 if kind == "a1d" else height
    shape = (depth, height, width, channels)
    if dtype.startswith("float"):
        return rng.uniform(-4, 4, shape).astype(dtype)
    kinds = np.iinfo(dtype)
    return rng.integers(kinds.min, kinds.max, shape, endpoint=True).astype(dtype)


def coordinates_of(rng: np.random.Generator, kind: str, texels: Array, sampler: Sampler) -> Array:
    """Inside and outside. On a grid of 1/64 of a texel and off the halves, so that no rounding on the way decides anything."""
    if kind.endswith("cube"):
        return rng.uniform(-1, 1, (N, 3)).astype(np.float32)
    sizes = np.array(texels.shape[2::-1])[: COORDINATES[kind]]
    grid = rng.integers(-64 * 30, 64 * 40, (N, len(sizes))) / 64 + 1 / 256
    return (grid / sizes if sampler.normalized else grid).astype(np.float32)


def layers_of(rng: np.random.Generator, kind: str) -> Array | None:
    return rng.integers(0, 7, N).astype(np.uint32) if kind in ("a1d", "a2d", "acube") else None


@pytest.mark.parametrize("kind", COORDINATES)
@pytest.mark.parametrize("dtype", FORMATS)
def test_formats(kind: str, dtype: str) -> None:
    rng = np.random.default_rng(1)
    for channels in (1, 2, 4):
        texels = texels_of(rng, kind, dtype, channels)
        for integers in (False, True):
            sampler = Sampler(modes=("clamp", "border", "clamp"), integers=integers, border=(3, 1, 2, 5))
            at, layers = coordinates_of(rng, kind, texels, sampler), layers_of(rng, kind)
            descriptor, _ = kept = texture([texels], kind, sampler)
            got = run(text(FETCH, kind, type=TYPES[np.dtype(dtype).kind]), descriptor, at, layers)
            same(got, model.fetch(texels, kind, at, sampler, layers), texels, sampler)
            assert kept


@pytest.mark.parametrize("kind", COORDINATES)
@pytest.mark.parametrize("normalized", [False, True])
def test_modes_and_filters(kind: str, normalized: bool) -> None:
    rng = np.random.default_rng(2)
    texels = texels_of(rng, kind, "float32", 4)
    for k, mode in enumerate(MODES):
        for linear in (False, True):
            modes = (mode, MODES[(k + 1) % 4], MODES[(k + 2) % 4])
            sampler = Sampler(modes=modes, linear=linear, normalized=normalized, border=(1, 2, 3, 4))
            at, layers = coordinates_of(rng, kind, texels, sampler), layers_of(rng, kind)
            descriptor, _ = kept = texture([texels], kind, sampler)
            got = run(text(FETCH_RESIDENT, kind), descriptor, at, layers)
            # A rounding on the way to a normalized coordinate may move a weight by 1/256: of texels up to 8 apart.
            moved = 3 * 8 / 256 if linear and (normalized or kind.endswith("cube")) else 0
            want = model.fetch(texels, kind, at, sampler, layers)
            same(got, want, texels, sampler, moved)
            assert (np.abs(got.view(np.float32) - want) > 1e-5).any(axis=1).sum() < N / 5
            assert kept


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16", "float16"])
def test_promoted_numbers_are_filtered(dtype: str) -> None:
    rng = np.random.default_rng(3)
    texels = texels_of(rng, "2d", dtype, 4)
    for srgb in (False, True):
        sampler = Sampler(linear=True, srgb=srgb and dtype == "uint8")
        at = coordinates_of(rng, "2d", texels, sampler)
        descriptor, _ = kept = texture([texels], "2d", sampler)
        got = run(text(FETCH, "2d", type="f32"), descriptor, at)
        same(got, model.fetch(texels, "2d", at, sampler), texels, sampler)
        assert kept


@pytest.mark.parametrize("kind", ["1d", "2d", "3d", "a2d"])
def test_numbers_of_texels(kind: str) -> None:
    rng = np.random.default_rng(4)
    texels, sampler = texels_of(rng, kind, "int32", 2), Sampler(modes=("border", "clamp", "border"), integers=True, border=(7, 8, 0, 0))
    at, layers = rng.integers(-4, 18, (N, COORDINATES[kind])).astype(np.int32), layers_of(rng, kind)
    descriptor, _ = kept = texture([texels], kind, sampler)
    got = run(text(FETCH_TEXEL, kind), descriptor, at, layers)
    same(got, model.fetch(texels, kind, at, sampler, layers), texels, sampler)
    assert kept


def mipmap(rng: np.random.Generator, kind: str) -> list[Array]:
    base, layered = texels_of(rng, kind, "float32", 4), kind in LAYERED
    depth, height, width, _ = base.shape
    shapes = [(depth if layered else max(1, depth >> n), max(1, height >> n), max(1, width >> n), 4) for n in range(4)]
    return [rng.uniform(-4, 4, shape).astype(np.float32) for shape in shapes]


@pytest.mark.parametrize("kind", COORDINATES)
def test_levels_of_detail(kind: str) -> None:
    rng = np.random.default_rng(5)
    levels = mipmap(rng, kind)
    for mip_linear in (False, True):
        sampler = Sampler(normalized=True, linear=True, mip_linear=mip_linear, mip_bias=0.25, mip_min=0.5, mip_max=2.75)
        at, layers = coordinates_of(rng, kind, levels[0], sampler), layers_of(rng, kind)
        lods = (rng.integers(-64, 64 * 5, N) / 64 + 1 / 1024).astype(np.float32)
        descriptor, _ = kept = texture(levels, kind, sampler)
        got = run(text(FETCH_LEVEL, kind), descriptor, at, layers, lods[None])
        same(got, model.fetch_level(levels, kind, at, lods, sampler, layers), levels[0], sampler, 4 * 8 / 256)
        base = run(text(FETCH_BASE, kind), descriptor, at, layers)
        same(base, model.fetch_level(levels, kind, at, np.zeros(N, np.float32), sampler, layers), levels[0], sampler, 4 * 8 / 256)
        assert kept


def test_gradients_choose_the_level() -> None:
    rng = np.random.default_rng(6)
    levels, sampler = mipmap(rng, "2d"), Sampler(normalized=True, mip_max=8)
    at = coordinates_of(rng, "2d", levels[0], sampler)
    steps = np.exp2(rng.integers(0, 4, N) + 0.25).astype(np.float32)  # texels from one pixel to the next, along x or along y
    flat = np.zeros(N, np.float32)
    lods = np.log2(steps)
    descriptor, _ = kept = texture(levels, "2d", sampler)
    height, width = levels[0].shape[1:3]
    for extra in ([steps / width, flat, flat, flat], [flat, flat, flat, steps / height]):
        got = run(text(FETCH_GRADIENT, "2d"), descriptor, at, None, np.array(extra, np.float32))
        same(got, model.fetch_level(levels, "2d", at, lods, sampler), levels[0], sampler)
    assert kept


@pytest.mark.parametrize("kind", ["2d", "a2d"])
def test_gather(kind: str) -> None:
    rng = np.random.default_rng(7)
    for dtype, channels in (("float32", 4), ("uint8", 2), ("int32", 1), ("uint32", 4)):
        texels = texels_of(rng, kind, dtype, channels)
        for k, component in enumerate("rgba"[:channels]):
            sampler = Sampler(modes=("clamp", "border", "clamp"), border=(1, 2, 3, 4))
            at, layers = coordinates_of(rng, kind, texels, sampler), layers_of(rng, kind)
            descriptor, _ = kept = texture([texels], kind, sampler)
            got = run(text(GATHER, kind, component=component, type=TYPES[np.dtype(dtype).kind]), descriptor, at, layers)
            same(got, model.gather(texels, at, k, sampler, kind, layers), texels, sampler)
            assert kept


def test_attributes() -> None:
    texels, at = np.zeros((5, 7, 13, 2), np.float32), np.zeros((N, 1), np.float32)
    descriptor, _ = kept = texture([texels], "a2d", Sampler(normalized=True))
    four = " txq.width.b32 %d0, [%t]; txq.height.b32 %d1, [%t]; txq.array_size.b32 %d2, [%t]; txq.normalized_coords.b32 %d3, [%t];"
    assert (run(four, descriptor, at) == [13, 7, 5, 1]).all() and kept
    descriptor, _ = kept = texture(mipmap(np.random.default_rng(11), "3d"), "3d")
    four = " txq.depth.b32 %d0, [%t]; txq.num_mipmap_levels.b32 %d1, [%t]; txq.array_size.b32 %d2, [%t]; txq.normalized_coords.b32 %d3, [%t];"
    assert (run(four, descriptor, at) == [5, 4, 0, 0]).all() and kept
    descriptor, _ = kept = texture([texels], "3d", surface=True)
    four = " suq.width.b32 %d0, [%t]; suq.height.b32 %d1, [%t]; suq.depth.b32 %d2, [%t]; suq.array_size.b32 %d3, [%t];"
    assert (run(four, descriptor, at) == [13, 7, 5, 0]).all() and kept


# ---- surfaces


@pytest.mark.parametrize("kind", SURFACES)
@pytest.mark.parametrize("mode", ["zero", "clamp"])
def test_surfaces(kind: str, mode: str) -> None:
    rng = np.random.default_rng(8)
    texels = texels_of(rng, kind, "int32", 2)
    depth, height, width, _ = texels.shape
    descriptor, memory = texture([texels], kind, surface=True)
    limits = (width + 6, height + 6, depth + 6)
    at = (rng.integers(-3, limits, (N, 3))).astype(np.int32)
    layers = rng.integers(0, depth + 3, N).astype(np.uint32)
    x, y, z = at.T.astype(np.int64)
    y = y if kind in ("2d", "3d", "a2d") else 0 * y
    z = layers.astype(np.int64) if kind in ("a1d", "a2d") else z if kind == "3d" else 0 * z
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < height) & (z >= 0) & (z < depth)
    cx, cy, cz = (np.clip(v, 0, n - 1) for v, n in ((x, width), (y, height), (z, depth)))
    at[:, 0] *= 8
    got = run(text(LOAD, kind, mode=mode), descriptor, at, layers)[:, :2].view(np.int32)
    want = texels[cz, cy, cx]
    assert (got == (want if mode == "clamp" else np.where(inside[:, None], want, 0))).all()
    # What is written: to each element, a number of its own; where several write, one of them.
    extra = rng.integers(1, 1 << 30, (2, N)).astype(np.int32)
    run(text(STORE, kind, mode=mode), descriptor, at, layers, extra.view(np.float32))
    now = memory.view(np.int32).reshape(texels.shape)
    written = np.zeros(texels.shape[:3], bool)
    for k in np.flatnonzero(inside if mode == "zero" else np.ones(N, bool)):
        written[cz[k], cy[k], cx[k]] = True
    assert (now[~written] == texels[~written]).all()
    pairs = {tuple(e) for e in extra.T.tolist()}
    assert all(tuple(e) in pairs for e in now[written].tolist())


@pytest.mark.parametrize("bits,dtype", [(8, np.uint8), (16, np.uint16), (64, np.uint64)])
def test_surface_widths(bits: int, dtype: Any) -> None:
    rng = np.random.default_rng(9)
    wide = bits // 8
    texels = rng.integers(0, 1 << 32, (1, 1, 2 * N, 1), np.uint64).astype(np.uint32) if bits == 64 else rng.integers(0, 255, (1, 1, N, wide)).astype(np.uint8)
    descriptor, memory = texture([texels], "1d", surface=True)
    at = (np.arange(N)[::-1] * wide).astype(np.int32)[:, None]
    register = ".reg .b64 %w; " if bits == 64 else f".reg .b{max(bits, 16)} %w; "
    out = "mov.b64 {%d0, %d1}, %w;" if bits == 64 else "cvt.u32.u16 %d0, %w; mov.u32 %d1, 0;"
    load, store = (text(t, bits=bits, register=max(bits, 16)) for t in (WIDE_LOAD, WIDE_STORE))
    got = run(f"{register}{load} {out}", descriptor, at)
    values = memory.view(dtype)[::-1]
    assert (np.ascontiguousarray(got[:, :2]).view(np.uint64)[:, 0] == values).all()
    run(register + load + store, descriptor, at)
    assert (memory.view(dtype) == np.invert(np.frombuffer(texels.tobytes(), dtype))).all()


def test_four_words_at_a_time() -> None:
    rng = np.random.default_rng(10)
    texels = rng.integers(0, 1 << 30, (1, 1, 2 * N, 4)).astype(np.int32)
    descriptor, memory = texture([texels], "1d", surface=True)
    at = (np.arange(N)[:, None] + [0, N]) * 16
    got = run(text(MOVE), descriptor, at.astype(np.int32)).view(np.int32)
    assert (got == texels[0, 0, :N]).all()
    assert (memory.view(np.int32).reshape(2, N, 4) == texels[0, 0, :N]).all()


@pytest.mark.parametrize("kind", SURFACES)
@pytest.mark.parametrize(("operation", "type", "start", "want"), REDUCTIONS)
def test_surface_reductions(operation: str, type: str, start: int, want: int, kind: str) -> None:
    wide = type.endswith("64")
    texels = np.full((3 if kind in ("3d", "a1d", "a2d") else 1, 1 if kind.endswith("1d") else 4, 4, 2 if wide else 1), start, np.int32)
    number: Any = np.int64 if wide else np.int32
    descriptor, memory = texture([texels], kind, surface=True)
    memory.view(number)[:] = start
    x, y, z = 2, 1, 1
    at = np.tile(np.array([[x * (8 if wide else 4), y, z]], np.int32), (N, 1))
    value = -3 if operation in ("min", "max") else 3
    extra = np.full((1, N), value, np.int32).view(np.float32)
    widened = ".reg .b64 %w; cvt.s64.s32 %w, %e0; " if wide else ""
    run(widened + text(REDUCE, kind, operation=operation, type=type, value="%w" if wide else "%e0"), descriptor, at, np.ones(N, np.uint32), extra)
    now = memory.view(number).reshape(texels.shape[:3])
    place = (z if kind in ("3d", "a1d", "a2d") else 0, 0 if kind.endswith("1d") else y, x)
    assert now[place] == np.array(want & 0xFFFFFFFFFFFFFFFF, np.uint64).astype(np.uint64 if wide else np.uint32).view(number)
    now[place] = start
    assert (now == start).all()


@pytest.mark.parametrize(("instruction", "why"), [
    ("suld.b.2d.b32.trap {%d0}, [%t, {%x, %y}];", "outside"), ("sust.b.2d.b32.trap [%t, {%x, %y}], {%e0};", "outside"),
    ("tex.2d.v4.f32.f32 {%d0, %d1, %d2, %d3}, [%t, {%x, %y}];", "no texture"),
])  # fmt: skip
def test_what_is_wrong_ends_the_grid(instruction: str, why: str) -> None:
    descriptor, _ = kept = texture([np.zeros((1, 4, 4, 1), np.float32)], "2d", surface=True)
    with pytest.raises(LaunchError, match=why) as error:
        run(instruction, descriptor, np.full((N, 2), 64, np.int32))
    assert error.value.code == 700 and kept


def test_a_surface_that_is_not_aligned_ends_the_grid() -> None:
    descriptor, _ = kept = texture([np.zeros((1, 4, 4, 1), np.float32)], "2d", surface=True)
    with pytest.raises(LaunchError, match="not aligned"):
        run("suld.b.2d.b32.zero {%d0}, [%t, {%x, %y}];", descriptor, np.full((N, 2), 2, np.int32))
    assert kept


def test_a_guard_keeps_lanes_out() -> None:
    sampler = replace(Sampler(), normalized=False)
    descriptor, _ = kept = texture([np.arange(16, dtype=np.float32).reshape(1, 4, 4, 1)], "2d", sampler)
    at = np.tile(np.array([[1.5, 2.5]], np.float32), (N, 1))
    guarded = """.reg .pred %q; and.b32 %e7, %i, 1; setp.eq.u32 %q, %e7, 0; mov.u32 %d0, 0; mov.u32 %d1, 0; mov.u32 %d2, 0; mov.u32 %d3, 0;
    @!%q mov.u64 %t, 8; @%q tex.2d.v4.f32.f32 {%d0, %d1, %d2, %d3}, [%t, {%x, %y}];"""
    got = run(guarded, descriptor, at).view(np.float32)
    assert (got[::2, 0] == 9).all() and (got[1::2] == 0).all() and kept
