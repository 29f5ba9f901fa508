/* Launches: arguments are checked and parameters packed here, and the command is sent without waiting. */
#include <stdlib.h>
#include <string.h>

#include "gv_client.h"
#include "gv_impl.h"
#include "objects/graph/graph.h"
#include "objects/managed/managed.h"
#include "objects/memory/host_mapping.h"
#include "objects/module/reference.h"
#include "wire/session_limits.h"

struct request {
    CUfunction function;
    unsigned grid[3], block[3];
    unsigned shared;
    CUstream stream;
    void **params, **extra;
    bool cooperative;
    uint32_t cluster, preferred; /* wire/cluster_dims.h */
    const char *call;
};

/* ---- checks -------------------------------------------------------------------------------------------------------- */

/* Whatever launches it: the runtime returns the driver's result unchanged. */
static int invalid_shape(const struct request *r) {
    call_because("grid %u x %u x %u, block %u x %u x %u: the device has no such", r->grid[0], r->grid[1], r->grid[2], r->block[0], r->block[1],
                 r->block[2]);
    return CUDA_ERROR_INVALID_VALUE;
}

/* Why a block that the device could run is too large for this kernel: its registers do not suffice, or it was compiled for smaller ones (.maxntid). */
static int too_many_threads(const struct shim_function *f, uint64_t threads) {
    uint64_t registers = (uint64_t)f->context->info->attributes[CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK];
    call_because("%s: a block of %llu threads, of %u at most, with %u registers each", f->name, (unsigned long long)threads, f->max_threads,
                 f->meta->num_regs);
    return threads * f->meta->num_regs > registers ? CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES : CUDA_ERROR_INVALID_VALUE;
}

static int check_shape(const struct shim_function *f, const struct request *r) {
    const int32_t *limit = f->context->info->attributes;
    for (int i = 0; i < 3; i++) {
        if (!r->grid[i] || !r->block[i]) return invalid_shape(r);
        if (r->grid[i] > (unsigned)limit[CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X + i]) return invalid_shape(r);
        if (r->block[i] > (unsigned)limit[CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X + i]) return invalid_shape(r);
    }
    uint64_t threads = (uint64_t)r->block[0] * r->block[1] * r->block[2];
    if (threads > (unsigned)limit[CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK]) return invalid_shape(r);
    if (threads > f->max_threads) return too_many_threads(f, threads);
    const uint32_t *required = f->meta->required_threads;
    for (int i = 0; i < 3 && required[0]; i++) {
        if (r->block[i] == (required[i] ? required[i] : 1)) continue;
        call_because("%s: compiled for blocks of another shape", f->name);
        return CUDA_ERROR_INVALID_VALUE;
    }
    uint32_t most = atomic_load_explicit(&f->max_dynamic_shared, memory_order_relaxed);
    if (r->shared <= most) return 0;
    call_because("%s: %u bytes of dynamic shared memory, of %u at most", f->name, r->shared, most);
    return CUDA_ERROR_INVALID_VALUE;
}

static int check_cooperative(const struct shim_function *f, const struct request *r) {
    const struct gv_device_info *info = f->context->info;
    if (!device_attribute(info, CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH)) {
        shim_log_once("%s: this device has no cooperative launches", r->call);
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    uint64_t most = (uint64_t)occupancy_blocks(f, (int)(r->block[0] * r->block[1] * r->block[2]), r->shared) *
                    (uint64_t)device_attribute(info, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    uint64_t blocks = (uint64_t)r->grid[0] * r->grid[1];
    if (blocks > most || blocks * r->grid[2] > most) return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
    return 0;
}

static int check_clusters(struct shim_function *f, const struct request *r, struct cluster_launch *l) {
    memcpy(l->grid, r->grid, sizeof l->grid);
    memcpy(l->block, r->block, sizeof l->block);
    l->shared = r->shared;
    return cluster_check(f, l, r->call);
}

/* ---- parameters ---------------------------------------------------------------------------------------------------- */

/* Packs the parameters from the program's pointers, one for each parameter, by the sizes in the metadata. */
static int pack(const struct shim_function *f, void **params, char *out) {
    uint32_t n = f->meta->n_params, end = 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct gv_meta_param *p = &f->params[i];
        const void *from = params[i];
        if (!from) {
            call_because("%s: parameter %u of %u is missing", f->name, i, n);
            return CUDA_ERROR_INVALID_VALUE;
        }
        if (p->offset > end) memset(out + end, 0, p->offset - end);
        switch (p->size) {
        case 8: memcpy(out + p->offset, from, 8); break;
        case 4: memcpy(out + p->offset, from, 4); break;
        default: memcpy(out + p->offset, from, p->size); break;
        }
        if (p->offset + p->size > end) end = p->offset + p->size;
    }
    if (f->meta->param_bytes > end) memset(out + end, 0, f->meta->param_bytes - end);
    return 0;
}

/* Takes the buffer of parameters that the program has packed. */
static int unwrap_extra(const struct shim_function *f, void **extra, const void **out) {
    const void *buffer = NULL;
    const size_t *size = NULL;
    for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
        if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER)
            buffer = extra[1];
        else if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE)
            size = extra[1];
        else
            return CUDA_ERROR_INVALID_VALUE;
    }
    if (!buffer || !size || *size < f->meta->param_bytes) {
        call_because("%s: a buffer of %zu bytes for parameters of %u", f->name, buffer && size ? *size : 0, f->meta->param_bytes);
        return CUDA_ERROR_INVALID_VALUE;
    }
    *out = buffer;
    return 0;
}

