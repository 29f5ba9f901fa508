/* Fibers: a stack each, and a switch that saves the registers that the x86-64 calling convention requires a callee to save. */
#include "exec_private.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

#if !defined(__x86_64__)
#error "the software GPU runs on x86-64 only"
#endif

/* Saves the callee-saved registers and restores those of the other fiber. mxcsr, which is callee-saved as well, is the same in all fibers of a
 * grid. */
#define EXCHANGE              \
    "    pushq %rbp\n"        \
    "    pushq %rbx\n"        \
    "    pushq %r12\n"        \
    "    pushq %r13\n"        \
    "    pushq %r14\n"        \
    "    pushq %r15\n"        \
    "    movq %rsp, (%rdi)\n" \
    "    movq %rsi, %rsp\n"   \
    "    popq %r15\n"         \
    "    popq %r14\n"         \
    "    popq %r13\n"         \
    "    popq %r12\n"         \
    "    popq %rbx\n"         \
    "    popq %rbp\n"

__asm__(".text\n"
        ".p2align 4\n"
        ".hidden soft_switch\n"
        ".globl soft_switch\n"
        ".type soft_switch, @function\n"
        "soft_switch:\n" EXCHANGE "    ret\n"
        ".size soft_switch, .-soft_switch\n"
        ".p2align 4\n"
        ".hidden soft_switch_jump\n"
        ".globl soft_switch_jump\n"
        ".type soft_switch_jump, @function\n"
        "soft_switch_jump:\n" EXCHANGE "    popq %rcx\n"
        "    jmpq *%rcx\n"
        ".size soft_switch_jump, .-soft_switch_jump\n"
        ".p2align 4\n"
        ".type soft_fiber_start, @function\n"
        "soft_fiber_start:\n" /* r12: the fiber, r13: its entry */
        "    movq %r12, %rdi\n"
        "    callq *%r13\n"
        "    ud2\n"
        ".size soft_fiber_start, .-soft_fiber_start\n");

extern const char soft_fiber_start[] __attribute__((visibility("hidden")));

struct fiber *soft_fiber_new(void) {
    struct fiber *f = aligned_alloc(64, (sizeof *f + 63) & ~(size_t)63);
    if (!f) return NULL;
    memset(f, 0, sizeof *f);
    char *all = mmap(NULL, SOFT_GUARD + SOFT_STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED) {
        free(f);
        return NULL;
    }
    if (mprotect(all, SOFT_GUARD, PROT_NONE)) { /* it would split a mapping, and there are as many as there may be */
        munmap(all, SOFT_GUARD + SOFT_STACK);
        free(f);
        return NULL;
    }
    f->stack = all + SOFT_GUARD;
    return f;
}

void soft_fiber_free(struct fiber *f) {
    soft_lanes_free(f->lanes);
    munmap((char *)f->stack - SOFT_GUARD, SOFT_GUARD + SOFT_STACK);
    free(f);
}

void soft_fiber_prepare(struct fiber *f, void (*entry)(struct fiber *)) {
    /* Stacks are whole pages apart: without an offset all warps of a block would use the same few sets of the first-level cache. Eight warps, the
     * associativity of a set, share a page evenly, the next eight lie between them. */
    uint32_t warp = f->warp.warp, stagger = warp % 8 * 512 + warp / 8 * 128;
    /* The stack's top is 64-byte aligned; after the return into soft_fiber_start it is aligned as the calling convention requires before a call. */
    uint64_t *sp = (uint64_t *)((char *)f->stack + SOFT_STACK - stagger);
#ifdef __SANITIZE_ADDRESS__ /* frames that a fault left behind are still marked */
    __asan_unpoison_memory_region(f->stack, SOFT_STACK);
#endif
    *--sp = 0;
    *--sp = 0;
    *--sp = (uint64_t)(uintptr_t)soft_fiber_start;
    *--sp = 0;                          /* rbp */
    *--sp = 0;                          /* rbx */
    *--sp = (uint64_t)(uintptr_t)f;     /* r12 */
    *--sp = (uint64_t)(uintptr_t)entry; /* r13 */
    *--sp = 0;                          /* r14 */
    *--sp = 0;                          /* r15 */
    f->sp = sp;
}
