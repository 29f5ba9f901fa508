/* For clients whose kernel does not let them watch pages with userfaultfd: a system call that is given managed memory fails on pages that are not accessible. So the C library's calls for input and output make
 * them accessible first. A handler of SIGSEGV that the program installs stands behind the client library's own. Nothing here does anything before the client library has managed memory. */
#define _GNU_SOURCE
#include "host_io.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#undef fread_unlocked /* macros */
#undef fwrite_unlocked

#define EXPORT __attribute__((visibility("default")))

static const struct host_io_watch *_Atomic watching;

static void reach(const void *address, size_t size, bool write) {
    const struct host_io_watch *w = atomic_load_explicit(&watching, memory_order_acquire);
    if (w && size) w->reach((uint64_t)(uintptr_t)address, size, write);
}

static void reach_all(const struct iovec *parts, size_t n, bool write) {
    if (!atomic_load_explicit(&watching, memory_order_acquire)) return;
    reach(parts, n * sizeof *parts, false);
    for (size_t i = 0; i < n; i++) reach(parts[i].iov_base, parts[i].iov_len, write);
}

static void reach_message(const struct msghdr *m, bool write) {
    if (!atomic_load_explicit(&watching, memory_order_acquire)) return;
    reach(m, sizeof *m, true);
    reach_all(m->msg_iov, m->msg_iovlen, write);
    reach(m->msg_name, m->msg_name ? m->msg_namelen : 0, write);
    reach(m->msg_control, m->msg_control ? m->msg_controllen : 0, write);
}

/* A function of the C library: `get` says what to reach before the real one is called. */
#define WRAP(type, name, parameters, arguments, ...)                  \
    EXPORT type name parameters {                                     \
        static type(*_Atomic real) parameters;                        \
        if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name); \
        __VA_ARGS__;                                                  \
        return real arguments;                                        \
    }

WRAP(ssize_t, read, (int fd, void *to, size_t n), (fd, to, n), reach(to, n, true))
WRAP(ssize_t, pread, (int fd, void *to, size_t n, off_t at), (fd, to, n, at), reach(to, n, true))
WRAP(ssize_t, pread64, (int fd, void *to, size_t n, off64_t at), (fd, to, n, at), reach(to, n, true))
WRAP(ssize_t, readv, (int fd, const struct iovec *parts, int n), (fd, parts, n), reach_all(parts, (size_t)n, true))
WRAP(ssize_t, preadv, (int fd, const struct iovec *parts, int n, off_t at), (fd, parts, n, at), reach_all(parts, (size_t)n, true))
WRAP(ssize_t, preadv64, (int fd, const struct iovec *parts, int n, off64_t at), (fd, parts, n, at), reach_all(parts, (size_t)n, true))
WRAP(ssize_t, recv, (int fd, void *to, size_t n, int flags), (fd, to, n, flags), reach(to, n, true))
WRAP(ssize_t, recvfrom, (int fd, void *restrict to, size_t n, int flags, struct sockaddr *restrict from, socklen_t *restrict length),
     (fd, to, n, flags, from, length), reach(to, n, true))
WRAP(ssize_t, recvmsg, (int fd, struct msghdr *message, int flags), (fd, message, flags), reach_message(message, true))
WRAP(ssize_t, write, (int fd, const void *from, size_t n), (fd, from, n), reach(from, n, false))
WRAP(ssize_t, pwrite, (int fd, const void *from, size_t n, off_t at), (fd, from, n, at), reach(from, n, false))
WRAP(ssize_t, pwrite64, (int fd, const void *from, size_t n, off64_t at), (fd, from, n, at), reach(from, n, false))
WRAP(ssize_t, writev, (int fd, const struct iovec *parts, int n), (fd, parts, n), reach_all(parts, (size_t)n, false))
WRAP(ssize_t, pwritev, (int fd, const struct iovec *parts, int n, off_t at), (fd, parts, n, at), reach_all(parts, (size_t)n, false))
WRAP(ssize_t, pwritev64, (int fd, const struct iovec *parts, int n, off64_t at), (fd, parts, n, at), reach_all(parts, (size_t)n, false))
WRAP(ssize_t, send, (int fd, const void *from, size_t n, int flags), (fd, from, n, flags), reach(from, n, false))
WRAP(ssize_t, sendto, (int fd, const void *from, size_t n, int flags, const struct sockaddr *to, socklen_t length), (fd, from, n, flags, to, length),
     reach(from, n, false))
WRAP(ssize_t, sendmsg, (int fd, const struct msghdr *message, int flags), (fd, message, flags), reach_message(message, false))
/* Large reads and writes of a stream go to the program's buffer straight. */
WRAP(size_t, fread, (void *restrict to, size_t size, size_t n, FILE *restrict f), (to, size, n, f), reach(to, size *n, true))
WRAP(size_t, fread_unlocked, (void *restrict to, size_t size, size_t n, FILE *restrict f), (to, size, n, f), reach(to, size *n, true))
WRAP(size_t, fwrite, (const void *restrict from, size_t size, size_t n, FILE *restrict f), (from, size, n, f), reach(from, size *n, false))
WRAP(size_t, fwrite_unlocked, (const void *restrict from, size_t size, size_t n, FILE *restrict f), (from, size, n, f), reach(from, size *n, false))

/* ---- handlers ---- */

static int real_sigaction(int number, const struct sigaction *action, struct sigaction *old) {
    static int (*_Atomic real)(int, const struct sigaction *, struct sigaction *);
    if (!real) real = (host_io_sigaction)dlsym(RTLD_NEXT, "sigaction");
    return real(number, action, old);
}

EXPORT int sigaction(int number, const struct sigaction *restrict action, struct sigaction *restrict old) {
    const struct host_io_watch *w = atomic_load_explicit(&watching, memory_order_acquire);
    return w && number == SIGSEGV ? w->on_fault(action, old) : real_sigaction(number, action, old);
}

EXPORT sighandler_t signal(int number, sighandler_t handler) {
    static sighandler_t (*_Atomic real)(int, sighandler_t);
    if (!real) real = (sighandler_t (*)(int, sighandler_t))dlsym(RTLD_NEXT, "signal");
    const struct host_io_watch *w = atomic_load_explicit(&watching, memory_order_acquire);
    if (!w || number != SIGSEGV) return real(number, handler);
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART}, old;
    sigemptyset(&action.sa_mask);
    return w->on_fault(&action, &old) ? SIG_ERR : old.sa_handler;
}

EXPORT host_io_sigaction gpuvirt_host_io(const struct host_io_watch *watch);
host_io_sigaction gpuvirt_host_io(const struct host_io_watch *watch) {
    atomic_store_explicit(&watching, watch, memory_order_release);
    return real_sigaction;
}
