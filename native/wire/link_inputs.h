/* The inputs of a link (cuLink*), packed as one payload: each input is a struct gv_link_input, then its name with its NUL, its options, its data,
 * each padded to 8 bytes. */
#ifndef GV_LINK_INPUTS_H
#define GV_LINK_INPUTS_H

#include <stddef.h>
#include <stdint.h>

/* One option of the just-in-time compiler whose value is a number. */
struct gv_link_option {
    uint32_t option; /* CUjit_option */
    uint32_t zero;
    uint64_t value;
};

struct gv_link_input {
    uint32_t type;      /* CUjitInputType */
    uint32_t n_options; /* for this input alone */
    uint64_t name_size; /* with the NUL */
    uint64_t size;
};

/* Whether an option has a number as its value that is valid on another machine: no buffers, no tables of host addresses. */
int gv_link_option_travels(uint32_t option);

#define GV_LINK_MAX_OPTIONS 64u
/* Bytes that any input takes: its header, and a name of at least its NUL, padded. */
#define GV_LINK_INPUT_LEAST (sizeof(struct gv_link_input) + 8)
/* Inputs of one link: as many as the largest payload (4 GiB) has room for. */
#define GV_LINK_MAX_INPUTS ((uint32_t)((1ull << 32) / GV_LINK_INPUT_LEAST))

/* An input as it lies in a payload. */
struct gv_link_part {
    uint32_t type, n_options;
    const char *name;
    const struct gv_link_option *options;
    const void *data;
    uint64_t size;
};

/* Bytes that an input takes in a payload. */
uint64_t gv_link_part_size(const struct gv_link_part *part);
/* Writes it; `to` is aligned to 8. */
void gv_link_part_put(void *to, const struct gv_link_part *part);
/* Reads the input at *at of a payload of `size` untrusted bytes, aligned to 8, and moves *at behind it. -1: there is no valid input. */
int gv_link_part_take(const void *payload, uint64_t size, uint64_t *at, struct gv_link_part *out);

#endif
