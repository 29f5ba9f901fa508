/* A loaded module and its kernels. */
#ifndef SOFT_MODULE_H
#define SOFT_MODULE_H

#include "../../wire/module_meta.h"
#include "soft.h"

/* A kernel compiled for one block shape. */
struct soft_variant {
    struct soft_variant *next;
    uint32_t block[3];
    bool careful;
    struct soft_code code;
};

struct soft_kernel {
    const struct gv_meta_kernel *meta;
    _Atomic uint32_t max_dynamic;  /* CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES */
    _Atomic uint32_t cluster[3];   /* CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH and so on: what launches are made of that name no cluster, or 0 */
    _Atomic bool nonportable;      /* CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED */
    _Atomic uint32_t precompiled;  /* the block of the last launch that found its code there or has had it compiled (launch.c), 0: none */
    struct soft_variant *variants; /* under module.lock; never removed before the module goes */
};

/* The descriptors of all references of a module, as some launches read them (reference.c). */
struct soft_bindings;

struct gv_module {
    struct gv_context *context;
    _Atomic uint32_t refs; /* the handle, launches under way */
    uint64_t id;           /* the compiler's name for it */
    void *meta;
    size_t meta_size;
    struct soft_placed *globals; /* all of them, or NULL */
    pthread_mutex_t lock;
    pthread_cond_t rested;                 /* `running` is 0 */
    struct soft_bindings *bound, *written; /* what later launches read, what lies in memory; NULL: what was there at the load. Under lock */
    uint32_t running;                      /* launches that read what is written; under lock */
    uint32_t n_references;
    uint32_t n_kernels;
    struct soft_kernel kernels[];
};

void soft_module_hold(struct gv_module *m);
void soft_module_drop(struct gv_module *m);
/* How many references a module has; its globals are placed. */
uint32_t soft_references_count(const struct gv_module *m);
/* What a launch that is queued now will read; NULL: the module has no references. soft_bindings_drop ends it. */
struct soft_bindings *soft_bindings_take(struct gv_module *m);
void soft_bindings_drop(struct soft_bindings *bindings);
/* Around a launch: until the descriptors that it reads may be written, it waits. */
void soft_bindings_enter(struct gv_module *m, struct soft_bindings *bindings);
void soft_bindings_leave(struct gv_module *m);

/* launch/cluster.c: the shape of a launch's clusters, 0 where there are none. CUDA_ERROR_INVALID_CLUSTER_SIZE: the kernel, or the device, has no such clusters, or the
 * grid is not made of them. */
int soft_cluster_shape(const struct soft_kernel *k, const struct gv_launch *l, uint32_t shape[3]);
/* A CUfunction_attribute of clusters. */
int soft_cluster_attribute(struct soft_kernel *k, int32_t attribute, int32_t value);

static inline const char *soft_kernel_name(const struct gv_module *m, uint32_t kernel) {
    return gv_meta_strings(m->meta) + m->kernels[kernel].meta->name;
}

#endif
