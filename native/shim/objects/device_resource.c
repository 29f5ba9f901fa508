/* Device resources: multiprocessors and work queues, as a program asks for them, splits them, and describes a green context by them.
 *
 * All of it is bookkeeping: which multiprocessors run a kernel is the worker's device's business. What is told keeps to the documented minimum and alignment of the device's
 * compute capability, so that a program that plans with the numbers gets the ones it would get there but for the layout of the chip, of which nothing is known here. */
#include <stdlib.h>
#include <string.h>

#include "gv_impl.h"
#include "objects/objects.h"

/* ---- where a resource comes from ------------------------------------------------------------------------------------- */

enum origin_kind { ORIGIN_ASKED_FOR = 1, ORIGIN_GROUP, ORIGIN_REMAINDER };

/* In the part of a CUdevResource that belongs to the driver; programs copy it with the rest. */
struct origin {
    uint32_t magic, kind;
    int32_t device;
    uint32_t first, count; /* which part of what was split; count as in the part that the program sees */
    uint64_t split;        /* the call that it comes from */
};
#define MAGIC 0x6776736du

_Static_assert(sizeof(struct origin) <= sizeof(((CUdevResource *)0)->_internal_padding), "an origin fits where the driver may write");

static void put_origin(CUdevResource *r, struct origin origin) {
    origin.magic = MAGIC;
    origin.count = r->sm.smCount;
    memcpy(r->_internal_padding, &origin, sizeof origin);
}

/* Of multiprocessors: 0, or the error for what is none, or was made or changed by the program. */
static int get_origin(const CUdevResource *r, struct origin *out) {
    if (r->type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    memcpy(out, r->_internal_padding, sizeof *out);
    return out->magic == MAGIC && out->count == r->sm.smCount && device_info(out->device) ? 0 : CUDA_ERROR_INVALID_VALUE;
}

/* ---- what a device has ----------------------------------------------------------------------------------------------- */

/* Multiprocessors that a group has at least, and of which its number is a multiple. */
struct granularity {
    unsigned least, alignment;
};

static struct granularity granularity_of(const struct gv_device_info *info) {
    int capability = device_capability(info);
    if (capability >= 90) return (struct granularity){8, 8};
    if (capability >= 80) return (struct granularity){4, 2};
    if (capability >= 70) return (struct granularity){2, 2};
    return (struct granularity){1, 1};
}

/* What cuDevSmResourceSplit takes for a coscheduledSmCount of 0, and the most that it may be. */
static unsigned default_coscheduled(const struct gv_device_info *info) { return device_capability(info) >= 90 ? 8 : 2; }
static unsigned most_coscheduled(const struct gv_device_info *info) { return device_capability(info) >= 90 ? 32 : 2; }

static void fill(CUdevResource *out, unsigned count, struct granularity g, unsigned flags, struct origin origin) {
    memset(out, 0, sizeof *out);
    out->type = CU_DEV_RESOURCE_TYPE_SM;
    out->sm.smCount = count;
    out->sm.minSmPartitionSize = g.least;
    out->sm.smCoscheduledAlignment = g.alignment;
    out->sm.flags = flags;
    put_origin(out, origin);
}

/* The work queues that a device runs side by side, as the driver takes them from the environment. */
static unsigned connections(void) {
    const char *text = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    long n = text ? strtol(text, NULL, 10) : 0;
    return n >= 1 && n <= 32 ? (unsigned)n : 8;
}

int resource_of_device(CUdevice device, CUdevResourceType type, CUdevResource *out) {
    const struct gv_device_info *info = device_info(device);
    if (type == CU_DEV_RESOURCE_TYPE_SM) {
        unsigned count = (unsigned)device_attribute(info, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
        fill(out, count, granularity_of(info), 0, (struct origin){.kind = ORIGIN_ASKED_FOR, .device = device});
        return 0;
    }
    if (type != CU_DEV_RESOURCE_TYPE_WORKQUEUE_CONFIG) return CUDA_ERROR_INVALID_RESOURCE_TYPE; /* a queue is a context's */
    memset(out, 0, sizeof *out);
    out->type = type;
    out->wqConfig = (CUdevWorkqueueConfigResource){device, connections(), CU_WORKQUEUE_SCOPE_DEVICE_CTX};
    return 0;
}

void resource_asked_for(const CUdevResource *resource, CUdevResource *out) {
    struct origin origin;
    *out = *resource;
    if (get_origin(resource, &origin)) return;
    put_origin(out, (struct origin){.kind = ORIGIN_ASKED_FOR, .device = origin.device});
}

void resource_queue(CUdevice device, uint64_t id, CUdevResource *out) {
    memset(out, 0, sizeof *out);
    out->type = CU_DEV_RESOURCE_TYPE_WORKQUEUE;
    memcpy(out->wq.reserved, &id, sizeof id);
    put_origin(out, (struct origin){.kind = ORIGIN_ASKED_FOR, .device = device});
}

CUresult impl_cuDeviceGetDevResource(CUdevice device, CUdevResource *resource, CUdevResourceType type) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!resource) return CUDA_ERROR_INVALID_VALUE;
    if (!device_info(device)) return CUDA_ERROR_INVALID_DEVICE;
    return resource_of_device(device, type, resource);
}

