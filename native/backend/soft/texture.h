/* What array.c asks of the textures of a context (texture.c). */
#ifndef SOFT_TEXTURES_H
#define SOFT_TEXTURES_H

#include "engine/texture.h"
#include "soft.h"

/* What a texture of memory is; of an array (array.c), and what a surface of one is, in a context. 0 or a CUresult. */
int soft_texture_of_memory(const struct gv_texture *texture, struct soft_texture *out);
int soft_texture_of_array(const struct gv_context *c, const struct gv_array *a, const struct gv_texture *texture, struct soft_texture *out);
int soft_surface_of_array(const struct gv_context *c, const struct gv_array *a, struct soft_texture *out);
/* How it is read. */
void soft_texture_sampling(struct soft_texture *t, const struct gv_texture *texture);
/* Puts a descriptor where device code finds it. CUDA_ERROR_NOT_SUPPORTED: a way of reading that the software GPU lacks. */
int soft_texture_add(struct gv_context *c, const struct soft_texture *t, uint64_t *object);

#endif
