"""cuDNN against NumPy in double: convolutions in all three directions, pooling, batch norm, softmax, activations, in both layouts."""

from __future__ import annotations

import ctypes
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from . import case, native
from .case import EPS, Case, Outcome

NCHW, NHWC = 0, 1
LAYOUTS = {"NCHW": NCHW, "NHWC": NHWC}
# name: (NumPy type, cuDNN's data type, its type to calculate in, eps of that, eps of what is stored)
TYPES: dict[str, tuple[Any, int, int, float, float]] = {
    "float": (np.float32, 0, 0, EPS["f32"], 0.0),
    "double": (np.float64, 1, 1, EPS["f64"], 0.0),
    "half": (np.float16, 2, 0, EPS["f32"], EPS["f16"]),
}
CROSS_CORRELATION = 1
DIRECTIONS = {
    "forward": ("Forward", 8),
    "backward data": ("BackwardData", 6),
    "backward filter": ("BackwardFilter", 7),
}
FMA, DEFAULT = 3, 0  # cudnnMathType_t: the default allows TF32 (of which cuDNN makes no use here), FMA_MATH does not


@functools.cache
def library() -> native.Library:
    return native.Library("cudnn", "libcudnn.so.*")


@functools.cache
def handle() -> ctypes.c_void_p:
    made = ctypes.c_void_p()
    library().call("cudnnCreate", ctypes.byref(made))
    return made


def call(name: str, *arguments: Any) -> None:
    library().call(name, handle(), *arguments)


def described(kind: str, *arguments: Any, setter: str = "") -> ctypes.c_void_p:
    """A descriptor, such as ("Tensor4d", format, type, n, c, h, w)."""
    made = ctypes.c_void_p()
    base = kind.removesuffix("4d").removesuffix("2d")
    library().call(f"cudnnCreate{base}Descriptor", ctypes.byref(made))
    library().call(f"cudnnSet{setter or kind}Descriptor", made, *arguments)
    return made


class Tensor:
    """A tensor on the device: given, and given back, as (n, c, h, w) whatever its layout."""

    def __init__(self, values: Any, layout: int, kind: str, *, is_filter: bool = False) -> None:
        import cupy

        dtype, code = TYPES[kind][:2]
        self.layout, self.shape = layout, values.shape
        self.data = cupy.asarray(np.ascontiguousarray(values.transpose(0, 2, 3, 1) if layout == NHWC else values, dtype))
        self.desc = described("Filter4d", code, layout, *values.shape) if is_filter else described("Tensor4d", layout, code, *values.shape)

    def host(self) -> Any:
        import cupy

        values = cupy.asnumpy(self.data)
        return values.transpose(0, 3, 1, 2) if self.layout == NHWC else values


def scalar(kind: str, value: float) -> Any:
    return np.array(value, np.float64 if kind == "double" else np.float32)


def draw(rng: np.random.Generator, kind: str, *shape: int) -> Any:
    """What the device gets, as numbers of its type, in double."""
    return rng.uniform(-1, 1, shape).astype(TYPES[kind][0]).astype(np.float64)


# ---- convolutions ----------------------------------------------------------------------------------------------------------------------


class Shape:
    """Of a convolution: x (n, c, h, w), w (k, c / groups, r, s)."""

    def __init__(self, text: str) -> None:
        self.text = text
        parts = text.split()
        self.n, self.c, self.h, self.w = map(int, parts[0].split("x"))
        self.k, self.r, self.s = map(int, parts[1].split("x"))
        more = dict(p.split("=") for p in parts[2:])
        self.pad, self.stride = int(more.get("pad", 0)), int(more.get("stride", 1))
        self.dilation, self.groups = int(more.get("dilation", 1)), int(more.get("groups", 1))
        self.p = (self.h + 2 * self.pad - self.dilation * (self.r - 1) - 1) // self.stride + 1
        self.q = (self.w + 2 * self.pad - self.dilation * (self.s - 1) - 1) // self.stride + 1


