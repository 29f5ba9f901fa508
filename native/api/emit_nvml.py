"""The exported functions of libnvidia-ml.so.1: those that native/shim/nvml implements by their own names, the others as functions that answer "not supported"."""

from __future__ import annotations

from pathlib import Path

from writing import BANNER


def source(include: Path) -> str:
    return BANNER
