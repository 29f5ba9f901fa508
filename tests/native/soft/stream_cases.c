/* Streams of the software GPU: order, events, marks, memory operations, what runs beside what, and their end. */
#define _GNU_SOURCE
#include <unistd.h>

#include "backend_fixture.h"
#include "limits.h"
#include "memory_operation.h"

/* Who came by, in order. */
static char order[64];
static void note(void *arg) {
    pthread_mutex_lock(&lock);
    strcat(order, arg);
    pthread_mutex_unlock(&lock);
}

void test_legacy_stream(void) {
    open_plain();
    struct gv_stream *a = stream(0), *b = stream(0), *free_one = stream(1), *legacy = ops->stream_legacy(ctx);
    struct door d = {0}, e = {0};
    order[0] = 0;
    CHECK_INT(ops->gate(a, stand, &d), 0);
    CHECK_INT(ops->gate(a, note, "a"), 0);
    CHECK_INT(ops->gate(legacy, note, "L"), 0); /* waits for a */
    CHECK_INT(ops->gate(b, note, "b"), 0);      /* waits for L */
    CHECK_INT(ops->gate(free_one, note, "f"), 0);
    CHECK_INT(sync_stream(free_one), 0);
    usleep(20000);
    CHECK(!strcmp(order, "f"));
    open_door(&d);
    CHECK_INT(sync_stream(b), 0);
    CHECK(!strcmp(order, "faLb"));
    /* The non-blocking one holds up nobody either. */
    order[0] = 0;
    CHECK_INT(ops->gate(free_one, stand, &e), 0);
    CHECK_INT(ops->gate(legacy, note, "L"), 0);
    CHECK_INT(sync_stream(legacy), 0);
    CHECK(!strcmp(order, "L"));
    open_door(&e);
    /* A destroyed stream's queued work still counts. */
    struct door f = {0};
    order[0] = 0;
    CHECK_INT(ops->gate(a, stand, &f), 0);
    CHECK_INT(ops->gate(a, note, "a"), 0);
    ops->stream_destroy(a);
    CHECK_INT(ops->gate(legacy, note, "L"), 0);
    usleep(20000);
    CHECK(!*order);
    open_door(&f);
    CHECK_INT(sync_stream(legacy), 0);
    CHECK(!strcmp(order, "aL"));
    /* A mark on it waits for blocking streams, and does not make them wait. */
    struct door g = {0};
    struct waiter w = {0};
    CHECK_INT(ops->gate(b, stand, &g), 0);
    CHECK_INT(ops->mark(legacy, told, &w), 0);
    struct gv_stream *c = stream(0);
    CHECK_INT(sync_stream(c), 0);
    CHECK_INT(ops->gate(c, note, "c"), 0);
    CHECK_INT(sync_stream(c), 0);
    CHECK_INT(w.done, 0);
    open_door(&g);
    CHECK(wait_until(&w.done, 200000));
    ops->stream_destroy(b);
    ops->stream_destroy(c);
    ops->stream_destroy(free_one);
    close_all();
}

