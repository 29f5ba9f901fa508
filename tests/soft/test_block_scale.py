"""mma with .block_scale: every kind, format and number of scales, each byte and thread that may have them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from soft.kernels import Kernels
from soft.matrices import G, T, eights, fragments, metadata, rng, thinned

HEAD = ".version 8.7\n.target sm_120a\n.address_size 64\n"


def codes(bits: int, fraction: int, bias: int) -> Any:
    """The values of all codes of a format with so many bits."""
    all_ = np.arange(1 << bits)
    exponent, part = all_ >> fraction & (1 << bits - 1 - fraction) - 1, all_ & (1 << fraction) - 1
    size = np.where(exponent == 0, part * 2.0 ** (1 - bias - fraction), (1 + part / (1 << fraction)) * 2.0 ** (exponent - bias))
    return np.where(all_ >> bits - 1, -size, size)


VALUES = {"e4m3": eights(3, 7), "e5m2": eights(2, 15), "e2m3": codes(6, 3, 1), "e3m2": codes(6, 2, 3), "e2m1": codes(4, 1, 1)}
# kind, its k, the number of scales as it is written, how many that are, their format, of which bytes they may be, formats of the elements
FORMS = [
    *(("mxf8f6f4", 32, written, 1, "ue8m0", (0, 1, 2, 3), pair)
      for written, pair in ((".scale_vec::1X", ("e4m3", "e4m3")), ("", ("e5m2", "e2m1")), (".scale_vec::1X", ("e2m3", "e3m2")), (".scale_vec::1X", ("e2m1", "e4m3")))),
    ("mxf4", 64, ".scale_vec::2X", 2, "ue8m0", (0, 2), ("e2m1", "e2m1")), ("mxf4", 64, "", 2, "ue8m0", (0, 2), ("e2m1", "e2m1")),
    ("mxf4nvf4", 64, ".scale_vec::2X", 2, "ue8m0", (0, 2), ("e2m1", "e2m1")), ("mxf4nvf4", 64, ".scale_vec::4X", 4, "ue4m3", (0,), ("e2m1", "e2m1")),
]  # fmt: skip


def text(kind: str, k: int, written: str, scales: str, a: str, b: str, numbers: tuple[str, str] = ("{%h0, %h1}", "{%h2, %h3}"), sparse: bool = False) -> str:
    """A kernel of one warp: registers of the factors and of the sums, the scales' words, and the four numbers, bytes and threads of A and B. With `sparse` the
    metadata follows the scales' words, and B has twice as many registers."""
    of_b = "{%r5, %r6, %r9, %r10}" if sparse else "{%r5, %r6}"
    return f"""{HEAD}.visible .entry k(.param .u64 a, .param .u64 b, .param .u64 s, .param .u64 d, .param .u64 n) {{
    .reg .b32 %r<12>; .reg .b16 %h<4>; .reg .f32 %d<4>; .reg .b64 %q<8>; mov.u32 %r0, %tid.x;
    ld.param.u64 %q0, [a]; ld.param.u64 %q1, [b]; ld.param.u64 %q2, [s]; ld.param.u64 %q3, [d]; ld.param.u64 %q4, [n];
    mad.wide.u32 %q0, %r0, 4, %q0; mad.wide.u32 %q1, %r0, 4, %q1; mad.wide.u32 %q2, %r0, 4, %q2; mad.wide.u32 %q3, %r0, 16, %q3;
    {" ".join(f"ld.global.b32 %r{1 + i}, [%q0+{128 * i}];" for i in range(4))} {" ".join(f"ld.global.b32 %r{r}, [%q1+{128 * i}];" for i, r in enumerate((5, 6, 9, 10)[: 2 + 2 * sparse]))}
    {"ld.global.b32 %r11, [%q2+256];" if sparse else ""}
    ld.global.b32 %r7, [%q2]; ld.global.b32 %r8, [%q2+128]; {" ".join(f"ld.global.b16 %h{i}, [%q4+{2 * i}];" for i in range(4))}
    ld.global.v4.f32 {{%d0, %d1, %d2, %d3}}, [%q3];
    mma{".sp::ordered_metadata" if sparse else ""}.sync.aligned.m16n8k{k}.row.col.kind::{kind}.block_scale{written}.f32.{a}.{b}.f32.{scales} {{%d0, %d1, %d2, %d3}},
    {{%r1, %r2, %r3, %r4}}, {of_b}, {{%d0, %d1, %d2, %d3}}, {"{%r11}, 0, " if sparse else ""}{{%r7}}, {numbers[0]}, {{%r8}}, {numbers[1]}; st.global.v4.f32 [%q3], {{%d0, %d1, %d2, %d3}}; ret; }}"""


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize(("kind", "k", "written", "count", "scales", "bytes_", "formats"), FORMS)
def test_products(kind: str, k: int, written: str, count: int, scales: str, bytes_: tuple[int, ...], formats: tuple[str, str], sparse: bool) -> None:
    """A sparse A has half of each chunk of four elements, or two pairs of eight, and scales are twice as many elements'."""
    a_kind, b_kind = formats
    bits = 4 if k == 64 else 8
    k *= 1 + sparse
    near = {name: np.flatnonzero(np.abs(v) <= 6) for name, v in VALUES.items()}
    for byte_a, thread_a, byte_b, thread_b in [(b, i % 2, bytes_[-1 - j], i) for j, b in enumerate(bytes_) for i in range(4)]:
        a, b = rng.choice(near[a_kind], (16, k // (1 + sparse))), rng.choice(near[b_kind], (8, k))
        left, right = (
            fragments(x << 2 if bits == 8 and kind_ == "e2m1" else x, bits, rows) for x, kind_, rows in ((a, a_kind, 16), (b, b_kind, 8))
        )  # 4 bits lie in their byte's middle
        some = rng.integers(120, 135, (24, count)) if scales == "ue8m0" else rng.integers(40, 80, (24, count))
        factors = 2.0 ** (some - 127) if scales == "ue8m0" else VALUES["e4m3"][some]
        words = rng.integers(0, 1 << 32, (3, 32), np.uint32)  # what is not named is not looked at
        dense = VALUES[a_kind][a]
        if sparse:
            chosen, nibbles = thinned(16, k, bits)
            words[2] = metadata(nibbles, bits, 0)
            dense = np.zeros((16, k))
            places = (np.arange(chosen.shape[1])[None, :, None] * (8 if bits == 4 else 4) + chosen).reshape(16, k // 2)
            np.put_along_axis(dense, places, VALUES[a_kind][a], 1)

        def put(which: int, lane: int, byte: int, row: Any, words: Any = words) -> None:
            for i, code in enumerate(row):
                words[which, lane] = words[which, lane] & ~np.uint32(0xFF << 8 * (byte + i)) | np.uint32(int(code) << 8 * (byte + i))

        for g in range(8):
            put(0, 4 * g + 2 * thread_a, byte_a, some[g])
            put(0, 4 * g + 2 * thread_a + 1, byte_a, some[g + 8])
            put(1, 4 * g + thread_b, byte_b, some[16 + g])
        d = rng.integers(-4, 5, (32, 4)).astype(np.float32)
        first = np.zeros((16, 8))
        for i in range(4):
            first[G + i // 2 * 8, 2 * T + i % 2] = d[:, i]
        numbers = np.array([byte_a, thread_a, byte_b, thread_b], np.uint16)
        Kernels(text(kind, k, written, scales, a_kind, b_kind, sparse=sparse)).launch("k", 1, 32, left, right, words, d, numbers)
        x = dense * np.repeat(factors[:16], k // count, 1)
        y = VALUES[b_kind][b] * np.repeat(factors[16:], k // count, 1)
        want = first + x @ y.T
        got = np.zeros((16, 8))
        for i in range(4):
            got[G + i // 2 * 8, 2 * T + i % 2] = d[:, i]
        assert np.allclose(got, want, rtol=1e-5, atol=1e-5 * np.abs(want).max()), (byte_a, thread_a, byte_b, thread_b, got, want)


def test_scales_at_the_ends_of_their_range() -> None:
    """Two scales whose product no float has, and what is not a number."""
    one = np.full((4, 32), 0x38383838, np.uint32)  # 1.0 as e4m3
    k = Kernels(text("mxf8f6f4", 32, ".scale_vec::1X", "ue8m0", "e4m3", "e4m3", ("{0, 0}", "{0, 0}")))
    for a, b, want in ((254, 0, 32.0), (0, 254, 32.0), (254, 254, np.inf), (0, 0, 0.0), (255, 127, np.nan), (127, 255, np.nan)):
        words = np.array([[a] * 32, [b] * 32], np.uint32)
        d = np.zeros((32, 4), np.float32)
        k.launch("k", 1, 32, one, one[:2].copy(), words, d, np.zeros(4, np.uint16))
        assert np.array_equal(d, np.full((32, 4), want, np.float32), equal_nan=True), (a, b, d[0])


@pytest.mark.parametrize(
    ("old", "new"),
    [("2X", "4X"), ("2X", "1X"), ("m16n8k64", "m16n8k32"), ("e2m1.e2m1", "e2m1.e4m3"), ("ue8m0", "ue4m3"), ("{%h0, %h1}", "{%h0}"), (", {%h2, %h3}", "")],
)
def test_what_is_no_such_product(old: str, new: str) -> None:
    source = text("mxf4", 64, ".scale_vec::2X", "ue8m0", "e2m1", "e2m1")
    assert old in source
    with pytest.raises(Exception, match="mma"):
        Kernels(source.replace(old, new)).get("k", (32, 1, 1))


TEXTS = [text(kind, k, written, scales, *formats) for kind, k, written, _, scales, _, formats in FORMS]
