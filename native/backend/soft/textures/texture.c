/* Texture objects, those of arrays and surfaces too (array.c), and tensor maps. */
#include "../texture.h"
#include "../engine/tensor_map.h"

#include <stdlib.h>
#include <string.h>

#include "../../../wire/image_stream.h"

#define A_PAGE (SOFT_PAGE / sizeof(struct soft_texture))
#define PAGES_MOST ((GV_TEXTURES_MAX + KEPT) / A_PAGE + 1)
#define KEPT 4096 /* destroyed textures that wait: launches which name them may still be under way */

enum { SRGB = 0x10, SEAMLESS_CUBEMAP = 0x40 }; /* CU_TRSF_* */
enum { LINEAR = 2, PITCHED = 3 };              /* CU_RESOURCE_TYPE_* */

struct soft_texture_slot {
    struct soft_texture_slot *next; /* of those that live, of the destroyed ones, or of the unused ones */
    struct soft_texture *texture;
};

struct soft_texture_page {
    struct soft_texture_page *next;
    struct soft_placed *placed;
    struct soft_texture_slot slots[A_PAGE];
};

static void free_all(struct gv_context *c) {
    struct soft_textures *all = &c->textures;
    for (struct soft_texture_page *page; (page = all->pages);) {
        all->pages = page->next;
        soft_memory_unplace(c->backend, page->placed);
        free(page);
    }
    *all = (struct soft_textures){0};
}

/* Room for more textures, at `address` (0: anywhere). */
static int add_page(struct gv_context *c, uint64_t address) {
    struct gv_backend *b = c->backend;
    struct soft_textures *all = &c->textures;
    struct soft_texture_page *page = calloc(1, sizeof *page);
    if (!page) return CUDA_ERROR_OUT_OF_MEMORY;
    int rc = address ? soft_memory_place_at(b, c->device, SOFT_PAGE, address, &page->placed)
                     : soft_memory_place(b, c->device, SOFT_PAGE, false, &page->placed);
    if (rc) {
        free(page);
        return rc;
    }
    page->next = all->pages;
    all->pages = page;
    all->end = free_all;
    for (size_t i = A_PAGE; i--;) {
        struct soft_texture_slot *slot = &page->slots[i];
        *slot = (struct soft_texture_slot){all->unused, (struct soft_texture *)(uintptr_t)page->placed->address + i};
        all->unused = slot;
    }
    return 0;
}

static uint64_t handle_of(const struct soft_texture_slot *slot) { return (uint64_t)(uintptr_t)slot->texture; }

void soft_texture_sampling(struct soft_texture *t, const struct gv_texture *texture) {
    t->flags = texture->flags;
    t->filter = texture->filter;
    memcpy(t->modes, texture->modes, sizeof t->modes);
    memcpy(t->border, texture->border, sizeof t->border);
    t->mip_filter = texture->mip_filter;
    t->bias = texture->bias;
    t->least = texture->least;
    t->most = texture->most;
}

int soft_texture_add(struct gv_context *c, const struct soft_texture *t, uint64_t *object) {
    struct soft_textures *all = &c->textures;
    if (t->flags & SEAMLESS_CUBEMAP) return CUDA_ERROR_NOT_SUPPORTED;
    if (all->n_live >= GV_TEXTURES_MAX) return CUDA_ERROR_OUT_OF_MEMORY;
    struct soft_texture_slot *slot;
    if (all->n_old >= KEPT) {
        slot = all->old;
        all->old = slot->next;
        all->n_old--;
    } else {
        int rc = all->unused ? 0 : add_page(c, 0);
        if (rc) return rc;
        slot = all->unused;
        all->unused = slot->next;
    }
    *slot->texture = *t;
    slot->next = all->live;
    all->live = slot;
    all->n_live++;
    *object = handle_of(slot);
    return 0;
}