void test_events(void) {
    open_plain();
    struct gv_stream *a = stream(1), *b = stream(1);
    struct gv_event *first, *second, *untimed;
    float ms = -1;
    CHECK_INT(ops->event_create(ctx, 0, &first), 0);
    CHECK_INT(ops->event_create(ctx, 0, &second), 0);
    CHECK_INT(ops->event_create(ctx, 2, &untimed), 0);
    CHECK_INT(ops->stream_wait_event(a, first), 0); /* never recorded: done */
    CHECK_INT(sync_stream(a), 0);
    CHECK_INT(ops->event_elapsed(first, second, &ms), 400);
    struct door d = {0};
    CHECK_INT(ops->event_record(first, a), 0);
    CHECK_INT(sync_stream(a), 0); /* it has its time */
    CHECK_INT(ops->gate(a, stand, &d), 0);
    CHECK_INT(ops->event_record(second, a), 0);
    CHECK_INT(ops->event_record(untimed, a), 0);
    CHECK_INT(ops->event_elapsed(first, second, &ms), 600);
    order[0] = 0;
    CHECK_INT(ops->stream_wait_event(b, second), 0);
    CHECK_INT(ops->gate(b, note, "b"), 0);
    usleep(30000);
    CHECK(!*order);
    open_door(&d);
    CHECK_INT(sync_stream(b), 0);
    CHECK(!strcmp(order, "b"));
    CHECK_INT(sync_stream(a), 0);
    CHECK_INT(ops->event_elapsed(first, second, &ms), 0);
    CHECK(ms > 25 && ms < 200000);
    float back;
    CHECK_INT(ops->event_elapsed(second, first, &back), 0);
    CHECK(back == -ms);
    CHECK_INT(ops->event_elapsed(first, untimed, &ms), 400);
    /* A wait holds the record of its own time: recording again, behind a door, does not move it. And the event may go at once. */
    struct door e = {0};
    CHECK_INT(ops->event_record(first, b), 0);
    CHECK_INT(sync_stream(b), 0);
    CHECK_INT(ops->stream_wait_event(a, first), 0);
    CHECK_INT(ops->gate(b, stand, &e), 0);
    CHECK_INT(ops->event_record(first, b), 0);
    CHECK_INT(sync_stream(a), 0);
    CHECK_INT(ops->stream_wait_event(a, first), 0);
    ops->event_destroy(first);
    struct waiter w = {0};
    CHECK_INT(ops->mark(a, told, &w), 0);
    CHECK(!wait_until(&w.done, 20));
    open_door(&e);
    CHECK(wait_until(&w.done, 200000));
    ops->event_destroy(second);
    ops->event_destroy(untimed);
    ops->stream_destroy(a);
    ops->stream_destroy(b);
    close_all();
}

static _Atomic int at_once, most_at_once;
/* Until so many are here at once, or have been; and a little for more to come, if more may. */
static void crowd(void *arg) {
    const int *wanted = arg;
    int n = atomic_fetch_add(&at_once, 1) + 1, most = atomic_load(&most_at_once);
    while (n > most && !atomic_compare_exchange_weak(&most_at_once, &most, n)) {
    }
    for (int i = 0; atomic_load(&most_at_once) < *wanted && i < 100000; i++) usleep(1000);
    usleep(20000);
    atomic_fetch_sub(&at_once, 1);
}

static int count_crowd(int strict) {
    int wanted = strict ? 8 : 12;
    struct gv_backend_config c = config(1);
    c.strict = strict;
    open_with(&c);
    struct gv_stream *s[12];
    most_at_once = 0;
    for (int i = 0; i < 12; i++) {
        s[i] = stream(1);
        CHECK_INT(ops->gate(s[i], crowd, &wanted), 0);
    }
    for (int i = 0; i < 12; i++) {
        CHECK_INT(sync_stream(s[i]), 0);
        ops->stream_destroy(s[i]);
    }
    close_all();
    return most_at_once;
}

void test_concurrency(void) {
    CHECK_INT(count_crowd(0), 12);
    CHECK_INT(count_crowd(1), 8);
    /* Kernels too. */
    open_plain();
    struct gv_module *m = module();
    struct gv_stream *s[4];
    for (int i = 0; i < 4; i++) {
        s[i] = stream(1);
        CHECK_INT(launch(s[i], m, MEETS, 1, 32, NULL, 0), 0);
    }
    CHECK_INT(sync_stream(s[0]), 0);
    CHECK_INT(atomic_load(&met), 4);
    for (int i = 1; i < 4; i++) CHECK_INT(sync_stream(s[i]), 0);
    for (int i = 0; i < 4; i++) ops->stream_destroy(s[i]);
    ops->module_unload(m);
    close_all();
}

