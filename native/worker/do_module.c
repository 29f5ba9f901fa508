/* Modules and launches of their kernels. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../wire/lz4.h"
#include "../wire/module_meta.h"
#include "state.h"

/* A reply whose metadata does not fit a record sends it as a payload of its own. */
#define META_INLINE_MAX (GV_RECORD_MAX - 4096)

/* ---- images kept on disk ----------------------------------------------------------------------------------------------- */

void worker_choose_cache(struct worker *w, int driver_version) {
    struct module_cache *offered = w->cache;
    w->cache = NULL;
    if (!offered || !w->cache_build) return module_cache_close(offered);
    int capability = 0;
    for (uint32_t i = 0; i < w->n_devices; i++) {
        const struct gv_device_info *info = &w->infos[i];
        int each = gv_device_capability(info);
        if (i && each != capability) return module_cache_close(offered); /* an image that one device accepts may be refused by the other */
        capability = each;
    }
    char key[1024];
    snprintf(key, sizeof key, "%s|%d|%d|%s|%s", w->ops->name, driver_version, capability, w->infos[0].name, w->cache_build);
    module_cache_choose(offered, key);
    w->cache = offered;
}

/* ---- loading ------------------------------------------------------------------------------------------------------------- */

struct loaded {
    void *meta; /* the caller's to free */
    size_t meta_size;
    uint8_t digest[GV_SHA256_SIZE]; /* of meta */
};

