/* The gate in front of every call. Four things can close it: the end of the process, a fork after attaching, a call that comes before cuInit, and one outside of the program's
 * blocks with GPUs. All are kept in one word. */
#include "abi/entry.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "abi/error_table.h"
#include "gv_symbols.h"
#include "session/quiet_write.h"
#include "wire/clock.h"

#define STATE_UNINITIALIZED 1u /* cuInit has not been seen yet */
#define STATE_FORKED 2u        /* this is a child, perhaps of a parent that had attached */
#define STATE_OVER 4u          /* the library's destructor has run */
#define STATE_TRACE 8u
#define STATE_OUTSIDE 16u /* between two blocks with GPUs (gpuvirt.remote() in Python) */

static const char outside_text[] = "this program has GPUs only inside of its gpuvirt.remote() blocks, and is outside of them: enter one";

_Atomic uint32_t entry_state = STATE_UNINITIALIZED;

static int trace_fd = -1;
static bool trace_errors; /* only calls that fail, on stderr */
static int64_t trace_start;
static _Atomic uint8_t told[GV_SYMBOLS];
static _Atomic bool told_outside; /* since the last block */

static void after_fork(void) { atomic_fetch_or(&entry_state, STATE_FORKED | STATE_UNINITIALIZED); }

__attribute__((constructor)) static void begin(void) {
    pthread_atfork(NULL, NULL, after_fork);
    const char *path = shim_setting("TRACE", NULL);
    if (!path) return;
    if (!strcmp(path, "errors")) {
        trace_errors = true;
        atomic_fetch_or(&entry_state, STATE_TRACE);
        return;
    }
    trace_fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (trace_fd < 0) {
        shim_log("GPUVIRT_TRACE: %s cannot be written (%m): calls are not traced", path);
        return;
    }
    trace_start = gv_now_ns();
    atomic_fetch_or(&entry_state, STATE_TRACE);
}

__attribute__((destructor)) static void end(void) { atomic_fetch_or(&entry_state, STATE_OVER); }

/* Why a call is refused in this state, 0 when it is not; forgets what turns out not to hold (any more). */
static int refusal(uint32_t state, unsigned needs) {
    if (state & STATE_OVER && !(needs & ENTRY_AFTER_FORK)) return CUDA_ERROR_DEINITIALIZED;
    if (state & STATE_FORKED) {
        if (!session_in_forked_child())
            atomic_fetch_and(&entry_state, ~STATE_FORKED);
        else if (!(needs & ENTRY_AFTER_FORK))
            return CUDA_ERROR_NOT_INITIALIZED;
    }
    /* cuInit is let through where it has nothing to do. A first one must not even try: its failure would be remembered. */
    if (state & STATE_OUTSIDE && needs & ENTRY_INSIDE && (needs & ENTRY_NEEDS_INIT || !shim_initialized())) {
        if (!atomic_exchange(&told_outside, true)) shim_log("a CUDA call was refused: %s", outside_text);
        return CUDA_ERROR_NOT_PERMITTED;
    }
    if (state & STATE_UNINITIALIZED) {
        if (shim_initialized())
            atomic_fetch_and(&entry_state, ~STATE_UNINITIALIZED);
        else if (needs & ENTRY_NEEDS_INIT)
            return CUDA_ERROR_NOT_INITIALIZED;
    }
    return needs & ENTRY_NEEDS_SERVER ? session_broken() : 0;
}

const char *entry_error_text(CUresult code) {
    if (code == CUDA_ERROR_NOT_PERMITTED && atomic_load(&entry_state) & STATE_OUTSIDE) return outside_text;
    return session_error_text((int)code);
}

/* A block with GPUs begins (1), is over (0), or neither (-1). Returns whether this process has a session. No part of CUDA: gpuvirt's Python package looks it up. */
__attribute__((visibility("default"))) int gpuvirt_block(int inside);
int gpuvirt_block(int inside) {
    if (inside == 1) {
        atomic_fetch_and(&entry_state, ~STATE_OUTSIDE);
        atomic_store(&told_outside, false);
    } else if (inside == 0) {
        atomic_fetch_or(&entry_state, STATE_OUTSIDE);
    }
    return session_begun();
}

int entry_refuses(unsigned needs) { return refusal(atomic_load(&entry_state), needs); }

int entry_look(unsigned symbol, unsigned needs) {
    uint32_t state = atomic_load(&entry_state);
    int refused = refusal(state, needs);
    if (!(state & STATE_TRACE)) return refused;
    if (!refused) return -1;
    struct entry_call call = {.symbol = symbol, .started = -1};
    entry_trace_end(&call, (CUresult)refused);
    return refused;
}