/* Many small operations on many streams from several threads: marks come once each, in order. */
struct many {
    struct gv_stream *s;
    uint64_t at;
    int seen;
};

static void in_order(void *arg, int status) {
    struct many *const *cell = arg;
    struct many *m = *cell;
    CHECK_INT(status, 0);
    m->seen++;
}

static void *pushes(void *arg) {
    struct many *m = arg;
    for (int i = 0; i < 500; i++) {
        CHECK_INT(ops->fill(m->s, m->at + (uint64_t)i * 64, 0, 4, (uint32_t)i, 4, 1), 0);
        CHECK_INT(ops->mark(m->s, in_order, &m), 0);
        if (i % 50 == 0) CHECK_INT(sync_stream(m->s), 0);
    }
    CHECK_INT(sync_stream(m->s), 0);
    CHECK_INT(m->seen, 500);
    return NULL;
}

void test_many_threads(void) {
    open_plain();
    pthread_t threads[6];
    struct many many[6] = {0};
    for (int i = 0; i < 6; i++) {
        many[i].at = mem + (uint64_t)i * 32768;
        many[i].s = i ? stream((uint32_t)i % 2) : ops->stream_legacy(ctx);
        CHECK(!pthread_create(&threads[i], NULL, pushes, &many[i]));
    }
    for (int i = 0; i < 6; i++) pthread_join(threads[i], NULL);
    for (int i = 1; i < 6; i++) ops->stream_destroy(many[i].s);
    close_all();
}

/* ---- stream memory operations ---- */

static int operate(struct gv_stream *s, uint32_t kind, uint64_t address, uint64_t value, uint32_t flags) {
    struct gv_memory_operation o = {.kind = kind, .flags = flags, .address = address, .value = value};
    return ops->memory_operations(s, &o, sizeof o);
}

/* A stream that waits is held up by the first value, and let go by the second. */
static void waits_for(uint32_t kind, uint64_t value, uint32_t flags, uint64_t before, uint64_t after) {
    struct gv_stream *s = stream(1), *t = stream(1);
    struct waiter w = {0};
    uint32_t write = kind == GV_WAIT_VALUE_32 ? GV_WRITE_VALUE_32 : GV_WRITE_VALUE_64;
    CHECK_INT(operate(t, write, mem, before, 0), 0);
    CHECK_INT(sync_stream(t), 0);
    CHECK_INT(operate(s, kind, mem, value, flags), 0);
    CHECK_INT(ops->mark(s, told, &w), 0);
    CHECK_INT(operate(t, write, mem + 8, 1, 0), 0);
    CHECK_INT(sync_stream(t), 0);
    usleep(2000); /* or the test proves less */
    pthread_mutex_lock(&lock);
    CHECK_INT(w.done, 0);
    pthread_mutex_unlock(&lock);
    CHECK_INT(operate(t, write, mem, after, 1), 0);
    CHECK(wait_until(&w.done, 200000));
    CHECK_INT(w.status, 0);
    ops->stream_destroy(s);
    ops->stream_destroy(t);
}

