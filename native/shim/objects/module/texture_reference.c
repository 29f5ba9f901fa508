/* cuTexRef*: what a texture reference is bound to, and how it is read. All of it is checked and kept here; reference.c tells the worker. */
#include <stdlib.h>
#include <string.h>

#include "gv_impl.h"
#include "objects/array.h"
#include "objects/module/reference.h"

/* A call that sets something holds the lock between begin and end. */
static int begin(CUtexref handle, struct shim_reference **out) {
    int rc = reference_find(handle, false, out);
    if (!rc) pthread_mutex_lock(&reference_lock);
    return rc;
}

static int end(struct shim_reference *r, bool changed) {
    r->changed |= changed;
    pthread_mutex_unlock(&reference_lock);
    return 0;
}

/* The device of the context that a reference reads in; of one of no module, the current context's. */
static int device_of(const struct shim_reference *r, const struct gv_device_info **out) {
    struct shim_context *c = r->module ? r->module->context : NULL;
    int rc = c ? 0 : context_require(&c);
    if (!rc) *out = c->info;
    return rc;
}

/* ---- made and ended ---- */

CUresult impl_cuTexRefCreate(CUtexref *out) {
    struct shim_context *c;
    int rc = context_require(&c);
    if (rc) return rc;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    struct shim_reference *r = reference_new();
    if (!r) return CUDA_ERROR_OUT_OF_MEMORY;
    object_publish(r);
    *out = (CUtexref)r;
    return CUDA_SUCCESS;
}

/* One of a module ends with the module. */
CUresult impl_cuTexRefDestroy(CUtexref handle) {
    struct shim_reference *r;
    int rc = reference_find(handle, false, &r);
    if (rc) return rc;
    if (r->module || !object_retire(r)) return CUDA_ERROR_INVALID_VALUE;
    object_free(r);
    return CUDA_SUCCESS;
}

