/* What every exported driver function passes before its implementation: counting, the states in which calls are refused, and GPUVIRT_TRACE. Used by the generated stubs. */
#ifndef SHIM_ENTRY_H
#define SHIM_ENTRY_H

#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

#include "objects/shim.h"

/* What a function needs of its surroundings. */
#define ENTRY_NEEDS_INIT 1u   /* cuInit before it */
#define ENTRY_NEEDS_SERVER 2u /* a session that stands */
#define ENTRY_AFTER_FORK 4u   /* works in a child forked after attaching, and after the end */
#define ENTRY_INSIDE 8u       /* refused outside of the program's blocks with GPUs, where it has such blocks */

/* How the trace shows an argument. The OUT_ ones are followed after a call that succeeded. */
enum entry_how {
    ENTRY_HEX,
    ENTRY_SIGNED,
    ENTRY_UNSIGNED,
    ENTRY_STRING,
    ENTRY_TEXT,
    ENTRY_OUT_HEX,
    ENTRY_OUT_I32,
    ENTRY_OUT_U32,
    ENTRY_OUT_U64,
    ENTRY_OUT_FLOAT
};

struct entry_param {
    const char *name;
    enum entry_how how;
};

/* One exported symbol. kind: "local", "async", "sync" or "unsupported"; reason: why it waits, or why it is not supported. */
struct entry_symbol {
    const char *name, *kind, *reason;
    unsigned n_params;
    const struct entry_param *params;
};
extern const struct entry_symbol entry_symbols[];

#define ENTRY_MAX_PARAMS 15

/* A call that is being traced. */
struct entry_call {
    unsigned symbol;
    uint64_t args[ENTRY_MAX_PARAMS];
    int64_t started; /* monotonic ns */
};

/* Bits of what every call must look at; 0 in the ordinary course of things, so that a call costs one load and one branch. */
extern _Atomic uint32_t entry_state __attribute__((visibility("hidden")));

int entry_look(unsigned symbol, unsigned needs);
/* The same for what is no exported function: not counted, not traced. 0, or the CUresult to return. */
int entry_refuses(unsigned needs);

/* 0: go on. > 0: the CUresult to return. < 0: go on, and trace. */
static inline int entry_gate(unsigned symbol, unsigned needs) {
    atomic_fetch_add_explicit(&session_stats.calls, 1, memory_order_relaxed);
    if (__builtin_expect(atomic_load_explicit(&entry_state, memory_order_relaxed) != 0, 0)) return entry_look(symbol, needs);
    return needs & ENTRY_NEEDS_SERVER ? session_broken() : 0;
}

/* The first eight bytes of an argument that is a struct. */
static inline uint64_t entry_word(const void *argument, size_t size) {
    uint64_t word = 0;
    memcpy(&word, argument, size < sizeof word ? size : sizeof word);
    return word;
}

void entry_trace_begin(struct entry_call *call);
/* Writes the call's line and returns its result. */
CUresult entry_trace_end(const struct entry_call *call, CUresult result);

/* What cuGetErrorString says of this code here, NULL: what the header says. */
const char *entry_error_text(CUresult code);

/* The body of a function that is not supported. */
CUresult entry_unsupported(unsigned symbol);

#endif
