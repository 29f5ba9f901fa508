/* How a stream says how far it has come, and is stopped, without a call of the driver: the device writes a word of page-locked memory, and waits for
 * another one.
 *
 * A driver that has no room in a stream's queue waits within a call, and holds a lock that other calls need. So nothing that lets a stream go on may
 * depend on the driver: not that a mark is called, for its data may be what a program waits for, and not that a gate is opened. Events and host
 * functions do depend on it: they are only used where the device has no such words. */
#include <stdlib.h>
#include <stddef.h>
#include <string.h>

#include "backend_cuda.h"

#define PAGE 4096

/* A line of the processor's cache for each stream. */
struct line {
    struct device_words words;
    char rest[64 - sizeof(struct device_words)];
};

struct words_page {
    struct words_page *next;
    struct line *lines; /* the driver's memory, which ends with the process */
};

bool cuda_words_supported(struct gv_backend *b) {
    /* Where a device can use the host's own pointers, both see the same memory at any time. gpuvirt's client library, as the driver, says no. */
    for (uint32_t i = 0; i < b->n_devices; i++) {
        int same = 0;
        if (b->driver.device_attribute(&same, CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, b->devices[i]) || !same) return false;
    }
    return true;
}

static bool more(struct gv_backend *b) {
    struct words_page *page = calloc(1, sizeof *page);
    void *memory = NULL;
    CUdeviceptr address = 0;
    if (!page || cuda_enter(b->first) || b->driver.host_alloc(&memory, PAGE, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP) ||
        b->driver.host_address(&address, memory, 0)) {
        free(page);
        return false;
    }
    memset(memory, 0, PAGE);
    page->lines = memory;
    page->next = b->pages;
    b->pages = page;
    for (size_t i = 0; i < PAGE / sizeof *page->lines; i++) {
        page->lines[i].words.address = address + i * sizeof *page->lines;
        cuda_words_give(b, &page->lines[i].words);
    }
    return true;
}

struct device_words *cuda_words_take(struct gv_backend *b) {
    pthread_mutex_lock(&b->lock);
    bool any = b->free_words != NULL;
    pthread_mutex_unlock(&b->lock);
    if (!any && !more(b)) return NULL;
    pthread_mutex_lock(&b->lock);
    struct device_words *w = b->free_words;
    b->free_words = w->next;
    pthread_mutex_unlock(&b->lock);
    atomic_store(&w->reached, 0);
    atomic_store(&w->open, 0);
    return w;
}

void cuda_words_give(struct gv_backend *b, struct device_words *w) {
    pthread_mutex_lock(&b->lock);
    w->next = b->free_words;
    b->free_words = w;
    pthread_mutex_unlock(&b->lock);
}

int cuda_words_queue(struct gv_stream *s, uint32_t mark, uint32_t gate) {
    CUstreamBatchMemOpParams both[2];
    memset(both, 0, sizeof both);
    both[0].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    both[0].writeValue.address = s->words->address;
    both[0].writeValue.value = mark;
    both[1].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    both[1].waitValue.address = s->words->address + offsetof(struct device_words, open);
    both[1].waitValue.value = gate;
    both[1].waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ;
    return (int)s->context->b->driver.memory_operations(s->stream, gate ? 2 : 1, both, 0);
}