/* Kernels have all references of their module. */
CUresult impl_cuParamSetTexRef(CUfunction function, int unit, CUtexref handle) {
    struct shim_reference *r;
    int rc = reference_find(handle, false, &r);
    if (rc) return rc;
    const struct shim_function *f = object_get(OBJECT_FUNCTION, function);
    if (!f) return CUDA_ERROR_INVALID_HANDLE;
    (void)unit; /* the driver does not look at it */
    return r->module == f->module ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- what it is bound to ---- */

CUresult impl_cuTexRefSetArray(CUtexref handle, CUarray array, unsigned int flags) {
    struct shim_reference *r;
    struct shim_array *a;
    int rc = reference_find(handle, false, &r);
    if (!rc && flags & ~(unsigned)CU_TRSA_OVERRIDE_FORMAT) rc = CUDA_ERROR_INVALID_VALUE;
    if (!rc) rc = array_find(array, &a);
    if (rc) return rc;
    pthread_mutex_lock(&reference_lock);
    r->kind = REFERENCE_ARRAY;
    r->array = array;
    r->format = a->shape.Format;
    r->channels = a->shape.NumChannels;
    return end(r, true);
}

CUresult impl_cuTexRefSetMipmappedArray(CUtexref handle, CUmipmappedArray levels, unsigned int flags) {
    struct shim_reference *r;
    struct shim_array *a;
    int rc = reference_find(handle, false, &r);
    if (!rc && flags & ~(unsigned)CU_TRSA_OVERRIDE_FORMAT) rc = CUDA_ERROR_INVALID_VALUE;
    if (!rc) rc = array_find_levels(levels, &a);
    if (rc) return rc;
    pthread_mutex_lock(&reference_lock);
    r->kind = REFERENCE_LEVELS;
    r->levels = levels;
    r->format = a->shape.Format;
    r->channels = a->shape.NumChannels;
    return end(r, true);
}

/* The texture begins where the device can have one; the program adds the offset to what it fetches. */
CUresult impl_cuTexRefSetAddress(size_t *offset, CUtexref handle, CUdeviceptr address, size_t bytes) {
    struct shim_reference *r;
    const struct gv_device_info *info;
    struct range range;
    int rc = reference_find(handle, false, &r);
    if (!rc) rc = device_of(r, &info);
    if (rc) return rc;
    if (!range_find_device(address, &range)) return CUDA_ERROR_INVALID_VALUE;
    size_t before = address % (size_t)device_attribute(info, CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT);
    if (before && !offset) return CUDA_ERROR_INVALID_VALUE;
    rc = begin(handle, &r);
    if (rc) return rc;
    size_t texel = (size_t)array_format_size(r->format) * r->channels;
    if (!texel || bytes / texel > (size_t)device_attribute(info, CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LINEAR_WIDTH)) {
        end(r, false);
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (offset) *offset = before;
    r->kind = REFERENCE_LINEAR;
    r->address = address - before;
    r->width = bytes + before;
    return end(r, true);
}

CUresult impl_cuTexRefSetAddress2D(CUtexref handle, const CUDA_ARRAY_DESCRIPTOR *shape, CUdeviceptr address, size_t pitch) {
    struct shim_reference *r;
    const struct gv_device_info *info;
    struct range range;
    int rc = reference_find(handle, false, &r);
    if (!rc) rc = device_of(r, &info);
    if (rc) return rc;
    if (!shape || !array_format_size(shape->Format) || (shape->NumChannels != 1 && shape->NumChannels != 2 && shape->NumChannels != 4))
        return CUDA_ERROR_INVALID_VALUE;
    size_t texel = (size_t)array_format_size(shape->Format) * shape->NumChannels;
    if (!shape->Width || shape->Width > (size_t)device_attribute(info, CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_WIDTH) || !shape->Height ||
        shape->Height > (size_t)device_attribute(info, CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_HEIGHT))
        return CUDA_ERROR_INVALID_VALUE;
    if (pitch < shape->Width * texel || pitch > (size_t)device_attribute(info, CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_PITCH) ||
        pitch % (size_t)device_attribute(info, CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT))
        return CUDA_ERROR_INVALID_VALUE;
    if (address % (size_t)device_attribute(info, CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT) || !range_find_device(address, &range))
        return CUDA_ERROR_INVALID_VALUE;
    rc = begin(handle, &r);
    if (rc) return rc;
    r->kind = REFERENCE_ROWS;
    r->address = address;
    r->width = shape->Width;
    r->height = shape->Height;
    r->pitch = pitch;
    r->format = shape->Format;
    r->channels = shape->NumChannels;
    return end(r, true);
}

CUresult impl_cuTexRefGetArray(CUarray *out, CUtexref handle) {
    struct shim_reference *r;
    int rc = begin(handle, &r);
    if (rc) return rc;
    rc = out && r->kind == REFERENCE_ARRAY ? 0 : CUDA_ERROR_INVALID_VALUE;
    if (!rc) *out = r->array;
    end(r, false);
    return rc;
}

CUresult impl_cuTexRefGetMipmappedArray(CUmipmappedArray *out, CUtexref handle) {
    struct shim_reference *r;
    int rc = begin(handle, &r);
    if (rc) return rc;
    rc = out && r->kind == REFERENCE_LEVELS ? 0 : CUDA_ERROR_INVALID_VALUE;
    if (!rc) *out = r->levels;
    end(r, false);
    return rc;
}

CUresult impl_cuTexRefGetAddress(CUdeviceptr *out, CUtexref handle) {
    struct shim_reference *r;
    int rc = begin(handle, &r);
    if (rc) return rc;
    rc = out && (r->kind == REFERENCE_LINEAR || r->kind == REFERENCE_ROWS) ? 0 : CUDA_ERROR_INVALID_VALUE;
    if (!rc) *out = r->address;
    end(r, false);
    return rc;
}

/* ---- how it is read ---- */

CUresult impl_cuTexRefSetFormat(CUtexref handle, CUarray_format format, int channels) {
    struct shim_reference *r;
    int rc = reference_find(handle, false, &r);
    if (!rc && channels != 1 && channels != 2 && channels != 4) rc = CUDA_ERROR_INVALID_VALUE;
    if (!rc) rc = begin(handle, &r);
    if (rc) return rc;
    /* An array's own format counts (CU_TRSA_OVERRIDE_FORMAT). */
    bool heeded = r->kind != REFERENCE_ARRAY && r->kind != REFERENCE_LEVELS;
    if (heeded) {
        r->format = format;
        r->channels = (unsigned)channels;
    }
    return end(r, heeded);
}

CUresult impl_cuTexRefGetFormat(CUarray_format *format, int *channels, CUtexref handle) {
    struct shim_reference *r;
    int rc = begin(handle, &r);
    if (rc) return rc;
    if (format) *format = r->format;
    if (channels) *channels = (int)r->channels;
    return end(r, false);
}

CUresult impl_cuTexRefSetAddressMode(CUtexref handle, int dimension, CUaddress_mode mode) {
    struct shim_reference *r;
    int rc = reference_find(handle, false, &r);
    if (!rc && (dimension < 0 || dimension > 2)) rc = CUDA_ERROR_INVALID_VALUE;
    if (!rc) rc = begin(handle, &r);
    if (rc) return rc;
    r->modes[dimension] = mode;
    return end(r, true);
}

CUresult impl_cuTexRefGetAddressMode(CUaddress_mode *out, CUtexref handle, int dimension) {
    struct shim_reference *r;
    int rc = reference_find(handle, false, &r);
    if (!rc && (!out || dimension < 0 || dimension > 2)) rc = CUDA_ERROR_INVALID_VALUE;
    if (!rc) rc = begin(handle, &r);
    if (rc) return rc;
    *out = r->modes[dimension];
    return end(r, false);
}

#define KNOWN_FLAGS (CU_TRSF_READ_AS_INTEGER | CU_TRSF_NORMALIZED_COORDINATES | CU_TRSF_SRGB | CU_TRSF_DISABLE_TRILINEAR_OPTIMIZATION)

CUresult impl_cuTexRefSetFlags(CUtexref handle, unsigned int flags) {
    struct shim_reference *r;
    int rc = reference_find(handle, false, &r);
    if (!rc && flags & ~(unsigned)KNOWN_FLAGS) rc = CUDA_ERROR_INVALID_VALUE;
    if (!rc) rc = begin(handle, &r);
    if (rc) return rc;
    r->flags = flags;
    return end(r, true);
}

CUresult impl_cuTexRefSetBorderColor(CUtexref handle, float *color) {
    struct shim_reference *r;
    int rc = reference_find(handle, false, &r);
    if (!rc && !color) rc = CUDA_ERROR_INVALID_VALUE;
    if (!rc) rc = begin(handle, &r);
    if (rc) return rc;
    memcpy(r->border, color, sizeof r->border);
    return end(r, true);
}

CUresult impl_cuTexRefGetBorderColor(float *out, CUtexref handle) {
    struct shim_reference *r;
    int rc = reference_find(handle, false, &r);
    if (!rc && !out) rc = CUDA_ERROR_INVALID_VALUE;
    if (!rc) rc = begin(handle, &r);
    if (rc) return rc;
    memcpy(out, r->border, sizeof r->border);
    return end(r, false);
}

CUresult impl_cuTexRefSetMipmapLevelClamp(CUtexref handle, float least, float most) {
    struct shim_reference *r;
    int rc = begin(handle, &r);
    if (rc) return rc;
    r->least = least;
    r->most = most;
    return end(r, true);
}

CUresult impl_cuTexRefGetMipmapLevelClamp(float *least, float *most, CUtexref handle) {
    struct shim_reference *r;
    int rc = reference_find(handle, false, &r);
    if (!rc && (!least || !most)) rc = CUDA_ERROR_INVALID_VALUE;
    if (!rc) rc = begin(handle, &r);
    if (rc) return rc;
    *least = r->least;
    *most = r->most;
    return end(r, false);
}

/* A value of its own that is set if it is right, and told. */
#define SETTER(call, type, right, member)                   \
    CUresult impl_##call(CUtexref handle, type value) {     \
        struct shim_reference *r;                           \
        int rc = reference_find(handle, false, &r);         \
        if (!rc && !(right)) rc = CUDA_ERROR_INVALID_VALUE; \
        if (!rc) rc = begin(handle, &r);                    \
        if (rc) return rc;                                  \
        r->member = value;                                  \
        return end(r, true);                                \
    }
#define GETTER(call, type, member)                      \
    CUresult impl_##call(type *out, CUtexref handle) {  \
        struct shim_reference *r;                       \
        int rc = reference_find(handle, false, &r);     \
        if (!rc && !out) rc = CUDA_ERROR_INVALID_VALUE; \
        if (!rc) rc = begin(handle, &r);                \
        if (rc) return rc;                              \
        *out = (type)r->member;                         \
        return end(r, false);                           \
    }
