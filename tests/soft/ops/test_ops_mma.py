"""Matrix instructions of every shape and type of elements, against NumPy: fragments as PTX lays them out, numbers whose products are exact."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from soft.kernels import Kernels
from soft.ops.test_ops_convert import SMALL, values_of
from soft.ptx_op import tiers

pytestmark = pytest.mark.sampled(5)

rng = np.random.default_rng(21)
HEAD = ".version 8.8\n.target sm_120a\n.address_size 64\n"


class Mma(NamedTuple):
    """mma.sync.aligned[.kind].SHAPE.row.col.D.A.B.C[.op]"""

    shape: str
    d: str
    a: str
    b: str
    kind: str = ""
    op: str = ""

    @property
    def text(self) -> str:
        m, n, k = self.sizes
        count = {"d": m * n, "a": m * k, "b": n * k}
        d, a, b = ("{" + ", ".join(f"%{p}{i}" for i in range(max(1, count[p] * bits_of(t) // (32 * max(32, bits_of(t)))))) + "}"
                   for p, t in (("d", self.d), ("a", self.a), ("b", self.b)))  # fmt: skip
        satfinite = ".satfinite" if self.op == "satfinite" else ""
        popc = f".{self.op}.popc" if self.op in ("and", "xor") else ""
        return f"mma.sync.aligned{self.kind}.{self.shape}.row.col{satfinite}.{self.d}.{self.a}.{self.b}.{self.d}{popc} {d}, {a}, {b}, {d};"

    @property
    def sizes(self) -> tuple[int, int, int]:
        m, _, rest = self.shape[1:].partition("n")
        n, _, k = rest.partition("k")
        return int(m), int(n), int(k)


def bits_of(kind: str) -> int:
    return {"f64": 64, "f32": 32, "tf32": 32, "s32": 32, "f16": 16, "bf16": 16, "s4": 4, "u4": 4, "b1": 1}.get(kind, 8)


ALL = [
    *(Mma(s, "f64", "f64", "f64") for s in ("m8n8k4", "m16n8k4", "m16n8k8", "m16n8k16")), *(Mma(s, "f32", "tf32", "tf32") for s in ("m16n8k4", "m16n8k8")),
    *(Mma(s, d, "f16", "f16") for s in ("m16n8k8", "m16n8k16") for d in ("f32", "f16")), *(Mma(s, "f32", "bf16", "bf16") for s in ("m16n8k8", "m16n8k16")),
    *(Mma(s, "s32", a, b) for s in ("m8n8k16", "m16n8k16", "m16n8k32") for a, b in (("s8", "s8"), ("u8", "s8"), ("u8", "u8"))),
    Mma("m16n8k32", "s32", "s8", "u8", op="satfinite"),
    *(Mma(s, "s32", a, b) for s in ("m8n8k32", "m16n8k32", "m16n8k64") for a, b in (("s4", "s4"), ("u4", "s4"), ("u4", "u4"))),
    *(Mma(s, "s32", "b1", "b1", op=o) for s in ("m8n8k128", "m16n8k128", "m16n8k256") for o in ("and", "xor")),
    *(Mma("m16n8k32", d, a, b) for a, b in (("e4m3", "e4m3"), ("e5m2", "e4m3"), ("e5m2", "e5m2")) for d in ("f32", "f16")),
    *(Mma("m16n8k32", "f32", a, b, ".kind::f8f6f4") for a, b in (("e2m1", "e2m3"), ("e3m2", "e2m1"), ("e2m3", "e4m3"), ("e3m2", "e3m2"))),
]  # fmt: skip
CASES = ALL


def numbers(kind: str, shape: tuple[int, int]) -> tuple[Any, Any]:
    """(values as float64 or int64, codes as unsigned integers of the element's own width)."""
    if kind in ("s8", "u8", "s4", "u4", "b1"):
        bits = bits_of(kind)
        codes = rng.integers(0, 1 << bits, shape, np.uint32)
        values = codes.astype(np.int64)
        return np.where(values >> (bits - 1) & 1, values - (1 << bits), values) if kind[0] == "s" else values, codes
    if kind in SMALL:
        table = values_of(kind)
        sound = np.flatnonzero(np.isfinite(table) & (np.abs(table) <= 16) & (np.abs(table) >= (2.0**-3 if kind[1] in "45" else 0)))
        codes = rng.choice(sound, shape).astype(np.uint32)
        return table[codes], codes << 2 if kind == "e2m1" else codes
    values = rng.integers(-32, 33, shape) / 8
    if kind == "f64":
        return values, values.astype(np.float64).view(np.uint64)
    if kind == "f16":
        return values, values.astype(np.float16).view(np.uint16).astype(np.uint32)
    single = values.astype(np.float32).view(np.uint32)
    return values, single >> 16 if kind == "bf16" else single | rng.integers(0, 1 << 13, shape, np.uint32) * (kind == "tf32")


def packed(codes: Any, kind: str) -> Any:
    """Codes (..., registers, elements) as registers."""
    bits = bits_of(kind)
    if bits >= 32:
        return codes[..., 0]
    return (codes.astype(np.uint64) << np.arange(32 // bits, dtype=np.uint64) * np.uint64(bits)).sum(-1).astype(np.uint32)


def fragment(codes: Any, kind: str, is_b: bool) -> Any:
    """What each lane holds of A (rows) or B (its columns as rows), by PTX's tables."""
    rows, k = codes.shape
    per = max(1, 32 // bits_of(kind))
    high = 1 if is_b else rows // 8
    count = rows * k // 32 // per
    out = np.zeros((32, count, per), codes.dtype)
    for lane in range(32):
        for i in range(count):
            column = i // high * 4 * per + lane % 4 * per
            out[lane, i] = codes[lane // 4 + 8 * (i % high), column : column + per]
    return packed(out, kind)


def kernel(case: Mma, counts: tuple[int, int, int]) -> str:
    wide = case.d == "f64"
    size, register = (8, "b64") if wide else (4, "b32")
    lines = [f"{HEAD}.visible .entry k(.param .u64 a, .param .u64 b, .param .u64 d) {{ .reg .b32 %r0; .reg .b64 %q<5>; mov.u32 %r0, %tid.x;"]
    lines.append(f".reg .{register} %a<9>, %b<9>, %d<9>;")
    for name, count in zip("abd", counts, strict=True):
        lines.append(f"ld.param.u64 %q0, [{name}]; mad.wide.u32 %q{'abd'.index(name) + 1}, %r0, {count * size}, %q0;")
        lines += [f"ld.global.{register} %{name}{i}, [%q{'abd'.index(name) + 1}+{i * size}];" for i in range(count)]
    lines.append(case.text)
    lines += [f"st.global.{register} [%q3+{i * size}], %d{i};" for i in range(counts[2])]
    return "\n".join([*lines, "ret; }"])


@pytest.mark.parametrize("case", tiers(ALL))
def test_mma(case: Mma) -> None:
    m, n, k = case.sizes
    x, a = numbers(case.a, (m, k))
    y, b = numbers(case.b, (n, k))
    fa, fb = fragment(a, case.a, False), fragment(b, case.b, True)
    word = np.uint64 if case.d == "f64" else np.uint32
    fa, fb = np.ascontiguousarray(fa.astype(word)), np.ascontiguousarray(fb.astype(word))
    want = (x[:, None, :] ^ y[None, :, :]).sum(-1) if case.op == "xor" else x @ y.T
    start = rng.integers(-100, 100, (m, n)) / (1 if case.d == "s32" else 4)
    if case.op == "satfinite":
        start = np.where(start < 0, -(2.0**31) + 1000, 2.0**31 - 1000)
    want = want + start
    if case.op == "satfinite":
        want = np.clip(want, -(1 << 31), (1 << 31) - 1)
    dtype = {"f64": np.float64, "f32": np.float32, "f16": np.float16, "s32": np.int32}[case.d]
    out = np.zeros((32, m // 8 * 2), dtype)
    places = [(lane // 4 + 8 * (i // 2), lane % 4 * 2 + i % 2) for lane in range(32) for i in range(out.shape[1])]
    out[...] = np.array([start[p] for p in places]).astype(dtype).reshape(out.shape)
    Kernels(kernel(case, (fa.shape[1], fb.shape[1], out.nbytes // 32 // word().itemsize))).launch("k", 1, 32, fa, fb, out)
    expected = np.array([want[p] for p in places]).astype(dtype).reshape(out.shape)
    if case.op == "satfinite":  # the order of the sums decides where they saturate: at the ends they agree
        assert np.array_equal(np.sign(out), np.sign(expected)) and (np.abs(out.astype(np.int64) - expected) <= 255 * 128 * 32).all()
    else:
        assert np.array_equal(out, expected)


def moves(count: int, trans: str) -> str:
    registers = ", ".join(f"%d{i}" for i in range(count))
    return f"""{HEAD}.visible .entry k(.param .u64 x, .param .u64 y, .param .u64 z) {{ .reg .b32 %r<9>, %d<5>; .reg .b64 %q<5>; .shared .align 16 .b8 sm[512];
    mov.u32 %r0, %tid.x; mov.u32 %r1, sm; shl.b32 %r2, %r0, 4; add.u32 %r2, %r2, %r1; ld.param.u64 %q0, [x]; mad.wide.u32 %q0, %r0, 16, %q0;
    ld.global.v4.u32 {{%d0, %d1, %d2, %d3}}, [%q0]; st.shared.v4.u32 [%r2], {{%d0, %d1, %d2, %d3}}; bar.warp.sync -1;
    ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {{{registers}}}, [%r2]; ld.param.u64 %q1, [y]; mad.wide.u32 %q1, %r0, {4 * count}, %q1;
    {" ".join(f"st.global.u32 [%q1+{4 * i}], %d{i};" for i in range(count))}
    {" ".join(f"movmatrix.sync.aligned.m8n8.trans.b16 %d{i}, %d{i};" for i in range(count))}
    bar.warp.sync -1; stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 [%r2], {{{registers}}}; bar.warp.sync -1;
    ld.shared.v4.u32 {{%d0, %d1, %d2, %d3}}, [%r2]; ld.param.u64 %q2, [z]; mad.wide.u32 %q2, %r0, 16, %q2; st.global.v4.u32 [%q2], {{%d0, %d1, %d2, %d3}}; ret; }}"""


@pytest.mark.parametrize("trans", ["", ".trans"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_matrices_move_to_and_from_shared_memory(count: int, trans: str) -> None:
    x = rng.integers(0, 1 << 16, (4, 8, 8), np.uint16)
    y, z = np.zeros((32, count, 2), np.uint16), np.zeros((4, 8, 8), np.uint16)
    Kernels(moves(count, trans)).launch("k", 1, 32, x, y, z)
    turned = x.transpose(0, 2, 1) if trans else x
    assert np.array_equal(y.transpose(1, 0, 2), turned[:count].reshape(count, 32, 2))
    assert np.array_equal(z[:count], x[:count].transpose(0, 2, 1)) and np.array_equal(z[count:], x[count:])


# wmma's fragments have no layout that a program may know: what is loaded, multiplied and stored again must be right, in both orders of every matrix.

WMMA = [
    ("m16n16k16", "f16", "f32"), ("m32n8k16", "f16", "f16"), ("m8n32k16", "bf16", "f32"), ("m16n16k8", "tf32", "f32"), ("m8n8k4", "f64", "f64"),
    ("m16n16k16", "s8", "s32"), ("m32n8k16", "u8", "s32"),
]  # fmt: skip


def wmma(shape: str, kind: str, d: str, la: str, lb: str, space: str = "global") -> str:
    m, _, rest = shape[1:].partition("n")
    n, _, k = rest.partition("k")
    sizes = {"a": int(m) * int(k), "b": int(n) * int(k), "c": int(m) * int(n)}
    fixed = {("m16n16k16", "f16"): (8, 8), ("m32n8k16", "f16"): (8, 8), ("m8n32k16", "bf16"): (2, 8), ("m16n16k8", "tf32"): (4, 4),
             ("m8n8k4", "f64"): (1, 1), ("m16n16k16", "s8"): (2, 2), ("m32n8k16", "u8"): (4, 1)}[(shape, kind)]  # fmt: skip
    wide = "b64" if d == "f64" else "b32"
    counts = {"a": fixed[0], "b": fixed[1], "c": sizes["c"] // 32 // (2 if d == "f16" else 1)}
    r = {p: "{" + ", ".join(f"%{p}{i}" for i in range(c)) + "}" for p, c in counts.items()}
    strides = {"a": k if la == "row" else m, "b": n if lb == "row" else k}
    kinds = f"{d}.{d}" if kind == "f16" else f"{d}.{kind}.{kind}.{d}"
    where, copy = {"a": "%q0", "b": "%q1", "c": "%q2", "d": "%q3"}, ""
    back = ""
    if space == "shared":  # the operands are copied there first, and the result from there
        size = {"a": sizes["a"] * bits_of(kind) // 8, "b": sizes["b"] * bits_of(kind) // 8, "c": sizes["c"] * bits_of(d) // 8}
        where = {"a": "%r1", "b": "%r2", "c": "%r3", "d": "%r3"}
        copy = f".shared .align 16 .b8 sm[{sum(size.values())}]; mov.u32 %r0, %tid.x; mov.u32 %r1, sm; add.u32 %r2, %r1, {size['a']}; add.u32 %r3, %r2, {size['b']};"
        copy += " shl.b32 %r4, %r0, 2; cvt.u64.u32 %q4, %r4;"
        for p, q in (("a", 0), ("b", 1), ("c", 2)):
            copy += f" add.u64 %q5, %q{q}, %q4; add.u32 %r5, %r{q + 1}, %r4;"
            copy += "".join(f" ld.global.u32 %r6, [%q5+{o}]; st.shared.u32 [%r5+{o}], %r6;" for o in range(0, size[p], 128))
        copy += " bar.warp.sync -1;"
        back = "bar.warp.sync -1; add.u64 %q5, %q3, %q4; add.u32 %r5, %r3, %r4;"
        back += "".join(f" ld.shared.u32 %r6, [%r5+{o}]; st.global.u32 [%q5+{o}], %r6;" for o in range(0, size["c"], 128))
    satfinite = ".satfinite" if d == "s32" else ".rn" if d == "f64" else ""
    return f"""{HEAD}.visible .entry k(.param .u64 a, .param .u64 b, .param .u64 c, .param .u64 d) {{ .reg .{wide} %a<9>, %b<9>, %c<9>; .reg .b64 %q<6>; .reg .b32 %r<7>;
    ld.param.u64 %q0, [a]; ld.param.u64 %q1, [b]; ld.param.u64 %q2, [c]; ld.param.u64 %q3, [d]; {copy}
    wmma.load.a.sync.aligned.{la}.{shape}.{space}.{kind} {r["a"]}, [{where["a"]}], {strides["a"]};
    wmma.load.b.sync.aligned.{lb}.{shape}.{space}.{kind} {r["b"]}, [{where["b"]}], {strides["b"]};
    wmma.load.c.sync.aligned.col.{shape}.{space}.{d} {r["c"]}, [{where["c"]}], {m};
    wmma.mma.sync.aligned.{la}.{lb}.{shape}{satfinite}.{kinds} {r["c"]}, {r["a"]}, {r["b"]}, {r["c"]};
    wmma.store.d.sync.aligned.row.{shape}.{space}.{d} [{where["d"]}], {r["c"]}, {n}; {back} ret; }}"""


TEXTS = [wmma(*w, "row", "col", space) for w in WMMA for space in ("global", "shared")] + [moves(n, t) for n in (1, 2, 4) for t in ("", ".trans")]


@pytest.mark.parametrize("layouts", [(a, b) for a in ("row", "col") for b in ("row", "col")], ids="-".join)
@pytest.mark.parametrize("space", ["global", "shared"])
@pytest.mark.parametrize("shape,kind,d", WMMA)
def test_wmma(shape: str, kind: str, d: str, space: str, layouts: tuple[str, str]) -> None:
    m, n, k = Mma(shape, d, kind, kind).sizes
    x, a = numbers(kind, (m, k))
    y, b = numbers(kind, (k, n))
    element = {64: np.uint64, 32: np.uint32, 16: np.uint16, 8: np.uint8}[bits_of(kind)]
    a, b = (np.ascontiguousarray((c if o == "row" else c.T).astype(element)) for c, o in ((a, layouts[0]), (b, layouts[1])))
    dtype = {"f64": np.float64, "f32": np.float32, "f16": np.float16, "s32": np.int32}[d]
    c = (rng.integers(-16, 16, (n, m))).astype(dtype)
    out = np.zeros((m, n), dtype)
    Kernels(wmma(shape, kind, d, *layouts, space)).launch("k", 1, 32, a, b, c, out)
    assert np.array_equal(out, (x @ y + c.T).astype(dtype))
