"""Wire structs with encoders (inline: a launch is encoded in the caller's time) and decoders that believe nothing."""

from __future__ import annotations

from command_spec import C_TYPES, Body, CommandSpec, Field
from writing import BANNER


def bodies(spec: CommandSpec) -> list[Body]:
    """All structs of the wire, in table order."""
    found: list[Body] = []
    for command in spec.commands:
        found.append(command.body)
        if command.sync:
            found.append(command.reply)
    return found + [event.body for event in spec.events]


def struct(body: Body) -> str:
    lines = [f"struct {body.name} {{"]
    for f in body.fields:
        if f.type == "bytes":
            lines += [f"    const void *{f.name};", f"    uint32_t {f.name}_size;"]
        elif f.type == "str":
            lines.append(f"    const char *{f.name};")
        else:
            array = f"[{f.count}]" if f.count > 1 else ""
            lines.append(f"    {C_TYPES[f.type]} {f.name}{array};")
    if not body.fields:
        lines.append("    char unused;")
    return "\n".join([*lines, "};"])


def blob_length(f: Field) -> str:
    """The length of a blob's data without padding; a str's NUL travels too but does not count."""
    return f"gv_wire_length(c->{f.name})" if f.type == "str" else f"c->{f.name}_size"


def size(body: Body) -> str:
    lines = [f"static inline uint64_t {body.name}_size(const struct {body.name} *c) {{"]
    if not body.blobs:
        lines.append("    (void)c;")
    terms = [str(body.fixed)]
    for f in body.blobs:
        terms.append(f"gv_wire_pad({blob_length(f)}{' + 1' if f.type == 'str' else ''})")
    lines.append(f"    return {' + '.join(terms)};")
    return "\n".join([*lines, "}"])


def encode(body: Body) -> str:
    lines = [f"static inline void {body.name}_encode(const struct {body.name} *c, void *body) {{"]
    if not body.fields:
        lines.append("    (void)c, (void)body;")
    if body.fields:
        lines.append("    char *p = body;")
    # Whole bodies go out as they are, so no byte of the fixed part may stay undefined.
    end = 0
    for f in body.fields:
        if f.offset > end:
            lines.append(f"    memset(p + {end}, 0, {f.offset - end});")
        end = f.offset + f.width
        if f.is_blob:
            lines.append(f"    uint32_t {f.name}_length = (uint32_t){blob_length(f)};")
            lines.append(f"    memcpy(p + {f.offset}, &{f.name}_length, 4);")
        else:
            lines.append(f"    memcpy(p + {f.offset}, {'' if f.count > 1 else '&'}c->{f.name}, {f.width});")
    if body.fixed > end:
        lines.append(f"    memset(p + {end}, 0, {body.fixed - end});")
    if body.blobs:
        lines.append(f"    p += {body.fixed};")
    for i, f in enumerate(body.blobs):
        put = f"gv_wire_put(p, c->{f.name}, {f.name}_length, {1 if f.type == 'str' else 0});"
        lines.append(f"    {'p = ' if i + 1 < len(body.blobs) else ''}{put}")
    return "\n".join([*lines, "}"])


def decode(body: Body) -> str:
    lines = [f"int {body.name}_decode(struct {body.name} *c, const void *body, uint32_t size) {{"]
    lines.append("    struct gv_wire_reader r = {body, size};")
    lines.append(f"    const char *p = gv_wire_take(&r, {body.fixed});")
    lines.append("    if (!p) return -1;")
    if not body.fields:
        lines.append("    c->unused = 0;")
    for f in body.fields:
        if f.is_blob:
            lines.append(f"    uint32_t {f.name}_length;")
            lines.append(f"    memcpy(&{f.name}_length, p + {f.offset}, 4);")
        else:
            lines.append(f"    memcpy({'' if f.count > 1 else '&'}c->{f.name}, p + {f.offset}, {f.width});")
    for f in body.blobs:
        if f.type == "str":
            lines.append(f"    c->{f.name} = gv_wire_text(&r, {f.name}_length);")
        else:
            lines.append(f"    c->{f.name} = gv_wire_bytes(&r, {f.name}_length);")
            lines.append(f"    c->{f.name}_size = {f.name}_length;")
        lines.append(f"    if (!c->{f.name}) return -1;")
    lines.append("    return r.left == 0 ? 0 : -1;")
    return "\n".join([*lines, "}"])


