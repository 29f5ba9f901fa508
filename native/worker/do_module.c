/* Modules and launches. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../wire/module_meta.h"
#include "state.h"

/* A reply whose metadata does not fit a record sends it as a payload of its own. */
#define META_INLINE_MAX (GV_RECORD_MAX - 4096)

static int reply_module(struct worker *w, const struct gv_record *record, void *meta, size_t meta_size, const char *log) {
    struct gv_reply_module_load reply = {.log = log};
    if (meta_size <= META_INLINE_MAX) {
        reply.meta = meta;
        reply.meta_size = (uint32_t)meta_size;
    } else {
        reply.meta_tag = WORKER_TAG | ++w->worker_tags;
        reply.meta_bulk_size = meta_size;
    }
    uint64_t size = gv_reply_module_load_size(&reply);
    void *body = malloc(size);
    if (!body) {
        free(meta);
        return worker_reply(w, record, WORKER_OUT_OF_MEMORY, "the server is out of memory", NULL, 0);
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

int worker_do_module_load(void *worker, const struct gv_record *record, const struct gv_cmd_module_load *c) {
    struct worker *w = worker;
    const void *image = c->image;
    uint64_t size = c->image_size;
    void *received = NULL;
    if (c->bulk) {
        struct worker_expected e;
        worker_expect(w, &e, c->bulk, NULL, 0);
        bool good = worker_wait_payload(w, &e);
        received = e.data;
        size = e.size;
        if (!good) {
            free(received);
            return -1;
        }
        image = received;
    }
    struct worker_context *context = worker_context(w, record->ctx);
    struct worker_module *m = calloc(1, sizeof *m);
    char err[GV_ERR_SIZE] = "";
    void *meta = NULL;
    size_t meta_size = 0;
    int status = !context ? WORKER_INVALID_CONTEXT
                 : !m     ? WORKER_OUT_OF_MEMORY
                          : w->ops->module_load(context->context, image, size, &m->module, &meta, &meta_size, err);
    free(received);
    if (!status && (gv_meta_check(meta, meta_size) || handles_put(&w->modules, c->module, m))) {
        w->ops->module_unload(m->module);
        free(meta);
        status = WORKER_UNKNOWN;
        snprintf(err, sizeof err, "the module's metadata are not sound, or its id is taken");
    }
    if (status) {
        free(m);
        return worker_reply(w, record, status, err, NULL, 0);
    }
    m->ctx = record->ctx;
    m->n_kernels = ((const struct gv_meta_header *)meta)->n_kernels;
    return reply_module(w, record, meta, meta_size, err);
}

int worker_do_module_unload(void *worker, const struct gv_record *record, const struct gv_cmd_module_unload *c) {
    struct worker *w = worker;
    struct worker_module *m = handles_take(&w->modules, c->module);
    if (!m) {
        worker_failed(w, record, WORKER_INVALID_HANDLE, "no such module");
        return 0;
    }
    w->ops->module_unload(m->module);
    free(m);
    return 0;
}

int worker_do_module_global(void *worker, const struct gv_record *record, const struct gv_cmd_module_global *c) {
    struct worker *w = worker;
    struct worker_module *m = handles_get(&w->modules, c->module);
    struct gv_reply_module_global reply = {0};
    int status = m ? w->ops->module_global(m->module, c->name, &reply.address, &reply.size) : WORKER_INVALID_HANDLE;
    uint8_t body[32];
    gv_reply_module_global_encode(&reply, body);
    return worker_reply(w, record, status, NULL, body, (uint32_t)gv_reply_module_global_size(&reply));
}

int worker_do_kernel_attribute(void *worker, const struct gv_record *record, const struct gv_cmd_kernel_attribute *c) {
    struct worker *w = worker;
    struct worker_module *m = handles_get(&w->modules, c->module);
    int status = m && c->kernel < m->n_kernels ? w->ops->kernel_set_attribute(m->module, c->kernel, c->attribute, c->value) : WORKER_INVALID_HANDLE;
    if (status) worker_failed(w, record, status, "the kernel's attribute could not be set");
    return 0;
}

int worker_do_launch(void *worker, const struct gv_record *record, const struct gv_cmd_launch *c) {
    struct worker *w = worker;
    struct worker_stream *s = worker_stream(w, record, c->stream);
    struct worker_module *m = handles_get(&w->modules, c->module);
    if (!s) return 0;
    struct gv_launch launch = {.module = m ? m->module : NULL,
                               .kernel = c->kernel,
                               .grid = {c->grid[0], c->grid[1], c->grid[2]},
                               .block = {c->block[0], c->block[1], c->block[2]},
                               .shared = c->shared,
                               .cooperative = c->cooperative,
                               .params = c->params,
                               .params_size = c->params_size};
    int status = m && c->kernel < m->n_kernels ? w->ops->launch(s->stream, &launch) : WORKER_INVALID_HANDLE;
    if (status)
        worker_failed(w, record, status, "the launch was refused by the device");
    else
        atomic_fetch_add_explicit(&w->launches, 1, memory_order_relaxed);
    return 0;
}