void test_memory_operations(void) {
    open_plain();
    waits_for(GV_WAIT_VALUE_32, 5, CU_STREAM_WAIT_VALUE_EQ, 6, 5);
    waits_for(GV_WAIT_VALUE_64, 5ull << 32, CU_STREAM_WAIT_VALUE_EQ, 5, 5ull << 32);
    waits_for(GV_WAIT_VALUE_32, 5, CU_STREAM_WAIT_VALUE_GEQ, 4, 7);
    waits_for(GV_WAIT_VALUE_32, 2, CU_STREAM_WAIT_VALUE_GEQ, 0xfffffff0, 3); /* counters that wrap: 2 is after 2^32 - 16 */
    waits_for(GV_WAIT_VALUE_32, 0xfffffff0, CU_STREAM_WAIT_VALUE_GEQ, 0xffffffef, 2);
    waits_for(GV_WAIT_VALUE_64, 1ull << 33, CU_STREAM_WAIT_VALUE_GEQ, 1ull << 32, 1ull << 34);
    waits_for(GV_WAIT_VALUE_32, 6, CU_STREAM_WAIT_VALUE_AND, 9, 4);
    waits_for(GV_WAIT_VALUE_64, 6ull << 40, CU_STREAM_WAIT_VALUE_AND, 6, 2ull << 40);
    waits_for(GV_WAIT_VALUE_32, 0xfffffffe, 3, 1, 2); /* NOR */
    waits_for(GV_WAIT_VALUE_64, ~1ull, 3 | 1u << 30, 1, 2);
    /* A batch, in its order. */
    struct gv_stream *s = stream(1);
    struct gv_memory_operation batch[] = {{GV_WRITE_VALUE_32, 0, mem, 7},
                                          {GV_MEMORY_BARRIER, 0, 0, 0},
                                          {GV_WAIT_VALUE_32, CU_STREAM_WAIT_VALUE_EQ, mem, 7},
                                          {GV_FLUSH_REMOTE_WRITES, 0, 0, 0},
                                          {GV_WRITE_VALUE_64, 1, mem, ~0ull}};
    CHECK_INT(ops->memory_operations(s, batch, sizeof batch), 0);
    CHECK_INT(ops->memory_operations(s, batch, 0), 0);
    CHECK_INT(sync_stream(s), 0);
    CHECK(*(uint64_t *)(uintptr_t)mem == ~0ull);
    /* What a hostile client might send. */
    static struct gv_memory_operation many[GV_MEMORY_OPERATIONS_MAX + 1];
    CHECK_INT(ops->memory_operations(s, batch, sizeof batch - 8), 1);
    CHECK_INT(ops->memory_operations(s, many, sizeof many), 1);
    CHECK_INT(operate(s, 0, mem, 1, 0), 1);
    CHECK_INT(operate(s, 8, mem, 1, 0), 1);
    CHECK_INT(operate(s, GV_WRITE_VALUE_64, mem + 4, 1, 0), 1);
    CHECK_INT(operate(s, GV_WRITE_VALUE_32, mem + CHUNK, 1, 0), 0); /* found out when it is done */
    CHECK_INT(sync_stream(s), 700);
    CHECK(strstr(ops->error_text(ctx), "illegal address") != NULL);
    /* A wait for what never comes ends with the backend, and does not hold it up. */
    struct gv_context *fine = context(0);
    struct gv_stream *never = ops->stream_legacy(fine);
    CHECK_INT(operate(never, GV_WAIT_VALUE_32, mem, 12345, CU_STREAM_WAIT_VALUE_EQ), 0);
    ops->close(backend);
}

static void *open_late(void *door) {
    usleep(20000);
    open_door(door);
    return NULL;
}

