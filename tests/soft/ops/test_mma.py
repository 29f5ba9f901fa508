"""Matrix instructions, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from soft import nvrtc
from soft.kernels import Kernels

pytestmark = pytest.mark.skipif(nvrtc.library() is None, reason="needs the NVRTC wheel")
rng = np.random.default_rng(3)


def wmma_text(m: int, n: int, la: str, lb: str) -> str:
    """C = A B + 1 with wmma, in PTX."""
    shape = f"m{m}n{n}k16"
    sa, sb = 16 if la == "row" else m, n if lb == "row" else 16

    def registers(prefix: str) -> str:
        return "{" + ", ".join(f"%{prefix}{i}" for i in range(8)) + "}"

    return f""".version 8.0
.target sm_80
.address_size 64
.visible .entry f(.param .u64 a, .param .u64 b, .param .u64 c) {{
.reg .b32 %a<8>, %b<8>; .reg .f32 %c<8>; .reg .b64 %p<3>;
ld.param.u64 %p0, [a]; ld.param.u64 %p1, [b]; ld.param.u64 %p2, [c];
{" ".join(f"mov.f32 %c{i}, 0f3F800000;" for i in range(8))}
wmma.load.a.sync.aligned.{la}.{shape}.global.f16 {registers("a")}, [%p0], {sa};
wmma.load.b.sync.aligned.{lb}.{shape}.global.f16 {registers("b")}, [%p1], {sb};
wmma.mma.sync.aligned.{la}.{lb}.{shape}.f32.f32 {registers("c")}, {registers("a")}, {registers("b")}, {registers("c")};
wmma.store.d.sync.aligned.row.{shape}.global.f32 [%p2], {registers("c")}, {n};
ret; }}"""


@pytest.mark.parametrize("la,lb", [("row", "col"), ("col", "row")])
@pytest.mark.parametrize("m,n", [(16, 16), (32, 8), (8, 32)])
def test_wmma_half(m: int, n: int, la: str, lb: str) -> None:
    a, b = rng.standard_normal((m, 16)).astype(np.float16), rng.standard_normal((16, n)).astype(np.float16)
    c = np.zeros((m, n), np.float32)
    Kernels(wmma_text(m, n, la, lb)).launch(
        "f", 1, 32, np.ascontiguousarray(a if la == "row" else a.T), np.ascontiguousarray(b if lb == "row" else b.T), c
    )
    assert np.allclose(c, a.astype(np.float32) @ b.astype(np.float32) + 1, rtol=1e-5, atol=1e-5)


def _mma(shape: str, d: str, a: str, na: int, nb: int, nc: int, reg: str = "r") -> Kernels:
    """A kernel that loads fragments as they lie in memory (register after register for each lane), multiplies and stores."""
    wide = reg != "r"
    t = "double" if wide else "unsigned"
    c = "d" if wide else "r"
    out = ", ".join(f"%{i}" for i in range(nc))
    va = ", ".join(f"%{nc + i}" for i in range(na))
    vb = ", ".join(f"%{nc + na + i}" for i in range(nb))
    source = f"""extern "C" __global__ void f(const {t}* a, const {t}* b, {t}* c) {{ int l = threadIdx.x; {t} d[{nc}]; for (int i = 0; i < {nc};
        i++) d[i] = c[l * {nc} + i];
    asm volatile("mma.sync.aligned.{shape}.row.col.{d}.{a}.{a}.{d} {{{out}}}, {{{va}}}, {{{vb}}}, {{{out}}};"
    : {", ".join(f'"+{c}"(d[{i}])' for i in range(nc))} : {", ".join(f'"{c}"(a[l * {na} + {i}])' for i in range(na))},
    {", ".join(f'"{c}"(b[l * {nb} + {i}])' for i in range(nb))}); for (int i = 0; i < {nc}; i++) c[l * {nc} + i] = d[i]; }}"""
    return Kernels(nvrtc.compile_ptx(source, "compute_90"))


def fragment_a(matrix: np.ndarray, registers: int, per: int) -> np.ndarray:
    out = np.zeros((32, registers, per), matrix.dtype)
    half = 2 if matrix.shape[0] == 16 else 1
    for lane in range(32):
        for i in range(registers):
            for e in range(per):
                out[lane, i, e] = matrix[lane // 4 + 8 * (i % half), i // half * 4 * per + lane % 4 * per + e]
    return out


def fragment_b(matrix: np.ndarray, registers: int, per: int) -> np.ndarray:
    out = np.zeros((32, registers, per), matrix.dtype)
    for lane in range(32):
        for i in range(registers):
            for e in range(per):
                out[lane, i, e] = matrix[i * 4 * per + lane % 4 * per + e, lane // 4]
    return out


def unfragment_c(c: np.ndarray, m: int) -> np.ndarray:
    out = np.zeros((m, 8), c.dtype)
    for lane in range(32):
        for i in range(c.shape[1]):
            out[lane // 4 + 8 * (i // 2), lane % 4 * 2 + i % 2] = c[lane, i]
    return out


@pytest.mark.parametrize(
    "shape,a,na,nb,dtype,d",
    [
        ("m16n8k8", "tf32", 4, 2, np.float32, "f32"), ("m16n8k4", "tf32", 2, 1, np.float32, "f32"), ("m16n8k16", "f16", 4, 2, np.float16, "f32"),
        ("m16n8k8", "f16", 2, 1, np.float16, "f32"), ("m16n8k16", "s8", 2, 1, np.int8, "s32"), ("m16n8k32", "s8", 4, 2, np.int8, "s32"),
        ("m16n8k32", "u8", 4, 2, np.uint8, "s32"),
    ],
)  # fmt: skip
def test_mma(shape: str, a: str, na: int, nb: int, dtype: type, d: str) -> None:
    k = int(shape.split("k")[1])
    if np.dtype(dtype).kind == "f":
        x, y = ((rng.integers(-64, 64, s) / 8).astype(dtype) for s in ((16, k), (k, 8)))
    else:
        info = np.iinfo(dtype)
        x, y = (rng.integers(info.min, info.max, s, dtype, endpoint=True) for s in ((16, k), (k, 8)))
    per = 4 // np.dtype(dtype).itemsize
    out = np.ones((32, 4), np.float32 if d == "f32" else np.int32)
    _mma(shape, d, a, na, nb, 4).launch("f", 1, 32, fragment_a(x, na, per), fragment_b(y, nb, per), out)
    wide = np.float64 if d == "f32" else np.int64
    assert np.array_equal(unfragment_c(out, 16), x.astype(wide) @ y.astype(wide) + 1)


def test_mma_double() -> None:
    x, y = rng.standard_normal((8, 4)), rng.standard_normal((4, 8))
    out = np.zeros((32, 2))
    _mma("m8n8k4", "f64", "f64", 1, 1, 2, "d").launch("f", 1, 32, fragment_a(x, 1, 1), fragment_b(y, 1, 1), out)
    assert np.allclose(unfragment_c(out, 8), x @ y, rtol=1e-13)


@pytest.mark.parametrize("trans", ["", ".trans"])
def test_ldmatrix_and_cp_async(trans: str) -> None:
    source = (
        f"""extern "C" __global__ void f(const unsigned short* x, unsigned* o, int n) {{ __shared__ __align__(16) unsigned short s[256];
        int l = threadIdx.x;
    unsigned p = (unsigned)__cvta_generic_to_shared(s + l * 8);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(p), "l"(x + l * 8), "r"(l < n ? 16 : 6));
    asm volatile("cp.async.commit_group; cp.async.wait_group 0;" ::: "memory"); __syncwarp();
    unsigned d[4]; asm volatile("ldmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 {{%0,%1,%2,%3}}, [%4];"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) : "r"(p));
    for (int i = 0; i < 4; i++) o[i * 32 + l] = d[i]; }}"""
    )
    x = rng.integers(0, 65536, (4, 8, 8), np.uint16)
    o = np.zeros((4, 32, 2), np.uint16)
    Kernels(nvrtc.compile_ptx(source, "compute_80")).launch("f", 1, 32, x, o, np.int32(20))
    y = x.reshape(32, 8).copy()
    y[20:, 3:] = 0
    y = y.reshape(4, 8, 8)
    want = (y.transpose(0, 2, 1) if trans else y).reshape(4, 32, 2)
    assert np.array_equal(o, want)
