#include "objects/objects.h"

#include <string.h>
#include <sys/mman.h>

#include "wire/session_limits.h"

/* Bytes of address space reserved for one kind; pages are allocated when they are first written. */
#define REGION_BYTES (256ull << 20)
/* A freed slot is reused only after this many others of its kind have been freed after it. */
#define RESTING_SLOTS 1024

struct object_space object_spaces[OBJECT_KINDS] = {
    [OBJECT_CONTEXT] = {.stride = 1024},       [OBJECT_STREAM] = {.stride = 1024},   [OBJECT_EVENT] = {.stride = 256},
    [OBJECT_MODULE] = {.stride = 256},         [OBJECT_FUNCTION] = {.stride = 256},  [OBJECT_LIBRARY] = {.stride = 4096},
    [OBJECT_KERNEL] = {.stride = 512},         [OBJECT_LINK] = {.stride = 2048},     [OBJECT_PHYSICAL] = {.stride = 128},
    [OBJECT_ARRAY] = {.stride = 256},          [OBJECT_GRAPH] = {.stride = 256},     [OBJECT_GRAPH_NODE] = {.stride = 1024},
    [OBJECT_GRAPH_EXEC] = {.stride = 128},     [OBJECT_RESOURCES] = {.stride = 512}, [OBJECT_GREEN] = {.stride = 512},
    [OBJECT_GREEN_CONTEXT] = {.stride = 1024}, [OBJECT_USER] = {.stride = 64},       [OBJECT_REFERENCE] = {.stride = 256},
};

/* What a server gives one session of each kind; 0: what the region holds. */
static const uint32_t most[OBJECT_KINDS] = {
    [OBJECT_CONTEXT] = GV_CONTEXTS_MAX, [OBJECT_STREAM] = GV_STREAMS_MAX,     [OBJECT_EVENT] = GV_EVENTS_MAX,
    [OBJECT_MODULE] = GV_MODULES_MAX,   [OBJECT_PHYSICAL] = GV_PHYSICALS_MAX, [OBJECT_ARRAY] = GV_ARRAYS_MAX,
};
static uint32_t taken[OBJECT_KINDS];

_Static_assert(sizeof(struct shim_context) <= 1024, "a context fits its slot");
_Static_assert(sizeof(struct shim_stream) <= 1024, "a stream fits its slot");
_Static_assert(sizeof(struct shim_resources) <= 512, "resources fit their slot");
_Static_assert(sizeof(struct shim_green) <= 512, "a green context fits its slot");
_Static_assert(sizeof(struct shim_event) <= 256, "an event fits its slot");
_Static_assert(sizeof(struct shim_module) <= 256, "a module fits its slot");
_Static_assert(sizeof(struct shim_function) <= 256, "a function fits its slot");
_Static_assert(sizeof(struct shim_library) <= 4096, "a library fits its slot");
_Static_assert(sizeof(struct shim_kernel) <= 512, "a kernel fits its slot");

static struct {
    struct object *first, *last;
    uint32_t count;
} resting[OBJECT_KINDS];

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic uint64_t last_id = 15;

uint64_t object_next_id(void) { return atomic_fetch_add_explicit(&last_id, 1, memory_order_relaxed) + 1; }

static struct object *fresh_slot(enum object_kind kind) {
    struct object_space *space = &object_spaces[kind];
    if (!space->base) {
        void *base = mmap(NULL, REGION_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (base == MAP_FAILED) return NULL;
        space->base = base;
    }
    uint64_t used = atomic_load_explicit(&space->used, memory_order_relaxed);
    if (used + space->stride > REGION_BYTES) return NULL;
    atomic_store_explicit(&space->used, used + space->stride, memory_order_release);
    return (struct object *)(space->base + used);
}

void *object_new(enum object_kind kind) {
    pthread_mutex_lock(&lock);
    struct object *o = NULL;
    bool room = !most[kind] || taken[kind] < most[kind];
    if (room && resting[kind].count <= RESTING_SLOTS) o = fresh_slot(kind);
    if (room && !o && resting[kind].first) {
        o = resting[kind].first;
        resting[kind].first = o->next_free;
        if (!resting[kind].first) resting[kind].last = NULL;
        resting[kind].count--;
        memset((char *)o + sizeof *o, 0, object_spaces[kind].stride - sizeof *o);
    }
    if (o) taken[kind]++;
    pthread_mutex_unlock(&lock);
    if (!o) return NULL;
    o->next_free = NULL;
    o->kind = kind;
    o->id = object_next_id();
    return o;
}

void object_publish(void *object) { atomic_store_explicit(&((struct object *)object)->live, 1, memory_order_release); }

bool object_retire(void *object) { return atomic_exchange_explicit(&((struct object *)object)->live, 0, memory_order_acq_rel) == 1; }

void object_free(void *object) {
    struct object *o = object;
    atomic_store_explicit(&o->live, 0, memory_order_release);
    pthread_mutex_lock(&lock);
    o->id = 0;
    o->next_free = NULL;
    if (resting[o->kind].last)
        resting[o->kind].last->next_free = o;
    else
        resting[o->kind].first = o;
    resting[o->kind].last = o;
    resting[o->kind].count++;
    taken[o->kind]--;
    pthread_mutex_unlock(&lock);
}