void test_strict(void) {
    struct gv_backend_config c = config(1);
    c.strict = 1;
    open_with(&c);
    CHECK_INT(ops->reserve_window(backend, WINDOW, WINDOW_SIZE), 801);
    CHECK_INT(ops->memory_back(ctx, WINDOW, CHUNK, true), 801);
    uint64_t a, b, d, free_bytes, total;
    CHECK_INT(ops->memory_alloc(ctx, 40 * MIB, &a), 0);
    CHECK_INT(ops->memory_alloc(ctx, 24 * MIB + 1, &b), 2);
    CHECK_INT(ops->memory_alloc(ctx, 24 * MIB, &b), 0);
    CHECK_INT(ops->memory_alloc(ctx, 1, &d), 2);
    CHECK_INT(ops->memory_alloc(ctx, 0, &d), 1);
    struct gv_stream *s = stream(1);
    CHECK_INT(ops->fill(s, a, 0, 4, 1, 10 * MIB, 1), 0);
    CHECK_INT(ops->fill(s, b + 24 * MIB - 4, 0, 4, 1, 1, 1), 0);
    CHECK_INT(sync_stream(s), 0);
    /* A free waits for the device, and an allocation that needs the memory waits for the free. */
    struct door door = {0};
    CHECK_INT(ops->gate(s, stand, &door), 0);
    CHECK_INT(ops->fill(s, a, 0, 4, 2, 10 * MIB, 1), 0);
    CHECK_INT(ops->memory_free(ctx, a), 0);
    CHECK_INT(ops->memory_free(ctx, a), 1);
    CHECK_INT(ops->memory_free(ctx, b + 4096), 1);
    usleep(20000);
    CHECK_INT(ops->memory_info(ctx, &free_bytes, &total), 0);
    CHECK_INT(free_bytes, 40 * MIB); /* as an allocation waits for it */
    open_door(&door);
    CHECK_INT(ops->memory_alloc(ctx, 40 * MIB, &a), 0);
    CHECK_INT(sync_stream(s), 0);
    /* So do a module's globals and physical memory, although nobody but the free's thread knows of it any more. */
    pthread_t opener;
    struct door late = {0};
    CHECK_INT(ops->gate(s, stand, &late), 0);
    ops->memory_free(ctx, b);
    CHECK(!pthread_create(&opener, NULL, open_late, &late));
    struct gv_module *m = module();
    pthread_join(opener, NULL);
    ops->module_unload(m);
    CHECK_INT(ops->memory_alloc(ctx, 24 * MIB, &b), 0);
    late = (struct door){0};
    CHECK_INT(ops->gate(s, stand, &late), 0);
    ops->memory_free(ctx, b);
    CHECK(!pthread_create(&opener, NULL, open_late, &late));
    struct gv_physical *physical;
    CHECK_INT(ops->physical_create(ctx, CHUNK, &physical), 0);
    pthread_join(opener, NULL);
    CHECK_INT(ops->physical_destroy(physical), 0);
    ops->stream_destroy(s);
    close_all();
}

/* Whatever is running or waiting, close comes back within a few seconds; and when nothing is, it takes everything with it. */
void test_close_while_busy(void) {
    open_plain();
    CHECK_INT(sync_stream(stream(1)), 0);
    CHECK_INT(sync_stream(ops->stream_legacy(ctx)), 0);
    ops->close(backend);
    open_plain();
    struct gv_module *m = module();
    struct gv_stream *s = stream(1);
    CHECK_INT(launch(s, m, ENDLESS, 4, 32, NULL, 0), 0);
    CHECK_INT(launch(s, m, ENDLESS, 4, 32, NULL, 0), 0);
    while (!atomic_load(&endless_runs)) usleep(1000);
    ops->close(backend);
    open_plain();
    static struct door never;
    CHECK_INT(ops->gate(stream(1), stand, &never), 0);
    CHECK(wait_until(&never.reached, 200000));
    ops->close(backend);
}

void test_destroyed_context(void) {
    open_plain();
    struct gv_context *c = context(0);
    struct gv_stream *s, *legacy = ops->stream_legacy(c);
    struct gv_event *e;
    struct door d = {0};
    order[0] = 0;
    CHECK_INT(ops->stream_create(c, 0, 0, &s), 0);
    CHECK_INT(ops->event_create(c, 0, &e), 0);
    CHECK_INT(ops->gate(legacy, stand, &d), 0);
    CHECK_INT(ops->gate(legacy, note, "L"), 0);
    CHECK_INT(ops->gate(s, note, "s"), 0);
    ops->context_destroy(c);
    CHECK_INT(ops->gate(s, note, "t"), 0);
    open_door(&d);
    CHECK_INT(sync_stream(s), 0);
    CHECK(!strcmp(order, "Lst"));
    ops->event_destroy(e);
    ops->stream_destroy(s);
    close_all();
}
