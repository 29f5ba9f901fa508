/* Kernels that fault: each is told by its kind, and the engine goes on. */
#include <setjmp.h>

#include "engine_fixture.h"

static void null_write(struct soft_warp *w) {
    if (w->ctaid[0] == 3 && w->warp == w->warps - 1) *(volatile int *)(uintptr_t)0x1234 = 1;
    if (w->warps > 1) soft_barrier_sync(w, 0, 0, w->lanes);
}

static void non_canonical(struct soft_warp *w) { *(volatile int *)((uintptr_t)w ^ 0x5000000000000000ull) = 1; }

void illegal(struct soft_warp *w) {
    (void)w;
    __asm__ volatile("ud2");
}

static void divides(struct soft_warp *w) {
    volatile int zero = 0;
    volatile int x = (int)w->ctaid[0] + 1;
    __asm__ volatile("cltd; idivl %1" : "+a"(x) : "r"(zero) : "edx");
}

static void jumps(struct soft_warp *w) { ((void (*)(struct soft_warp *))(uintptr_t)0x4000)(w); }
static void traps(struct soft_warp *w) { soft_trap(w, w->lanes, SOFT_TRAP); }
static void trap_stack(struct soft_warp *w) { soft_trap(w, w->lanes, SOFT_TRAP_STACK); }
static void asserts(struct soft_warp *w) { soft_assert_fail(w, 5, "x > 0", "file.cu", 17, "kernel"); }
static void unsupported(struct soft_warp *w) { soft_unsupported(w, "frob.b32"); }

static uint32_t deep(volatile uint32_t *from, uint32_t n) {
    volatile uint32_t here[256];
    here[n % 256] = n + *from;
    return n ? deep(here, n - 1) + here[n % 256] : 0;
}

static void recurses(struct soft_warp *w) {
    volatile uint32_t start = w->warp;
    deep(&start, 1u << 20);
}

void test_faults(void) {
    for (int barrier = 0; barrier < 2; barrier++) {
        CHECK_INT(run(null_write, 9, barrier ? 128 : 32, (uint32_t)barrier, 0, 0, 0, NULL, 0), 700);
        CHECK_TEXT(err, "0x1234");
        CHECK_TEXT(err, "kernel testing, block (3,0,0)");
        CHECK_INT(run(non_canonical, 2, 64, (uint32_t)barrier, 0, 0, 0, NULL, 0), 700);
        CHECK_INT(run(illegal, 2, 64, (uint32_t)barrier, 0, 0, 0, NULL, 0), 715);
        CHECK_INT(run(divides, 2, 64, (uint32_t)barrier, 0, 0, 0, NULL, 0), 719);
        CHECK_INT(run(jumps, 2, 64, (uint32_t)barrier, 0, 0, 0, NULL, 0), 718);
        CHECK_INT(run(traps, 2, 64, (uint32_t)barrier, 0, 0, 0, NULL, 0), 719);
        CHECK_INT(run(trap_stack, 2, 64, (uint32_t)barrier, 0, 0, 0, NULL, 0), 714);
        CHECK_INT(run(unsupported, 2, 64, (uint32_t)barrier, 0, 0, 0, NULL, 0), 715);
        CHECK_TEXT(err, "frob.b32");
        printed_used = 0;
        CHECK_INT(run(asserts, 1, 64, (uint32_t)barrier, 0, 0, 0, NULL, 0), 710);
        CHECK_TEXT(err, "file.cu:17: kernel: block: [0,0,0], thread: [5,0,0] Assertion `x > 0` failed");
    }
    CHECK_INT(run(recurses, 2, 64, 1, 0, 0, 0, NULL, 0), 714);
    test_barrier(); /* and the engine goes on */
}

/* A fault elsewhere reaches the handler that was there before. One that the test did not expect goes on to a sanitizer's, which reports it. */
static sigjmp_buf elsewhere;
static volatile sig_atomic_t expected;
static struct sigaction reports;

static void program_handler(int signo) {
    if (expected) siglongjmp(elsewhere, signo);
    sigaction(signo, &reports, NULL); /* and the instruction faults again */
}

void install_program_handler(void) { sigaction(SIGSEGV, &(struct sigaction){.sa_handler = program_handler, .sa_flags = SA_NODEFER}, &reports); }

void test_fault_elsewhere(void) {
    volatile int reached = 0;
    if (sigsetjmp(elsewhere, 1) == 0) {
        volatile uintptr_t nowhere = 0x10;
        expected = 1;
        *(volatile int *)nowhere = 1;
    } else {
        reached = 1;
    }
    expected = 0;
    CHECK_INT(reached, 1);
}

static void touch(void *arg) { *(volatile char *)arg = 1; }

void test_guarded(void) {
    uint64_t at = 0;
    char fine = 0;
    CHECK_INT(soft_guarded(touch, &fine, &at), 1);
    CHECK_INT(soft_guarded(touch, (void *)(uintptr_t)0x7770, &at), 0);
    CHECK_INT(at, 0x7770);
    CHECK_INT(soft_guarded(touch, &fine, &at), 1);
}