#define MOST_ANISOTROPY 16u

SETTER(cuTexRefSetFilterMode, CUfilter_mode, true, filter)
SETTER(cuTexRefSetMipmapFilterMode, CUfilter_mode, true, mip_filter)
SETTER(cuTexRefSetMipmapLevelBias, float, true, bias)
SETTER(cuTexRefSetMaxAnisotropy, unsigned, value <= MOST_ANISOTROPY, anisotropy)
GETTER(cuTexRefGetFilterMode, CUfilter_mode, filter)
GETTER(cuTexRefGetMipmapFilterMode, CUfilter_mode, mip_filter)
GETTER(cuTexRefGetMipmapLevelBias, float, bias)
GETTER(cuTexRefGetMaxAnisotropy, int, anisotropy)
GETTER(cuTexRefGetFlags, unsigned, flags)

/* ---- surfaces ---- */

CUresult impl_cuSurfRefSetArray(CUsurfref handle, CUarray array, unsigned int flags) {
    struct shim_reference *r;
    struct shim_array *a;
    int rc = reference_find(handle, true, &r);
    if (!rc && flags) rc = CUDA_ERROR_INVALID_VALUE;
    if (!rc) rc = array_find(array, &a);
    if (!rc && !a->is_level && !(a->shape.Flags & CUDA_ARRAY3D_SURFACE_LDST)) rc = CUDA_ERROR_INVALID_VALUE;
    if (rc) return rc;
    pthread_mutex_lock(&reference_lock);
    r->kind = REFERENCE_ARRAY;
    r->array = array;
    return end(r, true);
}

CUresult impl_cuSurfRefGetArray(CUarray *out, CUsurfref handle) {
    struct shim_reference *r;
    int rc = reference_find(handle, true, &r);
    if (rc) return rc;
    pthread_mutex_lock(&reference_lock);
    rc = out && r->kind == REFERENCE_ARRAY ? 0 : CUDA_ERROR_INVALID_VALUE;
    if (!rc) *out = r->array;
    end(r, false);
    return rc;
}
