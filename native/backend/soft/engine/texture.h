/* A texture of the software GPU, as compiled code finds it: its handle is its address, in memory that the backend has placed, so that it means the same when
 * the session has moved. */
#ifndef SOFT_TEXTURE_H
#define SOFT_TEXTURE_H

#include <stddef.h>
#include <stdint.h>

#define SOFT_TEXTURE_MAGIC 0x58745664

struct soft_texture {
    uint32_t magic, format, channels, flags; /* CUarray_format; CU_TRSF_* */
    uint64_t address, elements;
};

/* Compiled code reads these (gpuvirt/soft/ops/texture.py). */
_Static_assert(offsetof(struct soft_texture, flags) == 12 && offsetof(struct soft_texture, elements) == 24, "texture.py");

#endif
