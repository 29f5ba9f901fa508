/* Registered memory. */
#include "softverbs.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE 4096u
#define PROBED_PAGES 4096u /* of each region, evenly spread */

void sv_copy(uint8_t *to, const uint8_t *from, size_t length) {
    size_t done = 0;
#ifdef SOFTVERBS_BREAK_TEARING
    for (; length <= 64 && done < length; done++) {
        __atomic_store_n(to + done, from[done], __ATOMIC_RELEASE);
        sched_yield();
    }
#endif
    if (length > 64) {
        memcpy(to, from, length);
        return;
    }
    if (((uintptr_t)to | (uintptr_t)from) % 8 == 0) {
        for (; done + 8 <= length; done += 8) {
            __atomic_store_n((uint64_t *)(to + done), __atomic_load_n((const uint64_t *)(from + done), __ATOMIC_ACQUIRE), __ATOMIC_RELEASE);
        }
    }
    for (; done < length; done++) __atomic_store_n(to + done, __atomic_load_n(from + done, __ATOMIC_ACQUIRE), __ATOMIC_RELEASE);
}

/* What a key of this domain names, with these rights; NULL: nothing. `memory` is held. */
static uint8_t *translate(struct sv_context *context, struct ibv_pd *pd, uint32_t key, uint64_t address, uint32_t length, unsigned access) {
    struct sv_mr *mr = key / 256 < context->region_room ? context->regions[key / 256] : NULL;
    if (!mr || mr->ibv.lkey != key || mr->ibv.pd != pd || (mr->access & access) != access) return NULL;
    if (address < mr->iova || address - mr->iova > mr->ibv.length || length > mr->ibv.length - (address - mr->iova)) return NULL;
    return mr->host + (address - mr->iova);
}

static void move(uint8_t *memory, uint8_t *packet, uint32_t length, bool into_memory) {
    if (packet && into_memory)
        sv_copy(memory, packet, length);
    else if (packet)
        sv_copy(packet, memory, length);
}

bool sv_copy_sges(struct sv_context *context, struct ibv_pd *pd, const struct ibv_sge *sges, int count, uint64_t offset, uint8_t *packet,
                  uint32_t length, bool into_memory) {
    bool sound = true;
    pthread_rwlock_rdlock(&context->memory);
    for (int i = 0; i < count && length && sound; i++) {
        if (offset >= sges[i].length) {
            offset -= sges[i].length;
            continue;
        }
        uint32_t part = (uint32_t)sv_min(sges[i].length - offset, length);
        uint8_t *memory = translate(context, pd, sges[i].lkey, sges[i].addr + offset, part, into_memory ? IBV_ACCESS_LOCAL_WRITE : 0);
        sound = memory != NULL;
        if (sound) move(memory, packet, part, into_memory);
        packet = packet ? packet + part : NULL;
        length -= part;
        offset = 0;
    }
    pthread_rwlock_unlock(&context->memory);
    return sound && !length;
}

bool sv_copy_remote(struct sv_context *context, struct ibv_pd *pd, uint32_t rkey, uint64_t address, uint8_t *packet, uint32_t length,
                    bool into_memory) {
    if (!length) return true;
    pthread_rwlock_rdlock(&context->memory);
    uint8_t *memory = translate(context, pd, rkey, address, length, into_memory ? IBV_ACCESS_REMOTE_WRITE : IBV_ACCESS_REMOTE_READ);
#ifdef SOFTVERBS_BREAK_BOUNDS
    if (!memory) memory = translate(context, pd, rkey, address, 1, 0);
#endif
    if (memory) move(memory, packet, length, into_memory);
    pthread_rwlock_unlock(&context->memory);
    return memory != NULL;
}