/* What a graph's node launches: checked and packed as for a launch. */
int launch_describe(struct shim_context *c, const CUDA_KERNEL_NODE_PARAMS *p, struct graph_kernel *out) {
    struct request r = {.function = p->func ? p->func : (CUfunction)p->kern,
                        .grid = {p->gridDimX, p->gridDimY, p->gridDimZ},
                        .block = {p->blockDimX, p->blockDimY, p->blockDimZ},
                        .shared = p->sharedMemBytes,
                        .params = p->kernelParams,
                        .extra = p->extra,
                        .call = "cuGraphAddKernelNode"};
    struct shim_function *f;
    const void *given = NULL;
    int rc = function_resolve(r.function, c, &f);
    if (!rc) rc = check_shape(f, &r);
    if (!rc && (f->meta->param_bytes > GV_PARAMS_MAX || (r.params && r.extra))) rc = CUDA_ERROR_INVALID_VALUE;
    char *packed = rc ? NULL : calloc(1, f->meta->param_bytes + 1);
    if (!rc && !packed) rc = CUDA_ERROR_OUT_OF_MEMORY;
    if (!rc && f->meta->n_params) {
        rc = r.extra ? unwrap_extra(f, r.extra, &given) : r.params ? pack(f, r.params, packed) : (int)CUDA_ERROR_INVALID_VALUE;
        if (!rc && given) memcpy(packed, given, f->meta->param_bytes);
    }
    if (rc) {
        free(packed);
        return rc;
    }
    *out = (struct graph_kernel){.function = r.function, .shared = r.shared, .params = packed, .params_size = f->meta->param_bytes};
    memcpy(out->grid, r.grid, sizeof out->grid);
    memcpy(out->block, r.block, sizeof out->block);
    return 0;
}

/* A launch on a stream that captures. */
static int capture(struct shim_stream *s, const struct request *r, const struct cluster_launch *clusters, const void *params, size_t size) {
    struct graph_work work = {.type = CU_GRAPH_NODE_TYPE_KERNEL};
    work.kernel.function = r->function;
    work.kernel.shared = r->shared;
    work.kernel.cooperative = r->cooperative;
    work.kernel.cluster = clusters->cluster;
    work.kernel.preferred_cluster = clusters->preferred;
    work.kernel.params = (char *)(uintptr_t)params; /* which is copied */
    work.kernel.params_size = size;
    memcpy(work.kernel.grid, r->grid, sizeof r->grid);
    memcpy(work.kernel.block, r->block, sizeof r->block);
    return capture_work(s, &work);
}

/* ---- the launch ---------------------------------------------------------------------------------------------------- */

