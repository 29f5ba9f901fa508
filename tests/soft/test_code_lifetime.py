"""The lifetime of compiled code is that of its module."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from soft.kernels import Kernels

TEXT = (
    ".version 8.0\n.target sm_80\n.address_size 64\n.visible .global .align 4 .u32 g = 7; .visible .entry k(.param .u64 p) { .reg .b64 %a; .reg .b32 %r; "
    "ld.param.u64 %a, [p]; ld.global.u32 %r, [g]; st.global.u32 [%a], %r; ret; }"
)


def memory() -> int:
    """What this process holds, KiB, and its mappings."""
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("VmRSS"))
    return int(line.split()[1])


def rounds(count: int) -> None:
    for _ in range(count):
        k = Kernels(TEXT)
        out = np.zeros(1, np.uint32)
        k.launch("k", 1, 1, out)
        assert out[0] == 7
        k.compiler.module_unload(k.number)


@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=pytest.mark.long)])
def test_modules_loaded_and_unloaded_leave_nothing(count: int) -> None:
    rounds(100)
    before, mappings = memory(), len(Path("/proc/self/maps").read_text().splitlines())
    rounds(count)
    assert memory() - before < 6000, f"{memory() - before} KiB more"
    assert len(Path("/proc/self/maps").read_text().splitlines()) - mappings < 50
