/* Records on a link's command ring (client to worker) and reply ring (worker to client).
 *
 * Wire version 2 (handshake.h). All integers are little-endian, every record begins at a multiple of 8 bytes and `size` is a multiple of 8. The
 * bodies are described in native/api/commands.toml; their encoders and decoders are generated from it. */
#ifndef GV_RECORD_H
#define GV_RECORD_H

#include <stdint.h>

#define GV_WIRE_VERSION 2u

struct gv_record {
    uint32_t size;  /* whole record, header included, multiple of 8, at least sizeof(struct gv_record) */
    uint16_t op;    /* enum gv_op, from the command table */
    uint16_t flags; /* GV_RECORD_* */
    uint32_t ctx;   /* context id the command works in (0: none) */
    uint32_t epoch; /* the connection's, when the record was first committed: 0, and one more at every reconnect */
    uint64_t seq;   /* 1, 2, 3, ... without gaps in each direction; a repeated one is dropped, a gap ends the session */
};

#define GV_RECORD_SYNC 1u /* the sender waits: answer with a REPLY record that names this seq */
#define GV_RECORD_MARK 4u /* push this stream's completion when the command has completed on the device */

/* No record is larger: bigger payloads go on the bulk channel. A receiver ends the session on a larger one. */
#define GV_RECORD_MAX (256u * 1024u)
/* Host-to-device and device-to-host data up to this many bytes travels inside the record. */
#define GV_INLINE_MAX (64u * 1024u)

/* Records of the transport itself, between others of the same connection: not numbered, never sent again, not visible above the transport. Their body
 * is a struct gv_received, of a RESUME over shared memory a struct gv_memory_id. ACK: what has arrived, so that the sender can free it. RESUME: the
 * same, first on a connection that resumes a session, in each direction, before anything else. Their seq is that of the last complete record; RESUME's
 * epoch is the new connection's. */
#define GV_RECORD_ACK 0xfffeu
#define GV_RECORD_RESUME 0xfffdu
struct gv_received {
    uint64_t bulk; /* bytes of the stream of payloads, headers included */
};
/* The body of a RESUME where both ends share memory: which it is, as fstat says. */
struct gv_memory_id {
    uint64_t device, inode;
};

/* Payloads on a bulk channel: each is this header, then `size` bytes. Numbers count 1, 2, 3, ... per direction. */
struct gv_bulk_header {
    uint64_t number;
    uint64_t tag; /* device to host: the tag of the waiting copy; host to device: 0 */
    uint64_t size;
    uint32_t epoch; /* 0 */
    uint32_t magic; /* GV_BULK_MAGIC */
};
#define GV_BULK_MAGIC 0x4b4c5542u /* "BULK" */

/* A payload from the client that is sent when its source has been written, after its command and out of order: the command names this bit and a
 * number, and so does the payload's tag. */
#define GV_BULK_LATE (1ull << 63)

/* A payload to the client that belongs to no copy: the worker chose its tag, which has this bit, and names it in a reply. */
#define GV_BULK_WORKER_TAG (1ull << 63)

/* A context's legacy stream has no handle: in events this names it. */
#define GV_LEGACY_STREAM(ctx) (0xffff000000000000ull | (uint64_t)(ctx))

#endif
