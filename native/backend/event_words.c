#define _GNU_SOURCE
#include "event_words.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../transport/futex.h"

#define FILE_SIZE (4ull << 20)
#define WORDS_SIZE 512u
#define RECORDS 56u        /* that may be under way at a time */
#define LOOK_NS 10000000ll /* ns that a waiter sleeps at most: it looks whether there is still somebody to wait for */

struct event_words {
    _Atomic uint64_t recorded; /* the number of the latest record, 0: none */
    _Atomic uint32_t changes;  /* a futex */
    uint32_t unused;
    _Atomic uint64_t reached[RECORDS]; /* by the number of the record: the newest that has been reached */
};
_Static_assert(sizeof(struct event_words) <= WORDS_SIZE, "the words of an event fit");

uint64_t event_words_record(struct event_words *w) { return atomic_fetch_add(&w->recorded, 1) + 1; }

uint64_t event_words_latest(const struct event_words *w) { return atomic_load(&w->recorded); }

void event_words_reach(struct event_words *w, uint64_t number) {
    _Atomic uint64_t *at = &w->reached[number % RECORDS];
    uint64_t now = atomic_load(at);
    while (now < number && !atomic_compare_exchange_weak(at, &now, number)) {
    }
    atomic_fetch_add(&w->changes, 1);
    gv_futex_wake(&w->changes, 1 << 30);
}

bool event_words_reached(const struct event_words *w, uint64_t number) { return !number || atomic_load(&w->reached[number % RECORDS]) >= number; }

void event_words_wait(struct event_words *w, uint64_t number) {
    uint32_t changes = atomic_load(&w->changes);
    if (!event_words_reached(w, number)) gv_futex_wait(&w->changes, changes, LOOK_NS);
}

/* ---- files ---- */

bool event_files_any(struct event_files *files) {
    pthread_mutex_lock(files->lock);
    bool any = files->first;
    pthread_mutex_unlock(files->lock);
    return any;
}

static struct event_file *file_of(struct event_files *files, uint64_t session) {
    struct event_file *f = files->first;
    while (f && (f->session != session || atomic_load(&f->gone))) f = f->next;
    return f;
}

/* Takes the descriptor over. */
static struct event_file *file_add(struct event_files *files, int fd, uint64_t number, uint64_t session) {
    struct event_file *f = calloc(1, sizeof *f);
    char *base = f ? mmap(NULL, FILE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
    if (base == MAP_FAILED) {
        free(f);
        close(fd);
        return NULL;
    }
    *f = (struct event_file){.session = session, .fd = session ? -1 : fd, .number = number, .base = base};
    if (session) close(fd); /* it is mapped */
    pthread_mutex_lock(files->lock);
    f->next = files->first;
    files->first = f;
    pthread_mutex_unlock(files->lock);
    return f;
}

struct event_words *event_words_new(struct event_files *files, struct event_file **file, uint64_t *offset) {
    pthread_mutex_lock(files->lock);
    struct event_file *f = file_of(files, 0);
    pthread_mutex_unlock(files->lock);
    if (!f) {
        uint64_t number;
        int fd = file_source_new(files->source, FILE_SIZE, &number);
        f = fd < 0 ? NULL : file_add(files, fd, number, 0);
    }
    if (!f || f->given == FILE_SIZE / WORDS_SIZE) return NULL; /* words are not given twice: somebody may have them */
    *file = f;
    *offset = (uint64_t)f->given++ * WORDS_SIZE;
    return (struct event_words *)(f->base + *offset);
}

struct event_words *event_words_open(struct event_files *files, const struct gv_shared *s, uint64_t session, struct event_file **file) {
    bool sound = s->kind == GV_SHARED_EVENT && s->n_pieces == 1 && s->offset <= FILE_SIZE - WORDS_SIZE && s->offset % WORDS_SIZE == 0;
    if (!sound || !session || !shared_file_is_sound(s->fd[0], FILE_SIZE)) {
        for (uint32_t i = 0; i < s->n_pieces && i < GV_SHARED_PIECES; i++)
            if (s->fd[i] >= 0) close(s->fd[i]);
        return NULL;
    }
    pthread_mutex_lock(files->lock);
    struct event_file *f = file_of(files, session);
    if (f) f->refs++;
    pthread_mutex_unlock(files->lock);
    if (f) {
        close(s->fd[0]);
    } else {
        f = file_add(files, s->fd[0], 0, session);
        if (f) f->refs = 1;
    }
    *file = f;
    return f ? (struct event_words *)(f->base + s->offset) : NULL;
}

void event_file_drop(struct event_files *files, struct event_file *f) {
    if (!f->session || --f->refs) return;
    struct event_file **at = &files->first;
    while (*at != f) at = &(*at)->next;
    *at = f->next;
    munmap(f->base, FILE_SIZE);
    free(f);
}

void event_files_recorder_gone(struct event_files *files, uint64_t session) {
    pthread_mutex_lock(files->lock);
    for (struct event_file *f = files->first; f; f = f->next)
        if (f->session == session) atomic_store(&f->gone, true);
    pthread_mutex_unlock(files->lock);
}

void event_words_say(const struct event_file *file, const struct event_words *words, uint32_t ordinal, struct gv_shared *out) {
    uint64_t offset = (uint64_t)((const char *)words - file->base);
    *out = (struct gv_shared){.kind = GV_SHARED_EVENT, .n_pieces = 1, .ordinal = ordinal, .offset = offset};
    out->fd[0] = file->fd;
    out->file[0] = file->number;
    for (int i = 1; i < GV_SHARED_PIECES; i++) out->fd[i] = -1;
}

void event_files_close(struct event_files *files) {
    while (files->first) {
        struct event_file *f = files->first;
        files->first = f->next;
        if (f->fd >= 0) close(f->fd);
        free(f);
    }
}
