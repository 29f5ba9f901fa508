#include "part_queue.h"

#include <stdlib.h>
#include <string.h>

#include "link.h"

#define SMALL 64

struct gv_part {
    struct gv_part *next;
    const void *data;
    uint64_t size;
    void (*done)(void *arg);
    void *arg;
    uint8_t own[SMALL];
};

void gv_part_queue_init(struct gv_part_queue *q, struct gv_link *link, bool (*write)(struct gv_link *link, const void *data, uint64_t size)) {
    memset(q, 0, sizeof *q);
    q->link = link;
    q->write = write;
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->changed, NULL);
}

static void *write_parts(void *arg) {
    struct gv_part_queue *q = arg;
    pthread_mutex_lock(&q->lock);
    for (;;) {
        while ((!q->first || q->busy) && !gv_link_dead(q->link) && !q->ended) pthread_cond_wait(&q->changed, &q->lock);
        struct gv_part *p = q->first;
        if (!p || gv_link_dead(q->link) || q->ended) break;
        q->first = p->next;
        if (!q->first) q->last = NULL;
        q->busy = true;
        pthread_mutex_unlock(&q->lock);
        bool lent = q->lend && p->done && q->lend(q->link, p->data, p->size, p->done, p->arg);
        if (!lent) q->write(q->link, p->data, p->size);
        atomic_fetch_add(&q->written, p->size);
        if (p->done && !lent) p->done(p->arg);
        free(p);
        pthread_mutex_lock(&q->lock);
        q->busy = false;
        pthread_cond_broadcast(&q->changed);
    }
    while (q->first) {
        struct gv_part *p = q->first;
        q->first = p->next;
        if (p->done) p->done(p->arg);
        free(p);
    }
    q->last = NULL;
    pthread_cond_broadcast(&q->changed);
    pthread_mutex_unlock(&q->lock);
    return NULL;
}

int gv_part_queue_add(struct gv_part_queue *q, const void *data, uint64_t size, void (*done)(void *arg), void *arg) {
    struct gv_part *p = malloc(sizeof *p);
    pthread_mutex_lock(&q->lock);
    bool good = p && !gv_link_dead(q->link) && !q->ended;
    if (good && !q->started) good = q->started = gv_thread_start(&q->thread, write_parts, q, "gpuvirt-bulk") == 0;
    if (good) {
        *p = (struct gv_part){.data = data, .size = size, .done = done, .arg = arg};
        if (!done) p->data = memcpy(p->own, data, size);
        if (q->last)
            q->last->next = p;
        else
            q->first = p;
        q->last = p;
        pthread_cond_broadcast(&q->changed);
    }
    pthread_mutex_unlock(&q->lock);
    if (good) return 0;
    gv_link_kill(q->link, "a payload could not be queued: out of memory, or of threads");
    free(p);
    if (done) done(arg);
    return -1;
}

bool gv_part_queue_idle(struct gv_part_queue *q) {
    pthread_mutex_lock(&q->lock);
    bool idle = !q->first && !q->busy;
    pthread_mutex_unlock(&q->lock);
    return idle;
}

bool gv_part_queue_write(struct gv_part_queue *q, const void *data, uint64_t size) {
    pthread_mutex_lock(&q->lock);
    while ((q->first || q->busy) && !gv_link_dead(q->link)) pthread_cond_wait(&q->changed, &q->lock);
    q->busy = true;
    pthread_mutex_unlock(&q->lock);
    bool good = !gv_link_dead(q->link) && q->write(q->link, data, size);
    atomic_fetch_add(&q->written, size);
    pthread_mutex_lock(&q->lock);
    q->busy = false;
    if (q->started) pthread_cond_broadcast(&q->changed);
    pthread_mutex_unlock(&q->lock);
    return good;
}

void gv_part_queue_died(struct gv_part_queue *q) {
    pthread_mutex_lock(&q->lock);
    pthread_cond_broadcast(&q->changed);
    pthread_mutex_unlock(&q->lock);
}

void gv_part_queue_end(struct gv_part_queue *q) {
    pthread_mutex_lock(&q->lock);
    q->ended = true;
    pthread_cond_broadcast(&q->changed);
    pthread_mutex_unlock(&q->lock);
    if (q->started) pthread_join(q->thread, NULL);
    pthread_mutex_destroy(&q->lock);
    pthread_cond_destroy(&q->changed);
}
