"""gv_objects: what the worker keeps of each object that a client named, how it is kept, destroyed, and ends with its context."""

from __future__ import annotations

from collections.abc import Iterator

from backend_spec import BackendFunction
from command_spec import C_TYPES, CommandSpec, Object, SpecError
from writing import BANNER

TOP = """\
#ifndef GV_OBJECTS_H
#define GV_OBJECTS_H

#include "handles.h"

struct worker;
struct worker_context;

"""

FUNCTIONS = """\
/* worker_keep_K: what the backend made becomes the client's object `id`. 0; CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_INVALID_VALUE: the id is taken.
 * With an error what was made stays the caller's.
 * worker_destroy_K: 0; CUDA_ERROR_INVALID_HANDLE: there is none; else what the backend says, and the object stays. */
"""

ENDS = """\

/* The context goes: so does what was made in it and not destroyed, but for what native/worker sweeps by hand. */
void gv_objects_end_context(struct worker *w, uint32_t ctx);
/* The backend has gone, and its objects with it. */
void gv_objects_free(struct worker *w);

#endif
"""


def generated(spec: CommandSpec) -> list[Object]:
    return [o for o in spec.objects.values() if not o.by_hand]


def struct(o: Object) -> str:
    members = [f"struct gv_{o.kind} *{o.kind};"]
    members += ["uint32_t ctx;"] if o.context else []
    members += ["uint64_t bytes; /* of memory in use */"] if o.bytes else []
    members += [f"uint8_t {name}{type.removeprefix('u8')};" if type.startswith("u8[") else f"{C_TYPES[type]} {name};" for name, type in o.more]
    return f"struct {o.struct} {{\n{''.join(f'    {m}{chr(10)}' for m in members)}}};\n\n"


def keep(o: Object) -> str:
    context = "const struct worker_context *context, " if o.context else ""
    return f"int worker_keep_{o.kind}(struct worker *w, {context}uint64_t id, struct gv_{o.kind} *made{', uint64_t bytes' if o.bytes else ''})"


def destroy(o: Object) -> str:
    return f"int worker_destroy_{o.kind}(struct worker *w, uint64_t id)"


def header(spec: CommandSpec) -> str:
    rows = generated(spec)
    out = [BANNER, TOP, *map(struct, rows)]
    out.append("/* By the client's ids. */\nstruct worker_objects {\n" + "".join(f"    struct handles {o.kind}s;\n" for o in rows) + "};\n\n")
    out.append(FUNCTIONS)
    out += [f"{declared(o)};\n" for o in rows for declared in (keep, destroy)]
    return "".join([*out, ENDS])


def keeping(o: Object) -> Iterator[str]:
    yield f"struct {o.struct} *o = calloc(1, sizeof *o);"
    yield "if (!o) return CUDA_ERROR_OUT_OF_MEMORY;"
    yield f"if (handles_put(&{o.table}, id, o)) {{"
    yield "    free(o);"
    yield "    return CUDA_ERROR_INVALID_VALUE;"
    yield "}"
    yield f"o->{o.kind} = made;"
    if o.context:
        yield "o->ctx = context->id;"
    if o.bytes:
        yield "o->bytes = bytes;"
        yield "atomic_fetch_add(&w->memory_used, bytes);"
    yield "return 0;"


def destroying(o: Object, backend: dict[str, BackendFunction]) -> Iterator[str]:
    yield f"struct {o.struct} *o = handles_get(&{o.table}, id);"
    yield "if (!o) return CUDA_ERROR_INVALID_HANDLE;"
    if backend[o.destroy].result == "void":
        yield f"w->ops->{o.destroy}(o->{o.kind});"
    else:
        yield f"int status = w->ops->{o.destroy}(o->{o.kind});"
        yield "if (status) return status;"
    if o.bytes:
        yield "atomic_fetch_sub(&w->memory_used, o->bytes);"
    for name, total in o.sum:
        yield f"w->{total} -= o->{name};"
    yield f"handles_take(&{o.table}, id);"
    yield "free(o);"
    yield "return 0;"


def function(head: str, lines: Iterator[str]) -> str:
    return f"{head} {{\n" + "".join(f"    {line}\n" for line in lines) + "}\n\n"


def ending(rows: list[Object]) -> Iterator[str]:
    for o in rows:
        if o.context:
            yield f"for (uint64_t i = 0; i < {o.table}.size; i++) {{"
            yield f"    struct {o.struct} *o = handles_at(&{o.table}, i);"
            yield f"    if (o && o->ctx == ctx) worker_destroy_{o.kind}(w, {o.table}.ids[i]);"
            yield "}"


def freeing(rows: list[Object]) -> Iterator[str]:
    for o in rows:
        yield f"for (void *o; (o = handles_pop(&{o.table}));) free(o);"
        yield f"handles_free(&{o.table});"


def source(spec: CommandSpec, backend: dict[str, BackendFunction]) -> str:
    if wrong := [o.kind for o in spec.objects.values() if o.destroy not in backend]:
        raise SpecError(f"the backend has no function that destroys: {', '.join(wrong)}")
    rows = generated(spec)
    out = [BANNER, '#include <stdlib.h>\n\n#include "state.h"\n\n']
    for o in rows:
        out += [function(keep(o), keeping(o)), function(destroy(o), destroying(o, backend))]
    out.append(function("void gv_objects_end_context(struct worker *w, uint32_t ctx)", ending(rows)))
    out.append(function("void gv_objects_free(struct worker *w)", freeing(rows)))
    return "".join(out).rstrip("\n") + "\n"
