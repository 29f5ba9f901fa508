/* Host functions and stream callbacks: called one after the other on a thread of their own, when the worker says that their stream has come to
 * them. The same thread sends the acknowledgements of an idle session, because the thread that handles incoming records must not send. */
#include <pthread.h>
#include <stdlib.h>

#include "gv_client.h"
#include "session_state.h"

struct host_func {
    uint64_t tag, bulk;
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
static bool ack_due, started;
static uint64_t next_tag = 1;

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

static void *callbacks(void *arg) {
    (void)arg;
    pthread_mutex_lock(&lock);
    while (!atomic_load(&session.over)) {
        struct host_func *f = due;
        if (f) {
            if (!(due = f->next)) due_end = &due;
            pthread_mutex_unlock(&lock);
            run(f);
            free(f);
        } else if (ack_due) {
            ack_due = false;
            pthread_mutex_unlock(&lock);
            if (!session_broken()) session_post_ack();
        } else {
            pthread_cond_wait(&due_or_over, &lock);
            continue;
        }
        pthread_mutex_lock(&lock);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
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
    kept->next = registered;
    registered = kept;
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

void host_func_ack(void) {
    pthread_mutex_lock(&lock);
    if (have_thread()) {
        ack_due = true;
        pthread_cond_signal(&due_or_over);
    }
    pthread_mutex_unlock(&lock);
}

void host_func_over(void) {
    pthread_mutex_lock(&lock);
    pthread_cond_broadcast(&due_or_over);
    pthread_mutex_unlock(&lock);
}
