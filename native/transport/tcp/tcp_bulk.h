/* Payloads over tcp: one stream of bytes each way, headers included, in stripes over the session's bulk channels. Byte b of the stream goes over channel
 * (b / TCP_STRIPE) % n, in frames that end with their stripe at the latest. A receiver takes the stripes in turn, so that the order is the stream's.
 *
 * What is sent is held by reference until the peer says on the main connection that it has it. A channel that was cut is made again; both ends begin by
 * saying which byte of the other's stream they want next.
 *
 * On a sealed link each frame is {head, ciphertext, tag}: the head is authenticated with the bytes. The key is of a direction, a channel and an epoch; the
 * nonce is the number of the frame among those of that key, 0 the greeting's, which has a tag and no ciphertext. What goes out again after a cut is sealed
 * anew, from what its source holds then. A receiver counts and hands out a frame's bytes when its tag was right, not before. */
#ifndef GV_TCP_BULK_H
#define GV_TCP_BULK_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "../silence.h"

struct gv_image_in;
struct gv_image_out;
struct gv_link;
struct gv_link_secret;
struct gv_seal;

#define TCP_CHANNELS_MAX 16u
#define TCP_STRIPE (256u << 10)
/* The most that a sealed frame carries: what the cipher writes is still in the core's cache when the socket reads it. */
#ifndef TCP_SEALED_MOST
#define TCP_SEALED_MOST (128u << 10)
#endif

/* In front of a frame's bytes, and, with the number of channels in the place of the size, the first thing on a channel: the byte that is wanted. */
struct tcp_frame {
    uint32_t magic, size;
    uint64_t position;
};
#define TCP_FRAME_MAGIC 0x4d415246u   /* "FRAM" */
#define TCP_CHANNEL_MAGIC 0x4e414843u /* "CHAN" */

struct tcp_part;

/* The traffic keys of a channel's epoch, and the numbers of the next frames. */
struct tcp_keys {
    struct gv_seal *out, *in; /* NULL: plain */
    uint64_t next_out, next_in;
};

struct tcp_channel {
    int fd; /* -1: there was none yet */
    bool up;
    unsigned users; /* threads in a system call on it */
    uint32_t epoch;
    uint32_t fresh;           /* epochs from here on were never tried */
    int64_t since;            /* when it went down */
    _Atomic unsigned altered; /* frames in a row that were altered on their way */
    char why[100];
    struct tcp_keys keys; /* whoever may not use the descriptor leaves them alone, too */
    /* The sending thread's: the frame that is halfway out, and where it goes on. */
    struct tcp_frame frame;
    uint32_t head_left, frame_left;
    uint64_t next;
    struct tcp_part *at; /* in this part or a later one; NULL: look for it */
    uint8_t *sealed;     /* the frame as it goes out, of which the last sealed_left bytes have not; NULL: there was none yet */
    uint32_t sealed_left;
    struct gv_silence silence;
    /* The reader's. */
    uint32_t unread; /* of the frame */
};

struct tcp_bulk {
    struct gv_link *link;               /* with a `resume` */
    void (*came)(struct gv_link *link); /* so much of the peer's stream came that it should be told */
    pthread_mutex_t lock;
    pthread_cond_t changed; /* a channel went up or down, a user left, the link died */
    struct tcp_channel channels[TCP_CHANNELS_MAX];
    uint32_t n;                          /* 0: not known yet */
    const struct gv_link_secret *secret; /* NULL: plain */
    bool client;                         /* the client's end */
    struct tcp_part *first, *last;
    bool ended;                  /* no more parts: the link died, and what there was has been let go of */
    uint64_t queued;             /* bytes of our stream so far */
    _Atomic uint64_t handed_out; /* bytes of it that a socket was given, or may have been */
    _Atomic uint64_t peer_has;
    _Atomic uint64_t reading;  /* where the sending thread's system call begins to read the stream, UINT64_MAX: it makes none */
    _Atomic uint64_t received; /* bytes of the peer's stream */
    uint64_t told;             /* of which the peer was told; the reader's */
    uint8_t *opened;           /* the rest of a frame that was opened and not yet handed out: opened_left bytes at opened_at; the reader's */
    uint32_t opened_at, opened_left;
    _Atomic bool sleeping; /* the sending thread is to be woken */
    int wake_fd;
    pthread_t sender, dialler;
    bool has_sender, has_dialler;
    _Atomic uint64_t resent;  /* bytes that went out again */
    _Atomic uint64_t altered; /* frames that were altered on their way */
    pthread_mutex_t attaching;
};

/* 0, or an errno. The client's end dials the channels from a thread of its own. `secret` (NULL: plain) is there until gv_tcp_bulk_end. */
int gv_tcp_bulk_open(struct tcp_bulk *b, struct gv_link *link, void (*came)(struct gv_link *link), uint32_t channels,
                     const struct gv_link_secret *secret, bool client);
/* Ends the threads; the link is dead. */
void gv_tcp_bulk_end(struct tcp_bulk *b);
void gv_tcp_bulk_free(struct tcp_bulk *b);
void gv_tcp_bulk_close_sockets(struct tcp_bulk *b);
void gv_tcp_bulk_died(struct tcp_bulk *b);

int gv_tcp_bulk_part(struct tcp_bulk *b, const void *data, uint64_t size, void (*done)(void *arg), void *arg);
bool gv_tcp_bulk_read(struct tcp_bulk *b, void *data, uint64_t size);
/* A connection for a channel: the first (epoch 0), or one in the place of the last. 0: taken, with its descriptor; -1: refused, or it ended at once, and
 * the descriptor is the caller's still. */
int gv_tcp_bulk_attach(struct tcp_bulk *b, uint32_t channel, int fd, uint32_t epoch);
/* The worker's end goes on in another process: ends what is under way on the channels; where the streams of both stand. */
void gv_tcp_bulk_pause(struct tcp_bulk *b);
void gv_tcp_bulk_cut(struct tcp_bulk *b, const char *why);
void gv_tcp_bulk_save(struct tcp_bulk *b, struct gv_image_out *out);
void gv_tcp_bulk_restore(struct tcp_bulk *b, struct gv_image_in *in);
/* Bytes of the peer's stream that have come. */
uint64_t gv_tcp_bulk_received(struct tcp_bulk *b);
/* The peer has ours up to here. False: it cannot. */
bool gv_tcp_bulk_peer_has(struct tcp_bulk *b, uint64_t position);

#endif
