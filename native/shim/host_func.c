/* Host functions and stream callbacks: called one after the other on a thread of their own, when the worker says that their stream has come to
 * them. */
#include <pthread.h>
#include <stdlib.h>

#include "gv_client.h"
#include "session_state.h"

struct host_func {
    uint64_t tag, bulk;
    uint64_t posted; /* bytes of commands before it */
    int status;
    void (*fn)(void *data);
    void (*callback)(void *stream, int status, void *data);
    void *stream, *data;
    struct host_func *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t due_or_over = PTHREAD_COND_INITIALIZER;
static struct host_func *registered; /* in no order: few at a time */
static struct host_func *due, **due_end = &due;
static struct host_func *running;
static bool started;
static uint64_t next_tag = 1;
static _Atomic uint64_t n_done;         /* host functions that have run */
static _Thread_local int must_not_wait; /* the functions' own thread, and whoever holds what it may want */

static void run(struct host_func *f) {
    /* Copies queued before it are visible in it. */
    if (f->bulk && bulk_wait_landed(f->bulk)) return;
    if (f->callback)
        f->callback(f->stream, f->status, f->data);
    else if (!f->status) /* as the driver does: not called in a context that has failed */
        f->fn(f->data);
    struct gv_cmd_host_done done = {.tag = f->tag};
    if (post_host_done(0, 0, &done)) session_flush(); /* a stream on the worker stands still for this */
}

/* What commands must not run too far ahead of; lock held. */
static void note_oldest(void) {
    uint64_t oldest = running ? running->posted : UINT64_MAX;
    for (const struct host_func *f = registered; f; f = f->next)
        if (f->posted < oldest) oldest = f->posted;
    for (const struct host_func *f = due; f; f = f->next)
        if (f->posted < oldest) oldest = f->posted;
    atomic_store_explicit(&session.held_at, oldest, memory_order_relaxed);
}

static void *callbacks(void *arg) {
    (void)arg;
    must_not_wait = 1;
    pthread_mutex_lock(&lock);
    while (!atomic_load(&session.over)) {
        struct host_func *f = due;
        if (!f) {
            pthread_cond_wait(&due_or_over, &lock);
            continue;
        }
        if (!(due = f->next)) due_end = &due;
        running = f;
        pthread_mutex_unlock(&lock);
        run(f);
        pthread_mutex_lock(&lock);
        running = NULL;
        free(f);
        note_oldest();
        pthread_mutex_unlock(&lock);
        atomic_fetch_add(&n_done, 1);
        progress_changed();
        pthread_mutex_lock(&lock);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

void host_func_hold(void) { must_not_wait++; }

void host_func_let_go(void) { must_not_wait--; }

void host_func_await(void) {
    if (must_not_wait) return;
    int64_t start = session_now();
    for (;;) {
        uint64_t done = atomic_load(&n_done), held_at = atomic_load(&session.held_at);
        if (held_at == UINT64_MAX || atomic_load(&session.posted) - held_at <= SESSION_BEHIND_HOST) break;
        if (progress_wait(&n_done, done + 1, 0, "a host function")) break;
    }
    session_waited(start);
}

/* lock held. The default stack size: the program's code runs here. */
static bool have_thread(void) {
    if (!started) started = session_thread("gpuvirt-calls", callbacks, NULL, 0) == 0;
    return started;
}

static uint64_t add(struct host_func f) {
    struct host_func *kept = malloc(sizeof *kept);
    if (!kept) return 0;
    pthread_mutex_lock(&lock);
    if (!have_thread()) {
        pthread_mutex_unlock(&lock);
        free(kept);
        return 0;
    }
    *kept = f;
    kept->tag = next_tag++;
    kept->posted = atomic_load(&session.posted);
    kept->next = registered;
    registered = kept;
    if (kept->posted < atomic_load(&session.held_at)) atomic_store(&session.held_at, kept->posted);
    uint64_t tag = kept->tag;
    pthread_mutex_unlock(&lock);
    return tag;
}

uint64_t session_host_func(void (*fn)(void *data), void *data) { return add((struct host_func){.fn = fn, .data = data}); }

uint64_t session_stream_callback(void (*fn)(void *stream, int status, void *data), void *stream, void *data) {
    return add((struct host_func){.callback = fn, .stream = stream, .data = data});
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
        *due_end = f;
        due_end = &f->next;
        pthread_cond_signal(&due_or_over);
    }
    pthread_mutex_unlock(&lock);
    return f ? 0 : -1;
}

void host_func_over(void) {
    pthread_mutex_lock(&lock);
    pthread_cond_broadcast(&due_or_over);
    pthread_mutex_unlock(&lock);
}
