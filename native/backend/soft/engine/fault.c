/* Faults of device code: a signal raised while a warp runs ends its grid; all other signals go to the previous handler. */
#define _GNU_SOURCE
#undef _FORTIFY_SOURCE /* its siglongjmp takes a jump from a fiber's stack for an error */
#include "../driver_constants.h"
#include "exec_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#define SIGNAL_STACK (64u << 10)

/* initial-exec: reading it in a signal handler must not allocate. */
static __thread struct runner *self __attribute__((tls_model("initial-exec")));
static pthread_key_t self_key;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
static struct sigaction previous[NSIG];

/* Not a fault of device code: does what would happen without this handler. */
static void chain(int signo, siginfo_t *info, void *context) {
    const struct sigaction *old = &previous[signo];
    if (old->sa_flags & SA_SIGINFO && old->sa_sigaction) {
        old->sa_sigaction(signo, info, context);
    } else if (old->sa_handler == SIG_DFL || old->sa_handler == SIG_IGN) {
        /* Returning runs the faulting instruction again, now with the default action; a signal that was sent is sent again. */
        sigaction(signo, &(struct sigaction){.sa_handler = SIG_DFL}, NULL);
        if (info->si_code <= 0) raise(signo);
    } else {
        old->sa_handler(signo);
    }
}

static void on_fault(int signo, siginfo_t *info, void *context) {
    struct runner *r = self;
    const ucontext_t *u = context;
    if (r && info->si_code > 0) {
        r->fault_signal = signo;
        r->fault_code = info->si_code;
        r->fault_address = (uint64_t)(uintptr_t)info->si_addr;
        r->fault_pc = (uint64_t)u->uc_mcontext.gregs[REG_RIP];
        if (r->guard) siglongjmp(*r->guard, 1);
        if (r->in_kernel && !r->in_helper) siglongjmp(r->jump, SOFT_LEFT_FAULT);
    }
    chain(signo, info, context);
}

/* Sent to runners of a grid that is to end; a kernel in an endless loop is left where it is. */
static void on_stop(int signo) {
    (void)signo;
    struct runner *r = self;
    if (!r) return;
    atomic_store(&r->told_to_stop, false);
    if (r->in_kernel && !r->in_helper && r->grid && atomic_load(&r->grid->stop)) siglongjmp(r->jump, SOFT_LEFT_TOLD);
}

void soft_stop_unblock(void) {
    sigset_t stop;
    sigemptyset(&stop);
    sigaddset(&stop, SOFT_STOP_SIGNAL);
    pthread_sigmask(SIG_UNBLOCK, &stop, NULL);
}

static void release(void *arg) {
    struct runner *r = arg;
    soft_runner_release(r);
    sigaltstack(&(stack_t){.ss_flags = SS_DISABLE}, NULL);
    self = NULL;
    munmap(r->signal_stack, SIGNAL_STACK);
    free(r);
}

static void install(void) {
    pthread_key_create(&self_key, release);
    /* SA_NODEFER: leaving by siglongjmp then leaves no signal blocked, and costs no system call to restore a mask. */
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) sigaction(faults[i], &action, &previous[faults[i]]);
    /* Blocked in its handler: on a busy machine it is sent again before a thread has left the handler's stack, which would hold few of them. */
    sigaction(SOFT_STOP_SIGNAL, &(struct sigaction){.sa_handler = on_stop, .sa_flags = SA_ONSTACK | SA_RESTART}, NULL);
}

void soft_fault_install(void) { pthread_once(&once, install); }

struct runner *soft_runner_or_null(void) { return self; }

struct runner *soft_runner(void) {
    if (self) return self;
    soft_fault_install();
    struct runner *r = aligned_alloc(64, (sizeof *r + 63) & ~(size_t)63);
    if (!r) return NULL;
    memset(r, 0, sizeof *r);
    r->signal_stack = mmap(NULL, SIGNAL_STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (r->signal_stack == MAP_FAILED || pthread_setspecific(self_key, r)) {
        if (r->signal_stack != MAP_FAILED) munmap(r->signal_stack, SIGNAL_STACK);
        free(r);
        return NULL;
    }
    sigaltstack(&(stack_t){.ss_sp = r->signal_stack, .ss_size = SIGNAL_STACK}, NULL);
    r->thread = pthread_self();
    self = r;
    return r;
}

void soft_thread_signals(void) {
    sigset_t all;
    sigfillset(&all);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) sigdelset(&all, faults[i]);
    sigdelset(&all, SIGTRAP);
    sigdelset(&all, SIGABRT);
    sigdelset(&all, SOFT_STOP_SIGNAL);
    pthread_sigmask(SIG_SETMASK, &all, NULL);
}

int soft_guarded(void (*fn)(void *), void *arg, uint64_t *fault) {
    struct runner *r = soft_runner();
    if (!r) {
        fn(arg);
        return 1;
    }
    sigjmp_buf here;
    if (sigsetjmp(here, 0)) {
        r->guard = NULL;
        if (fault) *fault = r->fault_address;
        return 0;
    }
    r->guard = &here;
    fn(arg);
    r->guard = NULL;
    return 1;
}

static bool on_guard_page(const struct runner *r) {
    if (!r->warp) return false;
    const struct fiber *f = soft_fiber_of(r->warp);
    if (f->lanes_run) f = (const struct fiber *)r->warp; /* a lane's */
    if (!f->stack) return false;
    uint64_t low = (uint64_t)(uintptr_t)f->stack;
    return r->fault_address < low && r->fault_address >= low - SOFT_GUARD;
}

void soft_fault_report(struct runner *r) {
    struct grid *g = r->grid;
    unsigned long long at = r->fault_address;
    if (r->fault_signal == SIGFPE)
        soft_grid_fail(g, CUDA_ERROR_LAUNCH_FAILED, r->warp, "arithmetic fault");
    else if (r->fault_signal == SIGILL)
        soft_grid_fail(g, CUDA_ERROR_ILLEGAL_INSTRUCTION, r->warp, "illegal instruction");
    else if (r->fault_signal == SIGBUS && r->fault_code == BUS_ADRALN)
        soft_grid_fail(g, CUDA_ERROR_MISALIGNED_ADDRESS, r->warp, "misaligned address 0x%llx", at);
    else if (r->fault_signal == SIGSEGV && r->fault_address == r->fault_pc)
        soft_grid_fail(g, CUDA_ERROR_INVALID_PC, r->warp, "jump to 0x%llx, which is no code", at);
    else if (on_guard_page(r))
        soft_grid_fail(g, CUDA_ERROR_HARDWARE_STACK_ERROR, r->warp, "stack exhausted");
    else if (r->fault_signal == SIGSEGV && r->fault_code == SI_KERNEL) /* not a canonical address; the processor does not say which */
        soft_grid_fail(g, CUDA_ERROR_ILLEGAL_ADDRESS, r->warp, "illegal address beyond the address space");
    else
        soft_grid_fail(g, CUDA_ERROR_ILLEGAL_ADDRESS, r->warp, "illegal address 0x%llx", at);
}
