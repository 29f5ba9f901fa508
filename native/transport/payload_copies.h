/* Copies of payloads that the peer has not acknowledged: pieces of memory, of which a link holds no more than a limit. */
#ifndef GV_PAYLOAD_COPIES_H
#define GV_PAYLOAD_COPIES_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#define GV_COPY_PIECE (1u << 20)    /* bytes of one piece */
#ifndef COPIES_LIMIT                /* tests make it small */
#define COPIES_LIMIT (256ull << 20) /* bytes of the pieces that are out */
#endif

struct gv_copies;

struct gv_copy {
    struct gv_copy *next; /* the one sent after it, or another spare one */
    struct gv_copies *owner;
    uint64_t end; /* position in the stream of payloads behind its last byte */
    uint8_t data[];
};

struct gv_copies {
    pthread_mutex_t lock;
    pthread_cond_t fewer;
    struct gv_copy *oldest, *newest; /* those that the peer may not have yet, in the stream's order */
    struct gv_copy *spare;
    unsigned n_spare;
    uint64_t out; /* bytes */
    uint64_t limit;
    /* Hears of each piece's memory when it is made and before it is freed; NULL: nobody does. */
    void (*heard)(void *arg, void *data, bool made);
    void *arg;
};

void gv_copies_init(struct gv_copies *copies);
void gv_copies_free(struct gv_copies *copies);
/* Whether the limit is reached; *oldest is then the `end` of the copy that was sent first. */
bool gv_copies_full(struct gv_copies *copies, uint64_t *oldest);
/* Waits until it is not, timeout_ns at most. */
void gv_copies_wait(struct gv_copies *copies, int64_t timeout_ns);
/* A piece, which counts as out until gv_copy_done; NULL: no memory. One thread at a time, in the stream's order. */
struct gv_copy *gv_copies_take(struct gv_copies *copies, uint64_t end);
/* Gives a piece back; for gv_bulk_part. */
void gv_copy_done(void *copy);

#endif
