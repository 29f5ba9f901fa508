"""Leaves its blocks, waits for a line, and goes on in the next: leaves.py URL. Prints "left" each time, and "right"."""

import sys

import gpuvirt

with gpuvirt.remote(pool=sys.argv[1]):
    import cupy

    numbers = cupy.arange(10_000_000)
print("left", flush=True)
sys.stdin.readline()
with gpuvirt.remote(pool=sys.argv[1]):
    numbers += 1
print("left", flush=True)
sys.stdin.readline()
with gpuvirt.remote(pool=sys.argv[1]):
    assert int(numbers.sum()) == 10_000_000 * 10_000_001 // 2
print("right")
