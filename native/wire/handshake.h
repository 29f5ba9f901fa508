/* The handshake in front of every connection, before any record flows. Wire version 2. The server's side is Python
 * (gpuvirt/transport/handshake.py), the client's side C (handshake.c); tests hold the two against each other.
 *
 *     server -> client   GREETING   who I am, which wire versions, a nonce
 *     client -> server   HELLO      what I want, which transports I speak, a nonce, a proof that I hold the key
 *     server -> client   STATE      any number, also none: not yet; waiting (with a place in the queue) or parked
 *     server -> client   WELCOME    granted, refused or moved, the transport chosen, a proof that the server holds the key
 *
 * Each message is a head and fields, little-endian:
 *
 *     head    magic[8], u16, u16, u32 size of the whole message (GV_HEAD_SIZE to GV_MESSAGE_MAX)
 *             greeting: the lowest and the highest wire version that the server speaks; else: the message's version and kind
 *     field   u16 tag, u16 size, `size` bytes
 *
 * A field is left out when it is zero or empty. A tag appears once, but for GV_TAG_TRANSPORT. A receiver skips tags that it does not
 * know, unless GV_TAG_CRITICAL is set in them: then it refuses the message. The head and the versions in it stay where they are in every
 * wire version, so that a peer of another version is recognised before anything else is believed. Version 1 reads greetings of 320
 * bytes; a greeting is padded to that size, so that such a client reads the versions too.
 *
 * Proofs cover the transcript, that is every byte of the connection so far, heads and greeting included (transcript.h). Secrets never
 * cross the wire. SESSION, CHECK and ENDED connections prove the token's secret; CHANNEL and RESUME connections prove the session key, which
 * both sides derive from the secret and the transcript of the connection that opened the session.
 *
 * GV_TAG_KEY_EXCHANGE is the ephemeral key exchange of a link that is to be sealed (transport/seal/exchange.h): an offer in a SESSION's hello, the
 * answer in its welcome. A client that offered nothing refuses an answer, one that offered refuses a welcome without it, and a server that seals refuses a
 * hello without an offer: both are under the proofs, so nobody on the way takes them out. In a greeting nothing is offered yet. */
#ifndef GV_HANDSHAKE_H
#define GV_HANDSHAKE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GV_MAGIC "GPUVIRT" /* 8 bytes with its NUL */
#define GV_HEAD_SIZE 16u
#define GV_MESSAGE_MAX 8192u
#define GV_GREETING_LEAST 320u /* bytes */
#define GV_NONCE_SIZE 32
#define GV_PROOF_SIZE 32
#define GV_TOKEN_ID_SIZE 16
#define GV_SECRET_SIZE 32
#define GV_LAUNCH_SIZE 16
#define GV_LEASE_SIZE 16
#define GV_PROCESS_SIZE 16
#define GV_TRANSPORT_NAME 16     /* with its NUL */
#define GV_TRANSPORTS_MAX 8      /* in one hello */
#define GV_BLOB_MAX 512          /* what a transport's server end tells its client end */
#define GV_KEY_EXCHANGE_MAX 2048 /* X25519 takes 32, ML-KEM-768 1184 */
#define GV_DESCRIPTORS_MAX 4     /* beside one welcome */

/* The second word of a head, but for a greeting. */
#define GV_MESSAGE_HELLO 1u
#define GV_MESSAGE_STATE 2u
#define GV_MESSAGE_WELCOME 3u

#define GV_TAG_CRITICAL 0x8000u
#define GV_TAG_NONCE 1u
#define GV_TAG_KEY_EXCHANGE 2u
#define GV_TAG_FLAGS 3u
#define GV_TAG_TEXT 4u
#define GV_TAG_PAD 5u /* zeros */
#define GV_TAG_CONTROL_PORT 16u
#define GV_TAG_BOOT_ID 17u
#define GV_TAG_UNIX_PATH 18u
#define GV_TAG_SERVER_NAME 19u
#define GV_TAG_PURPOSE 32u
#define GV_TAG_TOKEN_ID 33u
#define GV_TAG_SESSION 34u
#define GV_TAG_CHANNEL 35u
#define GV_TAG_EPOCH 36u
#define GV_TAG_GPUS 37u
#define GV_TAG_MEMORY 38u
#define GV_TAG_PID 39u
#define GV_TAG_PROGRAM 40u
#define GV_TAG_USER 41u
#define GV_TAG_HOST 42u
#define GV_TAG_LAUNCH 43u
#define GV_TAG_TRANSPORT 44u /* u32 needs, then the name; hello: one each, the first is preferred; welcome: the one chosen */
#define GV_TAG_PROCESS 45u
#define GV_TAG_EXEC_ID 46u
#define GV_TAG_LEASE 47u
#define GV_TAG_STATE 48u
#define GV_TAG_PLACE 49u
#define GV_TAG_QUEUED 50u
#define GV_TAG_PRIORITY 51u
#define GV_TAG_WAIT 52u
#define GV_TAG_COMPUTE (53u | GV_TAG_CRITICAL) /* a server that does not know shares would give all to all */
#define GV_TAG_STATUS 64u
#define GV_TAG_DESCRIPTORS 65u
#define GV_TAG_CONNECTIONS 66u
#define GV_TAG_BLOB 67u
#define GV_TAG_GRACE 68u
#define GV_TAG_ADDRESS 69u
#define GV_TAG_PROOF 127u /* the last field of a hello and of a welcome, 32 bytes */

