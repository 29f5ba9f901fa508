#include "objects/managed/mirror.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "objects/managed/managed.h"
#include "objects/managed/transfer.h"

#define PAUSE_NS 100000 /* between two rounds */
#define MOST_FETCHES 4  /* of memory that the device goes on writing */
#define WORD 8u         /* bytes that one store may have written */
#define STORE 4u        /* bytes that are sent together: no half of a number */
#define NO_WORD UINT64_MAX
#define NO_ROUND UINT64_MAX

struct mirror {
    pthread_mutex_t lock; /* one thread exchanges at a time; taken before region_lock */
    uint64_t size;
    uint64_t given;   /* region_given() when the thread last asked what is under way; NO_ROUND: not since the mirror began */
    uint64_t first;   /* the word that the host has written first since the last push */
    char *common;     /* what both sides had last */
    char *snapshot;   /* the host's, at one moment */
    char *device;     /* the device's */
    char *before;     /* the device's, as it was fetched before */
    uint16_t *writes; /* how often the host has changed a word */
};

_Atomic uint64_t mirrors;
static pthread_cond_t wanted = PTHREAD_COND_INITIALIZER;

void mirror_free(struct region *r) {
    if (!r->mirror) return;
    pthread_mutex_destroy(&r->mirror->lock);
    free(r->mirror);
    r->mirror = NULL;
    atomic_fetch_sub(&mirrors, 1);
}

bool mirror_touched(struct region *r, uint64_t address, bool write) {
    size_t block = (address - region_base(r)) >> r->shift;
    if (!write) return !region_set(r, block, 1, region_state(r, block) == BLOCK_DIRTY ? BLOCK_DIRTY : BLOCK_CLEAN, 0);
    if (r->mirror->first == NO_WORD) r->mirror->first = (address - region_base(r)) / WORD;
    return !region_set(r, block, 1, BLOCK_DIRTY, 0);
}

/* ---- to the device ---- */

/* Bytes that the host has changed. They reach the device one run after the other, and a kernel that sees a flag must see the data that was written before it. The order of the writes is not known but for the
 * first one; of the others, long runs are data, and a word that changes more often is more of a flag. */
struct change {
    uint64_t at, n;
    unsigned rank;
};

static unsigned rank(const struct mirror *m, uint64_t first, uint64_t at, uint64_t n) {
    uint64_t word = at / WORD;
    if (first >= word && first <= (at + n - 1) / WORD) return 0;
    return n > WORD ? 1 : 2u + m->writes[word];
}

static int by_rank(const void *a, const void *b) {
    const struct change *x = a, *y = b;
    if (x->rank != y->rank) return x->rank < y->rank ? -1 : 1;
    return x->at < y->at ? -1 : x->at > y->at;
}

/* Whether the host has changed some of what one store writes. */
static bool differ(const struct mirror *m, uint64_t at) { return memcmp(m->snapshot + at, m->common + at, STORE) != 0; }

/* What has changed, in the order in which it is to be sent; *n: how many. NULL: nothing, or out of memory. */
static struct change *changes(struct mirror *m, uint64_t first, size_t *n) {
    struct change *all = NULL;
    size_t room = 0;
    *n = 0;
    for (uint64_t i = 0; i < m->size;) {
        uint64_t run = 0;
        while (i + run < m->size && differ(m, i + run)) run += STORE;
        if (run && *n == room) {
            room = 2 * room + 8;
            struct change *more = realloc(all, room * sizeof *more);
            if (!more) break; /* the rest with the next push */
            all = more;
        }
        if (run) all[(*n)++] = (struct change){i, run, rank(m, first, i, run)};
        i += run ? run : STORE;
    }
    for (size_t k = 0; k < *n; k++) {
        uint16_t *writes = &m->writes[all[k].at / WORD];
        if (*writes < UINT16_MAX) ++*writes;
    }
    if (*n) qsort(all, *n, sizeof *all, by_rank);
    return all;
}

