/* What a client must know of a loaded module: its kernels, the layout of their parameters, its globals.
 *
 * One flat little-endian blob, made once by the backend (the software GPU's compiler, or the driver's own answers),
 * carried unchanged in the reply to MODULE_LOAD and read in place by the shim:
 *
 *     struct gv_meta_header
 *     struct gv_meta_kernel  [n_kernels]
 *     struct gv_meta_param   [n_params]      parameters of all kernels, each kernel's own in a row
 *     struct gv_meta_global  [n_globals]
 *     char                   strings[strings_size]   NUL-terminated names
 *
 * The reader checks every offset and count against the blob's size before it uses them (gv_meta_check). */
#ifndef GV_MODULE_META_H
#define GV_MODULE_META_H

#include <stddef.h>
#include <stdint.h>

#define GV_META_MAGIC 0x4154454du /* "META" */
#define GV_META_VERSION 1u

#define GV_META_GLOBALS_COMPLETE 1u /* header.flags: a name that is not listed does not exist */

struct gv_meta_header {
    uint32_t magic, version;
    uint32_t flags;
    uint32_t n_kernels, n_params, n_globals;
    uint32_t strings_size;
    uint32_t reserved;
};

#define GV_META_KERNEL_NEEDS_CLUSTER 1u /* CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET: launched only with a cluster (.explicitcluster) */

struct gv_meta_kernel {
    uint32_t name; /* offset into strings */
    uint32_t first_param, n_params;
    uint32_t param_bytes;   /* size of the packed parameter buffer */
    uint32_t max_threads;   /* CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK */
    uint32_t static_shared; /* bytes */
    uint32_t const_bytes, local_bytes;
    uint32_t num_regs;
    uint32_t ptx_version, binary_version; /* 10 * major + minor */
    uint32_t required_threads[3];         /* .reqntid, or 0 */
    uint32_t flags;                       /* GV_META_KERNEL_* */
    uint32_t cluster;                     /* cluster_dims.h: what every launch is made of (.reqnctapercluster), or 0 */
};

struct gv_meta_param {
    uint32_t offset, size; /* bytes, in the packed parameter buffer */
};

#define GV_META_GLOBAL_CONST 1u
#define GV_META_GLOBAL_MANAGED 2u /* the host uses it as well; it has its pages to itself */
/* A texture or surface reference: no variable to the program. Where it lies is for the backend alone. */
#define GV_META_GLOBAL_TEXTURE 4u
#define GV_META_GLOBAL_SURFACE 8u
#define GV_META_GLOBAL_REFERENCE (GV_META_GLOBAL_TEXTURE | GV_META_GLOBAL_SURFACE)

struct gv_meta_global {
    uint32_t name;
    uint32_t flags;
    uint32_t align;
    uint32_t reserved;
    uint64_t size;
    uint64_t address; /* device address in the context the module was loaded into; 0 until the backend placed it */
};

/* 0 when the blob is sound and every offset in it lies inside it, -1 otherwise. */
int gv_meta_check(const void *blob, size_t size);
static inline const struct gv_meta_kernel *gv_meta_kernels(const void *blob) {
    return (const struct gv_meta_kernel *)((const char *)blob + sizeof(struct gv_meta_header));
}
const struct gv_meta_param *gv_meta_params(const void *blob);
const struct gv_meta_global *gv_meta_globals(const void *blob);
const char *gv_meta_strings(const void *blob);

#endif
