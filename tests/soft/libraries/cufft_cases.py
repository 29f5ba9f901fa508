"""cuFFT against SciPy's transforms in double and long double.

The depth of the additions is taken for k, not the length: log2 n, three times that where the length has a large prime factor and the transform is
made of longer ones (Bluestein). The scale is the root mean square of each transform's result.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from . import case, native
from .case import EPS, Case, Outcome

R2C, C2R, C2C, D2Z, Z2D, Z2Z = 0x2A, 0x2C, 0x29, 0x6A, 0x6C, 0x69
NAMES = {R2C: "R2C", C2R: "C2R", C2C: "C2C", D2Z: "D2Z", Z2D: "Z2D", Z2Z: "Z2Z"}
FORWARD, INVERSE = -1, 1
SINGLE = (C2C, R2C, C2R)


@functools.cache
def library() -> Any:
    return native.Library("cufft", "libcufft.so.*")


def largest_prime(n: int) -> int:
    best, p = 1, 2
    while n > 1:
        while n % p == 0:
            best, n = p, n // p
        p += 1
    return best


def depth(shape: tuple[int, ...]) -> float:
    return 1 + sum(math.log2(n) * (3 if largest_prime(n) > 127 else 1) for n in shape)


def reference(kind: int, direction: int, values: Any, shape: tuple[int, ...]) -> Any:
    """The transform of the last axes, not scaled, in a wider type."""
    import scipy.fft

    axes = tuple(range(-len(shape), 0))
    count = math.prod(shape)
    if kind in (R2C, D2Z):
        return scipy.fft.rfftn(values, axes=axes)
    if kind in (C2R, Z2D):
        return scipy.fft.irfftn(values, s=shape, axes=axes) * count
    return scipy.fft.fftn(values, axes=axes) if direction == FORWARD else scipy.fft.ifftn(values, axes=axes) * count


def transform(kind: int, shape: tuple[int, ...], batch: int, direction: int, strides: tuple[int, int], in_place: bool) -> Any:
    """strides: between the elements that go in, and those that come out."""
    import cupy

    single = kind in SINGLE
    real, wide_real = (np.float32, np.float64) if single else (np.float64, np.longdouble)
    complex_, wide_complex = (np.complex64, np.complex128) if single else (np.complex128, np.clongdouble)
    half = (*shape[:-1], shape[-1] // 2 + 1)
    rng = case.generator("fft", kind, shape, batch)
    if kind in (R2C, D2Z):
        values = rng.uniform(-1, 1, (batch, *shape)).astype(real)
        inner, outer, out_type = shape, half, complex_
        wide = values.astype(wide_real)
    elif kind in (C2R, Z2D):
        whole = rng.uniform(-1, 1, (batch, *shape))
        axes = tuple(range(1, len(shape) + 1))
        values = np.fft.rfftn(whole, axes=axes).astype(complex_)
        inner, outer, out_type = half, shape, real
        wide = values.astype(wide_complex)
    else:
        values = (rng.uniform(-1, 1, (batch, *shape)) + 1j * rng.uniform(-1, 1, (batch, *shape))).astype(complex_)
        inner = outer = shape
        out_type = complex_
        wide = values.astype(wide_complex)
    step_in, step_out = strides
    size_in, size_out = math.prod(inner), math.prod(outer)
    spread = np.zeros((batch * size_in, step_in), values.dtype)
    spread[:, 0] = values.reshape(-1)
    source = cupy.asarray(spread.reshape(-1))
    target = source if in_place else cupy.zeros(batch * size_out * step_out, out_type)
    plan, zero = ctypes.c_int(), None
    sizes = (ctypes.c_int * len(shape))(*shape)
    embed_in, embed_out = (ctypes.c_int * len(shape))(*inner), (ctypes.c_int * len(shape))(*outer)
    plain = strides == (1, 1)
    library().call(
        "cufftPlanMany", ctypes.byref(plan), len(shape), sizes, zero if plain else embed_in, step_in, size_in * step_in,
        zero if plain else embed_out, step_out, size_out * step_out, kind, batch,
    )  # fmt: skip
    try:
        extra = (direction,) if kind in (C2C, Z2Z) else ()
        library().call(f"cufftExec{NAMES[kind]}", plan, source, target, *extra)
        got = cupy.asnumpy(target).reshape(batch * size_out, step_out)[:, 0].reshape(batch, *outer)
    finally:
        library().call("cufftDestroy", plan)
    want = reference(kind, direction, wide, shape)
    axes = tuple(range(1, len(shape) + 1))
    scale = np.sqrt((np.abs(want) ** 2).mean(axis=axes, keepdims=True))
    return Outcome(got, want, depth(shape), EPS["f32" if single else "f64"], scale)


def half_precision(n: int, batch: int) -> Any:
    """cufftXt with complex numbers of two halves; lengths are powers of two."""
    import cupy

    rng = case.generator("half", n, batch)
    pairs = rng.uniform(-1, 1, (batch, n, 2)).astype(np.float16)
    source = cupy.asarray(pairs)
    target = cupy.zeros_like(source)
    plan, work = ctypes.c_int(), ctypes.c_size_t()
    library().call("cufftCreate", ctypes.byref(plan))
    size = (ctypes.c_longlong * 1)(n)
    one, length = ctypes.c_longlong(1), ctypes.c_longlong(n)
    kind = 6  # CUDA_C_16F
    library().call(
        "cufftXtMakePlanMany", plan, 1, size, None, one, length, kind, None, one, length, kind, ctypes.c_longlong(batch), ctypes.byref(work), kind
    )
    library().call("cufftXtExec", plan, source, target, FORWARD)
    got = cupy.asnumpy(target).astype(np.float64)
    library().call("cufftDestroy", plan)
    want = np.fft.fft(pairs[..., 0].astype(np.float64) + 1j * pairs[..., 1])
    scale = np.sqrt((np.abs(want) ** 2).mean(axis=1, keepdims=True))
    return Outcome(got[..., 0] + 1j * got[..., 1], want, depth((n,)), EPS["f16"], scale)


def callback(n: int) -> Any:
    """A plan with a callback that doubles what is loaded: LTO-IR, linked with the library's when the plan is made."""
    import cupy
    from cupy.cuda import nvrtc

    source = """struct pair { float x, y; };
extern "C" __device__ pair cufftJITCallbackLoadComplex(void *in, unsigned long long at, void *, void *) {
    pair v = ((pair *)in)[at]; v.x *= 2; v.y *= 2; return v; }"""
    made = nvrtc.createProgram(source, "callback.cu", (), ())
    nvrtc.compileProgram(made, ("-arch=sm_90", "-dlto", "-rdc=true"))
    code = (nvrtc.getLTOIR if hasattr(nvrtc, "getLTOIR") else nvrtc.getNVVM)(made)
    values = case.generator("callback").uniform(-1, 1, n).astype(np.complex64)
    source_array, plan, size = cupy.asarray(values), ctypes.c_int(), ctypes.c_size_t()
    target = cupy.zeros_like(source_array)
    library().call("cufftCreate", ctypes.byref(plan))
    try:
        library().call("cufftXtSetJITCallback", plan, ctypes.c_char_p(code), ctypes.c_size_t(len(code)), 0, None)
        library().call("cufftMakePlan1d", plan, n, C2C, 1, ctypes.byref(size))
        library().call("cufftExecC2C", plan, source_array, target, FORWARD)
    finally:
        library().call("cufftDestroy", plan)
    want = 2 * np.fft.fft(values.astype(np.complex128))
    return Outcome(cupy.asnumpy(target), want, depth((n,)), EPS["f32"], np.sqrt((np.abs(want) ** 2).mean()))