/* What the host has at one moment: its writers wait at the protected pages. False: it has written nothing. */
static bool take_snapshot(struct region *r, uint64_t *first) {
    struct mirror *m = r->mirror;
    pthread_mutex_lock(&region_lock);
    bool dirty = r->dirty != 0;
    if (dirty) {
        region_set(r, 0, r->n, BLOCK_CLEAN, 0);
        memcpy(m->snapshot, r->view, m->size);
        *first = m->first;
        m->first = NO_WORD;
    }
    pthread_mutex_unlock(&region_lock);
    return dirty;
}

/* m->lock held. */
static int push_locked(struct region *r) {
    struct mirror *m = r->mirror;
    struct shim_stream *s = r->context->pages; /* as the fetches: what comes back has what was sent */
    uint64_t first;
    if (!take_snapshot(r, &first)) return 0;
    size_t n;
    int rc = 0;
    struct change *all = changes(m, first, &n);
    for (size_t i = 0; i < n && !rc; i++) {
        uint64_t seq;
        rc = transfer_push(s, region_base(r) + all[i].at, m->snapshot + all[i].at, all[i].n, &seq);
        if (!rc) memcpy(m->common + all[i].at, m->snapshot + all[i].at, all[i].n);
    }
    free(all);
    if (!rc) session_flush();
    return rc;
}

int mirror_push(struct region *r) {
    throttle_exempt_begin(); /* a host function that others wait for may wait for the kernel, and that for the host's write */
    pthread_mutex_lock(&r->mirror->lock);
    int rc = push_locked(r);
    pthread_mutex_unlock(&r->mirror->lock);
    throttle_exempt_end();
    return rc;
}

/* ---- to the host ---- */

/* Takes over what the device has changed and the host has not, all at once for the program. */
static void merge(struct region *r) {
    struct mirror *m = r->mirror;
    pthread_mutex_lock(&region_lock);
    bool dirty = r->dirty != 0;
    region_set(r, 0, r->n, BLOCK_FETCHING, 0);
    for (uint64_t i = 0; i < m->size; i++) {
        if (m->device[i] == m->common[i] || r->view[i] != m->common[i]) continue;
        r->view[i] = m->common[i] = m->device[i];
    }
    region_set(r, 0, r->n, dirty ? BLOCK_DIRTY : BLOCK_CLEAN, 0);
    pthread_cond_broadcast(&region_changed);
    pthread_mutex_unlock(&region_lock);
}

static int fetch_once(struct region *r) {
    struct mirror *m = r->mirror;
    struct shim_stream *s = r->context->pages;
    uint64_t seq = 0;
    int rc = transfer_fetch(s, m->device, region_base(r), m->size, &seq);
    int status = seq ? session_wait_stream(&s->session, seq) : 0;
    return rc ? rc : status;
}

/* The device's bytes as they were at one moment: a copy reads one after the other, but two that are equal have such a moment between them. m->lock held. */
static int fetch_locked(struct region *r) {
    struct mirror *m = r->mirror;
    int rc = fetch_once(r);
    if (rc || !memcmp(m->device, m->common, m->size)) return rc;
    for (int i = 1; i < MOST_FETCHES; i++) {
        memcpy(m->before, m->device, m->size);
        rc = fetch_once(r);
        if (rc || !memcmp(m->device, m->before, m->size)) break;
    }
    if (!rc) merge(r);
    return rc;
}

/* One region: the host's changes go first, so that what comes back has them. */
static int exchange(struct region *r) {
    throttle_exempt_begin();
    pthread_mutex_lock(&r->mirror->lock);
    int rc = push_locked(r);
    if (!rc) rc = fetch_locked(r);
    pthread_mutex_unlock(&r->mirror->lock);
    throttle_exempt_end();
    return rc;
}

