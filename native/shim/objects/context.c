/* Contexts: primary and created ones, the stack of each thread, limits and flags. Everything is local but a context's birth and death, which are told one-way. */
#include <stdlib.h>
#include <string.h>

#include "gv_client.h"
#include "gv_impl.h"
#include "objects/objects.h"

pthread_mutex_t context_lock = PTHREAD_MUTEX_INITIALIZER;
struct shim_context *context_list;

/* Births and deaths one after the other; held while a dying context is drained. */
static pthread_mutex_t life_lock = PTHREAD_MUTEX_INITIALIZER;
static struct shim_context *primaries[GV_MAX_DEVICES];
static _Atomic uint32_t last_context_id;
static void (*_Atomic on_end)(CUcontext context);

void context_on_end(void (*call)(CUcontext context)) { atomic_store(&on_end, call); }

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

static int stack_push(struct shim_context *c) {
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
    s->entries[s->depth++] = c;
    return 0;
}

struct shim_context *context_current(void) { return stack.depth ? stack.entries[stack.depth - 1] : NULL; }

static bool context_live(const struct shim_context *c) { return atomic_load_explicit(&c->object.live, memory_order_acquire); }

/* ---- checks -------------------------------------------------------------------------------------------------------- */

struct shim_context *context_get(CUcontext handle) { return object_get(OBJECT_CONTEXT, handle); }

/* A handle that a thread may make current: a live context, or a primary one, which keeps its handle while it is not alive. */
static struct shim_context *context_bindable(CUcontext handle) {
    struct shim_context *c = object_slot(OBJECT_CONTEXT, handle);
    return c && (context_live(c) || c->primary) ? c : NULL;
}

int context_status(const struct shim_context *c) { return atomic_load_explicit(&c->status, memory_order_relaxed); }

static int usable(struct shim_context *c, struct shim_context **out) {
    if (!context_live(c)) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    *out = c;
    int rc = session_broken();
    return rc ? rc : context_status(c);
}

int context_require(struct shim_context **out) {
    struct shim_context *c = context_current();
    if (!c) return shim_initialized() ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_NOT_INITIALIZED;
    return usable(c, out);
}

int context_check(CUcontext handle, struct shim_context **out) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    struct shim_context *c = context_get(handle);
    return c ? usable(c, out) : CUDA_ERROR_INVALID_CONTEXT;
}

void context_failed(uint32_t id, int status) {
    if (!status) return;
    pthread_mutex_lock(&context_lock);
    for (struct shim_context *c = context_list; c; c = c->next) {
        int none = 0;
        if (c->id == id) atomic_compare_exchange_strong(&c->status, &none, status);
    }
    pthread_mutex_unlock(&context_lock);
}

__attribute__((constructor)) static void hear_of_failures(void) { session_on_context_failure(context_failed); }

uint32_t context_id(const struct shim_context *c) { return c->id; }

CUdevice context_device(const struct shim_context *c) { return c->device; }

uint32_t context_server_device(const struct shim_context *c) { return c->server_device; }

/* ---- life ---------------------------------------------------------------------------------------------------------- */

static void default_limits(struct shim_context *c) {
    c->limits[CU_LIMIT_STACK_SIZE] = 1024;
    c->limits[CU_LIMIT_PRINTF_FIFO_SIZE] = 1 << 20;
    c->limits[CU_LIMIT_MALLOC_HEAP_SIZE] = 8 << 20;
    c->limits[CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH] = 2;
    c->limits[CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT] = 2048;
    c->limits[CU_LIMIT_MAX_L2_FETCH_GRANULARITY] = 128;
    c->limits[CU_LIMIT_PERSISTING_L2_CACHE_SIZE] = 0;
}

/* Brings a context to life (life_lock held). */
static int context_start(struct shim_context *c) {
    c->id = atomic_fetch_add(&last_context_id, 1) + 1;
    c->info = device_info(c->device);
    c->server_device = device_server_index(c->device);
    atomic_store(&c->status, 0);
    c->peers = 0;
    c->cache_config = CU_FUNC_CACHE_PREFER_NONE;
    c->shared_config = CU_SHARED_MEM_CONFIG_DEFAULT_BANK_SIZE;
    default_limits(c);
    struct gv_cmd_context_create create = {.device = c->server_device, .flags = c->flags, .primary = c->primary};
    if (!post_context_create(c->id, 0, &create)) return post_refused();
    int rc = stream_new(c, STREAM_LEGACY, 0, 0, &c->legacy);
    if (rc) {
        post_context_destroy(c->id, 0, &(struct gv_cmd_context_destroy){0});
        return rc;
    }
    object_publish(c->legacy);
    pthread_mutex_lock(&context_lock);
    c->next = context_list;
    context_list = c;
    pthread_mutex_unlock(&context_lock);
    object_publish(c);
    return 0;
}

