/* Payloads from the server: the reader thread writes them where copies want them, and completions that name a payload are held until it is there. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "session/session_state.h"

#define BOUNCE_SIZE (256u * 1024u) /* short rows are received together and spread from here */
#define HELD_MAX (1u << 20)

/* ---- completions that wait for a payload --------------------------------------------------------------------------- */

struct held {
    uint64_t stream, upto, bulk;
    int status;
};
static pthread_mutex_t completions_lock = PTHREAD_MUTEX_INITIALIZER;
static struct held *held;
static size_t held_capacity;
static _Atomic size_t n_held;

int bulk_inline(uint64_t tag, int status, const void *data, uint32_t size) {
    if (!host_write_begin()) return 0;
    pthread_mutex_lock(&completions_lock); /* the other thread that publishes completions must find the copy whole or open */
    int bad = expect_inline(tag, status, data, size);
    pthread_mutex_unlock(&completions_lock);
    host_write_end();
    return bad;
}

static bool hold(const struct held *d) {
    size_t n = atomic_load(&n_held);
    /* Successive completions of one stream behind one payload are one. */
    if (n && held[n - 1].stream == d->stream && held[n - 1].bulk == d->bulk) {
        if (d->upto > held[n - 1].upto) held[n - 1].upto = d->upto;
        if (d->status) held[n - 1].status = d->status;
        return true;
    }
    if (n == held_capacity) {
        size_t room = held_capacity ? held_capacity * 2 : 64;
        struct held *more = room <= HELD_MAX ? realloc(held, room * sizeof *more) : NULL;
        if (!more) return false;
        held = more;
        held_capacity = room;
    }
    held[n] = *d;
    atomic_store(&n_held, n + 1);
    return true;
}

void bulk_publish(uint64_t stream, uint64_t upto, uint64_t bulk, int status) {
    enum expect_outcome outcome = EXPECT_RECEIVING;
    uint64_t receiving = 0;
    if (bulk <= atomic_load(&session.received) && !atomic_load(&n_held)) outcome = progress_publish(stream, upto, status, &receiving);
    if (outcome == EXPECT_MISSING) expect_missing();
    if (outcome != EXPECT_RECEIVING) return;
    pthread_mutex_lock(&completions_lock);
    /* A stream's completions keep their order, also when a later one names no payload. */
    for (size_t i = 0; i < atomic_load(&n_held); i++)
        if (held[i].stream == stream && held[i].bulk > bulk) bulk = held[i].bulk;
    if (bulk <= atomic_load(&session.received)) {
        outcome = progress_publish(stream, upto, status, &receiving);
        if (outcome == EXPECT_RECEIVING) bulk = receiving; /* has not received: its number is counted with this lock held */
    }
    bool kept = outcome != EXPECT_RECEIVING || hold(&(struct held){stream, upto, bulk, status});
    pthread_mutex_unlock(&completions_lock);
    if (outcome == EXPECT_MISSING) expect_missing();
    if (!kept) session_lost("too many completions wait for data that does not come", NULL);
}

static void publish_received(uint64_t number) {
    bool missing = false;
    pthread_mutex_lock(&completions_lock);
    atomic_store(&session.received, number);
    size_t kept = 0;
    for (size_t i = 0; i < atomic_load(&n_held); i++) {
        uint64_t receiving; /* nothing: this is the thread that receives */
        if (held[i].bulk > number)
            held[kept++] = held[i];
        else if (progress_publish(held[i].stream, held[i].upto, held[i].status, &receiving) == EXPECT_MISSING)
            missing = true;
    }
    atomic_store(&n_held, kept);
    pthread_mutex_unlock(&completions_lock);
    if (missing) expect_missing();
    progress_changed();
}

/* ---- the reader ---------------------------------------------------------------------------------------------------- */

static char *bounce; /* BOUNCE_SIZE bytes of the reader's */

/* Receives the area's next `size` bytes, which begin at its byte `at`. Whole short rows come together, by way of the bounce buffer. False: the link is
 * dead. */
static bool receive_rows(const struct host_area *a, uint64_t at, uint64_t size) {
    while (size) {
        uint64_t row = at / a->width, x = at % a->width, n = a->width - x < size ? a->width - x : size;
        char *dst = a->dst + row / a->height * a->slice + row % a->height * a->pitch + x;
        if (x || n < a->width || a->width >= BOUNCE_SIZE / 4) {
            if (gv_bulk_recv(session.link, dst, n)) return false;
        } else {
            uint64_t rows = (size < BOUNCE_SIZE ? size : BOUNCE_SIZE) / a->width;
            n = rows * a->width;
            if (gv_bulk_recv(session.link, bounce, n)) return false;
            for (uint64_t i = 0; i < rows; i++, row++)
                memcpy(a->dst + row / a->height * a->slice + row % a->height * a->pitch, bounce + i * a->width, a->width);
        }
        at += n;
        size -= n;
    }
    return true;
}

/* A payload brings what was asked for, or the next part of it. NULL: done. "": the link is dead. Else what is wrong. */
static const char *receive(const struct gv_bulk_header *header) {
    struct host_area area;
    uint64_t at;
    if (header->number != atomic_load(&session.received) + 1) return "a payload is out of order";
    if (header->tag & GV_BULK_WORKER_TAG) return reply_payload_receive(header);
    if (!host_write_begin()) return "";
    const char *why = expect_receive(header->tag, header->number, header->size, &area, &at);
    bool good = why || !header->size || (area.dst ? receive_rows(&area, at, header->size) : !gv_bulk_recv(session.link, NULL, header->size));
    if (good && !why) expect_received(header->tag, header->size);
    host_write_end();
    return why ? why : good ? NULL : "";
}

static void *reader(void *arg) {
    (void)arg;
    struct gv_bulk_header header;
    while (!atomic_load(&session.over)) {
        const char *why = gv_bulk_recv_header(session.link, &header) ? "" : receive(&header);
        if (why) {
            session_lost(*why ? why : NULL, NULL);
            break;
        }
        publish_received(header.number);
    }
    return NULL;
}

int bulk_start(void) {
    bounce = malloc(BOUNCE_SIZE);
    return bounce ? session_thread("gpuvirt-data", reader, NULL, 256 * 1024) : -1;
}
