/* The delayed rings of a shared-memory link: between the memory that the link uses and the memory that the peer knows, a thread for each ring carries
 * the bytes, to the same places. Part of delay.c. */
#ifndef GV_DELAY_RINGS_H
#define GV_DELAY_RINGS_H

#include <stdbool.h>
#include <stdint.h>

#include "delay_line.h"

struct gv_delay_rings;

/* Begins to carry between memfd's rings and those of new memory, *near_memfd, for whoever begins it and for the sockets that join. wires: outward,
 * inward. NULL with errno; memfd is the caller's in any case. */
struct gv_delay_rings *gv_delay_rings_start(int memfd, const uint64_t sizes[4], const struct gv_link_spec *spec, struct gv_wire *wires,
                                            int *near_memfd);
/* A socket of the link's, at the delay's end: it is shut down when the peer's positions are impossible. */
void gv_delay_rings_join(struct gv_delay_rings *rings, int inner);
/* One that joined leaves, or who began it (-1). The last one ends the threads and frees everything. */
void gv_delay_rings_leave(struct gv_delay_rings *rings, int inner);
/* Whether all that the peer has written so far lies in the near rings. */
bool gv_delay_rings_arrived(const struct gv_delay_rings *rings);
/* Nobody writes to the near rings any more: waits until the peer's hold everything, or until it is late. */
void gv_delay_rings_finish(const struct gv_delay_rings *rings, int64_t until);

#endif
