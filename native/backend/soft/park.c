/* The memory of a session that is idle goes to a file, and comes back when the session has work again. Only pages go: what is allocated, mapped and placed stays
 * as it is, so that every address means afterwards what it meant. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../../wire/clock.h"
#include "../../wire/image_stream.h"
#include "image.h"
#include "mappings.h"
#include "physical.h"
#include "shared/shared.h"
#include "stream.h"

#define FILE_NS 600000000000ll /* ns for writing or reading the file */

/* ---- what the session uses, to the other sessions ---- */

static void give_back(struct gv_backend *b) {
    for (uint32_t i = 0; i < b->n_devices; i++) memory_park(&b->memory.room, &b->devices[i].share, b->devices[i].share.used);
}

/* False: there is no room, and nothing has changed. */
static bool take_again(struct gv_backend *b) {
    struct memory_share *shares[GV_MAX_DEVICES];
    for (uint32_t i = 0; i < b->n_devices; i++) shares[i] = &b->devices[i].share;
    return memory_unpark(&b->memory.room, shares, b->n_devices);
}

/* ---- out ---- */

static void drop(void *arg, uint64_t address, uint64_t size) {
    (void)arg;
    madvise((void *)(uintptr_t)address, size, MADV_DONTNEED);
}

static void drop_pages(struct gv_backend *b) {
    struct soft_memory *m = &b->memory;
    for (uint32_t i = 0; i < b->n_devices; i++) soft_backed_ranges(b, i, drop, NULL);
    for (const struct soft_placed *p = m->placed; p; p = p->next) drop(NULL, p->address, p->size);
    for (const struct gv_physical *p = m->physicals; p; p = p->next) {
        if (p->state == SHARED)
            fallocate(m->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)p->at, (off_t)p->size);
        else if (p->state != FRESH)
            drop(NULL, p->at, p->size);
    }
}

int soft_park(struct gv_backend *b, int fd, char *why) {
    struct gv_image_out out;
    if (soft_memory_is_shared(b)) {
        snprintf(why, GV_ERR_SIZE, "it shares memory with other sessions (cuIpc, cuMemExport)");
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    if (lseek(fd, 0, SEEK_SET) != 0 || !gv_image_out_open(&out, fd, gv_now_ns() + FILE_NS)) {
        snprintf(why, GV_ERR_SIZE, "the server is out of memory");
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    soft_number_physicals(b);
    soft_save_pages(b, &out);
    if (!gv_image_out_close(&out)) {
        snprintf(why, GV_ERR_SIZE, "its memory could not be written to a file: %s", out.why);
        return CUDA_ERROR_UNKNOWN;
    }
    pthread_mutex_lock(&b->memory.lock);
    drop_pages(b);
    give_back(b);
    pthread_mutex_unlock(&b->memory.lock);
    return 0;
}

/* ---- in ---- */

static void to_address(struct gv_backend *b, const uint64_t head[4], struct gv_image_in *in) {
    uint64_t size = head[3] * SOFT_PAGE;
    if (head[2] % SOFT_PAGE || !soft_memory_valid(b, head[2], size)) return gv_image_in_fail(in, "pages of it lie where no memory is");
    gv_image_get_bytes(in, (void *)(uintptr_t)head[2], size);
}

static void to_physical(struct gv_backend *b, const uint64_t head[4], struct gv_image_in *in) {
    struct soft_memory *m = &b->memory;
    struct gv_physical *p = m->physicals;
    uint64_t size = head[3] * SOFT_PAGE;
    while (p && p->number != head[1]) p = p->next;
    if (!p || p->state == FRESH || head[2] % SOFT_PAGE || head[2] > p->size || size > p->size - head[2])
        return gv_image_in_fail(in, "pages of it lie where no memory is");
    if (p->state == SHARED) {
        void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, m->file, (off_t)(p->at + head[2]));
        if (at == MAP_FAILED) return gv_image_in_fail(in, "out of memory");
        gv_image_get_bytes(in, at, size);
        munmap(at, size);
        return;
    }
    void *at = (void *)(uintptr_t)(p->at + head[2]);
    int rights = soft_physical_protection(m, p);
    if (mprotect(at, size, PROT_READ | PROT_WRITE)) return gv_image_in_fail(in, "out of memory");
    gv_image_get_bytes(in, at, size);
    if (mprotect(at, size, rights)) gv_image_in_fail(in, "out of memory");
}

int soft_unpark(struct gv_backend *b, int fd, char *why) {
    struct gv_image_in in;
    pthread_mutex_lock(&b->memory.lock);
    bool room = take_again(b);
    pthread_mutex_unlock(&b->memory.lock);
    if (!room) return CUDA_ERROR_OUT_OF_MEMORY;
    if (lseek(fd, 0, SEEK_SET) != 0 || !gv_image_in_open(&in, fd, gv_now_ns() + FILE_NS)) {
        snprintf(why, GV_ERR_SIZE, "its memory could not be read back: %s", strerror(errno));
        return CUDA_ERROR_UNKNOWN;
    }
    while (!in.failed) {
        uint64_t head[4];
        if (!gv_image_get_bytes(&in, head, sizeof head) || head[0] == RUN_END) break;
        if (!head[3] || head[3] > RUN_PAGES || head[0] > RUN_PHYSICAL)
            gv_image_in_fail(&in, "the file is damaged");
        else if (head[0] == RUN_ADDRESS)
            to_address(b, head, &in);
        else
            to_physical(b, head, &in);
    }
    if (gv_image_in_close(&in)) return 0;
    snprintf(why, GV_ERR_SIZE, "its memory could not be read back: %s", in.why);
    return CUDA_ERROR_UNKNOWN;
}
