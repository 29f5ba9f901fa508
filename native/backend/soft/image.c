/* A session's image, the memory of the software GPU in it. Everything lies at the same addresses afterwards: the window is where it was, and what is placed or
 * mapped in it too, so that pointers in device memory mean what they meant. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "../../wire/image_stream.h"
#include "image.h"
#include "mappings.h"
#include "physical.h"
#include "shared/shared.h"
#include "stream.h"

/* What restore_memory has read and restore_pages puts into place. */
struct soft_restoring {
    struct gv_physical **physicals; /* by number */
    bool *claimed;
    uint64_t n_physicals, n_mappings;
    struct mapping *mappings; /* with the number in the place of the pointer, until it is known */
    uint64_t *of;
};

static void *pointer(uint64_t address) { return (void *)(uintptr_t)address; }

int soft_at_rest(struct gv_backend *b) {
    bool rest = true;
    pthread_mutex_lock(&b->lock);
    for (const struct gv_context *c = b->contexts; c && rest; c = c->next)
        for (const struct gv_stream *s = c->streams; s && rest; s = s->next) rest = s->completed == atomic_load(&s->queued);
    rest = rest && !b->frees;
    pthread_mutex_unlock(&b->lock);
    return rest;
}

/* A stream that executes nothing waits for another stream, or for an event. */
int soft_awaits_value(struct gv_backend *b) {
    bool awaits = false, works = false;
    pthread_mutex_lock(&b->lock);
    for (const struct gv_context *c = b->contexts; c && !works; c = c->next)
        for (const struct gv_stream *s = c->streams; s && !works; s = s->next) {
            bool value = s->executing && atomic_load_explicit(&s->awaits_value, memory_order_relaxed);
            works = s->executing && !value;
            awaits = awaits || value;
        }
    pthread_mutex_unlock(&b->lock);
    return awaits && !works;
}

/* ---- what memory there is ---- */

/* Calls fn for each part of [start, end) that is no mapping. */
static void between_mappings(const struct soft_memory *m, uint64_t start, uint64_t end, void (*fn)(void *arg, uint64_t address, uint64_t size),
                             void *arg) {
    for (size_t i = mappings_find(&m->mappings, start); start < end; i++) {
        uint64_t next = i < m->mappings.n && m->mappings.items[i].address < end ? m->mappings.items[i].address : end;
        if (next > start) fn(arg, start, next - start);
        start = next < end ? next + m->mappings.items[i].size : end;
    }
}

void soft_backed_ranges(struct gv_backend *b, uint32_t device, void (*fn)(void *arg, uint64_t address, uint64_t size), void *arg) {
    const struct soft_memory *m = &b->memory;
    const struct gv_window_part *part = &b->devices[device].part;
    for (size_t i = 0; i < m->backed.n; i++) {
        const struct address_range *r = &m->backed.items[i];
        if (r->start >= part->base && r->end <= part->base + part->client_size) between_mappings(m, r->start, r->end, fn, arg);
    }
}

static void count_one(void *arg, uint64_t address, uint64_t size) {
    (void)address, (void)size;
    ++*(uint64_t *)arg;
}

static void put_range(void *arg, uint64_t address, uint64_t size) {
    gv_image_put(arg, address);
    gv_image_put(arg, size);
}

uint32_t soft_number_physicals(struct gv_backend *b) {
    uint32_t number = 0;
    for (struct gv_physical *p = b->memory.physicals; p; p = p->next) p->number = number++;
    return number;
}

void soft_save_memory(struct gv_backend *b, struct gv_image_out *out) {
    struct soft_memory *m = &b->memory;
    if (!m->size) gv_image_out_fail(out, "the driver chose the addresses of its memory, which another one may not have (addresses=reply)");
    if (soft_memory_is_shared(b) || event_files_any(&b->event_files))
        gv_image_out_fail(out, "it shares memory or events with other sessions (cuIpc, cuMemExport)");
    pthread_mutex_lock(&m->lock);
    for (uint32_t i = 0; i < b->n_devices; i++) {
        uint64_t n = 0;
        soft_backed_ranges(b, i, count_one, &n);
        gv_image_put(out, n);
        soft_backed_ranges(b, i, put_range, out);
    }
    gv_image_put(out, soft_number_physicals(b));
    for (const struct gv_physical *p = m->physicals; p; p = p->next) {
        gv_image_put(out, (uint64_t)(p->device - b->devices));
        gv_image_put(out, p->size);
    }
    gv_image_put(out, m->mappings.n);
    for (size_t i = 0; i < m->mappings.n; i++) {
        const struct mapping *g = &m->mappings.items[i];
        const uint64_t fields[] = {g->address, g->size, g->physical->number, g->rights};
        gv_image_put_bytes(out, fields, sizeof fields);
    }
    pthread_mutex_unlock(&m->lock);
}

