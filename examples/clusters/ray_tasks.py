"""Tasks of a Ray program that compute on remote GPUs: ray_tasks.py [TASKS].

Each takes a GPU of the pool (GPUVIRT_POOL) for as long as it computes, and gives it back at its end. Ray's own resource "gpuvirt" bounds how many
tasks ask for one at a time; who gets which GPU, and when, decides the pool. `max_calls=1` has Ray end a worker after its task: CUDA begins once in a
process, and what has given its GPU back cannot begin anew.
"""

from __future__ import annotations

import sys
from typing import Any

import ray

EACH = 100_000  # numbers of one task
# y[i] = x[i]²
KERNEL = """
extern "C" __global__ void square(const long long *x, long long *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] * x[i];
}
"""


@ray.remote(num_cpus=1, resources={"gpuvirt": 1}, max_calls=1)
def squares(first: int) -> dict[str, Any]:
    """The sum of the squares of `EACH` numbers, by a kernel on a remote GPU, and where that was."""
    import gpuvirt

    lease = gpuvirt.attach(gpus=1)
    try:
        import cupy

        numbers = cupy.arange(first, first + EACH, dtype=cupy.int64)
        found = cupy.empty_like(numbers)
        cupy.RawKernel(KERNEL, "square")(((EACH + 255) // 256,), (256,), (numbers, found, EACH))
        return {"sum": int(found.sum()), "gpu": lease.devices[0].ordinal, "server": lease.devices[0].server}
    finally:
        lease.release()


def main(tasks: int) -> None:
    ray.init(num_cpus=2, resources={"gpuvirt": 2}, include_dashboard=False, log_to_driver=False)
    parts = ray.get([squares.remote(EACH * task) for task in range(tasks)])
    for part in parts:
        print(f"{part['sum']} on GPU {part['gpu']} of {part['server']}")
    total, numbers = sum(part["sum"] for part in parts), EACH * tasks
    print("right" if total == (numbers - 1) * numbers * (2 * numbers - 1) // 6 else f"wrong: {total}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 4)
