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
    struct soft_variant *variants; /* under module.lock; never removed before the module goes */
};

struct gv_module {
    struct gv_context *context;
    _Atomic uint32_t refs; /* the handle, launches under way */
    uint64_t id;           /* the compiler's name for it */
    void *meta;
    size_t meta_size;
    struct soft_placed *globals; /* all of them, or NULL */
    pthread_mutex_t lock;
    uint32_t n_kernels;
    struct soft_kernel kernels[];
};

void soft_module_hold(struct gv_module *m);
void soft_module_drop(struct gv_module *m);
static inline const char *soft_kernel_name(const struct gv_module *m, uint32_t kernel) {
    return gv_meta_strings(m->meta) + m->kernels[kernel].meta->name;
}

#endif
