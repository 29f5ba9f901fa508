#include "module_meta.h"

#include <string.h>

const struct gv_meta_param *gv_meta_params(const void *blob) {
    const struct gv_meta_header *header = blob;
    return (const struct gv_meta_param *)(gv_meta_kernels(blob) + header->n_kernels);
}

const struct gv_meta_global *gv_meta_globals(const void *blob) {
    const struct gv_meta_header *header = blob;
    return (const struct gv_meta_global *)(gv_meta_params(blob) + header->n_params);
}

const char *gv_meta_strings(const void *blob) {
    const struct gv_meta_header *header = blob;
    return (const char *)(gv_meta_globals(blob) + header->n_globals);
}

static int check_kernel(const void *blob, const struct gv_meta_header *header, const struct gv_meta_kernel *kernel) {
    if (kernel->name >= header->strings_size) return -1;
    if (kernel->first_param > header->n_params || kernel->n_params > header->n_params - kernel->first_param) return -1;
    const struct gv_meta_param *params = gv_meta_params(blob) + kernel->first_param;
    for (uint32_t i = 0; i < kernel->n_params; i++) {
        if (params[i].offset > kernel->param_bytes || params[i].size > kernel->param_bytes - params[i].offset) return -1;
    }
    return 0;
}

int gv_meta_check(const void *blob, size_t size) {
    const struct gv_meta_header *header = blob;
    if (size < sizeof *header || (uintptr_t)blob % 8) return -1;
    if (header->magic != GV_META_MAGIC || header->version != GV_META_VERSION) return -1;
    /* Each product stays below 2^39, so the sum cannot wrap. */
    uint64_t want = sizeof *header + (uint64_t)header->n_kernels * sizeof(struct gv_meta_kernel) +
                    (uint64_t)header->n_params * sizeof(struct gv_meta_param) + (uint64_t)header->n_globals * sizeof(struct gv_meta_global) +
                    header->strings_size;
    /* A carrier may pad the blob to a multiple of 8. */
    if (want > size || size - want >= 8) return -1;
    /* The last string ends inside, hence all of them do. */
    const char *strings = gv_meta_strings(blob);
    if (header->strings_size && strings[header->strings_size - 1] != 0) return -1;
    for (uint32_t i = 0; i < header->n_kernels; i++) {
        if (check_kernel(blob, header, gv_meta_kernels(blob) + i) != 0) return -1;
    }
    for (uint32_t i = 0; i < header->n_globals; i++) {
        const struct gv_meta_global *global = gv_meta_globals(blob) + i;
        if (global->name >= header->strings_size || (global->align & (global->align - 1))) return -1;
    }
    return 0;
}
