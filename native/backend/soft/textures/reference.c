/* References to textures and surfaces: variables of a module that hold a descriptor themselves (engine/texture.h), so that what device code names is a handle.
 *
 * A launch reads the references as they were when it was queued, and a variable has one content at a time: launches that read other contents than those under way wait for
 * them. When none is under way, memory has what was bound last, which is what a session's image takes along. */
#include <stdlib.h>
#include <string.h>

#include "../module.h"
#include "../texture.h"

struct soft_bindings {
    _Atomic uint32_t refs;
    uint32_t n;
    struct soft_texture of[]; /* in the order of the metadata's globals, references only */
};

/* ---- the variables ---- */

static bool is_reference(const struct gv_meta_global *g) { return g->flags & GV_META_GLOBAL_REFERENCE && g->size >= sizeof(struct soft_texture); }

/* The variable of a reference by its number among those of the module; NULL: there are not so many. */
static struct soft_texture *variable(const struct gv_module *m, uint32_t number) {
    const struct gv_meta_header *header = m->meta;
    const struct gv_meta_global *globals = gv_meta_globals(m->meta);
    for (uint32_t i = 0; i < header->n_globals; i++)
        if (is_reference(&globals[i]) && !number--) return (struct soft_texture *)(uintptr_t)globals[i].address;
    return NULL;
}

/* The number of a reference among those of the module; false: it has none of that name. */
static bool number_of(const struct gv_module *m, const char *name, uint32_t kind, uint32_t *number) {
    const struct gv_meta_header *header = m->meta;
    const struct gv_meta_global *globals = gv_meta_globals(m->meta);
    *number = 0;
    for (uint32_t i = 0; i < header->n_globals; i++) {
        if (!is_reference(&globals[i])) continue;
        if (globals[i].flags & kind && !strcmp(gv_meta_strings(m->meta) + globals[i].name, name)) return true;
        ++*number;
    }
    return false;
}

/* Nothing that reads them is under way; module.lock held. */
static void write_all(struct gv_module *m, struct soft_bindings *bindings) {
    if (!bindings || m->written == bindings) return;
    for (uint32_t i = 0; i < bindings->n; i++) *variable(m, i) = bindings->of[i];
    atomic_fetch_add(&bindings->refs, 1);
    soft_bindings_drop(m->written);
    m->written = bindings;
}

uint32_t soft_references_count(const struct gv_module *m) {
    uint32_t n = 0;
    while (variable(m, n)) n++;
    return n;
}

/* The descriptors that later launches read, as they are now. NULL: out of memory. */
static struct soft_bindings *copied(const struct gv_module *m) {
    struct soft_bindings *copy = malloc(sizeof *copy + m->n_references * sizeof copy->of[0]);
    if (!copy) return NULL;
    atomic_init(&copy->refs, 1);
    copy->n = m->n_references;
    for (uint32_t i = 0; i < copy->n; i++) copy->of[i] = m->bound ? m->bound->of[i] : *variable(m, i);
    return copy;
}

/* ---- launches ---- */

/* What lies in memory when a module is loaded, empty or as another worker left it, counts as bound, too. */
struct soft_bindings *soft_bindings_take(struct gv_module *m) {
    if (!m->n_references) return NULL;
    pthread_mutex_lock(&m->lock);
    if (!m->bound) m->bound = copied(m);
    struct soft_bindings *bindings = m->bound;
    if (bindings) atomic_fetch_add(&bindings->refs, 1);
    pthread_mutex_unlock(&m->lock);
    return bindings;
}

void soft_bindings_drop(struct soft_bindings *bindings) {
    if (bindings && atomic_fetch_sub(&bindings->refs, 1) == 1) free(bindings);
}

void soft_bindings_enter(struct gv_module *m, struct soft_bindings *bindings) {
    pthread_mutex_lock(&m->lock);
    while (m->written != bindings && m->running) pthread_cond_wait(&m->rested, &m->lock);
    write_all(m, bindings);
    m->running++;
    pthread_mutex_unlock(&m->lock);
}

void soft_bindings_leave(struct gv_module *m) {
    pthread_mutex_lock(&m->lock);
    if (!--m->running) {
        write_all(m, m->bound);
        pthread_cond_broadcast(&m->rested);
    }
    pthread_mutex_unlock(&m->lock);
}

/* ---- bound ---- */

static int bind(struct gv_module *m, const char *name, uint32_t kind, const struct soft_texture *t) {
    uint32_t number;
    if (!number_of(m, name, kind, &number)) return CUDA_ERROR_NOT_FOUND;
    pthread_mutex_lock(&m->lock);
    struct soft_bindings *fresh = copied(m);
    if (fresh) {
        fresh->of[number] = *t;
        soft_bindings_drop(m->bound);
        m->bound = fresh;
        if (!m->running) write_all(m, fresh);
    }
    pthread_mutex_unlock(&m->lock);
    return fresh ? 0 : CUDA_ERROR_OUT_OF_MEMORY;
}

int soft_reference_find(struct gv_module *m, const char *name, uint32_t surface) {
    uint32_t number;
    return number_of(m, name, surface ? GV_META_GLOBAL_SURFACE : GV_META_GLOBAL_TEXTURE, &number) ? 0 : CUDA_ERROR_NOT_FOUND;
}

int soft_reference_memory(struct gv_module *m, const char *name, const struct gv_texture *texture) {
    struct soft_texture t;
    int rc = soft_texture_of_memory(texture, &t);
    return rc ? rc : bind(m, name, GV_META_GLOBAL_TEXTURE, &t);
}

int soft_reference_array(struct gv_module *m, const char *name, struct gv_array *array, const struct gv_texture *texture) {
    struct soft_texture t;
    int rc = soft_texture_of_array(m->context, array, texture, &t);
    return rc ? rc : bind(m, name, GV_META_GLOBAL_TEXTURE, &t);
}

int soft_reference_surface(struct gv_module *m, const char *name, struct gv_array *array) {
    struct soft_texture t;
    int rc = soft_surface_of_array(m->context, array, &t);
    return rc ? rc : bind(m, name, GV_META_GLOBAL_SURFACE, &t);
}
