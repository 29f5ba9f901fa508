/* delay(rtt=...,rate=...,...): a link as from afar. Whoever dials gets one end of a local socket pair; a thread of its own carries the bytes between
 * the other end and the real socket, each way half of the rtt late and at the rate's pace.
 *
 * Like a network, a line never loses, doubles or reorders bytes; ends of file and half-closes arrive as late as bytes do. When the real socket is cut
 * (a reset, a timeout), what is in the line both ways is lost and the near end is closed half of the rtt later. A near end that is closed has what it
 * sent delivered first. A child that forks off has none of the sockets. */
#ifndef GV_DELAY_H
#define GV_DELAY_H

#include <stdint.h>

#include "../link_spec.h"

/* The descriptor to use in the place of the connected socket `fd` (stream; TCP or unix), whose owner the delay becomes: non-blocking, close-on-exec.
 * Waits for one rtt first, as connecting from afar would have; nothing arrives before another rtt is over, for the peer would have to hear of the
 * connection before it can speak. Descriptors that the peer passes (SCM_RIGHTS) come through. `fd` itself when spec is not delayed. -1 with errno,
 * and fd is the caller's still. */
int gv_delay_wrap(int fd, const struct gv_link_spec *spec);

/* For a link of shared memory whose handshake ran over the wrapped socket `near`: memory of the same layout (shm_layout.h) to use in the place of
 * `memfd`, which is closed. Threads copy the rings' bytes between the two, until the caller and all sockets have left *carried (delay_rings.h). `memfd`
 * itself, and *carried NULL, when spec is not delayed. -1 with errno, and memfd is the caller's still. */
struct gv_delay_rings;
int gv_delay_shm(int near, int memfd, const uint64_t rings[4], const struct gv_link_spec *spec, struct gv_delay_rings **carried);
/* The link's connection was made again: the wrapped socket `near` belongs to its rings from now on. */
void gv_delay_shm_again(int near, struct gv_delay_rings *carried);

/* After near ends were closed: waits until what they had sent has been delivered, within limits. At once when there is nothing to wait for. */
void gv_delay_drain(void);

#endif
