/* The delayed rings of a shared-memory link: between the memory that the link uses and the memory that the peer knows, a thread for each ring carries
 * the bytes, to the same places. Part of delay.c. */
#ifndef GV_DELAY_RINGS_H
#define GV_DELAY_RINGS_H

#include <stdbool.h>
#include <stdint.h>

#include "delay_line.h"

struct gv_delay_rings;

/* Begins to carry between memfd's rings and those of new memory, *near_memfd. `inner` is shut down when the peer's positions are impossible; wires:
 * outward, inward. NULL with errno; memfd is the caller's in any case. */
struct gv_delay_rings *gv_delay_rings_start(int memfd, const uint64_t sizes[4], const struct gv_link_spec *spec, struct gv_wire *wires, int inner,
                                            int *near_memfd);
/* Whether all that the peer has written so far lies in the near rings. */
bool gv_delay_rings_arrived(const struct gv_delay_rings *rings);
/* Nobody writes to the near rings any more: waits until the peer's hold everything, or until it is late. */
void gv_delay_rings_finish(const struct gv_delay_rings *rings, int64_t until);
/* Ends the threads and frees everything. */
void gv_delay_rings_end(struct gv_delay_rings *rings);

#endif
