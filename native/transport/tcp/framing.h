/* How the records of a tcp link, and its notes between them, lie in the main connection's stream of bytes: one after the other as they are, or in sealed
 * frames.
 *
 * A sealed frame is a head, the ciphertext and a tag; the head is authenticated with it, its size by the ciphertext's length. A frame of RECORDS carries
 * whole records with consecutive numbers, and its counter is the first one's: the key is the same for the life of the link, a record is sealed once, and what goes out again after a
 * cut is the same ciphertext. A NOTE's key is its connection's; the counter is 0 for the RESUME and then 1, 2, 3, ... Frames of a kind follow each
 * other without gaps: one that is altered, lacks, comes twice or is another connection's is none. */
#ifndef GV_FRAMING_H
#define GV_FRAMING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../../wire/record.h"
#include "../seal/seal.h"
#include "../transport.h"
#include "unacked.h"

struct gv_sealed_head {
    uint32_t size; /* of the frame, head and tag included; a multiple of 8 */
    uint32_t kind; /* enum gv_seal_use: RECORDS or NOTES */
    uint64_t counter;
};

/* A record of the transport's own. */
struct tcp_note {
    struct gv_record record;
    struct gv_received received;
};

#define FRAME_ROOM (sizeof(struct gv_sealed_head) + GV_SEAL_TAG) /* of a frame beside what it carries */
#define NOTE_ROOM (FRAME_ROOM + sizeof(struct tcp_note))
#define FRAME_MOST (FRAME_ROOM + GV_RECORD_MAX)

struct gv_framing_out {
    struct gv_seal *records, *notes; /* NULL: plain */
    uint64_t next_note;
    uint64_t next_seq;
};

struct gv_framing_in {
    struct gv_seal *records, *notes; /* NULL: plain */
    uint64_t next_note;
    uint64_t next_seq;
    bool comes_again;    /* the next frame of records is the connection's first and may begin before next_seq: it went out before the cut */
    size_t opened;       /* up to here the buffer holds records of a frame whose tag was right; 0: none */
    unsigned altered[2]; /* frames of records, and of notes, that were altered since the last good one; a good frame of records counts for both */
};

/* When so many of a kind were altered it was no accident. */
#define GV_ALTERED_MOST 8

/* ---- what is sent */

/* Moves some of `size` bytes of whole records to those that are not acknowledged. How many bytes; 0: out of memory, or the library failed. */
uint64_t gv_framing_put(struct gv_framing_out *out, struct gv_unacked *unacked, const void *records, uint64_t size);
/* Writes what a note is in the stream to `to`, NOTE_ROOM bytes. How many bytes; 0: the library failed. */
size_t gv_framing_note(struct gv_framing_out *out, const struct tcp_note *note, void *to);

/* Prepares the key for the next frame of records; the caller has sent what there was. */
void gv_framing_prepare_to_put(struct gv_framing_out *out);

/* ---- what is received */

enum gv_framed {
    GV_FRAMED_PART,    /* more has to come first */
    GV_FRAMED_RECORD,  /* a whole record, or note, lies there */
    GV_FRAMED_ALTERED, /* somebody on the way changed it */
    GV_FRAMED_BAD      /* the peer itself sent nonsense */
};
/* What lies at *at among `end` bytes of `buffer`, which is 8-aligned. A whole sealed frame is opened where it lies, and *at then is its first record's.
 * `why` is filled in for BAD. */
enum gv_framed gv_framing_look(struct gv_framing_in *in, uint8_t *buffer, size_t *at, size_t end, char why[GV_DEATH_TEXT]);
/* Prepares the key for the next frame of records; the caller has found nothing. */
void gv_framing_prepare_to_look(struct gv_framing_in *in);
/* Where the next one begins behind what gv_framing_look showed at `at`, of `size` bytes. */
size_t gv_framing_behind(struct gv_framing_in *in, size_t at, size_t size);
/* Forgets all but what was handed out, `size` bytes at `at` (0: nothing is). Where the bytes end that stay. */
size_t gv_framing_forget(struct gv_framing_in *in, size_t at, size_t size);

/* Takes a note out of the stream that is as many bytes as gv_framing_note's. False: it was altered, or is another one. */
bool gv_framing_open_note(struct gv_framing_in *in, const void *from, struct tcp_note *note);

#endif
