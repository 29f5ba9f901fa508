"""gv_dispatch: decodes a client's record, finds what it names, and calls the backend or the worker's function for it."""

from __future__ import annotations

from collections.abc import Iterator

from backend_spec import BackendFunction
from command_spec import Command, CommandSpec, Object, SpecError, field_of_call
from writing import BANNER, c_string

TOP = """\
#ifndef GV_DISPATCH_H
#define GV_DISPATCH_H

#include <stdbool.h>

#include "gv_commands.h"

struct worker;
struct worker_bytes;
@OBJECTS@
/* Carries out one record of the client; -1 for an unknown command, or a body that is not what the command says, which ends the session. The record
 * is whole (its size was checked by the link); the command's pointers point into it. */
int gv_dispatch(struct worker *w, const struct gv_record *record);
/* Whether the command may be carried out only when the device has come to rest, or its payload may lie behind others that wait for their streams. */
bool gv_may_wait(uint16_t op);
/* Whether results are wrong from here on when the command is not carried out. */
bool gv_is_work(uint16_t op);

/* Written by the worker: 0, or -1 to end the session. What a command names has been found; a stream may be NULL where the table says so. */
"""

HELPERS = """\
#include "state.h"

/* What the command names is not there. */
static __attribute__((unused)) int missing(struct worker *w, const struct gv_record *record, bool awaited, int status, const char *text) {
    if (awaited) return worker_reply(w, record, status, text, NULL, 0);
    worker_failed(w, record, status, text);
    return 0;
}

"""

def parameters(c: Command) -> list[str]:
    """What worker_do_X gets besides the worker, the record and the command."""
    work = c.work
    out = ["struct worker_bytes *bytes"] if work.bytes else []
    out += ["struct worker_context *context"] if work.context else []
    out += ["struct worker_stream *stream"] if work.stream else []
    out += [f"struct worker_{kind} *{field}" for field, kind in work.find]
    return out


def prototype(c: Command) -> str:
    given = "".join(f", {p}" for p in parameters(c))
    return f"int worker_do_{c.name}(struct worker *w, const struct gv_record *record, const struct {c.body.name} *c{given})"


def header(spec: CommandSpec) -> str:
    objects = "".join(f"struct {o.struct};\n" for o in spec.objects.values())
    return "".join([BANNER, TOP.replace("@OBJECTS@\n", objects), *(f"{prototype(c)};\n" for c in spec.commands if c.work.by_hand), "\n#endif\n"])


def no_such(kind: str) -> str:
    """What the client is told of a handle of nobody's."""
    return f"the command names {'an' if kind[0] in 'aeiou' else 'a'} {kind} that does not exist"


def absent(c: Command, status: str, text: str) -> str:
    return f"return missing(w, record, {'true' if c.sync else 'false'}, {status}, {c_string(text)});"


def prologue(c: Command, objects: dict[str, Object], backend: dict[str, BackendFunction]) -> Iterator[str]:
    work = c.work
    if work.device:
        yield "if (c->device >= w->n_devices) return -1;"
    used = [*work.needs, *([work.call[0]] if work.call else [])]
    if unknown := [name for name in used if name not in backend]:
        raise SpecError(f"command.{c.name}: no such function of a backend: {', '.join(unknown)}")
    needs = [*work.needs, *([work.call[0]] if work.call and backend[work.call[0]].optional else [])]
    if needs:
        yield f"if ({' || '.join(f'!w->ops->{name}' for name in dict.fromkeys(needs))}) " + absent(
            c, "CUDA_ERROR_NOT_SUPPORTED", "the server's GPU cannot do this"
        )
    if work.context:
        yield "struct worker_context *context = worker_context(w, record->ctx);"
        yield "if (!context) " + absent(c, "CUDA_ERROR_INVALID_CONTEXT", "the command's context does not exist")
    if work.stream:
        yield "struct worker_stream *stream = worker_stream(w, record, c->stream);"
        if work.stream == "must":
            yield "if (!stream) return 0;"
    for field, kind in work.find:
        o = objects[kind]
        yield f"struct {o.struct} *{field} = handles_get(&{o.table}, c->{field});"
        yield f"if (!{field}) " + absent(c, o.missing, work.fails or no_such(kind))
    if work.kernel:
        yield "if (c->kernel >= module->n_kernels) " + absent(c, "CUDA_ERROR_INVALID_HANDLE", work.fails)


