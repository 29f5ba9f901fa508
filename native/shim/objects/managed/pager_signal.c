/* Watches pages by their protection: a touch is a SIGSEGV, which is handled on the thread that touched. It works everywhere, but a system call that is given such a page fails with EFAULT (compat/host_io.c
 * prepares for those), and the program's own handler of SIGSEGV has to be called for what is not ours. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/ucontext.h>

#include "compat/host_io.h"
#include "objects/managed/pager.h"
#include "session/session.h"

static const struct page_watch *watching;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct sigaction theirs;      /* whose place ours has taken */
static host_io_sigaction set_action; /* the C library's own sigaction */
static bool preloaded;               /* the preload keeps programs from taking our place */

/* Whether the access was a write, as far as the processor says so. */
static bool was_write(const void *context) {
#if defined(__x86_64__)
    return ((const ucontext_t *)context)->uc_mcontext.gregs[REG_ERR] & 2;
#else
    (void)context;
    return true;
#endif
}

/* What would have happened without us. */
static void pass_on(int number, siginfo_t *info, void *context) {
    if (theirs.sa_flags & SA_SIGINFO) {
        theirs.sa_sigaction(number, info, context);
    } else if (theirs.sa_handler != SIG_DFL && theirs.sa_handler != SIG_IGN) {
        theirs.sa_handler(number);
    } else {
        struct sigaction none = {.sa_handler = SIG_DFL};
        set_action(number, &none, NULL); /* the access is tried again, and is the end */
    }
}

static void handle(int number, siginfo_t *info, void *context) {
    bool fault = info->si_code == SEGV_ACCERR || info->si_code == SEGV_MAPERR;
    if (!fault || !watching->touched((uint64_t)(uintptr_t)info->si_addr, was_write(context))) pass_on(number, info, context);
}

static void install(void) {
    struct sigaction now, ours = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO | SA_NODEFER};
    if (preloaded || set_action(SIGSEGV, NULL, &now) || (now.sa_flags & SA_SIGINFO && now.sa_sigaction == handle)) return;
    theirs = now;
    /* The handlers of other signals may touch managed memory, too, and must not do so while this one holds a lock. */
    sigfillset(&ours.sa_mask);
    sigdelset(&ours.sa_mask, SIGSEGV);
    sigdelset(&ours.sa_mask, SIGBUS);
    ours.sa_flags |= now.sa_flags & SA_ONSTACK; /* theirs may be for a stack that is full */
    set_action(SIGSEGV, &ours, NULL);
}

/* ---- the preload ---- */

static void reach(uint64_t address, uint64_t size, int write) { watching->reach(address, size, write != 0); }

static int on_fault(const struct sigaction *action, struct sigaction *old) {
    pthread_mutex_lock(&lock);
    struct sigaction before = theirs;
    if (action) theirs = *action;
    if (old) *old = before;
    pthread_mutex_unlock(&lock);
    return 0;
}

static const struct host_io_watch host_io = {.reach = reach, .on_fault = on_fault};

static bool start(const struct page_watch *watch) {
    host_io_begin begin = (host_io_begin)dlsym(RTLD_DEFAULT, "gpuvirt_host_io");
    watching = watch;
    set_action = sigaction;
    install();
    if (begin) {
        set_action = begin(&host_io);
        preloaded = true;
    } else {
        shim_log_once("managed memory: this process may not use userfaultfd, so system calls fail on such memory where the GPU has it; start it with "
                      "gpuvirt run");
    }
    return true;
}

static int watch_pages(uint64_t base, uint64_t size) { return mprotect((void *)(uintptr_t)base, size, PROT_NONE); }

static int protect(uint64_t base, char *view, uint64_t size, enum page_access access) {
    (void)view;
    return mprotect((void *)(uintptr_t)base, size, access == PAGES_WRITE ? PROT_READ | PROT_WRITE : access == PAGES_READ ? PROT_READ : PROT_NONE);
}

static void forget(uint64_t base, uint64_t size) { (void)base, (void)size; }

const struct pager pager_signal = {.name = "signal", .start = start, .watch = watch_pages, .protect = protect, .forget = forget, .renew = install};
