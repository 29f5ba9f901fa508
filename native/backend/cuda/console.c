/* Output of kernels. The driver writes it to this process's standard output during synchronising calls; it belongs to the client. So standard output
 * is a memory file while the backend is open, and its contents are passed on before the mark at which they were found. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "backend_cuda.h"

int cuda_console_open(struct gv_backend *b) {
    b->console_file = b->console_saved = -1;
    if (!b->console) return 0;
    fflush(stdout);
    b->console_saved = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3); /* -1: there was none */
    b->console_file = memfd_create("gpuvirt-console", MFD_CLOEXEC);
    if (b->console_file >= 0 && dup2(b->console_file, STDOUT_FILENO) >= 0) return 0;
    cuda_console_close(b);
    return CUDA_ERROR_OPERATING_SYSTEM;
}

void cuda_console_drain(struct gv_backend *b) {
    if (b->console_file < 0) return;
    fflush(stdout); /* the driver may use it */
    char text[4096];
    ssize_t n;
    bool any = false;
    while ((n = pread(b->console_file, text, sizeof text, b->console_read)) > 0) {
        b->console(b->console_arg, text, (size_t)n);
        b->console_read += n;
        any = true;
    }
    /* Frees the pages that have been read. A file system without that operation keeps them. */
    if (any && fallocate(b->console_file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, b->console_read)) return;
}

void cuda_console_close(struct gv_backend *b) {
    if (b->console_file >= 0) {
        fflush(stdout);
        if (b->console_saved >= 0) dup2(b->console_saved, STDOUT_FILENO);
        close(b->console_file);
    }
    if (b->console_saved >= 0) close(b->console_saved);
    b->console_file = b->console_saved = -1;
}