struct gv_blob {
    uint16_t size;
    uint8_t data[GV_BLOB_MAX];
};

struct gv_key_exchange {
    uint16_t size;
    uint8_t data[GV_KEY_EXCHANGE_MAX];
};

struct gv_greeting {
    uint16_t version_min, version_max; /* wire versions this server speaks */
    uint8_t nonce[GV_NONCE_SIZE];
    uint32_t flags;
    uint16_t control_port; /* ZeroMQ control channel on the same host, 0: none */
    char boot_id[40];      /* the host's /proc/sys/kernel/random/boot_id: equal means same host */
    char unix_path[108];   /* where the same server listens for clients of this host, "" for nowhere */
    char server_name[64];
    struct gv_key_exchange key_exchange;
};

#define GV_GREETING_SOFTWARE 1u /* flags: the devices are software GPUs */

/* What a hello is for. */
#define GV_HELLO_SESSION 1u
#define GV_HELLO_CHANNEL 2u
#define GV_HELLO_CHECK \
    3u /* a SESSION's proof without a session: is my token good, are there ever so many gpus (0: does not ask)? OK or a refusal, then closed. */
#define GV_HELLO_RESUME 4u /* the main connection of a session that lost it: `epoch` is higher than any before */
#define GV_HELLO_ENDED \
    5u /* from a launcher, with the token's proof: the program of `launch` has ended, its sessions need not wait for it. OK, then closed. */

/* What a transport needs of the connection that its handshake runs over. */
#define GV_NEEDS_SAME_HOST 1u   /* both ends on one host */
#define GV_NEEDS_DESCRIPTORS 2u /* a unix socket, which passes descriptors */
#define GV_NEEDS_NETWORK 4u     /* TCP: further connections can be dialled to the same address */

struct gv_offer {
    uint32_t needs; /* GV_NEEDS_* */
    char name[GV_TRANSPORT_NAME];
};

struct gv_offers {
    uint32_t n;
    struct gv_offer at[GV_TRANSPORTS_MAX];
};

#define GV_HELLO_NO_WAIT 1u /* SESSION: to be refused instead of waiting for devices */
#define GV_HELLO_NOTICES 2u /* SESSION: the client shows notices (commands.toml) to its user */

struct gv_hello {
    uint16_t purpose; /* GV_HELLO_* */
    uint16_t channel; /* which further connection, from 0 (CHANNEL) */
    uint8_t nonce[GV_NONCE_SIZE];
    uint8_t token_id[GV_TOKEN_ID_SIZE]; /* which token (SESSION, CHECK, ENDED) */
    uint64_t session;                   /* CHANNEL, RESUME: the session it belongs to */
    uint32_t epoch;                     /* RESUME, CHANNEL: 0 for the first connection of its kind, higher for each that takes its place */
    uint32_t flags;                     /* GV_HELLO_NO_WAIT, _NOTICES; whoever reads it ignores what it does not know */
    uint32_t pid;
    uint32_t gpus;    /* devices wanted; 0 under a lease: as many as it has */
    uint64_t memory;  /* bytes wanted per device, 0: what there is */
    int32_t priority; /* SESSION, CHECK: higher ones are served first; the token says up to which */
    uint32_t compute; /* SESSION, CHECK: thousandths of each device's compute that are reserved, 0: none */
    uint32_t wait_ms; /* SESSION: how long to wait for devices at most, 0: no limit */
    char program[64];
    char user[32];
    char host[64];
    uint8_t launch[GV_LAUNCH_SIZE]; /* which launch of a program it belongs to, so that its launcher can tell of its end; zeros: none */
    /* SESSION: which process of which host this is, and which of the programs that it has run one after the other (exec); zeros: not said. A session of
     * the same token, the same process and another exec_id has no client any more, and ends. */
    uint8_t process[GV_PROCESS_SIZE], exec_id[GV_PROCESS_SIZE];
    uint8_t lease[GV_LEASE_SIZE]; /* SESSION, CHECK: the lease of the same token to work under; zeros: none is named */
    struct gv_offers transports;  /* SESSION: what the client speaks over this connection */
    struct gv_key_exchange key_exchange;
};

