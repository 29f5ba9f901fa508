"""References to textures and surfaces (.texref, .surfref) that instructions name: the descriptor is what the backend writes to the reference."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from soft import texture_model as model
from soft.kernels import Kernels, LaunchError
from soft.ops.test_ops_texture import COORDINATES, MODES, TYPES, N, coordinates_of, layers_of, same, texels_of, text, texture
from soft.ops.test_ops_texture import FETCH as FETCH_BY_HANDLE
from soft.texture_model import Sampler

from gpuvirt.soft.errors import SoftError, Unsupported
from gpuvirt.soft.ptx import metadata
from gpuvirt.soft.ptx.linker import Input, link
from gpuvirt.soft.ptx.module import Module

HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n"
KERNEL = """.visible .entry f(.param .u64 coordinates, .param .u64 layers, .param .u64 out) {{
.reg .b32 %i, %x, %y, %z, %l, %d<4>; .reg .b64 %t, %c, %o, %n;
mov.u32 %i, %ctaid.x; mov.u32 %x, %ntid.x; mov.u32 %y, %tid.x; mad.lo.u32 %i, %i, %x, %y;
ld.param.u64 %c, [coordinates]; mul.wide.u32 %n, %i, 4; add.u64 %c, %c, %n;
ld.global.b32 %x, [%c]; ld.global.b32 %y, [%c+{second}]; ld.global.b32 %z, [%c+{third}];
ld.param.u64 %c, [layers]; add.u64 %c, %c, %n; ld.global.b32 %l, [%c];
{instruction}
ld.param.u64 %o, [out]; mul.wide.u32 %n, %i, 16; add.u64 %o, %o, %n;
st.global.v4.b32 [%o], {{%d0, %d1, %d2, %d3}};
ret; }}"""
DECLARED = {"variable": ".global .texref picture;", "older": ".tex .u64 picture;", "visible": ".visible .global .texref picture;"}


def kernels(instruction: str, declared: str = ".global .texref picture;\n.global .surfref canvas;\n") -> Kernels:
    return Kernels(HEAD + declared + KERNEL.format(second=4 * N, third=8 * N, instruction=instruction))


def bind(loaded: Kernels, name: str, descriptor: model.Array) -> None:
    ctypes.memmove(loaded.addresses[name], descriptor.ctypes.data, 128)


def fetched(loaded: Kernels, at: model.Array, layers: model.Array | None) -> model.Array:
    rows = np.zeros((3, N), at.dtype)
    rows[: at.shape[1]] = at.T
    out = np.zeros((N, 4), np.uint32)
    loaded.launch("f", N // 64, 64, rows, np.zeros(N, np.uint32) if layers is None else layers, out)
    return out


@pytest.mark.parametrize("kind", COORDINATES)
@pytest.mark.parametrize("dtype", ["uint8", "int16", "float16", "float32"])
def test_textures_by_name(kind: str, dtype: str) -> None:
    rng = np.random.default_rng(1)
    loaded = kernels(text(FETCH_BY_HANDLE, kind, type=TYPES[np.dtype(dtype).kind]).replace("[%t,", "[picture,"))
    for k, mode in enumerate(MODES):
        texels = texels_of(rng, kind, dtype, (1, 2, 4, 4)[k])
        sampler = Sampler(modes=(mode, MODES[(k + 1) % 4], mode), integers=dtype in ("uint8", "int16"), normalized=k % 2 == 0, border=(3, 1, 2, 5))
        at, layers = coordinates_of(rng, kind, texels, sampler), layers_of(rng, kind)
        descriptor, _ = kept = texture([texels], kind, sampler)
        bind(loaded, "picture", descriptor)  # anew: the same code reads another texture
        same(fetched(loaded, at, layers), model.fetch(texels, kind, at, sampler, layers), texels, sampler)
        assert kept


@pytest.mark.parametrize("how", DECLARED)
def test_declarations(how: str) -> None:
    rng = np.random.default_rng(2)
    loaded = kernels("tex.1d.v4.f32.s32 {%d0, %d1, %d2, %d3}, [picture, {%x}];", DECLARED[how])
    texels, sampler = texels_of(rng, "1d", "float32", 4), Sampler(modes=("border",) * 3, border=(7, 8, 9, 1))
    at = rng.integers(-4, 18, (N, 1)).astype(np.int32)
    descriptor, _ = kept = texture([texels], "1d", sampler)
    bind(loaded, "picture", descriptor)
    want = model.fetch(texels, "1d", at.astype(np.float32) + np.float32(0.5), sampler, None)
    same(fetched(loaded, at, None), want, texels, sampler)
    assert kept


def test_a_reference_s_address_is_a_handle() -> None:
    """Indirect access: a register has the address of the variable, generic or global."""
    rng = np.random.default_rng(3)
    loaded = kernels("mov.u64 %t, picture; tex.2d.v4.f32.f32 {%d0, %d1, %d2, %d3}, [%t, {%x, %y}];")
    texels, sampler = texels_of(rng, "2d", "float32", 4), Sampler()
    at = coordinates_of(rng, "2d", texels, sampler)
    descriptor, _ = kept = texture([texels], "2d", sampler)
    bind(loaded, "picture", descriptor)
    same(fetched(loaded, at, None), model.fetch(texels, "2d", at, sampler, None), texels, sampler)
    assert kept


def test_attributes_and_surfaces_by_name() -> None:
    loaded = kernels(
        "txq.width.b32 %d0, [picture]; txq.height.b32 %d1, [picture]; suq.width.b32 %d2, [canvas];"
        "suld.b.2d.b32.zero {%d3}, [canvas, {%x, %y}]; not.b32 %d3, %d3; sust.b.2d.b32.zero [canvas, {%x, %y}], {%d3};"
    )
    rng = np.random.default_rng(4)
    picture, drawn = texels_of(rng, "2d", "uint8", 2), np.arange(N, dtype=np.uint32).reshape(1, 8, N // 8, 1)
    for name, kept in (("picture", texture([picture], "2d")), ("canvas", texture([drawn], "2d", surface=True))):
        bind(loaded, name, kept[0])
        canvas = kept[1]
        assert kept
    at = np.stack([np.arange(N) % (N // 8) * 4, np.arange(N) // (N // 8)], 1).astype(np.int32)
    keep = texture([picture], "2d")
    bind(loaded, "picture", keep[0])
    got = fetched(loaded, at, None)
    assert (got[:, :3] == (13, 7, N // 8)).all()
    assert (got[:, 3] == ~np.arange(N, dtype=np.uint32)).all() and (canvas.view(np.uint32) == ~np.arange(N, dtype=np.uint32)).all()


def test_a_texture_is_no_surface_and_nothing_bound_is_an_error() -> None:
    loaded = kernels("tex.1d.v4.f32.s32 {%d0, %d1, %d2, %d3}, [picture, {%x}];")
    at = np.zeros((N, 1), np.int32)
    with pytest.raises(LaunchError, match="no texture"):
        fetched(loaded, at, None)
    kept = texture([np.ones((1, 1, 4, 1), np.float32)], "1d", surface=True)
    bind(loaded, "picture", kept[0])
    with pytest.raises(LaunchError, match="no texture"):
        fetched(loaded, at, None)


def test_metadata_tell_references_from_variables() -> None:
    module = Module(HEAD + ".global .texref picture;\n.global .u32 word;\n.global .surfref canvas;\n.global .samplerref smooth;\n")
    blob = metadata.pack(module)
    flags = [metadata._GLOBAL.unpack_from(blob, 32 + i * metadata._GLOBAL.size)[1] for i in range(4)]
    assert flags == [metadata.GLOBAL_TEXTURE, 0, metadata.GLOBAL_SURFACE, 0]
    assert [v.size for v in module.globals] == [128, 4, 128, 128]


def test_linked_modules_share_a_reference() -> None:
    one = HEAD + ".visible .global .texref picture;\n"
    other = HEAD + ".extern .global .texref picture;\n" + KERNEL.format(
        second=4 * N, third=8 * N, instruction="tex.1d.v4.f32.s32 {%d0, %d1, %d2, %d3}, [picture, {%x}];"
    )
    loaded = Kernels(link([Input(1, "one", one.encode()), Input(1, "other", other.encode())]))
    kept = texture([np.full((1, 1, 4, 1), 5, np.float32)], "1d")
    bind(loaded, "picture", kept[0])
    assert (fetched(loaded, np.zeros((N, 1), np.int32), None).view(np.float32)[:, 0] == 5).all()


@pytest.mark.parametrize(
    ("declared", "instruction", "what"),
    [
        (".global .texref picture = { filter_mode = linear };", "tex.1d.v4.f32.s32 {%d0, %d1, %d2, %d3}, [picture, {%x}];", "initialiser"),
        (".global .texref picture; .global .samplerref s;", "tex.1d.v4.f32.s32 {%d0, %d1, %d2, %d3}, [picture, s, {%x}];", "sampler of its own"),
    ],
)
def test_what_is_not_supported_is_named(declared: str, instruction: str, what: str) -> None:
    with pytest.raises(SoftError, match=what):
        fetched(kernels(instruction, declared), np.zeros((N, 1), np.int32), None)


def test_references_are_no_arrays() -> None:
    with pytest.raises(Unsupported, match="arrays"):
        Module(HEAD + ".global .texref pictures[4];\n")
