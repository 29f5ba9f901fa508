/* Texture objects in linear memory, and tensor maps. */
#include "engine/texture.h"
#include "soft.h"
#include "engine/tensor_map.h"

#include <stdlib.h>

#define KEPT 4096 /* destroyed textures that wait: launches which name them may still be under way */

static uint32_t format_bytes(uint32_t format) {
    switch (format) {
    case 0x01:
    case 0x08: return 1;
    case 0x02:
    case 0x09:
    case 0x10: return 2;
    case 0x03:
    case 0x0a:
    case 0x20: return 4;
    default: return 0;
    }
}

int soft_texture_create(struct gv_context *c, const struct gv_texture *texture, uint64_t *object) {
    if (texture->kind != 2 || texture->flags & 0x10) return CUDA_ERROR_NOT_SUPPORTED; /* linear memory; no sRGB */
    uint32_t bytes = format_bytes(texture->format) * texture->channels;
    if (!bytes || texture->channels > 4 || texture->address % bytes) return CUDA_ERROR_INVALID_VALUE;
    struct soft_textures *all = &c->textures;
    struct soft_texture *t;
    if (all->n_live >= GV_TEXTURES_MAX) return CUDA_ERROR_OUT_OF_MEMORY;
    if (all->n_old >= KEPT) {
        t = all->old;
        all->old = t->next;
        all->n_old--;
    } else if (!(t = malloc(sizeof *t))) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *t = (struct soft_texture){.magic = SOFT_TEXTURE_MAGIC,
                               .format = texture->format,
                               .channels = texture->channels,
                               .flags = texture->flags,
                               .address = texture->address,
                               .elements = texture->width / bytes,
                               .next = all->live};
    all->live = t;
    all->n_live++;
    *object = (uint64_t)(uintptr_t)t;
    return 0;
}

int soft_texture_destroy(struct gv_context *c, uint64_t object) {
    struct soft_textures *all = &c->textures;
    struct soft_texture **at = &all->live, *t;
    while (*at && (uint64_t)(uintptr_t)*at != object) at = &(*at)->next;
    t = *at;
    if (!t) return CUDA_ERROR_INVALID_VALUE;
    *at = t->next;
    t->next = NULL;
    all->n_live--;
    if (all->n_old++)
        all->newest->next = t;
    else
        all->old = t;
    all->newest = t;
    return 0;
}

void soft_textures_free(struct gv_context *c) {
    struct soft_textures *all = &c->textures;
    struct soft_texture *lists[] = {all->live, all->old};
    for (int i = 0; i < 2; i++) {
        while (lists[i]) {
            struct soft_texture *t = lists[i];
            lists[i] = t->next;
            free(t);
        }
    }
    *all = (struct soft_textures){0};
}

int soft_tensor_map(struct gv_context *c, const struct gv_tensor_map *wanted, void *map) {
    (void)c;
    return soft_tensor_map_tiled(map, wanted->type, wanted->rank, wanted->address, wanted->dims, wanted->strides, wanted->box, wanted->steps,
                                 wanted->interleave, wanted->swizzle, wanted->fill)
               ? CUDA_ERROR_INVALID_VALUE
               : 0;
}
