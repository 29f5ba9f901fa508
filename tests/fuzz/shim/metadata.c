/* What a module is said to have: kernels, their parameters, globals. */
#include <stdlib.h>
#include <string.h>

#include "server.h"
#include "wire/module_meta.h"

#define KERNELS 4
#define PARAMS 6
#define GLOBALS 3

struct meta {
    struct gv_meta_header header;
    struct gv_meta_kernel kernels[KERNELS];
    struct gv_meta_param params[PARAMS];
    struct gv_meta_global globals[GLOBALS];
    char strings[40];
};

void *metadata_make(struct dice *d, uint64_t number, uint64_t *size) {
    struct meta *m = calloc(1, sizeof *m + 65536);
    *m = (struct meta){.header = {GV_META_MAGIC, GV_META_VERSION, GV_META_GLOBALS_COMPLETE, KERNELS, PARAMS, GLOBALS, sizeof m->strings, 0},
                       .params = {{0, 8}, {8, 4}, {0, 8}, {8, 8}, {16, 4}, {20, 4}},
                       .strings = "k0\0k1\0k2\0k3\0g0\0g1\0g2"};
    for (uint32_t k = 0; k < KERNELS; k++)
        m->kernels[k] = (struct gv_meta_kernel){.name = 3 * k,
                                                .first_param = k < 2 ? 0 : 2,
                                                .n_params = k < 2 ? 2 : 4,
                                                .param_bytes = k < 2 ? 12 : 24,
                                                .max_threads = 1024,
                                                .num_regs = 32,
                                                .static_shared = 1024,
                                                .ptx_version = 80,
                                                .binary_version = 90};
    for (uint32_t g = 0; g < GLOBALS; g++)
        m->globals[g] =
            (struct gv_meta_global){.name = 12 + 3 * g, .align = 8, .size = 256 << g, .address = g ? 0x500000000000 + number * 4096 + g * 1024 : 0};
    *size = sizeof *m;
    if (!lie(d, LIE_META)) return m;
    uint32_t *words[] = {&m->header.n_kernels, &m->header.n_params, &m->header.n_globals, &m->header.strings_size, &m->header.flags};
    struct gv_meta_kernel *k = &m->kernels[roll(d, KERNELS)];
    struct gv_meta_param *p = &m->params[roll(d, PARAMS)];
    struct gv_meta_global *g = &m->globals[roll(d, GLOBALS)];
    uint32_t *of_kernel[] = {&k->name,        &k->first_param,         &k->n_params,
                             &k->param_bytes, &k->max_threads,         &k->static_shared,
                             &k->num_regs,    &k->required_threads[0], &k->required_threads[1],
                             &k->local_bytes, &k->binary_version};
    for (uint64_t n = 1 + roll(d, 4); n; n--) {
        switch (roll(d, 7)) {
        case 0: spoil(d, m, sizeof *m); break;
        case 1: *words[roll(d, 5)] = (uint32_t)odd_number(d, *words[0]); break;
        case 2:
        case 3: {
            uint32_t *word = of_kernel[roll(d, sizeof of_kernel / sizeof *of_kernel)];
            *word = (uint32_t)(roll(d, 2) ? roll(d, 40000) : odd_number(d, *word));
            break;
        }
        case 4: p->offset = (uint32_t)odd_number(d, p->offset); break;
        case 5: p->size = (uint32_t)odd_number(d, p->size); break;
        default:
            g->address = odd_number(d, g->address);
            if (roll(d, 2)) g->size = odd_number(d, g->size);
            if (roll(d, 4) == 0) g->name = (uint32_t)odd_number(d, 0);
        }
    }
    if (roll(d, 4) == 0) *size = roll(d, 2) ? roll(d, sizeof *m) : sizeof *m + roll(d, 65536);
    return m;
}
