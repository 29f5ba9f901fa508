/* cuGetErrorName and cuGetErrorString. They work at all times: before cuInit, in a forked child, after the end. */
#include "abi/error_strings.h"

#include "abi/entry.h"
#include "gv_impl.h"

static const struct error_row *find(int value) {
    unsigned low = 0, high = error_rows_count;
    while (low < high) {
        unsigned middle = (low + high) / 2;
        if (error_rows[middle].value < value)
            low = middle + 1;
        else
            high = middle;
    }
    return low < error_rows_count && error_rows[low].value == value ? &error_rows[low] : NULL;
}

const char *error_name(CUresult code) {
    const struct error_row *row = find((int)code);
    return row ? row->name : "an unknown error";
}

CUresult impl_cuGetErrorName(CUresult code, const char **out) {
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    const struct error_row *row = find((int)code);
    *out = row ? row->name : NULL;
    return row ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult impl_cuGetErrorString(CUresult code, const char **out) {
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    const struct error_row *row = find((int)code);
    /* What this session knows (which server was lost, and why) says more than the header. */
    const char *ours = row ? entry_error_text(code) : NULL;
    *out = ours ? ours : row ? row->text : NULL;
    return row ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
