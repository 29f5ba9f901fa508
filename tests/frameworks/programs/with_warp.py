import numpy as np
import warp as wp


@wp.kernel
def distances(points: wp.array(dtype=wp.vec3), center: wp.vec3, out: wp.array(dtype=float)):
    i = wp.tid()
    out[i] = wp.length(points[i] - center)


@wp.kernel
def total(values: wp.array(dtype=float), out: wp.array(dtype=float)):
    wp.atomic_add(out, 0, values[wp.tid()] * values[wp.tid()])


wp.init()
device = wp.get_cuda_device()
points = np.random.default_rng(1).normal(size=(1000, 3)).astype(np.float32)
with wp.ScopedDevice(device):
    p = wp.array(points, dtype=wp.vec3, requires_grad=True)
    length, out = wp.zeros(1000, dtype=float, requires_grad=True), wp.zeros(1, dtype=float, requires_grad=True)
    with wp.Tape() as tape:
        wp.launch(distances, dim=1000, inputs=[p, wp.vec3(0.5, 0.0, 0.0)], outputs=[length])
        wp.launch(total, dim=1000, inputs=[length], outputs=[out])
    tape.backward(out)
    expected = np.linalg.norm(points - [0.5, 0, 0], axis=1)
    np.testing.assert_allclose(length.numpy(), expected, rtol=1e-5)
    np.testing.assert_allclose(out.numpy()[0], (expected**2).sum(), rtol=1e-4)
    np.testing.assert_allclose(p.grad.numpy(), 2 * (points - [0.5, 0, 0]), rtol=1e-3, atol=1e-4)
print("right")
