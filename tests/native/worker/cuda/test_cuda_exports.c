/* What the cuda backend lets other sessions have, on a driver of the tests' own: test_cuda_exports DRIVER [case...]. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/mman.h>

#include "backend_fixture.h"

#define MIB (1ull << 20)
#define ELSEWHERE 0x7ea000000000ull /* where sanitizers have none of their own, as base */

static uint64_t base = 0x7e9000000000ull; /* of the window: another one each time, for the driver keeps its addresses */
static char why[GV_ERR_SIZE];

static void paint(uint64_t address, uint64_t size, unsigned seed) {
    for (uint64_t at = 0; at < size; at += 4096) *(unsigned *)(uintptr_t)(address + at) = seed + (unsigned)(at >> 12);
}

static bool painted(uint64_t address, uint64_t size, unsigned seed) {
    for (uint64_t at = 0; at < size; at += 4096)
        if (*(unsigned *)(uintptr_t)(address + at) != seed + (unsigned)(at >> 12)) return false;
    return true;
}

/* What another worker hears: it has descriptors of its own. */
static struct gv_shared heard(const struct gv_shared *s) {
    struct gv_shared other = *s;
    for (uint32_t i = 0; i < s->n_pieces; i++) {
        CHECK(s->fd[i] >= 0 && !s->file[i]);
        other.fd[i] = dup(s->fd[i]);
    }
    return other;
}

static struct gv_physical *imported(const struct gv_shared *s, uint64_t session) {
    struct gv_shared other = heard(s);
    struct gv_physical *p = NULL;
    CHECK(ops->physical_import(context, &other, session, &p) == 0 && p);
    return p;
}

static void map_there(struct gv_physical *p, uint64_t size) {
    static bool reserved;
    if (!reserved) CHECK(mmap((void *)ELSEWHERE, 64 * MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) == (void *)ELSEWHERE);
    reserved = true;
    CHECK(ops->memory_map(p, ELSEWHERE, size) == 0 && ops->memory_access(backend, ELSEWHERE, size, 0, 3) == 0);
}

static void unmap_there(struct gv_physical *p, uint64_t size) {
    CHECK(ops->memory_unmap(backend, ELSEWHERE, size) == 0 && ops->physical_destroy(p) == 0);
}

static void open_window(void) {
    fake_memory_empty();
    begin(0);
    base += 1ull << 30;
    CHECK(ops->reserve_window(backend, base, 1ull << 30) == 0);
}

/* An allocation over several handles: they become one, at the same addresses, and nothing is taken or counted twice. */
static void allocation(void) {
    open_window();
    struct gv_shared s, again;
    CHECK(ops->memory_back(context, base, 24 * MIB, true) == 0 && ops->memory_back(context, base + 24 * MIB, 4 * MIB, true) == 0);
    CHECK(fake_virtual.handles == 2 && !fake_virtual.prop.requestedHandleTypes);
    paint(base, 28 * MIB, 5);
    size_t bytes = fake_virtual.bytes;
    CHECK(ops->memory_export(context, base + 23 * MIB, 3 * MIB, &s) == 0);
    CHECK(s.n_pieces == 1 && s.size == 28 * MIB && s.offset == 23 * MIB && s.length == 3 * MIB && s.kind == GV_SHARED_MEMORY);
    CHECK(fake_virtual.handles == 1 && fake_virtual.bytes == bytes && painted(base, 28 * MIB, 5));
    CHECK(ops->memory_export(context, base, 4096, &again) == 0 && fake_virtual.handles == 1); /* it has moved already */
    CHECK(again.offset == 0 && again.size == 28 * MIB);

    struct gv_physical *p = imported(&s, 7);
    map_there(p, s.size);
    CHECK(painted(ELSEWHERE, 28 * MIB, 5));
    paint(ELSEWHERE, 28 * MIB, 9);
    CHECK(painted(base, 28 * MIB, 9));
    unmap_there(p, s.size);
    CHECK(ops->park(backend, -1, why) == CUDA_ERROR_NOT_SUPPORTED && strstr(why, "shares memory"));
    ops->export_end(backend, &again);
    ops->export_end(backend, &s);
    CHECK(fcntl(s.fd[0], F_GETFD) < 0);
    CHECK(ops->memory_unback(context, base, 28 * MIB) == 0 && fake_virtual.handles == 0 && fake_virtual.mapped_bytes == 0);
    end();
}

