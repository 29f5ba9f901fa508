/* What the client library and libgpuvirt_host_io.so, a preload, say to one another (host_io.c). */
#ifndef COMPAT_HOST_IO_H
#define COMPAT_HOST_IO_H

#include <signal.h>
#include <stddef.h>
#include <stdint.h>

struct host_io_watch {
    /* Makes memory accessible that the kernel is about to read or, with `write`, to write. Any memory. */
    void (*reach)(uint64_t address, uint64_t size, int write);
    /* Stands for sigaction(SIGSEGV, ...) of the program. */
    int (*on_fault)(const struct sigaction *action, struct sigaction *old);
};

typedef int (*host_io_sigaction)(int number, const struct sigaction *action, struct sigaction *old);

/* From now on the preload asks `watch`. Returns the C library's own sigaction. Looked up by name: "gpuvirt_host_io". */
typedef host_io_sigaction (*host_io_begin)(const struct host_io_watch *watch);

#endif
