"""Executors of a PySpark job that compute on remote GPUs: spark_executors.py [PARTITIONS].

Two executors, each of which takes a GPU of the pool (GPUVIRT_POOL) for as long as it works on a partition, and gives it back at its end. Python's
workers are not used again (`spark.python.worker.reuse`): CUDA begins once in a process, and what has given its GPU back cannot begin anew.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

from pyspark.sql import SparkSession

NUMBERS = 400_000
# y[i] = x[i]²
KERNEL = """
extern "C" __global__ void square(const long long *x, long long *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] * x[i];
}
"""


def squares(numbers: Iterable[int]) -> Iterator[tuple[int, str]]:
    """The sum of their squares, by a kernel on a remote GPU, and where that was."""
    import gpuvirt

    lease = gpuvirt.attach(gpus=1)
    try:
        import cupy

        here = cupy.asarray([*numbers], dtype=cupy.int64)
        found = cupy.empty_like(here)
        cupy.RawKernel(KERNEL, "square")(((here.size + 255) // 256,), (256,), (here, found, here.size))
        yield int(found.sum()), f"GPU {lease.devices[0].ordinal} of {lease.devices[0].server}"
    finally:
        lease.release()


def main(partitions: int) -> None:
    builder = SparkSession.builder.master("local-cluster[2,1,1024]").appName("squares")
    spark = builder.config("spark.python.worker.reuse", "false").config("spark.ui.enabled", "false").getOrCreate()
    parts = spark.sparkContext.parallelize(range(NUMBERS), partitions).mapPartitions(squares).collect()
    spark.stop()
    for part, where in parts:
        print(f"{part} on {where}")
    print("right" if sum(part for part, _ in parts) == (NUMBERS - 1) * NUMBERS * (2 * NUMBERS - 1) // 6 else f"wrong: {parts}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 4)
