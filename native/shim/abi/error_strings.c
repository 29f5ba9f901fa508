/* cuGetErrorName and cuGetErrorString. They work at all times: before cuInit, in a forked child, after the end. */
#include "abi/entry.h"
#include "abi/error_table.h"
#include "gv_impl.h"

CUresult impl_cuGetErrorName(CUresult code, const char **out) {
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    const struct error_row *row = error_find((int)code);
    *out = row ? row->name : NULL;
    return row ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult impl_cuGetErrorString(CUresult code, const char **out) {
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    const struct error_row *row = error_find((int)code);
    /* What this session knows (which server was lost, and why) says more than the header. */
    const char *ours = row ? entry_error_text(code) : NULL;
    *out = ours ? ours : row ? row->text : NULL;
    return row ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
