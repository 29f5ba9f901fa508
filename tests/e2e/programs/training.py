"""A training loop whose data stays on the device: python training.py EVERY STEPS... reads the loss every EVERY steps.

Prints what it read; on stderr, one line per number of steps: "STEPS steps, WAITS waits".
"""

from __future__ import annotations

import ctypes
import sys

import cupy as cp

shim = ctypes.CDLL("libcuda.so.1")


def waits() -> int:
    figures = (ctypes.c_uint64 * 3)()
    shim.gpuvirt_figures(figures)
    return int(figures[1])


x = cp.linspace(0, 1, 256 * 8, dtype=cp.float32).reshape(256, 8)
y = x.sum(axis=1, keepdims=True) * 0.5
first, second = cp.full((8, 16), 0.1, cp.float32), cp.full((16, 1), 0.1, cp.float32)


def step() -> cp.ndarray:
    global first, second
    hidden = cp.maximum(x @ first, 0)
    error = hidden @ second - y
    back = (error @ second.T) * (hidden > 0)
    second = second - 0.01 * (hidden.T @ error) / len(x)
    first = first - 0.01 * (x.T @ back) / len(x)
    return (error * error).mean()


every, losses = int(sys.argv[1]), [float(step()), float(step())]
for steps in map(int, sys.argv[2:]):
    before = waits()
    for i in range(1, steps + 1):
        loss = step()
        if i % every == 0:
            losses.append(float(loss))
    print(f"{steps} steps, {waits() - before} waits", file=sys.stderr)
assert losses[-1] < losses[0] / 100, losses
print(losses)
