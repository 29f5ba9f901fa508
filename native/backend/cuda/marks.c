/* Marks, and where gates stand among them. A mark is a word that the device writes (words.c), or an event recorded on the stream; one thread looks for the oldest of every stream with
 * marks, with a back-off.
 *
 * It polls instead of using cuLaunchHostFunc, because a host function blocks its stream until it has run, is not called after an error, and all host
 * functions share one driver thread. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>

#include "../../wire/clock.h"
#include "backend_cuda.h"

#define ASK_AGAIN_NS 5000 /* ns between polls at first; up to */
#define ASK_SLOWLY_NS 200000
#define LATE_BY 8     /* a word is looked at again after this part of the time since something happened: who waits for it is told that much late */
#define SLACK_NS 1000 /* of the watcher's sleeps, which the kernel would make 50 us longer */
#define FLUSH_PATIENCE 2000000 /* ns that a mark waits for the executor, for what kernels have printed */

/* ---- marks ------------------------------------------------------------------------------------------------------------- */

/* An event of the context for the mark, new or recorded before. */
static int record_event(struct gv_stream *s, struct mark *m) {
    struct gv_backend *b = s->context->b;
    pthread_mutex_lock(&b->lock);
    struct mark *spent = s->context->spent;
    if (spent) s->context->spent = spent->next;
    pthread_mutex_unlock(&b->lock);
    int status = 0;
    if (spent)
        m->event = spent->event;
    else
        status = b->driver.event_create(&m->event, CU_EVENT_DISABLE_TIMING);
    free(spent);
    if (!status && (status = b->driver.event_record(m->event, s->stream))) b->driver.event_destroy(m->event);
    if (status) m->event = NULL;
    return status;
}

/* When the driver takes no more, the context is lost: the mark is then called with the error, after those before it. Its number is that of its place in
 * the list, which the executor alone makes longer. `gate`: the number of the gate that the stream stops at behind it, 0: none; then the mark is only listed when the driver
 * took it. */
static int append(struct gv_stream *s, struct mark *m, uint64_t gate) {
    struct gv_backend *b = s->context->b;
    m->number = s->marked + 1;
    int status = cuda_enter(s->context);
    if (!status && (!b->has_words || (b->prints && m->fn))) status = record_event(s, m);
    if (!status && b->has_words) status = cuda_words_queue(s, (uint32_t)m->number, (uint32_t)gate);
    if (status && gate) return status;
    if (status) {
        cuda_note_error(s->context, status);
        m->status = status;
    }
    pthread_mutex_lock(&b->lock);
    if (s->last)
        s->last->next = m;
    else
        s->first = m;
    s->last = m;
    s->marked++;
    if (!s->is_watched) {
        s->is_watched = true;
        s->next_watched = b->watched;
        b->watched = s;
    }
    pthread_cond_signal(&b->work);
    pthread_mutex_unlock(&b->lock);
    return 0;
}

int cuda_mark(struct gv_stream *s, void (*fn)(void *arg, int status), void *arg) {
    struct mark *m = malloc(sizeof *m);
    if (!m) return CUDA_ERROR_OUT_OF_MEMORY;
    *m = (struct mark){.fn = fn, .arg = arg};
    return append(s, m, 0);
}

int cuda_gate(struct gv_stream *s, void (*fn)(void *arg), void *arg) {
    struct gv_backend *b = s->context->b;
    struct gate *g = cuda_gate_new(s, fn, arg);
    struct mark *m = malloc(sizeof *m);
    int status = g && m ? cuda_enter(s->context) : CUDA_ERROR_OUT_OF_MEMORY;
    if (m) *m = (struct mark){.gate = g};
    if (!status) status = b->has_words ? append(s, m, s->gates + 1) : (int)b->driver.launch_host(s->stream, cuda_gate_run, g);
    if (status) {
        free(g);
        free(m);
        return status;
    }
    s->gates++;
    return b->has_words ? 0 : append(s, m, 0);
}

