/* The memory of a session that is idle goes to a file, and comes back when the session has work again. Contexts, modules and all addresses stay: what is given back is
 * the physical memory behind slabs and the program's handles, which is made anew and mapped where it was. What modules and kernels' malloc have is the driver's. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "../../wire/clock.h"
#include "../../wire/image_stream.h"
#include "backend_cuda.h"

#define FILE_NS 600000000000ll /* ns for writing or reading the file */
#define PIECE (8ull << 20)     /* bytes of the pinned memory in between */
#define PAGE (64ull << 10)     /* bytes; pages of zeros are not written */

/* ---- out ---- */

static bool all_zeros(const char *page, uint64_t size) { return !page[0] && !memcmp(page, page + 1, size - 1); }

/* Runs of pages: how many bytes of zeros, how many that are not, and those. */
static void put_piece(struct gv_image_out *out, const char *piece, uint64_t size) {
    for (uint64_t at = 0; at < size;) {
        uint64_t zeros = 0, data = 0;
        while (at + zeros < size && all_zeros(piece + at + zeros, PAGE)) zeros += PAGE;
        while (at + zeros + data < size && !all_zeros(piece + at + zeros + data, PAGE)) data += PAGE;
        gv_image_put(out, zeros);
        gv_image_put(out, data);
        gv_image_put_bytes(out, piece + at + zeros, data);
        at += zeros + data;
    }
}

static int save(struct gv_physical *p, struct gv_image_out *out, char *piece) {
    const struct driver *d = &p->context->b->driver;
    uint64_t address;
    bool mapped;
    int status = cuda_reach(p, &address, &mapped);
    for (uint64_t done = 0; done < p->size && !status && !out->failed;) {
        uint64_t size = p->size - done < PIECE ? p->size - done : PIECE;
        status = d->copy_out(piece, address + done, size, CU_STREAM_LEGACY);
        if (!status) status = d->context_synchronize();
        if (!status) put_piece(out, piece, size);
        done += size;
    }
    cuda_leave(p, address, mapped);
    return status;
}

static int save_all(struct gv_backend *b, struct gv_image_out *out) {
    char *piece = cuda_host_alloc(b, PIECE);
    int status = piece ? 0 : CUDA_ERROR_OUT_OF_MEMORY;
    cuda_find_addresses(b);
    for (struct gv_physical *p = b->physicals; p && !status; p = p->next) status = save(p, out, piece);
    if (piece) cuda_host_free(b, piece);
    return status;
}

/* What the driver does not take back stays, at all its addresses: those of the first n mappings, which it has taken away. */
static void keep(struct gv_physical *p, size_t n) {
    struct gv_backend *b = p->context->b;
    p->gone = false;
    for (size_t i = 0; i < n; i++)
        if (b->mappings.items[i].physical == p) cuda_driver_map(b, &b->mappings.items[i]);
}

static void give_back(struct gv_backend *b) {
    uint64_t given[GV_MAX_DEVICES] = {0};
    for (struct gv_physical *p = b->physicals; p; p = p->next) p->gone = true;
    for (size_t i = 0; i < b->mappings.n; i++) {
        const struct mapping *g = &b->mappings.items[i];
        if (g->physical->gone && b->driver.memory_unmap(g->address, g->size)) keep(g->physical, i);
    }
    for (struct gv_physical *p = b->physicals; p; p = p->next) {
        if (p->gone && b->driver.memory_release(p->handle)) keep(p, b->mappings.n);
        if (p->gone) given[cuda_device_of(p)] += p->size;
    }
    for (uint32_t i = 0; i < b->n_devices; i++) memory_park(&b->room, &b->accounts[i].share, given[i]);
}

static int await_all(struct gv_backend *b) {
    int status = 0;
    for (struct gv_context *c = b->contexts; c && !status; c = c->next) {
        status = cuda_enter(c);
        if (!status) status = b->driver.context_synchronize();
    }
    return status;
}

