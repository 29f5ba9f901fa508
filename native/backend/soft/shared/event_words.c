/* Events that sessions share. The events that one session has exported have words in one file of its own, which other workers map too: how often an event has been
 * recorded, by whomever, and which of these records have been reached. A wait is for the record that is the latest when it is queued. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../../../transport/futex.h"
#include "../stream.h"
#include "shared.h"

#define FILE_SIZE (4ull << 20)
#define WORDS_SIZE 512u
#define RECORDS 56u        /* that may be under way at a time */
#define LOOK_NS 10000000ll /* ns that a waiter sleeps at most: it looks whether there is still somebody to wait for */

struct soft_event_words {
    _Atomic uint64_t recorded; /* the number of the latest record, 0: none */
    _Atomic uint32_t changes;  /* a futex */
    uint32_t unused;
    _Atomic uint64_t reached[RECORDS]; /* by the number of the record: the newest that has been reached */
};
_Static_assert(sizeof(struct soft_event_words) <= WORDS_SIZE, "the words of an event fit");

uint64_t soft_event_words_record(struct soft_event_words *w) { return atomic_fetch_add(&w->recorded, 1) + 1; }

uint64_t soft_event_words_latest(const struct soft_event_words *w) { return atomic_load(&w->recorded); }

void soft_event_words_reach(struct soft_event_words *w, uint64_t number) {
    _Atomic uint64_t *at = &w->reached[number % RECORDS];
    uint64_t now = atomic_load(at);
    while (now < number && !atomic_compare_exchange_weak(at, &now, number)) {
    }
    atomic_fetch_add(&w->changes, 1);
    gv_futex_wake(&w->changes, 1 << 30);
}

bool soft_event_words_reached(const struct soft_event_words *w, uint64_t number) {
    return !number || atomic_load(&w->reached[number % RECORDS]) >= number;
}

void soft_event_words_wait(struct soft_event_words *w, uint64_t number) {
    uint32_t changes = atomic_load(&w->changes);
    if (!soft_event_words_reached(w, number)) gv_futex_wait(&w->changes, changes, LOOK_NS);
}

/* ---- files ---- */

bool soft_events_are_shared(struct gv_backend *b) {
    pthread_mutex_lock(&b->lock);
    bool any = b->event_files;
    pthread_mutex_unlock(&b->lock);
    return any;
}

static struct soft_event_file *file_of(struct gv_backend *b, uint64_t session) {
    struct soft_event_file *f = b->event_files;
    while (f && (f->session != session || atomic_load(&f->gone))) f = f->next;
    return f;
}

/* Takes the descriptor over. */
static struct soft_event_file *file_add(struct gv_backend *b, int fd, uint64_t number, uint64_t session) {
    struct soft_event_file *f = calloc(1, sizeof *f);
    char *base = f ? mmap(NULL, FILE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
    if (base == MAP_FAILED) {
        free(f);
        close(fd);
        return NULL;
    }
    *f = (struct soft_event_file){.session = session, .fd = session ? -1 : fd, .number = number, .base = base};
    if (session) close(fd); /* it is mapped */
    pthread_mutex_lock(&b->lock);
    f->next = b->event_files;
    b->event_files = f;
    pthread_mutex_unlock(&b->lock);
    return f;
}

struct soft_event_words *soft_event_words_new(struct gv_backend *b, struct soft_event_file **file, uint64_t *offset) {
    pthread_mutex_lock(&b->lock);
    struct soft_event_file *f = file_of(b, 0);
    pthread_mutex_unlock(&b->lock);
    if (!f) {
        uint64_t number;
        int fd = soft_file_new(b, FILE_SIZE, &number);
        f = fd < 0 ? NULL : file_add(b, fd, number, 0);
    }
    if (!f || f->given == FILE_SIZE / WORDS_SIZE) return NULL; /* words are not given twice: somebody may have them */
    *file = f;
    *offset = (uint64_t)f->given++ * WORDS_SIZE;
    return (struct soft_event_words *)(f->base + *offset);
}

struct soft_event_words *soft_event_words_open(struct gv_backend *b, const struct gv_shared *s, uint64_t session, struct soft_event_file **file) {
    bool sound = s->kind == GV_SHARED_EVENT && s->n_pieces == 1 && s->offset <= FILE_SIZE - WORDS_SIZE && s->offset % WORDS_SIZE == 0;
    if (!sound || !session || !soft_file_is_sound(s->fd[0], FILE_SIZE)) {
        for (uint32_t i = 0; i < s->n_pieces && i < GV_SHARED_PIECES; i++)
            if (s->fd[i] >= 0) close(s->fd[i]);
        return NULL;
    }
    pthread_mutex_lock(&b->lock);
    struct soft_event_file *f = file_of(b, session);
    if (f) f->refs++;
    pthread_mutex_unlock(&b->lock);
    if (f) {
        close(s->fd[0]);
    } else {
        f = file_add(b, s->fd[0], 0, session);
        if (f) f->refs = 1;
    }
    *file = f;
    return f ? (struct soft_event_words *)(f->base + s->offset) : NULL;
}

void soft_event_file_drop(struct gv_backend *b, struct soft_event_file *f) {
    if (!f->session || --f->refs) return;
    struct soft_event_file **at = &b->event_files;
    while (*at != f) at = &(*at)->next;
    *at = f->next;
    munmap(f->base, FILE_SIZE);
    free(f);
}

void soft_event_recorder_gone(struct gv_backend *b, uint64_t session) {
    pthread_mutex_lock(&b->lock);
    for (struct soft_event_file *f = b->event_files; f; f = f->next)
        if (f->session == session) atomic_store(&f->gone, true);
    pthread_mutex_unlock(&b->lock);
}