void soft_restore_memory(struct gv_backend *b, struct gv_context *const *contexts, struct gv_image_in *in) {
    struct soft_restoring *r = b->restoring = calloc(1, sizeof *r);
    int rc = r ? 0 : CUDA_ERROR_OUT_OF_MEMORY;
    for (uint32_t i = 0; i < b->n_devices; i++) {
        for (uint64_t n = gv_image_get(in, UINT64_MAX); n && !in->failed && !rc; n--) {
            uint64_t address = gv_image_get(in, UINT64_MAX), size = gv_image_get(in, UINT64_MAX);
            if (!in->failed) rc = soft_memory_back(contexts[i], address, size, true);
        }
    }
    uint64_t n = rc ? 0 : gv_image_get(in, GV_PHYSICALS_MAX);
    if (!rc) {
        r->physicals = calloc(n + 1, sizeof *r->physicals);
        r->claimed = calloc(n + 1, sizeof *r->claimed);
        if (!r->physicals || !r->claimed) rc = CUDA_ERROR_OUT_OF_MEMORY;
    }
    for (; !rc && !in->failed && r->n_physicals < n; r->n_physicals++) {
        uint64_t device = gv_image_get(in, b->n_devices - 1), size = gv_image_get(in, UINT64_MAX);
        if (!in->failed) rc = soft_physical_new(contexts[device], size, &r->physicals[r->n_physicals]);
        if (rc || in->failed) break;
    }
    n = rc ? 0 : gv_image_get(in, GV_MAPPINGS_MAX);
    if (!rc) {
        r->mappings = calloc(n + 1, sizeof *r->mappings);
        r->of = calloc(n + 1, sizeof *r->of);
        if (!r->mappings || !r->of) rc = CUDA_ERROR_OUT_OF_MEMORY;
    }
    for (; !rc && !in->failed && r->n_mappings < n; r->n_mappings++) {
        struct mapping *g = &r->mappings[r->n_mappings];
        g->address = gv_image_get(in, UINT64_MAX);
        g->size = gv_image_get(in, UINT64_MAX);
        r->of[r->n_mappings] = gv_image_get(in, r->n_physicals ? r->n_physicals - 1 : 0);
        g->rights = (uint32_t)gv_image_get(in, UINT32_MAX);
        if (!r->n_physicals) gv_image_in_fail(in, "memory of the image is mapped that is not there");
    }
    if (rc)
        gv_image_in_fail(in, rc == CUDA_ERROR_OUT_OF_MEMORY ? "the GPU has not enough free memory" : "memory of the image lies where none can be");
}

void soft_save_physical(struct gv_physical *p, struct gv_image_out *out) { gv_image_put(out, p->number); }

struct gv_physical *soft_restore_physical(struct gv_backend *b, struct gv_image_in *in) {
    struct soft_restoring *r = b->restoring;
    uint64_t number = gv_image_get(in, UINT64_MAX);
    if (in->failed || !r || number >= r->n_physicals || r->claimed[number]) return NULL;
    r->claimed[number] = true;
    return r->physicals[number];
}

/* ---- what is in it ---- */

static bool is_zero(const void *page) {
    const uint64_t *words = page;
    uint64_t any = 0;
    for (size_t i = 0; i < SOFT_PAGE / sizeof *words; i += 8) {
        for (size_t k = 0; k < 8; k++) any |= words[i + k];
        if (any) return false;
    }
    return true;
}

/* The pages of `size` bytes at `from` that are not zeros, as what lies at `where`. */
static void put_pages(struct gv_image_out *out, uint64_t kind, uint64_t number, uint64_t where, const char *from, uint64_t size) {
    for (uint64_t at = 0; at < size && !out->failed;) {
        if (is_zero(from + at)) {
            at += SOFT_PAGE;
            continue;
        }
        uint64_t pages = 1;
        while (pages < RUN_PAGES && at + pages * SOFT_PAGE < size && !is_zero(from + at + pages * SOFT_PAGE)) pages++;
        const uint64_t head[] = {kind, number, where + at, pages};
        gv_image_put_bytes(out, head, sizeof head);
        gv_image_put_bytes(out, from + at, pages * SOFT_PAGE);
        at += pages * SOFT_PAGE;
    }
}

static void put_range_pages(void *arg, uint64_t address, uint64_t size) { put_pages(arg, RUN_ADDRESS, 0, address, pointer(address), size); }

int soft_physical_protection(const struct soft_memory *m, const struct gv_physical *p) {
    if (p->state == DETACHED) return PROT_NONE;
    return soft_mapping_protection(m->mappings.items[mappings_find(&m->mappings, p->at)].rights);
}

