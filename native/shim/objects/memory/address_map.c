/* The address map: which allocation an address belongs to. Frees, copies, fills and pointer queries are checked against it, without asking the worker. */
#include "objects/objects.h"

#include <stdlib.h>
#include <string.h>

/* Device and host addresses have separate maps: device addresses that the driver chooses may equal host addresses of this process. */
static struct treap device_map, host_map;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t last_buffer_id;

static bool (*find_more)(void);
_Atomic uint64_t range_placed_low, range_placed_span, range_unmapped;

void range_on_unknown(bool (*call)(void)) { find_more = call; }

#define RANGE(n) treap_entry(n, struct range, node)

static struct treap *map_of(enum range_kind kind) { return kind < RANGE_HOST ? &device_map : &host_map; }

/* lock held. Whoever reads both values between the two stores takes an address for one that may be placed, or for one that is not: a range is used only after it was added. */
static void note_placed(uint64_t base, uint64_t size) {
    uint64_t low = range_placed_low, end = low + range_placed_span;
    if (low == end) low = end = base;
    if (base < low) low = base;
    if (base + size > end) end = base + size;
    range_placed_low = low;
    range_placed_span = end - low;
}

static bool unmapped(const struct range *r) { return r->placed && r->kind == RANGE_HOST && !r->mapped; }

int range_add(const struct range *range, uint64_t base) {
    struct range *r = malloc(sizeof *r);
    if (!r) return CUDA_ERROR_OUT_OF_MEMORY;
    *r = *range;
    r->node.key = base;
    r->node.sub = 0;
    struct treap *map = map_of(range->kind);
    pthread_mutex_lock(&lock);
    struct treap_node *same = treap_floor(map, base, 0);
    if (same && same->key == base) {
        /* Two modules of one library may define the same global; the map keeps one entry. */
        pthread_mutex_unlock(&lock);
        free(r);
        return 0;
    }
    r->buffer_id = ++last_buffer_id;
    if (r->placed && r->kind == RANGE_HOST) note_placed(base, r->size);
    if (unmapped(r)) range_unmapped++;
    treap_insert(map, &r->node);
    pthread_mutex_unlock(&lock);
    return 0;
}

bool range_remove(uint64_t base, enum range_kind kind, enum range_kind or_kind, struct range *out) {
    struct treap *map = map_of(kind);
    pthread_mutex_lock(&lock);
    struct treap_node *n = treap_floor(map, base, 0);
    struct range *r = n && n->key == base ? RANGE(n) : NULL;
    if (r && (r->kind == kind || r->kind == or_kind))
        treap_remove(map, n);
    else
        r = NULL;
    if (r && unmapped(r)) range_unmapped--;
    pthread_mutex_unlock(&lock);
    if (!r) return false;
    if (out) *out = *r;
    free(r);
    return true;
}

static bool find_in(const struct treap *map, uint64_t address, struct range *out) {
    pthread_mutex_lock(&lock);
    struct treap_node *n = treap_floor(map, address, UINT64_MAX);
    bool found = n && address - n->key < RANGE(n)->size;
    if (found) *out = *RANGE(n);
    pthread_mutex_unlock(&lock);
    return found;
}

bool range_find_device(uint64_t address, struct range *out) {
    if (find_in(&device_map, address, out)) return true;
    /* An address that the server chose and the program did not ask for by name, such as a global's; a kernel may have stored it. */
    const struct shim_server *server = session_server();
    bool theirs = server->addresses == GV_ADDRESSES_FIXED && address - server->window_base < server->window_size;
    return theirs && find_more && find_more() && find_in(&device_map, address, out);
}

bool range_find_host(uint64_t address, struct range *out) { return find_in(&host_map, address, out); }

bool range_find(uint64_t address, struct range *out) {
    if (range_may_be_placed(address) && range_find_host(address, out)) return true;
    return range_find_device(address, out) || range_find_host(address, out);
}