/* Ends a context: waits for its work, then gives everything back (life_lock held). */
static void context_end(struct shim_context *c) {
    if (!object_retire(c)) return;
    void (*ending)(CUcontext) = atomic_load(&on_end);
    if (ending) ending((CUcontext)c);
    stream_drain_context(c);
    library_context_gone(c);
    memory_context_gone(c);
    stream_drop_all(c);
    pthread_mutex_lock(&context_lock);
    for (struct shim_context **at = &context_list; *at; at = &(*at)->next) {
        if (*at == c) {
            *at = c->next;
            break;
        }
    }
    pthread_mutex_unlock(&context_lock);
    post_context_destroy(c->id, 0, &(struct gv_cmd_context_destroy){0});
    c->legacy = NULL;
}

static struct shim_context *context_object(CUdevice device) {
    struct shim_context *c = object_new(OBJECT_CONTEXT);
    if (!c) return NULL;
    pthread_mutex_init(&c->lock, NULL);
    c->device = device;
    c->api_version = 3020;
    return c;
}

/* The object of a primary context, alive or not; NULL for a bad ordinal (life_lock held). */
static struct shim_context *primary_object(CUdevice device) {
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
    pthread_mutex_lock(&life_lock);
    struct shim_context *c = primary_object(device);
    pthread_mutex_unlock(&life_lock);
    return c;
}

int context_any(struct shim_context **out) {
    struct shim_context *c = context_current();
    if (c) return usable(c, out);
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    pthread_mutex_lock(&life_lock);
    int rc = CUDA_ERROR_INVALID_CONTEXT;
    for (int i = 0; i < device_count() && rc; i++) {
        if (primaries[i] && context_live(primaries[i])) rc = usable(primaries[i], out);
    }
    /* A program whose first call is a launch asks for its kernel before it has any context: the first device's primary one begins early, and is there
     * when the runtime retains it. */
    struct shim_context *first = rc == CUDA_ERROR_INVALID_CONTEXT ? primary_object(0) : NULL;
    if (first && !context_live(first)) {
        rc = session_broken();
        if (!rc) rc = context_start(first);
        if (!rc) rc = usable(first, out);
    }
    pthread_mutex_unlock(&life_lock);
    return rc;
}

/* ---- primary contexts ---------------------------------------------------------------------------------------------- */

static int check_flags(unsigned flags) {
    if (flags & ~(unsigned)CU_CTX_FLAGS_MASK) return CUDA_ERROR_INVALID_VALUE;
    unsigned schedule = flags & CU_CTX_SCHED_MASK;
    return schedule == 0 || schedule == CU_CTX_SCHED_SPIN || schedule == CU_CTX_SCHED_YIELD || schedule == CU_CTX_SCHED_BLOCKING_SYNC
               ? 0
               : CUDA_ERROR_INVALID_VALUE;
}

CUresult impl_cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!context) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&life_lock);
    struct shim_context *c = primary_object(device);
    int rc = c ? session_broken() : CUDA_ERROR_INVALID_DEVICE;
    if (!rc && !context_live(c)) rc = context_start(c);
    if (!rc) {
        c->retained++;
        *context = (CUcontext)c;
    }
    pthread_mutex_unlock(&life_lock);
    return rc;
}

CUresult impl_cuDevicePrimaryCtxRelease(CUdevice device) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    pthread_mutex_lock(&life_lock);
    struct shim_context *c = primary_object(device);
    int rc = !c ? CUDA_ERROR_INVALID_DEVICE : !c->retained ? CUDA_ERROR_INVALID_CONTEXT : 0;
    if (!rc && --c->retained == 0) context_end(c);
    pthread_mutex_unlock(&life_lock);
    return rc;
}

CUresult impl_cuDevicePrimaryCtxReset(CUdevice device) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    pthread_mutex_lock(&life_lock);
    struct shim_context *c = primary_object(device);
    if (c) {
        context_end(c);
        c->retained = 0;
        c->flags = 0;
    }
    pthread_mutex_unlock(&life_lock);
    return c ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult impl_cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned int flags) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    if (check_flags(flags)) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&life_lock);
    struct shim_context *c = primary_object(device);
    if (c) c->flags = flags;
    pthread_mutex_unlock(&life_lock);
    return c ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult impl_cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *active) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!flags || !active) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&life_lock);
    struct shim_context *c = primary_object(device);
    if (c) {
        *flags = c->flags;
        *active = context_live(c);
    }
    pthread_mutex_unlock(&life_lock);
    return c ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

/* ---- created contexts ---------------------------------------------------------------------------------------------- */

