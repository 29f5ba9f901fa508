"""A CuPy training loop with its data on the device: a network with one hidden layer, the loss read every so often, checked against NumPy.

Prints one line of JSON: what each part took, measured inside the program, and how often it waited, as the driver counts.
"""

from __future__ import annotations

import time

begun = time.perf_counter()

import argparse  # noqa: E402
import ctypes  # noqa: E402
import json  # noqa: E402

import cupy as cp  # noqa: E402
import numpy as np  # noqa: E402

BATCH, IN, HIDDEN, OUT = 16, 16, 32, 8
RATE = 0.05


def waits() -> int:
    """How often this process has waited so far."""
    figures = (ctypes.c_uint64 * 3)()
    ctypes.CDLL("libcuda.so.1").gpuvirt_figures(figures)
    return int(figures[1])


def step(xp, x, t, w1, b1, w2, b2):  # type: ignore[no-untyped-def]
    """One step, the same for CuPy and NumPy; changes the weights in place and returns the loss, on the device."""
    z = x @ w1 + b1
    h = xp.maximum(z, 0)
    d = h @ w2 + b2 - t
    loss = (d * d).mean()
    d *= 2.0 / d.size
    dh = d @ w2.T
    dh *= z > 0
    w2 -= RATE * (h.T @ d)
    b2 -= RATE * d.sum(axis=0)
    w1 -= RATE * (x.T @ dh)
    b1 -= RATE * dh.sum(axis=0)
    return loss


def arrays() -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    shapes = [(BATCH, IN), (BATCH, OUT), (IN, HIDDEN), (HIDDEN,), (HIDDEN, OUT), (OUT,)]
    return [(rng.standard_normal(shape) * 0.5).astype(np.float32) for shape in shapes]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--read-every", type=int, default=50)
    parser.add_argument("--extra-reads", action="store_true", help="also looks at the loss in every step, as a careless program does")
    options = parser.parse_args()

    on_device = [cp.asarray(a) for a in arrays()]
    float(step(cp, *on_device))
    first_result, waits_first = time.perf_counter() - begun, waits()
    for _ in range(20):  # until CuPy has what it keeps: kernels, plans, memory
        float(step(cp, *on_device))

    on_device = [cp.asarray(a) for a in arrays()]
    cp.cuda.Device().synchronize()
    losses: list[float] = []
    waits_before, start = waits(), time.perf_counter()
    for i in range(1, options.steps + 1):
        loss = step(cp, *on_device)
        if i % options.read_every == 0:
            losses.append(float(loss))
        elif options.extra_reads:
            float(loss)
    loop, waits_after = time.perf_counter() - start, waits()

    on_host, expected = arrays(), []
    for i in range(1, options.steps + 1):
        loss = step(np, *on_host)
        if i % options.read_every == 0:
            expected.append(float(loss))
    right = len(losses) > 0 and np.allclose(losses, expected, rtol=1e-3)
    figures = {"loop_s": loop, "first_result_s": first_result, "waits_first": waits_first, "waits": waits_after - waits_before}
    print(json.dumps({**figures, "reads": len(losses), "steps": options.steps, "right": bool(right), "losses": losses[-2:]}))


if __name__ == "__main__":
    main()
