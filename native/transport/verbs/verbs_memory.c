#define _GNU_SOURCE
#include "verbs_memory.h"

#include <stdlib.h>
#include <string.h>

#define ACCESS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ)

void gv_verbs_memory_init(struct verbs_memory *m, const struct verbs_library *library, struct ibv_pd *const *pd, uint32_t n_rails) {
    *m = (struct verbs_memory){.library = library, .pd = pd, .n_rails = n_rails};
    m->unsafe = !library || !library->is_fork_initialized || library->is_fork_initialized() != IBV_FORK_UNNEEDED;
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->unused, NULL);
}

static void unregister(struct verbs_memory *m, struct verbs_region *r) {
    for (uint32_t i = 0; i < m->n_rails; i++)
        if (r->mr[i]) m->library->dereg_mr(r->mr[i]);
    memset(r->mr, 0, sizeof r->mr);
    r->registered = false;
}

void gv_verbs_memory_end(struct verbs_memory *m) {
    for (size_t i = 0; i < m->n; i++) {
        unregister(m, m->regions[i]);
        free(m->regions[i]);
    }
    free(m->regions);
    pthread_mutex_destroy(&m->lock);
    pthread_cond_destroy(&m->unused);
}

/* The number of the first region that ends behind `at`. */
static size_t find(const struct verbs_memory *m, uintptr_t at) {
    size_t low = 0, high = m->n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (m->regions[middle]->high > at)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static bool make_room(struct verbs_memory *m) {
    if (m->n < m->room) return true;
    size_t room = m->room ? 2 * m->room : 16;
    struct verbs_region **regions = realloc(m->regions, room * sizeof(struct verbs_region *));
    if (!regions) return false;
    m->regions = regions;
    m->room = room;
    return true;
}

/* False: there is no room for it. lock held. */
static bool insert(struct verbs_memory *m, struct verbs_region *r) {
    size_t i = find(m, r->low);
    if ((i < m->n && m->regions[i]->low < r->high) || !make_room(m)) return false;
    memmove(m->regions + i + 1, m->regions + i, (m->n++ - i) * sizeof(struct verbs_region *));
    m->regions[i] = r;
    return true;
}

void gv_verbs_memory_offer(struct verbs_memory *m, const void *at, uint64_t size) {
    uintptr_t low = (uintptr_t)at;
    struct verbs_region *r = m->unsafe ? NULL : calloc(1, sizeof *r);
    if (!r) return; /* payloads pass through the link's own memory then */
    *r = (struct verbs_region){.low = low, .high = low + size};
    pthread_mutex_lock(&m->lock);
    bool good = insert(m, r);
    pthread_mutex_unlock(&m->lock);
    if (!good) free(r);
}

/* With all rails, or with none. */
static bool register_it(struct verbs_memory *m, struct verbs_region *r) {
    r->registered = true;
    for (uint32_t i = 0; i < m->n_rails && r->registered; i++) {
        const struct verbs_library *l = m->library;
        if (r->of_device && r->device.fd >= 0)
            r->mr[i] = l->reg_dmabuf_mr ? l->reg_dmabuf_mr(m->pd[i], r->device.offset, r->high - r->low, r->low, r->device.fd, ACCESS) : NULL;
        else
            r->mr[i] = l->reg_mr(m->pd[i], (void *)r->low, r->high - r->low, ACCESS);
        r->registered = r->mr[i] != NULL;
    }
    r->refused = !r->registered;
    if (r->refused) unregister(m, r);
    return r->registered;
}

bool gv_verbs_memory_offer_device(struct verbs_memory *m, const void *at, uint64_t size, const struct gv_device_memory *device) {
    uintptr_t low = (uintptr_t)at;
    struct verbs_region *r = m->unsafe ? NULL : calloc(1, sizeof *r);
    if (!r) return false;
    *r = (struct verbs_region){.low = low, .high = low + size, .of_device = true, .device = *device};
    bool good = register_it(m, r);
    pthread_mutex_lock(&m->lock);
    good = good && insert(m, r);
    if (good) atomic_fetch_add(&m->n_of_devices, 1);
    if (!good) unregister(m, r);
    pthread_mutex_unlock(&m->lock);
    if (!good) free(r);
    return good;
}

void gv_verbs_memory_take_back(struct verbs_memory *m, const void *at) {
    uintptr_t low = (uintptr_t)at;
    pthread_mutex_lock(&m->lock);
    struct verbs_region *r = NULL;
    for (;;) {
        size_t i = find(m, low);
        r = i < m->n && m->regions[i]->low == low ? m->regions[i] : NULL;
        if (!r) break;
        if (r->uses) {
            pthread_cond_wait(&m->unused, &m->lock);
            continue;
        }
        memmove(m->regions + i, m->regions + i + 1, (--m->n - i) * sizeof(struct verbs_region *));
        if (r->of_device) atomic_fetch_sub(&m->n_of_devices, 1);
        unregister(m, r);
        break;
    }
    pthread_mutex_unlock(&m->lock);
    free(r);
}

/* lock held. */
static bool registered(struct verbs_memory *m, struct verbs_region *r) { return r->registered || (!r->refused && register_it(m, r)); }

struct verbs_region *gv_verbs_memory_use(struct verbs_memory *m, const void *at, uint64_t size) {
    uintptr_t low = (uintptr_t)at;
    if (m->unsafe) return NULL;
    pthread_mutex_lock(&m->lock);
    size_t i = find(m, low);
    struct verbs_region *r = i < m->n ? m->regions[i] : NULL;
    if (r && (r->low > low || size > r->high - low || !registered(m, r))) r = NULL;
    if (r) r->uses++;
    pthread_mutex_unlock(&m->lock);
    return r;
}

void gv_verbs_memory_used(struct verbs_memory *m, struct verbs_region *region) {
    pthread_mutex_lock(&m->lock);
    if (--region->uses == 0) pthread_cond_broadcast(&m->unused);
    pthread_mutex_unlock(&m->lock);
}

struct verbs_region *gv_verbs_memory_of_device(struct verbs_memory *m, const void *at, uint64_t size) {
    struct verbs_region *r = at && atomic_load(&m->n_of_devices) ? gv_verbs_memory_use(m, at, size) : NULL;
    if (!r || r->of_device) return r;
    gv_verbs_memory_used(m, r);
    return NULL;
}

bool gv_verbs_memory_move(const struct verbs_region *region, const void *at, void *host, uint64_t size, bool to_device) {
    return region->device.move(region->device.arg, (uintptr_t)at, host, size, to_device);
}
