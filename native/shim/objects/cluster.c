/* Thread block clusters: which a launch may name, and how many fit the device.
 * What fits only the driver knows: it depends on the groups of multiprocessors that the device really has. It is asked once per kernel and shape. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "gv_client.h"
#include "gv_impl.h"
#include "objects/objects.h"
#include "wire/cluster_dims.h"

#define SMALL_MULTIPROCESSORS 16 /* such a part has fewer, perhaps */
#define PREFERRED_CAPABILITY 100 /* older devices have one size of cluster in a launch */
#define ANSWERS_MAX 256          /* of a function: a program that asks with ever other shapes */

/* ---- what the driver says ------------------------------------------------------------------------------------------ */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of all functions' answers */

static bool whole_clusters(const uint32_t *grid, uint32_t cluster) {
    for (int i = 0; i < 3 && cluster; i++)
        if (grid[i] % gv_cluster_dim(cluster, i)) return false;
    return true;
}

static const struct cluster_answer *recall(const struct shim_function *f, const struct cluster_question *q) {
    for (const struct cluster_answer *a = f->clusters; a; a = a->next)
        if (!memcmp(&a->asked, q, sizeof *q)) return a;
    return NULL;
}

static void keep(struct shim_function *f, const struct cluster_question *q, int status, int count) {
    unsigned n = 0;
    for (const struct cluster_answer *a = f->clusters; a; a = a->next) n++;
    struct cluster_answer *a = n < ANSWERS_MAX ? malloc(sizeof *a) : NULL;
    if (!a) return;
    *a = (struct cluster_answer){.next = f->clusters, .asked = *q, .count = count, .status = status};
    f->clusters = a;
}

static int ask(struct shim_function *f, const struct cluster_launch *l, bool potential, int *count) {
    struct cluster_question q;
    memset(&q, 0, sizeof q);
    memcpy(q.block, l->block, sizeof q.block);
    q.shared = l->shared;
    q.cluster = potential ? 0 : l->cluster & GV_CLUSTER_DIMS_MASK;
    q.potential = potential;
    q.whole = whole_clusters(l->grid, q.cluster);
    q.settings = f->settings;
    pthread_mutex_lock(&lock);
    const struct cluster_answer *known = recall(f, &q);
    int rc = known ? known->status : 0;
    *count = known ? known->count : 0;
    pthread_mutex_unlock(&lock);
    if (known) return rc;
    struct gv_cmd_cluster_count c = {.module = f->module->object.id,
                                     .kernel = f->index,
                                     .grid = {l->grid[0], l->grid[1], l->grid[2]},
                                     .block = {l->block[0], l->block[1], l->block[2]},
                                     .shared = l->shared,
                                     .cluster = q.cluster,
                                     .potential = potential};
    struct session_reply reply;
    struct gv_reply_cluster_count answer = {0};
    rc = call_cluster_count(f->ctx, &c, &answer, &reply);
    session_reply_done(&reply);
    *count = rc ? 0 : answer.count;
    /* Other errors are of the session, or of the context, and may be over later or not. */
    if (rc && rc != CUDA_ERROR_INVALID_CLUSTER_SIZE && rc != CUDA_ERROR_INVALID_VALUE) return rc;
    pthread_mutex_lock(&lock);
    if (!recall(f, &q)) keep(f, &q, rc, *count);
    pthread_mutex_unlock(&lock);
    return rc;
}

/* ---- launches ------------------------------------------------------------------------------------------------------ */

static bool has_clusters(const struct shim_function *f) { return device_attribute(f->context->info, CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH) != 0; }

static bool asks_for_more(int dimension) { return dimension > 1; }

/* What the kernel was compiled for, or the program has set: 0 in *word where there is neither. The program's dimensions are looked at here for the first time. */
static int required(const struct shim_function *f, uint32_t *word) {
    const struct kernel_settings *s = &f->settings;
    *word = f->meta->cluster;
    if (*word || (!s->cluster_width && !s->cluster_height && !s->cluster_depth)) return 0;
    return gv_cluster_pack((unsigned)s->cluster_width, (unsigned)s->cluster_height, (unsigned)s->cluster_depth, word)
               ? 0
               : CUDA_ERROR_INVALID_CLUSTER_SIZE;
}

/* Whether a cluster of so many blocks fits: those that fit everywhere are not asked for. */
static int check_fit(struct shim_function *f, const struct cluster_launch *l, uint32_t cluster) {
    uint64_t blocks = gv_cluster_blocks(cluster);
    if (blocks > GV_CLUSTER_PORTABLE && !f->settings.nonportable_cluster) return CUDA_ERROR_INVALID_CLUSTER_SIZE;
    if (blocks <= GV_CLUSTER_PORTABLE && device_attribute(f->context->info, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT) >= SMALL_MULTIPROCESSORS)
        return 0;
    struct cluster_launch whole = *l;
    whole.cluster = cluster;
    int count, rc = ask(f, &whole, false, &count);
    return rc ? rc : count > 0 ? 0 : CUDA_ERROR_INVALID_CLUSTER_SIZE;
}

