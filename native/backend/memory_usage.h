/* Bytes in use on each GPU of a server, by each session: a table in a memfd that the daemon makes and every worker maps, so that limits hold
 * across sessions without asking the daemon. A worker can write its own row and nothing else: it maps the table from a descriptor that is open for
 * reading, and its row, which is a page, from one that it closes then. What is in use is the sum of the rows; a row counts for no more than its
 * session's limit, so one that holds nonsense does no more harm than its session may. When a session has ended the daemon clears its row. */
#ifndef GV_MEMORY_USAGE_H
#define GV_MEMORY_USAGE_H

#include <stdint.h>

#define GV_MEMORY_USAGE_MAGIC 0x52474c56u
#define GV_MEMORY_USAGE_VERSION 2
#define GV_MEMORY_USAGE_DEVICES 16
#define GV_MEMORY_USAGE_SLOTS 1024
#define GV_MEMORY_USAGE_PAGE 4096
#define GV_MEMORY_USAGE_BESIDE (2ull << 30) /* bytes that a row may say beyond its limit: what a real GPU's driver takes for a session's context */

struct gv_memory_row { /* its worker's; atomic */
    uint64_t used[GV_MEMORY_USAGE_DEVICES];
    uint64_t wanted[GV_MEMORY_USAGE_DEVICES]; /* announced, and not granted yet: two workers that ask at the same time see each other */
} __attribute__((aligned(GV_MEMORY_USAGE_PAGE)));

struct gv_memory_usage { /* little-endian; all but the rows is the daemon's */
    uint32_t magic, version;
    uint64_t total[GV_MEMORY_USAGE_DEVICES];
    uint64_t limit[GV_MEMORY_USAGE_SLOTS]; /* of one device, for a row; 0: no session has it */
    struct gv_memory_row rows[GV_MEMORY_USAGE_SLOTS];
};

#endif
