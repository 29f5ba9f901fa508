"""Prints where the CUDA 13, CUDA 12 and NVML headers lie in this Python's site-packages, as a CMake list."""

from __future__ import annotations

import sys
from pathlib import Path

WANTED = (("nvidia/cu13/include", "cuda.h"), ("nvidia/cuda_runtime/include", "cuda.h"), ("nvidia/nvml_dev/include", "nvml.h"))


def find(folder: str, header: str) -> str:
    for entry in sys.path:
        place = Path(entry or ".") / folder
        if (place / header).is_file():
            return str(place)
    raise SystemExit(f"{folder}/{header} is in none of {sys.path}")


print(";".join(find(folder, header) for folder, header in WANTED))