int soft_texture_of_memory(const struct gv_texture *texture, struct soft_texture *out) {
    uint32_t bytes = soft_format_bytes(texture->format) * texture->channels;
    if (!bytes || texture->channels > 4 || texture->address % bytes) return CUDA_ERROR_INVALID_VALUE;
    struct soft_texture t = {.magic = SOFT_TEXTURE_MAGIC,
                             .format = texture->format,
                             .channels = texture->channels,
                             .address = texture->address,
                             .height = 1,
                             .depth = 1,
                             .levels = 1};
    soft_texture_sampling(&t, texture);
    switch (texture->kind) {
    case LINEAR:
        if (t.flags & SRGB) return CUDA_ERROR_NOT_SUPPORTED;
        t.elements = texture->width / bytes;
        t.kind = SOFT_LINEAR_TEXTURE;
        break;
    case PITCHED:
        if (!texture->width || !texture->height || texture->width > 1u << 17 || texture->height > 1u << 17) return CUDA_ERROR_INVALID_VALUE;
        if (texture->pitch < texture->width * bytes) return CUDA_ERROR_INVALID_VALUE;
        t.elements = texture->width;
        t.height = (uint32_t)texture->height;
        t.pitch = texture->pitch;
        t.kind = SOFT_IMAGE_TEXTURE;
        break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    *out = t;
    return 0;
}

int soft_texture_create(struct gv_context *c, const struct gv_texture *texture, uint64_t *object) {
    struct soft_texture t;
    int rc = soft_texture_of_memory(texture, &t);
    return rc ? rc : soft_texture_add(c, &t, object);
}

static void make_old(struct soft_textures *all, struct soft_texture_slot *slot) {
    slot->next = NULL;
    if (all->n_old++)
        all->newest->next = slot;
    else
        all->old = slot;
    all->newest = slot;
}

int soft_texture_destroy(struct gv_context *c, uint64_t object) {
    struct soft_textures *all = &c->textures;
    struct soft_texture_slot **at = &all->live, *slot;
    while (*at && handle_of(*at) != object) at = &(*at)->next;
    slot = *at;
    if (!slot) return CUDA_ERROR_INVALID_VALUE;
    *at = slot->next;
    all->n_live--;
    make_old(all, slot);
    return 0;
}

/* ---- in a session's image ---- */

static void put_list(struct gv_image_out *out, const struct soft_texture_slot *slot, uint32_t n) {
    gv_image_put(out, n);
    for (; slot; slot = slot->next) gv_image_put(out, handle_of(slot));
}

void soft_textures_save(struct gv_context *c, struct gv_image_out *out) {
    const struct soft_textures *all = &c->textures;
    uint64_t n = 0;
    for (const struct soft_texture_page *page = all->pages; page; page = page->next) n++;
    gv_image_put(out, n);
    for (const struct soft_texture_page *page = all->pages; page; page = page->next) gv_image_put(out, page->placed->address);
    put_list(out, all->live, all->n_live);
    put_list(out, all->old, all->n_old);
}

/* The unused slot of this handle, which is unused no more. */
static struct soft_texture_slot *take_slot(struct soft_textures *all, uint64_t handle) {
    struct soft_texture_slot **at = &all->unused;
    while (*at && handle_of(*at) != handle) at = &(*at)->next;
    struct soft_texture_slot *slot = *at;
    if (slot) *at = slot->next;
    return slot;
}

void soft_textures_restore(struct gv_context *c, struct gv_image_in *in) {
    struct soft_textures *all = &c->textures;
    int rc = 0;
    for (uint64_t n = gv_image_get(in, PAGES_MOST); n && !in->failed && !rc; n--) {
        uint64_t address = gv_image_get(in, UINT64_MAX);
        rc = address ? add_page(c, address) : CUDA_ERROR_INVALID_VALUE;
    }
    for (uint64_t n = gv_image_get(in, GV_TEXTURES_MAX); n && !in->failed && !rc; n--) {
        struct soft_texture_slot *slot = take_slot(all, gv_image_get(in, UINT64_MAX));
        rc = slot ? 0 : CUDA_ERROR_INVALID_VALUE;
        if (rc) break;
        slot->next = all->live;
        all->live = slot;
        all->n_live++;
    }
    for (uint64_t n = rc ? 0 : gv_image_get(in, KEPT); n && !in->failed && !rc; n--) {
        struct soft_texture_slot *slot = take_slot(all, gv_image_get(in, UINT64_MAX));
        rc = slot ? 0 : CUDA_ERROR_INVALID_VALUE;
        if (slot) make_old(all, slot);
    }
    if (rc) gv_image_in_fail(in, "textures of the image lie where none can be");
}

int soft_tensor_map(struct gv_context *c, const struct gv_tensor_map *wanted, void *map) {
    (void)c;
    if (wanted->channels) {
        const struct soft_pixels pixels = {.channels = wanted->channels,
                                           .count = wanted->pixels,
                                           .lower = {wanted->lower[0], wanted->lower[1], wanted->lower[2]},
                                           .upper = {wanted->upper[0], wanted->upper[1], wanted->upper[2]}};
        return soft_tensor_map_im2col(map, wanted->type, wanted->rank, wanted->address, wanted->dims, wanted->strides, &pixels, wanted->steps,
                                      wanted->interleave, wanted->swizzle, wanted->fill)
                   ? CUDA_ERROR_INVALID_VALUE
                   : 0;
    }
    return soft_tensor_map_tiled(map, wanted->type, wanted->rank, wanted->address, wanted->dims, wanted->strides, wanted->box, wanted->steps,
                                 wanted->interleave, wanted->swizzle, wanted->fill)
               ? CUDA_ERROR_INVALID_VALUE
               : 0;
}

int soft_tensor_map_address(struct gv_context *c, void *map, uint64_t address) {
    (void)c;
    struct soft_tensor_map *m = map;
    if (m->magic != SOFT_TENSOR_MAGIC || !address || m->rank > 5 || address % 16) return CUDA_ERROR_INVALID_VALUE;
    m->address = address;
    return 0;
}
