/* Copies and fills: checked against backed memory, carried out by the stream's thread, and guarded against faults, because memory may be unmapped
 * while they run. */
#include <stdio.h>
#include <string.h>

#include "stream.h"

struct copy_op {
    struct op op;
    char *dst;
    const char *src;
    bool dst_device, src_device;
    struct gv_shape shape;
};

/* Bytes from the first to the last of a rectangle; false when they do not fit the address space. */
static bool span(uint64_t width, uint64_t height, uint64_t depth, uint64_t pitch, uint64_t slice, uint64_t *out) {
    uint64_t rows, slices;
    if (__builtin_mul_overflow(height - 1, pitch, &rows) || __builtin_mul_overflow(depth - 1, slice, &slices)) return false;
    return !__builtin_add_overflow(rows, slices, out) && !__builtin_add_overflow(*out, width, out) && *out < 1ull << 47;
}

static int illegal(char *err, const char *what, const void *address, uint64_t size) {
    snprintf(err, GV_ERR_SIZE, "illegal address 0x%llx: %s %llu bytes that are not all device memory", (unsigned long long)(uintptr_t)address, what,
             (unsigned long long)size);
    return CUDA_ERROR_ILLEGAL_ADDRESS;
}

static void copy_rows(void *arg) {
    const struct copy_op *c = arg;
    const struct gv_shape *s = &c->shape;
    for (uint64_t z = 0; z < s->depth; z++)
        for (uint64_t y = 0; y < s->height; y++)
            memmove(c->dst + z * s->dst_slice + y * s->dst_pitch, c->src + z * s->src_slice + y * s->src_pitch, s->width);
}

static int copy_run(struct gv_stream *stream, struct op *op, char *err) {
    struct copy_op *c = (struct copy_op *)op;
    struct gv_backend *b = stream->context->backend;
    struct gv_shape *s = &c->shape;
    uint64_t dst_size = 0, src_size = 0, fault;
    if (!span(s->width, s->height, s->depth, s->dst_pitch, s->dst_slice, &dst_size) ||
        (c->dst_device && !soft_memory_valid(b, (uint64_t)(uintptr_t)c->dst, dst_size)))
        return illegal(err, "copy to", c->dst, dst_size);
    if (!span(s->width, s->height, s->depth, s->src_pitch, s->src_slice, &src_size) ||
        (c->src_device && !soft_memory_valid(b, (uint64_t)(uintptr_t)c->src, src_size)))
        return illegal(err, "copy from", c->src, src_size);
    /* Rows without gaps are merged into one. */
    if (s->height > 1 && s->dst_pitch == s->width && s->src_pitch == s->width) {
        s->width *= s->height;
        s->height = 1;
    }
    if (s->height == 1 && s->depth > 1 && s->dst_slice == s->width && s->src_slice == s->width) {
        s->width *= s->depth;
        s->depth = 1;
    }
    if (soft_guarded(copy_rows, c, &fault)) return 0;
    snprintf(err, GV_ERR_SIZE, "illegal address 0x%llx in a copy", (unsigned long long)fault);
    return CUDA_ERROR_ILLEGAL_ADDRESS;
}

static int copy(struct gv_stream *s, void *dst, bool dst_device, const void *src, bool src_device, const struct gv_shape *shape) {
    if (!shape->width || !shape->height || !shape->depth) return 0;
    if ((shape->height > 1 && (shape->dst_pitch < shape->width || shape->src_pitch < shape->width))) return CUDA_ERROR_INVALID_VALUE;
    struct copy_op *c = soft_op_new(sizeof *c, OP_WORK, copy_run, NULL);
    if (!c) return CUDA_ERROR_OUT_OF_MEMORY;
    c->dst = dst;
    c->src = src;
    c->dst_device = dst_device;
    c->src_device = src_device;
    c->shape = *shape;
    return soft_stream_push(s, &c->op);
}

int soft_copy_to_device(struct gv_stream *s, uint64_t dst, const void *src, const struct gv_shape *shape) {
    return copy(s, (void *)(uintptr_t)dst, true, src, false, shape);
}

