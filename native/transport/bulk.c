/* Payloads: what is the same over every transport. Their headers, their numbers, and how a caller's memory is free again when gv_bulk_send returns. */
#include <stdlib.h>
#include <string.h>

#include "link.h"

#define COPIES_LOOK_NS 1000000      /* between two looks at whether there are few enough */
#define BORROWED_LOOK_NS 1000000000 /* between two looks at whether what was borrowed is given back; its end wakes */
#define COPY_BYTES_PER_NS 8         /* what waiting for an answer is held against */

/* ---- sending */

uint64_t gv_bulk_open(struct gv_link *link, uint64_t tag, uint64_t size) {
    if (gv_link_dead(link)) return 0;
    struct gv_bulk_header header = {.number = ++link->bulk_out, .tag = tag, .size = size, .magic = GV_BULK_MAGIC};
    if (link->transport->bulk_part(link, &header, sizeof header, NULL, NULL)) return 0;
    link->bulk_position += sizeof header;
    atomic_fetch_add_explicit(&link->bytes_out, sizeof header + size, memory_order_relaxed);
    return header.number;
}

static void nothing_to_do(void *arg) { (void)arg; }

int gv_bulk_part(struct gv_link *link, const void *data, uint64_t size, void (*done)(void *arg), void *arg) {
    link->bulk_position += size;
    return link->transport->bulk_part(link, data, size, done ? done : nothing_to_do, arg);
}

uint64_t gv_bulk_position(const struct gv_link *link) { return link->bulk_position; }
uint64_t gv_bulk_acked(const struct gv_link *link) { return link->transport->bulk_acked(link); }

void gv_bulk_set_waiter(struct gv_link *link, int (*wait)(void *arg, uint64_t position), void *arg) {
    link->bulk_waiter = wait;
    link->bulk_waiter_arg = arg;
}

/* ---- the caller's memory, borrowed */

static void give_back(void *arg) {
    struct gv_link *link = arg;
    if (atomic_fetch_sub(&link->borrowed, 1) == 1) gv_futex_wake(&link->borrowed, 1);
}

/* Sends from where the bytes lie, and returns when nobody reads them any more: also when the link died meanwhile, as the caller may free them then. A dead
 * link's sending thread lets go of everything before it ends. */
static bool send_borrowed(struct gv_link *link, const void *data, uint64_t size) {
    atomic_fetch_add(&link->borrowed, 1);
    if (gv_bulk_part(link, data, size, give_back, link)) return false;
    bool has = !link->bulk_waiter(link->bulk_waiter_arg, link->bulk_position);
    if (has && !gv_link_dead(link)) return true;
    gv_link_kill(link, "a payload was given up");
#ifdef GV_BREAK_BORROWED /* a test's fault: the caller's memory may still be read when he has it back */
    return false;
#endif
    for (uint32_t parts; (parts = atomic_load(&link->borrowed));) gv_futex_wait(&link->borrowed, parts, BORROWED_LOOK_NS);
    return false;
}

/* ---- copies of the caller's memory */

/* Memory for the stream's next `size` bytes, once there are few enough copies. NULL: no memory, or the link died. */
static struct gv_copy *copy_take(struct gv_link *link, uint64_t size) {
    uint64_t oldest;
    while (gv_copies_full(&link->copies, &oldest) && !gv_link_dead(link)) {
        /* The peer acknowledges in steps: what it is sure to say soon is that it has the oldest copy, with all the others behind it. The end of what it
         * was sent it may keep to itself until more comes. A copy that it has is about to be let go of: nothing is waited for then but that. */
        bool asks = link->bulk_waiter && !link->transport->lends_from;
        if (asks && gv_bulk_acked(link) < oldest) link->bulk_waiter(link->bulk_waiter_arg, oldest);
        if (link->transport->bulk_poll) link->transport->bulk_poll(link);
        gv_copies_wait(&link->copies, COPIES_LOOK_NS);
    }
    struct gv_copy *c = gv_copies_take(&link->copies, link->bulk_position + size);
    if (!c) gv_link_kill(link, "out of memory");
    return c;
}

static bool send_copies(struct gv_link *link, const uint8_t *data, uint64_t size) {
    while (size) {
        uint64_t piece = size < GV_COPY_PIECE ? size : GV_COPY_PIECE;
        struct gv_copy *c = copy_take(link, piece);
        if (!c) return false;
        memcpy(c->data, data, piece);
        if (gv_bulk_part(link, c->data, piece, gv_copy_done, c)) return false;
        data += piece;
        size -= piece;
    }
    return true;
}

uint64_t gv_bulk_send(struct gv_link *link, uint64_t tag, const void *data, uint64_t size) {
    uint64_t number = gv_bulk_open(link, tag, size);
    if (!number || !size) return number;
    uint64_t lends_from = link->transport->lends_from;
    if (lends_from && size >= lends_from) return send_copies(link, data, size) ? number : 0;
    if (link->transport->bulk_write) {
        link->bulk_position += size;
        return link->transport->bulk_write(link, data, size) ? number : 0;
    }
    /* Waiting for the peer to say that it has the bytes costs a round trip, copying them costs time too. */
    if (!link->bulk_waiter || (uint64_t)gv_link_rtt_ns(link) * COPY_BYTES_PER_NS >= size) return send_copies(link, data, size) ? number : 0;
    return send_borrowed(link, data, size) ? number : 0;
}

/* ---- receiving */

int gv_bulk_recv_header(struct gv_link *link, struct gv_bulk_header *header) {
    if (gv_link_dead(link)) return -1;
    link->between = true;
    bool came = link->transport->bulk_read(link, header, sizeof *header);
    link->between = false;
    if (!came) return -1;
    if (header->magic != GV_BULK_MAGIC || header->number != link->bulk_in + 1 || header->epoch) {
        gv_link_kill(link, "malformed payload on the bulk channel");
        return -1;
    }
    link->bulk_in++;
    link->bulk_left = header->size;
    atomic_fetch_add_explicit(&link->bytes_in, sizeof *header, memory_order_relaxed);
    if (!header->size && link->transport->bulk_whole) link->transport->bulk_whole(link);
    return 0;
}

int gv_bulk_recv(struct gv_link *link, void *data, uint64_t size) {
    if (gv_link_dead(link) || !link->transport->bulk_read(link, data, size)) return -1;
    atomic_fetch_add_explicit(&link->bytes_in, size, memory_order_relaxed);
    link->bulk_left -= size < link->bulk_left ? size : link->bulk_left;
    if (!link->bulk_left && size && link->transport->bulk_whole) link->transport->bulk_whole(link);
    return 0;
}
