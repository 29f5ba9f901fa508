/* The runtime's query whether the driver beneath it is one it knows. */
#ifndef SHIM_INTEGRITY_H
#define SHIM_INTEGRITY_H

#include <stdint.h>

#include "wire/device_info.h"

/* What the answer depends on, besides the devices. */
struct integrity_query {
    uint32_t driver_version, version;            /* version: as the runtime asks; its last digit says which of three questions it is */
    uint32_t pid, thread;                        /* thread: low 32 bits of pthread_self */
    uint64_t runtime_table, own_table, function; /* addresses: the runtime's table, the query's own, the function that is asked */
    uint64_t time;                               /* as the runtime passed it */
};

/* Writes the 16 bytes that the runtime expects. The devices must be those the program sees, in its order. */
void integrity_answer(const struct integrity_query *query, const struct gv_device_info *const *devices, unsigned n_devices, uint64_t result[2]);

#endif
