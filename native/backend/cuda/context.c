/* Contexts: made and destroyed. */
#include <stdio.h>
#include <stdlib.h>

#include "backend_cuda.h"

static const CUlimit limits[3] = {CU_LIMIT_STACK_SIZE, CU_LIMIT_PRINTF_FIFO_SIZE, CU_LIMIT_MALLOC_HEAP_SIZE};

/* What nobody has counted of what the driver has taken of the device: this context, or those of other processes. */
static void count_beside(struct gv_context *c) {
    struct memory_share *s = &c->account->share;
    uint64_t unused = memory_unused(&c->b->room, s), available = cuda_free_memory(c);
    s->beside = available && available < unused ? unused - available : 0;
    if (s->beside > GV_MEMORY_USAGE_BESIDE) s->beside = GV_MEMORY_USAGE_BESIDE;
    memory_show(&c->b->room, s);
}

/* Words for the legacy stream, which the first context allocates; without them there is no context. */
static int take_words(struct gv_context *c) {
    struct gv_backend *b = c->b;
    if (!b->first) b->first = c; /* the worker's own context of its first device: it lives as long as the backend */
    if (b->has_words) c->legacy->words = cuda_words_take(b);
    int status = b->has_words && !c->legacy->words ? CUDA_ERROR_OUT_OF_MEMORY : cuda_enter(c);
    if (!status) return 0;
    if (c->legacy->words) cuda_words_give(b, c->legacy->words);
    if (b->first == c) b->first = NULL;
    b->driver.context_destroy(c->context);
    return status;
}

int cuda_context_create(struct gv_backend *b, uint32_t device, uint32_t flags, int primary, struct gv_context **out, char *err) {
    struct cuda_device *account = &b->accounts[device]; /* the session's limit is of all contexts of a device together */
    bool own = !account->own;
    uint64_t before = !own && !primary ? cuda_free_memory(account->own) : 0;
    struct gv_context *c = calloc(1, sizeof *c);
    struct gv_stream *legacy = calloc(1, sizeof *legacy);
    int status = CUDA_ERROR_OUT_OF_MEMORY;
    if (c && legacy) {
        *c = (struct gv_context){.b = b, .device = b->devices[device], .primary = primary, .legacy = legacy, .account = account};
        status = primary ? b->driver.primary_retain(&c->context, c->device) : b->driver.context_create(&c->context, flags, c->device);
        if (!status) status = cuda_enter(c);
        if (!status && !cuda_take_since(c, before, &c->counted)) {
            b->driver.context_destroy(c->context);
            status = CUDA_ERROR_OUT_OF_MEMORY;
        }
        *legacy = (struct gv_stream){.context = c, .stream = CU_STREAM_LEGACY};
        if (!status) status = take_words(c);
    }
    if (status) {
        snprintf(err, GV_ERR_SIZE, "the driver could not make a context (error %d)", status);
        free(c);
        free(legacy);
        return status;
    }
    for (unsigned i = 0; i < 3; i++) {
        size_t value = 0;
        if (!b->driver.context_get_limit(&value, limits[i])) c->defaults[i] = value;
    }
    c->next = b->contexts;
    b->contexts = c;
    if (own) {
        account->own = c;
        count_beside(c);
    }
    *out = c;
    return 0;
}

/* Bytes of device memory that a limit takes: the driver has a stack ready for each thread that can be resident. */
static uint64_t taken_by(struct gv_context *c, unsigned which, uint64_t value) {
    int processors = 1, threads = 1;
    if (limits[which] != CU_LIMIT_STACK_SIZE) return value;
    c->b->driver.device_attribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, c->device);
    c->b->driver.device_attribute(&threads, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, c->device);
    uint64_t all;
    return __builtin_mul_overflow(value, (uint64_t)processors * (uint64_t)threads, &all) ? UINT64_MAX : all;
}

/* Limits that take memory are counted beyond their defaults, which are part of the context. */
int cuda_context_limit(struct gv_context *c, uint32_t limit, uint64_t *value) {
    unsigned which = 0;
    while (which < 3 && limits[which] != (CUlimit)limit) which++;
    bool counts = which < 3;
    if (!counts && limit != CU_LIMIT_MAX_L2_FETCH_GRANULARITY && limit != CU_LIMIT_PERSISTING_L2_CACHE_SIZE) return CUDA_ERROR_UNSUPPORTED_LIMIT;
    uint64_t *now_taken = counts ? (c->primary ? &c->account->limits[which] : &c->limits[which]) : NULL, wanted = 0;
    int status = cuda_enter(c);
    if (status) return status;
    if (counts && *value > c->defaults[which]) wanted = taken_by(c, which, *value) - taken_by(c, which, c->defaults[which]);
    if (counts && wanted > *now_taken && !cuda_take(c, wanted - *now_taken)) return CUDA_ERROR_OUT_OF_MEMORY;
    size_t now = 0;
    status = c->b->driver.context_set_limit((CUlimit)limit, *value);
    if (counts && status && wanted > *now_taken) cuda_give(c, wanted - *now_taken);
    if (counts && !status && wanted < *now_taken) cuda_give(c, *now_taken - wanted);
    if (counts && !status) *now_taken = wanted;
    if (!status) status = c->b->driver.context_get_limit(&now, (CUlimit)limit);
    if (!status) *value = now;
    return status;
}

void cuda_context_destroy(struct gv_context *c) {
    struct gv_backend *b = c->b;
    /* Marks and gates must not outlive the context; they are called as soon as the device is idle. */
    if (cuda_enter(c) == 0) b->driver.context_synchronize();
    cuda_marks_await(c);
    if (c->legacy->value_there && cuda_enter(c) == 0) b->driver.event_destroy(c->legacy->value_there);
    for (struct mark *m = c->spent, *next; m; m = next) {
        next = m->next;
        if (cuda_enter(c) == 0) b->driver.event_destroy(m->event);
        free(m);
    }
    if (c->legacy->words) cuda_words_give(b, c->legacy->words);
    cuda_memory_forget(c);
    struct gv_context **at = &b->contexts;
    while (*at && *at != c) at = &(*at)->next;
    if (*at) *at = c->next;
    if (c->primary)
        b->driver.primary_release(c->device);
    else
        b->driver.context_destroy(c->context);
    cuda_give(c, c->counted + c->limits[0] + c->limits[1] + c->limits[2]);
    free(c->legacy);
    free(c);
}
