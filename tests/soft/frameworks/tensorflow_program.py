"""TensorFlow's operations, and what XLA makes of them, checked against the same function on the host's processor. Its own kernels come from its wheel, as PTX."""

from __future__ import annotations

import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"

import numpy as np
import tensorflow as tf
from checks import check, main
from samples import EPS, normal, positive, rng

tf.config.experimental.enable_tensor_float_32_execution(False)
assert tf.config.list_logical_devices("GPU"), "TensorFlow found no GPU"


def same(function, *arguments, bound=64.0, ways=("eager", "xla")):
    """The function's results on the GPU, operation by operation and compiled by XLA, are those of the processor within `bound` epsilons of the largest element."""
    with tf.device("CPU:0"):
        exact = [t.numpy() for t in tf.nest.flatten(function(*[tf.constant(a) for a in arguments]))]
    for way in ways:
        with tf.device("GPU:0"):
            called = tf.function(function, jit_compile=True) if way == "xla" else function
            results = tf.nest.flatten(called(*[tf.constant(a) for a in arguments]))
        assert len(results) == len(exact) and all("GPU:0" in t.device for t in results), way
        for tensor, other in zip(results, exact, strict=True):
            one = tensor.numpy()
            assert one.shape == other.shape and one.dtype == other.dtype and one.size
            if one.dtype.kind in "fc":
                assert np.isfinite(one).all(), way
                error = np.abs(one - other).max() / (np.abs(other).max() * EPS)
                assert error <= bound, f"{way}: {error} epsilons"
            else:
                assert (one == other).all(), way


@check
def elementwise():
    x = normal(1000)
    same(lambda x: tf.tanh(tf.exp(tf.sin(x)) * x + 1) / 3, x)
    same(lambda x: (tf.math.erf(x), tf.math.lgamma(tf.abs(x) + 1), tf.math.log1p(tf.abs(x)), tf.atan2(x, x + 1), tf.abs(x) ** 1.5), x)
    same(lambda x: (tf.where(x > 0, x, -x), tf.cast(x * 100, tf.int32) // 3, tf.transpose(tf.reshape(x, (20, 50))), tf.concat([x, x], 0)), x)


@check
def matmul():
    same(lambda a, b: a @ b, normal(64, 48), normal(48, 80))
    same(tf.matmul, normal(5, 33, 20), normal(5, 20, 17))


@check
def matmul_half():
    same(lambda a, b: tf.cast(tf.cast(a, tf.float16) @ tf.cast(b, tf.float16), tf.float32), normal(64, 64), normal(64, 64), bound=2**14)


@check
def convolution():
    def gradients(x, w):
        with tf.GradientTape() as tape:
            tape.watch([x, w])
            y = tf.nn.conv2d(x, w, 1, "SAME")
            z = tf.reduce_sum(y**2)
        return y, *tape.gradient(z, [x, w])

    same(gradients, normal(2, 16, 16, 3), normal(3, 3, 3, 8))


@check
def pooling():
    same(lambda x: (tf.nn.max_pool2d(x, 2, 2, "VALID"), tf.nn.avg_pool2d(x, 2, 2, "VALID")), normal(2, 16, 16, 3))


@check
def batch_norm():
    same(lambda x, g, b: tf.compat.v1.nn.fused_batch_norm(x, g, b)[:3], normal(2, 8, 8, 4), normal(4), normal(4))


@check
def softmax():
    same(lambda x: tf.nn.softmax(x * 5), normal(33, 1000))


@check
def reductions():
    same(lambda x: (tf.reduce_sum(x), tf.reduce_sum(x, 0), tf.reduce_mean(x, 1), tf.reduce_max(x), tf.argmax(x, 1)), rng.random((300, 400), dtype=np.float32))


@check
def cumsum():
    same(lambda x: tf.cumsum(x, 1), rng.random((10, 1000), dtype=np.float32))


@check
def sorting():
    same(tf.sort, normal(3000))
    same(lambda x: tf.math.top_k(x, 5), normal(10, 200))


@check
def gather_and_scatter():
    i = rng.integers(0, 100, (50, 1))
    same(lambda x, i, u: (tf.gather_nd(x, i), tf.tensor_scatter_nd_add(x, i, u)), normal(100, 7), i, normal(50, 7))


@check
def random_numbers():
    """The same bits on both, from Philox."""
    same(lambda: tf.random.stateless_uniform((1000,), (1, 2), None, None, tf.int32), ways=("eager",))
    same(lambda: tf.random.stateless_normal((1000,), (1, 2)), ways=("eager",))


@check
def fft():
    same(lambda x: tf.signal.fft(tf.cast(x, tf.complex64)), normal(4, 128))


@check
def linear_algebra():
    same(tf.linalg.cholesky, positive(30))
    same(tf.linalg.solve, positive(30), normal(30, 4), ways=("eager",))
    same(lambda a: tf.linalg.svd(a, compute_uv=False), normal(24, 16), ways=("eager",))


@check
def control_flow():
    same(lambda x: tf.while_loop(lambda i, x: i < 20, lambda i, x: (i + 1, x * 0.5 + 1), (0, x))[1], normal(10))


def train(device, steps=20):
    """Losses of a small convolutional network on made-up digits: noisy pictures of ten patterns."""
    made = np.random.default_rng(2)
    patterns = made.standard_normal((10, 12, 12, 1)).astype(np.float32)
    labels = made.integers(0, 10, 256)
    images = patterns[labels] + 0.5 * made.standard_normal((256, 12, 12, 1)).astype(np.float32)
    with tf.device(device):
        tf.keras.utils.set_random_seed(3)
        model = tf.keras.Sequential(
            [
                tf.keras.layers.Conv2D(8, 3, activation="relu"),
                tf.keras.layers.MaxPooling2D(),
                tf.keras.layers.Flatten(),
                tf.keras.layers.Dense(32, activation="relu"),
                tf.keras.layers.Dense(10),
            ]
        )
        model.build((None, 12, 12, 1))
        start = np.random.default_rng(4)  # the same weights on both
        model.set_weights([0.1 * start.standard_normal(w.shape).astype(np.float32) for w in model.get_weights()])
        model.compile("adam", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        losses = [float(model.train_on_batch(images[i : i + 32], labels[i : i + 32])) for i in [32 * (step % 8) for step in range(steps)]]
    return np.array(losses)


@check
def keras_training():
    """The mean loss so far falls, and is that of the processor. XLA compiles the step by itself on a GPU."""
    ours, exact = train("GPU:0"), train("CPU:0")
    assert ours[-1] < 0.9 * ours[0]
    assert np.abs(ours - exact).max() <= 1e-4 * exact[0], (ours, exact)


main()
