"""gv_impl.h: the functions that the shim's files implement."""

from __future__ import annotations

from function_spec import Function
from writing import BANNER


def prototypes(functions: list[Function]) -> dict[str, tuple[Function, str]]:
    """Name of each implementation -> its function and its declaration."""
    found: dict[str, tuple[Function, str]] = {}
    for f in functions:
        if not f.supported:
            continue
        for symbol in f.symbols:
            name = f.implementation(symbol)
            arguments = ", ".join(p.declaration for p in f.parameters(symbol)) or "void"
            found.setdefault(name, (f, f"CUresult {name}({arguments});"))
    return found


def header(functions: list[Function]) -> str:
    out = [BANNER, '#ifndef GV_IMPL_H\n#define GV_IMPL_H\n\n#include "objects/shim.h"\n']
    title = ""
    for f, declaration in prototypes(functions).values():
        if f.title != title:
            title = f.title
            out.append(f"\n/* {title}: {f.file} */\n\n")
        remarks = [f.kind, f.reason, f.note]
        out.append(f"/* {'; '.join(r for r in remarks if r)} */\n{declaration}\n")
    out.append("\n#endif\n")
    return "".join(out)