/* What is exported already stays where it is: an allocation that lies around it has pieces. */
static void pieces(void) {
    open_window();
    struct gv_shared middle, all;
    for (int i = 0; i < 3; i++) CHECK(ops->memory_back(context, base + 4 * i * MIB, 4 * MIB, true) == 0);
    paint(base, 12 * MIB, 1);
    CHECK(ops->memory_export(context, base + 4 * MIB, 4 * MIB, &middle) == 0 && fake_virtual.handles == 3);
    CHECK(ops->memory_export(context, base + 2 * MIB, 8 * MIB, &all) == 0 && all.n_pieces == 3 && all.size == 12 * MIB && all.offset == 2 * MIB);
    struct gv_physical *p = imported(&all, 7);
    map_there(p, 12 * MIB);
    CHECK(painted(ELSEWHERE, 12 * MIB, 1));
    unmap_there(p, 12 * MIB);
    p = imported(&all, 7);
    CHECK(ops->memory_map(p, ELSEWHERE, 14 * MIB) == CUDA_ERROR_INVALID_VALUE); /* more than there is */
    fake_virtual.fail = CUDA_ERROR_UNKNOWN, fake_virtual.fails = FAKE_MAP, fake_virtual.after = 2;
    size_t mapped = fake_virtual.mapped_bytes;
    CHECK(ops->memory_map(p, ELSEWHERE, 12 * MIB) == CUDA_ERROR_UNKNOWN && fake_virtual.mapped_bytes == mapped);
    CHECK(ops->physical_destroy(p) == 0);
    ops->export_end(backend, &middle);
    ops->export_end(backend, &all);
    end();
}

static void made(struct gv_physical **p, uint64_t at, uint64_t size) {
    CHECK(ops->physical_create(context, size, p) == 0 && ops->memory_map(*p, at, size) == 0);
    CHECK(ops->memory_access(backend, at, size, 0, 3) == 0);
}

/* Memory of the program's, mapped at two addresses, or at none. */
static void physical(void) {
    open_window();
    struct gv_shared s;
    struct gv_physical *p;
    made(&p, base, 4 * MIB);
    CHECK(ops->memory_map(p, base + 8 * MIB, 4 * MIB) == 0 && ops->memory_access(backend, base + 8 * MIB, 4 * MIB, 0, 1) == 0);
    paint(base, 4 * MIB, 3);
    CHECK(ops->physical_export(p, &s) == 0 && fake_virtual.handles == 1 && s.size == 4 * MIB && s.length == 4 * MIB && s.offset == 0);
    CHECK(painted(base + 8 * MIB, 4 * MIB, 3));
    struct gv_physical *other = imported(&s, 7);
    map_there(other, 4 * MIB);
    paint(ELSEWHERE, 4 * MIB, 4);
    CHECK(painted(base, 4 * MIB, 4) && painted(base + 8 * MIB, 4 * MIB, 4));
    struct gv_shared none;
    CHECK(ops->physical_export(other, &none) == CUDA_ERROR_NOT_SUPPORTED); /* not ours to give away */
    unmap_there(other, 4 * MIB);
    ops->export_end(backend, &s);
    CHECK(ops->memory_unmap(backend, base, 4 * MIB) == 0 && ops->memory_unmap(backend, base + 8 * MIB, 4 * MIB) == 0);
    CHECK(ops->physical_destroy(p) == 0 && fake_virtual.handles == 0);
    CHECK(ops->physical_create(context, 4 * MIB, &p) == 0 && ops->physical_export(p, &s) == 0);
    ops->export_end(backend, &s);
    CHECK(ops->physical_destroy(p) == 0 && fake_virtual.handles == 0 && fake_virtual.mapped_bytes == 0);
    end();
}

