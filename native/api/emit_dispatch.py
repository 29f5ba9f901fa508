"""gv_dispatch: decodes a client's record and calls the worker's function for it."""

from __future__ import annotations

from command_spec import CommandSpec
from writing import BANNER

TOP = """\
#ifndef GV_DISPATCH_H
#define GV_DISPATCH_H

#include "gv_commands.h"

/* Decodes one record of the client and returns what worker_do_X returns for it; -1 for an unknown command or a body that is not what the command
 * says, which ends the session. The record is whole (its size was checked by the link); the command's pointers point into it. */
int gv_dispatch(void *worker, const struct gv_record *record);

/* Written by the worker, one for each command: 0, or -1 to end the session. */
"""


def header(spec: CommandSpec) -> str:
    lines = [f"int worker_do_{c.name}(void *worker, const struct gv_record *record, const struct {c.body.name} *c);\n" for c in spec.commands]
    return "".join([BANNER, TOP, *lines, "\n#endif\n"])


def source(spec: CommandSpec) -> str:
    out = [BANNER, '#include "gv_dispatch.h"\n\nint gv_dispatch(void *worker, const struct gv_record *record) {\n']
    out.append("    if (record->size < sizeof *record) return -1;\n    const void *body = record + 1;\n")
    out.append("    uint32_t size = record->size - (uint32_t)sizeof *record;\n    switch (record->op) {\n")
    for c in spec.commands:
        out.append(
            f"    case GV_OP_{c.name.upper()}: {{\n"
            f"        struct {c.body.name} c;\n"
            f"        return {c.body.name}_decode(&c, body, size) == 0 ? worker_do_{c.name}(worker, record, &c) : -1;\n"
            "    }\n"
        )
    out.append("    default: return -1;\n    }\n}\n")
    return "".join(out)
