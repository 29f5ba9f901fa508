/* Program images as the application hands them over: a bare pointer to a fatbin wrapper, a fatbin, an ELF file or PTX text, without a size. These
 * functions find its extent and choose the one part that the device will run; only that is sent. They use no session. */
#ifndef SHIM_IMAGE_H
#define SHIM_IMAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum image_kind { IMAGE_FATBIN, IMAGE_ELF, IMAGE_PTX };

struct image_part {
    enum image_kind kind;
    const void *data;
    size_t size; /* bytes; of PTX without its NUL */
};

#define IMAGE_MAX_PARTS 64

/* The parts behind one pointer. A wrapper of separately compiled code may have several fatbins. */
struct image {
    struct image_part parts[IMAGE_MAX_PARTS];
    unsigned n;
    bool linked; /* the first part is the others put together, for the architectures that the program was linked for */
    void *copy;  /* the memory behind the parts when it is ours, else NULL */
};

struct image_target {
    int capability; /* 10 * major + minor */
    bool wants_ptx; /* take PTX even where SASS fits: a device that cannot run SASS at all */
};

/* A choice: `size` bytes at `data`, to be freed by the caller when `owned`. */
struct image_choice {
    const void *data;
    size_t size;
    bool is_ptx;
    bool owned;
};

/* Looks at `pointer`; `limit` is how many bytes are known to be readable there (SIZE_MAX: unknown). 0, CUDA_ERROR_INVALID_IMAGE (200) for what is no image or a corrupt one. */
int image_open(const void *pointer, size_t limit, struct image *out);
/* Copies the parts out of the application's memory. 0 or CUDA_ERROR_OUT_OF_MEMORY. */
int image_keep(struct image *image);
void image_close(struct image *image);
/* Chooses what runs on `target`: the piece alone, as a fatbin with a single entry, still compressed, or an ELF or PTX as it is. 0, CUDA_ERROR_NO_BINARY_FOR_GPU (209) with
 * `why` listing what there is, CUDA_ERROR_INVALID_IMAGE, CUDA_ERROR_OUT_OF_MEMORY. */
int image_choose(const struct image *image, const struct image_target *target, struct image_choice *out, char *why, size_t why_size);
void image_choice_free(struct image_choice *choice);

#endif
