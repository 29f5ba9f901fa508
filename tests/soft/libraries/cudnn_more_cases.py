"""More of cuDNN: recurrent networks forward and backward, local response normalisation, tensor operations, reductions, and convolution with bias
and activation in one call."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from . import case
from .case import Case, Outcome
from .cudnn_cases import CROSS_CORRELATION, LAYOUTS, TYPES, Shape, Tensor, call, convolve, described, draw, handle, library, scalar

# ---- recurrent networks ----------------------------------------------------------------------------------------------------------------

CELLS = {"RNN, relu": 0, "RNN, tanh": 1, "LSTM": 2, "GRU": 3}
LSTM = 2
GATES = {0: 1, 1: 1, 2: 4, 3: 3}
TWO_BIASES, TRAINING = 2, 1
IN, HIDDEN, BATCH, STEPS = 8, 16, 3, 5


def logistic(v: Any) -> Any:
    return 1 / (1 + np.exp(-v))


def step(cell: int, u: list[Any], v: list[Any], h: Any, c: Any) -> tuple[Any, Any]:
    """The new state: u of the inputs, v of the state before, both with their biases, for each gate in cuDNN's order."""
    if cell == 0:
        return np.maximum(u[0] + v[0], 0), c
    if cell == 1:
        return np.tanh(u[0] + v[0]), c
    if cell == LSTM:
        i, f, g, o = logistic(u[0] + v[0]), logistic(u[1] + v[1]), np.tanh(u[2] + v[2]), logistic(u[3] + v[3])
        c = f * c + i * g
        return o * np.tanh(c), c
    r, i = logistic(u[0] + v[0]), logistic(u[1] + v[1])
    return (1 - i) * np.tanh(u[2] + r * v[2]) + i * h, c


