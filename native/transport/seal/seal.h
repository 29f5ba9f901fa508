/* Sealing what a link carries: authenticated encryption (AEAD) of one frame at a time, by keys that both ends derive from the link's secret.
 *
 *     traffic key, nonce base = HKDF-Expand(secret, "gpuvirt traffic" | direction u8 | use u8 | cipher u8 | channel u32 | epoch u32 | generation u32)
 *
 * (little-endian; 32 and 12 bytes). A frame's nonce is the base with the frame's counter (8 bytes, big-endian) added to its end by XOR. */
#ifndef GV_SEAL_H
#define GV_SEAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "../transport.h"

#define GV_SEAL_KEY 32u
#define GV_SEAL_TAG 16u
#define GV_SEAL_AAD_MOST 16u
/* Whether links over tcp are sealed (gpuvirt/transport/tcp.py says the same). */
#ifndef GV_TCP_SEALS
#define GV_TCP_SEALS true
#endif
/* So many counters of a bulk channel are sealed by one key. */
#define GV_SEAL_GENERATION (1u << 20)

/* What both ends of one session's link agreed on in the handshake. */
struct gv_link_secret {
    uint8_t key[GV_SEAL_KEY];
    uint8_t cipher; /* GV_CIPHER_* (crypto_library.h) */
};

enum gv_seal_use {
    GV_SEAL_RECORDS = 1, /* frames of records; channel and epoch 0: the key is the link's for life, and a counter is sealed once */
    GV_SEAL_NOTES = 2,   /* acknowledgements and the like, a key for each epoch */
    GV_SEAL_BULK = 3     /* a key for each channel and epoch, which moves on by itself every GV_SEAL_GENERATION counters, on both ends alike */
};

struct gv_seal; /* one direction's traffic key; for one thread at a time */

/* `client`: this end is the client's. `sending`: to seal what it sends, else to open what comes. NULL with a reason in `why` (a missing library, no
 * memory). Loads the library when it is the first. */
struct gv_seal *gv_seal_new(const struct gv_link_secret *secret, bool client, bool sending, enum gv_seal_use use, uint32_t channel, uint32_t epoch,
                            char why[GV_DEATH_TEXT]);
/* Wipes the key. NULL: nothing. */
void gv_seal_free(struct gv_seal *s);
/* Seals the `n` pieces as one frame. `counter` is never used twice to seal with one key: that would give it away. `out` gets as many bytes as the
 * pieces have together (at most 1 GiB), `tag` what proves them and the `aad_size` bytes at `aad`. out may be the only piece's own memory, and overlaps
 * no piece in another way. False: the library failed. */
bool gv_seal_seal(struct gv_seal *s, uint64_t counter, const void *aad, size_t aad_size, const struct iovec *in, int n, uint8_t *out,
                  uint8_t tag[GV_SEAL_TAG]);
/* Sets up for the frame of this counter while there is time, so that gv_seal_seal or gv_seal_open has less to do once it is there. Nothing is owed: for
 * another frame they set up anew. At most GV_SEAL_AAD_MOST bytes of aad, or nothing is done. */
void gv_seal_prepare(struct gv_seal *s, uint64_t counter, const void *aad, size_t aad_size);
/* Whether it is set up for that one. */
bool gv_seal_is_prepared(const struct gv_seal *s, uint64_t counter, const void *aad, size_t aad_size);
/* False: it was altered, or is not this frame; `out` is zeros then. out == in is allowed. */
bool gv_seal_open(struct gv_seal *s, uint64_t counter, const void *aad, size_t aad_size, const uint8_t *in, size_t size, uint8_t *out,
                  const uint8_t tag[GV_SEAL_TAG]);

#endif
