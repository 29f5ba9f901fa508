"""Works as people do: thinks, computes, thinks.

notebook.py MIB CELLS SEED FILE [THINK]: keeps MIB MiB on the GPU, and computes on all of them in each of CELLS cells, THINK (2) seconds apart, from
half to one and a half of that. Prints "running" when it has begun and "right" at the end. FILE gets, as JSON, each cell's seconds from its first call
to its first result.
"""

import json
import random
import sys
import time
from pathlib import Path

import cupy

PIECES = 4

mib, cells, seed, file = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
think = float(sys.argv[5]) if len(sys.argv) > 5 else 2.0
chance, waits = random.Random(seed), []
arrays = [cupy.full((mib << 20) // PIECES // 4, index, cupy.uint32) for index in range(PIECES)]
expected = [*range(PIECES)]
print("running", flush=True)
for cell in range(cells):
    time.sleep(chance.uniform(0.5, 1.5) * think)
    began = time.monotonic()
    for array in arrays:
        array *= 3
        array += cell
    expected = [(value * 3 + cell) % 2**32 for value in expected]
    assert int(arrays[0][0]) == expected[0]
    waits.append(time.monotonic() - began)
    assert all(bool((array == value).all()) for array, value in zip(arrays, expected, strict=True))
file.write_text(json.dumps(waits))
print("right")
