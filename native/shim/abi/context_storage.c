/* The table is small and guarded by a lock; look-ups are answered by a cache that each thread keeps, which is good as long as nothing was put or deleted anywhere. */
#include "abi/context_storage.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#define BUCKETS 64u
#define CACHED 16u

struct entry {
    CUcontext ctx;
    void *key, *value;
    storage_destructor destructor;
    struct entry *next;
};

struct cached {
    uint64_t generation; /* 0: empty */
    CUcontext ctx;
    void *key, *value;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct entry *buckets[BUCKETS];
static _Atomic uint64_t generation = 1; /* raised by every change */
static _Thread_local struct cached cache[CACHED];

static unsigned hash(CUcontext ctx, const void *key) {
    uint64_t mixed = ((uint64_t)(uintptr_t)ctx ^ ((uint64_t)(uintptr_t)key << 1u)) * 0x9e3779b97f4a7c15ull;
    return (unsigned)(mixed >> 32u);
}

/* The place that points to the entry, or to NULL (locked). */
static struct entry **find(CUcontext ctx, const void *key) {
    struct entry **at = &buckets[hash(ctx, key) % BUCKETS];
    while (*at && ((*at)->ctx != ctx || (*at)->key != key)) at = &(*at)->next;
    return at;
}

int storage_put(CUcontext ctx, void *key, void *value, storage_destructor destructor) {
    int rc = 0;
    pthread_mutex_lock(&lock);
    struct entry **at = find(ctx, key);
    if (!*at) *at = calloc(1, sizeof **at);
    if (*at) {
        struct entry *next = (*at)->next;
        **at = (struct entry){ctx, key, value, destructor, next};
        atomic_fetch_add(&generation, 1);
    } else {
        rc = CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_mutex_unlock(&lock);
    return rc;
}

int storage_delete(CUcontext ctx, void *key) {
    pthread_mutex_lock(&lock);
    struct entry **at = find(ctx, key), *gone = *at;
    if (gone) {
        *at = gone->next;
        atomic_fetch_add(&generation, 1);
    }
    pthread_mutex_unlock(&lock);
    free(gone);
    return gone ? 0 : CUDA_ERROR_INVALID_HANDLE;
}

int storage_get(CUcontext ctx, void *key, void **value) {
    struct cached *c = &cache[hash(ctx, key) % CACHED];
    uint64_t current = atomic_load_explicit(&generation, memory_order_acquire);
    if (c->generation == current && c->ctx == ctx && c->key == key) {
        *value = c->value;
        return 0;
    }
    pthread_mutex_lock(&lock);
    struct entry *found = *find(ctx, key);
    if (found) *c = (struct cached){atomic_load(&generation), ctx, key, found->value};
    pthread_mutex_unlock(&lock);
    *value = found ? c->value : NULL;
    return found ? 0 : CUDA_ERROR_INVALID_HANDLE;
}

void storage_drop(CUcontext ctx) {
    struct entry *gone = NULL;
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < BUCKETS; i++) {
        struct entry **at = &buckets[i];
        while (*at) {
            struct entry *e = *at;
            if (e->ctx != ctx) {
                at = &e->next;
                continue;
            }
            *at = e->next;
            e->next = gone;
            gone = e;
        }
    }
    atomic_fetch_add(&generation, 1);
    pthread_mutex_unlock(&lock);
    /* A destructor may come back here, so it is called without the lock. */
    while (gone) {
        struct entry *next = gone->next;
        if (gone->destructor) gone->destructor(gone->ctx, gone->key, gone->value);
        free(gone);
        gone = next;
    }
}
