/* What array.c asks of the textures of a context (texture.c). */
#ifndef SOFT_TEXTURES_H
#define SOFT_TEXTURES_H

#include "engine/texture.h"
#include "soft.h"

/* How it is read. */
void soft_texture_sampling(struct soft_texture *t, const struct gv_texture *texture);
/* Puts a descriptor where device code finds it. CUDA_ERROR_NOT_SUPPORTED: a way of reading that the software GPU lacks. */
int soft_texture_add(struct gv_context *c, const struct soft_texture *t, uint64_t *object);

#endif
