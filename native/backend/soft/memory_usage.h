/* Memory used on each software GPU of a pool, in a memfd that the daemon makes and every worker of the pool maps: limits hold across sessions
 * without asking the daemon. A worker adds to `used` of the device and to its own slot; when it is gone, however it died, the daemon takes back what the slot says. */
#ifndef GV_LEDGER_H
#define GV_LEDGER_H

#include <stdint.h>

#define GV_LEDGER_MAGIC 0x52474c56u
#define GV_LEDGER_DEVICES 16
#define GV_LEDGER_SLOTS 1024

struct gv_ledger {           /* all fields little-endian, atomic u64 */
    uint32_t magic, version; /* version 1 */
    uint64_t total[GV_LEDGER_DEVICES];
    uint64_t used[GV_LEDGER_DEVICES];
    uint64_t slot_used[GV_LEDGER_SLOTS][GV_LEDGER_DEVICES];
};

#endif
