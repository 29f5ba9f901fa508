/* What the worker says: one function per event. Runs on whichever thread holds the progress role; sends nothing, and blocks on nothing but the
 * program's own stdout. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gv_commands.h"
#include "session/quiet_write.h"
#include "session/session_state.h"

#define FAILURES_SHOWN 16

static const char *(*explain_address)(uint64_t address);

void session_on_illegal_address(const char *(*call)(uint64_t address)) { explain_address = call; }

/* More about the address that the worker's text names, "" when there is none or nothing is known. */
static const char *explained(const char *text) {
    static const char before[] = "illegal address 0x";
    const char *at = explain_address && text ? strstr(text, before) : NULL;
    const char *more = at ? explain_address(strtoull(at + sizeof before - 1, NULL, 16)) : NULL;
    return more ? more : "";
}

static int on_reply(const void *body, uint32_t size) {
    struct gv_evt_reply e;
    if (gv_evt_reply_decode(&e, body, size)) return -1;
    return session_replied(e.answers, e.status, e.text, e.body, e.body_size);
}

static int on_completed(const void *body, uint32_t size) {
    struct gv_evt_completed e;
    if (gv_evt_completed_decode(&e, body, size)) return -1;
    completion_publish(e.stream, e.upto, e.bulk, e.status);
    return 0;
}

static int on_data_inline(const void *body, uint32_t size) {
    struct gv_evt_data_inline e;
    if (gv_evt_data_inline_decode(&e, body, size)) return -1;
    return completions_inline(e.tag, e.status, e.data, e.data_size);
}

/* Whether this is the first sticky failure of a context: what fails in it afterwards is only the consequence. */
static bool first_of(uint32_t ctx) {
    static uint32_t told[64]; /* the role's holder only */
    static unsigned n;
    for (unsigned i = 0; i < n && i < 64; i++)
        if (told[i] == ctx) return false;
    told[n++ % 64] = ctx;
    return true;
}

static int on_failed(const struct gv_record *record, const void *body, uint32_t size) {
    static int shown; /* the role's holder only */
    struct gv_evt_failed e;
    if (gv_evt_failed_decode(&e, body, size)) return -1;
    if (shown < FAILURES_SHOWN && (!e.sticky || first_of(record->ctx))) {
        shown++;
        shim_log("%s (command %llu) failed on %s with CUDA error %d: %s%s%s", gv_op_name((uint16_t)e.op), (unsigned long long)e.failed_seq,
                 session.pool, e.status, e.text && *e.text ? e.text : "no more is known", explained(e.text),
                 e.sticky ? "; its context is lost, every later call in it fails" : "");
        if (shown == FAILURES_SHOWN) shim_log("further failures of this program are not shown");
    }
    if (e.sticky && e.status) completions_context_failed(record->ctx, e.status);
    return 0;
}

static int on_call_host(const void *body, uint32_t size) {
    struct gv_evt_call_host e;
    if (gv_evt_call_host_decode(&e, body, size)) return -1;
    return host_func_due(e.tag, e.bulk, e.status);
}

static int on_console(const void *body, uint32_t size) {
    struct gv_evt_console e;
    if (gv_evt_console_decode(&e, body, size)) return -1;
    /* What the program's own kernels print is the program's output; nothing else of ours goes there. */
    if (quiet_write(1, e.text, e.text_size)) shim_log_once("what kernels print could not be written to standard output");
    return 0;
}

static int on_notice(const void *body, uint32_t size) {
    struct gv_evt_notice e;
    if (gv_evt_notice_decode(&e, body, size)) return -1;
    shim_log("%s", e.text);
    return 0;
}

int incoming_handle(const struct gv_record *record, const char **why) {
    static char text[96];
    const void *body = record + 1;
    uint32_t size = record->size - (uint32_t)sizeof *record;
    int bad;
    switch (record->op) {
    case GV_OP_REPLY: bad = on_reply(body, size); break;
    case GV_OP_COMPLETED: bad = on_completed(body, size); break;
    case GV_OP_DATA_INLINE: bad = on_data_inline(body, size); break;
    case GV_OP_FAILED: bad = on_failed(record, body, size); break;
    case GV_OP_CALL_HOST: bad = on_call_host(body, size); break;
    case GV_OP_CONSOLE: bad = on_console(body, size); break;
    case GV_OP_NOTICE: bad = on_notice(body, size); break;
    default: bad = -1;
    }
    if (bad) {
        snprintf(text, sizeof text, "malformed event: %s (%u), number %llu", gv_op_name(record->op), record->op, (unsigned long long)record->seq);
        *why = text;
    }
    return bad;
}
