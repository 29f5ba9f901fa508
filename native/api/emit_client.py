"""gv_client.h: one function per command, for the shim."""

from __future__ import annotations

import re

from command_spec import Command, CommandSpec
from headers import Api
from writing import BANNER

TOP = """\
#ifndef GV_CLIENT_H
#define GV_CLIENT_H

#include "gv_commands.h"
#include "session/session.h"

/* post_X sends a one-way command and returns its seq; 0: the session is lost, or the body does not fit a record
 * (the caller keeps bytes within GV_INLINE_MAX).
 * call_X sends a command and waits. It returns the answer's status (a CUresult) and, when that is 0, fills *out (NULL: not wanted),
 * whose pointers point into the reply. session_reply_done(reply) ends its life; it must be called in every case.
 * call_X_bulk is the same with `size` bytes at `data` on the bulk channel, whose number is filled in. */

"""


def post(command: Command) -> str:
    body, op = command.body.name, f"GV_OP_{command.name.upper()}"
    return f"""\
static inline uint64_t post_{command.name}(uint32_t ctx, uint16_t flags, const struct {body} *c) {{
    uint64_t size = {body}_size(c);
    void *body = size <= GV_BODY_MAX ? session_begin({op}, flags, ctx, (uint32_t)size) : NULL;
    if (!body) return 0;
    {body}_encode(c, body);
    return session_end();
}}

"""


def call(command: Command) -> str:
    body, reply, op = command.body.name, command.reply.name, f"GV_OP_{command.name.upper()}"
    decode = f"""\
    struct {reply} ignored;
    if (status == 0 && {reply}_decode(out ? out : &ignored, reply->body, reply->body_size) != 0) {{
        shim_log("the server's answer to {command.name} makes no sense");
        return @CUDA_ERROR_UNKNOWN@;
    }}
    return status;
}}

"""
    alone = f"""\
/* Waits: {command.why}. */
static inline int call_{command.name}(uint32_t ctx, const struct {body} *c, struct {reply} *out, struct session_reply *reply) {{
    uint64_t size = {body}_size(c);
    if (size > GV_BODY_MAX) {{
        reply->body = NULL;
        reply->body_size = 0;
        reply->names_payload = false;
        return reply->status = @CUDA_ERROR_INVALID_VALUE@; /* a name of a quarter of a megabyte */
    }}
    void *body = session_begin_call({op}, ctx, (uint32_t)size, reply);
    if (!body) return gv_client_lost();
    {body}_encode(c, body);
    int status = session_end_call(reply);
{decode}"""
    if not any(f.name == "bulk" for f in command.body.fields):
        return alone
    return f"""\
{alone}static inline int call_{command.name}_bulk(uint32_t ctx, struct {body} *c, const void *data, uint64_t size, struct {reply} *out,
                                      struct session_reply *reply) {{
    struct session_bulk bulk;
    reply->seq = 0;
    reply->body = NULL;
    reply->body_size = 0;
    reply->names_payload = false;
    if (!session_bulk_reserve(&bulk, data, size, false)) return gv_client_lost();
    c->bulk = bulk.number;
    void *body = session_begin_call({op}, ctx, (uint32_t){body}_size(c), reply);
    if (body) {body}_encode(c, body);
    session_bulk_commit(&bulk, body ? session_send_call(reply) : 0);
    if (!body) return gv_client_lost();
    int status = session_wait_call(reply);
{decode}"""


LOST = """\
/* What a call returns whose record could not be begun. */
static inline int gv_client_lost(void) {
    int status = session_broken();
    return status ? status : @CUDA_ERROR_DEVICE_UNAVAILABLE@;
}

"""


def header(spec: CommandSpec, api: Api) -> str:
    """The file is compiled with cuda.h and without it: results are written as numbers."""
    text = "".join([BANNER, TOP, LOST, *(call(c) if c.sync else post(c) for c in spec.commands), "#endif\n"])
    values = {r.name: r.value for r in api.results}
    return re.sub(r"@(\w+)@", lambda name: f"{values[name[1]]} /* {name[1]} */", text)