CUresult entry_unsupported(unsigned symbol) {
    int gate = entry_gate(symbol, ENTRY_NEEDS_INIT);
    if (gate > 0) return (CUresult)gate;
    const struct entry_symbol *s = &entry_symbols[symbol];
    if (!atomic_exchange(&told[symbol], 1)) shim_log("%s is not supported (%s): it returned CUDA_ERROR_NOT_SUPPORTED", s->name, s->reason);
    if (gate < 0) {
        struct entry_call call = {.symbol = symbol, .started = -1};
        entry_trace_end(&call, CUDA_ERROR_NOT_SUPPORTED);
    }
    return CUDA_ERROR_NOT_SUPPORTED;
}

/* ---- trace --------------------------------------------------------------------------------------------------------- */

struct line {
    char text[1024];
    size_t n;
};

__attribute__((format(printf, 2, 3))) static void put(struct line *line, const char *format, ...) {
    size_t room = sizeof line->text - line->n;
    va_list args;
    va_start(args, format);
    int n = vsnprintf(line->text + line->n, room, format, args);
    va_end(args);
    if (n > 0) line->n += (size_t)n < room ? (size_t)n : room - 1;
}

/* The start of a text, in quotes, without anything that would break the line. */
static void put_text(struct line *line, const char *text) {
    if (!text) {
        put(line, "NULL");
        return;
    }
    put(line, "\"");
    size_t i = 0;
    for (; text[i] && i < 120; i++) put(line, "%c", text[i] < 32 || text[i] == '"' || text[i] == 127 ? '?' : text[i]);
    put(line, text[i] ? "...\"" : "\"");
}

static void put_value(struct line *line, enum entry_how how, uint64_t value, bool done) {
    const void *at = (const void *)(uintptr_t)value;
    if (how >= ENTRY_TEXT && (!at || !done)) how = ENTRY_HEX;
    switch (how) {
    case ENTRY_SIGNED: put(line, "%lld", (long long)(int64_t)value); break;
    case ENTRY_UNSIGNED: put(line, "%llu", (unsigned long long)value); break;
    case ENTRY_STRING:
    case ENTRY_TEXT: put_text(line, at); break;
    case ENTRY_OUT_HEX: put(line, "->0x%llx", (unsigned long long)*(const uint64_t *)at); break;
    case ENTRY_OUT_I32: put(line, "->%d", *(const int32_t *)at); break;
    case ENTRY_OUT_U32: put(line, "->%u", *(const uint32_t *)at); break;
    case ENTRY_OUT_U64: put(line, "->%llu", (unsigned long long)*(const uint64_t *)at); break;
    case ENTRY_OUT_FLOAT: put(line, "->%g", (double)*(const float *)at); break;
    case ENTRY_HEX: put(line, "0x%llx", (unsigned long long)value); break;
    }
}

void entry_trace_begin(struct entry_call *call) {
    call->started = gv_now_ns();
    call_because(NULL);
}

static void put_arguments(struct line *line, const struct entry_call *call, CUresult result) {
    const struct entry_symbol *s = &entry_symbols[call->symbol];
    bool made = call->started >= 0; /* else it was refused at the gate, its arguments were not taken */
    put(line, "%s(", s->name);
    for (unsigned i = 0; made && i < s->n_params; i++) {
        put(line, "%s%s=", i ? ", " : "", s->params[i].name);
        put_value(line, s->params[i].how, call->args[i], result == CUDA_SUCCESS);
    }
    put(line, made ? ")" : "...)");
}

/* GPUVIRT_TRACE=errors. That work is not done yet is an answer. */
static void tell_failure(const struct entry_call *call, CUresult result) {
    if (result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY) return;
    struct line line = {.n = 0};
    put_arguments(&line, call, result);
    const char *why = entry_error_text(result), *reason = call->started >= 0 ? call_reason() : NULL;
    shim_log("thread %ld: %s answered %s%s%s", syscall(SYS_gettid), line.text, error_name(result), reason || why ? ": " : "",
             reason ? reason
             : why  ? why
                    : "");
}

CUresult entry_trace_end(const struct entry_call *call, CUresult result) {
    if (trace_errors) {
        tell_failure(call, result);
        return result;
    }
    int64_t ended = gv_now_ns();
    bool made = call->started >= 0;
    const struct entry_symbol *s = &entry_symbols[call->symbol];
    struct line line = {.n = 0};
    put(&line, "%.1f %ld %s ", (double)((made ? call->started : ended) - trace_start) / 1e3, syscall(SYS_gettid), s->kind);
    put_arguments(&line, call, result);
    put(&line, " = %s %.1f\n", error_name(result), made ? (double)(ended - call->started) / 1e3 : 0.0);
    line.text[line.n - 1] = '\n';
    quiet_write(trace_fd, line.text, line.n);
    return result;
}
