/* Device-to-host copies whose bytes have not all come: where these belong, and until when they may be written there.
 *
 * The server may write into the program's memory from session_expect until the copy's completion, and not later: the program uses the memory for
 * something else then. A copy whose bytes are missing at a successful completion is a violation of the protocol, and ends the session. At a failed
 * completion the copy is dropped: bytes that still come for it are read and thrown away, and the session goes on. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "session/session_state.h"

#define BUCKETS 256u
/* Dropped copies that are remembered so that their bytes can be thrown away. Bytes for one that was forgotten end the session. */
#define DROPPED_MAX 65536u

struct expected {
    uint64_t tag;
    struct host_area area;
    uint64_t received;  /* bytes that have been written */
    uint64_t receiving; /* number of the payload that is being written to it now, 0: none */
    bool dropped;
    /* Once posted: in the stream's list, which is sorted by seq. */
    struct session_stream *stream;
    uint64_t seq;
    struct expected *earlier, *later;
    struct expected *next; /* hash chain, or list of spare ones */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct expected *buckets[BUCKETS], *spare;
static uint64_t next_tag = 1;
static unsigned n_dropped;
static _Atomic uint64_t n_open; /* in the streams' lists */

static uint64_t size_of(const struct host_area *a) { return a->width * a->height * a->depth; }

static struct expected **find(uint64_t tag) {
    struct expected **at = &buckets[tag % BUCKETS];
    while (*at && (*at)->tag != tag) at = &(*at)->next;
    return at;
}

static void leave_stream(struct expected *e) {
    struct session_stream *s = e->stream;
    if (!s) return;
    *(e->earlier ? &e->earlier->later : &s->first_copy) = e->later;
    *(e->later ? &e->later->earlier : &s->last_copy) = e->earlier;
    e->stream = NULL;
    atomic_fetch_sub(&n_open, 1);
    atomic_fetch_add(&session.copies_ended, 1);
}

static void enter_stream(struct expected *e, struct session_stream *s, uint64_t seq) {
    struct expected *after = s->last_copy; /* nearly always: threads that share a stream may come here in another order than they posted */
    while (after && after->seq > seq) after = after->earlier;
    e->stream = s;
    e->seq = seq;
    e->earlier = after;
    e->later = after ? after->later : s->first_copy;
    *(e->later ? &e->later->earlier : &s->last_copy) = e;
    *(after ? &after->later : &s->first_copy) = e;
    atomic_fetch_add(&n_open, 1);
}

static void forget(struct expected **at) {
    struct expected *e = *at;
    leave_stream(e);
    if (e->dropped) n_dropped--;
    *at = e->next;
    e->next = spare;
    spare = e;
}

static void drop(struct expected *e) {
    leave_stream(e);
    e->dropped = true;
    if (++n_dropped > DROPPED_MAX && !e->receiving) forget(find(e->tag));
}

/* ---- what copies ask for ------------------------------------------------------------------------------------------- */

uint64_t session_expect(void *dst, uint64_t width, uint64_t height, uint64_t depth, uint64_t pitch, uint64_t slice) {
    pthread_mutex_lock(&lock);
    struct expected *e = spare;
    if (e) {
        spare = e->next;
    } else if (!(e = malloc(sizeof *e))) {
        pthread_mutex_unlock(&lock);
        session_lost("out of memory on this side", "a copy to the host");
        return 0;
    }
    *e = (struct expected){.tag = next_tag++, .area = {dst, width, height, depth, pitch, slice}};
    struct expected **bucket = &buckets[e->tag % BUCKETS];
    e->next = *bucket;
    *bucket = e;
    uint64_t tag = e->tag;
    pthread_mutex_unlock(&lock);
    return tag;
}

void session_expect_cancel(uint64_t tag) {
    pthread_mutex_lock(&lock);
    struct expected **at = find(tag);
    if (*at && !(*at)->receiving) forget(at);
    pthread_mutex_unlock(&lock);
}

static const char too_early[] = "the server reported a copy to the host as complete before all of its bytes had arrived";

void session_expect_posted(uint64_t tag, struct session_stream *s, uint64_t seq) {
    uint64_t receiving = 0;
    bool violated = false;
    pthread_mutex_lock(&lock);
    struct expected *e = *find(tag);
    if (e && seq > s->copies_ended) {
        enter_stream(e, s, seq);
    } else if (e) { /* the completion was faster than we */
        violated = !atomic_load(&s->status);
        receiving = e->receiving;
        drop(e);
    }
    pthread_mutex_unlock(&lock);
    if (violated) {
        session_lost(too_early, "a copy to the host");
        atomic_store(&s->status, session_broken()); /* a wait for it does not succeed, although its completion has been published */
    }
    if (receiving) progress_wait(&session.received, receiving, 0, "a copy to the host");
}

/* ---- completion ---------------------------------------------------------------------------------------------------- */

enum expect_outcome expect_end(struct session_stream *s, uint64_t upto, bool failed, uint64_t *receiving) {
    enum expect_outcome outcome = EXPECT_ENDED;
    pthread_mutex_lock(&lock);
    for (struct expected *e = s->first_copy; e && e->seq <= upto && outcome == EXPECT_ENDED; e = e->later) {
        if (!failed) outcome = EXPECT_MISSING;
        if (failed && e->receiving) outcome = EXPECT_RECEIVING;
        *receiving = e->receiving;
    }
    if (outcome == EXPECT_ENDED) {
        while (s->first_copy && s->first_copy->seq <= upto) drop(s->first_copy);
        if (upto > s->copies_ended) s->copies_ended = upto;
    }
    pthread_mutex_unlock(&lock);
    return outcome;
}

enum expect_outcome expect_drop(struct session_stream *s, uint64_t upto, uint64_t *receiving) {
    enum expect_outcome outcome = EXPECT_ENDED;
    pthread_mutex_lock(&lock);
    while (s->first_copy && s->first_copy->seq <= upto && !s->first_copy->receiving) drop(s->first_copy);
    if (s->first_copy && s->first_copy->seq <= upto) {
        outcome = EXPECT_RECEIVING;
        *receiving = s->first_copy->receiving;
    }
    pthread_mutex_unlock(&lock);
    return outcome;
}

bool expect_any_open(void) { return atomic_load(&n_open) != 0; }

uint64_t expect_newest_open(const struct session_stream *s, uint64_t upto) {
    pthread_mutex_lock(&lock);
    const struct expected *e = s->last_copy;
    if (s->first_copy && s->first_copy->seq > upto) e = NULL;
    while (e && e->seq > upto) e = e->earlier;
    uint64_t seq = e ? e->seq : 0;
    pthread_mutex_unlock(&lock);
    return seq;
}

void expect_missing(void) { session_lost(too_early, NULL); }

void expect_stream_gone(struct session_stream *s) {
    pthread_mutex_lock(&lock);
    while (s->first_copy) drop(s->first_copy);
    pthread_mutex_unlock(&lock);
}

/* ---- bytes --------------------------------------------------------------------------------------------------------- */

/* Rows that follow each other are one row. */
static void flatten(struct host_area *a) {
    if (a->height > 1 && a->pitch != a->width) return;
    uint64_t slice = a->width * a->height;
    if (a->depth <= 1 || a->slice == slice) {
        a->width = slice * a->depth;
        a->height = a->depth = 1;
    } else if (a->height > 1) {
        a->width = slice;
        a->height = 1;
    }
}

const char *expect_receive(uint64_t tag, uint64_t number, uint64_t size, struct host_area *area, uint64_t *at) {
    const char *why = NULL;
    pthread_mutex_lock(&lock);
    struct expected *e = *find(tag);
    if (!e) {
        why = "a payload that nobody asked for";
    } else if (size > size_of(&e->area) - e->received) {
        why = "a payload is larger than its copy";
    } else {
        *area = e->area;
        *at = e->received;
        if (e->dropped) area->dst = NULL;
        e->receiving = number;
    }
    pthread_mutex_unlock(&lock);
    if (!why && area->dst) flatten(area);
    return why;
}

void expect_received(uint64_t tag, uint64_t size) {
    pthread_mutex_lock(&lock);
    struct expected **at = find(tag), *e = *at;
    if (e) {
        e->receiving = 0;
        e->received += size;
        if (e->received == size_of(&e->area)) forget(at);
    }
    pthread_mutex_unlock(&lock);
}

int expect_inline(uint64_t tag, int status, const void *data, uint32_t size) {
    pthread_mutex_lock(&lock);
    struct expected **at = find(tag), *e = *at;
    /* A copy comes in one way only. */
    bool right = e && !e->received && !e->receiving && (status || size == size_of(&e->area));
    if (right && !status && !e->dropped) { /* with a status there is no data: the stream says why */
        /* Under the lock: whoever asks whether the copy has ended is told so when its bytes are there. They are few. */
        const struct host_area *a = &e->area;
        const char *from = data;
        for (uint64_t z = 0; z < a->depth; z++)
            for (uint64_t y = 0; y < a->height; y++, from += a->width) memcpy(a->dst + z * a->slice + y * a->pitch, from, a->width);
    }
    if (right) forget(at);
    pthread_mutex_unlock(&lock);
    return right ? 0 : -1;
}