int soft_copy_to_host(struct gv_stream *s, void *dst, uint64_t src, const struct gv_shape *shape) {
    return copy(s, dst, false, (const void *)(uintptr_t)src, true, shape);
}

/* `later` continues only when everything now queued on `earlier`, a legacy stream, has completed. */
static int after_legacy(struct gv_stream *later, struct gv_stream *earlier) {
    struct gv_event *e;
    int status = soft_event_create(earlier->context, CU_EVENT_DISABLE_TIMING, &e);
    if (status) return status;
    status = soft_event_record(e, earlier);
    if (!status) status = soft_stream_wait_event(later, e);
    soft_event_destroy(e);
    return status;
}

int soft_copy_device(struct gv_stream *s, uint64_t dst, struct gv_context *dst_ctx, uint64_t src, struct gv_context *src_ctx,
                     const struct gv_shape *shape) {
    /* Addresses are the same on all devices, but the order is not: a copy between two devices on the legacy stream starts after the earlier work of
     * both devices, and later work of either waits for it. */
    struct gv_context *ends[2] = {src_ctx, dst_ctx};
    bool ordered = s->legacy && src_ctx->device != dst_ctx->device;
    int status = 0;
    for (int i = 0; ordered && i < 2 && !status; i++) {
        if (ends[i] != s->context && ends[i]->legacy) status = after_legacy(s, ends[i]->legacy);
    }
    if (!status) status = copy(s, (void *)(uintptr_t)dst, true, (const void *)(uintptr_t)src, true, shape);
    for (int i = 0; ordered && i < 2 && !status; i++) {
        if (ends[i] != s->context && ends[i]->legacy) status = after_legacy(ends[i]->legacy, s);
    }
    return status;
}

struct fill_op {
    struct op op;
    char *dst;
    uint64_t pitch, width, height;
    uint32_t elem, value;
};

static void fill_rows(void *arg) {
    const struct fill_op *f = arg;
    for (uint64_t y = 0; y < f->height; y++) {
        char *row = f->dst + y * f->pitch;
        if (f->elem == 1)
            memset(row, (int)(f->value & 0xff), f->width);
        else if (f->elem == 2)
            for (uint64_t x = 0; x < f->width; x++) ((uint16_t *)row)[x] = (uint16_t)f->value;
        else
            for (uint64_t x = 0; x < f->width; x++) ((uint32_t *)row)[x] = f->value;
    }
}

static int fill_run(struct gv_stream *s, struct op *op, char *err) {
    struct fill_op *f = (struct fill_op *)op;
    uint64_t size = 0, fault;
    if (!span(f->width * f->elem, f->height, 1, f->pitch, 0, &size) || !soft_memory_valid(s->context->backend, (uint64_t)(uintptr_t)f->dst, size))
        return illegal(err, "fill", f->dst, size);
    if (soft_guarded(fill_rows, f, &fault)) return 0;
    snprintf(err, GV_ERR_SIZE, "illegal address 0x%llx in a fill", (unsigned long long)fault);
    return CUDA_ERROR_ILLEGAL_ADDRESS;
}

int soft_fill(struct gv_stream *s, uint64_t dst, uint64_t pitch, uint32_t elem, uint32_t value, uint64_t width, uint64_t height) {
    if ((elem != 1 && elem != 2 && elem != 4) || dst % elem || width > UINT64_MAX / elem) return CUDA_ERROR_INVALID_VALUE;
    if (!width || !height) return 0;
    if (height > 1 && (pitch % elem || pitch < width * elem)) return CUDA_ERROR_INVALID_VALUE;
    struct fill_op *f = soft_op_new(sizeof *f, OP_WORK, fill_run, NULL);
    if (!f) return CUDA_ERROR_OUT_OF_MEMORY;
    f->dst = (char *)(uintptr_t)dst;
    f->pitch = pitch;
    f->width = width;
    f->height = height;
    f->elem = elem;
    f->value = value;
    return soft_stream_push(s, &f->op);
}
