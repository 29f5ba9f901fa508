"""What XLA compiles for JAX, checked against the same function on the host's processor, which XLA compiles by other ways (LLVM, Eigen)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from checks import check, main
from jax import lax
from samples import EPS, normal, positive, rng

jax.config.update("jax_default_matmul_precision", "highest")  # else products round their factors to TF32, here as on a GPU
GPU, CPU = jax.devices("gpu")[0], jax.devices("cpu")[0]


def same(function, *arguments, bound=64.0):
    """The function's results on both, whose differences are at most `bound` epsilons of the largest element; integers are equal."""
    found = []
    for device in (GPU, CPU):
        with jax.default_device(device):
            leaves = jax.tree.leaves(jax.jit(function)(*[jax.device_put(a, device) for a in arguments]))
        assert all(leaf.devices() == {device} for leaf in leaves)
        found.append([np.asarray(leaf) for leaf in leaves])
    assert found[0] and len(found[0]) == len(found[1])
    for one, other in zip(*found, strict=True):
        assert one.shape == other.shape and one.dtype == other.dtype and one.size
        if one.dtype.kind in "fc":
            assert np.isfinite(one).all()
            error = np.abs(one - other).max() / (np.abs(other).max() * EPS)
            assert error <= bound, f"{error} epsilons"
        else:
            assert (one == other).all()
    return found[0]


@check
def elementwise():
    x = normal(1000)
    same(lambda x: jnp.tanh(jnp.exp(jnp.sin(x)) * x + 1) / 3, x)
    same(lambda x: (jnp.arctan2(x, x + 1), jnp.cbrt(x), jnp.log1p(jnp.abs(x)), jnp.expm1(x), jnp.abs(x) ** 1.5), x)
    same(lambda x: (jax.scipy.special.erf(x), jax.scipy.special.gammaln(jnp.abs(x) + 1)), x)
    same(lambda x: jnp.exp(x.astype(jnp.float16)).astype(jnp.float32), x, bound=2**14)


@check
def integers():
    a, b = rng.integers(1, 1000, 100, dtype=np.int32), rng.integers(1, 10, 100, dtype=np.int32)
    same(lambda a, b: (a // b, a % b, a << 2, a ^ b, lax.population_count(a), lax.clz(a), jnp.argmax(a), a.astype(jnp.float32).astype(jnp.int8)), a, b)


@check
def matmul():
    same(lambda a, b: a @ b, normal(64, 48), normal(48, 80))
    same(lambda a, b: jax.nn.relu(a @ b + 1), normal(128, 256), normal(256, 128))
    same(lambda a, b: jnp.einsum("bij,bjk->bik", a, b), normal(5, 33, 20), normal(5, 20, 17))


@check
def matmul_tf32_and_bfloat16():
    """TF32 and bfloat16 keep 11 and 8 bits of a factor."""
    with jax.default_matmul_precision("default"):
        same(lambda a, b: a @ b, normal(64, 48), normal(48, 80), bound=2**14)
    same(lambda a, b: (a.astype(jnp.bfloat16) @ b.astype(jnp.bfloat16)).astype(jnp.float32), normal(64, 64), normal(64, 64), bound=2**17)


@check
def convolution():
    images, weights = normal(2, 3, 16, 16), normal(8, 3, 3, 3)
    same(lambda x, w: lax.conv_general_dilated(x, w, (1, 1), "SAME"), images, weights)
    same(jax.grad(lambda w, x: jnp.sum(lax.conv_general_dilated(x, w, (2, 2), "SAME") ** 2), argnums=(0, 1)), weights, images)


@check
def pooling():
    images = normal(2, 3, 16, 16)

    def pool(x):
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 3, 3), (1, 1, 2, 2), "SAME")

    same(lambda x: (pool(x), jax.grad(lambda x: jnp.sum(pool(x) ** 2))(x)), images)


@check
def softmax():
    same(lambda x: (jax.nn.softmax(x * 5), jax.nn.logsumexp(x, 1)), normal(33, 1000))