def windows(x: Any, s: Shape) -> Any:
    """A view (n, c, p, q, r, s) of the padded input."""
    padded = np.pad(x, ((0, 0), (0, 0), (s.pad, s.pad), (s.pad, s.pad)))
    n, c, height, width = padded.strides
    shape = (s.n, x.shape[1], s.p, s.q, s.r, s.s)
    return np.lib.stride_tricks.as_strided(padded, shape, (n, c, height * s.stride, width * s.stride, height * s.dilation, width * s.dilation))


def convolve(direction: str, s: Shape, x: Any, w: Any, dy: Any) -> Any:
    """The reference, in the inputs' type."""
    parts = []
    for g in range(s.groups):
        cs, ks = slice(g * s.c // s.groups, (g + 1) * s.c // s.groups), slice(g * s.k // s.groups, (g + 1) * s.k // s.groups)
        seen = windows(x[:, cs], s)
        if direction == "forward":
            parts.append(np.einsum("ncpqrs,kcrs->nkpq", seen, w[ks], optimize=True))
        elif direction == "backward filter":
            parts.append(np.einsum("ncpqrs,nkpq->kcrs", seen, dy[:, ks], optimize=True))
        else:
            given = np.zeros((s.n, cs.stop - cs.start, s.h + 2 * s.pad, s.w + 2 * s.pad), dy.dtype)
            for r, t in itertools.product(range(s.r), range(s.s)):
                rows, columns = r * s.dilation, t * s.dilation
                place = given[:, :, rows : rows + s.stride * (s.p - 1) + 1 : s.stride, columns : columns + s.stride * (s.q - 1) + 1 : s.stride]
                place += np.einsum("nkpq,kc->ncpq", dy[:, ks], w[ks, :, r, t], optimize=True)
            parts.append(given[:, :, s.pad : s.pad + s.h, s.pad : s.pad + s.w])
    return np.concatenate(parts, 0 if direction == "backward filter" else 1)


class Performance(ctypes.Structure):
    _fields_ = (
        ("algorithm", ctypes.c_int), ("status", ctypes.c_int), ("time", ctypes.c_float), ("memory", ctypes.c_size_t),
        ("deterministic", ctypes.c_int), ("math", ctypes.c_int), ("reserved", ctypes.c_int * 3),
    )  # fmt: skip


def convolution(direction: str, kind: str, layout: int, text: str, algorithm: int | None, math: int = FMA) -> Outcome:
    """algorithm None: what cuDNN recommends first, as programs do. (cudnnFind* times them in captured graphs, which a remote GPU has not yet.)"""
    import cupy

    s = Shape(text)
    rng = case.generator("convolution", direction, kind, text)
    x, w, dy = draw(rng, kind, s.n, s.c, s.h, s.w), draw(rng, kind, s.k, s.c // s.groups, s.r, s.s), draw(rng, kind, s.n, s.k, s.p, s.q)
    tx, tw, ty = Tensor(x, layout, kind), Tensor(w, layout, kind, is_filter=True), Tensor(dy, layout, kind)
    _, _, compute, eps, store = TYPES[kind]
    if kind == "half" and layout == NHWC and direction == "backward filter":
        eps = EPS["f16"]  # its kernel adds halves, with atomic operations
    conv = described("Convolution2d", s.pad, s.pad, s.stride, s.stride, s.dilation, s.dilation, CROSS_CORRELATION, compute)
    library().call("cudnnSetConvolutionGroupCount", conv, s.groups)
    library().call("cudnnSetConvolutionMathType", conv, math)
    ins, out = {"forward": ((tx, tw), ty), "backward data": ((tw, ty), tx), "backward filter": ((tx, ty), tw)}[direction]
    out.data[...] = cupy.nan  # everything is written
    name, most = DIRECTIONS[direction]
    descs = (ins[0].desc, ins[1].desc, conv, out.desc)
    if algorithm is None:
        count, found = ctypes.c_int(), (Performance * most)()
        call(f"cudnnGetConvolution{name}Algorithm_v7", *descs, most, ctypes.byref(count), found)
        algorithm = next(f.algorithm for f in found[: count.value] if f.status == 0)
    size = ctypes.c_size_t()
    call(f"cudnnGetConvolution{name}WorkspaceSize", *descs, algorithm, ctypes.byref(size))
    space = cupy.empty(max(size.value, 1), cupy.uint8)
    one, zero = scalar(kind, 1), scalar(kind, 0)
    call(
        f"cudnnConvolution{name}", one, ins[0].desc, ins[0].data, ins[1].desc, ins[1].data, conv, algorithm, space, size, zero, out.desc, out.data
    )  # fmt: skip
    want = convolve(direction, s, x, w, dy)
    # Winograd and FFT tiles lose more than a sum does: what they add up is larger than the result's own terms.
    scale = np.sqrt(convolve(direction, s, x * x, w * w, dy * dy)) + np.abs(want)
    k = {"forward": s.c // s.groups * s.r * s.s, "backward data": s.k // s.groups * s.r * s.s, "backward filter": s.n * s.p * s.q}[direction]
    return Outcome(out.host(), want, k, eps, np.max(scale), store)


# ---- the others ------------------------------------------------------------------------------------------------------------------------

MAX, AVERAGE_INCLUDING, AVERAGE_EXCLUDING, MAX_DETERMINISTIC = range(4)
POOLINGS = {"max": MAX, "average": AVERAGE_EXCLUDING, "average with padding": AVERAGE_INCLUDING, "max, deterministic": MAX_DETERMINISTIC}


def pooling(kind: str, layout: int, mode: str, backward: bool) -> Outcome:
    size, stride, pad = 3, 2, 1
    s = Shape(f"2x5x13x11 5x{size}x{size} stride={stride} pad={pad}")
    rng = case.generator("pooling", kind, mode)
    x = draw(rng, kind, s.n, s.c, s.h, s.w)
    dy = draw(rng, kind, s.n, s.c, s.p, s.q)
    low = -np.inf if mode.startswith("max") else 0.0
    padded = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)), constant_values=low)
    seen = np.lib.stride_tricks.sliding_window_view(padded, (size, size), (2, 3))[:, :, ::stride, ::stride]
    inside = np.pad(np.ones_like(x), ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    counts = np.lib.stride_tricks.sliding_window_view(inside, (size, size), (2, 3))[:, :, ::stride, ::stride].sum((-1, -2))
    if mode == "average with padding":
        counts = np.full_like(counts, size * size)
    y = seen.max((-1, -2)) if mode.startswith("max") else seen.sum((-1, -2)) / counts
    desc = described("Pooling2d", POOLINGS[mode], 0, size, size, pad, pad, stride, stride)
    one, zero = scalar(kind, 1), scalar(kind, 0)
    tx, ty = Tensor(x, layout, kind), Tensor(y, layout, kind)
    if not backward:
        ty.data[...] = 77
        call("cudnnPoolingForward", desc, one, tx.desc, tx.data, zero, ty.desc, ty.data)
        return Outcome(ty.host(), y, size * size, TYPES[kind][3], 1.0, TYPES[kind][4], exact=mode.startswith("max"))
    want = np.zeros_like(padded)
    for i, j in itertools.product(range(s.p), range(s.q)):
        part = want[:, :, i * stride : i * stride + size, j * stride : j * stride + size]
        here = dy[:, :, i, j][..., None, None]
        if mode.startswith("max"):  # to the first of the largest
            flat = seen[:, :, i, j].reshape(s.n, s.c, -1)
            first = (np.arange(size * size) == flat.argmax(-1)[..., None]).reshape(s.n, s.c, size, size)
            part += np.where(first, here, 0)
        else:
            part += here / counts[:, :, i, j][..., None, None]
    want = want[:, :, pad:-pad, pad:-pad]
    td, tdx = Tensor(dy, layout, kind), Tensor(np.full_like(x, 77), layout, kind)
    call("cudnnPoolingBackward", desc, one, ty.desc, ty.data, td.desc, td.data, tx.desc, tx.data, zero, tdx.desc, tdx.data)
    # Atomic additions round to the stored type one by one.
    return Outcome(tdx.host(), want, 4, max(TYPES[kind][3], TYPES[kind][4]), 1.0)


SPATIAL = 1
EPSILON = 1e-5


def batch_norm(kind: str, layout: int, what: str, mode: int) -> Outcome:
    rng = case.generator("batch norm", kind, what, mode)
    shape = (4, 6, 7, 5)
    _, c, h, w = shape
    x, dy = draw(rng, kind, *shape) + 0.25, draw(rng, kind, *shape)
    x = x.astype(TYPES[kind][0]).astype(np.float64)
    axes = (0, 2, 3) if mode == SPATIAL else (0,)
    inner = (1, c, 1, 1) if mode == SPATIAL else (1, c, h, w)
    params = "double" if kind == "double" else "float"
    scale, bias, mean = (draw(rng, params, *inner) for _ in range(3))
    variance = np.abs(draw(rng, params, *inner)) + 0.5
    tx, ty = Tensor(x, layout, kind), Tensor(np.full(shape, 77.0), layout, kind)
    small = [Tensor(v, layout, params) for v in (scale, bias, mean, variance)]
    one, zero = scalar(kind, 1), scalar(kind, 0)
    store, eps = TYPES[kind][4], TYPES[kind][3]
    if what == "inference":
        call(
            "cudnnBatchNormalizationForwardInference", mode, one, zero, tx.desc, tx.data, ty.desc, ty.data, small[0].desc,
            *(t.data for t in small), EPSILON,
        )  # fmt: skip
        return Outcome(ty.host(), scale * (x - mean) / np.sqrt(variance + EPSILON) + bias, 4, eps, 4.0, store)
    mu, var = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    inverse = 1 / np.sqrt(var + EPSILON)
    count = x.size / mu.size
    normal = (x - mu) * inverse
    saved = [Tensor(np.full(inner, 77.0), layout, params) for _ in range(2)]
    if what == "training":
        call(
            "cudnnBatchNormalizationForwardTraining", mode, one, zero, tx.desc, tx.data, ty.desc, ty.data, small[0].desc, small[0].data, small[1].data,
            0.25, small[2].data, small[3].data, EPSILON, saved[0].data, saved[1].data,
        )  # fmt: skip
        results = [ty, *saved, *small[2:]]
        wants = [scale * normal + bias, mu, inverse, 0.75 * mean + 0.25 * mu, 0.75 * variance + 0.25 * var * count / (count - 1)]
        got, want = (np.concatenate([np.ravel(a) for a in of]) for of in ([t.host() for t in results], wants))
        return Outcome(got, want, count, eps, 4.0, store)
    saved = [Tensor(v, layout, params) for v in (mu, inverse)]
    tdy, tdx = Tensor(dy, layout, kind), Tensor(np.full(shape, 77.0), layout, kind)
    given = [Tensor(np.full(inner, 77.0), layout, params) for _ in range(2)]
    call(
        "cudnnBatchNormalizationBackward", mode, one, zero, one, zero, tx.desc, tx.data, tdy.desc, tdy.data, tdx.desc, tdx.data, small[0].desc, small[0].data,
        given[0].data, given[1].data, EPSILON, saved[0].data, saved[1].data,
    )  # fmt: skip
    d_scale, d_bias = (dy * normal).sum(axes, keepdims=True), dy.sum(axes, keepdims=True)
    want = scale * inverse * (dy - d_bias / count - normal * d_scale / count)
    got, want = (np.concatenate([np.ravel(a) for a in of]) for of in ([tdx.host(), *(t.host() for t in given)], [want, d_scale, d_bias]))
    return Outcome(got, want, count, eps, 4.0, store)


FAST, ACCURATE, LOG = range(3)
SOFTMAX = {"fast": FAST, "accurate": ACCURATE, "log": LOG}


def softmax(kind: str, layout: int, how: str, mode: int, backward: bool) -> Outcome:
    rng = case.generator("softmax", kind, how, mode)
    shape = (3, 37, 4, 5)
    x, dy = draw(rng, kind, *shape) * 4, draw(rng, kind, *shape)
    x = x.astype(TYPES[kind][0]).astype(np.float64)
    axes: Any = (1, 2, 3) if mode == 0 else 1
    e = np.exp(x - x.max(axes, keepdims=True))
    y = e / e.sum(axes, keepdims=True)
    if how == "log":
        y = np.log(y)
    one, zero = scalar(kind, 1), scalar(kind, 0)
    tx, ty = Tensor(x, layout, kind), Tensor(y, layout, kind)
    k, (eps, store) = np.prod(np.array(shape)[list(np.atleast_1d(axes))]), TYPES[kind][3:]
    if not backward:
        ty.data[...] = 77
        call("cudnnSoftmaxForward", SOFTMAX[how], mode, one, tx.desc, tx.data, zero, ty.desc, ty.data)
        return Outcome(ty.host(), y, k, eps, 8.0 if how == "log" else y, store)
    y = y.astype(TYPES[kind][0]).astype(np.float64)
    want = dy - np.exp(y) * dy.sum(axes, keepdims=True) if how == "log" else y * (dy - (y * dy).sum(axes, keepdims=True))
    tdy, tdx = Tensor(dy, layout, kind), Tensor(np.full(shape, 77.0), layout, kind)
    call("cudnnSoftmaxBackward", SOFTMAX[how], mode, one, ty.desc, ty.data, tdy.desc, tdy.data, zero, tdx.desc, tdx.data)
    return Outcome(tdx.host(), want, k, eps, np.abs(want) + np.abs(y if how != "log" else 1.0), store)


ACTIVATIONS: dict[str, tuple[int, Callable[[Any], Any], Callable[[Any, Any], Any]]] = {
    "sigmoid": (0, lambda x: 1 / (1 + np.exp(-x)), lambda x, y: y * (1 - y)),
    "relu": (1, lambda x: np.maximum(x, 0), lambda x, y: (x > 0) * 1.0),
    "tanh": (2, np.tanh, lambda x, y: 1 - y * y),
    "clipped relu": (3, lambda x: np.clip(x, 0, 1.5), lambda x, y: ((x > 0) & (x <= 1.5)) * 1.0),
    "elu": (4, lambda x: np.where(x > 0, x, 1.5 * np.expm1(x)), lambda x, y: np.where(x > 0, 1.0, y + 1.5)),
}


def activation(kind: str, layout: int, name: str, backward: bool) -> Outcome:
    code, function, slope = ACTIVATIONS[name]
    rng = case.generator("activation", kind, name)
    shape = (2, 5, 9, 7)
    x, dy = draw(rng, kind, *shape) * 4, draw(rng, kind, *shape)
    x = x.astype(TYPES[kind][0]).astype(np.float64)
    y = function(x)
    desc = described("Activation", code, 0, 1.5)
    one, zero = scalar(kind, 1), scalar(kind, 0)
    tx, ty = Tensor(x, layout, kind), Tensor(y, layout, kind)
    eps, store = TYPES[kind][3:]
    if not backward:
        ty.data[...] = 77
        call("cudnnActivationForward", desc, one, tx.desc, tx.data, zero, ty.desc, ty.data)
        return Outcome(ty.host(), y, 4, eps, 2.0 * np.abs(y) + (1.5 if name == "elu" else 0), store)
    y = y.astype(TYPES[kind][0]).astype(np.float64)
    tdy, tdx = Tensor(dy, layout, kind), Tensor(np.full(shape, 77.0), layout, kind)
    call("cudnnActivationBackward", desc, one, ty.desc, ty.data, tdy.desc, tdy.data, tx.desc, tx.data, zero, tdx.desc, tdx.data)
    return Outcome(tdx.host(), dy * slope(x, y), 4, eps, 2.0, store)


# ---- all of them -----------------------------------------------------------------------------------------------------------------------

# Forward: implicit GEMM, the same with indices made before, GEMM, FFT, FFT in tiles, Winograd not fused. Backward: two that add up directly, then likewise.
# All others cuDNN refuses by itself.
ALGORITHMS = {
    ("forward", "NCHW"): {"float": (0, 1, 2, 4, 5, 7), "half": (0, 1, 2, 4, 5, 7), "double": (0, 1, 2)},
    ("forward", "NHWC"): {"float": (0, 1), "half": (0, 1), "double": (0, 1)},
    ("backward data", "NCHW"): {"float": (0, 1, 2, 3, 5), "half": (0, 1, 2, 3, 5), "double": (0, 1)},
    ("backward data", "NHWC"): {"float": (0, 1), "half": (0, 1)},
    ("backward filter", "NCHW"): {"float": (0, 1, 2, 3, 5), "half": (0, 1, 2, 3, 5), "double": (0, 1, 3)},
    ("backward filter", "NHWC"): {"float": (0, 1), "half": (0, 1)},
}
SHAPES = (
    "2x8x12x10 16x3x3 pad=1",
    "1x3x15x15 8x5x5 stride=2 pad=2",
    "2x16x9x9 8x1x1",
    "2x4x11x13 6x3x3 dilation=2",
    "2x8x10x10 8x3x3 pad=1 groups=4",
)


def cases() -> Iterator[Case]:
    def each(operation: str, kind: str, size: str, run: Callable[[], Outcome], fast: bool = False) -> Case:
        return Case("cudnn", operation, kind, size, run, fast)

    for (layout, code), kind, direction in itertools.product(LAYOUTS.items(), TYPES, DIRECTIONS):
        if kind == "double" and code == NHWC and direction != "forward":
            continue  # cuDNN has no algorithm for it
        for shape in SHAPES:
            fast = shape == SHAPES[0] and kind == "float"
            a = (direction, kind, code, shape, None)
            yield each(f"convolution {direction}, {layout}", kind, shape, lambda a=a: convolution(*a), fast)
    for (direction, layout), types in ALGORITHMS.items():
        for kind, numbers in types.items():
            for n in numbers:
                a = (direction, kind, LAYOUTS[layout], SHAPES[0], n)
                yield each(f"convolution {direction}, algorithm {n}, {layout}", kind, SHAPES[0], lambda a=a: convolution(*a))
    for (layout, code), direction, shape in itertools.product(LAYOUTS.items(), DIRECTIONS, SHAPES[:2]):
        b = (direction, "float", code, shape, None, DEFAULT)
        yield each(f"convolution {direction}, default math, {layout}", "float", shape, lambda b=b: convolution(*b))
    for (layout, code), kind, mode, backward in itertools.product(LAYOUTS.items(), TYPES, POOLINGS, (False, True)):
        direction = "backward" if backward else "forward"
        a = (kind, code, mode, backward)
        yield each(f"pooling {direction}, {layout}", kind, mode, lambda a=a: pooling(*a), mode == "max" and kind == "float")
    for (layout, code), kind, what, mode in itertools.product(LAYOUTS.items(), TYPES, ("inference", "training", "backward"), (0, 1)):
        if mode != SPATIAL and code == NHWC:
            continue  # cuDNN refuses it
        a = (kind, code, what, mode)
        yield each(
            f"batch norm {what}, {layout}", kind, ("per activation", "spatial")[mode], lambda a=a: batch_norm(*a), mode == 1 and kind == "float"
        )
    for (layout, code), kind, how, mode, backward in itertools.product(LAYOUTS.items(), TYPES, SOFTMAX, (0, 1), (False, True)):
        a = (kind, code, how, mode, backward)
        name = f"softmax {'backward' if backward else 'forward'}, {layout}"
        yield each(name, kind, f"{how}, {('instance', 'channel')[mode]}", lambda a=a: softmax(*a), how == "accurate" and kind == "float")
    for (layout, code), kind, what, backward in itertools.product(LAYOUTS.items(), TYPES, ACTIVATIONS, (False, True)):
        a = (kind, code, what, backward)
        yield each(
            f"activation {'backward' if backward else 'forward'}, {layout}",
            kind,
            what,
            lambda a=a: activation(*a),
            what == "tanh" and kind == "float",
        )