LINE = (
    *(2**i for i in range(14)), 65536, 1 << 18, 3, 9, 27, 243, 2187, 5, 25, 625, 7, 49, 343, 2401, 11, 121, 13, 169, 6, 10, 12, 15, 30, 60, 100, 210, 360,
    1000, 1920, 5040, 10000, 17, 19, 23, 31, 37, 61, 127, 131, 251, 509, 1009, 4093, 10007, 34, 1016, 2018,
)  # fmt: skip
PLANE = ((2, 3), (16, 16), (30, 42), (128, 64), (17, 31), (256, 256), (100, 7), (9, 1024), (131, 6))
SPACE = ((2, 2, 2), (8, 8, 8), (12, 10, 14), (32, 16, 64), (7, 11, 13), (3, 128, 5))


def cases() -> Iterator[Any]:
    def one(
        operation: str, kind: int, shape: tuple[int, ...], batch: int, direction: int, strides: tuple[int, int] = (1, 1), in_place: bool = False
    ) -> Any:
        way = "" if kind not in (C2C, Z2Z) else " forward" if direction == FORWARD else " inverse"
        size = "x".join(map(str, shape)) + (f", {batch} of them" if batch > 1 else "") + way
        few = (shape, batch) in (((64,), 1), ((60,), 1), ((251,), 1)) and kind in (C2C, D2Z) and direction == FORWARD and operation == "1D"
        few = few or (shape == (12, 10, 14) and kind in (R2C, Z2D) and operation == "3D")
        return Case("cufft", operation, NAMES[kind], size, lambda: transform(kind, shape, batch, direction, strides, in_place), few)

    for kind in NAMES:
        ways = (FORWARD, INVERSE) if kind in (C2C, Z2Z) else (FORWARD,)
        for way in ways:
            for n in LINE:
                yield one("1D", kind, (n,), 1, way)
            for n, batch in itertools.product((8, 60, 127, 512, 2187), (3, 70)):
                yield one("1D batched", kind, (n,), batch, way)
            for shape in PLANE:
                yield one("2D", kind, shape, 1, way)
            for shape in SPACE:
                yield one("3D", kind, shape, 1, way)
            yield one("2D batched", kind, (20, 32), 9, way)
            yield one("3D batched", kind, (8, 6, 10), 4, way)
            for shape in ((64,), (100,), (16, 30), (8, 6, 10)):
                yield one("strided", kind, shape, 3, way, (2, 3))
            if kind in (C2C, Z2Z):
                for shape in ((4096,), (1009,), (128, 60), (16, 8, 12)):
                    yield one("in place", kind, shape, 2, way, in_place=True)
    yield Case("cufft", "with a callback (LTO-IR)", "C2C", "1024", lambda: callback(1024), no_ptx=True)
    for n, batch in itertools.product((4, 64, 1024, 8192), (1, 6)):
        yield Case("cufft", "1D", "half", f"{n}, {batch} of them", lambda n=n, batch=batch: half_precision(n, batch))