/* ---- splitting ------------------------------------------------------------------------------------------------------- */

static unsigned up_to_multiple(unsigned n, unsigned of) { return (n + of - 1) / of * of; }

/* What is to be split: 0 and its origin, or the call's error. A group cannot be split again before a green context has it; what remains can. */
static int input_of(const CUdevResource *input, struct origin *out) {
    if (!input) return CUDA_ERROR_INVALID_VALUE;
    int rc = get_origin(input, out);
    if (!rc && out->kind == ORIGIN_GROUP) rc = CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    return rc;
}

static void fill_remainder(CUdevResource *out, const CUdevResource *input, unsigned used, unsigned alignment, const struct origin *from) {
    if (!out) return;
    unsigned count = input->sm.smCount - used;
    struct granularity g = {input->sm.minSmPartitionSize, alignment};
    struct origin origin = {.kind = ORIGIN_REMAINDER, .device = from->device, .first = used, .split = from->split};
    if (count)
        fill(out, count, g, 0, origin);
    else
        memset(out, 0, sizeof *out); /* CU_DEV_RESOURCE_TYPE_INVALID */
}

CUresult impl_cuDevSmResourceSplitByCount(CUdevResource *result, unsigned int *n_groups, const CUdevResource *input, CUdevResource *remainder,
                                          unsigned int flags, unsigned int min_count) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    const unsigned known = CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING | CU_DEV_SM_RESOURCE_SPLIT_MAX_POTENTIAL_CLUSTER_SIZE;
    if (!n_groups || flags & ~known || (result && !*n_groups)) return CUDA_ERROR_INVALID_VALUE;
    struct origin from;
    int rc = input_of(input, &from);
    if (rc) return rc;
    const CUdevResource all = *input; /* the program may have the results take its place */
    const struct gv_device_info *info = device_info(from.device);
    struct granularity g = granularity_of(info);
    if (flags & CU_DEV_SM_RESOURCE_SPLIT_MAX_POTENTIAL_CLUSTER_SIZE) {
        if (device_capability(info) < 90) return CUDA_ERROR_INVALID_VALUE;
        g = (struct granularity){16, 16}; /* the largest cluster */
    }
    if (flags & CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING) g.least = g.alignment = device_capability(info) >= 70 ? 2 : 1;
    if (min_count > all.sm.smCount) return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    unsigned size = up_to_multiple(min_count > g.least ? min_count : g.least, g.alignment), most = all.sm.smCount / size;
    if (!most) return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    unsigned n = result && *n_groups < most ? *n_groups : most;
    from.split = object_next_id();
    for (unsigned i = 0; result && i < n; i++)
        fill(&result[i], size, g, 0, (struct origin){.kind = ORIGIN_GROUP, .device = from.device, .first = i * size, .split = from.split});
    fill_remainder(remainder, &all, n * size, g.alignment, &from);
    *n_groups = n;
    return CUDA_SUCCESS;
}

/* How many of the `left` multiprocessors a group gets: 0, or the call's error. */
static int group_size(const CU_DEV_SM_RESOURCE_GROUP_PARAMS *p, const struct gv_device_info *info, unsigned all, unsigned left, bool wanted,
                      unsigned *size, unsigned *coscheduled) {
    static const CU_DEV_SM_RESOURCE_GROUP_PARAMS zero;
    const unsigned where = CU_DEV_SM_RESOURCE_GROUP_LOCALITY_DOMAIN_ID, more = CU_DEV_SM_RESOURCE_GROUP_LOCALITY_DOMAIN_SUPPLEMENTAL_SMS;
    bool backfill = p->flags & CU_DEV_SM_RESOURCE_GROUP_BACKFILL;
    if (p->flags & ~(CU_DEV_SM_RESOURCE_GROUP_BACKFILL | where | more)) return CUDA_ERROR_INVALID_VALUE;
    if (memcmp(p->reserved, zero.reserved, sizeof zero.reserved) != 0 || (p->flags & more && !(p->flags & where))) return CUDA_ERROR_INVALID_VALUE;
    if (p->flags & where) return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION; /* no multiprocessor is known to be in a domain */
    unsigned c = p->coscheduledSmCount ? p->coscheduledSmCount : default_coscheduled(info), preferred = p->preferredCoscheduledSmCount;
    if (c % 2 || c > most_coscheduled(info) || (preferred && (preferred % c || preferred > most_coscheduled(info))))
        return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    *coscheduled = c;
    *size = p->smCount ? p->smCount : backfill ? left / 2 * 2 : left / c * c;
    if (p->smCount && (!wanted || p->smCount % 2 || p->smCount > all || (!backfill && p->smCount % c)))
        return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    return *size > left || (wanted && (!*size || *size < c)) ? CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION : 0;
}

