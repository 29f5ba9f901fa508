/* Bytes in use on each software GPU of a server, and by each session: a table in a memfd that the daemon makes and every worker maps, so that limits hold
 * across sessions without asking the daemon. A worker adds to `used` of the device and to its own slot; after it has ended, for whatever reason, the daemon
 * subtracts what its slot says. */
#ifndef GV_MEMORY_USAGE_H
#define GV_MEMORY_USAGE_H

#include <stdint.h>

#define GV_MEMORY_USAGE_MAGIC 0x52474c56u
#define GV_MEMORY_USAGE_DEVICES 16
#define GV_MEMORY_USAGE_SLOTS 1024

struct gv_memory_usage {     /* all fields little-endian, atomic u64 */
    uint32_t magic, version; /* version 1 */
    uint64_t total[GV_MEMORY_USAGE_DEVICES];
    uint64_t used[GV_MEMORY_USAGE_DEVICES];
    uint64_t slot_used[GV_MEMORY_USAGE_SLOTS][GV_MEMORY_USAGE_DEVICES];
};

#endif
