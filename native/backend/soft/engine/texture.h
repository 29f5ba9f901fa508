/* A texture of the software GPU, as compiled code finds it: its handle is its address. */
#ifndef SOFT_TEXTURE_H
#define SOFT_TEXTURE_H

#include <stdint.h>

#define SOFT_TEXTURE_MAGIC 0x58745664

struct soft_texture {
    uint32_t magic, format, channels, flags; /* CUarray_format; CU_TRSF_* */
    uint64_t address, elements;
    struct soft_texture *next; /* of the context's, or of the destroyed ones */
};

#endif