CUresult impl_cuDevSmResourceSplit(CUdevResource *result, unsigned int n_groups, const CUdevResource *input, CUdevResource *remainder,
                                   unsigned int flags, CU_DEV_SM_RESOURCE_GROUP_PARAMS *params) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!n_groups || !params || flags) return CUDA_ERROR_INVALID_VALUE;
    struct origin from;
    int rc = input_of(input, &from);
    if (rc) return rc;
    const CUdevResource all = *input;
    const struct gv_device_info *info = device_info(from.device);
    unsigned used = 0, size = 0, coscheduled = 0;
    for (unsigned i = 0; i < n_groups && !rc; i++, used += size)
        rc = group_size(&params[i], info, all.sm.smCount, all.sm.smCount - used, result, &size, &coscheduled);
    if (rc) return rc;
    from.split = object_next_id();
    used = 0;
    for (unsigned i = 0; i < n_groups; i++, used += size) {
        group_size(&params[i], info, all.sm.smCount, all.sm.smCount - used, result, &size, &coscheduled);
        params[i].smCount = size;
        struct granularity g = {granularity_of(info).least, coscheduled};
        struct origin origin = {.kind = ORIGIN_GROUP, .device = from.device, .first = used, .split = from.split};
        if (result) fill(&result[i], size, g, params[i].flags & CU_DEV_SM_RESOURCE_GROUP_BACKFILL, origin);
    }
    fill_remainder(remainder, &all, used, all.sm.smCoscheduledAlignment, &from);
    return CUDA_SUCCESS;
}

/* ---- descriptors ----------------------------------------------------------------------------------------------------- */

/* Adds multiprocessors: several resources must be different parts of one split, of one alignment. */
static int add_multiprocessors(struct shim_resources *d, const CUdevResource *resources, unsigned i) {
    struct origin origin, other;
    int rc = get_origin(&resources[i], &origin);
    for (unsigned k = 0; k < i && !rc; k++) {
        if (resources[k].type != CU_DEV_RESOURCE_TYPE_SM) continue;
        get_origin(&resources[k], &other);
        if (origin.split != other.split || !origin.split || origin.first == other.first ||
            resources[k].sm.smCoscheduledAlignment != resources[i].sm.smCoscheduledAlignment)
            rc = CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    }
    if (rc) return rc;
    unsigned before = d->sm.type == CU_DEV_RESOURCE_TYPE_SM ? d->sm.sm.smCount : 0;
    struct granularity g = {resources[i].sm.minSmPartitionSize, resources[i].sm.smCoscheduledAlignment};
    fill(&d->sm, before + resources[i].sm.smCount, g, d->sm.sm.flags | resources[i].sm.flags, origin);
    return 0;
}

/* Adds a resource to a descriptor and tells its device: 0, or the call's error. */
static int add(struct shim_resources *d, const CUdevResource *resources, unsigned i, CUdevice *device) {
    const CUdevResource *r = &resources[i];
    struct origin origin;
    memcpy(&origin, r->_internal_padding, sizeof origin);
    *device = origin.device;
    if (r->type == CU_DEV_RESOURCE_TYPE_SM) return add_multiprocessors(d, resources, i);
    CUdevResource *to = r->type == CU_DEV_RESOURCE_TYPE_WORKQUEUE_CONFIG ? &d->config : &d->queue;
    if (r->type == CU_DEV_RESOURCE_TYPE_WORKQUEUE_CONFIG) { /* the program may write one itself */
        *device = r->wqConfig.device;
        bool scope = r->wqConfig.sharingScope == CU_WORKQUEUE_SCOPE_DEVICE_CTX || r->wqConfig.sharingScope == CU_WORKQUEUE_SCOPE_GREEN_CTX_BALANCED;
        if (!device_info(*device) || !scope) return CUDA_ERROR_INVALID_VALUE;
    } else if (r->type != CU_DEV_RESOURCE_TYPE_WORKQUEUE) {
        return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    } else if (origin.magic != MAGIC || !device_info(origin.device)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (to->type != CU_DEV_RESOURCE_TYPE_INVALID) return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    *to = *r;
    to->nextResource = NULL;
    return 0;
}

CUresult impl_cuDevResourceGenerateDesc(CUdevResourceDesc *desc, CUdevResource *resources, unsigned int n) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!desc || !resources || !n) return CUDA_ERROR_INVALID_VALUE;
    struct shim_resources *d = object_new(OBJECT_RESOURCES); /* for the life of the process: nothing destroys one */
    if (!d) return CUDA_ERROR_OUT_OF_MEMORY;
    int rc = 0;
    for (unsigned i = 0; i < n && !rc; i++) {
        CUdevice device;
        rc = add(d, resources, i, &device);
        if (!rc && i && device != d->device) rc = CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
        d->device = device;
    }
    if (rc) {
        object_free(d);
        return rc;
    }
    object_publish(d);
    *desc = (CUdevResourceDesc)d;
    return CUDA_SUCCESS;
}
