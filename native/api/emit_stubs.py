"""The exported functions: each passes the gate of entry.h and calls its implementation, or says that it is not supported."""

from __future__ import annotations

import re

from function_spec import Function
from headers import Api, Parameter, Symbol
from writing import BANNER, c_string

HEADER = """\
#ifndef GV_SYMBOLS_H
#define GV_SYMBOLS_H

/* Every symbol that libcuda.so.1 exports, in the order of entry_symbols. */
enum gv_symbol {
"""

SOURCE = """\
#include "abi/entry.h"
#include "gv_impl.h"
#include "gv_symbols.h"

/* Stubs have names of their own in C and the driver's names for the linker: cuda.h declares the oldest ones with 32-bit
 * addresses, and here all take today's types. */
#define STUB(name) __attribute__((visibility("default"))) CUresult stub_##name
#define TRACED __attribute__((noinline, cold))

#ifdef GV_BREAK_STUBS /* a test's fault: the function that the environment names says that it has done its work, and has not */
#include <stdlib.h>
static int stub_is_broken(const char *base, const char *symbol) {
    const char *name = getenv("GV_BREAK_FUNCTION");
    return name && (!strcmp(name, base) || !strcmp(name, symbol));
}
#define BREAKABLE(base, symbol) \
    if (stub_is_broken(base, symbol)) return CUDA_SUCCESS;
#else
#define BREAKABLE(base, symbol)
#endif

"""


def symbols_of(functions: list[Function]) -> list[tuple[Function, Symbol]]:
    return [(f, s) for f in functions for s in f.symbols]


def header(functions: list[Function]) -> str:
    lines = [f"    GV_SYMBOL_{s.name},\n" for _, s in symbols_of(functions)]
    return "".join([BANNER, HEADER, *lines, "    GV_SYMBOLS,\n};\n\n#endif\n"])


def flags(f: Function) -> str:
    """What the gate lets through: see entry.h."""
    found = []
    if not f.before_init:
        found.append("ENTRY_NEEDS_INIT")
    if f.kind in ("async", "sync") and f.base != "cuInit":
        found.append("ENTRY_NEEDS_SERVER")
    if f.kind in ("async", "sync") and not f.outside:
        found.append("ENTRY_INSIDE")
    if f.after_fork:
        found.append("ENTRY_AFTER_FORK")
    return " | ".join(found) or "0"


def word(p: Parameter) -> str:
    """An argument as the trace keeps it: of a struct that is passed as it is, its first eight bytes."""
    if p.by_value:
        return f"entry_word(&{p.name}, sizeof {p.name})"
    return f"(uint64_t){'(uintptr_t)' if p.type.endswith('*') else ''}{p.name}"


def stub(f: Function, symbol: Symbol) -> str:
    """The exported function, and beside it the form that a traced call takes, out of the way of the others."""
    parameters = f.parameters(symbol)
    declaration = ", ".join(p.declaration for p in parameters) or "void"
    names = ", ".join(p.name for p in parameters)
    words = ", ".join(map(word, parameters)) or "0"
    call = f"{f.implementation(symbol)}({names})"
    before, after = per_thread(parameters) if symbol.stream else ("", "")
    result = f"    CUresult result = gate ? traced_{symbol.name}({names}) : {call};\n{after}    return result;\n" if after else ""
    ordinary = f"    if (__builtin_expect(gate < 0, 0)) return traced_{symbol.name}({names});\n    return {call};\n"
    return f"""\
static TRACED CUresult traced_{symbol.name}({declaration}) {{
    struct entry_call traced = {{.symbol = GV_SYMBOL_{symbol.name}, .args = {{{words}}}}};
    entry_trace_begin(&traced);
    return entry_trace_end(&traced, {call});
}}
STUB({symbol.name})({declaration}) __asm__("{symbol.name}");
STUB({symbol.name})({declaration}) {{
    BREAKABLE("{f.base}", "{symbol.name}")
    int gate = entry_gate(GV_SYMBOL_{symbol.name}, {flags(f)});
    if (__builtin_expect(gate > 0, 0)) return (CUresult)gate;
{before}{result or ordinary}}}

"""


def per_thread(parameters: tuple[Parameter, ...]) -> tuple[str, str]:
    """What a per-thread variant does before and after the call: its default stream is the calling thread's own."""
    for p in parameters:
        if p.type == "CUstream":
            return f"    if (!{p.name}) {p.name} = CU_STREAM_PER_THREAD;\n", ""
        if p.type == "const CUlaunchConfig *":
            copy = "    CUlaunchConfig per_thread;\n"
            copy += (
                f"    if ({p.name} && !{p.name}->hStream) {{\n        per_thread = *{p.name};\n        per_thread.hStream = CU_STREAM_PER_THREAD;\n"
            )
            return copy + f"        {p.name} = &per_thread;\n    }}\n", ""
    before = "    CUstream outer = shim_default_stream;\n    shim_default_stream = CU_STREAM_PER_THREAD;\n"
    return before, "    shim_default_stream = outer;\n"


def unsupported(symbol: Symbol) -> str:
    """Takes any arguments, looks at none."""
    return (
        f'STUB({symbol.name})(void) __asm__("{symbol.name}");\n'
        f"STUB({symbol.name})(void) {{\n    return entry_unsupported(GV_SYMBOL_{symbol.name});\n}}\n\n"
    )


def trace_role(f: Function, p: Parameter, api: Api) -> str:
    """How the trace prints an argument: {"name", how, what it points to}."""
    role = f.role(p)
    pointed = re.sub(r"^const |\s*\*(const)?$", "", p.type)
    kind = api.scalars.get(pointed if p.type.endswith("*") else p.type, "")
    if p.type.endswith("*") and pointed.endswith("*"):
        kind = "pointer"
    how = "HEX"
    if role == "string":
        how = "STRING"
    elif role.startswith("text["):
        how = "TEXT"
    elif role == "in" and not p.type.endswith("*"):
        how = {"i": "SIGNED", "u": "UNSIGNED"}.get(kind[:1], "HEX")
    elif role in ("out", "inout", "new", "out address", "new address") and p.type.endswith("*"):
        how = {"pointer": "OUT_HEX", "i4": "OUT_I32", "u4": "OUT_U32", "u8": "OUT_U64", "i8": "OUT_U64", "f4": "OUT_FLOAT"}.get(kind, "HEX")
        if how == "OUT_U64" and role != "out":
            how = "OUT_HEX"
        if how == "OUT_U64" and pointed == "CUdeviceptr":
            how = "OUT_HEX"
    return f"{{{c_string(p.name)}, ENTRY_{how}}}"


def source(functions: list[Function], api: Api) -> str:
    out = [BANNER, SOURCE]
    for f, symbol in symbols_of(functions):
        out.append(stub(f, symbol) if f.supported else unsupported(symbol))
    out.append("const struct entry_symbol entry_symbols[GV_SYMBOLS] = {\n")
    for f, symbol in symbols_of(functions):
        head = f"    [GV_SYMBOL_{symbol.name}] = {{{c_string(symbol.name)}, {c_string(f.kind)}, {c_string(f.reason)}"
        if f.supported:
            roles = [trace_role(f, p, api) for p in f.parameters(symbol)]
            out.append(f"{head}, {len(roles)}, (const struct entry_param[]){{{', '.join(roles) or '{0}'}}}}},\n")
        else:
            out.append(f"{head}, 0, NULL}},\n")
    out.append("};\n")
    return "".join(out)