/* Loads an image and gives it the client's id. */
static int load(struct worker *w, const struct gv_record *record, uint64_t id, const void *image, uint64_t size, struct loaded *out, char *err) {
    struct worker_context *context = worker_context(w, record->ctx);
    struct gv_module *made = NULL;
    int status = CUDA_ERROR_INVALID_CONTEXT;
    uint64_t weight = size + WORKER_MODULE_BYTES;
    if (w->objects.modules.live >= GV_MODULES_MAX || weight > WORKER_MAX_IMAGES - w->image_bytes) {
        snprintf(err, GV_ERR_SIZE, "the session has %llu modules of %llu MiB together: no more fit", (unsigned long long)w->objects.modules.live,
                 (unsigned long long)w->image_bytes >> 20);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (context) status = w->ops->module_load(context->context, image, size, &made, &out->meta, &out->meta_size, err);
    if (!status && (gv_meta_check(out->meta, out->meta_size) || worker_keep_module(w, context, id, made))) {
        w->ops->module_unload(made);
        free(out->meta);
        status = CUDA_ERROR_UNKNOWN;
        snprintf(err, GV_ERR_SIZE, "the module's metadata are not sound, or its id is taken");
    }
    if (status) {
        out->meta = NULL;
        return status;
    }
    struct worker_module *m = handles_get(&w->objects.modules, id);
    m->n_kernels = ((const struct gv_meta_header *)out->meta)->n_kernels;
    m->host_bytes = weight;
    w->image_bytes += weight;
    gv_meta_digest(out->meta, out->meta_size, out->digest);
    return 0;
}

static int reply_module(struct worker *w, const struct gv_record *record, void *meta, size_t meta_size, enum gv_module_kept kept, const char *log) {
    struct gv_reply_module_load reply = {.kept = kept, .log = log};
    if (meta_size <= META_INLINE_MAX) {
        reply.meta = meta;
        reply.meta_size = (uint32_t)meta_size;
    } else {
        reply.meta_tag = GV_BULK_WORKER_TAG | ++w->worker_tags;
        reply.meta_bulk_size = meta_size;
    }
    uint64_t size = gv_reply_module_load_size(&reply);
    void *body = malloc(size);
    if (!body) {
        free(meta);
        return worker_reply(w, record, CUDA_ERROR_OUT_OF_MEMORY, "the server is out of memory", NULL, 0);
    }
    gv_reply_module_load_encode(&reply, body);
    int sent = worker_reply(w, record, 0, NULL, body, (uint32_t)size);
    free(body);
    if (reply.meta_tag)
        worker_send_payload(w, reply.meta_tag, meta, meta_size, false);
    else
        free(meta);
    return sent;
}

/* Unpacks an image of `size` bytes; NULL: the packed bytes are invalid. */
static void *unpack(const void *packed, uint64_t packed_size, uint64_t size) {
    if (size > WORKER_MAX_IMAGE || size / 256 > packed_size) return NULL; /* no block holds more than 255 times its size */
    void *image = malloc(size);
    if (image && !gv_lz4_unpack(packed, packed_size, image, size)) return image;
    free(image);
    return NULL;
}

/* The cache has the module's image: a session's image is to have it, too. */
static void remember(struct worker *w, uint64_t id, const uint8_t *hash) {
    struct worker_module *m = handles_get(&w->objects.modules, id);
    m->kept = 1;
    memcpy(m->hash, hash, sizeof m->hash);
}

int worker_do_module_load(struct worker *w, const struct gv_record *record, const struct gv_cmd_module_load *c, struct worker_bytes *bytes) {
    bool by_hash = !c->bulk && !c->image_size;
    bool named = c->hash_size == GV_SHA256_SIZE;
    if (by_hash && !named) return -1;
    if (by_hash) {
        size_t found;
        bytes->data = bytes->own = module_cache_get(w->cache, c->hash, &found);
        if (!bytes->own) return worker_reply(w, record, GV_MODULE_NOT_HERE, "that image is not kept here", NULL, 0);
        bytes->size = found;
    }
    if (!by_hash && c->raw) {
        void *unpacked = unpack(bytes->data, bytes->size, c->raw);
        if (!unpacked) return -1;
        free(bytes->own);
        *bytes = (struct worker_bytes){unpacked, c->raw, unpacked};
    }
    struct loaded l = {0};
    char err[GV_ERR_SIZE] = "";
    int status = load(w, record, c->module, bytes->data, bytes->size, &l, err);
    enum gv_module_kept kept = GV_MODULE_NOT_KEPT;
    if (!status && w->cache && named) {
        /* The name is the hash of the bytes, whatever the client claims. */
        uint8_t hash[GV_SHA256_SIZE];
        memcpy(hash, c->hash, sizeof hash);
        if (!by_hash) gv_sha256(bytes->data, bytes->size, hash);
        if (!memcmp(hash, c->hash, sizeof hash)) kept = module_cache_put(w->cache, hash, bytes->data, bytes->size, l.digest);
    }
    if (status) return worker_reply(w, record, status, err, NULL, 0);
    if (kept != GV_MODULE_NOT_KEPT) remember(w, c->module, c->hash);
    return reply_module(w, record, l.meta, l.meta_size, kept, err);
}

int worker_do_module_load_known(struct worker *w, const struct gv_record *record, const struct gv_cmd_module_load_known *c) {
    if (c->hash_size != GV_SHA256_SIZE || c->meta_size != GV_META_DIGEST_SIZE) return -1;
    struct loaded l = {0};
    char err[GV_ERR_SIZE] = "";
    size_t size;
    void *image = module_cache_get(w->cache, c->hash, &size);
    int status = image ? load(w, record, c->module, image, size, &l, err) : CUDA_ERROR_FILE_NOT_FOUND;
    free(image);
    if (!image) {
        snprintf(err, sizeof err, "a module that the server kept is gone from its cache, which was damaged meanwhile; start the program again");
    } else if (!status && memcmp(l.digest, c->meta, c->meta_size) != 0) {
        /* With other metadata the client's kernel numbers would be wrong. */
        worker_destroy_module(w, c->module);
        module_cache_drop(w->cache, c->hash);
        status = CUDA_ERROR_INVALID_IMAGE;
        snprintf(err, sizeof err, "a module that the server kept does not give the metadata that it gave before; start the program again");
    }
    if (!status) remember(w, c->module, c->hash);
    free(l.meta);
    if (status) worker_failed(w, record, status, err[0] ? err : "a module that the server accepted before was refused");
    return 0;
}

/* ---- launches ------------------------------------------------------------------------------------------------------------ */

int worker_do_launch(struct worker *w, const struct gv_record *record, const struct gv_cmd_launch *c, struct worker_stream *stream,
                     struct worker_module *module) {
    struct gv_launch launch = {.module = module->module,
                               .kernel = c->kernel,
                               .grid = {c->grid[0], c->grid[1], c->grid[2]},
                               .block = {c->block[0], c->block[1], c->block[2]},
                               .shared = c->shared,
                               .cooperative = c->cooperative,
                               .cluster = c->cluster,
                               .preferred_cluster = c->preferred_cluster,
                               .params = c->params,
                               .params_size = c->params_size};
    int status = c->params_size > GV_PARAMS_MAX ? CUDA_ERROR_INVALID_VALUE : w->ops->launch(stream->stream, &launch);
    if (status)
        worker_failed(w, record, status, "the launch was refused by the device");
    else
        atomic_fetch_add_explicit(&w->launches, 1, memory_order_relaxed);
    return 0;
}
