/* cuGetProcAddress: which function a name means for a CUDA version. A runtime library asks some 400 times when it starts, before cuInit. */
#include "abi/proc_address.h"

#include <string.h>

#include "gv_impl.h"

/* flags: how the default stream is meant. At most one is given. */
#define PER_THREAD (cuuint64_t) CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM
_Static_assert(CU_GET_PROC_ADDRESS_LEGACY_STREAM < CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, "every smaller value is a valid one");

/* Versions above the server's do not exist for the program, although this library may know them. Before the server is known (a lookup must not be what attaches: a process
 * that only loads a library and then forks keeps its right to attach in the child) the headers' version counts. */
static int newest(void) {
    int version = session_server()->driver_version;
    return version > 0 && version < proc_newest_version ? version : proc_newest_version;
}

static const struct proc_name *find(const char *name) {
    unsigned low = 0, high = proc_names_count;
    while (low < high) {
        unsigned middle = (low + high) / 2;
        int order = strcmp(proc_names[middle].name, name);
        if (order == 0) return &proc_names[middle];
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

static CUdriverProcAddressQueryResult look_up(const char *name, int version, cuuint64_t flags, void **out) {
    *out = NULL;
    const struct proc_name *entry = find(name);
    if (!entry) return CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    int limit = newest();
    bool per_thread = flags & PER_THREAD, known = false;
    for (unsigned i = 0; i < entry->count; i++) {
        const struct proc_version *v = &proc_versions[entry->first + i];
        if (v->version > limit) break;
        known = true;
        if (v->version <= version && (per_thread || !v->per_thread)) *out = v->function;
    }
    if (*out) return CU_GET_PROC_ADDRESS_SUCCESS;
    return known ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
}

static int check(const char *symbol, void **function, int version, cuuint64_t flags) {
    return symbol && function && version <= newest() && flags <= PER_THREAD ? 0 : CUDA_ERROR_INVALID_VALUE;
}

CUresult impl_cuGetProcAddress(const char *symbol, void **function, int version, cuuint64_t flags) {
    int rc = check(symbol, function, version, flags);
    if (rc) return rc;
    return look_up(symbol, version, flags, function) == CU_GET_PROC_ADDRESS_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult impl_cuGetProcAddress_v2(const char *symbol, void **function, int version, cuuint64_t flags, CUdriverProcAddressQueryResult *status) {
    int rc = check(symbol, function, version, flags);
    if (rc) return rc;
    CUdriverProcAddressQueryResult found = look_up(symbol, version, flags, function);
    if (status) *status = found;
    return CUDA_SUCCESS;
}
