/* Memory that sessions share. Pages of an allocation, or of physical memory, move into a file of their own when they are first exported, at rest; the addresses stay.
 * Another session's worker maps the same file. The file lives until nobody has it mapped, whichever session ends first.
 *
 * Small allocations share pages: an export has whole chunks, and what else lies in them can be seen too, as with a real driver. Whole chunks that two exports have
 * in common lie in the file of the first, so an export has pieces: of its first chunk, of its last, and of those between. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../mappings.h"
#include "../physical.h"
#include "../stream.h"
#include "shared.h"

#define FILE_MOST (1ull << 30) /* bytes of one file: the box bounds files */

static void *pointer(uint64_t address) { return (void *)(uintptr_t)address; }

static uint64_t round_up(uint64_t value, uint64_t unit) { return (value + unit - 1) & ~(unit - 1); }

/* ---- segments; memory.lock held ---- */

static struct soft_segment *segment_at(struct soft_memory *m, uint64_t address) {
    struct soft_segment *s = m->segments;
    while (s && address - s->address >= s->size) s = s->next;
    return s;
}

/* The beginning of the next segment that somebody may ask for, above `address` and below `end`, or `end`. */
static uint64_t next_exported(const struct soft_memory *m, uint64_t address, uint64_t end) {
    for (const struct soft_segment *s = m->segments; s; s = s->next)
        if (s->file->exports && s->address > address && s->address < end) end = s->address;
    return end;
}

/* ---- exporting ---- */

static void begin(struct gv_shared *out, const struct soft_device *d) {
    *out = (struct gv_shared){.kind = GV_SHARED_MEMORY, .ordinal = d->share.ordinal};
    for (int i = 0; i < GV_SHARED_PIECES; i++) out->fd[i] = -1;
}

static bool add_piece(struct gv_shared *out, struct soft_file *f, uint64_t offset, uint64_t size) {
    if (out->n_pieces == GV_SHARED_PIECES) return false;
    out->fd[out->n_pieces] = f->fd;
    out->file[out->n_pieces] = f->number;
    out->pieces[out->n_pieces++] = (struct gv_shared_piece){offset, size};
    out->size += size;
    f->refs++;
    f->exports++;
    return true;
}

static void end(struct gv_backend *b, const struct gv_shared *out) {
    for (uint32_t i = 0; i < out->n_pieces; i++) {
        struct soft_file *f = b->memory.files;
        while (f && f->fd != out->fd[i]) f = f->next;
        if (!f) continue; /* cannot be: the export holds it */
        f->exports--;
        soft_file_drop(b, f);
    }
}

void soft_export_end(struct gv_backend *b, const struct gv_shared *out) {
    if (out->kind != GV_SHARED_MEMORY) return; /* events have one file a session, which stays */
    pthread_mutex_lock(&b->memory.lock);
    end(b, out);
    pthread_mutex_unlock(&b->memory.lock);
}

/* The pages at `address` go to a file, and stay where they are. At rest. */
static int move_pages(struct gv_backend *b, uint64_t address, uint64_t size, uint64_t file_size, struct soft_file **out) {
    struct soft_memory *m = &b->memory;
    pthread_mutex_unlock(&m->lock); /* nobody changes anything meanwhile: that is the executor's, which is here */
    uint64_t number;
    int fd = file_source_new(&m->source, file_size, &number);
    pthread_mutex_lock(&m->lock);
    if (soft_memory_held(m, address, size)) {
        if (fd >= 0) close(fd);
        if (fd >= 0) file_source_over(&m->source, number);
        return CUDA_ERROR_NOT_READY;
    }
    struct soft_file *f = fd >= 0 ? soft_file_add(m, fd, number, file_size, true) : NULL;
    struct soft_segment *s = f ? malloc(sizeof *s) : NULL;
    bool good = s && soft_copy_pages(fd, 0, address, size) &&
                mmap(pointer(address), size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, fd, 0) != MAP_FAILED;
    if (!good) {
        if (f)
            soft_file_drop(b, f);
        else if (fd >= 0)
            close(fd);
        free(s);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    soft_segments_forget(b, address, size); /* of exports that are over */
    *s = (struct soft_segment){.next = m->segments, .address = address, .size = size, .file = f};
    m->segments = s;
    *out = f;
    return 0;
}

/* Where the pages of an allocation of the worker's lie; lock held. */
static bool placed_around(const struct soft_memory *m, uint64_t address, uint64_t size, uint64_t *low, uint64_t *high) {
    const struct soft_placed *p = m->placed;
    while (p && (address < p->address || address - p->address >= p->size)) p = p->next;
    if (!p || !p->user || size > p->size - (address - p->address)) return false;
    *low = p->address;
    *high = p->address + p->size;
    return true;
}

int soft_memory_export(struct gv_context *c, uint64_t address, uint64_t size, struct gv_shared *out) {
    struct gv_backend *b = c->backend;
    struct soft_memory *m = &b->memory;
    uint64_t low = address & ~(SOFT_CHUNK - 1), high = round_up(address + size, SOFT_CHUNK);
    bool rest = soft_at_rest(b);
    begin(out, c->device);
    if (!size || address + size < address || high < low) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&m->lock);
    int rc = 0;
    if (!m->size ? !placed_around(m, address, size, &low, &high) : !address_ranges_hold(&m->backed, low, high - low)) rc = CUDA_ERROR_INVALID_VALUE;
    if (!rc && mappings_touch(&m->mappings, low, high - low)) rc = CUDA_ERROR_INVALID_VALUE;
    for (uint64_t at = low; at < high && !rc;) {
        struct soft_segment *s = segment_at(m, at);
        struct soft_file *f;
        uint64_t part, offset = 0;
        if (s && s->file->exports) {
            f = s->file;
            offset = s->offset + (at - s->address);
            part = s->size - (at - s->address);
            if (part > high - at) part = high - at;
        } else if (!rest || soft_memory_held(m, low, high - low)) {
            rc = CUDA_ERROR_NOT_READY;
            break;
        } else {
            part = next_exported(m, at, high) - at;
            if (part > FILE_MOST) part = FILE_MOST;
            rc = move_pages(b, at, part, round_up(part, SOFT_CHUNK), &f);
        }
        if (!rc && !add_piece(out, f, offset, m->size ? part : round_up(part, SOFT_CHUNK))) rc = CUDA_ERROR_OUT_OF_MEMORY;
        at += part;
    }
    out->offset = address - low;
    out->length = size;
    if (rc) end(b, out);
    pthread_mutex_unlock(&m->lock);
    return rc;
}