static int launch(const struct request *r) {
    struct shim_stream *s;
    struct shim_function *f;
    int rc = stream_require(r->stream, &s);
    if (!rc) rc = function_resolve(r->function, s->context, &f);
    if (!rc) rc = check_shape(f, r);
    if (!rc && r->cooperative) rc = check_cooperative(f, r);
    if (rc) return rc;
    struct cluster_launch clusters = {.cluster = r->cluster, .preferred = r->preferred};
    if (cluster_concerns(f, r->cluster, r->preferred) && (rc = check_clusters(f, r, &clusters))) return rc;
    if (f->meta->param_bytes > GV_PARAMS_MAX || (r->params && r->extra)) return CUDA_ERROR_INVALID_VALUE;
    char packed[GV_PARAMS_MAX];
    const void *params = packed;
    if (f->meta->n_params || f->meta->param_bytes) {
        if (r->extra)
            rc = unwrap_extra(f, r->extra, &params);
        else
            rc = r->params ? pack(f, r->params, packed) : CUDA_ERROR_INVALID_VALUE;
        if (rc) return rc;
        /* Locks are held where the parameters are read next, and a touch of managed memory takes some. */
        if (params != packed && managed_in_use()) params = memcpy(packed, params, f->meta->param_bytes);
    }
    if (stream_captures(s)) return capture(s, r, &clusters, params, f->meta->param_bytes);
    if (atomic_load_explicit(&f->module->references, memory_order_acquire)) rc = reference_send(f->module);
    if (!rc && atomic_load_explicit(&range_unmapped, memory_order_relaxed)) rc = host_map_reachable(params, f->meta->param_bytes);
    if (rc) return rc;
    bool begun = managed_begin();
    rc = managed_launch(s);
    struct gv_cmd_launch c = {.stream = stream_id(s),
                              .module = f->module->object.id,
                              .kernel = f->index,
                              .shared = r->shared,
                              .cooperative = r->cooperative,
                              .cluster = clusters.cluster,
                              .preferred_cluster = clusters.preferred,
                              .grid = {r->grid[0], r->grid[1], r->grid[2]},
                              .block = {r->block[0], r->block[1], r->block[2]},
                              .params = params,
                              .params_size = f->meta->param_bytes};
    uint64_t seq = rc ? 0 : post_launch(s->session.ctx, 0, &c);
    if (seq) stream_posted(s, seq, false);
    managed_end(begun);
    return rc || seq ? rc : post_refused();
}

CUresult impl_cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x,
                             unsigned int block_y, unsigned int block_z, unsigned int shared, CUstream stream, void **params, void **extra) {
    struct request r = {.function = function,
                        .grid = {grid_x, grid_y, grid_z},
                        .block = {block_x, block_y, block_z},
                        .shared = shared,
                        .stream = stream,
                        .params = params,
                        .extra = extra,
                        .call = "cuLaunchKernel"};
    return launch(&r);
}

CUresult impl_cuLaunchCooperativeKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x,
                                        unsigned int block_y, unsigned int block_z, unsigned int shared, CUstream stream, void **params) {
    struct request r = {.function = function,
                        .grid = {grid_x, grid_y, grid_z},
                        .block = {block_x, block_y, block_z},
                        .shared = shared,
                        .stream = stream,
                        .params = params,
                        .cooperative = true,
                        .call = "cuLaunchCooperativeKernel"};
    return launch(&r);
}

/* ---- one launch a device ---- */

static struct request request_of(const CUDA_LAUNCH_PARAMS *p) {
    return (struct request){.function = p->function,
                            .grid = {p->gridDimX, p->gridDimY, p->gridDimZ},
                            .block = {p->blockDimX, p->blockDimY, p->blockDimZ},
                            .shared = p->sharedMemBytes,
                            .stream = p->hStream,
                            .params = p->kernelParams,
                            .cooperative = true,
                            .call = "cuLaunchCooperativeKernelMultiDevice"};
}

/* All launches are alike but for their device; everything is checked before the first is made. */
static int check_alike(const CUDA_LAUNCH_PARAMS *list, unsigned n, struct shim_stream **streams) {
    struct shim_function *first = NULL, *f;
    const struct request wanted = request_of(&list[0]);
    for (unsigned i = 0; i < n; i++) {
        const struct request r = request_of(&list[i]);
        if (!r.stream || r.stream == CU_STREAM_LEGACY || r.stream == CU_STREAM_PER_THREAD) return CUDA_ERROR_INVALID_HANDLE;
        int rc = stream_require(r.stream, &streams[i]);
        if (rc) return rc;
        for (unsigned k = 0; k < i; k++)
            if (streams[k]->context->device == streams[i]->context->device) return CUDA_ERROR_INVALID_DEVICE;
        if (memcmp(r.grid, wanted.grid, sizeof r.grid) != 0 || memcmp(r.block, wanted.block, sizeof r.block) != 0 || r.shared != wanted.shared)
            return CUDA_ERROR_INVALID_VALUE;
        rc = function_resolve(r.function, streams[i]->context, &f);
        if (!rc) rc = check_shape(f, &r);
        if (!rc) rc = check_cooperative(f, &r);
        if (!rc && stream_captures(streams[i])) rc = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        if (rc) return rc;
        if (!first) first = f;
        if (strcmp(first->name, f->name) != 0 || first->meta->param_bytes != f->meta->param_bytes || (f->meta->n_params && !r.params))
            return CUDA_ERROR_INVALID_VALUE;
    }
    return 0;
}

