/* The table of streams: how far each has come, with what status, and waiting for it. */
#include <pthread.h>

#include "session/session_state.h"

static void (*context_failed)(uint32_t ctx, int status);

void session_on_context_failure(void (*call)(uint32_t ctx, int status)) { context_failed = call; }

#define STREAM_BUCKETS 256u
static pthread_mutex_t streams_lock = PTHREAD_MUTEX_INITIALIZER;
static struct session_stream *streams[STREAM_BUCKETS];

static struct session_stream **bucket_of(uint64_t id) { return &streams[(id ^ id >> 8 ^ id >> 16) % STREAM_BUCKETS]; }

void session_stream_add(struct session_stream *s) {
    pthread_mutex_lock(&streams_lock);
    struct session_stream **bucket = bucket_of(s->id);
    s->next = *bucket;
    *bucket = s;
    order_stream_added(s);
    pthread_mutex_unlock(&streams_lock);
}

void stream_forget(struct session_stream *s) {
    pthread_mutex_lock(&streams_lock);
    struct session_stream **at = bucket_of(s->id);
    while (*at && *at != s) at = &(*at)->next;
    if (*at) *at = s->next;
    expect_stream_gone(s);
    order_stream_gone(s);
    pthread_mutex_unlock(&streams_lock);
}

static struct session_stream *find_stream(uint64_t id) {
    struct session_stream *s = *bucket_of(id);
    while (s && s->id != id) s = s->next;
    return s;
}

bool stream_is_known(uint64_t id) {
    pthread_mutex_lock(&streams_lock);
    bool known = find_stream(id);
    pthread_mutex_unlock(&streams_lock);
    return known;
}

/* ---- what is posted -------------------------------------------------------------------------------------------------- */

static void raise_to(_Atomic uint64_t *value, uint64_t to) {
    uint64_t old = atomic_load(value);
    while (old < to && !atomic_compare_exchange_weak(value, &old, to)) {
    }
}

static const char no_memory[] = "out of memory on this side";

void session_stream_waits(struct session_stream *s, uint64_t seq, uint64_t source, uint64_t upto) {
    if (!expect_any_open()) return;
    pthread_mutex_lock(&streams_lock);
    struct session_stream *o = find_stream(source);
    bool enough = !o || order_after(s, seq, o, upto);
    pthread_mutex_unlock(&streams_lock);
    if (!enough) session_lost(no_memory, "a wait for an event");
}

void stream_note_posted(struct session_stream *s, uint64_t seq, bool marked, bool fence) {
    if (s->order != SESSION_UNORDERED && (!fence || s->order == SESSION_LEGACY) && expect_any_open()) {
        pthread_mutex_lock(&streams_lock);
        bool enough = order_posted(s, seq);
        pthread_mutex_unlock(&streams_lock);
        if (!enough) session_lost(no_memory, "a command for a stream");
    }
    raise_to(&s->posted, seq);
    if (marked) raise_to(&s->marked, seq);
}

/* ---- what is complete -------------------------------------------------------------------------------------------------- */

/* Ends the copies that the stream's commands up to `upto` come after, its own included. streams_lock held. */
static enum expect_outcome end_copies(struct session_stream *s, uint64_t upto, int status, uint64_t *receiving, uint64_t *behind) {
    bool failed = status || atomic_load(&s->status);
    enum expect_outcome outcome = expect_end(s, upto, failed, receiving);
    if (outcome != EXPECT_ENDED) return outcome;
    if (failed) return order_drop(s, upto, receiving);
    return order_open(s, upto, behind) ? EXPECT_BEHIND : EXPECT_ENDED;
}

enum expect_outcome stream_publish(uint64_t stream, uint64_t upto, int status, uint64_t *receiving, uint64_t *behind) {
    uint32_t failed_ctx = 0;
    enum expect_outcome outcome = EXPECT_ENDED;
    *behind = UINT64_MAX;
    pthread_mutex_lock(&streams_lock);
    struct session_stream *s = find_stream(stream);
    if (s) outcome = upto > atomic_load(&s->posted) ? EXPECT_BEHIND : end_copies(s, upto, status, receiving, behind);
    if (s && outcome == EXPECT_ENDED) {
        if (status) {
            atomic_store(&s->status, status);
            failed_ctx = s->ctx;
        }
        if (upto > atomic_load(&s->completed)) atomic_store(&s->completed, upto);
    }
    pthread_mutex_unlock(&streams_lock);
    if (failed_ctx && context_failed) context_failed(failed_ctx, status);
    return outcome;
}

enum expect_outcome stream_reached(uint64_t stream, uint64_t seq, int status, uint64_t *receiving) {
    uint64_t behind;
    pthread_mutex_lock(&streams_lock);
    struct session_stream *s = find_stream(stream);
    enum expect_outcome outcome = s ? end_copies(s, seq, status, receiving, &behind) : EXPECT_ENDED;
    /* The worker calls when the stream has come there; its completion may come later, and a function that asks what is under way would believe that its own past is. */
    if (s && outcome == EXPECT_ENDED && !status) raise_to(&s->completed, seq - 1);
    pthread_mutex_unlock(&streams_lock);
    return outcome;
}

void stream_context_failed(uint32_t ctx, int status) {
    pthread_mutex_lock(&streams_lock);
    for (unsigned i = 0; i < STREAM_BUCKETS; i++)
        for (struct session_stream *s = streams[i]; s; s = s->next)
            if (s->ctx == ctx) atomic_store(&s->status, status);
    pthread_mutex_unlock(&streams_lock);
    if (context_failed) context_failed(ctx, status);
}

bool session_stream_passes(const struct session_stream *s, uint64_t seq, int64_t ns) {
    return atomic_load(&s->completed) >= seq || progress_wait(&s->completed, seq, session_now() + ns, "a wait for a stream") == 0;
}

int session_wait_stream(struct session_stream *s, uint64_t seq) {
    if (atomic_load(&s->completed) < seq) {
        int64_t start = session_now();
        int outcome = progress_wait(&s->completed, seq, 0, "a wait for a stream");
        session_count_wait((uint64_t)(session_now() - start));
        if (outcome) return outcome;
    }
    return atomic_load(&s->status);
}
