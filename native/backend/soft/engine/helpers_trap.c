/* How a kernel ends by itself: failed assertions, traps, misaligned addresses, what the software GPU lacks. */
#include "../driver_constants.h"
#include "exec_private.h"

#define SOFT_EXPORT __attribute__((visibility("default")))

static struct runner *runner_of(const struct soft_warp *w) { return soft_fiber_of(w)->block->runner; }

SOFT_EXPORT _Noreturn void soft_assert_fail(struct soft_warp *w, uint32_t lane, const char *message, const char *file, uint32_t line,
                                            const char *function) {
    struct runner *r = runner_of(w);
    uint32_t thread = w->first_thread + lane, x = thread % w->ntid[0], y = thread / w->ntid[0] % w->ntid[1], z = thread / w->ntid[0] / w->ntid[1];
    /* The text belongs on standard error, as CUDA has it: it travels with the error, not with what kernels print. */
    soft_grid_fail(r->grid, CUDA_ERROR_ASSERT, w, "%.200s:%u: %.200s: block: [%u,%u,%u], thread: [%u,%u,%u] Assertion `%.200s` failed",
                   file ? file : "", line, function ? function : "", w->ctaid[0], w->ctaid[1], w->ctaid[2], x, y, z, message ? message : "");
    soft_leave(r);
}

SOFT_EXPORT _Noreturn void soft_trap(struct soft_warp *w, uint32_t lanes, uint32_t kind) {
    static const struct {
        int error;
        const char *text;
    } kinds[] = {
        [SOFT_TRAP] = {CUDA_ERROR_LAUNCH_FAILED, "trap"},
        [SOFT_TRAP_STACK] = {CUDA_ERROR_HARDWARE_STACK_ERROR, "stack exhausted by recursion"},
        [SOFT_TRAP_BAD_PC] = {CUDA_ERROR_INVALID_PC, "call of what is no function"},
        [SOFT_TRAP_MISALIGNED] = {CUDA_ERROR_MISALIGNED_ADDRESS, "misaligned address"},
    };
    struct runner *r = runner_of(w);
    uint32_t k = kind < sizeof kinds / sizeof *kinds ? kind : SOFT_TRAP;
    soft_grid_fail(r->grid, kinds[k].error, w, "%s (lanes 0x%08x)", kinds[k].text, lanes);
    soft_leave(r);
}

SOFT_EXPORT _Noreturn void soft_misaligned(struct soft_warp *w, uint32_t lanes, uint64_t address, uint32_t size, uint32_t space) {
    static const char *const names[] = {"", "shared ", "local "};
    struct runner *r = runner_of(w);
    soft_grid_fail(r->grid, CUDA_ERROR_MISALIGNED_ADDRESS, w, "misaligned %saddress 0x%llx for %u bytes (lanes 0x%08x)", names[space < 3 ? space : 0],
                   (unsigned long long)address, size, lanes);
    soft_leave(r);
}

SOFT_EXPORT _Noreturn void soft_unsupported(struct soft_warp *w, const char *text) {
    struct runner *r = runner_of(w);
    soft_grid_fail(r->grid, CUDA_ERROR_ILLEGAL_INSTRUCTION, w, "the software GPU lacks %.200s", text);
    soft_leave(r);
}