def argument(c: Command, text: str) -> str:
    work = c.work
    name = field_of_call(text)
    if text.startswith(("out ", "inout ")):
        return f"&reply.{name}"
    if text.startswith("struct "):
        return "&described"
    if text.startswith("new "):
        return "&made"
    if name in dict(work.find):
        return f"{name}->{dict(work.find)[name]}"
    if name == "backend":
        return "w->backend"
    if name == "device_context":
        return "w->device_contexts[c->device]"
    if (name == "context" and work.context) or (name == "stream" and work.stream):
        return f"{name}->{name}"
    blob = any(f.name == name and f.type == "bytes" for f in c.body.fields)
    return f"c->{name}, c->{name}_size" if blob else f"c->{name}"


def described(c: Command) -> Iterator[str]:
    """A struct of the backend's with what the command's fields of the same names say, but for those that name objects."""
    assert c.work.call
    named = {"stream", *dict(c.work.find), *(c.work.make or ())[:1]}
    fields = [f for f in c.body.fields if f.name not in named and not f.is_blob]
    for text in c.work.call[1]:
        if text.startswith("struct "):
            scalars = ", ".join(f".{f.name} = c->{f.name}" for f in fields if f.count == 1)
            yield f"{text} described = {{{scalars}}};"
            for f in fields:
                if f.count > 1:
                    yield f"memcpy(described.{f.name}, c->{f.name}, sizeof described.{f.name});"


def kept(c: Command, objects: dict[str, Object], made_by: BackendFunction) -> Iterator[str]:
    """What was made becomes the client's, or is destroyed again."""
    assert c.work.make
    field, kind = c.work.make
    o = objects[kind]
    if made_by.result == "void":
        raise SpecError(f"command.{c.name}: {made_by.name} makes something and cannot fail")
    given = ["w", *(["context"] if o.context or o.by_hand else []), f"c->{field}", "made", *([f"c->{o.bytes}"] if o.bytes else [])]
    yield f"if (!status && (status = worker_keep_{kind}({', '.join(given)}))) w->ops->{o.destroy}(made);"


def call(c: Command, objects: dict[str, Object], backend: dict[str, BackendFunction]) -> Iterator[str]:
    """The backend's function, and the answer or what the client is told of a failure."""
    assert c.work.call
    yield from described(c)
    if c.work.make:
        yield f"struct gv_{c.work.make[1]} *made = NULL;"
    name, texts = c.work.call
    arguments = ", ".join(argument(c, text) for text in texts)
    if len(arguments.split(", ")) != len(backend[name].arguments):
        raise SpecError(f"command.{c.name}: {name} takes {len(backend[name].arguments)} arguments")
    if c.reply.fields:
        preset = ", ".join(f".{field_of_call(t)} = c->{field_of_call(t)}" for t in texts if t.startswith("inout ")) or "0"
        yield f"struct {c.reply.name} reply = {{{preset}}};"
    void = backend[name].result == "void"
    most = objects[c.work.make[1]].most if c.work.make else ""
    if c.work.make and most:
        yield f"bool room = {objects[c.work.make[1]].table}.live < {most};"
        yield f"int status = room ? w->ops->{name}({arguments}) : CUDA_ERROR_OUT_OF_MEMORY;"
    else:
        yield f"{'' if void else 'int status = '}w->ops->{name}({arguments});"
    if c.work.make:
        yield from kept(c, objects, backend[name])
    status = "0" if void else "status"
    if c.sync and c.reply.fields:
        if c.reply.blobs:
            raise SpecError(f"command.{c.name}: an answer of a size that is not known is written by hand")
        yield f"_Alignas(8) uint8_t body[{c.reply.fixed}];"
        yield f"{c.reply.name}_encode(&reply, body);"
        yield f"return worker_reply(w, record, {status}, NULL, body, sizeof body);"
    elif c.sync:
        full = c.work.make is not None and objects[c.work.make[1]].bytes
        text = 'status == CUDA_ERROR_OUT_OF_MEMORY ? "the device\'s memory is used up" : NULL' if full else "NULL"
        yield f"return worker_reply(w, record, {status}, {text}, NULL, 0);"
    else:
        if not void:
            if not c.work.fails:
                raise SpecError(f"command.{c.name}: the call can fail; `fails` is what the client is told")
            yield f"if (status) worker_failed(w, record, status, {c_string(c.work.fails)});"
        yield "return 0;"


