/* The shared-memory transport's two ends, without a handshake: for its row in the table, and for tests. */
#ifndef GV_SHM_H
#define GV_SHM_H

#include "../link.h"
#include "shm_layout.h"

/* One end over `fd`, the unix socket, and the rings in `memfd`. NULL with a reason in `why`: both are the caller's still. */
struct gv_link *gv_shm_new(int fd, int memfd, const uint64_t rings[GV_SHM_RINGS], bool client, char why[GV_DEATH_TEXT]);

#endif
