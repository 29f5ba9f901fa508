"""C sources that these tests generate."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Implementations that the library under test brings itself, and those that fakes.c writes by hand.
REAL = re.compile(r"impl_cu(GetProcAddress|GetError|GetExportTable|Logs|Profiler)")
BY_HAND = {
    *(
        "impl_cuMemAlloc",
        "impl_cuDriverGetVersion",
        "impl_cuDeviceGetName",
        "impl_cuLaunchKernelEx",
        "impl_cuInit",
        "impl_cuDeviceGetCount",
        "impl_cuDeviceGetUuid",
        "impl_cuDeviceCanAccessPeer",
    ),
    *("impl_cuDeviceTotalMem", "impl_cuDeviceGetAttribute", "impl_cuDevicePrimaryCtxGetState", "impl_cuMemGetInfo"),
    *(
        "impl_cuDeviceGet",
        "impl_cuDevicePrimaryCtxRetain",
        "impl_cuCtxGetCurrent",
        "impl_cuCtxSetCurrent",
        "impl_cuCtxGetDevice",
        "impl_cuDevicePrimaryCtxReset",
        "impl_cuModuleGetLoadingMode",
    ),
}


def recorders(gv_impl: str) -> str:
    """An implementation of everything that says who was called, and with which stream."""
    out = ['#include "gv_impl.h"\n#include "fakes.h"\n']
    for name, arguments in re.findall(r"^CUresult (impl_\w+)\((.*)\);$", gv_impl, re.M):
        if REAL.match(name) or name in BY_HAND:
            continue
        names = [re.search(r"(\w+)$", a.strip())[1] for a in arguments.split(",")] if arguments != "void" else []  # type: ignore[index]
        stream = next((n for n, a in zip(names, arguments.split(","), strict=False) if re.match(r"CUstream \w", a.strip())), "NULL")
        used = "".join(f" (void){n};" for n in names)
        out.append(f'CUresult {name}({arguments}) {{{used} return fake_call("{name}", {stream}); }}\n')
    return "".join(out)
