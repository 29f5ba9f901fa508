"""libnvidia-ml.so.1: every function that nvml.h declares is exported; those that native/shim/nvml does not implement say so."""

from __future__ import annotations

import tomllib
from pathlib import Path

from function_spec import SpecError
from headers import preprocess
from pycparser import c_ast, c_parser
from writing import BANNER, c_string

HEADER = """\
#ifndef GV_NVML_H
#define GV_NVML_H

/* The oldest forms too, under their own names. */
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include {path}

#endif
"""

SOURCE = """\
#include <stddef.h>

#define NVML_ERROR_NOT_SUPPORTED 3
#define STUB(name) __attribute__((visibility("default"))) int name(void) { return NVML_ERROR_NOT_SUPPORTED; }

"""


def declared(include: Path) -> list[str]:
    """All functions of nvml.h, the unversioned ones too."""
    text = preprocess("#define NVML_NO_UNVERSIONED_FUNC_DEFS\n#include <nvml.h>\n", include)
    tree = c_parser.CParser().parse(text, "nvml.h")
    return sorted({n.name for n in tree.ext if isinstance(n, c_ast.Decl) and isinstance(n.type, c_ast.FuncDecl) and n.name.startswith("nvml")})


def header(include: Path) -> str:
    return BANNER + HEADER.format(path=c_string(str(include.resolve() / "nvml.h")))


def source(include: Path, table: Path) -> str:
    implemented = set(tomllib.loads(table.read_text())["implemented"])
    names = declared(include)
    if unknown := implemented - set(names):
        raise SpecError(f"{table.name}: not in nvml.h: {sorted(unknown)}")
    out = [BANNER, SOURCE, *(f"STUB({name})\n" for name in names if name not in implemented)]
    out.append("\n/* One that is listed as implemented and is not does not link. */\n")
    out += [f"extern int {name}();\n" for name in sorted(implemented)]
    out.append("__attribute__((used)) static int (*const nvml_implemented[])() = {\n")
    out += [f"    {name},\n" for name in sorted(implemented)]
    return "".join([*out, "};\n"])
