/* Which process this is, for its server: a process that has replaced its program (exec) has lost what the program before it had on the server. */
#ifndef GV_OWN_PROCESS_H
#define GV_OWN_PROCESS_H

#include "handshake.h"

/* Fills in hello->process and hello->exec_id; they stay zeros where /proc does not say enough. */
void gv_name_own_process(struct gv_hello *hello);

#endif
