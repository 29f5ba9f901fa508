/* Reads a program image from a file. */
#include <stdio.h>
#include <stdlib.h>

#include "objects/objects.h"

int image_read_file(const char *path, void **data, size_t *size) {
    FILE *f = fopen(path, "rbe");
    if (!f) return CUDA_ERROR_FILE_NOT_FOUND;
    size_t capacity = 1 << 16, n = 0;
    char *buffer = malloc(capacity);
    int rc = buffer ? 0 : CUDA_ERROR_OUT_OF_MEMORY;
    while (!rc) {
        n += fread(buffer + n, 1, capacity - n - 1, f);
        if (n < capacity - 1) break;
        char *more = realloc(buffer, capacity * 2);
        if (!more)
            rc = CUDA_ERROR_OUT_OF_MEMORY;
        else
            buffer = more, capacity *= 2;
    }
    if (!rc && ferror(f)) rc = CUDA_ERROR_FILE_NOT_FOUND;
    fclose(f);
    if (rc) {
        free(buffer);
        return rc;
    }
    buffer[n] = 0;
    *data = buffer;
    *size = n;
    return 0;
}