HEADER = """\
#ifndef GV_COMMANDS_H
#define GV_COMMANDS_H

#include <stdint.h>
#include <string.h>

#include "record.h"

/* A body is a fixed part (the scalars in table order at their natural alignment; of bytes and str the u32 length), padded to 8, and behind it
 * the data of each bytes and str in order, padded to 8 (a str with its NUL, which the length does not count). */

/* The largest body that fits a record. */
#define GV_BODY_MAX (GV_RECORD_MAX - (uint32_t)sizeof(struct gv_record))

/* "launch", "completed", ...; "?" for an unknown one. */
const char *gv_op_name(uint16_t op);

static inline uint64_t gv_wire_pad(uint64_t n) {
    return (n + 7) & ~(uint64_t)7;
}

/* NULL counts as an empty text. */
static inline uint64_t gv_wire_length(const char *text) {
    return text ? strlen(text) : 0;
}

/* Copies n bytes and zeroes the padding, with room for a NUL when `nul` is 1. Returns the end. */
static inline char *gv_wire_put(char *to, const void *from, uint64_t n, uint64_t nul) {
    uint64_t padded = gv_wire_pad(n + nul);
    if (padded > n) memset(to + padded - 8, 0, 8);
    if (n) memcpy(to, from, n);
    return to + padded;
}

"""

DECODERS = """\
#include "gv_commands.h"

struct gv_wire_reader {
    const char *at;
    uint64_t left;
};

/* The next n bytes, n a multiple of 8, or NULL when there are fewer. */
static const char *gv_wire_take(struct gv_wire_reader *r, uint64_t n) {
    if (n > r->left) return NULL;
    const char *taken = r->at;
    r->at += n;
    r->left -= n;
    return taken;
}

static __attribute__((unused)) const void *gv_wire_bytes(struct gv_wire_reader *r, uint32_t length) {
    return gv_wire_take(r, gv_wire_pad(length));
}

/* A text must end with its NUL and hold no other. */
static __attribute__((unused)) const char *gv_wire_text(struct gv_wire_reader *r, uint32_t length) {
    const char *text = gv_wire_take(r, gv_wire_pad((uint64_t)length + 1));
    return text && memchr(text, 0, (uint64_t)length + 1) == text + length ? text : NULL;
}

"""


def header(spec: CommandSpec) -> str:
    out = [BANNER, HEADER, "enum gv_op {\n"]
    out += [f"    GV_OP_{name.upper()} = {number},\n" for name, number in spec.names()]
    out.append("};\n\n")
    for body in bodies(spec):
        out += [struct(body), "\n", size(body), "\n", encode(body), "\n"]
        out.append(f"/* 0, or -1 when `size` bytes at `body` are not one {body.name}. Pointers point into the body, 8-aligned as it is. */\n")
        out.append(f"int {body.name}_decode(struct {body.name} *c, const void *body, uint32_t size);\n\n")
    out.append("#endif\n")
    return "".join(out)


def source(spec: CommandSpec) -> str:
    out = [BANNER, DECODERS, "const char *gv_op_name(uint16_t op) {\n    switch (op) {\n"]
    for name, _ in spec.names():
        out.append(f'    case GV_OP_{name.upper()}: return "{name}";\n')
    out.append('    default: return "?";\n    }\n}\n\n')
    for body in bodies(spec):
        out += [decode(body), "\n\n"]
    return "".join(out)