/* A device pins what is registered, and so sees what is not there. */
static bool is_there(struct sv_context *context, uint8_t *memory, size_t length) {
    size_t pages = length / PAGE + 1, step = (pages + PROBED_PAGES - 1) / PROBED_PAGES * PAGE;
    for (size_t at = 0; length >= 8 && at < length; at += step) {
        if (syscall(SYS_write, context->probe, memory + (at < length - 8 ? at : length - 8), 8) < 0 && errno == EFAULT) return false;
    }
    return true;
}

static struct ibv_mr *enter(struct ibv_pd *pd, void *address, uint8_t *host, size_t length, uint64_t iova, unsigned access) {
    struct sv_context *context = sv_of(pd->context);
    struct sv_mr *mr = calloc(1, sizeof *mr);
    if (!mr) return NULL;
    pthread_rwlock_wrlock(&context->memory);
    uint32_t index = 1;
    while (index < context->region_room && context->regions[index]) index++;
    if (index >= context->region_room) {
        uint32_t room = context->region_room * 2 + 64;
        struct sv_mr **regions = realloc(context->regions, room * sizeof(struct sv_mr *));
        if (regions) {
            memset(regions + context->region_room, 0, (room - context->region_room) * sizeof(struct sv_mr *));
            context->regions = regions;
            context->region_room = room;
        }
    }
    if (index < context->region_room) {
        uint32_t key = index * 256 + context->keys_made++ % 256; /* one that is given again is another */
        *mr = (struct sv_mr){.ibv = {pd->context, pd, address, length, index, key, key}, .iova = iova, .host = host, .access = access};
        context->regions[index] = mr;
        atomic_fetch_add(&((struct sv_pd *)pd)->users, 1);
    } else {
        free(mr);
        mr = NULL;
        errno = ENOMEM;
    }
    pthread_rwlock_unlock(&context->memory);
    return mr ? &mr->ibv : NULL;
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned int access) {
    const unsigned writes = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
    const unsigned known = IBV_ACCESS_LOCAL_WRITE | writes | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_HUGETLB | IBV_ACCESS_RELAXED_ORDERING;
    bool sound = !(access & ~known) && (!(access & writes) || (access & IBV_ACCESS_LOCAL_WRITE)) && length;
    if (sound && is_there(sv_of(pd->context), addr, length)) return enter(pd, addr, addr, length, iova, access);
    errno = sound ? EFAULT : EINVAL;
    return NULL;
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access) {
    return ibv_reg_mr_iova2(pd, addr, length, (uintptr_t)addr, (unsigned)access);
}

/* A descriptor is taken for a dmabuf where SOFTVERBS_DMABUF is set: a memfd. */
struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access) {
    if (!getenv("SOFTVERBS_DMABUF")) {
        errno = EOPNOTSUPP;
        return NULL;
    }
    uint64_t in_page = offset % PAGE;
    void *map =
        mmap(NULL, length + in_page, PROT_READ | (access & IBV_ACCESS_LOCAL_WRITE ? PROT_WRITE : 0), MAP_SHARED, fd, (off_t)(offset - in_page));
    if (map == MAP_FAILED) return NULL;
    struct ibv_mr *mr = enter(pd, NULL, (uint8_t *)map + in_page, length, iova, (unsigned)access);
    if (mr) {
        ((struct sv_mr *)mr)->mapped = map;
        ((struct sv_mr *)mr)->mapped_bytes = length + in_page;
    } else {
        munmap(map, length + in_page);
    }
    return mr;
}

int ibv_dereg_mr(struct ibv_mr *ibv) {
    struct sv_mr *mr = (struct sv_mr *)ibv;
    struct sv_context *context = sv_of(ibv->context);
    pthread_rwlock_wrlock(&context->memory);
    context->regions[ibv->lkey / 256] = NULL;
    pthread_rwlock_unlock(&context->memory);
    atomic_fetch_sub(&((struct sv_pd *)ibv->pd)->users, 1);
    if (mr->mapped) munmap(mr->mapped, mr->mapped_bytes);
    free(mr);
    return 0;
}