/* Only at rest; only what is there, and what the worker has placed. */
static void refused(void) {
    open_window();
    struct gv_shared s;
    struct gv_physical *p;
    struct gv_event *e;
    CHECK(ops->memory_back(context, base, 4 * MIB, true) == 0);
    CHECK(ops->memory_export(context, base + 2 * MIB, 4 * MIB, &s) == 1 && ops->memory_export(context, base, 0, &s) == 1);
    CHECK(ops->memory_export(context, base + MIB, UINT64_MAX - 1, &s) == 1 && ops->memory_export(context, 4096, 4096, &s) == 1);
    made(&p, base + 8 * MIB, 4 * MIB);
    CHECK(ops->memory_export(context, base + 8 * MIB, 4 * MIB, &s) == 1); /* the program has mapped it */
    CHECK(ops->memory_unmap(backend, base + 8 * MIB, 4 * MIB) == 0);
    fake_driver_hold(true);
    CHECK(ops->event_create(context, 0, &e) == 0 && ops->event_record(e, stream) == 0);
    CHECK(ops->memory_export(context, base, 4 * MIB, &s) == CUDA_ERROR_NOT_READY && ops->physical_export(p, &s) == CUDA_ERROR_NOT_READY);
    fake_driver_hold(false);
    while (!ops->at_rest(backend)) usleep(1000);
    CHECK(ops->physical_destroy(p) == 0);
    struct gv_shared bad = {.kind = GV_SHARED_MEMORY, .n_pieces = 1, .size = 2 * MIB, .length = 2 * MIB, .pieces = {{0, 2 * MIB}}};
    const struct gv_shared wrong[] = {{.kind = GV_SHARED_EVENT}, {.n_pieces = 9}, {.size = MIB},
                                      {.length = 3 * MIB},       {.offset = MIB}, {.pieces = {{1, 2 * MIB}}}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct gv_shared w = bad;
        if (wrong[i].kind) w.kind = wrong[i].kind;
        if (wrong[i].n_pieces) w.n_pieces = 0;
        if (wrong[i].size) w.size = wrong[i].size;
        if (wrong[i].length) w.length = wrong[i].length;
        if (wrong[i].offset) w.offset = wrong[i].offset;
        if (wrong[i].pieces[0].offset) w.pieces[0] = wrong[i].pieces[0];
        for (int k = 0; k < GV_SHARED_PIECES; k++) w.fd[k] = -1;
        w.fd[0] = memfd_create("bad", 0);
        CHECK(ops->physical_import(context, &w, 7, &p) == 1);
        CHECK(!w.n_pieces || fcntl(w.fd[0], F_GETFD) < 0); /* taken over */
    }
    int pipes[2];
    CHECK(!pipe(pipes));
    for (int k = 1; k < GV_SHARED_PIECES; k++) bad.fd[k] = -1;
    bad.fd[0] = pipes[0]; /* no memory of the driver's */
    CHECK(ops->physical_import(context, &bad, 7, &p) == 1);
    end();
}

/* Whatever the driver refuses meanwhile: all is as it was. */
static void failing(void) {
    static const enum fake_call calls[] = {FAKE_CREATE, FAKE_MAP, FAKE_ACCESS, FAKE_COPY, FAKE_UNMAP, FAKE_EXPORT};
    open_window();
    struct gv_shared s;
    struct gv_physical *p;
    made(&p, base + 32 * MIB, 4 * MIB);
    CHECK(ops->memory_map(p, base + 40 * MIB, 4 * MIB) == 0 && ops->memory_access(backend, base + 40 * MIB, 4 * MIB, 0, 3) == 0);
    for (int i = 0; i < 2; i++) CHECK(ops->memory_back(context, base + 4 * i * MIB, 4 * MIB, true) == 0);
    paint(base, 8 * MIB, 1), paint(base + 32 * MIB, 4 * MIB, 2);
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        for (int after = 0; after < 4; after++) {
            size_t mapped = fake_virtual.mapped_bytes, bytes = fake_virtual.bytes;
            fake_virtual.fail = CUDA_ERROR_OUT_OF_MEMORY, fake_virtual.fails = calls[i], fake_virtual.after = after;
            int status = after % 2 ? ops->physical_export(p, &s) : ops->memory_export(context, base, 8 * MIB, &s);
            CHECK(status == (fake_virtual.fail ? 0 : CUDA_ERROR_OUT_OF_MEMORY));
            fake_virtual.fail = fake_virtual.after = 0;
            if (!status) ops->export_end(backend, &s);
            CHECK(fake_virtual.mapped_bytes == mapped && fake_virtual.bytes == bytes);
            CHECK(painted(base, 8 * MIB, 1) && painted(base + 32 * MIB, 4 * MIB, 2) && painted(base + 40 * MIB, 4 * MIB, 2));
        }
    end();
}

