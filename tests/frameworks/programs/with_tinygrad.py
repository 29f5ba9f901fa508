import os

os.environ["DEV"] = "CUDA"  # as its users choose a device

import numpy as np
from tinygrad import Tensor

rng = np.random.default_rng(1)
a, b = rng.normal(size=(64, 48)).astype(np.float32), rng.normal(size=(48, 32)).astype(np.float32)
np.testing.assert_allclose((Tensor(a) @ Tensor(b)).numpy(), a @ b, rtol=1e-4, atol=1e-4)
x, y = Tensor(rng.normal(size=(128, 16)).astype(np.float32)), Tensor(rng.normal(size=(128, 1)).astype(np.float32))
w1, w2 = (Tensor(0.3 * rng.normal(size=shape).astype(np.float32)) for shape in ((16, 32), (32, 1)))
losses = []
for _ in range(20):
    loss = (((x @ w1).relu() @ w2 - y) ** 2).mean()
    gradients = loss.gradient(w1, w2)
    w1, w2 = ((w - 0.05 * g).realize() for w, g in zip((w1, w2), gradients, strict=True))
    losses.append(loss.item())
assert losses[-1] < losses[0], losses
print("right")
