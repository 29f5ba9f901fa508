/* Device memory of the software GPU: limits, copies, the table of memory usage, virtual memory management. */
#define _GNU_SOURCE
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backend_fixture.h"
#include "memory_usage.h"

void test_memory_limits(void) {
    struct gv_backend_config c = config(2);
    c.memory = 10 * MIB;
    open_with(&c);
    uint64_t free_bytes, total;
    CHECK_INT(ops->memory_info(ctx, &free_bytes, &total), 0);
    CHECK_INT(free_bytes, 8 * MIB);
    CHECK_INT(total, 10 * MIB);
    CHECK_INT(ops->memory_back(ctx, mem + CHUNK, 5 * CHUNK, true), 2);
    CHECK_INT(ops->memory_back(ctx, mem + CHUNK, 4 * CHUNK, true), 0);
    CHECK_INT(ops->memory_back(ctx, mem + 5 * CHUNK, CHUNK, true), 2);
    CHECK_INT(ops->memory_back(ctx, mem, CHUNK, true), 1);           /* is backed already */
    CHECK_INT(ops->memory_back(ctx, mem + 6 * CHUNK, MIB, true), 1); /* no chunk */
    struct gv_window_part part = gv_window_part(WINDOW, WINDOW_SIZE, 2, 0), second = gv_window_part(WINDOW, WINDOW_SIZE, 2, 1);
    CHECK_INT(ops->memory_back(ctx, part.worker_base, CHUNK, true), 1);
    CHECK_INT(ops->memory_back(ctx, second.base, CHUNK, true), 1); /* another device's */
    struct gv_context *other = context(1);
    CHECK_INT(ops->memory_back(other, second.base, 5 * CHUNK, true), 0); /* which has a limit of its own */
    CHECK_INT(ops->memory_back(other, second.base + 5 * CHUNK, CHUNK, true), 2);
    memset((void *)(uintptr_t)(mem + CHUNK), 0x55, CHUNK);
    CHECK_INT(ops->memory_unback(ctx, mem + CHUNK, CHUNK), 0);
    CHECK_INT(ops->memory_unback(ctx, mem + CHUNK, CHUNK), 1);
    CHECK_INT(ops->memory_unback(ctx, mem, 3 * CHUNK), 1); /* has a hole */
    CHECK_INT(ops->memory_info(ctx, &free_bytes, &total), 0);
    CHECK_INT(free_bytes, CHUNK);
    CHECK_INT(ops->memory_back(ctx, mem + CHUNK, CHUNK, true), 0);
    for (uint64_t i = 0; i < CHUNK; i += 8) CHECK_INT(*(uint64_t *)(uintptr_t)(mem + CHUNK + i), 0); /* scrubbed */
    CHECK_INT(ops->memory_alloc(ctx, 100, &total), 801);
    ops->context_destroy(other);
    close_all();
    /* A range that is in use is refused, and another one is taken. */
    c = config(1);
    CHECK_INT(ops->open(&c, &backend, err), 0);
    void *taken = mmap((void *)(uintptr_t)(WINDOW + MIB), 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    CHECK_INT(ops->reserve_window(backend, WINDOW, WINDOW_SIZE), 1);
    CHECK_INT(ops->reserve_window(backend, WINDOW + WINDOW_SIZE, MIB), 1); /* too small */
    CHECK_INT(ops->reserve_window(backend, WINDOW + WINDOW_SIZE, WINDOW_SIZE), 0);
    munmap(taken, 4096);
    ops->close(backend);
}

void test_copies(void) {
    open_plain();
    struct gv_stream *s = stream(0);
    static uint8_t in[6 * 10 * 20], out[6 * 10 * 20];
    for (size_t i = 0; i < sizeof in; i++) in[i] = (uint8_t)(i * 7);
    CHECK_INT(to_device(s, mem + 100, in, sizeof in), 0);
    CHECK_INT(to_host(s, out, mem + 100, sizeof out), 0);
    CHECK_INT(sync_stream(s), 0);
    CHECK(!memcmp(in, out, sizeof in));
    /* 5 x 4 x 3 out of 20 x 10 x 6, to where it lies packed, then within the device to another pitch. */
    memset(out, 0, sizeof out);
    struct gv_shape shape = {.width = 5, .height = 4, .depth = 3, .dst_pitch = 5, .dst_slice = 20, .src_pitch = 20, .src_slice = 200};
    CHECK_INT(ops->copy_to_host(s, out, mem + 100 + 3, &shape), 0);
    CHECK_INT(sync_stream(s), 0);
    for (int z = 0; z < 3; z++)
        for (int y = 0; y < 4; y++)
            for (int x = 0; x < 5; x++) CHECK_INT(out[z * 20 + y * 5 + x], in[z * 200 + y * 20 + x + 3]);
    shape = (struct gv_shape){.width = 20, .height = 60, .depth = 1, .dst_pitch = 32, .src_pitch = 20};
    CHECK_INT(ops->copy_device(s, mem + 8192, ctx, mem + 100, ctx, &shape), 0);
    shape = (struct gv_shape){.width = 20, .height = 60, .depth = 1, .dst_pitch = 20, .src_pitch = 32};
    CHECK_INT(ops->copy_to_host(s, out, mem + 8192, &shape), 0);
    CHECK_INT(sync_stream(s), 0);
    CHECK(!memcmp(in, out, sizeof in));
    /* Fills leave the gaps alone. */
    CHECK_INT(ops->fill(s, mem, 0, 1, 0x11, CHUNK, 1), 0);
    CHECK_INT(ops->fill(s, mem, 64, 4, 0xdeadbeef, 3, 5), 0);
    CHECK_INT(ops->fill(s, mem + 12, 64, 2, 0x1234, 1, 5), 0);
    CHECK_INT(sync_stream(s), 0);
    for (int y = 0; y < 5; y++) {
        const uint8_t *row = (const uint8_t *)(uintptr_t)(mem + (uint64_t)y * 64);
        CHECK_INT(*(const uint32_t *)(row + 8), 0xdeadbeef);
        CHECK_INT(*(const uint16_t *)(row + 12), 0x1234);
        CHECK_INT(row[14], 0x11);
    }
    CHECK_INT(ops->fill(s, mem + 1, 0, 4, 0, 1, 1), 1);
    CHECK_INT(ops->fill(s, mem, 0, 3, 0, 1, 1), 1);
    CHECK_INT(to_device(s, mem, in, 0), 0);
    ops->stream_destroy(s);
    close_all();
}

/* Everything outside of what is backed, by a byte, and the gap between two ranges. */
void test_illegal_copies(void) {
    static char buffer[8192];
    open_plain();
    struct gv_window_part part = gv_window_part(WINDOW, WINDOW_SIZE, 1, 0);
    struct {
        uint64_t address, size;
    } bad[] = {{mem + CHUNK - 99, 100}, {mem - 1, 10}, {part.worker_base, 4}, {0x40, 8}, {UINT64_MAX - 3, 16}, {mem + 3 * CHUNK - 4, 8}};
    for (int i = 0; i < 6; i++) {
        struct gv_context *c = context(0);
        struct gv_stream *s;
        CHECK_INT(ops->stream_create(c, 1, 0, &s), 0);
        CHECK_INT(i % 2 ? to_host(s, buffer, bad[i].address, bad[i].size) : to_device(s, bad[i].address, buffer, bad[i].size), 0);
        CHECK_INT(sync_stream(s), 700);
        CHECK_TEXT(ops->error_text(c), "illegal address");
        ops->stream_destroy(s);
        ops->context_destroy(c);
    }
    CHECK(!*ops->error_text(ctx));
    /* Sticky: later work is skipped, marks say so, another context is fine. */
    struct gv_stream *s = stream(0), *t = stream(1);
    struct gv_shape wide = {.width = 16, .height = 3, .depth = 1, .dst_pitch = CHUNK, .src_pitch = 16};
    CHECK_INT(ops->copy_to_device(s, mem, buffer, &wide), 0);
    CHECK_INT(sync_stream(s), 700);
    memset((void *)(uintptr_t)mem, 5, 16);
    CHECK_INT(to_device(t, mem, buffer, 16), 0);
    CHECK_INT(sync_stream(t), 700);
    CHECK_INT(*(char *)(uintptr_t)mem, 5);
    struct door d = {.open = 1};
    CHECK_INT(ops->gate(t, stand, &d), 0);
    CHECK_INT(sync_stream(t), 700);
    CHECK_INT(d.reached, 1); /* gates run all the same */
    struct gv_context *fine = context(0);
    struct gv_stream *u = ops->stream_legacy(fine);
    CHECK_INT(to_device(u, mem, buffer, 16), 0);
    CHECK_INT(sync_stream(u), 0);
    CHECK_INT(*(char *)(uintptr_t)mem, 0);
    ops->context_destroy(fine);
    ops->stream_destroy(s);
    ops->stream_destroy(t);
    close_all();
}

static int make_memory_usage(uint64_t total) {
    int fd = memfd_create("memory_usage", 0);
    CHECK(fd >= 0 && !ftruncate(fd, sizeof(struct gv_memory_usage)));
    struct gv_memory_usage *l = mmap(NULL, sizeof *l, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(l != MAP_FAILED);
    l->magic = GV_MEMORY_USAGE_MAGIC;
    l->version = GV_MEMORY_USAGE_VERSION;
    for (int i = 0; i < GV_MEMORY_USAGE_DEVICES; i++) l->total[i] = total;
    l->limit[5] = l->limit[6] = total;
    munmap(l, sizeof *l);
    return fd;
}

/* Two processes ask for a chunk at a time until there is none: together they get all of it. Once both have been refused nothing is wanted any more. */
void test_memory_usage(void) {
    int fd = make_memory_usage(100 * CHUNK);
    struct gv_memory_usage *l = mmap(NULL, sizeof *l, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    _Atomic int *ready = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int stop[2];
    CHECK(ready != MAP_FAILED && !pipe(stop));
    pid_t children[2];
    for (int child = 0; child < 2; child++) {
        if ((children[child] = fork())) continue;
        struct gv_backend_config c = config(2);
        c.device_memory = 100 * CHUNK;
        c.memory_usage_fd = fd;
        c.memory_usage_slot = (uint32_t)child + 5;
        if (child) c.memory = 30 * CHUNK; /* and one of them has a limit of its own */
        open_with(&c);
        uint64_t got = 1;
        int rc;
        close(stop[1]);
        atomic_fetch_add(ready, 1);
        while (atomic_load(ready) < 2) usleep(1000);
        while (!(rc = ops->memory_back(ctx, mem + got * CHUNK, CHUNK, true))) got++;
        CHECK_INT(rc, 2);
        CHECK(!child || got <= 30);
        atomic_fetch_add(ready, 1);
        char byte;
        CHECK_INT(read(stop[0], &byte, 1), 0); /* until the parent has looked */
        if (child) _exit(0);                   /* killed, as it were */
        close_all();
        exit(0);
    }
    close(stop[0]);
    for (int i = 0; i < 40000 && atomic_load(ready) < 4; i++) usleep(5000);
    CHECK_INT(l->rows[5].used[0] + l->rows[6].used[0], 100 * CHUNK);
    CHECK_INT(l->rows[5].used[1] + l->rows[6].used[1], 0);
    CHECK_INT(l->rows[5].wanted[0] + l->rows[6].wanted[0], 0);
    close(stop[1]);
    int status;
    for (int i = 0; i < 2; i++) CHECK(waitpid(children[i], &status, 0) > 0 && status == 0);
    CHECK_INT(l->rows[5].used[0], 0); /* closed */
    CHECK(l->rows[6].used[0] > 0);
    munmap(l, sizeof *l);
    munmap((void *)ready, 4096);
    struct gv_backend_config c = config(1);
    c.memory_usage_fd = fd;
    c.memory_usage_slot = GV_MEMORY_USAGE_SLOTS;
    CHECK_INT(ops->open(&c, &backend, err), 1);
    close(fd);
}

/* ---- virtual memory management ---- */

static uint64_t left(void) {
    uint64_t free_bytes, total;
    CHECK_INT(ops->memory_info(ctx, &free_bytes, &total), 0);
    return free_bytes;
}

static struct gv_physical *physical(uint64_t size) {
    struct gv_physical *p;
    CHECK_INT(ops->physical_create(ctx, size, &p), 0);
    return p;
}

/* What the device sees there is `first`, `first` + 1... */
static void expect_numbers(struct gv_stream *s, uint64_t at, uint64_t n, uint32_t first) {
    uint32_t *out = calloc(n, 4);
    CHECK_INT(to_host(s, out, at, n * 4), 0);
    CHECK_INT(sync_stream(s), 0);
    for (uint64_t i = 0; i < n; i++) CHECK_INT(out[i], first + i);
    free(out);
}

static void put_numbers(struct gv_stream *s, uint64_t at, uint64_t n, uint32_t first) {
    uint32_t *in = calloc(n, 4);
    for (uint64_t i = 0; i < n; i++) in[i] = first + (uint32_t)i;
    CHECK_INT(to_device(s, at, in, n * 4), 0);
    CHECK_INT(sync_stream(s), 0);
    free(in);
}

/* With and without a window; what is mapped lies somewhere in [at, at + 16 chunks). */
static void use_mappings(uint64_t at, bool windowed) {
    struct gv_stream *s = stream(1);
    uint64_t before = left(), n = CHUNK / 4;
    struct gv_physical *a = physical(CHUNK), *b = physical(2 * CHUNK), *none;
    CHECK_INT(left(), before - 3 * CHUNK);
    CHECK_INT(ops->physical_create(ctx, before, &none), 2);
    CHECK_INT(ops->physical_create(ctx, CHUNK + MIB, &none), 1);
    CHECK_INT(ops->physical_create(ctx, 0, &none), 1);

    /* Side by side, used as one. */
    CHECK_INT(ops->memory_map(a, at, CHUNK), 0);
    CHECK_INT(ops->memory_map(b, at + CHUNK, 2 * CHUNK), 0);
    CHECK_INT(ops->memory_map(a, at + 2 * CHUNK, CHUNK), 1); /* something is there */
    CHECK_INT(ops->memory_map(a, at + 4 * CHUNK, 2 * CHUNK), 1);
    CHECK_INT(ops->memory_map(a, at + MIB, CHUNK), 1);
    CHECK_INT(ops->memory_map(a, 0x7000000000ull, CHUNK), 1); /* nobody's addresses */
    CHECK_INT(ops->physical_destroy(a), 1);
    CHECK_INT(ops->memory_access(backend, at, 3 * CHUNK, 0, 2), 1);
    CHECK_INT(ops->memory_access(backend, at, 3 * CHUNK, 1, 3), 1);
    CHECK_INT(ops->memory_access(backend, at, 2 * CHUNK, 0, 3), 1);
    CHECK_INT(ops->memory_access(backend, at, 4 * CHUNK, 0, 3), 1);
    CHECK_INT(ops->memory_access(backend, at, 3 * CHUNK, 0, 3), 0);
    /* Whoever looks at it from outside of a stream has it until he is done, and may write: so none of what may only be read is given. */
    bool viewed = ops->host_view(backend, at, 3 * CHUNK) != NULL;
    CHECK(viewed || !windowed);
    if (viewed) {
        CHECK_INT(ops->memory_unmap(backend, at, 3 * CHUNK), 1);
        CHECK_INT(ops->memory_access(backend, at, CHUNK, 0, 1), 1);
        CHECK_INT(ops->memory_access(backend, at, CHUNK, 0, 0), 1);
        ops->host_view_end(backend, at, 3 * CHUNK);
    }
    CHECK_INT(ops->memory_access(backend, at, CHUNK, 0, 1), 0);
    CHECK(!ops->host_view(backend, at, 3 * CHUNK));
    CHECK_INT(ops->memory_access(backend, at, CHUNK, 0, 3), 0);
    put_numbers(s, at, 3 * n, 1);
    struct gv_module *m = module();
    struct scale_params p = {(uint32_t *)(uintptr_t)(at + CHUNK - 64), 3, 32};
    CHECK_INT(launch(s, m, SCALE, 1, 32, &p, sizeof p), 0);
    CHECK_INT(sync_stream(s), 0);
    for (uint32_t i = 0; i < 32; i++) CHECK_INT(p.data[i], 3 * (n - 16 + i + 1));
    put_numbers(s, at, 3 * n, 1);

    /* What is written stays in the memory, wherever that is. */
    CHECK_INT(ops->memory_unmap(backend, at, 2 * CHUNK), 1);
    CHECK_INT(ops->memory_unmap(backend, at, 4 * CHUNK), 1);
    CHECK_INT(ops->memory_unmap(backend, at + 3 * CHUNK, CHUNK), 1);
    CHECK_INT(ops->memory_unmap(backend, at, 3 * CHUNK), 0);
    CHECK(left() <= before - 3 * CHUNK);
    CHECK_INT(ops->memory_map(b, at + 4 * CHUNK, 2 * CHUNK), 0);
    CHECK_INT(ops->memory_access(backend, at + 4 * CHUNK, 2 * CHUNK, 0, 1), 0);
    expect_numbers(s, at + 4 * CHUNK, 2 * n, 1 + (uint32_t)n);
    /* Twice. The second time it is written, seen the first time; both ways. */
    CHECK_INT(ops->memory_map(b, at + 8 * CHUNK, 2 * CHUNK), 0);
    CHECK_INT(ops->memory_access(backend, at + 8 * CHUNK, 2 * CHUNK, 0, 3), 0);
    expect_numbers(s, at + 8 * CHUNK, 2 * n, 1 + (uint32_t)n);
    put_numbers(s, at + 8 * CHUNK, 2 * n, 77);
    expect_numbers(s, at + 4 * CHUNK, 2 * n, 77);
    CHECK_INT(ops->memory_access(backend, at + 4 * CHUNK, 2 * CHUNK, 0, 3), 0);
    put_numbers(s, at + 4 * CHUNK, 2 * n, 99);
    expect_numbers(s, at + 8 * CHUNK, 2 * n, 99);
    CHECK_INT(ops->memory_unmap(backend, at + 4 * CHUNK, 2 * CHUNK), 0);
    expect_numbers(s, at + 8 * CHUNK, 2 * n, 99);
    CHECK_INT(ops->memory_unmap(backend, at + 8 * CHUNK, 2 * CHUNK), 0);
    /* A part of one that is parked; of a fresh one. */
    CHECK_INT(ops->memory_map(b, at, CHUNK), 0);
    CHECK_INT(ops->memory_access(backend, at, CHUNK, 0, 3), 0);
    expect_numbers(s, at, n, 99);
    struct gv_physical *fresh = physical(4 * CHUNK);
    CHECK_INT(ops->memory_map(fresh, at + 12 * CHUNK, CHUNK), 0);
    CHECK_INT(ops->memory_access(backend, at + 12 * CHUNK, CHUNK, 0, 3), 0);
    put_numbers(s, at + 12 * CHUNK, n, 5);
    expect_numbers(s, at, n, 99);
    CHECK_INT(ops->memory_unmap(backend, at + 12 * CHUNK, CHUNK), 0);
    CHECK_INT(ops->physical_destroy(fresh), 0);
    CHECK_INT(ops->memory_unmap(backend, at, CHUNK), 0);
    CHECK_INT(ops->physical_destroy(a), 0);
    CHECK_INT(ops->physical_destroy(b), 0);
    ops->module_unload(m);
    CHECK_INT(left(), before);
    ops->stream_destroy(s);
}

/* A launch, copies and a fill where nothing may be used, or less than they do; each in a context of its own. */
static void use_what_may_not_be_used(uint64_t at) {
    static char buffer[64];
    struct gv_context *mine = ctx;
    for (int i = 0; i < 5; i++) {
        ctx = context(0);
        struct gv_stream *s = stream(1);
        struct gv_module *m = module();
        struct gv_physical *p = physical(CHUNK);
        struct scale_params params = {(uint32_t *)(uintptr_t)at, 3, 32};
        if (i) CHECK_INT(ops->memory_map(p, at, CHUNK), 0);
        if (i == 2 || i == 3) CHECK_INT(ops->memory_access(backend, at, CHUNK, 0, 1), 0);
        if (i == 4) {
            CHECK_INT(ops->memory_access(backend, at, CHUNK, 0, 3), 0);
            CHECK_INT(launch(s, m, SCALE, 1, 32, &params, sizeof params), 0);
            CHECK_INT(sync_stream(s), 0);
            CHECK_INT(ops->memory_access(backend, at, CHUNK, 0, 0), 0);
        }
        if (i == 3)
            CHECK_INT(to_device(s, at, buffer, sizeof buffer), 0);
        else
            CHECK_INT(launch(s, m, SCALE, 1, 32, &params, sizeof params), 0);
        CHECK_INT(sync_stream(s), 700);
        CHECK(strstr(ops->error_text(ctx), "illegal address"));
        if (i) CHECK_INT(ops->memory_unmap(backend, at, CHUNK), 0);
        CHECK_INT(ops->physical_destroy(p), 0);
        ops->module_unload(m);
        ops->stream_destroy(s);
        ops->context_destroy(ctx);
    }
    ctx = mine;
}

void test_virtual_memory(void) {
    open_plain();
    uint64_t at = mem + 64 * CHUNK;
    use_mappings(at, true);
    use_what_may_not_be_used(at);
    /* The two kinds of memory keep out of each other's way. */
    struct gv_physical *p = physical(CHUNK);
    CHECK_INT(ops->memory_map(p, mem, CHUNK), 1);
    CHECK_INT(ops->memory_map(p, at, CHUNK), 0);
    CHECK_INT(ops->memory_back(ctx, at, CHUNK, true), 1);
    CHECK_INT(ops->memory_access(backend, at, CHUNK, 0, 3), 0);
    CHECK_INT(ops->memory_unback(ctx, at, CHUNK), 1);
    CHECK_INT(ops->memory_unmap(backend, mem, CHUNK), 1);
    uint64_t address;
    CHECK_INT(ops->address_reserve(backend, CHUNK, 0, &address), 801);
    CHECK_INT(ops->address_free(backend, at, CHUNK), 1);
    /* What is left ends with the session: mapped, mapped twice, parked. */
    CHECK_INT(ops->memory_map(p, at + CHUNK, CHUNK), 0);
    CHECK_INT(ops->memory_map(physical(CHUNK), at + 2 * CHUNK, CHUNK), 0);
    CHECK_INT(ops->memory_map(physical(CHUNK), at + 3 * CHUNK, CHUNK), 0);
    CHECK_INT(ops->memory_access(backend, at + 3 * CHUNK, CHUNK, 0, 3), 0);
    CHECK_INT(ops->memory_unmap(backend, at + 3 * CHUNK, CHUNK), 0);
    close_all();

    struct gv_backend_config c = config(1);
    c.strict = 1;
    open_with(&c);
    CHECK_INT(ops->address_reserve(backend, 16 * CHUNK, 8 * CHUNK, &at), 0);
    CHECK_INT(at % (8 * CHUNK), 0);
    CHECK_INT(ops->address_reserve(backend, MIB, 0, &address), 1);
    CHECK_INT(ops->address_reserve(backend, CHUNK, 3 * CHUNK, &address), 1);
    CHECK_INT(ops->address_reserve(backend, 1ull << 60, 0, &address), 2);
    use_mappings(at, false);
    p = physical(CHUNK);
    CHECK_INT(ops->memory_map(p, at + 15 * CHUNK, CHUNK), 0);
    CHECK_INT(ops->memory_map(p, at + 16 * CHUNK, CHUNK), 1);
    CHECK_INT(ops->address_free(backend, at, 16 * CHUNK), 1);
    CHECK_INT(ops->memory_unmap(backend, at + 15 * CHUNK, CHUNK), 0);
    CHECK_INT(ops->address_free(backend, at, CHUNK), 1);
    CHECK_INT(ops->address_free(backend, at, 16 * CHUNK), 0);
    CHECK_INT(ops->address_reserve(backend, CHUNK, 0, &address), 0);
    close_all();
}

/* One thread maps, moves and shares memory while kernels and copies run in other memory beside it. */
void test_mapping_while_busy(void) {
    open_plain();
    uint64_t at = mem + 64 * CHUNK;
    struct gv_physical *still = physical(CHUNK), *moving = physical(CHUNK);
    CHECK_INT(ops->memory_map(still, at + CHUNK, CHUNK), 0);
    CHECK_INT(ops->memory_access(backend, at + CHUNK, CHUNK, 0, 3), 0);
    struct gv_stream *s = stream(1), *own = stream(1);
    struct gv_module *m = module();
    static uint32_t ones[1024], out[1024];
    for (int i = 0; i < 1024; i++) ones[i] = 1;
    CHECK_INT(to_device(s, at + CHUNK, ones, sizeof ones), 0);
    struct scale_params p = {(uint32_t *)(uintptr_t)(at + CHUNK), 3, 1024};
    uint32_t expected = 1;
    for (uint32_t round = 0; round < 60; round++) {
        CHECK_INT(launch(s, m, SCALE, 32, 32, &p, sizeof p), 0);
        expected *= 3;
        uint64_t to = at + (round & 1 ? 0 : 2 * CHUNK);
        CHECK_INT(ops->memory_map(moving, to, CHUNK), 0);
        CHECK_INT(ops->memory_access(backend, to, CHUNK, 0, 3), 0);
        if (round) expect_numbers(own, to, 1000, round - 1);
        put_numbers(own, to, 1000, round);
        if (round == 40) { /* from here on in the file */
            CHECK_INT(ops->memory_map(moving, at + 3 * CHUNK, CHUNK), 0);
            CHECK_INT(ops->memory_unmap(backend, at + 3 * CHUNK, CHUNK), 0);
        }
        CHECK_INT(ops->memory_unmap(backend, to, CHUNK), 0);
    }
    CHECK_INT(to_host(s, out, at + CHUNK, sizeof out), 0);
    CHECK_INT(sync_stream(s), 0);
    for (int i = 0; i < 1024; i++) CHECK_INT(out[i], expected);
    ops->module_unload(m);
    ops->stream_destroy(s);
    ops->stream_destroy(own);
    close_all();
}
