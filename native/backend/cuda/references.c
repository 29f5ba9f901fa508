/* References to textures and surfaces: the driver's own, which it reads at each launch. */
#include <stdint.h>

#include "backend_cuda.h"

/* Enters the module's context and finds the reference. */
static int texture_reference(struct gv_module *m, const char *name, CUtexref *out) {
    const struct driver *d = &m->context->b->driver;
    if (!d->has_references) return CUDA_ERROR_NOT_SUPPORTED;
    int status = cuda_enter(m->context);
    return status ? status : (int)d->texture_reference(out, m->module, name);
}

static int surface_reference(struct gv_module *m, const char *name, CUsurfref *out) {
    const struct driver *d = &m->context->b->driver;
    if (!d->has_references) return CUDA_ERROR_NOT_SUPPORTED;
    int status = cuda_enter(m->context);
    return status ? status : (int)d->surface_reference(out, m->module, name);
}

int cuda_reference_find(struct gv_module *m, const char *name, uint32_t surface) {
    CUtexref texture;
    CUsurfref other;
    return surface ? surface_reference(m, name, &other) : texture_reference(m, name, &texture);
}

/* How it is read. Address modes and filters mean nothing for linear memory, levels of detail only something for mipmapped arrays. */
static int set_sampling(const struct driver *d, CUtexref reference, const struct gv_texture *t, bool modes, bool levels) {
    int status = d->reference_flags(reference, t->flags);
    for (int i = 0; i < 3 && modes && !status; i++) status = d->reference_mode(reference, i, (CUaddress_mode)t->modes[i]);
    if (!status && modes) status = d->reference_filter(reference, (CUfilter_mode)t->filter);
    float border[4] = {t->border[0], t->border[1], t->border[2], t->border[3]};
    bool bordered = t->modes[0] == CU_TR_ADDRESS_MODE_BORDER || t->modes[1] == CU_TR_ADDRESS_MODE_BORDER || t->modes[2] == CU_TR_ADDRESS_MODE_BORDER;
    if (!status && modes && bordered) status = d->reference_border(reference, border);
    if (!status && modes && t->anisotropy) status = d->reference_anisotropy(reference, t->anisotropy);
    if (status || !levels) return status;
    status = d->reference_mip_filter(reference, (CUfilter_mode)t->mip_filter);
    if (!status) status = d->reference_bias(reference, t->bias);
    return status ? status : (int)d->reference_clamp(reference, t->least, t->most);
}

int cuda_reference_memory(struct gv_module *m, const char *name, const struct gv_texture *t) {
    const struct driver *d = &m->context->b->driver;
    CUtexref reference;
    int status = texture_reference(m, name, &reference);
    if (status) return status;
    if (t->kind == CU_RESOURCE_TYPE_LINEAR) {
        size_t offset = 0; /* of an address that the client has aligned */
        status = d->reference_format(reference, (CUarray_format)t->format, (int)t->channels);
        if (!status) status = d->reference_address(&offset, reference, t->address, t->width);
        if (!status && offset) status = CUDA_ERROR_INVALID_VALUE;
    } else if (t->kind == CU_RESOURCE_TYPE_PITCH2D) {
        const CUDA_ARRAY_DESCRIPTOR shape = {t->width, t->height, (CUarray_format)t->format, t->channels};
        status = d->reference_format(reference, (CUarray_format)t->format, (int)t->channels);
        if (!status) status = d->reference_rows(reference, &shape, t->address, t->pitch);
    } else {
        status = CUDA_ERROR_INVALID_VALUE;
    }
    return status ? status : set_sampling(d, reference, t, t->kind == CU_RESOURCE_TYPE_PITCH2D, false);
}

int cuda_reference_array(struct gv_module *m, const char *name, struct gv_array *array, const struct gv_texture *t) {
    const struct driver *d = &m->context->b->driver;
    CUtexref reference;
    CUmipmappedArray levels;
    CUarray one = cuda_array_of(array, &levels);
    int status = texture_reference(m, name, &reference);
    if (!status)
        status =
            levels ? d->reference_levels(reference, levels, CU_TRSA_OVERRIDE_FORMAT) : d->reference_array(reference, one, CU_TRSA_OVERRIDE_FORMAT);
    return status ? status : set_sampling(d, reference, t, true, levels != NULL);
}

int cuda_reference_surface(struct gv_module *m, const char *name, struct gv_array *array) {
    CUsurfref reference;
    CUmipmappedArray levels;
    CUarray one = cuda_array_of(array, &levels);
    int status = surface_reference(m, name, &reference);
    if (!status && !one) status = CUDA_ERROR_INVALID_VALUE;
    return status ? status : (int)m->context->b->driver.reference_surface(reference, one, 0);
}
