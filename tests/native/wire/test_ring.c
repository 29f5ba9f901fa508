/* The ring by itself: wrapping, filling, two threads, two processes, many producers. What it says about lying peers is in
 * transport/test_malformed.c. */
#define _GNU_SOURCE
#include "../../../native/wire/ring.h"

#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "../check.h"

#define SIZE 4096u
#define LIMIT 2048u

struct memory {
    struct gv_ring_control control;
    _Alignas(8) uint8_t data[SIZE];
};

struct ring {
    struct memory *memory;
    struct gv_ring_writer w;
    struct gv_ring_reader r;
};

static struct ring make(void) {
    struct ring ring = {.memory = mmap(NULL, sizeof(struct memory), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)};
    CHECK(ring.memory != MAP_FAILED);
    gv_ring_writer_init(&ring.w, &ring.memory->control, ring.memory->data, SIZE);
    gv_ring_reader_init(&ring.r, &ring.memory->control, ring.memory->data, SIZE);
    return ring;
}

static void drop(struct ring *ring) { munmap(ring->memory, sizeof *ring->memory); }

static uint32_t size_of(uint64_t n) { return 24 + (uint32_t)((n * 2654435761u) >> 7) % ((n % 5 == 0 ? LIMIT : 120) - 16) / 8 * 8; }

/* One record whose bytes follow from its number; false when the ring is full. */
static bool put(struct gv_ring_writer *w, uint64_t n) {
    uint32_t size = size_of(n);
    struct gv_record *r = gv_ring_reserve(w, size);
    if (!r) return false;
    *r = (struct gv_record){.size = size, .op = 1, .seq = n};
    memset(r + 1, (int)(n & 0xff), size - sizeof *r);
    gv_ring_publish(w);
    return true;
}

static bool get(struct gv_ring_reader *r, uint64_t n) {
    _Alignas(8) uint8_t into[LIMIT];
    int64_t size = gv_ring_read(r, into, LIMIT);
    CHECK(size >= 0);
    if (size == 0) return false;
    const struct gv_record *record = (const struct gv_record *)(const void *)into;
    CHECK(size == size_of(n) && record->size == size && record->seq == n);
    for (size_t i = sizeof *record; i < (size_t)size; i++) CHECK(into[i] == (n & 0xff));
    return true;
}

/* Fill it, empty it, a thousand times: every place is once the place where a record does not fit before the end. */
static void fill_and_empty(void) {
    struct ring ring = make();
    uint64_t out = 1, in = 1, most = 0;
    for (int round = 0; round < 1000; round++) {
        while (put(&ring.w, out)) out++;
        CHECK(!ring.w.broken && out > in);
        if (out - in > most) most = out - in;
        while (get(&ring.r, in)) in++;
        CHECK(in == out);
        CHECK(!put(&ring.w, out) || out++); /* what was not released is still the reader's */
        CHECK(!gv_ring_release(&ring.r));
    }
    CHECK(most > 10);
    drop(&ring);
}

/* An empty ring takes the largest record wherever it stands. */
static void largest_fits(void) {
    for (uint64_t start = 0; start < SIZE; start += 8) {
        struct ring ring = make();
        atomic_store(&ring.memory->control.tail, start);
        atomic_store(&ring.memory->control.head, start);
        ring.w.tail = ring.w.head = ring.r.head = ring.r.tail = ring.r.released = start;
        struct gv_record *r = gv_ring_reserve(&ring.w, LIMIT);
        CHECK(r);
        *r = (struct gv_record){.size = LIMIT, .seq = 1};
        gv_ring_publish(&ring.w);
        uint8_t into[LIMIT];
        CHECK(gv_ring_read(&ring.r, into, LIMIT) == LIMIT);
        drop(&ring);
    }
}

/* Positions run over the end of 64 bits. */
static void positions_wrap(void) {
    struct ring ring = make();
    uint64_t start = UINT64_MAX - 3 * SIZE + 1;
    atomic_store(&ring.memory->control.tail, start);
    atomic_store(&ring.memory->control.head, start);
    ring.w.tail = ring.w.head = ring.r.head = ring.r.tail = ring.r.released = start;
    for (uint64_t n = 1; n < 500; n++) {
        CHECK(put(&ring.w, n) && get(&ring.r, n));
        gv_ring_release(&ring.r);
    }
    CHECK(atomic_load(&ring.memory->control.tail) < start);
    drop(&ring);
}

