/* Payloads from the server: the reader thread writes them where copies want them. */
#include <stdlib.h>
#include <string.h>

#include "session/session_state.h"

#define BOUNCE_SIZE (256u * 1024u) /* short rows are received together and spread from here */

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
        completions_received(header.number);
    }
    return NULL;
}

int bulk_start(void) {
    bounce = malloc(BOUNCE_SIZE);
    return bounce ? session_thread("gpuvirt-data", reader, NULL, 256 * 1024) : -1;
}
