"""Prints where the CUDA 13, CUDA 12 and NVML headers lie, as a CMake list.

They are in this Python's site-packages, or in the folder `headers` of its environment.

That folder exists because CuPy for CUDA 12 takes CUDA 13's headers when it finds them in its own site-packages, and then cannot compile.
"""

from __future__ import annotations

import sys
from pathlib import Path

WANTED = (("nvidia/cu13/include", "cuda.h"), ("nvidia/cuda_runtime/include", "cuda.h"), ("nvidia/nvml_dev/include", "nvml.h"))


def find(folder: str, header: str) -> str:
    for entry in [*sys.path, Path(sys.prefix) / "headers"]:
        place = Path(entry or ".") / folder
        if (place / header).is_file():
            return str(place)
    raise SystemExit(f"{folder}/{header} is in none of {sys.path}")


print(";".join(find(folder, header) for folder, header in WANTED))
