/* Writes a session's image, at rest. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../wire/image_stream.h"
#include "../state.h"
#include "format.h"

static void section(struct gv_image_out *out, enum image_section which) { gv_image_put(out, IMAGE_SECTION << 32 | which); }

static void put_name(struct gv_image_out *out, const char *name) {
    char padded[IMAGE_NAME] = "";
    strncpy(padded, name, sizeof padded - 1);
    gv_image_put_bytes(out, padded, sizeof padded);
}

static void save_head(struct worker *w, struct gv_image_out *out) {
    gv_image_put(out, IMAGE_MAGIC);
    gv_image_put(out, IMAGE_VERSION);
    put_name(out, w->ops->name);
    put_name(out, gv_link_transport(w->link));
    gv_image_put(out, w->n_devices);
    gv_image_put_bytes(out, w->infos, w->n_devices * sizeof w->infos[0]);
    gv_image_put(out, w->window_base);
    gv_image_put(out, w->window_size);
}

static void save_counters(struct worker *w, struct gv_image_out *out) {
    gv_image_put(out, atomic_load(&w->commands));
    gv_image_put(out, atomic_load(&w->launches));
    gv_image_put(out, atomic_load(&w->memory_used));
    gv_image_put(out, atomic_load(&w->bulk_received));
    gv_image_put(out, w->outgoing_number);
    gv_image_put(out, w->worker_tags);
    gv_image_put(out, (uint64_t)w->map_failed);
}

static void save_promises(struct worker *w, struct gv_image_out *out) {
    uint8_t (*hashes)[GV_SHA256_SIZE] = malloc(MODULE_CACHE_PROMISES * sizeof *hashes);
    uint32_t n = hashes ? module_cache_hand_over(w->cache, hashes, MODULE_CACHE_PROMISES) : 0;
    if (!hashes) gv_image_out_fail(out, "the server is out of memory");
    gv_image_put(out, n);
    if (n) gv_image_put_bytes(out, hashes, n * sizeof *hashes);
    free(hashes);
}

static void save_contexts(struct worker *w, struct gv_image_out *out) {
    gv_image_put(out, w->contexts.live);
    for (uint64_t i = 0; i < w->contexts.size; i++) {
        const struct worker_context *c = handles_at(&w->contexts, i);
        if (!c) continue;
        const uint64_t fields[] = {c->id, c->device, c->flags, c->primary, atomic_load(&c->failure_told)};
        gv_image_put_bytes(out, fields, sizeof fields);
        w->ops->save_context(c->context, out);
    }
}

static void save_streams(struct worker *w, struct gv_image_out *out) {
    gv_image_put(out, w->streams.live);
    for (uint64_t i = 0; i < w->streams.size; i++) {
        const struct worker_stream *s = handles_at(&w->streams, i);
        if (!s) continue;
        const uint64_t fields[] = {s->id, s->context->id, s->flags, (uint64_t)(int64_t)s->priority};
        gv_image_put_bytes(out, fields, sizeof fields);
    }
}

static void save_events(struct worker *w, struct gv_image_out *out) {
    const struct handles *all = &w->objects.events;
    gv_image_put(out, all->live);
    for (uint64_t i = 0; i < all->size; i++) {
        const struct worker_event *e = handles_at(all, i);
        if (!e) continue;
        gv_image_put(out, all->ids[i]);
        gv_image_put(out, e->ctx);
        w->ops->save_event(e->event, out);
    }
}

static void save_memory(struct worker *w, struct gv_image_out *out) {
    const struct handles *all = &w->objects.physicals;
    w->ops->save_memory(w->backend, out);
    gv_image_put(out, all->live);
    for (uint64_t i = 0; i < all->size; i++) {
        const struct worker_physical *p = handles_at(all, i);
        if (!p) continue;
        gv_image_put(out, all->ids[i]);
        gv_image_put(out, p->bytes);
        w->ops->save_physical(p->physical, out);
    }
}

static void save_arrays(struct worker *w, struct gv_image_out *out) {
    const struct handles *all = &w->objects.arrays;
    gv_image_put(out, all->live);
    for (uint64_t i = 0; i < all->size; i++) {
        const struct worker_array *a = handles_at(all, i);
        if (!a) continue;
        gv_image_put(out, all->ids[i]);
        gv_image_put(out, a->ctx);
        w->ops->save_array(a->array, out);
    }
}

static void save_modules(struct worker *w, struct gv_image_out *out) {
    const struct handles *all = &w->objects.modules;
    gv_image_put(out, all->live);
    for (uint64_t i = 0; i < all->size && !out->failed; i++) {
        const struct worker_module *m = handles_at(all, i);
        if (!m) continue;
        size_t size = 0;
        void *image = m->kept ? module_cache_get(w->cache, m->hash, &size) : NULL;
        if (!image) gv_image_out_fail(out, "the server keeps the image of one of its modules no longer");
        const uint64_t fields[] = {all->ids[i], m->ctx, size};
        gv_image_put_bytes(out, fields, sizeof fields);
        gv_image_put_bytes(out, m->hash, sizeof m->hash);
        gv_image_put_bytes(out, image, size);
        w->ops->save_module(m->module, out);
        free(image);
    }
}

static void save_records(struct worker *w, struct gv_image_out *out) {
    uint64_t n = 0;
    for (const struct worker_aside *a = w->aside_first; a; a = a->next) n++;
    gv_image_put(out, n);
    for (const struct worker_aside *a = w->aside_first; a; a = a->next) {
        gv_image_put(out, a->record->size);
        gv_image_put_bytes(out, a->record, a->record->size);
    }
    worker_save_early(w, out);
}

void worker_save_all(struct worker *w, struct gv_image_out *out) {
    save_head(w, out);
    section(out, IMAGE_LINK);
    gv_link_save(w->link, out);
    section(out, IMAGE_COUNTERS);
    save_counters(w, out);
    section(out, IMAGE_PROMISES);
    save_promises(w, out);
    section(out, IMAGE_CONTEXTS);
    save_contexts(w, out);
    section(out, IMAGE_STREAMS);
    save_streams(w, out);
    section(out, IMAGE_EVENTS);
    save_events(w, out);
    section(out, IMAGE_MEMORY);
    save_memory(w, out);
    section(out, IMAGE_ARRAYS);
    save_arrays(w, out);
    section(out, IMAGE_MODULES);
    save_modules(w, out);
    section(out, IMAGE_PAGES);
    w->ops->save_pages(w->backend, out);
    section(out, IMAGE_RECORDS);
    save_records(w, out);
}