void cuda_command_begin(struct gv_backend *b) {
    pthread_mutex_lock(&b->commands);
    cuda_inherit(b);
}

void cuda_command_end(struct gv_backend *b) { pthread_mutex_unlock(&b->commands); }

/* The number of the mark that is queued there next. */
uint64_t cuda_stream_position(struct gv_stream *s) {
    struct gv_backend *b = s->context->b;
    pthread_mutex_lock(&b->lock);
    uint64_t position = s->marked + 1;
    pthread_mutex_unlock(&b->lock);
    return position;
}

/* Whether the device has written the number of this mark, or a later one. */
static bool word_reached(const struct gv_stream *s, uint64_t number) {
    return (int32_t)(atomic_load_explicit(&s->words->reached, memory_order_acquire) - (uint32_t)number) >= 0;
}

/* Marks are taken, and their events destroyed, by the watcher, which is the caller. */
int cuda_stream_passed(struct gv_stream *s, uint64_t position) {
    struct gv_backend *b = s->context->b;
    pthread_mutex_lock(&b->lock);
    struct mark *m = position > s->told && position <= s->marked ? s->first : NULL;
    for (uint64_t at = s->told + 1; m && at < position; at++) m = m->next;
    CUevent event = m ? m->event : NULL;
    bool reached = m && s->words && word_reached(s, position);
    pthread_mutex_unlock(&b->lock);
    if (s->words) return reached;
    return event && !cuda_enter(s->context) && !b->driver.event_query(event);
}

/* ---- the watcher ------------------------------------------------------------------------------------------------------- */

/* Takes the stream's oldest mark if the device has come to it, or never will. The lock is held, and released while the driver is polled. */
static struct mark *take_reached(struct gv_backend *b, struct gv_stream *s, int *status) {
    struct mark *m = s->first;
    *status = m->status;
    if (s->words && !m->status) {
        int lost = atomic_load(&s->context->error);
        bool reached = word_reached(s, m->number);
        if (!reached && lost <= 0) return NULL;
        *status = reached ? 0 : lost;
    } else if (m->event) {
        pthread_mutex_unlock(&b->lock);
        *status = cuda_enter(s->context);
        if (!*status) *status = b->driver.event_query(m->event);
        pthread_mutex_lock(&b->lock);
        if (*status == CUDA_ERROR_NOT_READY) return NULL;
    }
    if (m->gate && !cuda_gate_done(b, m->gate, *status)) return NULL;
    s->first = m->next;
    if (!s->first) s->last = NULL;
    return m;
}

/* The mark's event has completed already, but only a synchronising call makes the driver write the kernels' output. With words it is not made while the
 * executor is in the driver for long: that might wait for what this mark lets go on. */
static void flush_prints(struct gv_backend *b, const struct mark *m) {
    if (!b->has_words) {
        b->driver.event_synchronize(m->event);
        return;
    }
    struct timespec until = gv_deadline(CLOCK_REALTIME, FLUSH_PATIENCE);
    if (pthread_mutex_timedlock(&b->commands, &until)) return;
    b->driver.event_synchronize(m->event);
    pthread_mutex_unlock(&b->commands);
}

/* Lock held. With words the driver is not called here: the event will be recorded again. */
static void drop(struct gv_backend *b, struct gv_stream *s, struct mark *m) {
    if (m->event && b->has_words) {
        m->next = s->context->spent;
        s->context->spent = m;
        return;
    }
    if (m->event) b->driver.event_destroy(m->event);
    free(m);
}

/* Calls the marks that are due on one stream. Lock held, released meanwhile. Returns whether there were any. */
static bool tell(struct gv_backend *b, struct gv_stream *s) {
    int status = 0;
    struct mark *m;
    bool any = false;
    while (s->first && (m = take_reached(b, s, &status))) {
        any = true;
        pthread_mutex_unlock(&b->lock);
        if (status) cuda_note_error(s->context, status);
        if (m->fn) {
            if (m->event && !status) flush_prints(b, m);
            cuda_console_drain(b);
            m->fn(m->arg, status);
        }
        pthread_mutex_lock(&b->lock);
        drop(b, s, m);
        s->told++;
        b->told++;
        pthread_cond_broadcast(&b->progress);
    }
    return any;
}