/* All its mappings are of the files from now on. */
static bool map_anew(const struct soft_memory *m, const struct gv_physical *p) {
    bool good = true;
    for (size_t i = 0; i < m->mappings.n && good; i++) {
        const struct mapping *g = &m->mappings.items[i];
        if (g->physical == p) good = soft_pieces_map(p, g->address, g->size, soft_mapping_protection(g->rights));
    }
    return good;
}

/* The pages of physical memory, readable, wherever they lie; NULL: it has none yet, or *good becomes false. */
static void *view(const struct soft_memory *m, const struct gv_physical *p, bool *good) {
    *good = true;
    if (p->state == FRESH) return NULL;
    if (p->state == SHARED) {
        void *at = mmap(NULL, p->size, PROT_READ, MAP_SHARED | MAP_NORESERVE, m->file, (off_t)p->at);
        *good = at != MAP_FAILED;
        return *good ? at : NULL;
    }
    bool readable = p->state == PRIVATE && soft_mapping_protection(m->mappings.items[mappings_find(&m->mappings, p->at)].rights);
    *good = readable || !mprotect(pointer(p->at), p->size, PROT_READ);
    return pointer(p->at);
}

static void punch(const struct soft_memory *m, uint64_t offset, uint64_t size) {
    fallocate(m->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)size);
}

