/* Contexts: the stack of each thread, whether a context may be used, and the list of live ones. How they begin and end is in context_start.c and
 * context_end.c, what a program sets on one in context_state.c. */
#include <stdlib.h>
#include <string.h>

#include "gv_impl.h"
#include "objects/objects.h"

pthread_mutex_t context_lock = PTHREAD_MUTEX_INITIALIZER;
struct shim_context *context_list;

pthread_mutex_t context_life_lock = PTHREAD_MUTEX_INITIALIZER;
static struct shim_context *primaries[GV_MAX_DEVICES];
static _Atomic uint32_t last_id;

/* ---- the calling thread's stack ------------------------------------------------------------------------------------ */

#define STACK_INLINE 16

struct context_stack {
    int depth, capacity;
    struct shim_context **entries;
    struct shim_context *inside[STACK_INLINE];
};

static _Thread_local struct context_stack stack;
static pthread_key_t stack_key;
static pthread_once_t stack_once = PTHREAD_ONCE_INIT;

static void free_stack(void *entries) { free(entries); }

static void make_stack_key(void) { pthread_key_create(&stack_key, free_stack); }

int context_stack_reserve(void) {
    struct context_stack *s = &stack;
    if (!s->entries) {
        s->entries = s->inside;
        s->capacity = STACK_INLINE;
    }
    if (s->depth == s->capacity) {
        size_t capacity = 2 * (size_t)(s->capacity > STACK_INLINE ? s->capacity : STACK_INLINE);
        struct shim_context **more = malloc(capacity * sizeof(*more));
        if (!more) return CUDA_ERROR_OUT_OF_MEMORY;
        memcpy(more, s->entries, (size_t)s->depth * sizeof(*more));
        if (s->entries != s->inside) free(s->entries);
        s->entries = more;
        s->capacity = (int)capacity;
        pthread_once(&stack_once, make_stack_key);
        pthread_setspecific(stack_key, more);
    }
    return 0;
}

void context_push(struct shim_context *c) { stack.entries[stack.depth++] = c; }

void context_pop(void) {
    if (stack.depth) stack.depth--;
}

struct shim_context *context_bound(void) { return stack.depth ? stack.entries[stack.depth - 1] : NULL; }

struct shim_context *context_current(void) {
    struct shim_context *bound = context_bound();
    return bound ? bound->root : NULL;
}

/* ---- checks -------------------------------------------------------------------------------------------------------- */

struct shim_context *context_bound_get(CUcontext handle) {
    struct shim_context *c = object_get(OBJECT_CONTEXT, handle);
    return c ? c : object_get(OBJECT_GREEN_CONTEXT, handle);
}

struct shim_context *context_get(CUcontext handle) {
    struct shim_context *c = context_bound_get(handle);
    return c && context_live(c->root) ? c->root : NULL;
}

/* A handle that a thread may make current: a live context, or a primary one, whose handle stays valid while it is not active. */
static struct shim_context *context_bindable(CUcontext handle) {
    struct shim_context *c = object_slot(OBJECT_CONTEXT, handle);
    return c && (context_live(c) || c->primary) ? c : context_bound_get(handle);
}

int context_status(const struct shim_context *c) { return atomic_load_explicit(&c->status, memory_order_relaxed); }

int context_usable(struct shim_context *c, struct shim_context **out) {
    if (!context_live(c)) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    *out = c;
    int rc = session_broken();
    return rc ? rc : context_status(c);
}

int context_require(struct shim_context **out) {
    struct shim_context *c = context_bound();
    if (!c) return shim_initialized() ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_NOT_INITIALIZED;
    return context_live(c) ? context_usable(c->root, out) : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

int context_check(CUcontext handle, struct shim_context **out) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    struct shim_context *c = context_get(handle);
    return c ? context_usable(c, out) : CUDA_ERROR_INVALID_CONTEXT;
}

int context_check_bound(CUcontext handle, struct shim_context **out) {
    struct shim_context *root;
    *out = context_bound_get(handle);
    return context_check(handle, &root);
}

static void (*failure_call)(uint32_t ctx);

void context_on_failure(void (*call)(uint32_t ctx)) { failure_call = call; }

void context_failed(uint32_t id, int status) {
    if (!status) return;
    pthread_mutex_lock(&context_lock);
    for (struct shim_context *c = context_list; c; c = c->next) {
        int none = 0;
        if (c->id == id && atomic_compare_exchange_strong(&c->status, &none, status) && failure_call) failure_call(id);
    }
    pthread_mutex_unlock(&context_lock);
}

__attribute__((constructor)) static void hear_of_failures(void) { session_on_context_failure(context_failed); }

uint32_t context_id(const struct shim_context *c) { return c->id; }

CUdevice context_device(const struct shim_context *c) { return c->device; }

uint32_t context_server_device(const struct shim_context *c) { return c->server_device; }

/* ---- objects ------------------------------------------------------------------------------------------------------- */

uint32_t context_next_id(void) { return atomic_fetch_add(&last_id, 1) + 1; }

struct shim_context *context_object(CUdevice device) {
    struct shim_context *c = object_new(OBJECT_CONTEXT);
    if (!c) return NULL;
    pthread_mutex_init(&c->lock, NULL);
    c->root = c;
    c->device = device;
    c->api_version = 3020;
    return c;
}

struct shim_context *context_object_of_green(struct shim_context *root) {
    struct shim_context *c = object_new(OBJECT_GREEN_CONTEXT);
    if (!c) return NULL;
    c->root = root;
    c->device = root->device;
    c->server_device = root->server_device;
    c->info = root->info;
    c->id = context_next_id();
    return c;
}

struct shim_context *context_primary_object(CUdevice device) {
    if (!device_info(device)) return NULL;
    if (!primaries[device]) {
        struct shim_context *c = context_object(device);
        if (!c) return NULL;
        c->primary = true;
        primaries[device] = c;
    }
    return primaries[device];
}

struct shim_context *context_primary(CUdevice device) {
    pthread_mutex_lock(&context_life_lock);
    struct shim_context *c = context_primary_object(device);
    pthread_mutex_unlock(&context_life_lock);
    return c;
}

/* ---- current context ----------------------------------------------------------------------------------------------- */

CUresult impl_cuCtxPushCurrent(CUcontext context) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    struct shim_context *c = context_bindable(context);
    int rc = c ? context_stack_reserve() : context ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_VALUE;
    if (!rc) context_push(c);
    return rc;
}

CUresult impl_cuCtxPopCurrent(CUcontext *context) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    struct shim_context *c = context_bound();
    if (!c) return CUDA_ERROR_INVALID_CONTEXT;
    if (context) *context = (CUcontext)c;
    context_pop();
    return CUDA_SUCCESS;
}

CUresult impl_cuCtxSetCurrent(CUcontext context) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!context) {
        context_pop();
        return CUDA_SUCCESS;
    }
    struct shim_context *c = context_bindable(context);
    if (!c) return CUDA_ERROR_INVALID_CONTEXT;
    if (!stack.depth) return impl_cuCtxPushCurrent(context);
    stack.entries[stack.depth - 1] = c;
    return CUDA_SUCCESS;
}

CUresult impl_cuCtxGetCurrent(CUcontext *context) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!context) return CUDA_ERROR_INVALID_VALUE;
    *context = (CUcontext)context_bound();
    return CUDA_SUCCESS;
}
