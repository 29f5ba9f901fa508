/* The client's end of a sealed link, written by hand: frames as they lie on the wire, past our own encoder. */
#ifndef SEALED_PEER_H
#define SEALED_PEER_H

#include "../../../native/transport/tcp/framing.h"

#define FRAME_BUFFER ((size_t)FRAME_MOST)

/* With test_secret; the notes are those of one epoch. */
struct sealed_peer {
    struct gv_seal *records_out, *records_in, *notes_out, *notes_in;
};

struct sealed_peer sealed_peer(uint32_t epoch);
void sealed_peer_free(struct sealed_peer *peer);
/* Makes a frame of these bytes in `to` and returns its size. */
size_t seal_records(struct sealed_peer *peer, uint64_t counter, const void *records, size_t size, void *to);
size_t seal_note(struct sealed_peer *peer, uint64_t counter, struct tcp_note note, void *to);
/* Reads the next frame from the socket into `frame` (FRAME_BUFFER bytes) and opens it where it lies; its head. */
struct gv_sealed_head hear_frame(struct sealed_peer *peer, int fd, void *frame);

#endif