class Network:
    """A recurrent network of cuDNN's, with its weights; and the same in NumPy."""

    def __init__(self, cell: int, kind: str, layers: int, ways: int) -> None:
        import cupy

        self.cell, self.kind, self.layers, self.ways = cell, kind, layers, ways
        dtype, code, compute = TYPES[kind][:3]
        self.rng = case.generator("rnn", cell, kind, layers, ways)
        size, dropout, self.desc = ctypes.c_size_t(), ctypes.c_void_p(), ctypes.c_void_p()
        call("cudnnDropoutGetStatesSize", ctypes.byref(size))
        self.kept = cupy.zeros(size.value, np.uint8)
        library().call("cudnnCreateDropoutDescriptor", ctypes.byref(dropout))
        library().call("cudnnSetDropoutDescriptor", dropout, handle(), ctypes.c_float(0), self.kept, size, ctypes.c_ulonglong(1))
        library().call("cudnnCreateRNNDescriptor", ctypes.byref(self.desc))
        library().call(
            "cudnnSetRNNDescriptor_v8", self.desc, 0, cell, TWO_BIASES, ways - 1, 0, code, compute, 0, IN, HIDDEN, HIDDEN, layers, dropout, 0
        )
        self.space = ctypes.c_size_t()
        call("cudnnGetRNNWeightSpaceSize", self.desc, ctypes.byref(self.space))
        self.weights = draw(self.rng, kind, self.space.value // np.dtype(dtype).itemsize) * 0.5
        self.weights = self.weights.astype(dtype).astype(np.float64)
        self.on_device = cupy.asarray(self.weights.astype(dtype))
        self.x = draw(self.rng, kind, STEPS, BATCH, IN)
        self.h, self.c = (draw(self.rng, kind, layers * ways, BATCH, HIDDEN) for _ in range(2))

    def place(self, layer: int, which: int) -> tuple[int, int]:
        """Where a matrix and its bias begin, in elements."""
        matrix, bias, size = ctypes.c_void_p(), ctypes.c_void_p(), self.on_device.itemsize
        descs = [described("Tensor4d", 0, 0, 1, 1, 1, 1) for _ in range(2)]
        call(
            "cudnnGetRNNWeightParams", self.desc, layer, self.space, self.on_device, which, descs[0], ctypes.byref(matrix), descs[1], ctypes.byref(bias)
        )  # fmt: skip
        assert matrix.value is not None and bias.value is not None
        return (matrix.value - self.on_device.data.ptr) // size, (bias.value - self.on_device.data.ptr) // size

    def matrices(self) -> list[list[tuple[slice, slice, int]]]:
        """For each layer and way: (elements of the matrix, of the bias, its columns), gates of the inputs first."""
        gates, out = GATES[self.cell], []
        for layer in range(self.layers * self.ways):
            inputs = IN if layer < self.ways else HIDDEN * self.ways
            each = []
            for which in range(2 * gates):
                columns = inputs if which < gates else HIDDEN
                matrix, bias = self.place(layer, which)
                each.append((slice(matrix, matrix + HIDDEN * columns), slice(bias, bias + HIDDEN), columns))
            out.append(each)
        return out

    def reference(self, weights: Any, x: Any, where: list[list[tuple[slice, slice, int]]]) -> tuple[Any, Any, Any]:
        gates, states, cells = GATES[self.cell], [], []
        for layer in range(self.layers):
            outs = []
            for way in range(self.ways):
                index = layer * self.ways + way
                parts = [(weights[m].reshape(HIDDEN, columns), weights[b]) for m, b, columns in where[index]]
                h, c = self.h[index], self.c[index]
                out = np.zeros((STEPS, BATCH, HIDDEN))
                for t in range(STEPS) if way == 0 else reversed(range(STEPS)):
                    u = [x[t] @ m.T + b for m, b in parts[:gates]]
                    v = [h @ m.T + b for m, b in parts[gates:]]
                    h, c = step(self.cell, u, v, h, c)
                    out[t] = h
                outs.append(out)
                states.append(h)
                cells.append(c)
            x = np.concatenate(outs, -1)
        return x, np.stack(states), np.stack(cells)

    def run(self, dy: Any = None) -> tuple[Any, ...]:
        """Forward: (y, h, c). With what y's gradient is, also backward: (dx, dw)."""
        import cupy

        dtype, code = TYPES[self.kind][:2]
        lengths = np.full(BATCH, STEPS, np.int32)
        on_device = cupy.asarray(lengths)
        descs = []
        for width in (IN, HIDDEN * self.ways):
            desc = ctypes.c_void_p()
            library().call("cudnnCreateRNNDataDescriptor", ctypes.byref(desc))
            library().call("cudnnSetRNNDataDescriptor", desc, code, 0, STEPS, BATCH, width, lengths, None)
            descs.append(desc)
        sizes, strides = np.array([self.layers * self.ways, BATCH, HIDDEN], np.int32), np.array([BATCH * HIDDEN, HIDDEN, 1], np.int32)
        state = described("Tensor", code, 3, sizes, strides, setter="TensorNd")
        work, reserve = ctypes.c_size_t(), ctypes.c_size_t()
        call("cudnnGetRNNTempSpaceSizes", self.desc, TRAINING, descs[0], ctypes.byref(work), ctypes.byref(reserve))
        room, kept = cupy.zeros(work.value + 1, np.uint8), cupy.zeros(reserve.value + 1, np.uint8)
        x, h, c = (cupy.asarray(v.astype(dtype)) for v in (self.x, self.h, self.c))
        y, hy, cy = cupy.zeros((STEPS, BATCH, HIDDEN * self.ways), dtype), cupy.zeros_like(h), cupy.zeros_like(c)
        lstm = self.cell == LSTM
        call(
            "cudnnRNNForward", self.desc, TRAINING, on_device, descs[0], x, descs[1], y, state, h, hy, state, c if lstm else None, cy if lstm else None,
            self.space, self.on_device, work, room, reserve, kept,
        )  # fmt: skip
        if dy is None:
            return cupy.asnumpy(y), cupy.asnumpy(hy), cupy.asnumpy(cy if lstm else c)
        dx, dw, dh, dc = cupy.zeros_like(x), cupy.zeros_like(self.on_device), cupy.zeros_like(h), cupy.zeros_like(c)
        call(
            "cudnnRNNBackwardData_v8", self.desc, on_device, descs[1], y, cupy.asarray(dy.astype(dtype)), descs[0], dx, state, h, None, dh, state,
            c if lstm else None, None, dc if lstm else None, self.space, self.on_device, work, room, reserve, kept,
        )  # fmt: skip
        call(
            "cudnnRNNBackwardWeights_v8", self.desc, 0, on_device, descs[0], x, state, h, descs[1], y, self.space, dw, work, room, reserve, kept
        )  # fmt: skip
        return cupy.asnumpy(dx), cupy.asnumpy(dw)


def recurrent(kind: str, cell: int, layers: int, ways: int) -> Outcome:
    network = Network(cell, kind, layers, ways)
    y, h, c = network.run()
    want = network.reference(network.weights, network.x, network.matrices())
    used = want if cell == LSTM else want[:2]
    got = (y, h, c)[: len(used)]
    eps = max(TYPES[kind][3:])  # halves are what goes from step to step
    return Outcome(np.concatenate([v.ravel() for v in got]), np.concatenate([v.ravel() for v in used]), (IN + HIDDEN) * layers, eps, 1.0)


def recurrent_backward(kind: str, cell: int, layers: int, ways: int) -> Outcome:
    """Gradients of x and of the weights along some directions, against differences of the reference in NumPy."""
    network = Network(cell, kind, layers, ways)
    where = network.matrices()
    dy = draw(network.rng, kind, STEPS, BATCH, HIDDEN * ways)
    dx, dw = network.run(dy)
    h, got, want = 1e-5, [], []
    for _ in range(5):
        along_x, along_w = network.rng.uniform(-1, 1, network.x.shape), network.rng.uniform(-1, 1, network.weights.shape)
        ends = [network.reference(network.weights + s * along_w, network.x + s * along_x, where)[0] for s in (h, -h)]
        got.append(np.sum(dx * along_x) + np.sum(dw * along_w))
        want.append(np.sum((ends[0] - ends[1]) * dy) / (2 * h))
    size = float(np.sqrt(np.sum(dx.astype(float) ** 2) + np.sum(dw.astype(float) ** 2)))
    return Outcome(np.array(got), np.array(want), 1, max(TYPES[kind][3], 2.0**-28), size)  # differences are good to some 1e-9


# ---- the others ------------------------------------------------------------------------------------------------------------------------


def response_normalisation(kind: str, n: int, backward: bool) -> Outcome:
    rng = case.generator("lrn", kind, n)
    shape, alpha, beta, plus = (2, 12, 5, 6), 0.01, 0.75, 2.0
    x, dy = draw(rng, kind, *shape), draw(rng, kind, *shape)
    before = (n - 1) // 2
    after = n - 1 - before

    def windows(v: Any, first: int, last: int) -> Any:
        padded = np.pad(v, ((0, 0), (first, last), (0, 0), (0, 0)))
        return sum(padded[:, i : i + shape[1]] for i in range(n))

    inner = plus + alpha / n * windows(x * x, before, after)
    y = x * inner**-beta
    desc = described("LRN", n, alpha, beta, plus)
    one, zero = scalar(kind, 1), scalar(kind, 0)
    tx, ty = Tensor(x, 0, kind), Tensor(np.full(shape, 77.0), 0, kind)
    call("cudnnLRNCrossChannelForward", desc, 0, one, tx.desc, tx.data, zero, ty.desc, ty.data)
    eps, store = TYPES[kind][3:]
    if not backward:
        return Outcome(ty.host(), y, n, eps, 1.0, store)
    tdy, tdx = Tensor(dy, 0, kind), Tensor(np.full(shape, 77.0), 0, kind)
    call("cudnnLRNCrossChannelBackward", desc, 0, one, ty.desc, ty.data, tdy.desc, tdy.data, tx.desc, tx.data, zero, tdx.desc, tdx.data)
    want = dy * inner**-beta - 2 * alpha * beta / n * x * windows(dy * y / inner, after, before)
    return Outcome(tdx.host(), want, n, eps, 1.0, store)


OPERATIONS: dict[str, tuple[int, Callable[[Any, Any], Any]]] = {
    "sum": (0, lambda a, b: a + b), "product": (1, lambda a, b: a * b), "minimum": (2, np.minimum), "maximum": (3, np.maximum),
    "root": (4, lambda a, b: np.sqrt(a)), "not": (5, lambda a, b: 1 - a),
}  # fmt: skip


def operation(kind: str, name: str, shape: tuple[int, ...]) -> Outcome:
    rng = case.generator("operation", kind, name, shape)
    a, b, c = (np.abs(draw(rng, kind, *s)) + 0.5 for s in ((3, 4, 5, 6), shape, (3, 4, 5, 6)))
    code, function = OPERATIONS[name]
    desc = described("OpTensor", code, TYPES[kind][2], 0)
    ta, tb, tc = (Tensor(v, 0, kind) for v in (a, b, c))
    a, b, c = (t.host().astype(np.float64) for t in (ta, tb, tc))
    call("cudnnOpTensor", desc, scalar(kind, 2), ta.desc, ta.data, scalar(kind, 3), tb.desc, tb.data, scalar(kind, 0.5), tc.desc, tc.data)
    want = function(2 * a, 3 * b) + 0.5 * c
    return Outcome(tc.host(), want, 2, TYPES[kind][3], np.abs(want) + 4, TYPES[kind][4])


REDUCTIONS: dict[str, tuple[int, Callable[..., Any]]] = {
    "sum": (0, np.sum), "product": (1, np.prod), "minimum": (2, np.min), "maximum": (3, np.max),
    "largest size": (4, lambda v, **how: np.max(np.abs(v), **how)), "mean": (5, np.mean), "sum of sizes": (6, lambda v, **how: np.sum(np.abs(v), **how)),
    "norm": (7, lambda v, **how: np.sqrt(np.sum(v * v, **how))),
}  # fmt: skip


def reduction(kind: str, name: str, shape: tuple[int, ...]) -> Outcome:
    import cupy

    rng = case.generator("reduction", kind, name, shape)
    ta = Tensor(1 + draw(rng, kind, 3, 4, 5, 6) / 8, 0, kind)  # products stay within the type
    tc = Tensor(np.full(shape, 77.0), 0, kind)
    code, function = REDUCTIONS[name]
    desc, size = described("ReduceTensor", code, TYPES[kind][2], 1, 0, 0), ctypes.c_size_t()
    call("cudnnGetReductionWorkspaceSize", desc, ta.desc, tc.desc, ctypes.byref(size))
    room = cupy.zeros(size.value + 1, np.uint8)
    call(
        "cudnnReduceTensor", desc, None, ctypes.c_size_t(0), room, size, scalar(kind, 1), ta.desc, ta.data, scalar(kind, 0), tc.desc, tc.data
    )  # fmt: skip
    axes = tuple(i for i in range(4) if shape[i] == 1)
    want = function(ta.host().astype(np.float64), axis=axes, keepdims=True)
    return Outcome(tc.host(), want, 360 / want.size, TYPES[kind][3], None, TYPES[kind][4], exact=name in ("minimum", "maximum", "largest size"))


RELU, IDENTITY, PRECOMPUTED = 1, 5, 1


def fused(kind: str, layout: int, relu: bool, added: bool) -> Outcome:
    """cudnnConvolutionBiasActivationForward."""
    import cupy

    s = Shape("2x16x12x10 8x3x3 pad=1")
    rng = case.generator("fused", kind, relu, added)
    x, w, z, b = draw(rng, kind, s.n, s.c, s.h, s.w), draw(rng, kind, s.k, s.c, s.r, s.s), draw(rng, kind, s.n, s.k, s.p, s.q), draw(rng, kind, 1, s.k, 1, 1)
    tx, tw, tz, tb = Tensor(x, layout, kind), Tensor(w, layout, kind, is_filter=True), Tensor(z, layout, kind), Tensor(b, layout, kind)
    ty = Tensor(np.full(z.shape, 77.0), layout, kind)
    conv = described("Convolution2d", s.pad, s.pad, s.stride, s.stride, s.dilation, s.dilation, CROSS_CORRELATION, TYPES[kind][2])
    library().call("cudnnSetConvolutionMathType", conv, 3)
    act, size = described("Activation", RELU if relu else IDENTITY, 0, 0.0), ctypes.c_size_t()
    call("cudnnGetConvolutionForwardWorkspaceSize", tx.desc, tw.desc, conv, ty.desc, PRECOMPUTED, ctypes.byref(size))
    room = cupy.zeros(size.value + 1, np.uint8)
    call(
        "cudnnConvolutionBiasActivationForward", scalar(kind, 1), tx.desc, tx.data, tw.desc, tw.data, conv, PRECOMPUTED, room, size,
        scalar(kind, 1 if added else 0), tz.desc, tz.data, tb.desc, tb.data, act, ty.desc, ty.data,
    )  # fmt: skip
    want = convolve("forward", s, x, w, z) + b + (z if added else 0)
    scale = np.sqrt(convolve("forward", s, x * x, w * w, z)) + np.abs(want)
    return Outcome(ty.host(), np.maximum(want, 0) if relu else want, s.c * s.r * s.s, TYPES[kind][3], np.max(scale), TYPES[kind][4])


def cases() -> Iterator[Case]:
    def each(operation: str, kind: str, size: str, run: Callable[..., Outcome], *arguments: Any) -> Case:
        return Case("cudnn", operation, kind, size, lambda: run(kind, *arguments))

    for (name, cell), kind, layers, ways in itertools.product(CELLS.items(), TYPES, (1, 2), (1, 2)):
        size = f"{layers} layers, {('one way', 'both ways')[ways - 1]}"
        yield each(f"{name}, forward", kind, size, recurrent, cell, layers, ways)
        if kind == "double":
            yield each(f"{name}, backward", kind, size, recurrent_backward, cell, layers, ways)
    for kind, n, backward in itertools.product(TYPES, (3, 5), (False, True)):
        yield each(f"response normalisation {'backward' if backward else 'forward'}", kind, f"{n} channels", response_normalisation, n, backward)
    for kind, name, shape in itertools.product(TYPES, OPERATIONS, ((3, 4, 5, 6), (1, 4, 1, 1), (1, 1, 1, 1))):
        yield each("OpTensor", kind, f"{name}, {'x'.join(map(str, shape))}", operation, name, shape)
    for kind, name, shape in itertools.product(TYPES, REDUCTIONS, ((1, 1, 1, 1), (1, 4, 1, 1), (3, 4, 1, 1), (1, 1, 5, 6))):
        yield each("ReduceTensor", kind, f"{name}, to {'x'.join(map(str, shape))}", reduction, name, shape)
    for (layout, code), kind, relu, added in itertools.product(LAYOUTS.items(), TYPES, (False, True), (False, True)):
        size = f"{'relu' if relu else 'no activation'}{', a tensor added' if added else ''}"
        yield each(f"convolution with bias and activation, {layout}", kind, size, fused, code, relu, added)
