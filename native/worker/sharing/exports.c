/* What sessions of one lease share. The worker that has exported something keeps it under a name; another session's worker asks the daemon for it, which looks whether that
 * session may have it and asks this worker in turn. So a name is worth nothing without the lease, the daemon keeps nothing, and what has ended is not to be had. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "../../wire/clock.h"
#include "../state.h"

#define EXPORT __attribute__((visibility("default")))

#define ANSWER_NS 30000000000ll /* ns that the daemon has; it gives up earlier itself */
#define LOOK_NS 100000000ll     /* ns between two looks at whether the client is still there */
#define REST_NS 10000000000ll   /* ns that the device has to come to rest */
#define NAP_NS 200000

struct worker_export {
    struct worker_export *next;
    uint64_t name[2];
    struct gv_shared shared;
};
_Static_assert(sizeof(struct gv_shared) <= GV_ERR_SIZE && WORKER_EXPORT_FILES == GV_SHARED_PIECES, "as worker.h says");

static bool over(struct worker *w) { return atomic_load(&w->stopping) || gv_link_dead(w->link); }

/* ---- what is asked of the daemon; executor ---- */

EXPORT void worker_ask_exports(struct worker *w, void (*asked)(void *arg, uint32_t what, uint64_t number, const uint8_t *name), void *arg) {
    w->export_asked = asked;
    w->export_arg = arg;
}

static void close_all(const int32_t *fds, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        if (fds[i] >= 0) close(fds[i]);
}

EXPORT void worker_answer_export(struct worker *w, const void *what, uint32_t size, const int32_t *fds, uint32_t n) {
    pthread_mutex_lock(&w->exports_lock);
    bool wanted = w->export_awaited && !w->export_answered && n <= GV_SHARED_PIECES && size <= sizeof w->export_answer;
    if (wanted) {
        if (size) memcpy(&w->export_answer, what, size);
        w->export_answer_size = size;
        w->export_answer.n_pieces = n;
        for (uint32_t i = 0; i < GV_SHARED_PIECES; i++) w->export_answer.fd[i] = i < n ? fds[i] : -1;
        w->export_answered = true;
        pthread_cond_broadcast(&w->exports_changed);
    }
    pthread_mutex_unlock(&w->exports_lock);
    if (!wanted) close_all(fds, n);
}

/* The answer, and its descriptors, which are the caller's. False: there is none. */
static bool ask(struct worker *w, uint32_t what, uint64_t number, const uint8_t *name, struct gv_shared *out, uint32_t *size) {
    if (!w->export_asked) return false;
    pthread_mutex_lock(&w->exports_lock);
    w->export_awaited = true;
    w->export_answered = false;
    memset(&w->export_answer, 0, sizeof w->export_answer);
    pthread_mutex_unlock(&w->exports_lock);
    worker_rest(w);
    w->export_asked(w->export_arg, what, number, name);
    int64_t until = gv_now_ns() + ANSWER_NS;
    pthread_mutex_lock(&w->exports_lock);
    while (!w->export_answered && !over(w) && gv_now_ns() < until) {
        struct timespec look = gv_deadline(CLOCK_REALTIME, LOOK_NS);
        pthread_cond_timedwait(&w->exports_changed, &w->exports_lock, &look);
    }
    bool answered = w->export_answered;
    w->export_awaited = false;
    if (answered) *out = w->export_answer;
    *size = w->export_answer_size;
    pthread_mutex_unlock(&w->exports_lock);
    return answered && *size;
}

int worker_export_file(void *arg, uint64_t size, uint64_t *number) {
    struct gv_shared answer;
    uint32_t said;
    if (!ask(arg, WORKER_EXPORT_FILE, size, NULL, &answer, &said) || !answer.n_pieces) return -1;
    close_all(answer.fd + 1, answer.n_pieces - 1);
    *number = answer.size;
    return answer.fd[0];
}

void worker_export_file_over(void *arg, uint64_t number) {
    struct worker *w = arg;
    if (w->export_asked) w->export_asked(w->export_arg, WORKER_EXPORT_FILE_OVER, number, NULL);
}

/* ---- what this session exports ---- */

static struct worker_export **find(struct worker *w, const uint64_t name[2]) {
    struct worker_export **at = &w->exports;
    while (*at && ((*at)->name[0] != name[0] || (*at)->name[1] != name[1])) at = &(*at)->next;
    return at;
}

