/* Device memory that RDMA devices read and write themselves (GPUDirect): by a dma-buf where the driver makes one, else by its address, which the kernel's nvidia-peermem
 * translates. None of it has run on such hardware. */
#include <stdlib.h>
#include <unistd.h>

#include "backend_cuda.h"

struct cuda_view {
    struct cuda_view *next;
    uint64_t address, size;
    struct gv_context *context;
    pthread_mutex_t moving; /* guards what follows, which is made for the first bytes that are moved */
    CUstream stream;
    CUevent moved;
};

int cuda_attribute(struct gv_backend *b, CUdevice_attribute attribute, CUdevice device) {
    int value = 0;
    return b->driver.device_attribute(&value, attribute, device) ? 0 : value;
}

/* A view that has all of this; it stays as long as whoever asks for it needs it. */
static struct cuda_view *find(struct gv_backend *b, uint64_t address, uint64_t size) {
    pthread_mutex_lock(&b->lock);
    struct cuda_view *v = b->views;
    while (v && (address < v->address || address - v->address > v->size || size > v->size - (address - v->address))) v = v->next;
    pthread_mutex_unlock(&b->lock);
    return v;
}

/* Whether what other devices have written is seen by kernels that begin later, or can be made so. */
static bool can_be_seen(struct gv_backend *b, CUdevice device) {
    int ordering = cuda_attribute(b, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING, device);
    int flush = cuda_attribute(b, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS, device);
    return ordering >= CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER || (flush & CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST);
}

static int export(struct gv_backend *b, struct gv_context *c, uint64_t address, uint64_t size, int *fd, uint64_t *offset) {
    *fd = -1;
    *offset = 0;
    if (cuda_attribute(b, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, c->device)) {
        uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), first = address & ~(page - 1), end = (address + size + page - 1) & ~(page - 1);
        int status = cuda_enter(c);
        if (!status) status = b->driver.memory_range(fd, first, end - first, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
        if (!status) {
            *offset = address - first;
            return 0;
        }
        *fd = -1;
    }
    return cuda_attribute(b, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED, c->device) ? 0 : CUDA_ERROR_NOT_SUPPORTED;
}

int cuda_device_view(struct gv_backend *b, uint64_t address, uint64_t size, int *fd, uint64_t *offset) {
    size_t i = mappings_find(&b->mappings, address);
    const struct mapping *m = i < b->mappings.n ? &b->mappings.items[i] : NULL;
    /* Without words gates are host functions, in which the driver must not be called. */
    if (!b->rdma || !b->has_words || !m || address < m->address || size > m->size - (address - m->address) || m->physical->imported)
        return CUDA_ERROR_NOT_SUPPORTED;
    struct gv_context *c = m->physical->context;
    if (!can_be_seen(b, c->device)) return CUDA_ERROR_NOT_SUPPORTED;
    struct cuda_view *v = calloc(1, sizeof *v);
    if (!v) return CUDA_ERROR_OUT_OF_MEMORY;
    *v = (struct cuda_view){.address = address, .size = size, .context = c};
    int status = export(b, c, address, size, fd, offset);
    if (status) {
        free(v);
        return status;
    }
    pthread_mutex_init(&v->moving, NULL);
    pthread_mutex_lock(&b->lock);
    v->next = b->views;
    b->views = v;
    pthread_mutex_unlock(&b->lock);
    return 0;
}

void cuda_device_view_end(struct gv_backend *b, uint64_t address, uint64_t size, int written) {
    pthread_mutex_lock(&b->lock);
    struct cuda_view **at = &b->views;
    while (*at && ((*at)->address != address || (*at)->size != size)) at = &(*at)->next;
    struct cuda_view *v = *at;
    if (v) *at = v->next;
    pthread_mutex_unlock(&b->lock);
    if (!v) return;
    struct gv_context *c = v->context;
    int ordering = cuda_attribute(b, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING, c->device);
    bool flush = written && ordering < CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER;
    int status = flush || v->stream ? cuda_enter(c) : 0;
    if (!status && flush)
        status = b->driver.flush_writes(CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX, CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER);
    if (v->stream) b->driver.stream_destroy(v->stream);
    if (v->moved) b->driver.event_destroy(v->moved);
    if (status) cuda_note_error(c, status);
    pthread_mutex_destroy(&v->moving);
    free(v);
}

static int move(struct cuda_view *v, uint64_t address, void *host, uint64_t size, bool to_device) {
    const struct driver *d = &v->context->b->driver;
    int status = cuda_enter(v->context);
    if (!status && !v->stream) status = d->stream_create(&v->stream, CU_STREAM_NON_BLOCKING, 0);
    if (!status && !v->moved) status = d->event_create(&v->moved, CU_EVENT_DISABLE_TIMING);
    if (!status) status = to_device ? d->copy_in(address, host, size, v->stream) : d->copy_out(host, address, size, v->stream);
    if (!status) status = d->event_record(v->moved, v->stream);
    return status ? status : (int)d->event_synchronize(v->moved);
}

int cuda_device_move(struct gv_backend *b, uint64_t address, void *host, uint64_t size, int to_device) {
    struct cuda_view *v = find(b, address, size);
    if (!v) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&v->moving);
    int status = move(v, address, host, size, to_device);
    pthread_mutex_unlock(&v->moving);
    return status;
}
