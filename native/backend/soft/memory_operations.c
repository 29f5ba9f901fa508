/* Stream memory operations: the stream's thread writes a word, or polls one until the wait's condition holds. */
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "../../wire/clock.h"
#include "../../wire/memory_operation.h"
#include "stream.h"

/* ns that a waiting thread polls without a pause, and the pause after that: a value written by another stream comes either soon or late. */
#define LOOK_NS 50000
#define PAUSE_NS 50000

struct memory_op {
    struct op op;
    uint32_t n;
    struct gv_memory_operation operations[];
};

struct word {
    const struct gv_memory_operation *operation;
    uint64_t value; /* read */
};

/* One access per word, because kernels of other streams access it at the same time. */
static void access_word(void *arg) {
    struct word *w = arg;
    const struct gv_memory_operation *o = w->operation;
    uint32_t *narrow = (uint32_t *)(uintptr_t)o->address;
    uint64_t *wide = (uint64_t *)(uintptr_t)o->address;
    switch (o->kind) {
    case GV_WRITE_VALUE_32: __atomic_store_n(narrow, (uint32_t)o->value, __ATOMIC_SEQ_CST); break;
    case GV_WRITE_VALUE_64: __atomic_store_n(wide, o->value, __ATOMIC_SEQ_CST); break;
    case GV_WAIT_VALUE_32: w->value = __atomic_load_n(narrow, __ATOMIC_SEQ_CST); break;
    default: w->value = __atomic_load_n(wide, __ATOMIC_SEQ_CST);
    }
}

static bool satisfied(const struct gv_memory_operation *o, uint64_t seen) {
    bool narrow = o->kind == GV_WAIT_VALUE_32;
    switch (o->flags & 3u) {
    case CU_STREAM_WAIT_VALUE_GEQ: return narrow ? (int32_t)((uint32_t)seen - (uint32_t)o->value) >= 0 : (int64_t)(seen - o->value) >= 0;
    case CU_STREAM_WAIT_VALUE_EQ: return narrow ? (uint32_t)seen == (uint32_t)o->value : seen == o->value;
    case CU_STREAM_WAIT_VALUE_AND: return narrow ? ((uint32_t)seen & (uint32_t)o->value) != 0 : (seen & o->value) != 0;
    default: return narrow ? ~((uint32_t)seen | (uint32_t)o->value) != 0 : ~(seen | o->value) != 0;
    }
}

/* Whether the wait is to be given up: the backend closes, or the context has an error. */
static bool given_up(struct gv_context *c) {
    struct gv_backend *b = c->backend;
    pthread_mutex_lock(&b->lock);
    bool closing = b->closing;
    pthread_mutex_unlock(&b->lock);
    return closing || atomic_load(&c->error);
}

static int carry_out(struct gv_stream *s, const struct gv_memory_operation *o, char *err) {
    struct gv_context *c = s->context;
    struct word w = {.operation = o};
    uint32_t width = gv_memory_operation_width(o);
    bool waits = o->kind == GV_WAIT_VALUE_32 || o->kind == GV_WAIT_VALUE_64;
    uint64_t fault = o->address, look_until = (uint64_t)gv_now_ns() + LOOK_NS;
    /* Barriers and flushes: earlier work of this stream has completed, and the next word is accessed with sequential consistency. */
    if (!width) return 0;
    for (;;) {
        /* Checked each time: the memory may be unmapped during the wait. */
        if (!soft_memory_valid(c->backend, o->address, width) || !soft_guarded(access_word, &w, &fault)) {
            snprintf(err, GV_ERR_SIZE, "illegal address 0x%llx: a stream %s a word there", (unsigned long long)fault, waits ? "waits for" : "writes");
            return CUDA_ERROR_ILLEGAL_ADDRESS;
        }
        if (!waits || satisfied(o, w.value) || given_up(c)) return 0;
        atomic_store_explicit(&s->awaits_value, true, memory_order_relaxed);
        if ((uint64_t)gv_now_ns() < look_until)
            sched_yield();
        else
            nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
    }
}

static int memory_op_run(struct gv_stream *s, struct op *op, char *err) {
    const struct memory_op *m = (const struct memory_op *)op;
    int rc = 0;
    for (uint32_t i = 0; i < m->n && !rc; i++) rc = carry_out(s, &m->operations[i], err);
    atomic_store_explicit(&s->awaits_value, false, memory_order_relaxed);
    return rc;
}

static bool sound(const struct gv_memory_operation *o) {
    uint32_t width = gv_memory_operation_width(o);
    return o->kind >= GV_WAIT_VALUE_32 && o->kind <= GV_MEMORY_BARRIER && (!width || o->address % width == 0);
}

int soft_memory_operations(struct gv_stream *s, const void *operations, uint32_t size) {
    const struct gv_memory_operation *all = operations;
    uint32_t n = size / sizeof *all;
    if (size % sizeof *all || n > GV_MEMORY_OPERATIONS_MAX) return CUDA_ERROR_INVALID_VALUE;
    for (uint32_t i = 0; i < n; i++)
        if (!sound(&all[i])) return CUDA_ERROR_INVALID_VALUE;
    struct memory_op *m = soft_op_new(sizeof *m + size, OP_WORK, memory_op_run, NULL);
    if (!m) return CUDA_ERROR_OUT_OF_MEMORY;
    m->n = n;
    if (n) memcpy(m->operations, all, size);
    return soft_stream_push(s, &m->op);
}
