"""gv_backend_ops.h: the table of a backend's functions, and what declares and fills one."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from backend_spec import BackendFunction
from writing import BANNER

TOP = """\
#ifndef GV_BACKEND_OPS_H
#define GV_BACKEND_OPS_H

struct gv_backend_ops {
    const char *name; /* "cuda", "soft" */
"""

AFTER = """\
};

/* The functions of one backend, by its prefix. What it does not define is NULL in its table. */
#define GV_BACKEND_DECLARE(prefix) \\
"""


def space(result: str) -> str:
    return result if result.endswith("*") else result + " "


def member(f: BackendFunction) -> str:
    doc = f"{f.doc}{' ' if f.doc and f.optional else ''}{'May be NULL.' if f.optional else ''}"
    lines = textwrap.wrap(doc, 140)
    comment = "".join(f"    {'/*' if i == 0 else ' *'} {line}{' */' if i + 1 == len(lines) else ''}\n" for i, line in enumerate(lines))
    return f"{comment}    {space(f.result)}(*{f.name})({', '.join(f.arguments)});\n"


def header(functions: Iterable[BackendFunction]) -> str:
    all_of_them = list(functions)
    declared = [f"    __attribute__((weak)) {space(f.result)}prefix##_{f.name}({', '.join(f.arguments)});" for f in all_of_them]
    entries = [f"    .{f.name} = prefix##_{f.name}," for f in all_of_them]
    return "".join(
        [
            BANNER,
            TOP,
            *map(member, all_of_them),
            AFTER,
            " \\\n".join(declared).removesuffix(";"),
            "\n\n/* const struct gv_backend_ops ops = {.name = \"soft\", GV_BACKEND_ENTRIES(soft)}; */\n#define GV_BACKEND_ENTRIES(prefix) \\\n",
            " \\\n".join(entries),
            "\n\n#endif\n",
        ]
    )
