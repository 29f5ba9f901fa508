/* The window: a range of addresses that is free in this process and in the worker, inside which device memory lies. */
#define _GNU_SOURCE
#include "session/window_offer.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif

#define GIB (1ull << 30)
#define TIB (1ull << 40)

/* Best first. The middle of the address space is where neither programs, libraries, stacks nor sanitizers' shadows usually lie; the smaller
 * ones are for processes with an address-space limit, the low ones for those whose instrumentation keeps the middle to itself. Aligned to 64
 * GiB, so that any granularity and huge pages fit. */
static const struct window wanted[] = {
    {0x200000000000ull, TIB},       {0x300000000000ull, TIB},       {0x400000000000ull, TIB},     {0x100000000000ull, TIB},
    {0x280000000000ull, 256 * GIB}, {0x380000000000ull, 256 * GIB}, {0x1000000000ull, 256 * GIB}, {0x2c0000000000ull, 64 * GIB},
    {0x6000000000ull, 64 * GIB},    {0x2e0000000000ull, 16 * GIB},
};

/* Straight to the kernel: nothing that intercepts mmap (sanitizers, memory hooks of network libraries) needs to know of addresses that nobody
 * may touch. */
static bool keep(const struct window *w) {
    void *want = (void *)(uintptr_t)w->base;
    long got = syscall(SYS_mmap, want, w->size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0l);
    if (got == -1) return false;
    if ((uint64_t)got == w->base) return true;
    syscall(SYS_munmap, got, w->size); /* a kernel that takes the address for a hint */
    return false;
}

static void let_go(const struct window *w) { syscall(SYS_munmap, (void *)(uintptr_t)w->base, w->size); }

int window_offer(struct window out[WINDOWS_MAX]) {
    int n = 0;
    for (unsigned i = 0; i < sizeof wanted / sizeof *wanted && n < WINDOWS_MAX; i++)
        if (keep(&wanted[i])) out[n++] = wanted[i];
    return n;
}

bool window_keep(const struct window *offered, int n, uint64_t base, uint64_t size) {
    bool kept = false;
    for (int i = 0; i < n; i++) {
        if (size && offered[i].base == base && offered[i].size == size)
            kept = true;
        else
            let_go(&offered[i]);
    }
    return kept;
}