/* As another worker hears of it, which this backend plays as well. */
static struct gv_event *opened(const struct gv_shared *s, uint64_t session) {
    struct gv_shared other = *s;
    struct gv_event *e;
    CHECK(s->kind == GV_SHARED_EVENT && s->n_pieces == 1);
    other.fd[0] = dup(s->fd[0]);
    CHECK(ops->event_import(context, &other, session, &e) == 0);
    return e;
}

static void await(struct gv_event *e) {
    while (ops->event_query(e)) usleep(1000);
}

static void events(void) {
    begin(0);
    const unsigned flags = CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING;
    struct gv_shared s, late;
    struct gv_event *event, *other, *second, *plain;
    struct gv_stream *waiting;
    CHECK(ops->stream_create(context, 1, 0, &waiting) == 0);
    CHECK(ops->event_create(context, flags, &event) == 0 && ops->event_export(event, &s) == 0);
    CHECK(ops->event_create(context, CU_EVENT_DISABLE_TIMING, &plain) == 0 && ops->event_export(plain, &late) == CUDA_ERROR_INVALID_HANDLE);
    other = opened(&s, 7);
    CHECK(ops->event_query(other) == 0 && ops->event_export(other, &late) == CUDA_ERROR_INVALID_HANDLE);
    CHECK(ops->stream_wait_event(waiting, other) == 0 && ops->at_rest(backend)); /* nobody has recorded it */
    fake_driver_hold(true);
    CHECK(ops->event_record(event, stream) == 0 && ops->event_query(other) == CUDA_ERROR_NOT_READY);
    CHECK(ops->stream_wait_event(waiting, other) == 0 && ops->stream_wait_event(stream, event) == 0);
    fake_driver_hold(false);
    await(other);
    while (!ops->at_rest(backend)) usleep(1000);
    CHECK(ops->event_record(other, stream) == 0); /* the other session does */
    await(event);

    /* One that is exported while its record is under way. */
    CHECK(ops->event_create(context, flags, &second) == 0);
    fake_driver_hold(true);
    CHECK(ops->event_record(second, stream) == 0 && ops->event_export(second, &late) == 0);
    struct gv_event *third = opened(&late, 7);
    CHECK(ops->event_query(third) == CUDA_ERROR_NOT_READY && ops->event_query(second) == CUDA_ERROR_NOT_READY);
    fake_driver_hold(false);
    await(third);

    /* Nobody waits for a session that has ended. */
    fake_driver_hold(true);
    CHECK(ops->event_record(second, stream) == 0 && ops->stream_wait_event(waiting, third) == 0);
    ops->exporter_gone(backend, 7);
    CHECK(ops->event_query(third) == 0);
    fake_driver_hold(false);
    while (!ops->at_rest(backend)) usleep(1000);

    struct gv_shared wrong = s;
    wrong.kind = GV_SHARED_MEMORY, wrong.fd[0] = dup(s.fd[0]);
    CHECK(ops->event_import(context, &wrong, 7, &plain) == 1);
    ops->export_end(backend, &s);
    struct gv_event *all[] = {event, other, second, third};
    for (int i = 0; i < 4; i++) ops->event_destroy(all[i]);
    end();
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {{"allocation", allocation}, {"pieces", pieces},   {"physical", physical},
                                             {"refused", refused},       {"failing", failing}, {"events", events}};
    if (argc < 2) return 2;
    driver = argv[1];
    return run_cases(cases, sizeof cases / sizeof *cases, argc - 1, argv + 1, 240);
}
