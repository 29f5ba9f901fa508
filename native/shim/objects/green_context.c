/* Green contexts: streams and resources of their own on a primary context.
 *
 * Memory, modules and events are the primary context's, which a green context retains, and so are its streams to the worker. Kept here is what a program can see of the
 * difference: its resources, which streams are its own, and the CUcontext that can be made current. Its kernels may use the whole device. */
#include <string.h>

#include "gv_client.h"
#include "gv_impl.h"
#include "objects/graph/graph.h"

/* The live object behind a handle: 0, or the call's error. The runtime keeps the CUcontext alone, and gives that: it is as good. */
static int find(CUgreenCtx handle, struct shim_green **out) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    const struct shim_context *c = object_get(OBJECT_GREEN_CONTEXT, handle);
    *out = c ? c->green : object_get(OBJECT_GREEN, handle);
    if (*out) return 0;
    bool gone = object_slot(OBJECT_GREEN, handle) || object_slot(OBJECT_GREEN_CONTEXT, handle);
    return gone ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_ERROR_INVALID_CONTEXT;
}

int green_usable(CUgreenCtx handle, struct shim_green **out) {
    struct shim_context *root;
    int rc = find(handle, out);
    if (rc) return rc == CUDA_ERROR_CONTEXT_IS_DESTROYED ? CUDA_ERROR_INVALID_CONTEXT : rc;
    return context_usable((*out)->context->root, &root);
}

/* ---- life ------------------------------------------------------------------------------------------------------------ */

/* context_life_lock held. */
static int make(struct shim_context *root, const struct shim_resources *d, CUgreenCtx *out) {
    struct shim_green *g = object_new(OBJECT_GREEN);
    struct shim_context *c = context_live(root) ? context_object_of_green(root) : NULL;
    if (!g || !c) {
        if (g) object_free(g);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    resource_of_device(root->device, CU_DEV_RESOURCE_TYPE_SM, &g->sm);
    resource_of_device(root->device, CU_DEV_RESOURCE_TYPE_WORKQUEUE_CONFIG, &g->config);
    resource_queue(root->device, c->id, &g->queue);
    if (d->sm.type != CU_DEV_RESOURCE_TYPE_INVALID) resource_asked_for(&d->sm, &g->sm);
    if (d->config.type != CU_DEV_RESOURCE_TYPE_INVALID) g->config = d->config;
    if (d->queue.type != CU_DEV_RESOURCE_TYPE_INVALID) g->queue = d->queue;
    g->context = c;
    c->green = g;
    c->next = root->greens;
    root->greens = c;
    object_publish(c);
    object_publish(g);
    *out = (CUgreenCtx)g;
    return 0;
}

CUresult impl_cuGreenCtxCreate(CUgreenCtx *green, CUdevResourceDesc desc, CUdevice device, unsigned int flags) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    const struct shim_resources *d = object_get(OBJECT_RESOURCES, desc);
    if (!green || !d || flags & ~(unsigned)CU_GREEN_CTX_DEFAULT_STREAM) return CUDA_ERROR_INVALID_VALUE;
    if (!device_info(device) || d->device != device) return CUDA_ERROR_INVALID_DEVICE;
    CUcontext primary;
    int rc = impl_cuDevicePrimaryCtxRetain(&primary, device);
    if (rc) return rc;
    pthread_mutex_lock(&context_life_lock);
    rc = make((struct shim_context *)primary, d, green);
    pthread_mutex_unlock(&context_life_lock);
    if (rc) impl_cuDevicePrimaryCtxRelease(device);
    return rc;
}

/* Takes its streams out of a context; those that the program has keep running, and may only be destroyed. context->lock held. */
static void detach(const struct shim_context *c) {
    for (struct shim_stream *s = c->root->streams; s; s = s->next) {
        if (s->green != c) continue;
        atomic_store(&s->detached, true);
        atomic_store(&s->green, NULL);
    }
}

/* A stream of the context that captures; NULL: none does. */
static struct shim_stream *capturing(const struct shim_context *c) {
    pthread_mutex_lock(&c->root->lock);
    struct shim_stream *s = c->root->streams;
    while (s && !(s->green == c && stream_captures(s))) s = s->next;
    pthread_mutex_unlock(&c->root->lock);
    return s;
}