/* Files that are not the daemon's, but the driver's. */
static bool duplicate(const struct gv_shared *s, int32_t *fds, uint32_t *n) {
    for (uint32_t i = 0; i < s->n_pieces; i++) {
        if (s->file[i]) continue;
        fds[*n] = fcntl(s->fd[i], F_DUPFD_CLOEXEC, 0);
        if (fds[*n] < 0) {
            close_all(fds, *n);
            return false;
        }
        ++*n;
    }
    return true;
}

EXPORT uint32_t worker_give_export(struct worker *w, const uint8_t *name, void *what, uint64_t *files, uint32_t *n, int32_t *fds, uint32_t *n_fds) {
    uint64_t words[2];
    memcpy(words, name, sizeof words);
    *n = *n_fds = 0;
    pthread_mutex_lock(&w->exports_lock);
    const struct worker_export *e = *find(w, words);
    if (e && !duplicate(&e->shared, fds, n_fds)) {
        *n_fds = 0;
        e = NULL;
    }
    if (e) {
        *n = e->shared.n_pieces;
        memcpy(files, e->shared.file, *n * sizeof *files);
        memcpy(what, &e->shared, sizeof e->shared);
    }
    pthread_mutex_unlock(&w->exports_lock);
    return e ? sizeof(struct gv_shared) : 0;
}