/* Physical memory goes to files, at rest; memory.lock held, released meanwhile. */
static int to_pieces(struct gv_backend *b, struct gv_physical *p) {
    struct soft_memory *m = &b->memory;
    struct soft_pieces *pieces = calloc(1, sizeof *pieces);
    bool good = pieces && p->size && p->size <= FILE_MOST * GV_SHARED_PIECES;
    for (uint64_t at = 0; at < p->size && good;) {
        uint64_t part = p->size - at < FILE_MOST ? p->size - at : FILE_MOST;
        pthread_mutex_unlock(&m->lock);
        uint64_t number;
        int fd = file_source_new(&m->source, part, &number);
        pthread_mutex_lock(&m->lock);
        struct soft_file *f = fd >= 0 ? soft_file_add(m, fd, number, part, true) : NULL;
        if (!f && fd >= 0) close(fd);
        good = f != NULL;
        if (good) pieces->items[pieces->n++] = (struct soft_piece){f, 0, part};
        at += part;
    }
    uint64_t from = 0;
    if (good) {
        const char *now = view(m, p, &good);
        for (uint32_t i = 0; now && i < pieces->n && good; from += pieces->items[i++].size)
            good = soft_copy_pages(pieces->items[i].file->fd, 0, (uint64_t)(uintptr_t)(now + from), pieces->items[i].size);
        if (p->state == SHARED && now) munmap((void *)now, p->size);
    }
    enum soft_pages_where was = p->state;
    if (good) {
        p->pieces = pieces;
        p->state = PIECES;
        good = map_anew(m, p);
        if (!good)
            p->state = was; /* some mappings have the files' pages, which are the same as long as nothing is written: the session is out of memory */
    }
    if (!good) {
        p->pieces = NULL;
        for (uint32_t i = 0; pieces && i < pieces->n; i++) soft_file_drop(b, pieces->items[i].file);
        free(pieces);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (was == DETACHED) munmap(pointer(p->at), p->size);
    if (was == SHARED) {
        punch(m, p->at, p->size);
        address_ranges_remove(&m->file_used, p->at, p->size);
    }
    return 0;
}

int soft_physical_export(struct gv_physical *p, struct gv_shared *out) {
    struct gv_backend *b = p->backend;
    struct soft_memory *m = &b->memory;
    bool rest = soft_at_rest(b);
    begin(out, p->device);
    pthread_mutex_lock(&m->lock);
    int rc = 0;
    if (p->state != PIECES) {
        for (size_t i = 0; i < m->mappings.n && rest; i++) {
            const struct mapping *g = &m->mappings.items[i];
            if (g->physical == p && soft_memory_held(m, g->address, g->size)) rest = false;
        }
        rc = rest ? to_pieces(b, p) : CUDA_ERROR_NOT_READY;
    }
    for (uint32_t i = 0; !rc && i < p->pieces->n; i++) {
        const struct soft_piece *piece = &p->pieces->items[i];
        add_piece(out, piece->file, piece->offset, piece->size);
    }
    out->length = p->size;
    pthread_mutex_unlock(&m->lock);
    return rc;
}

/* ---- importing ---- */

static bool sound(const struct gv_shared *s) {
    uint64_t size = 0;
    if (s->kind != GV_SHARED_MEMORY || !s->n_pieces || s->n_pieces > GV_SHARED_PIECES) return false;
    for (uint32_t i = 0; i < s->n_pieces; i++) {
        const struct gv_shared_piece *p = &s->pieces[i];
        if (!p->size || p->size % SOFT_CHUNK || p->offset % SOFT_PAGE || p->offset + p->size < p->offset || size + p->size < size) return false;
        if (s->fd[i] < 0 || !shared_file_is_sound(s->fd[i], p->offset + p->size)) return false;
        size += p->size;
    }
    return size == s->size && s->length && s->offset <= size && s->length <= size - s->offset;
}

static struct soft_device *device_of(struct gv_context *c, uint32_t ordinal) {
    struct gv_backend *b = c->backend;
    for (uint32_t i = 0; i < b->n_devices; i++)
        if (b->devices[i].share.ordinal == ordinal) return &b->devices[i];
    return c->device;
}

int soft_physical_import(struct gv_context *c, const struct gv_shared *s, uint64_t session, struct gv_physical **out) {
    struct gv_backend *b = c->backend;
    struct soft_memory *m = &b->memory;
    struct gv_physical *p = calloc(1, sizeof *p);
    struct soft_pieces *pieces = calloc(1, sizeof *pieces);
    int rc = p && pieces ? 0 : CUDA_ERROR_OUT_OF_MEMORY;
    uint32_t taken = 0;
    if (!rc && (!session || !sound(s))) rc = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&m->lock);
    for (; !rc && taken < s->n_pieces; taken++) {
        struct soft_file *f = soft_file_add(m, s->fd[taken], 0, s->pieces[taken].offset + s->pieces[taken].size, false);
        if (!f) break;
        pieces->items[pieces->n++] = (struct soft_piece){f, s->pieces[taken].offset, s->pieces[taken].size};
    }
    if (!rc && taken < s->n_pieces) rc = CUDA_ERROR_OUT_OF_MEMORY;
    for (uint32_t i = taken; i < s->n_pieces && i < GV_SHARED_PIECES; i++)
        if (s->fd[i] >= 0) close(s->fd[i]);
    if (rc) {
        for (uint32_t i = 0; pieces && i < pieces->n; i++) soft_file_drop(b, pieces->items[i].file);
        free(pieces);
        free(p);
    } else {
        *p = (struct gv_physical){.next = m->physicals, .backend = b, .device = device_of(c, s->ordinal), .size = s->size, .state = PIECES};
        p->exporter = session;
        p->pieces = pieces;
        if (p->next) p->next->previous = p;
        m->physicals = p;
        *out = p;
    }
    pthread_mutex_unlock(&m->lock);
    return rc;
}

/* Whose the memory was has ended, and nobody counts it any more: everyone who has it does so from now on, rather too much than too little. */
static void inherit(struct gv_backend *b, uint64_t session) {
    struct soft_memory *m = &b->memory;
    pthread_mutex_lock(&m->lock);
    for (struct gv_physical *p = m->physicals; p; p = p->next) {
        if (p->exporter != session || p->inherited) continue;
        p->inherited = true;
        p->device->share.beside += p->size;
        memory_show(&m->room, &p->device->share);
    }
    pthread_mutex_unlock(&m->lock);
}

void soft_exporter_gone(struct gv_backend *b, uint64_t session) {
    inherit(b, session);
    event_files_recorder_gone(&b->event_files, session);
}
