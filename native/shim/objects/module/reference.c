/* References to textures and surfaces, as modules have them. What the program sets is kept here, and told to the worker in one command before the next launch of a kernel
 * of the module: launches that were made before read what the reference was. A launch from a graph reads what it is when the graph is launched. */
#include "objects/module/reference.h"

#include <stdlib.h>
#include <string.h>

#include "wire/module_meta.h"
#include "gv_client.h"
#include "gv_impl.h"
#include "objects/array.h"

pthread_mutex_t reference_lock = PTHREAD_MUTEX_INITIALIZER;

_Static_assert(sizeof(struct shim_reference) <= 256, "a reference fits its slot");

/* ---- found ---- */

int reference_find(const void *handle, bool surface, struct shim_reference **out) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    struct shim_reference *r = object_get(OBJECT_REFERENCE, handle);
    if (!r || r->surface != surface) return handle ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    *out = r;
    int rc = session_broken();
    return rc || !r->module ? rc : context_status(r->module->context);
}

/* The documentation does not say what a reference is that nobody has set anything of. */
struct shim_reference *reference_new(void) {
    struct shim_reference *r = object_new(OBJECT_REFERENCE);
    if (!r) return NULL;
    r->format = CU_AD_FORMAT_FLOAT;
    r->channels = 1;
    for (int i = 0; i < 3; i++) r->modes[i] = CU_TR_ADDRESS_MODE_CLAMP;
    return r;
}

/* Whether the module has such a reference: 0, CUDA_ERROR_NOT_FOUND, or that it cannot be asked. */
static int ask(const struct shim_module *m, const char *name, bool surface) {
    const struct gv_meta_header *h = m->meta;
    const struct gv_meta_global *globals = gv_meta_globals(m->meta);
    uint32_t wanted = surface ? GV_META_GLOBAL_SURFACE : GV_META_GLOBAL_TEXTURE;
    for (uint32_t i = 0; i < h->n_globals; i++)
        if (globals[i].flags & wanted && !strcmp(gv_meta_strings(m->meta) + globals[i].name, name)) return 0;
    if (h->flags & GV_META_GLOBALS_COMPLETE) return CUDA_ERROR_NOT_FOUND;
    struct session_reply reply;
    int rc = call_reference_find(m->ctx, &(struct gv_cmd_reference_find){.module = m->object.id, .name = name, .surface = surface}, NULL, &reply);
    session_reply_done(&reply);
    if (rc == CUDA_ERROR_NOT_SUPPORTED) shim_log_once("the server's driver has no texture and surface references");
    return rc;
}

static struct shim_reference *known(const struct shim_module *m, const char *name, bool surface) {
    struct shim_reference *r = m->references;
    while (r && (r->surface != surface || strcmp(r->name, name) != 0)) r = r->next;
    return r;
}

