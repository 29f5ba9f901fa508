/* Parts of payloads that wait for their turn on a transport whose writing blocks: a thread writes them, one after the other. It is started when there
 * first is one. */
#ifndef GV_PART_QUEUE_H
#define GV_PART_QUEUE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct gv_link;
struct gv_part;

struct gv_part_queue {
    struct gv_link *link;
    bool (*write)(struct gv_link *link, const void *data, uint64_t size); /* false: the link died */
    /* NULL: nothing is lent. Else asked before a part with `done` is written: true when it calls that by itself, later, and nothing is to be written. */
    bool (*lend)(struct gv_link *link, const void *data, uint64_t size, void (*done)(void *arg), void *arg);
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct gv_part *first, *last;
    bool busy; /* the thread, or a caller, is writing */
    _Atomic uint64_t written;
    pthread_t thread;
    bool started, ended;
};

void gv_part_queue_init(struct gv_part_queue *q, struct gv_link *link, bool (*write)(struct gv_link *link, const void *data, uint64_t size));
/* As gv_transport's bulk_part. */
int gv_part_queue_add(struct gv_part_queue *q, const void *data, uint64_t size, void (*done)(void *arg), void *arg);
/* Nothing is queued or being written: with one thread that adds, it stays so. */
bool gv_part_queue_idle(struct gv_part_queue *q);
/* Writes in the caller's thread, behind what is queued. False: the link died. */
bool gv_part_queue_write(struct gv_part_queue *q, const void *data, uint64_t size);
/* The link is dead: nobody waits any longer. Any thread. */
void gv_part_queue_died(struct gv_part_queue *q);
/* Ends the thread, lets go of what is left; the link is dead. */
void gv_part_queue_end(struct gv_part_queue *q);

#endif