CUresult impl_cuGreenCtxDestroy(CUgreenCtx green) {
    struct shim_green *g;
    int rc = find(green, &g);
    if (rc) return rc;
    pthread_mutex_lock(&context_life_lock);
    struct shim_context *c = g->context, *root = c->root;
    if (!object_retire(g)) {
        pthread_mutex_unlock(&context_life_lock);
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
    object_retire(c);
    for (struct shim_context **at = &root->greens; *at; at = &(*at)->next) {
        if (*at == c) {
            *at = c->next;
            break;
        }
    }
    for (struct shim_stream *s; (s = capturing(c));) {
        capture_forbidden(s);
        capture_forget_stream(s);
    }
    pthread_mutex_lock(&root->lock);
    detach(c);
    pthread_mutex_unlock(&root->lock);
    struct shim_stream *own[] = {c->legacy, c->joined, c->gate};
    for (int i = 0; i < 3; i++)
        if (own[i]) stream_retire(own[i]);
    CUdevice device = c->device;
    object_free(c);
    object_free(g);
    pthread_mutex_unlock(&context_life_lock);
    return impl_cuDevicePrimaryCtxRelease(device);
}

/* ---- what it is ------------------------------------------------------------------------------------------------------ */

CUresult impl_cuCtxFromGreenCtx(CUcontext *context, CUgreenCtx green) {
    struct shim_green *g;
    int rc = green_usable(green, &g);
    if (rc) return rc;
    if (!context) return CUDA_ERROR_INVALID_VALUE;
    *context = (CUcontext)g->context;
    return CUDA_SUCCESS;
}

CUresult impl_cuGreenCtxGetId(CUgreenCtx green, unsigned long long *id) {
    struct shim_green *g = NULL;
    const struct shim_context *bound = context_bound();
    int rc = green || !bound || !bound->green ? find(green, &g) : context_live(bound) ? 0 : CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (rc) return rc;
    if (!id) return CUDA_ERROR_INVALID_VALUE;
    *id = g ? g->context->id : bound->id;
    return CUDA_SUCCESS;
}

CUresult impl_cuGreenCtxStreamCreate(CUstream *stream, CUgreenCtx green, unsigned int flags, int priority) {
    struct shim_green *g;
    int rc = green_usable(green, &g);
    if (rc) return rc;
    if (!stream || flags != CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
    struct shim_stream *s;
    rc = stream_new(g->context, STREAM_CREATED, flags, priority, &s);
    if (rc) return rc;
    object_publish(s);
    *stream = (CUstream)s;
    return CUDA_SUCCESS;
}

/* ---- its resources --------------------------------------------------------------------------------------------------- */

static int resource_of(const struct shim_context *bound, CUdevResourceType type, CUdevResource *out) {
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    const struct shim_green *g = bound->green;
    if (g && type == CU_DEV_RESOURCE_TYPE_SM)
        *out = g->sm;
    else if (g && type == CU_DEV_RESOURCE_TYPE_WORKQUEUE_CONFIG)
        *out = g->config;
    else if (g && type == CU_DEV_RESOURCE_TYPE_WORKQUEUE)
        *out = g->queue;
    else if (type == CU_DEV_RESOURCE_TYPE_WORKQUEUE)
        resource_queue(bound->device, bound->id, out);
    else
        return resource_of_device(bound->device, type, out);
    return 0;
}

CUresult impl_cuCtxGetDevResource(CUcontext context, CUdevResource *resource, CUdevResourceType type) {
    struct shim_context *c;
    int rc = context_check_bound(context, &c);
    return rc ? rc : resource_of(c, type, resource);
}

CUresult impl_cuGreenCtxGetDevResource(CUgreenCtx green, CUdevResource *resource, CUdevResourceType type) {
    struct shim_green *g;
    int rc = green_usable(green, &g);
    return rc ? rc : resource_of(g->context, type, resource);
}

CUresult impl_cuStreamGetDevResource(CUstream stream, CUdevResource *resource, CUdevResourceType type) {
    struct shim_stream *s;
    int rc = stream_require(stream, &s);
    if (rc) return rc;
    if (type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    const struct shim_context *green = atomic_load(&s->green);
    return resource_of(green ? green : s->context, type, resource);
}
