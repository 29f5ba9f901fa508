#include "module_known.h"

#include "module_meta.h"

void gv_meta_digest(const void *blob, size_t size, uint8_t digest[GV_SHA256_SIZE]) {
    const struct gv_meta_header *header = blob;
    const struct gv_meta_global *globals = gv_meta_globals(blob);
    const char *start = blob, *rest = (const char *)(globals + header->n_globals);
    struct gv_sha256 h;
    gv_sha256_init(&h);
    gv_sha256_add(&h, blob, (size_t)((const char *)globals - start));
    for (uint32_t i = 0; i < header->n_globals; i++) {
        struct gv_meta_global g = globals[i];
        g.address = 0;
        gv_sha256_add(&h, &g, sizeof g);
    }
    gv_sha256_add(&h, rest, size - (size_t)(rest - start));
    gv_sha256_end(&h, digest);
}

void gv_meta_forget_addresses(void *blob) {
    const struct gv_meta_header *header = blob;
    struct gv_meta_global *globals = (struct gv_meta_global *)gv_meta_globals(blob);
    for (uint32_t i = 0; i < header->n_globals; i++) globals[i].address = 0;
}
