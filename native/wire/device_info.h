/* One GPU as the client sees it: all that cuDevice* answers locally. Sent unchanged inside the reply to ATTACH. */
#ifndef GV_DEVICE_INFO_H
#define GV_DEVICE_INFO_H

#include <stdint.h>

#define GV_MAX_DEVICES 16
#define GV_MAX_ATTRIBUTES 192 /* CUdevice_attribute values below this */

struct gv_device_info {
    char name[256];
    uint8_t uuid[16];
    uint64_t total_memory; /* bytes this session may use on this device */
    uint64_t chunk;        /* granularity of credit, bytes */
    uint32_t flags;        /* GV_DEVICE_* */
    uint32_t reserved;
    int32_t attributes[GV_MAX_ATTRIBUTES];
    uint8_t has_attribute[GV_MAX_ATTRIBUTES]; /* 0: this driver does not know that attribute */
};

/* CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR */
enum { GV_ATTRIBUTE_CAPABILITY_MAJOR = 75, GV_ATTRIBUTE_CAPABILITY_MINOR = 76 };

/* Compute capability * 10. */
static inline int gv_device_capability(const struct gv_device_info *info) {
    return info->attributes[GV_ATTRIBUTE_CAPABILITY_MAJOR] * 10 + info->attributes[GV_ATTRIBUTE_CAPABILITY_MINOR];
}

#define GV_DEVICE_WANTS_PTX 1u /* choose PTX from a fatbin even beside matching SASS (software GPU) */
#define GV_DEVICE_SOFTWARE 2u

/* Sent by a worker in answer to ATTACH. */
#define GV_ADDRESSES_FIXED 1u /* the client places allocations inside the agreed window, from credit */
#define GV_ADDRESSES_REPLY 2u /* allocation is a waiting call, the worker answers with the address */

/* How a device's multiprocessors are grouped, in the driver's own form: `groups` has for each pair of multiprocessors the number of its group (GPC), in ascending order,
 * `order` the same numbers in another order. So many pairs at most: today's largest device has 80. */
#define GV_PROCESSOR_GROUPS_MAX 512u

#endif