int cuda_park(struct gv_backend *b, int fd, char *why) {
    struct gv_image_out out;
    if (b->n_placed) {
        snprintf(why, GV_ERR_SIZE, "its GPU's driver has no virtual memory management, without which memory cannot come back to its address");
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    if (cuda_memory_is_shared(b)) {
        snprintf(why, GV_ERR_SIZE, "it shares memory with other sessions (cuIpc, cuMemExport)");
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    int status = await_all(b);
    if (status) {
        snprintf(why, GV_ERR_SIZE, "its context is lost (error %d)", status);
        return status;
    }
    if (lseek(fd, 0, SEEK_SET) != 0 || !gv_image_out_open(&out, fd, gv_now_ns() + FILE_NS)) {
        snprintf(why, GV_ERR_SIZE, "the server is out of memory");
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    status = save_all(b, &out);
    if (status) gv_image_out_fail(&out, "the driver does not copy it");
    if (!gv_image_out_close(&out)) {
        snprintf(why, GV_ERR_SIZE, "its memory could not be written to a file: %s (error %d)", out.why, status);
        return CUDA_ERROR_UNKNOWN;
    }
    give_back(b);
    return 0;
}

/* ---- in ---- */

/* Of the first n mappings, and what they map. */
static void give_up(struct gv_backend *b, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (b->mappings.items[i].physical->at == 1) b->driver.memory_unmap(b->mappings.items[i].address, b->mappings.items[i].size);
    for (struct gv_physical *p = b->physicals; p; p = p->next) {
        if (p->at == 1 && !p->gone) {
            b->driver.memory_release(p->handle);
            p->gone = true;
        }
    }
}

/* Makes the memory again, and maps it where it was. On failure everything is as before. */
static int make_again(struct gv_backend *b) {
    int status = 0;
    for (struct gv_physical *p = b->physicals; p; p = p->next) p->at = 0; /* 1: is being made */
    for (struct gv_physical *p = b->physicals; p && !status; p = p->next) {
        if (!p->gone) continue;
        status = cuda_enter(p->context);
        if (!status) status = cuda_driver_create(p);
        if (!status) p->at = 1, p->gone = false;
    }
    size_t n = 0;
    for (; n < b->mappings.n && !status; n++)
        if (b->mappings.items[n].physical->at == 1) status = cuda_driver_map(b, &b->mappings.items[n]);
    if (status) give_up(b, n);
    return status;
}

static int get_run(struct gv_physical *p, struct gv_image_in *in, uint64_t address, uint64_t left, char *piece, uint64_t *done) {
    const struct driver *d = &p->context->b->driver;
    uint64_t most = left < PIECE ? left : PIECE, zeros = gv_image_get(in, most), data = gv_image_get(in, most - zeros);
    *done = zeros + data;
    if (in->failed || !*done) return CUDA_ERROR_INVALID_VALUE;
    int status = zeros ? (int)d->fill_row_8(address, 0, zeros, CU_STREAM_LEGACY) : 0;
    if (!status && data && !gv_image_get_bytes(in, piece, data)) return CUDA_ERROR_INVALID_VALUE;
    if (!status && data) status = d->copy_in(address + zeros, piece, data, CU_STREAM_LEGACY);
    return status ? status : (int)d->context_synchronize();
}

static int fetch(struct gv_physical *p, struct gv_image_in *in, char *piece) {
    uint64_t address, size;
    bool mapped;
    int status = cuda_reach(p, &address, &mapped);
    for (uint64_t done = 0; done < p->size && !status; done += size) status = get_run(p, in, address + done, p->size - done, piece, &size);
    cuda_leave(p, address, mapped);
    return status;
}

int cuda_unpark(struct gv_backend *b, int fd, char *why) {
    struct memory_share *shares[GV_MAX_DEVICES];
    uint64_t parked[GV_MAX_DEVICES] = {0};
    struct gv_image_in in;
    for (uint32_t i = 0; i < b->n_devices; i++) {
        shares[i] = &b->accounts[i].share;
        parked[i] = shares[i]->parked;
    }
    if (!memory_unpark(&b->room, shares, b->n_devices)) return CUDA_ERROR_OUT_OF_MEMORY;
    int status = make_again(b);
    if (status) {
        for (uint32_t i = 0; i < b->n_devices; i++) memory_park(&b->room, shares[i], parked[i]);
        snprintf(why, GV_ERR_SIZE, "its memory could not be made again by the driver (error %d)", status);
        return status;
    }
    if (lseek(fd, 0, SEEK_SET) != 0 || !gv_image_in_open(&in, fd, gv_now_ns() + FILE_NS)) {
        snprintf(why, GV_ERR_SIZE, "its memory could not be read back: %s", strerror(errno));
        return CUDA_ERROR_UNKNOWN;
    }
    char *piece = cuda_host_alloc(b, PIECE);
    if (!piece) status = CUDA_ERROR_UNKNOWN;
    cuda_find_addresses(b);
    for (struct gv_physical *p = b->physicals; p && !status; p = p->next) status = fetch(p, &in, piece);
    if (piece) cuda_host_free(b, piece);
    if (status) gv_image_in_fail(&in, "the driver does not copy it");
    if (gv_image_in_close(&in)) return 0;
    snprintf(why, GV_ERR_SIZE, "its memory could not be read back: %s", in.why);
    return CUDA_ERROR_UNKNOWN;
}
