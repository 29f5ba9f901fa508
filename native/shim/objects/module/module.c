/* Modules: choosing the image, sending it, and what the answer says about kernels and globals. The driver's calls are in module_calls.c. */
#define _GNU_SOURCE /* dladdr, qsort_r */

#include <dlfcn.h>
#include <execinfo.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "wire/lz4.h"
#include "wire/sha256.h"
#include "gv_client.h"
#include "objects/managed/managed.h"
#include "objects/module/module_cache.h"
#include "objects/module/reference.h"
#include "objects/objects.h"

/* ---- sending an image ---------------------------------------------------------------------------------------------- */

static const char *last_part(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* A name of an image for messages: its file, else the shared library that it lies in, else the library that loads it. */
static const char *source_name(const struct module_source *source, char *text, size_t room) {
    Dl_info own, found;
    if (source->path) return source->path;
    if (source->pointer && dladdr(source->pointer, &found) && found.dli_fname && found.dli_fname[0]) return last_part(found.dli_fname);
    void *frames[32];
    int n = backtrace(frames, 32);
    if (!dladdr((const void *)(uintptr_t)source_name, &own)) n = 0;
    for (int i = 0; i < n; i++) {
        if (!dladdr(frames[i], &found) || found.dli_fbase == own.dli_fbase || !found.dli_fname || !found.dli_fname[0]) continue;
        snprintf(text, room, "an image in memory that %s loads", last_part(found.dli_fname));
        return text;
    }
    return "an image in memory";
}

/* An image on its way into a context. */
struct loading {
    const struct image_choice *choice;
    uint8_t hash[GV_SHA256_SIZE];
    bool wants_log;                 /* the caller gave log buffers, so the compiler has to run */
    uint8_t digest[GV_SHA256_SIZE]; /* of the metadata kept here */
};

/* Below this round-trip time, in ns, images are sent unpacked: packing takes longer than sending. */
#define PACK_RTT_NS 1000000
#define PACK_LEAST 2048u /* bytes */

/* The packed image, when the server is distant and packing saves at least an eighth; NULL: send it unpacked. */
static void *pack(const struct image_choice *choice, size_t *size) {
    if (session_server()->rtt_ns < PACK_RTT_NS || choice->size < PACK_LEAST) return NULL;
    size_t room = choice->size - choice->size / 8;
    void *packed = malloc(room);
    size_t n = packed ? gv_lz4_pack(choice->data, choice->size, packed, room) : 0;
    if (n) {
        *size = n;
        return packed;
    }
    free(packed);
    return NULL;
}

/* Loads on the worker: by hash when the server keeps the image, else small images inside the record, others on the bulk channel. Returns the worker's
 * status; the reply is to be done by the caller. */
static int load_remote(struct shim_context *c, uint64_t id, const struct loading *l, struct gv_reply_module_load *answer,
                       struct session_reply *reply) {
    const struct image_choice *choice = l->choice;
    struct gv_cmd_module_load command = {.module = id, .hash = l->hash, .hash_size = sizeof l->hash};
    uint8_t ignored[4];
    if (module_place(l->hash, ignored) != MODULE_AWAY) {
        int status = call_module_load(c->id, &command, answer, reply);
        if (status != GV_MODULE_NOT_HERE) return status;
        session_reply_done(reply);
        module_place_learn(l->hash, MODULE_AWAY, ignored);
    }
    const void *data = choice->data;
    size_t size = choice->size;
    void *packed = pack(choice, &size);
    if (packed) {
        data = packed;
        command.raw = choice->size;
    }
    int status;
    if (size <= GV_INLINE_MAX) {
        command.image = data;
        command.image_size = (uint32_t)size;
        status = call_module_load(c->id, &command, answer, reply);
    } else {
        status = call_module_load_bulk(c->id, &command, data, size, answer, reply);
    }
    free(packed);
    return status;
}

/* Loads an image without waiting when the server keeps it and this machine has its metadata. False: the server has to be asked. */
static bool load_known(struct shim_module *m, struct loading *l, int *rc) {
    uint8_t meta[4];
    size_t size;
    if (l->wants_log || module_place(l->hash, meta) != MODULE_ACCEPTED) return false;
    m->meta = module_meta_read(l->hash, m->context->info, meta, &size, l->digest);
    if (!m->meta) return false;
    struct gv_cmd_module_load_known command = {
        .module = m->object.id, .hash = l->hash, .hash_size = sizeof l->hash, .meta = l->digest, .meta_size = GV_META_DIGEST_SIZE};
    *rc = post_module_load_known(m->ctx, 0, &command) ? 0 : post_refused();
    return true;
}

/* ---- kernels and globals ------------------------------------------------------------------------------------------- */

struct module_global {
    struct module_global *next;
    CUdeviceptr address;
    uint64_t size;
    char name[];
};

static int compare_names(const void *a, const void *b, void *functions) {
    struct shim_function *const *f = functions;
    return strcmp(f[*(const uint32_t *)a]->name, f[*(const uint32_t *)b]->name);
}

static void free_answers(struct shim_function *f) {
    while (f->clusters) {
        struct cluster_answer *a = f->clusters;
        f->clusters = a->next;
        free(a);
    }
}

static void free_functions(struct shim_module *m) {
    for (uint32_t i = 0; i < m->n_functions; i++) {
        object_retire(m->functions[i]);
        free(m->functions[i]->by_offset);
        free_answers(m->functions[i]);
        m->functions[i]->by_offset = NULL;
        object_free(m->functions[i]);
    }
    free(m->functions);
    free(m->by_name);
    m->functions = NULL;
    m->by_name = NULL;
    m->n_functions = 0;
}

static int make_functions(struct shim_module *m) {
    const struct gv_meta_header *h = m->meta;
    const struct gv_meta_kernel *kernels = gv_meta_kernels(m->meta);
    const struct gv_meta_param *params = gv_meta_params(m->meta);
    const char *strings = gv_meta_strings(m->meta);
    uint32_t device_threads = (uint32_t)device_attribute(m->context->info, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
    uint32_t device_shared = (uint32_t)device_attribute(m->context->info, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK);
    m->functions = calloc(h->n_kernels ? h->n_kernels : 1, sizeof(struct shim_function *));
    m->by_name = calloc(h->n_kernels ? h->n_kernels : 1, sizeof *m->by_name);
    if (!m->functions || !m->by_name) return CUDA_ERROR_OUT_OF_MEMORY;
    for (uint32_t i = 0; i < h->n_kernels; i++) {
        struct shim_function *f = object_new(OBJECT_FUNCTION);
        if (!f) return CUDA_ERROR_OUT_OF_MEMORY;
        const struct gv_meta_kernel *k = &kernels[i];
        f->module = m;
        f->context = m->context;
        f->ctx = m->ctx;
        f->index = i;
        f->meta = k;
        f->params = params + k->first_param;
        f->name = strings + k->name;
        f->max_threads = k->max_threads && k->max_threads < device_threads ? k->max_threads : device_threads;
        f->max_dynamic_shared = device_shared > k->static_shared ? device_shared - k->static_shared : 0;
        f->settings = KERNEL_SETTINGS_DEFAULT;
        m->functions[i] = f;
        m->by_name[i] = i;
        m->n_functions = i + 1;
    }
    qsort_r(m->by_name, m->n_functions, sizeof *m->by_name, compare_names, m->functions);
    return 0;
}

struct shim_function *module_find(const struct shim_module *m, const char *name) {
    uint32_t low = 0, high = m->n_functions;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        struct shim_function *f = m->functions[m->by_name[middle]];
        int order = strcmp(name, f->name);
        if (!order) return f;
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

/* Adds a module's variable to the address map, for copies and pointer queries. */
static int map_global(struct shim_module *m, uint64_t address, uint64_t size, bool managed) {
    struct range r = {.size = size, .kind = RANGE_GLOBAL, .ctx = m->ctx, .device = m->context->device, .context = m->context, .managed = managed};
    int rc = address && size ? range_add(&r, address) : 0;
    return rc || !managed ? rc : managed_variable(m->context, address, size);
}

static void unmap_global(uint64_t address) {
    struct range r;
    if (range_remove(address, RANGE_GLOBAL, RANGE_GLOBAL, &r) && r.managed) managed_forget(address);
}

static void unmap_globals(struct shim_module *m) {
    const struct gv_meta_header *h = m->meta;
    if (h) {
        const struct gv_meta_global *globals = gv_meta_globals(m->meta);
        for (uint32_t i = 0; i < h->n_globals; i++) {
            if (globals[i].address && !(globals[i].flags & GV_META_GLOBAL_REFERENCE)) unmap_global(globals[i].address);
        }
    }
    while (m->globals) {
        struct module_global *g = m->globals;
        m->globals = g->next;
        unmap_global(g->address);
        free(g);
    }
}

int module_global(struct shim_module *m, const char *name, CUdeviceptr *address, size_t *size) {
    const struct gv_meta_header *h = m->meta;
    const struct gv_meta_global *globals = gv_meta_globals(m->meta);
    const char *strings = gv_meta_strings(m->meta);
    bool listed = false, managed = false;
    for (uint32_t i = 0; i < h->n_globals; i++) {
        if (globals[i].flags & GV_META_GLOBAL_REFERENCE || strcmp(strings + globals[i].name, name) != 0) continue;
        listed = true;
        managed = globals[i].flags & GV_META_GLOBAL_MANAGED;
        if (!globals[i].address) break;
        if (address) *address = globals[i].address;
        if (size) *size = globals[i].size;
        return 0;
    }
    if (!listed && h->flags & GV_META_GLOBALS_COMPLETE) return CUDA_ERROR_NOT_FOUND;
    pthread_mutex_lock(&m->context->lock);
    struct module_global *known = m->globals;
    while (known && strcmp(known->name, name) != 0) known = known->next;
    pthread_mutex_unlock(&m->context->lock);
    if (!known) {
        struct session_reply reply;
        struct gv_reply_module_global answer;
        int rc = call_module_global(m->ctx, &(struct gv_cmd_module_global){.module = m->object.id, .name = name}, &answer, &reply);
        session_reply_done(&reply);
        if (rc) return rc;
        known = malloc(sizeof *known + strlen(name) + 1);
        if (!known) return CUDA_ERROR_OUT_OF_MEMORY;
        memcpy(known->name, name, strlen(name) + 1);
        known->address = answer.address;
        known->size = answer.size;
        pthread_mutex_lock(&m->context->lock);
        known->next = m->globals;
        m->globals = known;
        pthread_mutex_unlock(&m->context->lock);
        rc = map_global(m, answer.address, answer.size, managed);
        if (rc) return rc;
    }
    if (address) *address = known->address;
    if (size) *size = known->size;
    return 0;
}

int module_managed(struct shim_module *m, const char *name, CUdeviceptr *address, size_t *size) {
    int rc = module_global(m, name, address, size);
    struct range r;
    if (rc || !range_find_device(*address, &r) || r.managed) return rc;
    /* What is complete says which variables are managed; a driver's metadata do not. */
    if (((const struct gv_meta_header *)m->meta)->flags & GV_META_GLOBALS_COMPLETE) return CUDA_ERROR_NOT_FOUND;
    rc = managed_variable(m->context, *address, r.size);
    if (!rc) range_set_managed(*address);
    return rc;
}

static _Atomic uint32_t unplaced; /* modules whose globals' addresses have not been asked for */

static struct shim_module *next_unplaced(void) {
    struct shim_module *found = NULL;
    pthread_mutex_lock(&context_lock);
    for (struct shim_context *c = context_list; c && !found; c = c->next) {
        pthread_mutex_lock(&c->lock);
        for (struct shim_module *m = c->modules; m && !found; m = m->next) {
            if (m->placed) continue;
            m->placed = true;
            found = m;
        }
        pthread_mutex_unlock(&c->lock);
    }
    pthread_mutex_unlock(&context_lock);
    return found;
}

/* Asks for the addresses of all globals that are not known yet, of all modules of all contexts, so that the address map has them. False when there was
 * nothing to ask. */
static bool place_globals(void) {
    bool asked = false;
    struct shim_module *m;
    while (atomic_load(&unplaced) && (m = next_unplaced())) {
        atomic_fetch_sub(&unplaced, 1);
        const struct gv_meta_header *h = m->meta;
        for (uint32_t i = 0; i < h->n_globals; i++) {
            if (gv_meta_globals(m->meta)[i].flags & GV_META_GLOBAL_REFERENCE) continue;
            asked = true;
            module_global(m, gv_meta_strings(m->meta) + gv_meta_globals(m->meta)[i].name, NULL, NULL);
        }
    }
    return asked;
}

__attribute__((constructor)) static void offer_globals(void) { range_on_unknown(place_globals); }

/* ---- life ---------------------------------------------------------------------------------------------------------- */

/* Takes the metadata from a successful answer. */
static int take_meta(const struct gv_reply_module_load *answer, void **out) {
    uint64_t size = answer->meta_tag ? answer->meta_bulk_size : answer->meta_size;
    if (!size || size > UINT32_MAX) return CUDA_ERROR_UNKNOWN;
    void *meta = malloc(size);
    if (!meta) return CUDA_ERROR_OUT_OF_MEMORY;
    int rc = 0;
    if (answer->meta_tag)
        rc = session_take_payload(answer->meta_tag, meta, size);
    else
        memcpy(meta, answer->meta, size);
    if (!rc && gv_meta_check(meta, size)) {
        shim_log("the server's description of a module makes no sense");
        rc = CUDA_ERROR_UNKNOWN;
    }
    if (rc)
        free(meta);
    else
        *out = meta;
    return rc;
}

static int adopt_answer(struct shim_module *m, const struct loading *l, const struct gv_reply_module_load *answer) {
    int rc = take_meta(answer, &m->meta);
    if (!rc && answer->kept != GV_MODULE_NOT_KEPT) {
        uint64_t size = answer->meta_tag ? answer->meta_bulk_size : answer->meta_size;
        uint8_t digest[GV_SHA256_SIZE];
        gv_meta_digest(m->meta, size, digest);
        module_meta_write(l->hash, m->context->info, m->meta, size, digest);
        module_place_learn(l->hash, answer->kept == GV_MODULE_PROMISED ? MODULE_ACCEPTED : MODULE_ASK, digest);
    }
    if (!rc) rc = make_functions(m);
    m->placed = true;
    const struct gv_meta_header *h = m->meta;
    for (uint32_t i = 0; !rc && i < h->n_globals; i++) {
        const struct gv_meta_global *g = &gv_meta_globals(m->meta)[i];
        if (!(g->flags & GV_META_GLOBAL_REFERENCE)) rc = map_global(m, g->address, g->size, g->flags & GV_META_GLOBAL_MANAGED);
    }
    return rc;
}

static void free_module(struct shim_module *m) {
    free_functions(m);
    reference_module_gone(m);
    if (!m->placed) atomic_fetch_sub(&unplaced, 1);
    if (m->meta) unmap_globals(m);
    free(m->meta);
    object_free(m);
}

/* Logs the reason; not again while it repeats, for libraries retry for each kernel (NCCL) and each device. */
static void refuse_image(struct shim_context *c, const struct module_source *source, const char *why) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static char last[1024];
    char name[300], line[sizeof last];
    int capability = device_capability(c->info);
    snprintf(line, sizeof line, "%s carries no program for this device of compute capability %d.%d%s: %s", source_name(source, name, sizeof name),
             capability / 10, capability % 10, c->info->flags & GV_DEVICE_WANTS_PTX ? " (which runs PTX only)" : "", why);
    pthread_mutex_lock(&lock);
    bool again = !strcmp(line, last);
    memcpy(last, line, strlen(line) + 1);
    pthread_mutex_unlock(&lock);
    if (!again) shim_log("%s", line);
}

int module_load(struct shim_context *c, const struct image *image, const struct module_source *source, const struct jit_options *jit,
                struct shim_library *library, struct shim_module **out) {
    struct image_target target = {.capability = device_capability(c->info), .wants_ptx = c->info->flags & GV_DEVICE_WANTS_PTX};
    struct image_choice choice;
    char why[512];
    int rc = (image->n > 1 && target.wants_ptx ? link_image(c, image, &target, &choice, why, sizeof why)
                                               : image_choose(image, &target, &choice, why, sizeof why));
    if (rc) {
        if (rc == CUDA_ERROR_NO_BINARY_FOR_GPU) refuse_image(c, source, why);
        jit_write_logs(jit, rc, "", why);
        return rc;
    }
    struct shim_module *m = object_new(OBJECT_MODULE);
    if (!m) {
        image_choice_free(&choice);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    m->context = c;
    m->ctx = c->id;
    m->library = library;
    m->placed = true;
    struct session_reply reply = {0};
    struct gv_reply_module_load answer = {0};
    struct loading loading = {.choice = &choice, .wants_log = jit && (jit->info_size || jit->error_size)};
    gv_sha256(choice.data, choice.size, loading.hash);
    bool there = load_known(m, &loading, &rc);
    if (there) {
        jit_write_logs(jit, rc, "", "");
        m->placed = !((const struct gv_meta_header *)m->meta)->n_globals;
        if (!m->placed) atomic_fetch_add(&unplaced, 1);
        if (!rc) rc = make_functions(m);
    } else {
        rc = load_remote(c, m->object.id, &loading, &answer, &reply);
        jit_write_logs(jit, rc, rc ? "" : answer.log, reply.text);
        there = !rc;
        if (!rc)
            rc = adopt_answer(m, &loading, &answer);
        else if (reply.text[0] && !session_broken())
            shim_log("%s: a module was refused: %s", source_name(source, why, sizeof why), reply.text);
    }
    if (rc && there) post_module_unload(m->ctx, 0, &(struct gv_cmd_module_unload){.module = m->object.id});
    image_choice_free(&choice);
    session_reply_done(&reply);
    if (rc) {
        free_module(m);
        return rc;
    }
    pthread_mutex_lock(&c->lock);
    m->next = c->modules;
    if (m->next) m->next->previous = m;
    c->modules = m;
    pthread_mutex_unlock(&c->lock);
    for (uint32_t i = 0; i < m->n_functions; i++) object_publish(m->functions[i]);
    object_publish(m);
    *out = m;
    return 0;
}

static void unlink_module(struct shim_module *m) {
    struct shim_context *c = m->context;
    pthread_mutex_lock(&c->lock);
    if (m->previous)
        m->previous->next = m->next;
    else
        c->modules = m->next;
    if (m->next) m->next->previous = m->previous;
    pthread_mutex_unlock(&c->lock);
}

void module_drop(struct shim_module *m) {
    post_module_unload(m->ctx, 0, &(struct gv_cmd_module_unload){.module = m->object.id});
    free_module(m);
}

/* The caller has retired the handle. */
void module_unload(struct shim_module *m) {
    stream_drain_context(m->context); /* as in the driver: no kernel of the module may be running */
    unlink_module(m);
    module_drop(m);
}

struct shim_module *module_take(struct shim_context *c) {
    pthread_mutex_lock(&c->lock);
    struct shim_module *m = c->modules;
    pthread_mutex_unlock(&c->lock);
    if (!m) return NULL;
    object_retire(m);
    unlink_module(m);
    return m;
}

/* ---- for the private tables ---------------------------------------------------------------------------------------- */

int module_load_image(struct shim_context *c, const void *pointer, CUmodule *out) {
    struct image image;
    struct shim_module *m;
    int rc = image_open(pointer, SIZE_MAX, &image);
    if (!rc) rc = module_load(c, &image, &(struct module_source){.pointer = pointer}, NULL, NULL, &m);
    if (!rc) *out = (CUmodule)m;
    return rc;
}

int module_each_function(CUmodule module, void (*visit)(void *arg, CUfunction function), void *arg) {
    struct shim_module *m = object_get(OBJECT_MODULE, module);
    if (!m) return 0;
    for (uint32_t i = 0; i < m->n_functions; i++) visit(arg, (CUfunction)m->functions[i]);
    return (int)m->n_functions;
}