static void put_physical(const struct soft_memory *m, struct gv_image_out *out, const struct gv_physical *p) {
    if (p->state == FRESH || p->state == PIECES) return; /* PIECES: there is no image of that, save_memory has said so */
    if (p->state == SHARED) {
        void *at = mmap(NULL, p->size, PROT_READ, MAP_SHARED | MAP_NORESERVE, m->file, (off_t)p->at);
        if (at == MAP_FAILED) return gv_image_out_fail(out, "the server is out of memory");
        put_pages(out, RUN_PHYSICAL, p->number, 0, at, p->size);
        munmap(at, p->size);
        return;
    }
    int now = soft_physical_protection(m, p);
    if (!now && mprotect(pointer(p->at), p->size, PROT_READ)) return gv_image_out_fail(out, "the server is out of memory");
    put_pages(out, RUN_PHYSICAL, p->number, 0, pointer(p->at), p->size);
    if (!now) mprotect(pointer(p->at), p->size, PROT_NONE);
}

void soft_save_pages(struct gv_backend *b, struct gv_image_out *out) {
    struct soft_memory *m = &b->memory;
    pthread_mutex_lock(&m->lock);
    for (uint32_t i = 0; i < b->n_devices; i++) soft_backed_ranges(b, i, put_range_pages, out);
    for (const struct soft_placed *p = m->placed; p; p = p->next) put_range_pages(out, p->address, p->size);
    for (const struct gv_physical *p = m->physicals; p; p = p->next) put_physical(m, out, p);
    const uint64_t end[4] = {RUN_END};
    gv_image_put_bytes(out, end, sizeof end);
    pthread_mutex_unlock(&m->lock);
}

/* Where the pages of a physical memory are put that is not mapped yet. NULL: there is no memory. */
static char *detached(struct gv_physical *p) {
    if (p->state == DETACHED) return pointer(p->at);
    void *at = mmap(NULL, p->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) return NULL;
    p->state = DETACHED;
    p->at = (uint64_t)(uintptr_t)at;
    return at;
}

/* Where a run of the image belongs. NULL: nowhere. */
static char *place_of(struct gv_backend *b, const uint64_t head[4]) {
    struct soft_restoring *r = b->restoring;
    uint64_t size = head[3] * SOFT_PAGE;
    if (head[0] == RUN_ADDRESS) return head[2] % SOFT_PAGE == 0 && soft_memory_valid(b, head[2], size) ? pointer(head[2]) : NULL;
    struct gv_physical *p = head[0] == RUN_PHYSICAL && head[1] < r->n_physicals ? r->physicals[head[1]] : NULL;
    if (!p || head[2] % SOFT_PAGE || head[2] > p->size || size > p->size - head[2]) return NULL;
    char *at = detached(p);
    return at ? at + head[2] : NULL;
}

static int map_again(struct gv_backend *b, const struct soft_restoring *r) {
    int rc = 0;
    for (uint64_t i = 0; i < r->n_mappings && !rc; i++) {
        const struct mapping *g = &r->mappings[i];
        rc = soft_memory_map(r->physicals[r->of[i]], g->address, g->size);
        for (uint32_t d = 0; d < b->n_devices && !rc; d++) {
            uint32_t rights = g->rights >> 2 * d & 3;
            if (rights) rc = soft_memory_access(b, g->address, g->size, d, rights);
        }
    }
    return rc;
}

void soft_restoring_free(struct gv_backend *b) {
    struct soft_restoring *r = b->restoring;
    if (!r) return;
    free(r->physicals);
    free(r->claimed);
    free(r->mappings);
    free(r->of);
    free(r);
    b->restoring = NULL;
}

void soft_restore_pages(struct gv_backend *b, struct gv_image_in *in) {
    struct soft_restoring *r = b->restoring;
    if (!r) return gv_image_in_fail(in, "the image has no memory");
    while (!in->failed) {
        uint64_t head[4];
        if (!gv_image_get_bytes(in, head, sizeof head) || head[0] == RUN_END) break;
        char *to = head[3] && head[3] <= RUN_PAGES ? place_of(b, head) : NULL;
        if (!to)
            gv_image_in_fail(in, "pages of the image lie where no memory is");
        else
            gv_image_get_bytes(in, to, head[3] * SOFT_PAGE);
    }
    for (uint64_t i = 0; i < r->n_physicals && !in->failed; i++)
        if (!r->claimed[i]) gv_image_in_fail(in, "memory of the image has no handle");
    if (!in->failed && map_again(b, r)) gv_image_in_fail(in, "memory of the image could not be mapped where it was");
    soft_restoring_free(b);
}