def carry_out(c: Command, objects: dict[str, Object], backend: dict[str, BackendFunction]) -> str:
    """The function for one command, its body decoded and its bytes there."""
    lines = ["(void)record, (void)c;", *prologue(c, objects, backend)]
    if c.work.call:
        lines += call(c, objects, backend)
    elif c.work.destroy:
        field, kind = c.work.destroy
        lines.append(f"int status = worker_destroy_{kind}(w, c->{field});")
        text = c.work.fails or no_such(kind)
        lines += [f"if (status) worker_failed(w, record, status, {c_string(text)});", "return 0;"]
    elif c.work.fence:
        lines.append("return 0;")
    else:
        given = "".join(f", {p.rpartition('*')[2]}" for p in parameters(c))
        lines.append(f"return worker_do_{c.name}(w, record, c{given});")
    bytes_ = ", struct worker_bytes *bytes" if c.work.bytes else ""
    head = f"static int do_{c.name}(struct worker *w, const struct gv_record *record, const struct {c.body.name} *c{bytes_}) {{\n"
    return head + "".join(f"    {line}\n" for line in lines) + "}\n\n"


def case(c: Command) -> str:
    decoded = f"        struct {c.body.name} c;\n        if ({c.body.name}_decode(&c, body, size)) return -1;\n"
    if not c.work.bytes:
        run = f"        return do_{c.name}(w, record, &c);\n"
    else:
        run = (
            "        struct worker_bytes bytes;\n"
            f"        if (worker_bytes_take(w, c.bulk, c.{c.work.bytes}, c.{c.work.bytes}_size, &bytes)) return -1;\n"
            f"        int rc = do_{c.name}(w, record, &c, &bytes);\n        free(bytes.own);\n        return rc;\n"
        )
    return f"    case GV_OP_{c.name.upper()}: {{\n{decoded}{run}    }}\n"


def trait(name: str, ops: list[str]) -> str:
    cases = "".join(f"    case GV_OP_{op.upper()}:\n" for op in ops)
    return f"\nbool {name}(uint16_t op) {{\n    switch (op) {{\n{cases.rstrip()} return true;\n    default: return false;\n    }}\n}}\n"


def source(spec: CommandSpec, backend: dict[str, BackendFunction]) -> str:
    out = [BANNER, '#include "gv_dispatch.h"\n\n#include <stdlib.h>\n#include <string.h>\n\n', HELPERS]
    out += [carry_out(c, spec.objects, backend) for c in spec.commands]
    out.append("int gv_dispatch(struct worker *w, const struct gv_record *record) {\n")
    out.append("    if (record->size < sizeof *record) return -1;\n    const void *body = record + 1;\n")
    out.append("    uint32_t size = record->size - (uint32_t)sizeof *record;\n    switch (record->op) {\n")
    out += [case(c) for c in spec.commands]
    out.append("    default: return -1;\n    }\n}\n")
    out.append(trait("gv_may_wait", [c.name for c in spec.commands if c.work.may_wait]))
    out.append(trait("gv_is_work", [c.name for c in spec.commands if c.work.work]))
    return "".join(out)
