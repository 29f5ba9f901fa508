/* Memory that sessions of one lease share. The driver exports physical memory by descriptor, if it was made for that; an allocation, or physical memory of
 * the program's, moves into such when it is first exported, at rest, and keeps its addresses. So what nobody exports is as it always was.
 *
 * An export is made of whole handles, and of what else lies in them: programs of one lease see each other's, as processes do with the driver's own exports. Handles that
 * lie one behind the other become one, but those that are exported already stay. */
#include <stdlib.h>
#include <unistd.h>

#include "backend_cuda.h"

#define BY_DESCRIPTOR CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

static CUmemAllocationProp properties(struct gv_backend *b, CUdevice device) {
    CUmemAllocationProp prop = cuda_properties(b, device);
    prop.requestedHandleTypes = BY_DESCRIPTOR;
    return prop;
}

/* ---- moving ---- */

/* New memory that can be exported, with the contents of `size` bytes at `from`. The device is at rest. */
static int copy_of(struct gv_context *c, uint64_t from, uint64_t size, CUmemGenericAllocationHandle *out) {
    struct gv_backend *b = c->b;
    const struct driver *d = &b->driver;
    CUmemAllocationProp prop = properties(b, c->device);
    struct mapping g = {.size = size};
    int status = cuda_enter(c);
    if (!status) status = d->memory_create(out, size, &prop, 0);
    if (status) return status;
    g.address = cuda_space_take(b, c->account, size);
    status = g.address ? (int)d->memory_map(g.address, size, 0, *out, 0) : CUDA_ERROR_OUT_OF_MEMORY;
    if (!status) {
        status = cuda_driver_access(b, &g, (uint32_t)(c->account - b->accounts), CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
        if (!status) status = d->copy_device(g.address, from, size, CU_STREAM_LEGACY);
        if (!status) status = d->context_synchronize();
        int unmapped = d->memory_unmap(g.address, size);
        if (!status) status = unmapped;
    }
    if (g.address) cuda_space_give(b, g.address, size);
    if (status) d->memory_release(*out);
    return status;
}

/* Takes n mappings away. 0, or all of them are there as before. */
static int take_away(struct gv_backend *b, const struct mapping *g, size_t n) {
    int status = 0;
    size_t i = 0;
    while (i < n && !(status = b->driver.memory_unmap(g[i].address, g[i].size))) i++;
    while (status && i--) cuda_driver_map(b, &g[i]);
    return status;
}

/* The handles of n mappings, one behind the other, become one: that of the first one's memory. */
static int merge(struct gv_backend *b, size_t first, size_t n) {
    struct mapping *g = &b->mappings.items[first], all = *g;
    struct gv_physical *p = g->physical;
    CUmemGenericAllocationHandle fresh, old = p->handle;
    all.size = g[n - 1].address + g[n - 1].size - g->address;
    int status = copy_of(p->context, all.address, all.size, &fresh);
    if (status) return status;
    status = take_away(b, g, n);
    if (!status) {
        p->handle = fresh;
        status = cuda_driver_map(b, &all);
        if (status) {
            p->handle = old;
            for (size_t i = 0; i < n; i++) cuda_driver_map(b, &g[i]);
        }
    }
    if (status) {
        b->driver.memory_release(fresh);
        return status;
    }
    for (size_t i = 0; i < n; i++) b->driver.memory_release(i ? g[i].physical->handle : old);
    p->exportable = true;
    p->size = all.size;
    g->size = all.size;
    for (size_t i = n - 1; i; i--) { /* what they have counted, p does */
        cuda_physical_forget(g[i].physical);
        mappings_remove(&b->mappings, first + i);
    }
    return 0;
}

/* All mappings of it, taken away or made. 0, or everything is as before. */
static int unmap_all(struct gv_backend *b, const struct gv_physical *p) {
    const struct mapping *g = b->mappings.items;
    for (size_t i = 0; i < b->mappings.n; i++) {
        int status = g[i].physical == p ? (int)b->driver.memory_unmap(g[i].address, g[i].size) : 0;
        if (!status) continue;
        while (i--)
            if (g[i].physical == p) cuda_driver_map(b, &g[i]);
        return status;
    }
    return 0;
}

static int map_all(struct gv_backend *b, const struct gv_physical *p) {
    const struct mapping *g = b->mappings.items;
    for (size_t i = 0; i < b->mappings.n; i++) {
        int status = g[i].physical == p ? cuda_driver_map(b, &g[i]) : 0;
        if (!status) continue;
        while (i--)
            if (g[i].physical == p) b->driver.memory_unmap(g[i].address, g[i].size);
        return status;
    }
    return 0;
}

/* Physical memory of the program's goes to another handle, wherever it is mapped. */
static int move(struct gv_physical *p) {
    struct gv_backend *b = p->context->b;
    CUmemGenericAllocationHandle fresh, old = p->handle;
    uint64_t address;
    bool mapped;
    cuda_find_addresses(b);
    int status = cuda_reach(p, &address, &mapped);
    if (!status) status = copy_of(p->context, address, p->size, &fresh);
    cuda_leave(p, address, mapped);
    if (status) return status;
    status = unmap_all(b, p);
    if (!status) {
        p->handle = fresh;
        status = map_all(b, p);
        if (status) {
            p->handle = old;
            map_all(b, p);
        }
    }
    b->driver.memory_release(status ? fresh : old);
    p->exportable = !status;
    return status;
}

/* ---- exporting ---- */

static void begin(struct gv_shared *out, const struct gv_context *c) {
    *out = (struct gv_shared){.kind = GV_SHARED_MEMORY, .ordinal = c->account->share.ordinal};
    for (int i = 0; i < GV_SHARED_PIECES; i++) out->fd[i] = -1;
}

void cuda_export_end(struct gv_backend *b, const struct gv_shared *shared) {
    (void)b;
    if (shared->kind != GV_SHARED_MEMORY) return; /* events have one file a session, which stays */
    for (int i = 0; i < GV_SHARED_PIECES; i++)
        if (shared->fd[i] >= 0) close(shared->fd[i]);
}

static int add_piece(struct gv_backend *b, const struct gv_physical *p, struct gv_shared *out) {
    uint32_t n = out->n_pieces;
    if (n == GV_SHARED_PIECES) return CUDA_ERROR_OUT_OF_MEMORY;
    int status = b->driver.memory_export(&out->fd[n], p->handle, BY_DESCRIPTOR, 0);
    if (status) {
        out->fd[n] = -1;
        return status;
    }
    out->pieces[n].size = p->size;
    out->size += p->size;
    out->n_pieces++;
    return 0;
}

/* How many mappings from there on become one. */
static size_t run(const struct mappings *m, size_t first, uint64_t end) {
    const struct mapping *g = &m->items[first];
    size_t n = 1;
    while (first + n < m->n && g[n].address < end && !g[n].physical->exportable && g[n].physical->context == g->physical->context &&
           g[n].rights == g->rights)
        n++;
    return n;
}

/* Whether all of [address, end) is mapped, and the worker has placed it; and whether it can be exported as it is. */
static bool placed(const struct mappings *m, size_t first, uint64_t address, uint64_t end, bool *exportable) {
    *exportable = true;
    for (size_t i = first; address < end; i++) {
        if (i == m->n || m->items[i].address > address) return false;
        const struct mapping *g = &m->items[i];
        if (g->physical->slab != g->address || g->physical->size != g->size) return false;
        *exportable &= g->physical->exportable;
        address = g->address + g->size;
    }
    return true;
}

int cuda_memory_export(struct gv_context *c, uint64_t address, uint64_t size, struct gv_shared *out) {
    struct gv_backend *b = c->b;
    struct mappings *m = &b->mappings;
    uint64_t end = address + size;
    size_t first = mappings_find(m, address);
    bool exportable;
    begin(out, c);
    if (!size || end < address || !address_ranges_hold(&b->owned, address, size) || !placed(m, first, address, end, &exportable))
        return CUDA_ERROR_INVALID_VALUE;
    if (!exportable && !cuda_at_rest(b)) return CUDA_ERROR_NOT_READY;
    out->offset = address - m->items[first].address;
    out->length = size;
    int status = cuda_enter(c);
    for (size_t i = first; i < m->n && m->items[i].address < end && !status; i++) {
        if (!m->items[i].physical->exportable) status = merge(b, i, run(m, i, end));
        if (!status) status = add_piece(b, m->items[i].physical, out);
    }
    if (status) cuda_export_end(b, out);
    return status;
}

int cuda_physical_export(struct gv_physical *p, struct gv_shared *out) {
    struct gv_backend *b = p->context->b;
    begin(out, p->context);
    if (p->imported) return CUDA_ERROR_NOT_SUPPORTED;
    if (!p->exportable && !cuda_at_rest(b)) return CUDA_ERROR_NOT_READY;
    int status = cuda_enter(p->context);
    if (!status && !p->exportable) status = move(p);
    if (!status) status = add_piece(b, p, out);
    out->length = p->size;
    return status;
}

/* ---- importing ---- */

static bool sound(const struct gv_shared *s, uint64_t chunk) {
    uint64_t size = 0;
    if (s->kind != GV_SHARED_MEMORY || !s->n_pieces || s->n_pieces > GV_SHARED_PIECES || !chunk) return false;
    for (uint32_t i = 0; i < s->n_pieces; i++) {
        if (s->fd[i] < 0 || !s->pieces[i].size || s->pieces[i].size % chunk || s->pieces[i].offset || size + s->pieces[i].size < size) return false;
        size += s->pieces[i].size;
    }
    return size == s->size && s->length && s->offset <= size && s->length <= size - s->offset;
}

/* The worker's own context of the device, or of the first one where the session does not have it. */
static struct gv_context *context_of(struct gv_context *c, uint32_t ordinal) {
    const struct gv_backend *b = c->b;
    for (uint32_t i = 0; i < b->n_devices; i++)
        if (b->accounts[i].share.ordinal == ordinal && b->accounts[i].own) return b->accounts[i].own;
    return c->account->own;
}

int cuda_physical_import(struct gv_context *c, const struct gv_shared *s, uint64_t session, struct gv_physical **out) {
    struct gv_backend *b = c->b;
    struct gv_physical *p = calloc(1, sizeof *p);
    struct imported *from = calloc(1, sizeof *from);
    int status = p && from ? 0 : CUDA_ERROR_OUT_OF_MEMORY;
    if (!status && (!session || !sound(s, c->account->chunk))) status = CUDA_ERROR_INVALID_VALUE;
    if (!status) status = cuda_enter(c);
    for (uint32_t i = 0; !status && i < s->n_pieces; i++) {
        status = b->driver.memory_import(&from->pieces[i].handle, (void *)(intptr_t)s->fd[i], BY_DESCRIPTOR);
        if (status) break;
        from->pieces[i].size = s->pieces[i].size;
        from->n++;
    }
    for (uint32_t i = 0; i < s->n_pieces && i < GV_SHARED_PIECES; i++)
        if (s->fd[i] >= 0) close(s->fd[i]);
    if (status) {
        if (from) cuda_release_pieces(b, from);
        free(from);
        free(p);
        return status;
    }
    from->session = session;
    *p = (struct gv_physical){.next = b->physicals, .context = context_of(c, s->ordinal), .size = s->size, .imported = from};
    if (p->next) p->next->previous = p;
    b->physicals = p;
    *out = p;
    return 0;
}

/* ---- sessions that have ended ---- */

/* Nobody counts their memory any more: everyone who has it does so from the next command on, rather too much than too little. */
void cuda_exporter_gone(struct gv_backend *b, uint64_t session) {
    pthread_mutex_lock(&b->gone_lock);
    uint64_t *more = realloc(b->gone, (b->n_gone + 1) * sizeof *more);
    if (more) {
        b->gone = more;
        b->gone[b->n_gone++] = session;
    }
    pthread_mutex_unlock(&b->gone_lock);
    event_files_recorder_gone(&b->event_files, session);
}

static void inherit(struct gv_backend *b, uint64_t session) {
    for (struct gv_physical *p = b->physicals; p; p = p->next) {
        struct memory_share *share = &p->context->account->share;
        if (!p->imported || p->imported->session != session || p->imported->inherited) continue;
        p->imported->inherited = true;
        share->beside += p->size;
        memory_show(&b->room, share);
    }
}

void cuda_inherit(struct gv_backend *b) {
    if (!atomic_load_explicit(&b->n_gone, memory_order_relaxed)) return;
    pthread_mutex_lock(&b->gone_lock);
    for (uint32_t i = 0; i < b->n_gone; i++) inherit(b, b->gone[i]);
    b->n_gone = 0;
    pthread_mutex_unlock(&b->gone_lock);
}