bool range_next_of(uint32_t ctx, uint64_t from, struct range *out) {
    bool found = false;
    pthread_mutex_lock(&lock);
    for (struct treap_node *n = treap_ceiling(&device_map, from, 0); n && !found; n = treap_next(&device_map, n)) {
        if (RANGE(n)->ctx != ctx) continue;
        *out = *RANGE(n);
        found = true;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

bool range_mapped(uint64_t address, uint64_t size, unsigned rights) {
    uint64_t at = address;
    unsigned each = rights & 2u ? 0xaaaaaaaau : 0x55555555u; /* one bit for each device */
    pthread_mutex_lock(&lock);
    struct treap_node *n = treap_floor(&device_map, address, UINT64_MAX);
    for (; n && RANGE(n)->kind == RANGE_MAPPED && n->key <= at && at - n->key < RANGE(n)->size; n = treap_next(&device_map, n)) {
        if (!(RANGE(n)->flags & each)) break;
        at = n->key + RANGE(n)->size;
        if (at - address >= size) break;
    }
    pthread_mutex_unlock(&lock);
    return at - address >= size;
}

void range_set_rights(uint64_t base, unsigned rights) {
    pthread_mutex_lock(&lock);
    struct treap_node *n = treap_floor(&device_map, base, 0);
    if (n && n->key == base && RANGE(n)->kind == RANGE_MAPPED) RANGE(n)->flags = rights;
    pthread_mutex_unlock(&lock);
}

void range_set_managed(uint64_t base) {
    pthread_mutex_lock(&lock);
    struct treap_node *n = treap_floor(&device_map, base, 0);
    if (n && n->key == base) RANGE(n)->managed = true;
    pthread_mutex_unlock(&lock);
}

void range_set_graph(uint64_t base) {
    pthread_mutex_lock(&lock);
    struct treap_node *n = treap_floor(&device_map, base, 0);
    if (n && n->key == base) RANGE(n)->graph = true;
    pthread_mutex_unlock(&lock);
}

void range_set_pool(uint64_t base, uint64_t pool) {
    pthread_mutex_lock(&lock);
    struct treap_node *n = treap_floor(&device_map, base, 0);
    if (n && n->key == base) RANGE(n)->pool = pool;
    pthread_mutex_unlock(&lock);
}

void range_set_exported(uint64_t base) {
    pthread_mutex_lock(&lock);
    struct treap_node *n = treap_floor(&device_map, base, 0);
    if (n && n->key == base) RANGE(n)->exported = true;
    pthread_mutex_unlock(&lock);
}

void range_set_mapped(uint64_t base, unsigned flags) {
    struct treap *maps[] = {&device_map, &host_map};
    pthread_mutex_lock(&lock);
    for (int i = 0; i < 2; i++) {
        struct treap_node *n = treap_floor(maps[i], base, 0);
        if (!n || n->key != base) continue;
        if (unmapped(RANGE(n))) range_unmapped--;
        RANGE(n)->mapped = true;
        RANGE(n)->flags = flags;
    }
    pthread_mutex_unlock(&lock);
}

void range_set_shadow(uint64_t host, uint64_t device) {
    pthread_mutex_lock(&lock);
    struct treap_node *h = treap_floor(&host_map, host, 0), *d = device ? treap_floor(&device_map, device, 0) : NULL;
    if (h && h->key == host) RANGE(h)->shadow = device;
    if (d && d->key == device) {
        RANGE(d)->shadow = host;
        RANGE(d)->mapped = true;
    }
    pthread_mutex_unlock(&lock);
}

bool range_host_overlaps(uint64_t base, uint64_t size) {
    pthread_mutex_lock(&lock);
    struct treap_node *n = treap_floor(&host_map, base, UINT64_MAX);
    bool overlaps = n && base - n->key < RANGE(n)->size;
    n = treap_ceiling(&host_map, base, 0);
    if (n && n->key - base < size) overlaps = true;
    pthread_mutex_unlock(&lock);
    return overlaps;
}

bool range_set_sync_memops(uint64_t address, bool on) {
    pthread_mutex_lock(&lock);
    struct treap_node *n = treap_floor(&device_map, address, UINT64_MAX);
    bool found = n && address - n->key < RANGE(n)->size;
    if (found) RANGE(n)->sync_memops = on;
    pthread_mutex_unlock(&lock);
    return found;
}