static int create(CUcontext *context, unsigned flags, CUdevice device, unsigned api_version) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!context || check_flags(flags)) return CUDA_ERROR_INVALID_VALUE;
    if (!device_info(device)) return CUDA_ERROR_INVALID_DEVICE;
    int rc = session_broken();
    if (rc) return rc;
    struct shim_context *c = context_object(device);
    if (!c) return CUDA_ERROR_OUT_OF_MEMORY;
    c->flags = flags;
    c->api_version = api_version;
    pthread_mutex_lock(&life_lock);
    rc = context_start(c);
    if (!rc) {
        rc = stack_push(c);
        if (rc) context_end(c);
    }
    pthread_mutex_unlock(&life_lock);
    if (rc)
        object_free(c);
    else
        *context = (CUcontext)c;
    return rc;
}

CUresult impl_cuCtxCreate(CUcontext *context, unsigned int flags, CUdevice device) { return create(context, flags, device, 3010); }

CUresult impl_cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device) { return create(context, flags, device, 3020); }

CUresult impl_cuCtxCreate_v3(CUcontext *context, CUexecAffinityParam *params, int n_params, unsigned int flags, CUdevice device) {
    if (n_params < 0 || (n_params > 0 && !params)) return CUDA_ERROR_INVALID_VALUE;
    if (n_params > 0) {
        shim_log_once("cuCtxCreate_v3: execution affinity is not supported");
        return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
    }
    return create(context, flags, device, 3020);
}

CUresult impl_cuCtxCreate_v4(CUcontext *context, CUctxCreateParams *params, unsigned int flags, CUdevice device) {
    if (params && params->numExecAffinityParams) {
        shim_log_once("cuCtxCreate_v4: execution affinity is not supported");
        return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
    }
    if (params && params->cigParams) {
        shim_log_once("cuCtxCreate_v4: CUDA in graphics is not supported");
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    return create(context, flags, device, 3020);
}

CUresult impl_cuCtxDestroy(CUcontext context) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    struct shim_context *c = context_get(context);
    if (!c || c->primary) return CUDA_ERROR_INVALID_CONTEXT;
    pthread_mutex_lock(&life_lock);
    bool live = context_live(c);
    if (live) context_end(c);
    pthread_mutex_unlock(&life_lock);
    if (!live) return CUDA_ERROR_INVALID_CONTEXT;
    if (context_current() == c) stack.depth--;
    object_free(c);
    return CUDA_SUCCESS;
}

/* Attach and detach only count, as in the driver; one attach is the creation itself. */
CUresult impl_cuCtxAttach(CUcontext *context, unsigned int flags) {
    struct shim_context *c;
    if (flags || !context) return CUDA_ERROR_INVALID_VALUE;
    int rc = context_require(&c);
    if (rc) return rc;
    pthread_mutex_lock(&life_lock);
    c->retained++;
    pthread_mutex_unlock(&life_lock);
    *context = (CUcontext)c;
    return CUDA_SUCCESS;
}

CUresult impl_cuCtxDetach(CUcontext context) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    struct shim_context *c = context_get(context);
    if (!c || c != context_current()) return CUDA_ERROR_INVALID_CONTEXT;
    if (c->primary) return impl_cuDevicePrimaryCtxRelease(c->device);
    pthread_mutex_lock(&life_lock);
    bool last = c->retained == 0;
    if (!last) c->retained--;
    pthread_mutex_unlock(&life_lock);
    return last ? impl_cuCtxDestroy(context) : CUDA_SUCCESS;
}

/* ---- current context ----------------------------------------------------------------------------------------------- */

CUresult impl_cuCtxPushCurrent(CUcontext context) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    struct shim_context *c = context_bindable(context);
    return c ? stack_push(c) : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult impl_cuCtxPopCurrent(CUcontext *context) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    struct shim_context *c = context_current();
    if (!c) return CUDA_ERROR_INVALID_CONTEXT;
    if (context) *context = (CUcontext)c;
    stack.depth--;
    return CUDA_SUCCESS;
}

CUresult impl_cuCtxSetCurrent(CUcontext context) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!context) {
        if (stack.depth) stack.depth--;
        return CUDA_SUCCESS;
    }
    struct shim_context *c = context_bindable(context);
    if (!c) return CUDA_ERROR_INVALID_CONTEXT;
    if (!stack.depth) return stack_push(c);
    stack.entries[stack.depth - 1] = c;
    return CUDA_SUCCESS;
}

CUresult impl_cuCtxGetCurrent(CUcontext *context) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!context) return CUDA_ERROR_INVALID_VALUE;
    *context = (CUcontext)context_current();
    return CUDA_SUCCESS;
}