/* Calls `fn` for each region with region_lock released; the lock is held before and after. */
static void each(void (*fn)(struct region *r, void *arg), void *arg) {
    for (struct region *r = region_next(0); r;) {
        uint64_t base = region_base(r);
        if (r->mirror && !r->gone) {
            r->users++;
            pthread_mutex_unlock(&region_lock);
            fn(r, arg);
            pthread_mutex_lock(&region_lock);
            r->users--;
            pthread_cond_broadcast(&region_changed);
        }
        r = region_next(base + 1);
    }
}

static void refresh(struct region *r, void *arg) {
    (void)arg;
    exchange(r);
}

void mirror_refresh(void) {
    if (!atomic_load_explicit(&mirrors, memory_order_relaxed)) return;
    pthread_mutex_lock(&region_lock);
    each(refresh, NULL);
    pthread_mutex_unlock(&region_lock);
}

static void push(struct region *r, void *arg) {
    (void)arg;
    mirror_push(r);
}

void mirror_push_all(void) {
    if (atomic_load_explicit(&mirrors, memory_order_relaxed)) each(push, NULL);
}

/* ---- the thread ---- */

/* Nothing ran any more that could look: the region is watched again as others are. */
static void end(struct region *r) {
    for (size_t i = 0; i < r->n; i++) region_set(r, i, 1, region_state(r, i), BLOCK_PROVISIONAL);
    mirror_free(r);
}

/* `idle`: nothing was under way when it was asked; of a region that was given to the device since, that says nothing. */
static void end_all(bool idle) {
    for (struct region *r = region_next(0); r; r = region_next(region_base(r) + 1))
        if (r->mirror && !r->gone && !r->users && idle && region_given(r) == r->mirror->given) end(r);
}

static void round_of(struct region *r, void *arg) {
    bool *failed = arg;
    if (exchange(r)) *failed = true;
}

static void *run(void *arg) {
    pthread_mutex_lock(&region_lock);
    for (;;) {
        while (!atomic_load(&mirrors)) pthread_cond_wait(&wanted, &region_lock);
        uint64_t newest, passed;
        bool failed = false, posting = atomic_load(&region_posting) != 0;
        for (struct region *r = region_next(0); r; r = region_next(region_base(r) + 1))
            if (r->mirror) r->mirror->given = region_given(r);
        pthread_mutex_unlock(&region_lock);
        stream_fence_all(); /* so that streams say how far they are */
        session_flush();
        stream_progress(&newest, &passed);
        pthread_mutex_lock(&region_lock);
        each(round_of, &failed);
        end_all((passed == UINT64_MAX && !posting) || failed);
        if (session_broken()) break;
        pthread_mutex_unlock(&region_lock);
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
        pthread_mutex_lock(&region_lock);
    }
    pthread_mutex_unlock(&region_lock);
    return arg;
}

bool mirror_begin(struct region *r) {
    static bool started;
    if (!started && session_thread("gpuvirt-mirror", run, NULL, 0)) return false;
    started = true;
    struct mirror *m = calloc(1, sizeof *m + 4 * r->size + (r->size / WORD + 1) * sizeof *m->writes);
    if (!m) return false;
    pthread_mutex_init(&m->lock, NULL);
    m->size = r->size;
    m->first = NO_WORD;
    m->given = NO_ROUND;
    m->common = (char *)(m + 1);
    m->snapshot = m->common + r->size;
    m->device = m->snapshot + r->size;
    m->before = m->device + r->size;
    m->writes = (uint16_t *)(void *)(m->before + r->size);
    for (uint64_t i = 0; i < r->size; i++) {
        bool dirty = region_state(r, i >> r->shift) == BLOCK_DIRTY;
        m->common[i] = dirty ? (char)~r->view[i] : r->view[i]; /* what the device lacks differs, and is sent */
    }
    r->mirror = m;
    atomic_fetch_add(&mirrors, 1);
    pthread_cond_broadcast(&wanted);
    return true;
}
