"""The software GPU's compiler: PTX to machine code of the host's CPU (parser, analyses, LLVM IR through llvmlite)."""

from __future__ import annotations

from gpuvirt.soft.errors import SoftError

__all__ = ["SoftError"]
