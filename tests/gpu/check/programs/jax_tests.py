"""JAX: a jitted matrix product, a jitted training step of an MLP, one of a small convolutional network."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # or it takes three quarters of the GPU at once

import common
import jax
import jax.numpy as jnp

BATCH = 128


def key(n: int) -> Any:
    return jax.random.fold_in(jax.random.PRNGKey(7), n)


def trained(loss: Callable[..., Any], weights: Any, x: Any, y: Any, per_step: int) -> dict[str, Any]:
    @jax.jit
    def update(w: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(w, x, y)
        return jax.tree_util.tree_map(lambda a, g: a - 0.05 * g, w, gradient), value

    def step() -> Any:
        nonlocal weights
        weights, value = update(weights)
        return value

    return common.timed(step, lambda: jax.block_until_ready(weights), float, per_step)


def cross_entropy(logits: Any, y: Any) -> Any:
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], axis=1))


def matmul() -> dict[str, Any]:
    a, b = jax.random.normal(key(0), (256, 256)), jax.random.normal(key(1), (256, 256)) / 16
    product = jax.jit(lambda m: m @ b)

    def step() -> Any:
        nonlocal a
        a = product(a)
        return a

    return common.timed(step, lambda: a.block_until_ready(), lambda m: float(m[0].sum()))


def mlp() -> dict[str, Any]:
    weights = [jax.random.normal(key(i), shape) * 0.05 for i, shape in enumerate([(256, 512), (512, 512), (512, 10)])]

    def loss(w: Any, x: Any, y: Any) -> Any:
        return cross_entropy(jax.nn.relu(jax.nn.relu(x @ w[0]) @ w[1]) @ w[2], y)

    return trained(loss, weights, jax.random.normal(key(8), (BATCH, 256)), jax.random.randint(key(9), (BATCH,), 0, 10), BATCH)


def cnn() -> dict[str, Any]:
    weights = [jax.random.normal(key(0), (16, 3, 3, 3)) * 0.1, jax.random.normal(key(1), (16 * 32 * 32, 10)) * 0.01]

    def loss(w: Any, x: Any, y: Any) -> Any:
        seen = jax.nn.relu(jax.lax.conv(x, w[0], (1, 1), "SAME"))
        return cross_entropy(seen.reshape(BATCH, -1) @ w[1], y)

    return trained(loss, weights, jax.random.normal(key(8), (BATCH, 3, 32, 32)), jax.random.randint(key(9), (BATCH,), 0, 10), BATCH)


def version() -> str:
    kind = jax.devices()[0].platform
    if (kind in ("gpu", "cuda")) != (common.options.device == "cuda"):
        raise SystemExit(f"JAX {jax.__version__} uses {kind} devices")
    return f"JAX {jax.__version__}"


TESTS: dict[str, Callable[[], dict[str, Any]]] = {"matmul": matmul, "mlp": mlp, "cnn": cnn}

if __name__ == "__main__":
    sys.exit(common.main(TESTS, version))