static void sleeping_flags(void) {
    struct ring ring = make();
    CHECK(put(&ring.w, 1));
    atomic_store(&ring.memory->control.reader_sleeps, 1);
    struct gv_record *r = gv_ring_reserve(&ring.w, 24);
    *r = (struct gv_record){.size = 24, .seq = 2};
    CHECK(gv_ring_publish(&ring.w));
    CHECK(gv_ring_readable(&ring.r) && get(&ring.r, 1));
    atomic_store(&ring.memory->control.writer_sleeps, 1);
    CHECK(gv_ring_release(&ring.r) && !gv_ring_release(&ring.r)); /* once per progress */
    drop(&ring);
}

/* The raw reader of the same process sees the records' bytes and no pads. */
static void spans(void) {
    struct ring ring = make();
    uint64_t n = 1, expected = 0, got = 0;
    for (int round = 0; round < 2000; round++) {
        while (put(&ring.w, n)) expected += size_of(n++);
        const void *at;
        uint64_t part = gv_ring_span(&ring.r, &ring.w, &at);
        uint64_t take = part / 3 + 1 < part ? part / 3 + 1 : part; /* as a socket that takes a part only */
        got += take;
        ring.r.head += take;
        gv_ring_release(&ring.r);
    }
    const void *at;
    for (uint64_t part; (part = gv_ring_span(&ring.r, &ring.w, &at)); gv_ring_release(&ring.r)) {
        got += part;
        ring.r.head += part;
    }
    CHECK(got == expected && expected > 40 * SIZE);
    drop(&ring);
}

static void plain_bytes(void) {
    struct ring ring = make();
    uint8_t from[5000], to[5000];
    bool wake;
    uint64_t sent = 0, received = 0;
    while (received < 200000) {
        uint64_t n = (sent * 7 + 13) % sizeof from;
        for (uint64_t i = 0; i < n; i++) from[i] = (uint8_t)((sent + i) * 5);
        sent += gv_ring_put(&ring.w, from, n, &wake);
        int64_t m = gv_ring_take(&ring.r, received % 3 ? to : NULL, (received * 3 + 11) % sizeof to, &wake);
        CHECK(m >= 0 && !wake);
        for (int64_t i = 0; i < m && received % 3; i++) CHECK(to[i] == (uint8_t)((received + (uint64_t)i) * 5));
        received += (uint64_t)m;
    }
    drop(&ring);
}

/* ---- at the same time */

#define COUNT 30000u

static void *produce(void *arg) {
    struct gv_ring_writer *w = arg;
    for (uint64_t n = 1; n <= COUNT; n++) {
        while (!put(w, n)) sched_yield();
    }
    return NULL;
}

static void consume(struct gv_ring_reader *r) {
    for (uint64_t n = 1; n <= COUNT;) {
        if (get(r, n)) {
            if (n++ % 7 == 0) gv_ring_release(r);
        } else {
            gv_ring_release(r);
            sched_yield();
        }
    }
}

static void two_threads(void) {
    struct ring ring = make();
    pthread_t producer;
    CHECK(pthread_create(&producer, NULL, produce, &ring.w) == 0);
    consume(&ring.r);
    pthread_join(producer, NULL);
    drop(&ring);
}

static void two_processes(void) {
    struct ring ring = make();
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        produce(&ring.w);
        _exit(0);
    }
    consume(&ring.r);
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    drop(&ring);
}

#define PRODUCERS 4

struct shared_writer {
    struct gv_ring_writer *w;
    pthread_mutex_t mutex;
    uint64_t next;
};

static void *produce_shared(void *arg) {
    struct shared_writer *s = arg;
    for (;;) {
        pthread_mutex_lock(&s->mutex);
        uint64_t n = s->next;
        bool done = n > COUNT, full = !done && !put(s->w, n);
        if (!done && !full) s->next++;
        pthread_mutex_unlock(&s->mutex);
        if (done) return NULL;
        if (full) sched_yield();
    }
}

static void many_producers(void) {
    struct ring ring = make();
    struct shared_writer s = {&ring.w, PTHREAD_MUTEX_INITIALIZER, 1};
    pthread_t threads[PRODUCERS];
    for (int i = 0; i < PRODUCERS; i++) CHECK(pthread_create(&threads[i], NULL, produce_shared, &s) == 0);
    consume(&ring.r);
    for (int i = 0; i < PRODUCERS; i++) pthread_join(threads[i], NULL);
    drop(&ring);
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        {"fill_and_empty", fill_and_empty},
        {"largest_fits", largest_fits},
        {"positions_wrap", positions_wrap},
        {"sleeping_flags", sleeping_flags},
        {"spans", spans},
        {"plain_bytes", plain_bytes},
        {"two_threads", two_threads},
        {"two_processes", two_processes},
        {"many_producers", many_producers},
    };
    return run_cases(cases, sizeof cases / sizeof *cases, argc, argv, 240);
}