int cluster_check(struct shim_function *f, struct cluster_launch *l, const char *call) {
    uint32_t named = l->cluster & GV_CLUSTER_DIMS_MASK, cluster;
    const struct kernel_settings *s = &f->settings;
    if (!has_clusters(f)) {
        bool many = gv_cluster_blocks(named) > 1 || gv_cluster_blocks(f->meta->cluster) > 1 || asks_for_more(s->cluster_width) ||
                    asks_for_more(s->cluster_height) || asks_for_more(s->cluster_depth);
        if (many) shim_log_once("%s: this device has no thread block clusters", call);
        l->cluster = l->preferred = 0;
        return many ? CUDA_ERROR_NOT_SUPPORTED : 0;
    }
    int rc = required(f, &cluster);
    if (rc) return rc;
    if (named && cluster && named != cluster) return CUDA_ERROR_INVALID_CLUSTER_SIZE;
    if (!cluster) cluster = named;
    if (!cluster) return f->meta->flags & GV_META_KERNEL_NEEDS_CLUSTER || l->preferred ? CUDA_ERROR_INVALID_CLUSTER_SIZE : 0;
    if (!whole_clusters(l->grid, cluster)) return CUDA_ERROR_INVALID_CLUSTER_SIZE;
    for (int i = 0; i < 3 && l->preferred; i++)
        if (gv_cluster_dim(l->preferred, i) % gv_cluster_dim(cluster, i)) return CUDA_ERROR_INVALID_CLUSTER_SIZE;
    /* It is a wish, which a device without such clusters does not grant. */
    if (device_capability(f->context->info) < PREFERRED_CAPABILITY) l->preferred = 0;
    return check_fit(f, l, cluster);
}

/* ---- launch attributes, which graphs keep as well ---- */

bool cluster_attribute_set(int attribute, const CUlaunchAttributeValue *value, uint32_t *cluster, uint32_t *preferred) {
    uint32_t word;
    switch (attribute) {
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
        if (!gv_cluster_pack(value->clusterDim.x, value->clusterDim.y, value->clusterDim.z, &word)) return false;
        *cluster = (*cluster & ~GV_CLUSTER_DIMS_MASK) | word;
        return true;
    case CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION:
        return gv_cluster_pack(value->preferredClusterDim.x, value->preferredClusterDim.y, value->preferredClusterDim.z, preferred);
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
        if ((unsigned)value->clusterSchedulingPolicyPreference > CU_CLUSTER_SCHEDULING_POLICY_LOAD_BALANCING) return false;
        *cluster = (*cluster & GV_CLUSTER_DIMS_MASK) | (uint32_t)value->clusterSchedulingPolicyPreference << GV_CLUSTER_POLICY_SHIFT;
        return true;
    default: return false;
    }
}

bool cluster_attribute_get(int attribute, uint32_t cluster, uint32_t preferred, CUlaunchAttributeValue *value) {
    const uint32_t word = attribute == CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION ? preferred : cluster;
    switch (attribute) {
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
    case CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION: /* of the same form */
        value->clusterDim.x = gv_cluster_dim(word, 0);
        value->clusterDim.y = gv_cluster_dim(word, 1);
        value->clusterDim.z = gv_cluster_dim(word, 2);
        return gv_cluster_blocks(word) != 0;
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
        value->clusterSchedulingPolicyPreference = (CUclusterSchedulingPolicy)gv_cluster_policy(cluster);
        return gv_cluster_policy(cluster) != 0;
    default: return false;
    }
}

/* ---- occupancy ----------------------------------------------------------------------------------------------------- */

/* What both calls have in common. The cluster: that of the attributes, 0 where there is none. */
static int begin(CUfunction function, const CUlaunchConfig *config, struct shim_function **f, struct cluster_launch *out) {
    int rc = function_of_any(function, f);
    if (rc) return rc;
    if (!config || (config->numAttrs && !config->attrs)) return CUDA_ERROR_INVALID_VALUE;
    *out = (struct cluster_launch){.grid = {config->gridDimX, config->gridDimY, config->gridDimZ},
                                   .block = {config->blockDimX, config->blockDimY, config->blockDimZ},
                                   .shared = config->sharedMemBytes};
    for (unsigned i = 0; i < config->numAttrs; i++) {
        const CUlaunchAttribute *a = &config->attrs[i];
        if (a->id != CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) continue;
        if (!gv_cluster_pack(a->value.clusterDim.x, a->value.clusterDim.y, a->value.clusterDim.z, &out->cluster)) return CUDA_ERROR_INVALID_VALUE;
    }
    return 0;
}

CUresult impl_cuOccupancyMaxActiveClusters(int *clusters, CUfunction function, const CUlaunchConfig *config) {
    struct shim_function *f;
    struct cluster_launch l;
    int rc = begin(function, config, &f, &l);
    if (rc) return rc;
    if (!clusters) return CUDA_ERROR_INVALID_VALUE;
    if (has_clusters(f)) return ask(f, &l, false, clusters);
    uint64_t threads = (uint64_t)l.block[0] * l.block[1] * l.block[2];
    bool fits = gv_cluster_blocks(l.cluster) <= 1 && threads <= f->max_threads;
    *clusters = fits ? occupancy_blocks(f, (int)threads, l.shared) * device_attribute(f->context->info, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT) : 0;
    return CUDA_SUCCESS;
}

CUresult impl_cuOccupancyMaxPotentialClusterSize(int *blocks, CUfunction function, const CUlaunchConfig *config) {
    struct shim_function *f;
    struct cluster_launch l;
    int rc = function ? begin(function, config, &f, &l) : CUDA_ERROR_INVALID_VALUE;
    if (rc) return rc;
    if (!blocks) return CUDA_ERROR_INVALID_VALUE;
    if (has_clusters(f)) return ask(f, &l, true, blocks);
    *blocks = 1;
    return CUDA_SUCCESS;
}
