/* Host functions and stream callbacks: called one after the other on a thread of their own, when the worker says that their stream has come to
 * them. The shim's own, which send what a copy's source holds by now (late functions), have another thread: they may not wait for the program's. */
#include <pthread.h>
#include <stdlib.h>

#include "gv_client.h"
#include "session/session_state.h"

struct host_func {
    uint64_t tag, bulk;
    uint64_t posted, sent;   /* bytes of commands and of payloads before it */
    uint64_t stream_id, seq; /* where it stands; seq 0: not told yet */
    bool late;
    int status;
    void (*fn)(void *data);
    void (*callback)(void *stream, int status, void *data);
    void *stream, *data;
    struct host_func *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t due_or_over = PTHREAD_COND_INITIALIZER;
static struct host_func *registered; /* in no order: few at a time */
static struct caller {
    struct host_func *due, **due_end, *running;
    bool started;
} callers[2] = {{.due_end = &callers[0].due}, {.due_end = &callers[1].due}}; /* the program's, late ones */
static uint64_t next_tag = 1;

static void answer(const struct host_func *f) {
    struct gv_cmd_host_done done = {.tag = f->tag};
    if (post_host_done(0, 0, &done)) session_flush(); /* a stream on the worker may stand still for this */
}

/* The stream has passed a function that has returned: the worker need not say so. */
static void passed(const struct host_func *f) {
    completion_publish(f->stream_id, f->seq, f->bulk, f->status);
    completions_retry();
    progress_changed();
}

/* Copies queued before it are visible in it, and over. False: the session is. */
static bool copies_over(const struct host_func *f) {
    if (f->bulk && progress_wait(&session.received, f->bulk, 0, "a host function")) return false;
    for (;;) {
        uint64_t receiving, ended = atomic_load(&session.copies_ended);
        switch (stream_reached(f->stream_id, f->seq, f->status, &receiving)) {
        case EXPECT_ENDED: return true;
        case EXPECT_MISSING: expect_missing(); return false;
        case EXPECT_RECEIVING:
            if (progress_wait(&session.received, receiving, 0, "a host function")) return false;
            break;
        case EXPECT_BEHIND:
            if (progress_wait(&session.copies_ended, ended + 1, 0, "a host function")) return false;
        }
    }
}

static void run(struct host_func *f) {
    if (!copies_over(f)) return;
    /* What a late function sends the worker keeps until the stream takes it, and that may be more than it keeps: so the stream goes on first. */
    if (f->late) answer(f);
    if (f->callback)
        f->callback(f->stream, f->status, f->data);
    else if (!f->status) /* as the driver does: not called in a context that has failed */
        f->fn(f->data);
    if (f->late) return;
    answer(f);
    passed(f);
}

/* What commands and payloads must not run too far ahead of; lock held. */
static void note_oldest(void) {
    uint64_t posted = UINT64_MAX, sent = UINT64_MAX;
    const struct host_func *lists[] = {registered, callers[0].due, callers[1].due, callers[0].running, callers[1].running};
    for (unsigned i = 0; i < sizeof lists / sizeof *lists; i++)
        for (const struct host_func *f = lists[i]; f; f = f->next) {
            if (f->posted < posted) posted = f->posted;
            if (f->late && f->sent < sent) sent = f->sent;
        }
    atomic_store_explicit(&session.held_at, posted, memory_order_relaxed);
    atomic_store_explicit(&session.late_at, sent, memory_order_relaxed);
}

static void *callbacks(void *arg) {
    struct caller *caller = arg;
    throttle_exempt_begin(); /* what others wait for is this thread */
    pthread_mutex_lock(&lock);
    while (!atomic_load(&session.over)) {
        struct host_func *f = caller->due;
        if (!f || !f->seq) {
            pthread_cond_wait(&due_or_over, &lock);
            continue;
        }
        if (!(caller->due = f->next)) caller->due_end = &caller->due;
        f->next = NULL;
        caller->running = f;
        pthread_mutex_unlock(&lock);
        run(f);
        pthread_mutex_lock(&lock);
        caller->running = NULL;
        free(f);
        note_oldest();
        pthread_mutex_unlock(&lock);
        throttle_function_ran();
        pthread_mutex_lock(&lock);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

static void session_over(void) {
    pthread_mutex_lock(&lock);
    pthread_cond_broadcast(&due_or_over);
    pthread_mutex_unlock(&lock);
}

/* lock held. The default stack size: the program's code runs here. */
static bool have_thread(struct caller *caller) {
    session_on_over(session_over); /* before the thread looks at `over` */
    if (!caller->started) caller->started = session_thread(caller == callers ? "gpuvirt-calls" : "gpuvirt-late", callbacks, caller, 0) == 0;
    return caller->started;
}

static uint64_t add(struct host_func f) {
    struct host_func *kept = malloc(sizeof *kept);
    if (!kept) return 0;
    pthread_mutex_lock(&lock);
    if (!have_thread(&callers[f.late])) {
        pthread_mutex_unlock(&lock);
        free(kept);
        return 0;
    }
    *kept = f;
    kept->tag = next_tag++;
    kept->posted = atomic_load(&session.posted);
    kept->sent = atomic_load(&session.sent);
    kept->next = registered;
    registered = kept;
    if (kept->posted < atomic_load(&session.held_at)) atomic_store(&session.held_at, kept->posted);
    if (kept->late && kept->sent < atomic_load(&session.late_at)) atomic_store(&session.late_at, kept->sent);
    uint64_t tag = kept->tag;
    pthread_mutex_unlock(&lock);
    return tag;
}

uint64_t session_host_func(void (*fn)(void *data), void *data) { return add((struct host_func){.fn = fn, .data = data}); }

uint64_t session_stream_callback(void (*fn)(void *stream, int status, void *data), void *stream, void *data) {
    return add((struct host_func){.callback = fn, .stream = stream, .data = data});
}

uint64_t session_late_func(void (*fn)(void *stream, int status, void *data), void *data) {
    return add((struct host_func){.callback = fn, .data = data, .late = true});
}

void session_host_func_posted(uint64_t tag, struct session_stream *s, uint64_t seq) {
    pthread_mutex_lock(&lock);
    struct host_func *lists[] = {registered, callers[0].due, callers[1].due};
    bool is_due = false;
    for (unsigned i = 0; i < sizeof lists / sizeof *lists; i++)
        for (struct host_func *f = lists[i]; f; f = f->next)
            if (f->tag == tag) f->stream_id = s->id, f->seq = seq, is_due = i > 0;
    if (is_due) pthread_cond_broadcast(&due_or_over);
    pthread_mutex_unlock(&lock);
}

int host_func_due(uint64_t tag, uint64_t bulk, int status) {
    pthread_mutex_lock(&lock);
    struct host_func **at = &registered;
    while (*at && (*at)->tag != tag) at = &(*at)->next;
    struct host_func *f = *at;
    if (f) {
        *at = f->next;
        f->bulk = bulk;
        f->status = status;
        f->next = NULL;
        struct caller *caller = &callers[f->late];
        *caller->due_end = f;
        caller->due_end = &f->next;
        pthread_cond_broadcast(&due_or_over);
    }
    pthread_mutex_unlock(&lock);
    return f ? 0 : -1;
}

bool session_host_function_pending(void) { return atomic_load(&session.held_at) != UINT64_MAX; }
