"""Functions with code of their own for vectors: 2**x by a table, conversions to integers, and flushing of subnormal numbers."""

from __future__ import annotations

import numpy as np
import pytest

from gpuvirt.soft import pipeline
from gpuvirt.soft.codegen import target
from gpuvirt.soft.ptx.module import Module
from tests.soft import ptx_op

TINY = np.float32([1e-40, -1e-40, 2.0**-149, -(2.0**-127), 0.0, -0.0, 2.0**-126, 1.5, -3.0])


def bits(a: np.ndarray) -> np.ndarray:
    return a.view(f"u{a.dtype.itemsize}")


@pytest.mark.parametrize("form", ["ex2.approx.f32", "ex2.approx.ftz.f32"])
def test_powers_of_two(form: str) -> None:
    whole = np.arange(-126 if "ftz" in form else -149, 128).astype(np.float32)
    np.testing.assert_array_equal(ptx_op.run(f"{form} $d, $a;", np.float32, whole), np.exp2(whole.astype(np.float64)).astype(np.float32))
    sixteenths = np.arange(-126 * 16, 128 * 16).astype(np.float32) / np.float32(16)
    near = np.concatenate([sixteenths, np.nextafter(sixteenths, np.float32(-1e9)), np.nextafter(sixteenths, np.float32(1e9))])
    near = near[(near >= -126) & (near < 128)]
    x = np.concatenate([near, np.random.default_rng(1).uniform(-126, 128, 20000).astype(np.float32)])
    got, want = ptx_op.run(f"{form} $d, $a;", np.float32, x).astype(np.float64), np.exp2(x.astype(np.float64))
    assert np.max(np.abs(got / want - 1)) < 2.0**-22.5
    far = np.float32([np.inf, -np.inf, 1e30, -1e30, 128, 129, 3e5, -3e5, 786432, -786432, 1e-45, -1e-45, 1e-30])
    with np.errstate(over="ignore"):
        want = np.exp2(far.astype(np.float64)).astype(np.float32)
    np.testing.assert_array_equal(ptx_op.run(f"{form} $d, $a;", np.float32, far), want)
    assert np.isnan(ptx_op.run(f"{form} $d, $a;", np.float32, np.float32([np.nan] * 3))).all()


@pytest.mark.parametrize("text", [
    "mul.ftz.f32 $d, $a, 0f3F800000; neg.ftz.f32 $d, $d;", "mul.ftz.f32 $d, $a, 0fBF800000;", "add.ftz.f32 $d, $a, 0f00000000; neg.ftz.f32 $d, $d;",
    "sub.ftz.f32 $d, $a, 0f00000000; neg.ftz.f32 $d, $d;", "div.rn.ftz.f32 $d, $a, 0f3F800000; neg.ftz.f32 $d, $d;",
    "fma.rn.ftz.f32 $d, $a, 0f3F800000, 0f80000000; neg.ftz.f32 $d, $d;", "neg.ftz.f32 $d, $a; abs.ftz.f32 $d, $d; neg.ftz.f32 $d, $d;",
    "max.ftz.f32 $d, $a, $a; neg.ftz.f32 $d, $d;", "cvt.ftz.f32.f32 $d, $a; neg.ftz.f32 $d, $d;",
])  # fmt: skip
def test_nothing_subnormal_slips_through(text: str) -> None:
    got = ptx_op.run(text, np.float32, np.tile(TINY, 8))
    assert not ((got != 0) & (np.abs(got) < 2.0**-126)).any(), text
    ordinary = np.abs(np.tile(TINY, 8)) >= 2.0**-126
    np.testing.assert_array_equal(np.abs(got[ordinary]), np.abs(np.tile(TINY, 8)[ordinary]))
    assert (got[~ordinary] == 0).all()


@pytest.mark.parametrize(("scale", "flushes"), [(2.0**-64, True), (2.0**-1070, False)])
def test_doubles_beside_flushed_floats(scale: float, flushes: bool) -> None:
    """Whole numbers times a moderate constant are never subnormal doubles; others must keep theirs."""
    (pattern,) = np.array([scale]).view(np.uint64)
    text = f".reg .f64 %e<3>; cvt.rn.f64.s64 %e1, $a; mul.f64 %e2, %e1, 0d{pattern:016X};"
    tail = " cvt.rn.ftz.f32.f64 $d, %e2; mul.ftz.f32 $d, $d, 0f40000000;"
    x = np.int64([0, 1, -1, 3, 2**62 + 1, -(2**63), 12345678901])
    got = ptx_op.run(text + tail, np.float32, x)
    np.testing.assert_array_equal(got, ((x * scale).astype(np.float32) * np.float32(2)))
    module = Module(ptx_op.kernel_text(text + tail, np.float32, (x,)))
    features = target.host().feature_set
    assert pipeline.translate(module, "k", (128, 1, 1))[1].flush == (flushes and "f16c" in features)
    kept = ptx_op.run(text + " mov.b64 $d, %e2;", np.float64, x)
    np.testing.assert_array_equal(bits(kept), bits(x * scale))


@pytest.mark.parametrize("mode", ["rni", "rzi", "rmi", "rpi"])
@pytest.mark.parametrize("source", ["f32", "f64"])
def test_to_integers(source: str, mode: str) -> None:
    dtype = np.float32 if source == "f32" else np.float64
    rng = np.random.default_rng(2)
    ends = [s * 2.0**k * f for s in (1, -1) for k in (0, 15, 16, 31, 32, 53, 62, 63, 64, 100) for f in (0.5, 1 - 2.0**-20, 1, 1 + 2.0**-20)]
    x = np.array([*ends, 0.5, -0.5, 1.5, 2.5, -0.0, 1e-40, -1e-40, np.inf, -np.inf, np.nan, *rng.uniform(-5e9, 5e9, 200)], dtype)
    rounded = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}[mode](x.astype(np.float64))
    for t in (np.int32, np.uint32, np.int64, np.uint64):
        got = ptx_op.run(f"cvt.{mode}.{'su'[t in (np.uint32, np.uint64)]}{8 * t().itemsize}.{source} $d, $a;", t, x)
        low, high = int(np.iinfo(t).min), int(np.iinfo(t).max)
        nan = 0 if t().itemsize == 4 else (1 << 63)
        want = [nan if np.isnan(r) else low if r <= low else high if r >= high else int(r) for r in rounded]
        assert [int(g) & (1 << 8 * t().itemsize) - 1 for g in got] == [w & (1 << 8 * t().itemsize) - 1 for w in want], t
