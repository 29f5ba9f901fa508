"""Ranks of an MPI program that compute on remote GPUs: mpirun -n 2 gpuvirt run -- python mpi_ranks.py.

Each rank is a launch of its own, and so has a GPU of its own, of whichever host of the pool (GPUVIRT_POOL) has one; that is its GPU 0. (To have all
ranks of one host under one lease: `gpuvirt run --gpus 2 -- mpirun -n 2 python ...`, and each takes the GPU of its local rank.)
"""

from __future__ import annotations

import cupy
from mpi4py import MPI

EACH = 100_000  # numbers of one rank

comm = MPI.COMM_WORLD
first = EACH * comm.rank
numbers = cupy.arange(first, first + EACH, dtype=cupy.int64)
total = comm.allreduce(int((numbers * numbers).sum()))
count = EACH * comm.size
if comm.rank == 0:
    print(f"{comm.size} ranks")
    print("right" if total == (count - 1) * count * (2 * count - 1) // 6 else f"wrong: {total}")
