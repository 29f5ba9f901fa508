/* The files that lie behind what sessions share, and which addresses and which physical memory have pages in them. exports.c puts it there. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../physical.h"
#include "shared.h"

static void *pointer(uint64_t address) { return (void *)(uintptr_t)address; }

void soft_shared_open(struct gv_backend *b, const struct gv_backend_config *config) {
    file_source_open(&b->memory.source, config);
    b->event_files = (struct event_files){.lock = &b->lock, .source = &b->memory.source};
}

struct soft_file *soft_file_add(struct soft_memory *m, int fd, uint64_t number, uint64_t size, bool ours) {
    struct soft_file *f = calloc(1, sizeof *f);
    if (!f) return NULL;
    *f = (struct soft_file){.next = m->files, .fd = fd, .number = number, .size = size, .refs = 1, .ours = ours};
    m->files = f;
    return f;
}

void soft_file_drop(struct gv_backend *b, struct soft_file *f) {
    struct soft_memory *m = &b->memory;
    if (--f->refs) return;
    struct soft_file **at = &m->files;
    while (*at != f) at = &(*at)->next;
    *at = f->next;
    close(f->fd);
    if (f->ours) file_source_over(&m->source, f->number);
    free(f);
}

bool soft_memory_is_shared(struct gv_backend *b) {
    pthread_mutex_lock(&b->memory.lock);
    bool any = b->memory.files;
    pthread_mutex_unlock(&b->memory.lock);
    return any;
}

void soft_segments_forget(struct gv_backend *b, uint64_t address, uint64_t size) {
    struct soft_segment **at = &b->memory.segments;
    while (*at) {
        struct soft_segment *s = *at;
        uint64_t end = address + size, s_end = s->address + s->size;
        if (s->address >= end || s_end <= address) {
            at = &s->next;
            continue;
        }
        if (s->address < address && s_end > end) { /* what is left are two */
            struct soft_segment *rest = malloc(sizeof *rest);
            if (rest) { /* without memory those addresses count as never exported: an export of them copies them once more */
                *rest = (struct soft_segment){.next = s->next, .address = end, .size = s_end - end, .file = s->file};
                rest->offset = s->offset + (end - s->address);
                s->file->refs++;
                s->next = rest;
            }
            s->size = address - s->address;
        } else if (s->address < address) {
            s->size = address - s->address;
        } else if (s_end > end) {
            s->offset += end - s->address;
            s->size = s_end - end;
            s->address = end;
        } else {
            *at = s->next;
            soft_file_drop(b, s->file);
            free(s);
            continue;
        }
        at = &(*at)->next;
    }
}

void soft_shared_close(struct gv_backend *b) {
    struct soft_memory *m = &b->memory;
    while (m->segments) {
        struct soft_segment *s = m->segments;
        m->segments = s->next;
        free(s);
    }
    while (m->files) {
        struct soft_file *f = m->files;
        m->files = f->next;
        close(f->fd);
        free(f);
    }
    event_files_close(&b->event_files);
}

/* ---- pieces ---- */

bool soft_copy_pages(int file, uint64_t offset, uint64_t from, uint64_t size) {
    static const char zeros[SOFT_PAGE];
    char *to = mmap(NULL, size, PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, (off_t)offset);
    if (to == MAP_FAILED) return false;
    for (uint64_t at = 0; at < size; at += SOFT_PAGE) {
        const void *page = pointer(from + at);
        if (memcmp(page, zeros, SOFT_PAGE) != 0) memcpy(to + at, page, SOFT_PAGE);
    }
    return munmap(to, size) == 0;
}

bool soft_pieces_map(const struct gv_physical *p, uint64_t address, uint64_t size, int protection) {
    for (uint32_t i = 0; i < p->pieces->n && size; i++) {
        const struct soft_piece *piece = &p->pieces->items[i];
        uint64_t part = piece->size < size ? piece->size : size;
        void *at = mmap(pointer(address), part, protection, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, piece->file->fd, (off_t)piece->offset);
        if (at == MAP_FAILED) return false;
        address += part;
        size -= part;
    }
    return !size;
}

void soft_pieces_drop(struct gv_physical *p) {
    for (uint32_t i = 0; i < p->pieces->n; i++) soft_file_drop(p->backend, p->pieces->items[i].file);
    free(p->pieces);
    p->pieces = NULL;
}
