/* How the four rings of a shared-memory link lie in their memfd:
 *
 *     0      512-byte struct gv_ring_control of each ring: command, reply, bulk out, bulk in; the rest of the 4096 bytes is zero
 *     4096   the command ring's bytes, then the reply ring's, the bulk out ring's, the bulk in ring's
 *
 *     size = 4096 + command_ring + reply_ring + bulk_out_ring + bulk_in_ring
 *
 * Each ring's size is a power of two, at least 512 KiB and at most 1 GiB. Zeros are the valid start, so the daemon only makes the memory:
 * memfd_create(MFD_CLOEXEC | MFD_ALLOW_SEALING), ftruncate(size), F_ADD_SEALS F_SEAL_SHRINK | F_SEAL_GROW. Both ends check the seals and the size:
 * without the seal a peer could cut the memory short and the other end would die of SIGBUS. */
#ifndef GV_SHM_LAYOUT_H
#define GV_SHM_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../../wire/ring.h"

#define GV_SHM_HEADER 4096u
#define GV_SHM_RING_MIN (2u * GV_RECORD_MAX)
#define GV_SHM_RING_MAX (1u << 30)

enum gv_shm_ring { GV_SHM_COMMAND, GV_SHM_REPLY, GV_SHM_BULK_OUT, GV_SHM_BULK_IN, GV_SHM_RINGS };

/* The transport's blob in a welcome: the four sizes, little-endian. */
#define GV_SHM_BLOB (8u * GV_SHM_RINGS)

/* Bytes of the memfd for rings of these sizes, 0 when a size is not allowed. */
uint64_t gv_shm_size(const uint64_t rings[GV_SHM_RINGS]);
/* Whether the memfd is what is said above; if not, `why` is one line. */
bool gv_shm_sound(int memfd, const uint64_t rings[GV_SHM_RINGS], char *why, size_t why_size);

static inline struct gv_ring_control *gv_shm_control(void *map, enum gv_shm_ring ring) { return (struct gv_ring_control *)map + ring; }

static inline uint8_t *gv_shm_data(void *map, const uint64_t rings[GV_SHM_RINGS], enum gv_shm_ring ring) {
    uint8_t *data = (uint8_t *)map + GV_SHM_HEADER;
    for (int i = 0; i < (int)ring; i++) data += rings[i];
    return data;
}

#endif
