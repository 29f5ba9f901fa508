#include "link_inputs.h"

#include <string.h>

int gv_link_option_travels(uint32_t option) {
    switch (option) {
    case 0:  /* CU_JIT_MAX_REGISTERS */
    case 7:  /* CU_JIT_OPTIMIZATION_LEVEL */
    case 8:  /* CU_JIT_TARGET_FROM_CUCONTEXT */
    case 9:  /* CU_JIT_TARGET */
    case 10: /* CU_JIT_FALLBACK_STRATEGY */
    case 11: /* CU_JIT_GENERATE_DEBUG_INFO */
    case 12: /* CU_JIT_LOG_VERBOSE */
    case 13: /* CU_JIT_GENERATE_LINE_INFO */
    case 14: /* CU_JIT_CACHE_MODE */
    case 20: /* CU_JIT_LTO */
    case 21: /* CU_JIT_FTZ */
    case 22: /* CU_JIT_PREC_DIV */
    case 23: /* CU_JIT_PREC_SQRT */
    case 24: /* CU_JIT_FMA */
    case 29: /* CU_JIT_OPTIMIZE_UNUSED_DEVICE_VARIABLES */
    case 30: /* CU_JIT_POSITION_INDEPENDENT_CODE */
    case 31: /* CU_JIT_MIN_CTA_PER_SM */
    case 32: /* CU_JIT_MAX_THREADS_PER_BLOCK */
    case 33: /* CU_JIT_OVERRIDE_DIRECTIVE_VALUES */
    case 34: /* CU_JIT_SPLIT_COMPILE */
    case 35: /* CU_JIT_BINARY_LOADER_THREAD_COUNT */ return 1;
    default: return 0;
    }
}

static uint64_t padded(uint64_t n) { return (n + 7) & ~(uint64_t)7; }

uint64_t gv_link_part_size(const struct gv_link_part *part) {
    return sizeof(struct gv_link_input) + padded(strlen(part->name) + 1) + part->n_options * sizeof(struct gv_link_option) + padded(part->size);
}

/* Copies and fills up to a multiple of 8 with zeroes; returns the end. */
static char *put(char *to, const void *from, uint64_t n) {
    if (n) memcpy(to, from, n);
    memset(to + n, 0, padded(n) - n);
    return to + padded(n);
}

void gv_link_part_put(void *to, const struct gv_link_part *part) {
    struct gv_link_input head = {.type = part->type, .n_options = part->n_options, .name_size = strlen(part->name) + 1, .size = part->size};
    char *p = put(to, &head, sizeof head);
    p = put(p, part->name, head.name_size);
    p = put(p, part->options, part->n_options * sizeof(struct gv_link_option));
    put(p, part->data, part->size);
}

int gv_link_part_take(const void *payload, uint64_t size, uint64_t *at, struct gv_link_part *out) {
    const char *p = (const char *)payload + *at;
    uint64_t left = size - *at;
    struct gv_link_input head;
    if (*at > size || left < sizeof head) return -1;
    memcpy(&head, p, sizeof head);
    p += sizeof head;
    left -= sizeof head;
    if (!head.name_size || head.name_size > left || padded(head.name_size) > left || p[head.name_size - 1]) return -1;
    out->type = head.type;
    out->name = p;
    p += padded(head.name_size);
    left -= padded(head.name_size);
    uint64_t options = head.n_options * sizeof(struct gv_link_option);
    if (head.n_options > GV_LINK_MAX_OPTIONS || options > left) return -1;
    out->n_options = head.n_options;
    out->options = (const struct gv_link_option *)(const void *)p;
    p += options;
    left -= options;
    if (head.size > left || padded(head.size) > left) return -1;
    out->data = p;
    out->size = head.size;
    *at = (uint64_t)(p - (const char *)payload) + padded(head.size);
    return 0;
}
