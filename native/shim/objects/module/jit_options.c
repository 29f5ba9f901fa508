/* Options of the just-in-time compiler and linker: the buffers for its log, which are filled here. */
#include <string.h>

#include "objects/objects.h"

static void write_log(char *buffer, size_t size, void **written, const char *text) {
    size_t n = 0;
    if (buffer && size) {
        n = strlen(text);
        if (n > size - 1) n = size - 1;
        memcpy(buffer, text, n);
        buffer[n] = 0;
    }
    if (written) *written = (void *)(uintptr_t)(n ? n + 1 : 0);
}

void jit_write_logs(const struct jit_options *jit, int status, const char *info, const char *error) {
    if (!jit) return;
    write_log(jit->info, jit->info_size, jit->info_written, status ? "" : info);
    write_log(jit->error, jit->error_size, jit->error_written, status ? error : "");
}

int jit_options_read(unsigned n, CUjit_option *options, void **values, struct jit_options *out) {
    memset(out, 0, sizeof *out);
    if (n && (!options || !values)) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < n; i++) {
        switch ((int)options[i]) {
        case CU_JIT_INFO_LOG_BUFFER: out->info = values[i]; break;
        case CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES:
            out->info_size = (unsigned)(uintptr_t)values[i];
            out->info_written = &values[i];
            break;
        case CU_JIT_ERROR_LOG_BUFFER: out->error = values[i]; break;
        case CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES:
            out->error_size = (unsigned)(uintptr_t)values[i];
            out->error_written = &values[i];
            break;
        case CU_JIT_WALL_TIME: {
            float none = 0;
            memcpy(&values[i], &none, sizeof none);
            break;
        }
        default: break; /* they tune the compiler of a device; the answer is right without them */
        }
    }
    return 0;
}