static int name_it(struct worker *w, const struct gv_shared *shared, uint64_t name[2]) {
    struct worker_export *e = malloc(sizeof *e);
    if (!e || w->n_exports == GV_EXPORTS_MAX || getrandom(e->name, sizeof e->name, 0) != sizeof e->name) {
        free(e);
        w->ops->export_end(w->backend, shared);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    memcpy(name, e->name, sizeof e->name);
    e->shared = *shared;
    pthread_mutex_lock(&w->exports_lock);
    e->next = w->exports;
    w->exports = e;
    w->n_exports++;
    pthread_mutex_unlock(&w->exports_lock);
    return 0;
}

static const char *text_of(int status) {
    if (status == CUDA_ERROR_NOT_READY) return "memory can be exported only when the GPU has finished what it does, and it does not";
    return status == CUDA_ERROR_OUT_OF_MEMORY ? "the server has no room for what is to be shared" : NULL;
}

static int export_memory(struct worker *w, const struct gv_cmd_memory_export *c, uint32_t ctx, struct gv_shared *out) {
    if (!c->handle) {
        struct worker_context *context = worker_context(w, ctx);
        return context ? w->ops->memory_export(context->context, c->address, c->size, out) : CUDA_ERROR_INVALID_CONTEXT;
    }
    struct worker_physical *p = handles_get(&w->objects.physicals, c->handle);
    return p ? w->ops->physical_export(p->physical, out) : CUDA_ERROR_INVALID_VALUE;
}

int worker_do_memory_export(struct worker *w, const struct gv_record *record, const struct gv_cmd_memory_export *c) {
    struct gv_shared shared;
    struct gv_reply_memory_export reply = {.session = w->session};
    if (!w->ops->memory_export)
        return worker_reply(w, record, CUDA_ERROR_NOT_SUPPORTED, "the server's GPU shares no memory between processes", NULL, 0);
    int64_t until = gv_now_ns() + REST_NS;
    int status = export_memory(w, c, record->ctx, &shared);
    while (status == CUDA_ERROR_NOT_READY && !over(w) && gv_now_ns() < until) {
        nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
        status = export_memory(w, c, record->ctx, &shared);
    }
    uint64_t name[2] = {0};
    if (!status) status = name_it(w, &shared, name);
    reply.name_a = name[0];
    reply.name_b = name[1];
    uint8_t body[32];
    gv_reply_memory_export_encode(&reply, body);
    return worker_reply(w, record, status, text_of(status), body, (uint32_t)gv_reply_memory_export_size(&reply));
}

int worker_do_event_export(struct worker *w, const struct gv_record *record, const struct gv_cmd_event_export *c, struct worker_event *event) {
    (void)c;
    struct gv_shared shared;
    struct gv_reply_event_export reply = {.session = w->session};
    if (!w->ops->event_export)
        return worker_reply(w, record, CUDA_ERROR_NOT_SUPPORTED, "the server's GPU shares no events between processes", NULL, 0);
    int status = w->ops->event_export(event->event, &shared);
    uint64_t name[2] = {0};
    if (!status) status = name_it(w, &shared, name);
    reply.name_a = name[0];
    reply.name_b = name[1];
    uint8_t body[32];
    gv_reply_event_export_encode(&reply, body);
    return worker_reply(w, record, status, text_of(status), body, (uint32_t)gv_reply_event_export_size(&reply));
}

int worker_do_export_end(struct worker *w, const struct gv_record *record, const struct gv_cmd_export_end *c) {
    pthread_mutex_lock(&w->exports_lock);
    struct worker_export **at = find(w, (uint64_t[2]){c->name_a, c->name_b}), *e = *at;
    if (e) {
        *at = e->next;
        w->n_exports--;
    }
    pthread_mutex_unlock(&w->exports_lock);
    if (e) w->ops->export_end(w->backend, &e->shared);
    free(e);
    return worker_reply(w, record, 0, NULL, NULL, 0);
}

void worker_exports_close(struct worker *w) {
    while (w->exports) {
        struct worker_export *e = w->exports;
        w->exports = e->next;
        free(e);
    }
    pthread_cond_destroy(&w->exports_changed);
    pthread_mutex_destroy(&w->exports_lock);
}

/* ---- what this session opens ---- */

/* 0 and *out, with descriptors that are the caller's, or what is wrong with it. */
static int open_export(struct worker *w, uint64_t session, uint64_t a, uint64_t b, uint32_t kind, struct gv_shared *out) {
    uint64_t words[2] = {a, b};
    uint8_t name[16];
    uint32_t size;
    memcpy(name, words, sizeof name);
    if (!ask(w, WORKER_EXPORT_OPEN, session, name, out, &size)) return CUDA_ERROR_INVALID_VALUE;
    if (size == sizeof *out && out->kind == kind) return 0;
    close_all(out->fd, out->n_pieces);
    return CUDA_ERROR_INVALID_VALUE;
}

static const char *const not_found =
    "there is no such handle in this session's lease: what it stands for was freed, its process has ended, or it has another lease";

int worker_do_memory_open(struct worker *w, const struct gv_record *record, const struct gv_cmd_memory_open *c) {
    struct gv_reply_memory_open reply = {0};
    struct gv_shared shared;
    struct gv_physical *made = NULL;
    uint8_t body[64];
    if (!w->ops->physical_import)
        return worker_reply(w, record, CUDA_ERROR_NOT_SUPPORTED, "the server's GPU shares no memory between processes", NULL, 0);
    bool room = w->objects.physicals.live < GV_PHYSICALS_MAX;
    int status = room ? open_export(w, c->session, c->name_a, c->name_b, GV_SHARED_MEMORY, &shared) : CUDA_ERROR_OUT_OF_MEMORY;
    const char *text = status == CUDA_ERROR_INVALID_VALUE ? not_found : NULL;
    if (!status) status = w->ops->physical_import(w->device_contexts[0], &shared, c->session, &made);
    if (!status && (status = worker_keep_physical(w, c->handle, made, 0))) w->ops->physical_destroy(made);
    if (!status) {
        reply = (struct gv_reply_memory_open){.size = shared.size, .offset = shared.offset, .length = shared.length};
        for (uint32_t i = 0; i < w->n_devices; i++)
            if (w->ordinals[i] == shared.ordinal) reply.device = i;
    }
    gv_reply_memory_open_encode(&reply, body);
    return worker_reply(w, record, status, text, body, (uint32_t)gv_reply_memory_open_size(&reply));
}

int worker_do_event_open(struct worker *w, const struct gv_record *record, const struct gv_cmd_event_open *c, struct worker_context *context) {
    struct gv_shared shared;
    struct gv_event *made = NULL;
    if (!w->ops->event_import)
        return worker_reply(w, record, CUDA_ERROR_NOT_SUPPORTED, "the server's GPU shares no events between processes", NULL, 0);
    bool room = w->objects.events.live < GV_EVENTS_MAX;
    int status = room ? open_export(w, c->session, c->name_a, c->name_b, GV_SHARED_EVENT, &shared) : CUDA_ERROR_OUT_OF_MEMORY;
    const char *text = status == CUDA_ERROR_INVALID_VALUE ? not_found : NULL;
    if (!status) status = w->ops->event_import(context->context, &shared, c->session, &made);
    if (!status && (status = worker_keep_event(w, context, c->event, made))) w->ops->event_destroy(made);
    return worker_reply(w, record, status, text, NULL, 0);
}

EXPORT void worker_exporter_gone(struct worker *w, uint64_t session) {
    if (w->ops->exporter_gone) w->ops->exporter_gone(w->backend, session);
}