/* The same name is the same reference. */
static int get(CUmodule module, const char *name, bool surface, struct shim_reference **out) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    struct shim_module *m = object_get(OBJECT_MODULE, module);
    if (!m) return CUDA_ERROR_INVALID_HANDLE;
    int rc = session_broken();
    if (!rc) rc = context_status(m->context);
    if (rc) return rc;
    if (!out || !name) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&reference_lock);
    struct shim_reference *r = known(m, name, surface);
    rc = r ? 0 : ask(m, name, surface);
    if (!rc && !r) {
        r = reference_new();
        if (r) r->name = strdup(name);
        if (r && r->name) {
            r->module = m;
            r->surface = surface;
            r->next = m->references;
            object_publish(r);
            atomic_store_explicit(&m->references, r, memory_order_release);
        } else {
            if (r) object_free(r);
            rc = CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    pthread_mutex_unlock(&reference_lock);
    if (!rc) *out = r;
    return rc;
}

CUresult impl_cuModuleGetTexRef(CUtexref *out, CUmodule module, const char *name) { return get(module, name, false, (struct shim_reference **)out); }
CUresult impl_cuModuleGetSurfRef(CUsurfref *out, CUmodule module, const char *name) { return get(module, name, true, (struct shim_reference **)out); }

/* ---- told to the worker ---- */

/* The driver takes any value for a mode or a filter; one that it does not know reads as the first one does. */
static CUaddress_mode mode_of(const struct shim_reference *r, int dimension) {
    return (unsigned)r->modes[dimension] <= CU_TR_ADDRESS_MODE_BORDER ? r->modes[dimension] : CU_TR_ADDRESS_MODE_WRAP;
}

static CUfilter_mode filter_of(CUfilter_mode set) { return (unsigned)set <= CU_TR_FILTER_MODE_LINEAR ? set : CU_TR_FILTER_MODE_POINT; }

static int send_memory(const struct shim_module *m, const struct shim_reference *r) {
    struct gv_cmd_reference_memory command = {.module = m->object.id,
                                              .name = r->name,
                                              .kind = r->kind == REFERENCE_LINEAR ? CU_RESOURCE_TYPE_LINEAR : CU_RESOURCE_TYPE_PITCH2D,
                                              .format = r->format,
                                              .channels = r->channels,
                                              .flags = r->flags,
                                              .filter = filter_of(r->filter),
                                              .anisotropy = r->anisotropy,
                                              .modes = {mode_of(r, 0), mode_of(r, 1), mode_of(r, 2)},
                                              .address = r->address,
                                              .width = r->width,
                                              .height = r->height,
                                              .pitch = r->pitch};
    memcpy(command.border, r->border, sizeof command.border);
    return post_reference_memory(m->ctx, 0, &command) ? 0 : post_refused();
}

static int send_array(const struct shim_module *m, const struct shim_reference *r, const struct shim_array *a) {
    struct gv_cmd_reference_array command = {.module = m->object.id,
                                             .name = r->name,
                                             .array = a->object.id,
                                             .format = r->format,
                                             .channels = r->channels,
                                             .flags = r->flags,
                                             .filter = filter_of(r->filter),
                                             .anisotropy = r->anisotropy,
                                             .modes = {mode_of(r, 0), mode_of(r, 1), mode_of(r, 2)},
                                             .mip_filter = filter_of(r->mip_filter),
                                             .bias = r->bias,
                                             .least = r->least,
                                             .most = r->most};
    memcpy(command.border, r->border, sizeof command.border);
    return post_reference_array(m->ctx, 0, &command) ? 0 : post_refused();
}

/* What is filtered are floats. */
static bool filters_integers(const struct shim_reference *r, CUarray_format format) {
    return r->filter == CU_TR_FILTER_MODE_LINEAR && format != CU_AD_FORMAT_FLOAT && format != CU_AD_FORMAT_HALF &&
           (r->flags & CU_TRSF_READ_AS_INTEGER || array_format_size(format) == 4);
}

/* Tells of one; an array that has been destroyed meanwhile is bound no more, which is an error only to a kernel that reads it. */
static int send_one(const struct shim_module *m, struct shim_reference *r) {
    struct shim_array *a = NULL;
    if (r->kind == REFERENCE_ARRAY && array_find(r->array, &a)) r->kind = REFERENCE_UNBOUND;
    if (r->kind == REFERENCE_LEVELS && array_find_levels(r->levels, &a)) r->kind = REFERENCE_UNBOUND;
    if (r->kind == REFERENCE_UNBOUND) return 0;
    if (r->surface && a) {
        const struct gv_cmd_reference_surface command = {.module = m->object.id, .name = r->name, .array = a->object.id};
        return post_reference_surface(m->ctx, 0, &command) ? 0 : post_refused();
    }
    if (r->kind != REFERENCE_LINEAR && filters_integers(r, a ? a->shape.Format : r->format)) {
        shim_log("the texture reference '%s' filters integers: read them as floats (cuTexRefSetFlags) or without a filter", r->name);
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!a && !array_format_size(r->format)) {
        shim_log("the texture reference '%s' has an unknown format (cuTexRefSetFormat)", r->name);
        return CUDA_ERROR_INVALID_VALUE;
    }
    return a ? send_array(m, r, a) : send_memory(m, r);
}

int reference_send(struct shim_module *m) {
    int rc = 0;
    pthread_mutex_lock(&reference_lock);
    for (struct shim_reference *r = m->references; r && !rc; r = r->next) {
        if (!r->changed) continue;
        rc = send_one(m, r);
        if (!rc) r->changed = false;
    }
    pthread_mutex_unlock(&reference_lock);
    return rc;
}

void reference_module_gone(struct shim_module *m) {
    pthread_mutex_lock(&reference_lock);
    struct shim_reference *r = m->references;
    m->references = NULL;
    while (r) {
        struct shim_reference *next = r->next;
        object_retire(r);
        free(r->name);
        object_free(r);
        r = next;
    }
    pthread_mutex_unlock(&reference_lock);
}
