/* The handshake in front of every connection, before any record flows. Fixed-size little-endian messages, so that a peer of another
 * version is recognised before anything else is believed. The server's side is Python (gpuvirt/transport/handshake.py), the
 * client's side C (handshake.c); tests hold the two against each other.
 *
 *     server -> client   GREETING   who I am, which wire versions, a nonce
 *     client -> server   HELLO      what I want, a nonce, proof that I hold the secret
 *     server -> client   WELCOME    granted or refused and why, proof that the server holds the secret too
 *
 * Secrets never cross the wire. SESSION connections use the token's secret; CHANNEL and RESUME connections (bulk sockets, reconnects) use
 * the session key, which both sides derive:  key = HMAC-SHA256(secret, "gpuvirt session" | server nonce | client nonce | session id).
 * No label is followed by a NUL; the session id counts 8 bytes. */
#ifndef GV_HANDSHAKE_H
#define GV_HANDSHAKE_H

#include <stdint.h>

#define GV_MAGIC "GPUVIRT" /* 8 bytes with its NUL */
#define GV_NONCE_SIZE 32
#define GV_PROOF_SIZE 32
#define GV_TOKEN_ID_SIZE 16
#define GV_SECRET_SIZE 32
#define GV_LAUNCH_SIZE 16

struct gv_greeting { /* 320 bytes */
    char magic[8];
    uint16_t version_min, version_max; /* wire versions this server speaks */
    uint16_t control_port;             /* ZeroMQ control channel on the same host, 0: none */
    uint16_t flags;
    uint8_t nonce[GV_NONCE_SIZE];
    char boot_id[40];    /* the host's /proc/sys/kernel/random/boot_id: equal means same host */
    char unix_path[108]; /* where the same server listens for shared-memory clients, "" for nowhere */
    char server_name[64];
    uint8_t reserved[60];
};

#define GV_GREETING_SOFTWARE 1u /* flags: the devices are software GPUs */

#define GV_HELLO_SESSION 1u
#define GV_HELLO_CHANNEL 2u
#define GV_HELLO_CHECK \
    3u /* a SESSION's proof without a session: is my token good, are there ever so many gpus (0: does not ask)? OK or a refusal, then closed. */

#define GV_HELLO_RESUME 4u /* the main connection of a session that lost it: `epoch` is higher than any before */

#define GV_HELLO_ENDED \
    5u /* from a launcher, with the token's proof: the program of `launch` has ended, its sessions need not wait for it. OK, then closed. */

#define GV_LINK_TCP 1u
#define GV_LINK_SHM 2u

struct gv_hello { /* 512 bytes */
    char magic[8];
    uint16_t version;
    uint16_t kind;                      /* GV_HELLO_* */
    uint16_t link;                      /* GV_LINK_* (SESSION) */
    uint16_t channel;                   /* which bulk channel, from 0 (CHANNEL) */
    uint64_t session;                   /* CHANNEL, RESUME: the session it belongs to */
    uint8_t token_id[GV_TOKEN_ID_SIZE]; /* which token (SESSION) */
    uint8_t nonce[GV_NONCE_SIZE];
    uint32_t pid;
    uint32_t gpus;   /* devices wanted */
    uint64_t memory; /* bytes wanted per device, 0: what there is */
    uint32_t epoch;  /* RESUME, CHANNEL: 0 for the first connection of its kind, higher for each that takes its place */
    uint32_t flags;  /* GV_HELLO_NO_WAIT */
    char program[64];
    char user[32];
    char host[64];
    uint8_t launch[GV_LAUNCH_SIZE]; /* which launch of a program it belongs to, so that its launcher can tell of its end; zeros: none */
    uint8_t reserved[208];
    uint8_t proof[GV_PROOF_SIZE]; /* HMAC-SHA256(secret, "gpuvirt client" | server nonce | all of hello before this field) */
};

#define GV_HELLO_NO_WAIT 1u

/* WELCOME status */
#define GV_WELCOME_OK 0u
#define GV_WELCOME_VERSION 1u /* no common wire version */
#define GV_WELCOME_DENIED 2u  /* unknown token or wrong proof */
#define GV_WELCOME_BUSY 3u    /* not enough GPUs now (with GV_HELLO_NO_WAIT), or more than the pool has */
#define GV_WELCOME_FAILED 4u  /* the worker could not be started; text says why */
#define GV_WELCOME_UNKNOWN 5u /* no such session */

struct gv_welcome { /* 512 bytes */
    char magic[8];
    uint16_t version;
    uint16_t channels; /* bulk channels the client may open (tcp) */
    uint32_t status;   /* GV_WELCOME_* */
    uint64_t session;
    uint64_t command_ring; /* shm: bytes of each ring, powers of two; the memfd arrives with this message (SCM_RIGHTS) */
    uint64_t reply_ring;
    uint64_t bulk_out_ring; /* client to worker */
    uint64_t bulk_in_ring;  /* worker to client */
    uint32_t grace_s;       /* how long a session outlives its connection; 0: not at all */
    uint32_t reserved0;
    char text[256]; /* one line for the user when status != OK */
    uint8_t reserved[160];
    uint8_t proof
        [GV_PROOF_SIZE]; /* HMAC-SHA256(secret, "gpuvirt server" | client nonce | server nonce | all of welcome before this field); zero when refused */
};

_Static_assert(sizeof(struct gv_greeting) == 320, "greeting is 320 bytes on the wire");
_Static_assert(sizeof(struct gv_hello) == 512, "hello is 512 bytes on the wire");
_Static_assert(sizeof(struct gv_welcome) == 512, "welcome is 512 bytes on the wire");

#endif
