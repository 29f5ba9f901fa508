import jax
import jax.numpy as jnp
import numpy as np

assert jax.devices()[0].platform == "gpu", jax.devices()
rng = np.random.default_rng(1)
x, y = rng.normal(size=(256, 20)).astype(np.float32), rng.normal(size=256).astype(np.float32)


@jax.jit
def loss(w):
    return jnp.mean((jnp.tanh(x @ w[:, :10]) @ jnp.ones(10) - y) ** 2)


@jax.jit
def train(w):
    return jax.lax.scan(lambda w, _: (w - 0.05 * jax.grad(loss)(w), loss(w)), w, length=30)


w = rng.normal(size=(20, 10)).astype(np.float32) * 0.1
trained, losses = train(w)
with jax.default_device(jax.devices("cpu")[0]):
    again, expected = train(w)
np.testing.assert_allclose(losses, expected, rtol=1e-3)
np.testing.assert_allclose(trained, again, atol=1e-3)
assert losses[-1] < losses[0] / 2, losses
print("right")
