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
    pthread_mutex_unlock(&streams_lock);
}

void session_stream_remove(struct session_stream *s) {
    pthread_mutex_lock(&streams_lock);
    struct session_stream **at = bucket_of(s->id);
    while (*at && *at != s) at = &(*at)->next;
    if (*at) *at = s->next;
    expect_stream_gone(s);
    pthread_mutex_unlock(&streams_lock);
}

static struct session_stream *find_stream(uint64_t id) {
    struct session_stream *s = *bucket_of(id);
    while (s && s->id != id) s = s->next;
    return s;
}

enum expect_outcome progress_publish(uint64_t stream, uint64_t upto, int status, uint64_t *receiving) {
    uint32_t failed_ctx = 0;
    enum expect_outcome outcome = EXPECT_ENDED;
    pthread_mutex_lock(&streams_lock);
    struct session_stream *s = find_stream(stream);
    if (s) outcome = expect_end(s, upto, status || atomic_load(&s->status), receiving);
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

enum expect_outcome progress_end_copies(uint64_t stream, uint64_t before, int status, uint64_t *receiving) {
    pthread_mutex_lock(&streams_lock);
    struct session_stream *s = find_stream(stream);
    enum expect_outcome outcome = s ? expect_end(s, before - 1, status || atomic_load(&s->status), receiving) : EXPECT_ENDED;
    pthread_mutex_unlock(&streams_lock);
    return outcome;
}

void progress_context_failed(uint32_t ctx, int status) {
    pthread_mutex_lock(&streams_lock);
    for (unsigned i = 0; i < STREAM_BUCKETS; i++)
        for (struct session_stream *s = streams[i]; s; s = s->next)
            if (s->ctx == ctx) atomic_store(&s->status, status);
    pthread_mutex_unlock(&streams_lock);
    if (context_failed) context_failed(ctx, status);
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