/* Lock held. With words the driver is not called here. */
static void end_stream(struct gv_backend *b, struct gv_stream *s) {
    if (b->has_words) {
        s->next_watched = b->ended;
        b->ended = s;
    } else {
        cuda_stream_free(s);
    }
}

/* How long until the next poll. An event is a call of the driver, which is made less often than a word is read. */
static long next_pause(const struct gv_backend *b, long last, int64_t since) {
    int64_t longer = b->has_words ? (gv_now_ns() - since) / LATE_BY : last * 2;
    return (long)(longer < ASK_AGAIN_NS ? ASK_AGAIN_NS : longer > ASK_SLOWLY_NS ? ASK_SLOWLY_NS : longer);
}

static void *watch(void *arg) {
    struct gv_backend *b = arg;
    long pause = ASK_AGAIN_NS;
    int64_t since = gv_now_ns();
    prctl(PR_SET_TIMERSLACK, (unsigned long)SLACK_NS, 0, 0, 0);
    pthread_mutex_lock(&b->lock);
    while (!b->stopping) {
        if (!b->watched) {
            pthread_cond_wait(&b->work, &b->lock);
            pause = ASK_AGAIN_NS;
            since = gv_now_ns();
            continue;
        }
        bool any = false;
        for (struct gv_stream **at = &b->watched; *at && !b->stopping;) {
            struct gv_stream *s = *at;
            any |= tell(b, s);
            /* New streams are inserted only at the head of the list meanwhile: continue after our stream. */
            at = &b->watched;
            while (*at != s) at = &(*at)->next_watched;
            if (s->first) {
                at = &s->next_watched;
                continue;
            }
            *at = s->next_watched;
            s->is_watched = false;
            if (s->dying && !s->is_probed) end_stream(b, s);
            pthread_cond_broadcast(&b->progress);
        }
        if (any) {
            pause = ASK_AGAIN_NS;
            since = gv_now_ns();
            continue;
        }
        pthread_mutex_unlock(&b->lock);
        nanosleep(&(struct timespec){0, pause}, NULL);
        pause = next_pause(b, pause, since);
        pthread_mutex_lock(&b->lock);
    }
    pthread_mutex_unlock(&b->lock);
    return NULL;
}

void cuda_marks_await(struct gv_context *c) {
    struct gv_backend *b = c->b;
    pthread_mutex_lock(&b->lock);
    for (bool busy = true; busy && !b->stopping;) {
        busy = false;
        for (const struct gv_stream *s = b->watched; s; s = s->next_watched) busy |= s->context == c;
        for (const struct gv_stream *s = b->ended; s; s = s->next_watched) busy |= s->context == c;
        busy |= b->probed == c;
        if (busy) pthread_cond_wait(&b->progress, &b->lock);
    }
    pthread_mutex_unlock(&b->lock);
}

int cuda_marks_start(struct gv_backend *b) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    b->has_words = cuda_words_supported(b);
    b->has_watcher = pthread_create(&b->watcher, NULL, watch, b) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!b->has_watcher) return CUDA_ERROR_OUT_OF_MEMORY;
    return b->has_words ? cuda_prober_start(b) : 0;
}

bool cuda_marks_stop(struct gv_backend *b) {
    pthread_mutex_lock(&b->lock);
    b->stopping = true;
    pthread_cond_broadcast(&b->work);
    pthread_cond_broadcast(&b->progress);
    pthread_mutex_unlock(&b->lock);
    if (b->has_watcher) pthread_join(b->watcher, NULL);
    if (b->has_prober) pthread_join(b->prober, NULL);
    b->has_watcher = b->has_prober = false;
    pthread_mutex_lock(&b->lock);
    bool quiet = cuda_gates_stop(b) && !b->watched;
    pthread_mutex_unlock(&b->lock);
    return quiet;
}
