/* Payloads that lie in registered memory, between the ends of a link over verbs on the software libibverbs. */
#ifndef LENT_FIXTURE_H
#define LENT_FIXTURE_H

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "../../../native/transport/verbs/verbs.h"
#include "devices_fixture.h"
#include "numbered_bytes.h"
#include "resume/resume_fixture.h"

#define SIZE (5u << 20)

static inline void count(void *arg) { atomic_fetch_add((_Atomic int *)arg, 1); }

static inline void await_count(_Atomic int *done, int n) {
    for (int64_t end = gv_now_ns() + TEST_PATIENCE_NS; atomic_load(done) < n; usleep(100)) CHECK(gv_now_ns() < end);
}

/* Memory that is a device's alone: whoever touches its addresses has a SIGSEGV; the software libibverbs maps its descriptor, and so does the test. */
struct device {
    uint8_t *at, *view;
    int fd;
    _Atomic uint64_t moved;
    _Atomic bool broken;
};

#define IN_PAGE 40u /* bytes before it in its first page */

static inline bool move_of_device(void *arg, uint64_t at, void *host, uint64_t size, bool to_device) {
    struct device *d = arg;
    uint64_t from = at - (uintptr_t)d->at;
    CHECK(from <= SIZE && size <= SIZE - from);
    if (atomic_load(&d->broken)) return false;
    if (to_device)
        memcpy(d->view + from, host, size);
    else
        memcpy(host, d->view + from, size);
    atomic_fetch_add(&d->moved, size);
    return true;
}

