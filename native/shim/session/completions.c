/* Completions that are held back: until the payload that they name has been received, until the copies of other streams that theirs is ordered after
 * have their bytes, and until the thread that posted the command has said what it is ordered after. */
#include <pthread.h>
#include <stdlib.h>

#include "session/session_state.h"

#define HELD_MAX (1u << 20)

struct held {
    uint64_t stream, upto, bulk;
    uint64_t behind; /* of EXPECT_BEHIND */
    int status;
};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct held *held;
static size_t held_capacity;
static _Atomic size_t n_held;

/* lock held. */
static enum expect_outcome attempt(struct held *h) {
    if (h->bulk > atomic_load(&session.received)) return EXPECT_RECEIVING;
    uint64_t receiving;
    enum expect_outcome outcome = stream_publish(h->stream, h->upto, h->status, &receiving, &h->behind);
    if (outcome == EXPECT_RECEIVING) h->bulk = receiving; /* has not been received: that is counted with this lock held */
    return outcome;
}

/* The completion is listed before it is tried: whoever makes it possible and finds nothing held has done so before the try. lock held. */
static bool hold(struct held h, enum expect_outcome *outcome) {
    size_t n = atomic_load(&n_held);
    if (n == held_capacity) {
        size_t room = held_capacity ? held_capacity * 2 : 64;
        struct held *more = room <= HELD_MAX ? realloc(held, room * sizeof *more) : NULL;
        if (!more) return false;
        held = more;
        held_capacity = room;
    }
    held[n] = h;
    atomic_store(&n_held, n + 1);
    *outcome = attempt(&held[n]);
    bool done = *outcome == EXPECT_ENDED || *outcome == EXPECT_MISSING;
    struct held *before = n ? &held[n - 1] : NULL, *last = &held[n];
    /* Successive completions of one stream that wait for the same are one. */
    if (!done && before && before->stream == last->stream && before->bulk == last->bulk && before->behind == last->behind) {
        if (last->upto > before->upto) before->upto = last->upto;
        if (last->status) before->status = last->status;
        done = true;
    }
    if (done) atomic_store(&n_held, n);
    return true;
}

void completion_publish(uint64_t stream, uint64_t upto, uint64_t bulk, int status) {
    enum expect_outcome outcome = EXPECT_RECEIVING;
    uint64_t receiving, behind;
    if (bulk <= atomic_load(&session.received) && !atomic_load(&n_held)) outcome = stream_publish(stream, upto, status, &receiving, &behind);
    bool kept = true;
    if (outcome == EXPECT_RECEIVING || outcome == EXPECT_BEHIND) {
        pthread_mutex_lock(&lock);
        /* A stream's completions keep their order, also when a later one names no payload. */
        for (size_t i = 0; i < atomic_load(&n_held); i++)
            if (held[i].stream == stream && held[i].bulk > bulk) bulk = held[i].bulk;
        kept = hold((struct held){.stream = stream, .upto = upto, .bulk = bulk, .status = status}, &outcome);
        pthread_mutex_unlock(&lock);
    }
    if (outcome == EXPECT_MISSING) expect_missing();
    if (!kept) session_lost("too many completions wait for data that does not come", NULL);
}

/* Whether one turned out to be false; lock held. */
static bool publish_held(void) {
    bool missing = false;
    size_t kept = 0;
    for (size_t i = 0; i < atomic_load(&n_held); i++) {
        enum expect_outcome outcome = attempt(&held[i]);
        if (outcome == EXPECT_RECEIVING || outcome == EXPECT_BEHIND) held[kept++] = held[i];
        missing |= outcome == EXPECT_MISSING;
    }
    atomic_store(&n_held, kept);
    return missing;
}

void completions_retry(void) {
    if (!atomic_load(&n_held)) return;
    pthread_mutex_lock(&lock);
    bool missing = publish_held();
    pthread_mutex_unlock(&lock);
    if (missing) expect_missing();
    progress_changed();
}

void completions_received(uint64_t number) {
    pthread_mutex_lock(&lock);
    atomic_store(&session.received, number);
    bool missing = publish_held();
    pthread_mutex_unlock(&lock);
    if (missing) expect_missing();
    progress_changed();
}

int completions_inline(uint64_t tag, int status, const void *data, uint32_t size) {
    if (!host_write_begin()) return 0;
    pthread_mutex_lock(&lock); /* the other thread that publishes completions must find the copy whole or open */
    int bad = expect_inline(tag, status, data, size);
    pthread_mutex_unlock(&lock);
    host_write_end();
    completions_retry();
    return bad;
}

/* ---- what makes some possible -------------------------------------------------------------------------------------- */

void session_stream_posted(struct session_stream *s, uint64_t seq, bool marked, bool fence) {
    stream_note_posted(s, seq, marked, fence);
    completions_retry();
}

void session_stream_remove(struct session_stream *s) {
    stream_forget(s);
    completions_retry();
}

void completions_context_failed(uint32_t ctx, int status) {
    stream_context_failed(ctx, status);
    completions_retry();
}
