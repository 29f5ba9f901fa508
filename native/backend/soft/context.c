/* Contexts: made and destroyed. */
#include <stdio.h>
#include <stdlib.h>

#include "../../wire/image_stream.h"
#include "stream.h"

int soft_context_create(struct gv_backend *b, uint32_t device, uint32_t flags, int primary, struct gv_context **out, char *err) {
    (void)flags, (void)primary;
    if (device >= b->n_devices) {
        snprintf(err, GV_ERR_SIZE, "no device %u", device);
        return CUDA_ERROR_INVALID_DEVICE;
    }
    struct gv_context *c = calloc(1, sizeof *c);
    if (c) {
        c->backend = b;
        c->device = &b->devices[device];
        atomic_init(&c->refs, 1);
        c->heap = soft_heap_create(SOFT_HEAP, &(struct soft_heap_source){soft_memory_heap_take, soft_memory_heap_give, c});
        c->legacy = c->heap ? soft_stream_new(c, 0) : NULL;
    }
    if (!c || !c->legacy) {
        if (c) soft_heap_destroy(c->heap);
        free(c);
        snprintf(err, GV_ERR_SIZE, "out of memory");
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    c->legacy->legacy = true;
    pthread_mutex_lock(&b->lock);
    c->next = b->contexts;
    if (c->next) c->next->previous = c;
    b->contexts = c;
    pthread_mutex_unlock(&b->lock);
    *out = c;
    return 0;
}

/* Streams, events and modules that still exist hold references to it. */
void soft_context_destroy(struct gv_context *c) {
    soft_stream_end_context(c);
    soft_context_drop(c);
}

/* Only the size of malloc's heap can be set; the stack and printf's buffer have fixed sizes. */
int soft_context_limit(struct gv_context *c, uint32_t limit, uint64_t *value) {
    if (limit == CU_LIMIT_MALLOC_HEAP_SIZE) soft_heap_limit(c->heap, *value);
    return 0;
}

static void put_value(void *out, uint64_t value) { gv_image_put(out, value); }

static void restore_heap(struct gv_context *c, struct gv_image_in *in) {
    soft_heap_limit(c->heap, gv_image_get(in, UINT64_MAX));
    soft_heap_number(c->heap, gv_image_get(in, UINT64_MAX));
    for (uint64_t n = gv_image_get(in, UINT32_MAX); n && !in->failed; n--) {
        uint64_t address = gv_image_get(in, UINT64_MAX), size = gv_image_get(in, UINT64_MAX);
        struct soft_placed *p;
        if (in->failed) return;
        if (!address || size % SOFT_PAGE || soft_memory_place_at(c->backend, c->device, size, address, &p))
            return gv_image_in_fail(in, "memory of its kernels' malloc cannot be had where it was");
        if (!soft_heap_adopt(c->heap, p, address, size)) {
            soft_memory_unplace(c->backend, p);
            return gv_image_in_fail(in, "out of memory");
        }
    }
}

void soft_save_context(struct gv_context *c, struct gv_image_out *out) {
    gv_image_put(out, (uint64_t)(int64_t)atomic_load(&c->error));
    gv_image_put_bytes(out, c->error_text, sizeof c->error_text);
    soft_heap_save(c->heap, put_value, out);
    soft_textures_save(c, out);
}

void soft_restore_context(struct gv_context *c, struct gv_image_in *in) {
    atomic_store(&c->error, (int)gv_image_get(in, INT32_MAX));
    gv_image_get_bytes(in, c->error_text, sizeof c->error_text);
    c->error_text[sizeof c->error_text - 1] = 0;
    restore_heap(c, in);
    soft_textures_restore(c, in);
}