/* The server says that it lives and the client is to wait on: at least one every GV_STATE_EVERY_S. */
#define GV_STATE_EVERY_S 5
#define GV_STATE_WAITING 1u /* for devices: `place` of `queued`, counted from 1; 0: not told */
#define GV_STATE_PARKED 2u  /* the session's memory is being brought back */

struct gv_state {
    uint16_t state; /* GV_STATE_* */
    uint32_t place, queued;
    char text[256];
};

/* WELCOME status */
#define GV_WELCOME_OK 0u
#define GV_WELCOME_VERSION 1u /* no common wire version */
#define GV_WELCOME_DENIED 2u  /* unknown token or wrong proof */
#define GV_WELCOME_BUSY 3u    /* not enough GPUs now, or more than the pool has */
#define GV_WELCOME_FAILED 4u  /* the worker could not be started; text says why */
#define GV_WELCOME_UNKNOWN 5u /* no such session, no such lease */
#define GV_WELCOME_MOVED 6u   /* proved: dial `address` instead, GV_MOVES_MAX times at most */

#define GV_MOVES_MAX 4

struct gv_welcome {
    uint32_t status; /* GV_WELCOME_* */
    uint64_t session;
    struct gv_offer transport; /* SESSION: the one chosen */
    uint16_t descriptors;      /* how many come along with this message (SCM_RIGHTS) */
    uint16_t connections;      /* how many further connections the client may make (CHANNEL) */
    struct gv_blob blob;       /* of the chosen transport; opaque here */
    uint32_t grace_s;          /* how long a session outlives its connection; 0: not at all */
    char text[256];            /* one line for the user when status != OK */
    char address[300];         /* MOVED: "tcp://HOST:PORT" */
    struct gv_key_exchange key_exchange;
};

/* ---- messages ------------------------------------------------------------------------------------------------------ */

enum gv_head_verdict {
    GV_HEAD_GOOD,
    GV_HEAD_FOREIGN, /* no gpuvirt message, or of an impossible size */
    GV_HEAD_OLDER,   /* the peer speaks older wire versions only */
    GV_HEAD_NEWER    /* the peer speaks newer wire versions only */
};

struct gv_head {
    uint16_t first, second; /* greeting: versions; else version and kind */
    uint32_t size;
};

/* Judges the first GV_HEAD_SIZE bytes of a message; `head` is filled in unless they are foreign. */
enum gv_head_verdict gv_greeting_head(const uint8_t raw[GV_HEAD_SIZE], struct gv_head *head);
enum gv_head_verdict gv_message_head(const uint8_t raw[GV_HEAD_SIZE], struct gv_head *head);

/* The message's bytes; returns how many. A hello and a welcome end in a proof of zeros, which transcript.h fills in. */
size_t gv_greeting_encode(const struct gv_greeting *greeting, uint8_t raw[GV_MESSAGE_MAX]);
size_t gv_hello_encode(const struct gv_hello *hello, uint8_t raw[GV_MESSAGE_MAX]);
size_t gv_state_encode(const struct gv_state *state, uint8_t raw[GV_MESSAGE_MAX]);
size_t gv_welcome_encode(const struct gv_welcome *welcome, uint8_t raw[GV_MESSAGE_MAX]);

/* Reads a whole message, head included. False: it is malformed. Texts end in a NUL whatever the peer sent. */
bool gv_greeting_decode(struct gv_greeting *greeting, const uint8_t *raw, size_t size);
bool gv_hello_decode(struct gv_hello *hello, const uint8_t *raw, size_t size);
bool gv_state_decode(struct gv_state *state, const uint8_t *raw, size_t size);
bool gv_welcome_decode(struct gv_welcome *welcome, const uint8_t *raw, size_t size);

#endif
