/* Ends contexts: waits for their work, then releases their modules, memory and streams. */
#include "gv_client.h"
#include "gv_impl.h"
#include "objects/graph/graph.h"
#include "objects/memory/host_mapping.h"

static void (*_Atomic on_end)(CUcontext context);

void context_on_end(void (*call)(CUcontext context)) { atomic_store(&on_end, call); }

/* context_life_lock held. */
static void end(struct shim_context *c) {
    if (!object_retire(c)) return;
    for (struct shim_context *green = c->greens, *next; green; green = next) {
        next = green->next;
        object_retire(green->green);
        object_retire(green);
        object_free(green->green);
        object_free(green);
    }
    c->greens = NULL;
    void (*ending)(CUcontext) = atomic_load(&on_end);
    if (ending) ending((CUcontext)c);
    stream_drain_context(c);
    capture_context_gone(c);
    library_context_gone(c);
    host_context_gone(c);
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
    c->legacy = c->pages = c->joined = c->gate = c->beside_legacy = NULL;
    if (c->between) object_free(c->between);
    c->between = NULL;
}

CUresult impl_cuDevicePrimaryCtxRelease(CUdevice device) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    pthread_mutex_lock(&context_life_lock);
    struct shim_context *c = context_primary_object(device);
    int rc = !c ? CUDA_ERROR_INVALID_DEVICE : !c->retained ? CUDA_ERROR_INVALID_CONTEXT : 0;
    if (!rc && --c->retained == 0) end(c);
    pthread_mutex_unlock(&context_life_lock);
    return rc;
}

CUresult impl_cuDevicePrimaryCtxReset(CUdevice device) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    pthread_mutex_lock(&context_life_lock);
    struct shim_context *c = context_primary_object(device);
    if (c) {
        end(c);
        c->retained = 0;
        c->flags = 0;
    }
    pthread_mutex_unlock(&context_life_lock);
    return c ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult impl_cuCtxDestroy(CUcontext context) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!context) return CUDA_ERROR_INVALID_VALUE;
    struct shim_context *c = context_get(context);
    if (!c || c->primary) return CUDA_ERROR_INVALID_CONTEXT;
    pthread_mutex_lock(&context_life_lock);
    bool live = context_live(c);
    if (live) end(c);
    pthread_mutex_unlock(&context_life_lock);
    if (!live) return CUDA_ERROR_INVALID_CONTEXT;
    if (context_current() == c) context_pop();
    object_free(c);
    return CUDA_SUCCESS;
}

CUresult impl_cuCtxDetach(CUcontext context) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    struct shim_context *c = context_get(context);
    if (!c || c != context_current()) return CUDA_ERROR_INVALID_CONTEXT;
    if (c->primary) return impl_cuDevicePrimaryCtxRelease(c->device);
    pthread_mutex_lock(&context_life_lock);
    bool last = c->retained == 0;
    if (!last) c->retained--;
    pthread_mutex_unlock(&context_life_lock);
    return last ? impl_cuCtxDestroy(context) : CUDA_SUCCESS;
}