@check
def reductions():
    same(lambda x: (x.sum(), x.sum(0), x.sum(1), x.max(), x.min(1), jnp.var(x, 1), jnp.argmax(x, 1), jnp.linalg.norm(x)), normal(300, 400))
    same(lambda x: x.sum(), rng.random(1 << 18, dtype=np.float32))


@check
def scans():
    same(lambda x: (jnp.cumsum(x, 1), jnp.cumprod(1 + x * 0.01, 1), lax.cummax(x, 1)), rng.random((10, 1000), dtype=np.float32))


@check
def sorting():
    x = normal(3000)
    assert (same(jnp.sort, x)[0] == np.sort(x)).all()
    same(lambda x: (jnp.argsort(x), lax.top_k(x, 5)), x)
    same(lambda x: jnp.sort(x, axis=1), normal(10, 300))


@check
def gather_and_scatter():
    i = rng.integers(0, 100, 50)
    same(lambda x, i: x[i], normal(100, 7), i)
    same(lambda x, i, u: (x.at[i].add(u), jax.ops.segment_sum(u, i, 100), x.T + 1), normal(100, 7), i, normal(50, 7))


@check
def control_flow():
    same(lambda x: lax.scan(lambda c, y: (c * 0.9 + y, c), jnp.zeros(7), x), normal(50, 7))
    same(lambda x: lax.while_loop(lambda s: s[0] < 20, lambda s: (s[0] + 1, s[1] * 0.5 + 1), (0, x)), normal(10))
    same(lambda x: lax.cond(jnp.sum(x) > 0, lambda v: v * 2, lambda v: v - 1, x), normal(10))


@check
def vmap_and_grad():
    same(jax.vmap(jax.grad(lambda x: jnp.sum(x**3))), normal(10, 30))
    same(jax.vmap(jnp.dot), normal(10, 30), normal(10, 30))
    same(jax.grad(lambda w, x: jnp.mean(jnp.tanh(x @ w) ** 2)), normal(20, 10), normal(50, 20))


@check
def random_numbers():
    """The same bits, the same permutation; normal numbers go through erfinv."""
    same(lambda: jax.random.bits(jax.random.key(3), (1000,)))
    same(lambda: jax.random.permutation(jax.random.key(3), 500))
    same(lambda: (jax.random.normal(jax.random.key(3), (1000,)), jax.random.uniform(jax.random.key(4), (1000,))))


@check
def fft():
    same(lambda x: (jnp.fft.fft(x), jnp.fft.ifft(x)), (normal(4, 128) + 1j * normal(4, 128)).astype(np.complex64))
    same(lambda x: (jnp.fft.rfft2(x), jnp.fft.irfft(jnp.fft.rfft(x))), normal(4, 32, 64))


@check
def solving():
    a = positive(30)
    same(jnp.linalg.cholesky, a)
    same(lambda a, b: (jnp.linalg.solve(a, b), jax.scipy.linalg.solve_triangular(a, b, lower=True)), a, normal(30, 4))
    same(jnp.linalg.slogdet, a)


@check
def factorizations():
    """Of vectors only what their signs do not change."""

    def qr(a):
        q, r = jnp.linalg.qr(a)
        return jnp.abs(r), q @ r, q.T @ q

    def svd(a):
        u, s, v = jnp.linalg.svd(a, full_matrices=False)
        return s, (u * s) @ v

    def eigh(a):
        w, v = jnp.linalg.eigh(a)
        return w, v @ (w[:, None] * v.T)

    same(qr, normal(24, 16), bound=256)
    same(svd, normal(24, 16), bound=256)
    same(eigh, positive(24), bound=256)


@check
def several_gpus():
    """Each computes by itself; an array moves from one to the other."""
    one, two = jax.devices("gpu")
    x = normal(100)
    for device in (one, two):
        assert np.allclose(np.asarray(jax.jit(lambda x: x * 3)(jax.device_put(x, device))), x * 3)
    moved = jax.device_put(jax.device_put(x, one) + 1, two)
    assert moved.devices() == {two} and (np.asarray(moved) == x + 1).all()


main()
