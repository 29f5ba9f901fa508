/* Host memory that is still being written: by asynchronous copies to it, and by host functions. */
#include <stdlib.h>

#include "objects/objects.h"

/* An asynchronous device-to-host copy, or a host function, which may write any address. */
struct host_write {
    uint64_t low, high;
    struct shim_stream *stream;
    uint64_t stream_id, seq;
};

static struct {
    pthread_mutex_t lock;
    struct host_write *list;
    size_t n, capacity;
} writes = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Removes writers that have completed; writes.lock held. */
static void prune(void) {
    size_t kept = 0;
    for (size_t i = 0; i < writes.n; i++) {
        const struct host_write *w = &writes.list[i];
        if (!stream_passed(w->stream, w->stream_id, w->seq)) writes.list[kept++] = *w;
    }
    writes.n = kept;
}

void host_writes_add(uint64_t low, uint64_t high, struct shim_stream *s, uint64_t seq) {
    pthread_mutex_lock(&writes.lock);
    if (writes.n == writes.capacity) prune();
    if (writes.n == writes.capacity) {
        size_t capacity = writes.capacity ? 2 * writes.capacity : 64;
        struct host_write *more = realloc(writes.list, capacity * sizeof *more);
        if (!more) {
            pthread_mutex_unlock(&writes.lock);
            session_wait_stream(&s->session, seq); /* out of memory for the record: wait for the writer instead */
            return;
        }
        writes.list = more;
        writes.capacity = capacity;
    }
    writes.list[writes.n++] = (struct host_write){.low = low, .high = high, .stream = s, .stream_id = s->object.id, .seq = seq};
    pthread_mutex_unlock(&writes.lock);
}

/* The first writer of [low, high) that has not completed; writes.lock held. */
static bool find_writer(uint64_t low, uint64_t high, struct host_write *out) {
    if (writes.n) prune();
    for (size_t i = 0; i < writes.n; i++) {
        if (writes.list[i].low >= high || low >= writes.list[i].high) continue;
        *out = writes.list[i];
        return true;
    }
    return false;
}

bool host_writes_pending(uint64_t low, uint64_t high) {
    struct host_write found;
    pthread_mutex_lock(&writes.lock);
    bool pending = find_writer(low, high, &found);
    pthread_mutex_unlock(&writes.lock);
    return pending;
}

bool host_copies_pending(uint64_t low, uint64_t high) {
    pthread_mutex_lock(&writes.lock);
    if (writes.n) prune();
    bool pending = false;
    for (size_t i = 0; i < writes.n && !pending; i++) {
        const struct host_write *w = &writes.list[i];
        pending =
            w->high != UINT64_MAX && w->low < high && low < w->high; /* of a function nothing is under way any more when what comes after it begins */
    }
    pthread_mutex_unlock(&writes.lock);
    return pending;
}

int host_writes_wait(uint64_t low, uint64_t high) {
    for (;;) {
        struct host_write found;
        pthread_mutex_lock(&writes.lock);
        bool pending = find_writer(low, high, &found);
        pthread_mutex_unlock(&writes.lock);
        if (!pending) return 0;
        int rc = session_wait_stream(&found.stream->session, found.seq);
        /* Not completed, without an error: the process is exiting, and nothing is written any more. */
        if (rc || !stream_passed(found.stream, found.stream_id, found.seq)) return rc;
    }
}
