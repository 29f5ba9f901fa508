import numpy as np
import taichi as ti

ti.init(arch=ti.cuda, log_level=ti.ERROR)
assert ti.lang.impl.current_cfg().arch == ti.cuda, "Taichi uses another device"
n = 256
x, loss = ti.field(ti.f32, shape=n, needs_grad=True), ti.field(ti.f32, shape=(), needs_grad=True)


@ti.kernel
def energy():
    for i in x:
        loss[None] += (x[i] - i * 0.01) ** 2


@ti.kernel
def julia(pixels: ti.types.ndarray()):
    for i, j in pixels:
        z, steps = ti.Vector([i / 32.0 - 1.0, j / 32.0 - 1.0]), 0
        while z.norm() < 20 and steps < 50:
            z = ti.Vector([z[0] ** 2 - z[1] ** 2 - 0.8, z[0] * z[1] * 2 + 0.156])
            steps += 1
        pixels[i, j] = steps


x.from_numpy(np.linspace(0, 1, n).astype(np.float32))
with ti.ad.Tape(loss):
    energy()
np.testing.assert_allclose(x.grad.to_numpy(), 2 * (np.linspace(0, 1, n) - np.arange(n) * 0.01), atol=1e-4)
pixels = np.zeros((64, 64), np.int32)
julia(pixels)
ti.reset()
ti.init(arch=ti.cpu, log_level=ti.ERROR)
assert 1 < pixels.mean() < 50 and len(np.unique(pixels)) > 5
print("right")
