/* Greets a client and reads its hello, never one byte more: what follows is the worker's. */
#ifndef SERVER_HELLO_READER_H
#define SERVER_HELLO_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "handshake.h"

enum hello_verdict {
    HELLO_MORE,  /* more is to come */
    HELLO_HEAD,  /* more is to come; the head has come just now */
    HELLO_CAME,  /* the hello has come, or a head that is none */
    HELLO_CLOSED /* by the peer, or there is no memory */
};

struct hello_reader {
    uint8_t nonce[GV_NONCE_SIZE]; /* of the greeting */
    uint8_t *hello;               /* malloced; NULL before the head has come */
    uint32_t came, size;          /* of the hello, in bytes; size: as its head says, of one that is none the head's */
    uint8_t head[GV_HEAD_SIZE];
};

/* Sends the greeting, with a fresh nonce at `nonce_at`. False: it cannot be sent. */
bool hello_greet(struct hello_reader *r, int fd, const uint8_t *greeting, uint32_t size, uint32_t nonce_at);
/* Bytes may have come. */
enum hello_verdict hello_read(struct hello_reader *r, int fd);
void hello_free(struct hello_reader *r);

#endif
