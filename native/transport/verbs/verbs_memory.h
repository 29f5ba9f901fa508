/* Memory beside the link's own that its devices may read and write: offered by those above, registered with every rail when a payload first needs it, and
 * until it is taken back. So nothing is registered whose end nobody tells: what the program frees or maps anew without a call of the driver's is never here. */
#ifndef GV_VERBS_MEMORY_H
#define GV_VERBS_MEMORY_H

#include <pthread.h>
#include <stdatomic.h>

#include "verbs_rail.h"

#define GV_VERBS_NO_MOVE "a payload could not be carried to or from the device's memory"

struct verbs_region {
    uintptr_t low, high;
    struct ibv_mr *mr[GV_VERBS_RAILS_MAX];
    uint32_t uses;
    bool registered, refused;       /* refused: not tried again */
    bool of_device;                 /* this process cannot reach it: */
    struct gv_device_memory device; /* who can */
};

struct verbs_memory {
    const struct verbs_library *library;
    struct ibv_pd *const *pd;
    uint32_t n_rails;
    bool unsafe; /* a forked child of this process would lose pages that devices use: nothing is registered */
    pthread_mutex_t lock;
    pthread_cond_t unused;
    struct verbs_region **regions; /* by address; none overlaps another */
    size_t n, room;
    _Atomic uint32_t n_of_devices;
};

void gv_verbs_memory_init(struct verbs_memory *m, const struct verbs_library *library, struct ibv_pd *const *pd, uint32_t n_rails);
/* Before the protection domains go, when no queue uses any of it. */
void gv_verbs_memory_end(struct verbs_memory *m);
void gv_verbs_memory_offer(struct verbs_memory *m, const void *at, uint64_t size);
/* Registers it. False: some rail's device does not take it, or it overlaps what was offered before. */
bool gv_verbs_memory_offer_device(struct verbs_memory *m, const void *at, uint64_t size, const struct gv_device_memory *device);
/* Waits until nobody uses it. */
void gv_verbs_memory_take_back(struct verbs_memory *m, const void *at);
/* What [at, at + size) lies in, registered, until gv_verbs_memory_used; NULL: it was not offered, or no device takes it. */
struct verbs_region *gv_verbs_memory_use(struct verbs_memory *m, const void *at, uint64_t size);
void gv_verbs_memory_used(struct verbs_memory *m, struct verbs_region *region);
/* The same, only where this process cannot reach it. */
struct verbs_region *gv_verbs_memory_of_device(struct verbs_memory *m, const void *at, uint64_t size);
/* Carries bytes to or from such memory. False: it cannot be done. */
bool gv_verbs_memory_move(const struct verbs_region *region, const void *at, void *host, uint64_t size, bool to_device);

#endif