static inline void make_device(struct device *d) {
    memset(d, 0, sizeof *d);
    d->fd = memfd_create("device", MFD_CLOEXEC);
    CHECK(d->fd >= 0 && ftruncate(d->fd, SIZE + IN_PAGE) == 0);
    uint8_t *view = mmap(NULL, SIZE + IN_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, d->fd, 0);
    uint8_t *at = mmap(NULL, SIZE + IN_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(view != MAP_FAILED && at != MAP_FAILED);
    d->view = view + IN_PAGE;
    d->at = at + IN_PAGE;
}

static inline void unmake_device(struct device *d) {
    munmap(d->view - IN_PAGE, SIZE + IN_PAGE);
    munmap(d->at - IN_PAGE, SIZE + IN_PAGE);
    close(d->fd);
}

static inline bool offer_device(struct gv_link *link, struct device *d) {
    return gv_link_offer_device_memory(link, d->at, SIZE, &(struct gv_device_memory){d->fd, IN_PAGE, move_of_device, d});
}

/* Somebody who waits for payloads that do not come, as both ends always have: notes are taken in that way. */
static inline void *await_payload(void *link) {
    struct gv_bulk_header h;
    while (gv_bulk_recv_header(link, &h) == 0) CHECK(gv_bulk_recv(link, NULL, h.size) == 0);
    return NULL;
}

enum offered { SOURCE, BOTH, ON_DEVICE, NEITHER }; /* ON_DEVICE: both, and the worker's end is a device's; NEITHER: only that */

struct ends {
    struct session s;
    struct gv_link *from, *to;
    pthread_t reader;         /* at the sender's end */
    uint8_t *source, *target; /* for the link */
    uint8_t *written, *seen;  /* the same for the test */
    struct device device;
};

static inline void open_ends(struct ends *e, const char *link, bool to_client, enum offered offered) {
    open_with(&e->s, NO_FAULT, link, GRACE_S);
    e->from = to_client ? e->s.p.worker : e->s.p.client;
    e->to = to_client ? e->s.p.client : e->s.p.worker;
    bool on_device = offered == ON_DEVICE || offered == NEITHER;
    make_device(&e->device);
    if (on_device) CHECK(gv_link_takes_device_memory(e->s.p.worker) && offer_device(e->s.p.worker, &e->device));
    bool source_there = on_device && to_client, target_there = on_device && !to_client;
    e->written = source_there ? e->device.view : malloc(SIZE);
    e->seen = target_there ? e->device.view : malloc(SIZE);
    e->source = source_there ? e->device.at : e->written;
    e->target = target_there ? e->device.at : e->seen;
    if (!source_there && offered != NEITHER) gv_link_offer_memory(e->from, e->source, SIZE);
    if (!target_there && (offered == BOTH || offered == ON_DEVICE)) gv_link_offer_memory(e->to, e->target, SIZE);
    CHECK(pthread_create(&e->reader, NULL, await_payload, e->from) == 0);
}

static inline void close_ends(struct ends *e) {
    gv_link_last(e->s.p.client);
    gv_link_last(e->s.p.worker);
    gv_link_kill(e->from, "the test is over");
    pthread_join(e->reader, NULL);
    gv_link_take_back_memory(e->from, e->source);
    gv_link_take_back_memory(e->to, e->target);
    close_session(&e->s);
    if (e->written != e->device.view) free(e->written);
    if (e->seen != e->device.view) free(e->seen);
    unmake_device(&e->device);
}

/* The part [at, at + size) of the source as a payload. */
static inline void lend(struct ends *e, uint64_t n, uint64_t at, uint64_t size, _Atomic int *done) {
    CHECK(gv_bulk_open(e->from, n, size) && gv_bulk_part(e->from, e->source + at, size, count, done) == 0);
}

static inline void receive(struct ends *e, uint64_t n, uint64_t at, uint64_t size) {
    struct gv_bulk_header h;
    CHECK(gv_bulk_recv_header(e->to, &h) == 0 && h.tag == n && h.size == size && gv_bulk_recv(e->to, e->target + at, size) == 0);
}

/* More loans than the link keeps account of. */
static inline void lend_too_much(bool to_client, enum offered offered) {
    struct ends e;
    _Atomic int done = 0;
    open_ends(&e, "verbs(rails=2)", to_client, offered);
    fill_numbered(e.written, SIZE, 4);
    for (uint64_t n = 0; n < VERBS_LOANS + 30; n++) lend(&e, n, n * 64, VERBS_LENT_LEAST + n, &done);
    for (uint64_t n = 0; n < VERBS_LOANS + 30; n++) {
        receive(&e, n, n, VERBS_LENT_LEAST + n);
        CHECK(memcmp(e.seen + n, e.written + n * 64, VERBS_LENT_LEAST + n) == 0);
    }
    await_count(&done, VERBS_LOANS + 30);
    CHECK(link_counts(e.to).bulk_pulled >= VERBS_LOANS * (uint64_t)VERBS_LENT_LEAST);
    close_ends(&e);
}

/* ---- payloads while something is broken */

struct cutting {
    struct ends e;
    _Atomic bool stop;
    _Atomic uint64_t came;
    pthread_t threads[2];
};

static inline void *lend_all(void *arg) {
    struct cutting *c = arg;
    _Atomic int done = 0;
    for (int n = 0; !atomic_load(&c->stop); n++) {
        fill_numbered(c->e.written, SIZE, (uint64_t)n);
        lend(&c->e, (uint64_t)n + 1, 0, SIZE - (uint64_t)n % 7, &done);
        await_count(&done, n + 1);
    }
    CHECK(gv_bulk_send(c->e.from, UINT64_MAX, c->e.written, 1)); /* of memory that was not offered */
    return NULL;
}

static inline void *receive_all(void *arg) {
    struct cutting *c = arg;
    struct gv_bulk_header h;
    for (uint64_t n = 0;; n++) {
        CHECK(gv_bulk_recv_header(c->e.to, &h) == 0);
        if (h.tag == UINT64_MAX) break;
        memset(c->e.seen, 1, SIZE);
        CHECK(h.tag == n + 1 && h.size == SIZE - n % 7);
        if (gv_bulk_recv(c->e.to, c->e.target, h.size)) fprintf(stderr, "died: %s\n", gv_link_death(c->e.to));
        CHECK(is_numbered(c->e.seen, h.size, n));
        atomic_store(&c->came, n + 1);
    }
    CHECK(gv_bulk_recv(c->e.to, c->e.target, 1) == 0);
    return NULL;
}

static inline void start(struct cutting *c, bool to_client, enum offered offered) {
    memset(c, 0, sizeof *c);
    open_ends(&c->e, "verbs(rails=2)", to_client, offered);
    CHECK(pthread_create(&c->threads[0], NULL, lend_all, c) == 0 && pthread_create(&c->threads[1], NULL, receive_all, c) == 0);
}

static inline void await_more(struct cutting *c, uint64_t more) {
    uint64_t until = atomic_load(&c->came) + more;
    for (int64_t end = gv_now_ns() + TEST_PATIENCE_NS; atomic_load(&c->came) < until; usleep(500)) CHECK(gv_now_ns() < end);
}

static inline void finish(struct cutting *c) {
    atomic_store(&c->stop, true);
    for (int i = 0; i < 2; i++) pthread_join(c->threads[i], NULL);
    CHECK(link_counts(c->e.to).bulk_pulled > 0);
    close_ends(&c->e);
}

static inline void cut_often(bool to_client, enum offered offered) {
    struct cutting c;
    start(&c, to_client, offered);
    for (uint64_t n = 1; n <= 20; n++) {
        await_more(&c, 1);
        usleep((useconds_t)(n * 397 % 3000));
        cutter_cut_all(&c.e.s.cutter);
        await_resumes(&c.e.s, n);
    }
    await_more(&c, 2);
    finish(&c);
}

/* Both rails are dead, and what is lent is asked for over the TCP connection. */
static inline void kill_rails(struct cutting *c) {
    await_more(c, 2);
    atomic_store(&rail(1)->drop, 1);
    await_resumes(&c->e.s, 1);
    await_more(c, 2);
    atomic_store(&rail(0)->drop, 1);
    for (int64_t end = gv_now_ns() + TEST_PATIENCE_NS; !atomic_load(&((struct verbs *)c->e.to)->over_tcp); usleep(1000)) CHECK(gv_now_ns() < end);
}

static inline void revive_rails(struct cutting *c) {
    for (uint32_t i = 0; i < 2; i++) atomic_store(&rail(i)->drop, 0);
    int64_t end = gv_now_ns() + TEST_PATIENCE_NS;
    for (; atomic_load(&((struct verbs *)c->e.to)->over_tcp) || gv_link_down(c->e.to); usleep(10000)) CHECK(gv_now_ns() < end);
}

/* A rail dies in the middle of reads, then both do, until they are back. */
static inline void rails_die(bool to_client, enum offered offered) {
    struct cutting c;
    start(&c, to_client, offered);
    kill_rails(&c);
    uint64_t before = link_counts(c.e.to).bulk_pulled;
    /* What arrives first may have been read over the rails before they died. */
    for (int64_t by = gv_now_ns() + TEST_PATIENCE_NS; link_counts(c.e.to).bulk_pulled <= before + 2 * SIZE;) {
        CHECK(gv_now_ns() < by);
        await_more(&c, 1);
    }
    cutter_cut_all(&c.e.s.cutter);
    await_more(&c, 2);
    revive_rails(&c);
    await_more(&c, 3);
    finish(&c);
}

static inline void await_death(struct gv_link *link, const char *why) {
    int64_t until = gv_now_ns() + TEST_PATIENCE_NS;
    while (!gv_link_dead(link) && gv_now_ns() < until) {
        if (gv_recv_peek(link)) gv_recv_consume(link);
        gv_recv_wait(link, 1000000, 0);
    }
    CHECK_TEXT(gv_link_death(link), why);
}

#endif