/* Each stream goes on when all have come so far. */
static int meet(struct shim_stream **streams, unsigned n) {
    CUevent events[KERNEL_CONTEXTS];
    unsigned made = 0;
    int rc = context_stack_reserve();
    for (; !rc && made < n; made++) {
        context_push(streams[made]->context);
        rc = impl_cuEventCreate(&events[made], CU_EVENT_DISABLE_TIMING);
        if (!rc && (rc = impl_cuEventRecord(events[made], (CUstream)streams[made]))) impl_cuEventDestroy(events[made]);
        context_pop();
        if (rc) break;
    }
    for (unsigned i = 0; i < n; i++)
        for (unsigned k = 0; !rc && k < n; k++)
            if (k != i) rc = impl_cuStreamWaitEvent((CUstream)streams[i], events[k], 0);
    for (unsigned i = 0; i < made; i++) impl_cuEventDestroy(events[i]);
    return rc;
}

CUresult impl_cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned int n, unsigned int flags) {
    const unsigned known = CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_PRE_LAUNCH_SYNC | CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_POST_LAUNCH_SYNC;
    struct shim_stream *streams[KERNEL_CONTEXTS];
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!list || !n || n > KERNEL_CONTEXTS || n > (unsigned)device_count() || flags & ~known) return CUDA_ERROR_INVALID_VALUE;
    int rc = check_alike(list, n, streams);
    if (!rc && !(flags & CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_PRE_LAUNCH_SYNC)) rc = meet(streams, n);
    for (unsigned i = 0; !rc && i < n; i++) {
        const struct request r = request_of(&list[i]);
        rc = launch(&r);
    }
    if (!rc && !(flags & CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_POST_LAUNCH_SYNC)) rc = meet(streams, n);
    return rc;
}

CUresult impl_cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **params, void **extra) {
    if (!config || (config->numAttrs && !config->attrs)) return CUDA_ERROR_INVALID_VALUE;
    struct request r = {.function = function,
                        .grid = {config->gridDimX, config->gridDimY, config->gridDimZ},
                        .block = {config->blockDimX, config->blockDimY, config->blockDimZ},
                        .shared = config->sharedMemBytes,
                        .stream = config->hStream,
                        .params = params,
                        .extra = extra,
                        .call = "cuLaunchKernelEx"};
    CUevent after[2];
    unsigned n_after = 0;
    for (unsigned i = 0; i < config->numAttrs; i++) {
        const CUlaunchAttribute *a = &config->attrs[i];
        switch ((int)a->id) {
        case CU_LAUNCH_ATTRIBUTE_COOPERATIVE: r.cooperative = a->value.cooperative != 0; break;
        case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
        case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
        case CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION:
            if (!cluster_attribute_set((int)a->id, &a->value, &r.cluster, &r.preferred))
                return a->id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION ? CUDA_ERROR_INVALID_CLUSTER_SIZE : CUDA_ERROR_INVALID_VALUE;
            break;
        /* Hints about scheduling and caches, and permissions to overlap. Results are the same without them. */
        case CU_LAUNCH_ATTRIBUTE_IGNORE:
        case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
        case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
        case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION:
        case CU_LAUNCH_ATTRIBUTE_PRIORITY:
        case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
        case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
        case CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
        case CU_LAUNCH_ATTRIBUTE_NVLINK_UTIL_CENTRIC_SCHEDULING: break;
        /* An event that may complete while the kernel runs may also complete after it. */
        case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT:
        case CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT:
            if (n_after == 2) return CUDA_ERROR_INVALID_VALUE;
            after[n_after++] =
                (int)a->id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT ? a->value.programmaticEvent.event : a->value.launchCompletionEvent.event;
            break;
        default: shim_log_once("cuLaunchKernelEx: launch attribute %d is not supported", (int)a->id); return CUDA_ERROR_NOT_SUPPORTED;
        }
    }
    int rc = launch(&r);
    for (unsigned i = 0; !rc && i < n_after; i++) rc = impl_cuEventRecord(after[i], config->hStream);
    return rc;
}
